//! `--listen`: memcached's `stats` and `version`, so that the same tools observe every daemon.
//!
//! | command | reply |
//! |---|---|
//! | `stats` | `STAT name value` lines, `END` |
//! | `version` | `VERSION x.y.z` |
//! | `quit`, an HTTP request, a TLS handshake | none; the connection is closed |
//! | anything else | `ERROR` |
//!
//! No command changes anything, so a stranger can only occupy connections: each for `IDLE_MAX` after its last command,
//! and while it does not read its replies. One connection more than `CONNECTIONS_MAX` disconnects the one whose last
//! command is the oldest, so an operator can always look.

use super::stats::Statistics;
use lookaside_client::{Listener, Stream};
use lookaside_protocol::text::is_foreign;
use std::{
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};

/// The most connections at once.
const CONNECTIONS_MAX: usize = 64;
/// The longest command line.
const LINE_BYTES_MAX: usize = 2048;
/// A connection is closed after this time without input, or when its peer does not read for this time.
const IDLE_MAX: Duration = Duration::from_secs(300);
/// The delay after a failed accept: the process may be out of file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Serves connections until it is dropped.
pub async fn serve(mut listener: Box<dyn Listener>, statistics: Arc<Statistics>) {
    let mut connections = StatsConnections::default();
    loop {
        match listener.accept().await {
            Ok(stream) => connections.serve(stream, &statistics),
            Err(why) => {
                tracing::warn!(%why, "cannot accept a connection; retrying");
                sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
}

/// The open connections, and some that have ended.
#[derive(Default)]
struct StatsConnections {
    tasks: JoinSet<()>,
    list: Vec<StatsConnection>,
    activity: Arc<AtomicU64>,
}

struct StatsConnection {
    task: AbortHandle,
    last_activity: Arc<AtomicU64>,
}

/// The order of what connections have done last.
struct Activity {
    /// Numbers the connects and commands of all connections.
    next: Arc<AtomicU64>,
    last: Arc<AtomicU64>,
}

impl Activity {
    fn record(&self) {
        self.last.store(self.next.fetch_add(1, Relaxed), Relaxed);
    }
}

impl StatsConnections {
    fn serve(&mut self, stream: Box<dyn Stream>, statistics: &Arc<Statistics>) {
        while self.tasks.try_join_next().is_some() {}
        self.list.retain(|connection| !connection.task.is_finished());
        if self.list.len() >= CONNECTIONS_MAX {
            self.disconnect_least_active(statistics);
        }
        let activity = Activity { next: self.activity.clone(), last: Arc::default() };
        activity.record();
        let last_activity = activity.last.clone();
        let statistics = statistics.clone();
        let task = self.tasks.spawn(async move {
            let _ = serve_connection(stream, &statistics, &activity).await;
        });
        self.list.push(StatsConnection { task, last_activity });
    }

    fn disconnect_least_active(&mut self, statistics: &Statistics) {
        let by_activity = |(_, connection): &(usize, &StatsConnection)| connection.last_activity.load(Relaxed);
        let Some((at, _)) = self.list.iter().enumerate().min_by_key(by_activity) else { return };
        self.list.swap_remove(at).task.abort();
        statistics.connections_displaced.add(1);
    }
}

async fn serve_connection(
    mut stream: Box<dyn Stream>,
    statistics: &Statistics,
    activity: &Activity,
) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        while !is_foreign(&buffer)
            && let Some(end) = memchr::memchr(b'\n', &buffer)
        {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            activity.record();
            let Some(reply) = reply_to(line.trim_ascii(), statistics) else { return Ok(()) };
            timeout(IDLE_MAX, stream.write_all(reply.as_bytes())).await??;
        }
        timeout(IDLE_MAX, stream.flush()).await??;
        if is_foreign(&buffer) {
            return Ok(());
        }
        if buffer.len() > LINE_BYTES_MAX {
            return timeout(IDLE_MAX, stream.write_all(b"CLIENT_ERROR line too long\r\n")).await?;
        }
        if timeout(IDLE_MAX, stream.read_buf(&mut buffer)).await?? == 0 {
            return Ok(());
        }
    }
}

/// The reply to a command; `None` closes the connection.
fn reply_to(line: &[u8], statistics: &Statistics) -> Option<String> {
    match line {
        b"stats" => {
            let mut reply = format!("STAT version {}\r\n", env!("CARGO_PKG_VERSION"));
            for (name, value) in statistics.report(SystemTime::now()) {
                write!(reply, "STAT {name} {value}\r\n").expect("writing to a string cannot fail");
            }
            reply.push_str("END\r\n");
            Some(reply)
        }
        b"version" => Some(format!("VERSION {}\r\n", env!("CARGO_PKG_VERSION"))),
        b"quit" => None,
        _ => Some("ERROR\r\n".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_routing::BoxFuture;
    use tokio::io::{DuplexStream, duplex};
    use tokio::sync::mpsc;

    #[test]
    fn commands_are_answered() {
        let statistics = Statistics::new(["front-1"]);
        statistics.clusters()[0].invalidations.add(3);
        let stats = reply_to(b"stats", &statistics).expect("a reply");
        assert!(stats.contains("STAT invalidations_total 3\r\n"), "{stats}");
        assert!(stats.contains("STAT cluster:front-1:state starting\r\n"), "{stats}");
        assert!(stats.ends_with("\r\nEND\r\n"), "{stats}");
        assert!(reply_to(b"version", &statistics).expect("a reply").starts_with("VERSION "));
        assert_eq!(reply_to(b"get a", &statistics).as_deref(), Some("ERROR\r\n"));
        assert_eq!(reply_to(b"quit", &statistics), None);
    }

    /// Sends `bytes` through a pipe that holds `pipe_bytes`; the replies once the connection is closed. `None`: the
    /// client reads none.
    async fn exchange(bytes: &[u8], pipe_bytes: usize, reads: bool) -> Option<String> {
        let (client, server) = duplex(pipe_bytes);
        let (mut from, mut to) = tokio::io::split(client);
        let statistics = Statistics::new(["front-1"]);
        let activity = Activity { next: Arc::default(), last: Arc::default() };
        let served = timeout(3 * IDLE_MAX, serve_connection(Box::new(server), &statistics, &activity));
        let read = async {
            let mut replies = String::new();
            if reads {
                from.read_to_string(&mut replies).await.expect("text");
            }
            replies
        };
        let (served, replies, _) = tokio::join!(served, read, to.write_all(bytes));
        served.is_ok().then_some(replies)
    }

    #[tokio::test(start_paused = true)]
    async fn request_of_another_protocol_closes_the_connection() {
        for request in ["GET / HTTP/1.1\r\n", "Host: localhost\r\n", "\u{16}\u{3}\u{1}"] {
            let bytes = format!("nonsense\r\n{request}stats\r\n");
            for pipe_bytes in [1, 7, 1_000] {
                let replies = exchange(bytes.as_bytes(), pipe_bytes, true).await;
                assert_eq!(replies.as_deref(), Some("ERROR\r\n"), "{request:?}");
            }
        }
    }

    /// Accepts the ends of pipes.
    struct Pipes(mpsc::UnboundedReceiver<DuplexStream>);

    impl Listener for Pipes {
        fn accept(&mut self) -> BoxFuture<'_, std::io::Result<Box<dyn Stream>>> {
            Box::pin(async {
                match self.0.recv().await {
                    Some(end) => Ok(Box::new(end) as Box<dyn Stream>),
                    None => std::future::pending().await,
                }
            })
        }
    }

    /// 64 strangers that said nothing kept an operator out for 300 seconds.
    #[tokio::test(start_paused = true)]
    async fn one_connection_more_takes_the_place_of_the_least_active() {
        let (connect, pipes) = mpsc::unbounded_channel();
        let statistics = Statistics::new(["front-1"]);
        let serving = tokio::spawn(serve(Box::new(Pipes(pipes)), statistics.clone()));
        let connect = || {
            let (client, server) = duplex(4_096);
            connect.send(server).expect("it accepts");
            client
        };
        let mut operator = connect();
        let mut strangers: Vec<DuplexStream> = (1..CONNECTIONS_MAX).map(|_| connect()).collect();
        sleep(Duration::from_millis(1)).await;
        for _ in 0..2 * CONNECTIONS_MAX {
            operator.write_all(b"version\r\n").await.expect("it is served");
            let mut reply = [0; 100];
            let count = timeout(Duration::from_secs(1), operator.read(&mut reply)).await.expect("at once");
            assert!(reply[..count.expect("a reply")].starts_with(b"VERSION "));
            strangers.push(connect());
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(statistics.connections_displaced.value(), 2 * CONNECTIONS_MAX as u64);
        let oldest = timeout(Duration::from_secs(1), strangers[0].read(&mut [0])).await.expect("at once");
        assert_eq!(oldest.expect("it is closed in order"), 0);
        serving.abort();
    }

    /// The reply to a line that was too long waited for its client without end, and so the connection was never free.
    #[tokio::test(start_paused = true)]
    async fn client_that_reads_nothing_is_disconnected() {
        for bytes in [vec![b'x'; 3_000], b"stats\r\n".to_vec(), Vec::new()] {
            assert!(exchange(&bytes, 16, false).await.is_some(), "{} bytes", bytes.len());
        }
    }
}
