//! The binlog of MariaDB and MySQL as a source.
//!
//! We are a replica that keeps nothing: two connections, one on which the log arrives event by event, one for the gate.
//!
//! ```text
//! packet -> event -> transaction -> commits
//! connection, auth: to get in        server: what it is, how its log is asked for        gate: visible to readers?
//! ```
//!
//! Serves the delete path (§4.1 of the paper). Keys come from comments in statements and from rows of the outbox table.
//!
//! Why not a client library: none of them can ask MariaDB for the texts of statements (a flag of the dump command) or
//! decode its transaction numbers, and none takes its connections from [`Network`]. What is needed of the protocol is
//! small, and every read here is bounded and cannot panic.
//!
//! Absent: TLS; row rules (a table and its columns to keys); logs without transaction numbers.

mod assembler;
mod auth;
mod connection;
mod cursor;
mod event;
mod gate;
mod gtid;
mod log_coverage;
mod options;
mod packet;
mod rows;
mod rsa;
mod server_check;
mod visibility_target;
mod xa;

pub use assembler::{Anomalies, KEYS_OF_COMMIT_MAX};
pub use connection::{Connection, Row, ServerError};
pub use options::MysqlOptions;
pub use xa::KEYS_HELD_MAX;

use crate::{Commits, Log, Opened, Position, Source, SourceError, Start};
use assembler::Assembler;
use lookaside_client::Network;
use lookaside_routing::BoxFuture;
use packet::PacketStream;
use server_check::Server;
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use visibility_target::Awaited;

/// Says what time it is.
pub type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// The most events that one call of [`Source::next`] reads before it hands out what it has.
const EVENTS_OF_NEXT_MAX: usize = 10_000;

/// So many heartbeats may fail to come before the connection is given up.
const HEARTBEATS_MISSED_MAX: u32 = 3;

/// But never sooner than this: a busy machine may be late.
const SILENCE_MIN: Duration = Duration::from_secs(1);

/// What begins a packet of a dump.
const HEAD_EVENT: u8 = 0x00;
const HEAD_ERROR: u8 = 0xff;

/// One server's log.
pub struct MysqlLog {
    options: MysqlOptions,
    network: Arc<dyn Network>,
    clock: Clock,
}

impl MysqlLog {
    /// The log of the server that `options` name. Connects when asked for something.
    pub fn new(options: MysqlOptions, network: Arc<dyn Network>, clock: Clock) -> Self {
        MysqlLog { options, network, clock }
    }
}

impl Log for MysqlLog {
    fn identity(&self) -> BoxFuture<'_, Result<String, SourceError>> {
        Box::pin(async move {
            let mut connection = Connection::open(&*self.network, &self.options).await?;
            Ok(Server::survey(&mut connection, &self.options).await?.identity)
        })
    }

    fn open<'a>(&'a self, start: &'a Start) -> BoxFuture<'a, Result<Opened, SourceError>> {
        Box::pin(async move {
            let (options, network) = (self.options.clone(), self.network.clone());
            let source = MysqlSource::open(options, start, network, self.clock.clone()).await?;
            let position = source.position().clone();
            Ok(Opened { source: Box::new(source), position })
        })
    }
}

/// Commits of one server, from a position on.
///
/// After an error, the next call connects again and goes on from the position that was returned last.
pub struct MysqlSource {
    network: Arc<dyn Network>,
    options: MysqlOptions,
    clock: Clock,
    server: Server,
    queries: Option<Connection>,
    dump: Option<PacketStream>,
    assembler: Assembler,
    /// All up to here was returned by `next`.
    returned: Position,
    /// [`Assembler::finished`] at that time.
    finished: u64,
    /// What the gate must still wait for from connections that are gone.
    awaited: Awaited,
    /// Found after commits that had to be returned first.
    failed: Option<SourceError>,
    rejected: u64,
    anomalies: Anomalies,
}

impl MysqlSource {
    /// Logs in, checks how the server is set up, and finds out where `start` is. Reading begins with the first call
    /// of [`Source::next`].
    ///
    /// Fails with [`SourceError::Unusable`] when something has to be set first, and the message says what.
    pub async fn open(
        options: MysqlOptions,
        start: &Start,
        network: Arc<dyn Network>,
        clock: Clock,
    ) -> Result<Self, SourceError> {
        let mut queries = Connection::open(&*network, &options).await?;
        let server = Server::survey(&mut queries, &options).await?;
        for warning in &server.warnings {
            tracing::warn!(log = server.identity, warning, "the log may lack commits");
        }
        let progress = server.progress(&mut queries, start).await?;
        if *start == Start::Now {
            // After the position was asked for: what is prepared later is read.
            xa::wait_for_none(&mut queries, options.prepared_wait_max).await?;
        }
        Ok(MysqlSource {
            returned: Position(progress.to_string()),
            assembler: Assembler::new(&options.outbox_table, progress, server.has_checksum),
            network,
            options,
            clock,
            server,
            queries: Some(queries),
            dump: None,
            finished: 0,
            awaited: Awaited::default(),
            failed: None,
            rejected: 0,
            anomalies: Anomalies::default(),
        })
    }

