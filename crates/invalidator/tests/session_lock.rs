//! The lock of the active invalidator's session, as a standby sees it, in real databases.

use crate::{mysql_server, postgres_server};
use lookaside_client::{Listener, Network, Stream, TcpNetwork};
use lookaside_invalidator::{
    election::{LockAttempt, LockSighting, RecordStore, SessionLock, StateLocation},
    source::{mysql::MysqlOptions, postgres::PostgresOptions},
};
use lookaside_routing::{Address, BoxFuture};
use std::{
    io,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

const LOCK: SessionLock = SessionLock(u64::MAX - 1);

#[tokio::test]
async fn a_lock_is_held_until_its_session_ends() {
    let mariadb = mysql_server::Server::start(&[]).await;
    check(|network| of_mysql(mariadb.options(), network)).await;
    let postgres = postgres_server::Server::start(&[]).await;
    check(|network| of_postgres(postgres.options(), network)).await;
    if let Some(mysqld) = mysql_server::fetched::mysqld() {
        let mysql = mysql_server::Server::start_mysql(&mysqld, &[]).await;
        check(|network| of_mysql(mysql.options(), network)).await;
    }
}

/// A lock needs no table.
fn of_mysql(options: MysqlOptions, network: Arc<dyn Network>) -> Arc<dyn RecordStore> {
    StateLocation::Mysql(options, "app".into()).store(network, "row")
}

fn of_postgres(options: PostgresOptions, network: Arc<dyn Network>) -> Arc<dyn RecordStore> {
    StateLocation::Postgres(options).store(network, "row")
}

async fn check(store: impl Fn(Arc<dyn Network>) -> Arc<dyn RecordStore>) {
    let (active, standby, third) =
        (store(Arc::new(TcpNetwork)), store(Arc::new(TcpNetwork)), store(Arc::new(TcpNetwork)));
    let sees = async |standby: &Arc<dyn RecordStore>| -> LockSighting {
        standby.look_up_lock(LOCK).await.expect("it is looked up").expect("it is a session of its own")
    };
    assert!(!sees(&standby).await.is_held);
    assert_eq!(active.hold_lock(LOCK.0).await, Ok(LockAttempt::Held(LOCK)));
    assert_eq!(active.hold_lock(8).await, Ok(LockAttempt::Held(LOCK)), "a session has one");
    let held = sees(&standby).await;
    assert!(held.is_held && sees(&third).await.is_held);
    // Each beat shows, to every standby, and nothing else does.
    assert_eq!(third.beat().await, Ok(false), "it has no lock");
    for _ in 0..20 {
        let before = sees(&standby).await;
        assert_eq!(active.beat().await, Ok(true));
        let after = sees(&standby).await;
        assert!(after.is_held && after.beat.count_ones() == 1 && after.beat != before.beat, "{before:?} {after:?}");
        assert_eq!(sees(&third).await.beat, after.beat);
        assert_eq!(sees(&standby).await, after, "a look changes nothing");
    }
    // One that has the same number does not get it.
    assert!(matches!(third.hold_lock(LOCK.0).await, Ok(LockAttempt::Refused(_))));
    drop(active);
    let deadline = Instant::now() + mysql_server::DEADLINE;
    let freed = loop {
        match sees(&standby).await {
            seen if !seen.is_held => break seen,
            _ => assert!(Instant::now() < deadline, "it stays held"),
        }
    };
    assert_eq!(freed.connection, held.connection);
    assert!(!sees(&third).await.is_held, "looking it up takes it for a moment only");
    // A proxy that shares sessions names one of its own in the handshake.
    let behind_proxy = store(Arc::new(OtherHandshake));
    assert!(matches!(behind_proxy.hold_lock(9).await, Ok(LockAttempt::Refused(why)) if why.contains("proxy")));
    assert_eq!(behind_proxy.look_up_lock(LOCK).await, Ok(None));
}

/// A network on which handshakes name other sessions than those that serve the connections.
struct OtherHandshake;

impl Network for OtherHandshake {
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async {
            let stream = TcpNetwork.connect(address).await?;
            Ok(Box::new(PatchedStream { stream, has_begun: false }) as Box<dyn Stream>)
        })
    }

    fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        TcpNetwork.listen(address)
    }
}

struct PatchedStream {
    stream: Box<dyn Stream>,
    has_begun: bool,
}

impl PatchedStream {
    fn patch(&mut self, received: &mut [u8]) {
        // MySQL: the first packet, whose head has four bytes: the protocol, 10, the version up to a NUL, and the id.
        // PostgreSQL: a message K of 12 bytes, which begins with the id.
        let mysql =
            (!self.has_begun && received.get(4) == Some(&10)).then(|| received.iter().skip(4).position(|b| *b == 0));
        let postgres = received.windows(5).position(|bytes| bytes == b"K\0\0\0\x0c");
        self.has_begun |= !received.is_empty();
        if let Some(at) = mysql.flatten().map(|at| at + 5).or(postgres.map(|at| at + 5)) {
            received[at] ^= 0x40;
        }
    }
}

impl Stream for PatchedStream {
    fn peer(&self) -> Option<IpAddr> {
        self.stream.peer()
    }
}

impl AsyncRead for PatchedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if let Poll::Ready(Ok(())) = read {
            self.patch(&mut buffer.filled_mut()[before..]);
        }
        read
    }
}

impl AsyncWrite for PatchedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
