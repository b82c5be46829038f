//! The operating system's sockets: bytes pass both ways over TCP and over a unix socket.

use lookaside_client::{Listener, Network, TcpNetwork};
use lookaside_routing::Address;
use std::{io, net::IpAddr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn exchange(mut listener: Box<dyn Listener>, address: Address, peer: Option<IpAddr>) -> io::Result<()> {
    let server = tokio::spawn(async move {
        let mut stream = listener.accept().await?;
        let mut asked = [0; 4];
        stream.read_exact(&mut asked).await?;
        stream.write_all(&asked).await?;
        Ok::<_, io::Error>((stream.peer(), asked))
    });
    let mut stream = TcpNetwork.connect(&address).await?;
    stream.write_all(b"ping").await?;
    let mut answered = Vec::new();
    stream.read_to_end(&mut answered).await?;
    assert_eq!(answered, b"ping");
    assert_eq!(server.await.expect("the server does not panic")?, (peer, *b"ping"));
    Ok(())
}

#[tokio::test]
async fn over_tcp() -> io::Result<()> {
    // A port that was free a moment ago; whoever takes it first makes this listen fail, not pass.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let address = Address(format!("127.0.0.1:{port}").into());
    let listener = TcpNetwork.listen(&address).await?;
    assert_eq!(TcpNetwork.listen(&address).await.err().map(|error| error.kind()), Some(io::ErrorKind::AddrInUse));
    exchange(listener, address, Some([127, 0, 0, 1].into())).await
}

#[tokio::test]
async fn over_a_unix_socket() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let address = Address(folder.path().join("socket").to_string_lossy().into());
    let listener = TcpNetwork.listen(&address).await?;
    assert_eq!(TcpNetwork.listen(&address).await.err().map(|error| error.kind()), Some(io::ErrorKind::AddrInUse));
    exchange(listener, address, None).await
}
