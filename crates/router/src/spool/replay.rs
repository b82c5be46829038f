//! Works off what a server owes: one task a server, however many threads the router has. Deletes go in the order in
//! which they were kept, pipelined; when the last is acknowledged the server may be read again.
//!
//! It tries at once, as a single lost delete is no outage, then at growing intervals with jitter. It does not wait for
//! the probes of the destinations, nor they for it: a server is read when both find nothing against it.

use super::Shared;
use super::record::{Condition, Deletion, Record, scan};
use super::replay_connection::{Conversation, Verdict};
use super::server_log::{Server, Turn, file_name};
use lookaside_client::Network;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Deletes that travel together.
const BATCH_DELETES: usize = 500;
/// The wait after the first attempt that failed; each further one is half as long again, and 5 to 50 percent of jitter.
const WAIT_MIN: Duration = Duration::from_millis(50);
/// A file that is there and cannot be read is tried for so long: the process may lack descriptors, or the disk hang. Then its
/// deletes count as lost.
const READ_PATIENCE: Duration = Duration::from_secs(60);

/// What is done for one server.
pub(super) struct Replayer {
    pub(super) shared: Arc<Shared>,
    pub(super) server: Arc<Server>,
    pub(super) network: Arc<dyn Network>,
    pub(super) random: fastrand::Rng,
}

/// A segment that is being sent.
struct Load {
    number: u64,
    deletions: Vec<Deletion>,
    /// How many the server has acknowledged.
    done: usize,
}

/// One run, from the first debt to the last.
struct Run {
    began: Instant,
    records: u64,
    conversation: Option<Conversation>,
    load: Option<Load>,
    wait: Duration,
    /// Why the last attempt failed; empty if none has.
    trouble: String,
    /// Since when a file has not been readable.
    unreadable_since: Option<Instant>,
}

impl Replayer {
    /// Returns when the server owes nothing more, or no configuration names it.
    pub(super) async fn run(mut self) {
        let (began, wait) = (Instant::now(), WAIT_MIN);
        let mut run = Run {
            began,
            records: 0,
            conversation: None,
            load: None,
            wait,
            trouble: String::new(),
            unreadable_since: None,
        };
        loop {
            let outcome = match self.server.turn() {
                Turn::Done => break,
                Turn::Wait => {
                    self.server.settled().await;
                    continue;
                }
                Turn::Forget { number } => self.forget(&mut run, number).await,
                Turn::Deletes { number, bytes } => self.send_some(&mut run, number, bytes).await,
            };
            match outcome {
                Ok(()) => run.wait = WAIT_MIN,
                Err(trouble) => self.pause(&mut run, trouble).await,
            }
        }
        self.shared.peers.settle();
        if !self.server.owed().is_nothing() {
            return tracing::debug!(server = %self.server.address, "the configuration does not name it any more: it is left alone");
        }
        let seconds = run.began.elapsed().as_secs_f64();
        let (server, deletes) = (&self.server.address, run.records);
        // Where all went well at once, there was no outage to tell the end of.
        match run.trouble.is_empty() {
            true => tracing::debug!(%server, deletes, "what the server owed was carried out after {seconds:.3} s"),
            false => tracing::info!(
                %server, deletes,
                "the server has carried out what it owed and may be read again, after {seconds:.3} s"
            ),
        }
    }

    /// Sends the next batch of a segment, or drops the segment if that was the last.
    async fn send_some(&self, run: &mut Run, number: u64, bytes: u64) -> Result<(), String> {
        let mut load = match run.load.take().filter(|load| load.number == number) {
            Some(load) => load,
            None => match self.read(run, number, bytes)? {
                Some(deletions) => Load { number, deletions, done: 0 },
                None => {
                    self.server.lose(number);
                    return Ok(());
                }
            },
        };
        let next = &load.deletions[load.done..];
        if next.is_empty() {
            self.server.remove(&*self.shared.disk, &[number]);
            self.server.done(number, &self.shared.total);
            return Ok(());
        }
        let next = &next[..next.len().min(BATCH_DELETES)];
        let verdicts = match self.delete(run, next).await {
            Ok(verdicts) => verdicts,
            Err(trouble) => {
                run.load = Some(load);
                return Err(trouble);
            }
        };
        let mut outcome = Ok(());
        for verdict in verdicts {
            match verdict {
                Verdict::Done => drop(self.shared.counters.replayed.fetch_add(1, Relaxed)),
                Verdict::Refused(why) => {
                    self.shared.counters.refused.fetch_add(1, Relaxed);
                    tracing::debug!(server = %self.server.address, why, "a kept delete is refused for good");
                }
                Verdict::Later(why) => {
                    outcome = Err(format!("it said {why:?}"));
                    break;
                }
            }
            load.done += 1;
            run.records += 1;
        }
        run.load = Some(load);
        outcome
    }

