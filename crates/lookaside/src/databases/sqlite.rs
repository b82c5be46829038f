//! The copier, which plays replication between SQLite databases: it copies the master's file, the journal with it, into
//! that of the replica whenever the master has changed. A copy is what a reader of the master saw at one moment, and
//! the replica's readers see it as one transaction. So rows of the journal appear in the replica in their order,
//! together with the rows that they belong to.
//!
//! Each copy is of the whole file: this is for trying, with small databases.

use super::link::{LinkReceiver, LinkState};
use anyhow::{Context, Result};
use rusqlite::{
    Connection,
    backup::{Backup, StepResult},
};
use std::{collections::VecDeque, path::Path, time::Duration};
use tokio::time::Instant;

const COPY_INTERVAL_MIN: Duration = Duration::from_millis(20);
/// Copies in memory that are on their way to the replica.
const COPIES_MAX: u32 = 16;
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// Copies one file into another.
pub struct Copier {
    master: Connection,
    replica: Connection,
    link: LinkReceiver,
    /// The `PRAGMA data_version` of the last copy; `None` before it.
    copied_version: Option<i64>,
    /// Copies that have not arrived yet, and when they were made; the oldest first.
    copies: VecDeque<(Instant, Connection)>,
}

impl Copier {
    /// Opens both files, and copies once.
    pub fn open(master: &Path, replica: &Path, link: LinkReceiver) -> Result<Copier> {
        let (master, replica) = (open(master)?, open(replica)?);
        let mut copier = Copier { master, replica, link, copied_version: None, copies: VecDeque::new() };
        copier.step()?;
        Ok(copier)
    }

    /// Copies until this is dropped. A failure is reported to `report`, once until it changes, and retried.
    pub async fn run(mut self, report: impl Fn(String)) {
        let mut last_failure = None;
        loop {
            let interval = match self.link.state() {
                LinkState::Delayed(delay) => COPY_INTERVAL_MIN.max(delay / COPIES_MAX),
                LinkState::Cut => COPY_INTERVAL_MIN,
            };
            tokio::time::sleep(interval).await;
            let result;
            (result, self) = run_step(move || (self.step(), self)).await;
            let failure = result.err().map(|error| format!("{error:#}"));
            if failure != last_failure {
                failure.iter().for_each(|why| report(format!("copying the database fails: {why}")));
                last_failure = failure;
            }
        }
    }

    /// Makes a copy if the master has changed, and lets the newest one that is due arrive.
    fn step(&mut self) -> Result<()> {
        let LinkState::Delayed(delay) = self.link.state() else { return Ok(()) };
        if self.copies.len() < COPIES_MAX as usize {
            let version = self.master.query_row("PRAGMA data_version", [], |row| row.get(0))?;
            if self.copied_version != Some(version) {
                let mut copy = Connection::open_in_memory()?;
                copy_all(&self.master, &mut copy).context("reading the master")?;
                self.copies.push_back((Instant::now(), copy));
                self.copied_version = Some(version);
            }
        }
        let due = self.copies.iter().take_while(|(made_at, _)| made_at.elapsed() >= delay).count();
        if let Some((_, newest)) = due.checked_sub(1).and_then(|newest| self.copies.get(newest)) {
            copy_all(newest, &mut self.replica).context("writing the replica")?;
            self.copies.drain(..due);
        }
        Ok(())
    }
}

/// Runs a step that blocks, in a thread for that. Panics if it does.
pub(super) async fn run_step<T: Send + 'static>(step: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(step).await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(result) => result,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime ends, and this task with it.
        Err(Err(_)) => std::future::pending().await,
    }
}

fn open(path: &Path) -> Result<Connection> {
    let connection = Connection::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}

fn copy_all(from: &Connection, to: &mut Connection) -> Result<()> {
    match Backup::new(from, to)?.step(-1)? {
        StepResult::Done => Ok(()),
        other => anyhow::bail!("another process holds a lock ({other:?})"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::link::LinkControl;
    use super::*;

    fn journal_of(path: &Path) -> Vec<i64> {
        let connection = open(path).unwrap();
        let mut statement = connection.prepare("SELECT seq FROM lookaside_journal ORDER BY seq").unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn the_replica_has_the_journal_after_the_delay_and_not_while_the_link_is_cut() {
        let directory = tempfile::tempdir().unwrap();
        let [master_path, replica_path, link] =
            ["master.db", "replica.db", "link"].map(|name| directory.path().join(name));
        for path in [&master_path, &replica_path] {
            let connection = open(path).unwrap();
            connection.pragma_update(None, "journal_mode", "WAL").unwrap();
            lookaside_invalidator::source::sqlite::create_journal(&connection).unwrap();
        }
        let control = LinkControl::create(link).unwrap();
        let mut copier = Copier::open(&master_path, &replica_path, control.receiver()).unwrap();
        let application = open(&master_path).unwrap();
        let commit = || application.execute("INSERT INTO lookaside_journal (key) VALUES ('k')", []).unwrap();
        let reader = open(&replica_path).unwrap();
        let version = || -> i64 { reader.query_row("PRAGMA data_version", [], |row| row.get(0)).unwrap() };

        commit();
        copier.step().unwrap();
        assert_eq!(journal_of(&replica_path), [1]);

        control.set(LinkState::Cut).unwrap();
        commit();
        copier.step().unwrap();
        assert_eq!(journal_of(&replica_path), [1]);

        control.set(LinkState::Delayed(Duration::from_secs(60))).unwrap();
        copier.step().unwrap();
        assert_eq!(journal_of(&replica_path), [1]);
        commit();
        copier.step().unwrap();
        assert_eq!(copier.copies.len(), 2);
        let before = version();
        control.set(LinkState::Delayed(Duration::ZERO)).unwrap();
        copier.step().unwrap();
        assert_eq!(journal_of(&replica_path), [1, 2, 3]);
        assert_ne!(version(), before, "a reader that is open notices");
        copier.step().unwrap();
        assert!(copier.copies.is_empty(), "an unchanged database is not copied again");
    }
}