    /// All up to here was returned by [`Source::next`]; at first, where reading begins. To be kept before the first
    /// read: whoever starts "now" twice has a gap in between.
    pub fn position(&self) -> &Position {
        &self.returned
    }

    /// Which server this is: `mysql:` and its UUID, or `mariadb:` and its domain and server number. The latter is as
    /// unique as its operators made it. Positions of one server mean nothing to another, but for replicas of it.
    pub fn identity(&self) -> &str {
        &self.server.identity
    }

    /// What an operator should know of how the server is set up: commits that its log may lack. Logged as well.
    pub fn warnings(&self) -> &[String] {
        &self.server.warnings
    }

    /// How many keys were named that cannot be keys (too long, or with white space), and were left out.
    pub fn keys_rejected(&self) -> u64 {
        self.rejected + self.assembler.rejected()
    }

    /// What the log showed that it should not show. Each was logged as a warning too.
    pub fn anomalies(&self) -> Anomalies {
        self.anomalies + self.assembler.anomalies()
    }

    async fn next_commits(&mut self, keys_max: usize) -> Result<Commits, SourceError> {
        if let Some(error) = self.failed.take() {
            self.forget()?;
            return Err(error);
        }
        loop {
            if let Some(commits) = self.take_ready(keys_max) {
                return Ok(commits);
            }
            if let Err(error) = self.read(keys_max).await {
                if self.assembler.ready().is_empty() {
                    self.forget()?;
                    return Err(error);
                }
                self.failed = Some(error);
            }
        }
    }

    /// Waits for an event, and reads on while more are there already.
    async fn read(&mut self, keys_max: usize) -> Result<(), SourceError> {
        let dump = match &mut self.dump {
            Some(dump) => dump,
            none => {
                let from = self.assembler.resume().clone();
                none.insert(self.server.dump(&*self.network, &self.options, &from).await?)
            }
        };
        let wait_max = (self.options.heartbeat * HEARTBEATS_MISSED_MAX).max(SILENCE_MIN);
        let mut packet = dump.read(wait_max).await?;
        let (mut keys, mut events) = (0, 0);
        loop {
            let seen_at = (self.clock)();
            let before = self.assembler.ready().len();
            match packet.first() {
                Some(&HEAD_EVENT) => self.assembler.take(&packet[1..], seen_at)?,
                Some(&HEAD_ERROR) => {
                    let error = connection::error_of(&packet)?;
                    return Err(server_check::dump_error(error, self.assembler.resume(), &self.options.user));
                }
                _ => return Err(SourceError::Unreachable { why: "the server ended its log's stream".into() }),
            }
            keys += self.assembler.ready().range(before..).map(|commit| commit.keys.len()).sum::<usize>();
            events += 1;
            // Before the next packet is taken off the stream: what has been taken must not be dropped.
            if keys >= keys_max || events >= EVENTS_OF_NEXT_MAX {
                return Ok(());
            }
            match dump.read_ready().await? {
                Some(more) => packet = more,
                None => return Ok(()),
            }
        }
    }

    /// What can be returned: commits, or else a position that has moved on.
    fn take_ready(&mut self, keys_max: usize) -> Option<Commits> {
        let mut commits = Vec::new();
        let mut keys = 0;
        while keys < keys_max {
            let Some(commit) = self.assembler.ready().pop_front() else { break };
            keys += commit.keys.len();
            commits.push(commit);
        }
        let position = match self.assembler.ready().is_empty() {
            // Those that are left come later: so does what is behind them.
            false => commits.last()?.position.clone(),
            true if commits.is_empty() && self.assembler.finished() == self.finished => return None,
            true => Position(self.assembler.resume().to_string()),
        };
        self.finished = self.assembler.finished();
        if commits.is_empty() && position == self.returned {
            return None;
        }
        self.returned = position.clone();
        Some(Commits { commits, position })
    }

    /// Lets go of the connection and of what it left half read.
    fn forget(&mut self) -> Result<(), SourceError> {
        self.dump = None;
        self.rejected += self.assembler.rejected();
        self.anomalies = self.anomalies();
        self.awaited.add(std::mem::take(self.assembler.awaited()));
        let progress = self.server.parse(&self.returned.0)?;
        self.assembler = Assembler::new(&self.options.outbox_table, progress, self.server.has_checksum);
        self.finished = 0;
        Ok(())
    }

    async fn wait_visible(&mut self, position: &Position) -> Result<(), SourceError> {
        let progress = self.server.parse(&position.0)?;
        let mut queries = match self.queries.take() {
            Some(queries) => queries,
            None => Connection::open(&*self.network, &self.options).await?,
        };
        self.awaited.add(std::mem::take(self.assembler.awaited()));
        gate::wait(&mut queries, &self.options, &self.awaited, &progress).await?;
        // Only a connection whose answers were all read is kept.
        self.queries = Some(queries);
        self.awaited = Awaited::default();
        Ok(())
    }
}

impl Source for MysqlSource {
    fn next(&mut self, keys_max: usize) -> BoxFuture<'_, Result<Commits, SourceError>> {
        Box::pin(self.next_commits(keys_max.max(1)))
    }

    fn visible<'a>(&'a mut self, position: &'a Position) -> BoxFuture<'a, Result<(), SourceError>> {
        Box::pin(self.wait_visible(position))
    }
}