    /// Deletes at the server; where it cannot be reached, by a peer that can.
    async fn delete(&self, run: &mut Run, next: &[Deletion]) -> Result<Vec<Verdict>, String> {
        let asked = match self.conversation(run).await {
            Ok(conversation) => conversation.delete(next).await,
            Err(trouble) => Err(trouble),
        };
        if asked.is_ok() {
            return asked;
        }
        run.conversation = None;
        match self.shared.peers.pass_on(&self.server.address, next).await {
            true => {
                self.shared.counters.passed_on.fetch_add(next.len() as u64, Relaxed);
                Ok(vec![Verdict::Done; next.len()])
            }
            false => asked,
        }
    }

    /// The deletes of a segment; nothing if they are lost. The error: not now.
    fn read(&self, run: &mut Run, number: u64, bytes: u64) -> Result<Option<Vec<Deletion>>, String> {
        let read = self.shared.disk.read(&self.server.folder, &file_name(number));
        let since = run.unreadable_since.get_or_insert_with(Instant::now);
        let mut read = match read {
            Ok(read) => read,
            Err(error) if error.kind() != ErrorKind::NotFound && since.elapsed() < READ_PATIENCE => {
                return Err(format!("a file of the spool cannot be read: {error}"));
            }
            Err(error) => {
                run.unreadable_since = None;
                tracing::error!(server = %self.server.address, %error, "a file of the spool cannot be read: \
                    the server will forget everything before it is read");
                return Ok(None);
            }
        };
        run.unreadable_since = None;
        // Behind the good bytes may lie what is being written, or what could not be.
        read.truncate(bytes as usize);
        let scan = scan(&read);
        if scan.condition != Condition::Whole || scan.good_bytes != bytes {
            tracing::error!(server = %self.server.address, "a file of the spool is damaged: \
                the server will forget everything before it is read");
            return Ok(None);
        }
        let deletions = scan.records.into_iter().filter_map(|record| match record {
            Record::Delete(deletion) => Some(deletion),
            Record::Forget => None,
        });
        Ok(Some(deletions.collect()))
    }

    async fn forget(&self, run: &mut Run, number: u64) -> Result<(), String> {
        let asked = match self.conversation(run).await {
            Ok(conversation) => conversation.forget().await,
            Err(trouble) => Err(trouble),
        };
        let outcome = match asked {
            Ok(Verdict::Done) => Ok(()),
            Ok(Verdict::Refused(why) | Verdict::Later(why)) => {
                Err(format!("it refuses flush_all ({why}) and is not read; restart it, or let it take flush_all"))
            }
            Err(trouble) => {
                run.conversation = None;
                Err(trouble)
            }
        };
        match outcome {
            Ok(()) => {
                self.shared.counters.forgotten.fetch_add(1, Relaxed);
                tracing::warn!(server = %self.server.address, "the server was made to forget everything");
                self.server.remove(&*self.shared.disk, &[number]);
                self.server.done(number, &self.shared.total);
            }
            Err(_) => self.server.forget_failed(number),
        }
        outcome
    }

    /// The connection, made if there is none.
    async fn conversation<'a>(&self, run: &'a mut Run) -> Result<&'a mut Conversation, String> {
        let conversation = match run.conversation.take() {
            Some(conversation) => conversation,
            None => Conversation::open(&*self.network, &self.server.address, self.shared.settings.timeout).await?,
        };
        Ok(run.conversation.insert(conversation))
    }

    /// Waits after an attempt that failed. What is new about it is said.
    async fn pause(&mut self, run: &mut Run, trouble: String) {
        self.shared.counters.replay_failures.fetch_add(1, Relaxed);
        if run.trouble != trouble {
            let owed = self.server.owed();
            tracing::warn!(
                server = %self.server.address, deletes = owed.records, bytes = owed.bytes, forget = owed.forget, trouble,
                "the server is not read: it owes deletes that it has not carried out yet"
            );
            run.trouble = trouble;
        }
        let longest = self.shared.settings.wait_max;
        let wait = run.wait.min(longest);
        run.wait = (run.wait + run.wait / 2).min(longest);
        let jitter = wait.mul_f64(0.05 + 0.45 * self.random.f64());
        tokio::select! {
            biased;
            () = self.server.hurried() => {}
            () = sleep(wait + jitter) => {}
        }
    }
}
