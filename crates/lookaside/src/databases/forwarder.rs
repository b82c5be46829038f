//! Forwards TCP connections over a link: bytes towards the client, which is the replica, arrive as late as the link
//! says. Requests of the replica pass at once, but wait while the link is cut, as packets do that are sent again.

use super::link::LinkReceiver;
use anyhow::{Context, Result};
use bytes::{Bytes, BytesMut};
use std::{io, net::Ipv4Addr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::Instant,
};

const PIECE_BYTES: usize = 16 << 10;
/// What a connection holds in one direction at most, in pieces; the sender waits then, which adds to the delay.
const PIECES_MAX: usize = 1024;
/// A replica has one connection, and a few that have not noticed their end yet.
const CONNECTIONS_MAX: usize = 32;
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Listens at a port of 127.0.0.1 and forwards to another one.
pub struct Forwarder {
    listener: TcpListener,
    target: u16,
    link: LinkReceiver,
}

impl Forwarder {
    /// Binds the port.
    pub async fn bind(port: u16, target: u16, link: LinkReceiver) -> Result<Forwarder> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
        let listener = listener.with_context(|| format!("cannot listen on port {port} for the link to a replica"))?;
        Ok(Forwarder { listener, target, link })
    }

    /// Forwards until this is dropped.
    pub async fn run(self) {
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut connections = JoinSet::new();
        loop {
            let permit = permits.clone().acquire_owned().await.expect("never closed");
            let Ok((client, _)) = self.listener.accept().await else {
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            };
            let (target, link) = (self.target, self.link.clone());
            connections.spawn(async move {
                // An error of either side ends the connection; the replica connects again.
                let _ = forward(client, target, link).await;
                drop(permit);
            });
            while connections.try_join_next().is_some() {}
        }
    }
}

async fn forward(client: TcpStream, target: u16, mut link: LinkReceiver) -> io::Result<()> {
    link.wait_until_restored().await;
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let requests = copy(from_client, to_server, Passage::WhenRestored(link.clone()));
    let log = copy(from_server, to_client, Passage::Delayed(link));
    tokio::try_join!(requests, log).map(drop)
}

/// When a piece may pass.
enum Passage {
    WhenRestored(LinkReceiver),
    Delayed(LinkReceiver),
}

impl Passage {
    async fn wait(&mut self, sent_at: Instant) {
        match self {
            Passage::WhenRestored(link) => link.wait_until_restored().await,
            Passage::Delayed(link) => link.wait_for_arrival(sent_at).await,
        }
    }
}

/// Copies until the sender ends, then ends the receiver.
async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut passage: Passage) -> io::Result<()> {
    let (sender, mut pieces) = mpsc::channel::<(Instant, Bytes)>(PIECES_MAX);
    let read = async move {
        loop {
            let mut piece = BytesMut::with_capacity(PIECE_BYTES);
            if from.read_buf(&mut piece).await? == 0 || sender.send((Instant::now(), piece.freeze())).await.is_err() {
                return io::Result::Ok(());
            }
        }
    };
    let write = async move {
        while let Some((sent_at, mut piece)) = pieces.recv().await {
            passage.wait(sent_at).await;
            to.write_all_buf(&mut piece).await?;
        }
        to.shutdown().await
    };
    tokio::try_join!(read, write).map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::link::{LinkControl, LinkState};
    use super::*;
    use std::net::SocketAddr;

    const DELAY: Duration = Duration::from_millis(200);

    /// A master, and a forwarder to it; the address is that of the forwarder.
    async fn forward_over_link(control: &LinkControl) -> (TcpListener, SocketAddr, JoinSet<()>) {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let target = server.local_addr().unwrap().port();
        let forwarder = Forwarder::bind(0, target, control.receiver()).await.unwrap();
        let address = forwarder.listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(forwarder.run());
        (server, address, tasks)
    }

    async fn connect_over_link(control: &LinkControl) -> (TcpStream, TcpStream, JoinSet<()>) {
        let (server, address, tasks) = forward_over_link(control).await;
        let replica = TcpStream::connect(address).await.unwrap();
        let (master, _) = server.accept().await.unwrap();
        (replica, master, tasks)
    }

    #[tokio::test]
    async fn the_log_is_delayed_and_requests_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let control = LinkControl::create(directory.path().join("link")).unwrap();
        let (mut replica, mut master, _tasks) = connect_over_link(&control).await;
        control.set(LinkState::Delayed(DELAY)).unwrap();
        let sent_at = Instant::now();
        replica.write_all(b"r").await.unwrap();
        assert_eq!(master.read_u8().await.unwrap(), b'r');
        master.write_all(b"log").await.unwrap();
        let mut log = [0; 3];
        replica.read_exact(&mut log).await.unwrap();
        assert_eq!(&log, b"log");
        assert!(sent_at.elapsed() >= DELAY, "{:?}", sent_at.elapsed());
    }

    #[tokio::test]
    async fn a_cut_link_holds_bytes_back_without_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let control = LinkControl::create(directory.path().join("link")).unwrap();
        let (mut replica, mut master, _tasks) = connect_over_link(&control).await;
        control.set(LinkState::Cut).unwrap();
        master.write_all(b"a").await.unwrap();
        replica.write_all(b"b").await.unwrap();
        assert!(tokio::time::timeout(DELAY, replica.read_u8()).await.is_err(), "the link is cut");
        assert!(tokio::time::timeout(DELAY, master.read_u8()).await.is_err(), "the link is cut");
        control.set(LinkState::Delayed(Duration::ZERO)).unwrap();
        assert_eq!(replica.read_u8().await.unwrap(), b'a');
        assert_eq!(master.read_u8().await.unwrap(), b'b');
        drop(master);
        assert!(replica.read_u8().await.is_err(), "the end passes, too");
    }

    /// A replica that connects again and again, without end, would use up the master's connections.
    #[tokio::test]
    async fn further_connections_wait_until_one_ends() {
        let directory = tempfile::tempdir().unwrap();
        let control = LinkControl::create(directory.path().join("link")).unwrap();
        let (server, address, _tasks) = forward_over_link(&control).await;
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            let replica = TcpStream::connect(address).await.unwrap();
            connections.push((replica, server.accept().await.unwrap().0));
        }
        let mut waiting = TcpStream::connect(address).await.unwrap();
        waiting.write_all(b"w").await.unwrap();
        assert!(tokio::time::timeout(DELAY, server.accept()).await.is_err(), "one more is not forwarded");
        drop(connections.pop());
        let (mut master, _) = server.accept().await.unwrap();
        assert_eq!(master.read_u8().await.unwrap(), b'w', "in the place of the one that has ended");
    }
}
