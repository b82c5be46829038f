//! Flushes one server by `flush_all`, over a connection of its own: the shared one carries only operations on keys.

use lookaside_client::{CommandConnection, CommandError, Network};
use lookaside_protocol::text::Limits;
use lookaside_routing::Address;
use std::time::Duration;

/// The limit on one server, connecting included.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// A longer reply is malformed.
const LIMITS: Limits = Limits { value_bytes_max: 0, line_bytes_max: 512 };

pub(crate) async fn flush_server(network: &dyn Network, address: &Address, delay_s: i64) -> Result<(), CommandError> {
    let mut connection = CommandConnection::connect(network, address, LIMITS, FLUSH_TIMEOUT).await?;
    connection.flush_all(Some(delay_s)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_client::TcpNetwork;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    /// Flushes a server that replies `reply` and closes the connection.
    async fn flush_with_reply(reply: &'static str) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = Address(listener.local_addr().expect("bound").to_string().into());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("the client connects");
            let mut line = [0; 14];
            stream.read_exact(&mut line).expect("a command");
            assert_eq!(&line, b"flush_all 30\r\n");
            stream.write_all(reply.as_bytes()).expect("the client reads");
        });
        let result = flush_server(&TcpNetwork, &address, 30).await.map_err(|error| error.to_string());
        server.join().expect("it received the command");
        result
    }

    #[tokio::test]
    async fn only_ok_is_success() {
        assert_eq!(flush_with_reply("OK\r\n").await, Ok(()));
        let refused = flush_with_reply("CLIENT_ERROR flush_all not allowed\r\n").await;
        assert!(refused.is_err_and(|why| why.contains("flush_all not allowed")));
        for reply in ["", "OK", "OK but later\r\n", "OK\r\nERROR\r\n"] {
            assert!(flush_with_reply(reply).await.is_err(), "{reply:?}");
        }
    }
}
