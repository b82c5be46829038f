//! Where the server is, and how to connect.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// TCP.
    Tcp(SocketAddr),
    /// UDP with memcached's frame header.
    Udp(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
}

impl ServerAddress {
    /// Parses `HOST:PORT`, `udp:HOST:PORT` or `unix:PATH`; a name is resolved.
    pub fn parse(text: &str) -> Result<ServerAddress, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(ServerAddress::Unix(path.into()));
        }
        let (is_udp, host) = match text.strip_prefix("udp:") {
            Some(host) => (true, host),
            None => (false, text),
        };
        let resolved = host.to_socket_addrs().map_err(|error| format!("expected HOST:PORT: {error}"))?.next();
        let address = resolved.ok_or("the name has no address")?;
        Ok(if is_udp { ServerAddress::Udp(address) } else { ServerAddress::Tcp(address) })
    }

    /// A connected socket that does not block.
    pub fn connect(&self) -> io::Result<OwnedFd> {
        match self {
            ServerAddress::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, CONNECT_TIMEOUT)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Ok(stream.into())
            }
            ServerAddress::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Ok(stream.into())
            }
            ServerAddress::Udp(address) => {
                let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpSocket::bind(any)?;
                socket.connect(address)?;
                socket.set_nonblocking(true)?;
                Ok(socket.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_parsed() {
        let address: SocketAddr = "127.0.0.1:11211".parse().unwrap();
        assert_eq!(ServerAddress::parse("127.0.0.1:11211"), Ok(ServerAddress::Tcp(address)));
        assert_eq!(ServerAddress::parse("udp:127.0.0.1:11211"), Ok(ServerAddress::Udp(address)));
        assert_eq!(ServerAddress::parse("unix:/run/cache.sock"), Ok(ServerAddress::Unix("/run/cache.sock".into())));
        assert!(ServerAddress::parse("127.0.0.1").unwrap_err().contains("HOST:PORT"));
    }
}
