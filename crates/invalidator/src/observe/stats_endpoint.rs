//! `--listen`: memcached's `stats` and `version`, so that one tool observes every daemon.
//!
//! | asked | answered |
//! |---|---|
//! | `stats` | `STAT name value` lines, `END` |
//! | `version` | `VERSION x.y.z` |
//! | `quit` | the connection ends |
//! | anything else | `ERROR` |

use super::stats::Statistics;
use lookaside_client::{Listener, Stream};
use std::{fmt::Write, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};

/// The most observers at once; a further one waits to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// The longest line that anybody needs to send.
const LINE_BYTES_MAX: usize = 2048;
/// An observer that says nothing, or does not read, for so long is let go.
const IDLE_MAX: Duration = Duration::from_secs(300);
/// The wait after an accept that failed: the process may be out of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Answers observers until it is dropped.
pub async fn serve(mut listener: Box<dyn Listener>, statistics: Arc<Statistics>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok(stream) => {
                let statistics = statistics.clone();
                connections.spawn(async move {
                    let _place = place;
                    let _ = converse(stream, &statistics).await;
                });
            }
            Err(why) => {
                tracing::warn!(%why, "no connection could be accepted");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn converse(mut stream: Box<dyn Stream>, statistics: &Statistics) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        while let Some(end) = memchr::memchr(b'\n', &buffer) {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let Some(answer) = answer(line.trim_ascii(), statistics) else { return Ok(()) };
            timeout(IDLE_MAX, stream.write_all(answer.as_bytes())).await??;
        }
        timeout(IDLE_MAX, stream.flush()).await??;
        if buffer.len() > LINE_BYTES_MAX {
            return stream.write_all(b"CLIENT_ERROR line too long\r\n").await;
        }
        if timeout(IDLE_MAX, stream.read_buf(&mut buffer)).await?? == 0 {
            return Ok(());
        }
    }
}

/// None ends the connection.
fn answer(line: &[u8], statistics: &Statistics) -> Option<String> {
    match line {
        b"stats" => {
            let mut answer = format!("STAT version {}\r\n", env!("CARGO_PKG_VERSION"));
            for (name, value) in statistics.report() {
                write!(answer, "STAT {name} {value}\r\n").expect("a string takes all");
            }
            answer.push_str("END\r\n");
            Some(answer)
        }
        b"version" => Some(format!("VERSION {}\r\n", env!("CARGO_PKG_VERSION"))),
        b"quit" => None,
        _ => Some("ERROR\r\n".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observers_are_answered() {
        let statistics = Statistics::new(["front-1"]);
        statistics.clusters()[0].invalidations.add(3);
        let stats = answer(b"stats", &statistics).expect("an answer");
        assert!(stats.contains("STAT invalidations_total 3\r\n"), "{stats}");
        assert!(stats.contains("STAT cluster:front-1:state starting\r\n"), "{stats}");
        assert!(stats.ends_with("\r\nEND\r\n"), "{stats}");
        assert!(answer(b"version", &statistics).expect("an answer").starts_with("VERSION "));
        assert_eq!(answer(b"get a", &statistics).as_deref(), Some("ERROR\r\n"));
        assert_eq!(answer(b"quit", &statistics), None);
    }
}
