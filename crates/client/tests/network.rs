//! The operating system's sockets: bytes pass in both directions over TCP and over a Unix socket.

use lookaside_client::{Listener, Network, TcpNetwork};
use lookaside_routing::Address;
use std::{io, net::IpAddr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn exchange(mut listener: Box<dyn Listener>, address: Address, peer: Option<IpAddr>) -> io::Result<()> {
    let server = tokio::spawn(async move {
        let mut stream = listener.accept().await?;
        let mut request = [0; 4];
        stream.read_exact(&mut request).await?;
        stream.write_all(&request).await?;
        Ok::<_, io::Error>((stream.peer(), request))
    });
    let mut stream = TcpNetwork.connect(&address).await?;
    stream.write_all(b"ping").await?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).await?;
    assert_eq!(reply, b"ping");
    assert_eq!(server.await.expect("the server does not panic")?, (peer, *b"ping"));
    Ok(())
}

#[tokio::test]
async fn bytes_pass_over_tcp() -> io::Result<()> {
    // A port that was free a moment ago. If another process takes it first, the test fails.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let address = Address(format!("127.0.0.1:{port}").into());
    let listener = TcpNetwork.listen(&address).await?;
    assert_eq!(TcpNetwork.listen(&address).await.err().map(|error| error.kind()), Some(io::ErrorKind::AddrInUse));
    exchange(listener, address, Some([127, 0, 0, 1].into())).await
}

#[tokio::test]
async fn bytes_pass_over_a_unix_socket() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let address = Address(folder.path().join("socket").to_string_lossy().into());
    let listener = TcpNetwork.listen(&address).await?;
    assert_eq!(TcpNetwork.listen(&address).await.err().map(|error| error.kind()), Some(io::ErrorKind::AddrInUse));
    exchange(listener, address, None).await
}
