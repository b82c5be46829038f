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
pub(crate) async fn flush_server(network: &dyn Network, address: &Address, delay_s: i64) -> Result<(), String> {
    let asked = async {
        let mut stream = network.connect(address).await?;
        stream.write_all(format!("flush_all {delay_s}\r\n").as_bytes()).await?;
        stream.flush().await?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_client::TcpNetwork;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    /// What comes of asking a server that answers `answer` and closes the connection.
    async fn ask_one_that_says(answer: &'static str) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = Address(listener.local_addr().expect("bound").to_string().into());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("the client comes");
            let mut line = [0; 14];
            stream.read_exact(&mut line).expect("a command");
            assert_eq!(&line, b"flush_all 30\r\n");
            stream.write_all(answer.as_bytes()).expect("the client reads");
        });
        let outcome = flush_server(&TcpNetwork, &address, 30).await;
        server.join().expect("it was asked as it should be");
        outcome
    }

    #[tokio::test]
    async fn only_ok_is_success() {
        assert_eq!(ask_one_that_says("OK\r\n").await, Ok(()));
        let refused = ask_one_that_says("CLIENT_ERROR flush_all not allowed\r\n").await;
        assert!(refused.is_err_and(|why| why.contains("flush_all not allowed")));
        assert!(ask_one_that_says("").await.is_err());
    }
}
