//! `flush_all`, sent to one server over a connection of its own: the shared one carries only operations on keys.

use lookaside_client::Network;
use lookaside_routing::Address;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long one server may take, connecting included.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// The longest answer that is listened to.
const ANSWER_BYTES_MAX: usize = 512;

/// Asks the server at `address` to forget everything after `delay_s` seconds.
pub(crate) async fn ask(network: &dyn Network, address: &Address, delay_s: i64) -> Result<(), String> {
    let asked = async {
        let mut stream = network.connect(address).await?;
        stream.write_all(format!("flush_all {delay_s}\r\n").as_bytes()).await?;
        let mut answer = Vec::new();
        while answer.len() < ANSWER_BYTES_MAX && !answer.ends_with(b"\r\n") {
            if stream.read_buf(&mut answer).await? == 0 {
                break;
            }
        }
        Ok::<_, std::io::Error>(answer)
    };
    match tokio::time::timeout(FLUSH_MAX, asked).await {
        Ok(Ok(answer)) if answer == b"OK\r\n" => Ok(()),
        Ok(Ok(answer)) => Err(format!("it said {:?}", String::from_utf8_lossy(answer.trim_ascii()))),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {FLUSH_MAX:?}")),
    }
}
