//! The binlog of MariaDB and MySQL as a source.
//!
//! The source acts as a replica that stores nothing. It uses two connections: the log arrives event by event on one,
//! the gate queries the other.
//!
//! ```text
//! packet.rs -> event.rs, payload.rs, rows.rs, statement.rs -> assembler.rs -> commits
//!
//! login.rs, auth.rs, rsa.rs               login, with or without TLS
//! connection.rs                           queries
//! outbox.rs                               outbox tables, and the character sets of their keys
//! row_tables.rs, table_metadata.rs        rows of tables with a rule, and their columns
//! catalogue.rs, column_type.rs, charset.rs
//! table_statement.rs, statement_tokens.rs TRUNCATE and DDL
//! rule_check.rs                           rules that the server does not fit
//! row_reading.rs                          rows that a statement would change, for operators
//! server_check.rs                         checks of the server, start of the dump
//! settings.rs, unsafe_setting.rs          settings by which deletes are lost
//! log_coverage.rs
//! succession.rs                           another server with the same log, after a failover
//! gate.rs, visibility_target.rs           waits until readers see what was read
//! read_marks.rs                           the lag in bytes
//! xa.rs                                   keys of prepared transactions
//! ```
//!
//! Serves the delete path (§4.1 of the paper). Keys come from comments in statements, from rows of the outbox
//! table, and from rows of tables with a rule.
//!
//! No client library is used: none can request the text of statements from MariaDB (a flag of the dump command) or
//! decode its GTIDs, and none takes its connections from [`Network`]. The part of the protocol that is needed is small.
//! Every read here is bounded and cannot panic.
//!
//! Not supported: logs without GTIDs.

mod assembler;
mod auth;
mod catalogue;
mod charset;
mod column_type;
mod connection;
mod cursor;
mod event;
mod gate;
mod gtid;
mod log_coverage;
mod login;
mod open_transaction;
mod options;
mod outbox;
mod packet;
mod payload;
mod read_marks;
mod row_reading;
mod row_tables;
mod rows;
mod rsa;
mod rule_check;
mod server_check;
mod settings;
mod statement;
mod statement_tokens;
mod succession;
mod table_metadata;
mod table_statement;
mod unsafe_setting;
mod visibility_target;
mod xa;

pub use assembler::KEYS_OF_COMMIT_MAX;
pub use connection::{MysqlConnection, Row, ServerError, text};
pub use options::MysqlOptions;
pub use row_reading::read_rows;
pub use rule_check::{check_rules, check_settings};
pub use table_statement::{ChangedTable, find_changed_tables};
pub use unsafe_setting::{UnsafeSetting, strip_acceptance};
pub use xa::KEYS_HELD_MAX;

use crate::{
    CommitLog, Commits, LogDistance, LogLookup, OpenedSource, Position, Source, SourceError, Start, WallClock,
    source::Anomalies,
};
use assembler::Assembler;
use lookaside_client::Network;
use lookaside_routing::BoxFuture;
use lookaside_sync::Mutex;
use packet::PacketStream;
use read_marks::ReadMarks;
use server_check::Server;
use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, SystemTime},
};
use visibility_target::VisibilityTarget;

/// How many starts from the present are remembered: a start of the daemon has one for each cluster.
const STARTS_MAX: usize = 100;

/// The most events that one call of [`Source::next`] reads before it returns.
const EVENTS_OF_NEXT_MAX: usize = 10_000;

/// How long the gate's connection may be idle before the server closes it. A server's own `wait_timeout` may be a minute:
/// the first commit after that would wait for a new connection. The server notices a dead client by TCP.
const IDLE_MAX_S: u32 = 24 * 60 * 60;

/// The connection is closed after this many missed heartbeats.
const HEARTBEATS_MISSED_MAX: u32 = 3;

/// The connection is never closed sooner than this: a busy machine may be late.
const SILENCE_MIN: Duration = Duration::from_secs(1);

/// The first byte of a packet of a dump.
const HEAD_EVENT: u8 = 0x00;
const HEAD_ERROR: u8 = 0xff;

/// One server's log.
pub struct MysqlLog {
    options: MysqlOptions,
    network: Arc<dyn Network>,
    wall_clock: WallClock,
    /// The warnings that were logged last.
    logged_warnings: Mutex<Vec<String>>,
    /// Transactions that were not resolved when a start from the present ended, by the position where reading began, newest
    /// first. A source that is opened there again, or later, must know, also of those that are resolved by then.
    unresolved: Mutex<VecDeque<(Position, BTreeSet<String>)>>,
    /// Of the source that was opened last.
    marks: Arc<Mutex<ReadMarks>>,
}

impl MysqlLog {
    /// The log of the server that `options` name. Connects when it is used.
    pub fn new(options: MysqlOptions, network: Arc<dyn Network>, wall_clock: WallClock) -> Self {
        let (logged_warnings, unresolved, marks) = (Mutex::default(), Mutex::default(), Arc::default());
        MysqlLog { options, network, wall_clock, logged_warnings, unresolved, marks }
    }

    /// Remembers a start from the present, or tells the source of the one that it goes on from. One of an earlier process is
    /// not known: the source has listed what is still prepared.
    fn share_unresolved(&self, source: &mut MysqlSource, is_from_present: bool) {
        let mut starts = self.unresolved.lock();
        if is_from_present {
            starts.truncate(STARTS_MAX - 1);
            starts.push_front((source.returned.clone(), source.unresolved.clone()));
            return;
        }
        let start = starts.iter().find(|(begin, _)| gtid::covers(&source.returned.0, &begin.0));
        source.unresolved.extend(start.into_iter().flat_map(|(_, unresolved)| unresolved.iter().cloned()));
        source.assembler.set_unresolved(source.unresolved.clone());
    }

    /// Logs the warnings of a source, unless the one before had the same.
    fn log_warnings(&self, source: &MysqlSource) {
        let mut logged = self.logged_warnings.lock();
        if *logged != source.warnings() {
            *logged = source.warnings().to_vec();
            for warning in &*logged {
                tracing::warn!(log = source.identity(), warning, "the log may be incomplete");
            }
        }
    }
}

impl CommitLog for MysqlLog {
    fn identity(&self) -> BoxFuture<'_, Result<String, SourceError>> {
        Box::pin(async move {
            let mut connection = MysqlConnection::open(&*self.network, &self.options).await?;
            Ok(Server::inspect(&mut connection, &self.options).await?.identity)
        })
    }

    fn open<'a>(&'a self, start: &'a Start) -> BoxFuture<'a, Result<OpenedSource, SourceError>> {
        Box::pin(async move {
            let (options, network) = (self.options.clone(), self.network.clone());
            let mut source = MysqlSource::open(options, start, network, self.wall_clock.clone()).await?;
            self.log_warnings(&source);
            self.share_unresolved(&mut source, *start == Start::Now);
            self.marks.lock().clear();
            source.marks = self.marks.clone();
            let position = source.position().clone();
            Ok(OpenedSource { source: Box::new(source), position })
        })
    }

    fn newest_position(&self) -> BoxFuture<'_, Result<Position, SourceError>> {
        Box::pin(async move {
            let mut connection = MysqlConnection::open(&*self.network, &self.options).await?;
            let server = Server::inspect(&mut connection, &self.options).await?;
            let newest = server.start_position(&mut connection, &Start::Now).await?;
            Ok(Position(newest.to_string()))
        })
    }

    fn look_up(&self) -> BoxFuture<'_, Result<LogLookup, SourceError>> {
        Box::pin(async move {
            let mut connection = MysqlConnection::open(&*self.network, &self.options).await?;
            let server = Server::inspect_all(&mut connection, &self.options).await?;
            rule_check::check_log_has_all(&mut connection, &self.options).await?;
            let newest = server.start_position(&mut connection, &Start::Now).await?;
            let (files, incomplete) = match server_check::log_files(&mut connection).await? {
                Ok(files) => (files, None),
                Err(ServerError { code, message }) => {
                    (Vec::new(), Some(format!("SHOW BINARY LOGS: {message} (error {code})")))
                }
            };
            Ok(LogLookup { newest: Position(newest.to_string()), files, next_transaction_id: None, incomplete })
        })
    }

    fn bytes_behind(&self, position: &Position, lookup: &LogLookup) -> Option<u64> {
        if lookup.files.is_empty() {
            return None;
        }
        match self.covers(position, &lookup.newest) {
            true => Some(0),
            false => self.marks.lock().bytes_after(position, &lookup.files),
        }
    }

    fn continues<'a>(&'a self, former: &'a str, position: &'a Position) -> BoxFuture<'a, Result<bool, SourceError>> {
        Box::pin(async move {
            let mut connection = MysqlConnection::open(&*self.network, &self.options).await?;
            let server = Server::inspect(&mut connection, &self.options).await?;
            succession::continues(&mut connection, &server, former, position).await
        })
    }

    fn covers(&self, position: &Position, other: &Position) -> bool {
        gtid::covers(&position.0, &other.0)
    }

    fn is_beginning(&self, position: &Position) -> bool {
        gtid::is_empty(&position.0)
    }

    fn distance(&self, from: &Position, to: &Position) -> LogDistance {
        LogDistance { transactions: gtid::transactions_between(&from.0, &to.0), bytes: None }
    }
}

/// Reads the commits of one server, from a position on.
///
/// After an error, the next call reconnects and resumes from the position that was returned last.
pub struct MysqlSource {
    network: Arc<dyn Network>,
    options: MysqlOptions,
    wall_clock: WallClock,
    server: Server,
    queries: Option<MysqlConnection>,
    dump: Option<PacketStream>,
    assembler: Assembler,
    /// Transactions that are lost if they are committed and their XA PREPARE was not read: those that were prepared before a
    /// start from the present and not resolved when it ended, and those that were prepared when this was opened.
    unresolved: BTreeSet<String>,
    /// Everything up to here was returned by `next`.
    returned: Position,
    /// [`Assembler::transactions_read`] at that time.
    transactions_returned: u64,
    /// The commits that the gate must still wait for, read from earlier connections.
    visibility_target: VisibilityTarget,
    /// An error that came after commits, which are returned first.
    deferred_error: Option<SourceError>,
    rejected: u64,
    anomalies: Anomalies,
    /// When the first file that was read was begun; `None` before that.
    log_begins_at: Option<SystemTime>,
    marks: Arc<Mutex<ReadMarks>>,
    /// Whether there is a mark where the dump began.
    has_start_mark: bool,
}

impl MysqlSource {
    /// Logs in, checks the settings of the server, and looks up `start`. Reading starts with the first call of
    /// [`Source::next`].
    ///
    /// Fails with [`SourceError::Unusable`] if a setting is wrong; the message names it.
    pub async fn open(
        options: MysqlOptions,
        start: &Start,
        network: Arc<dyn Network>,
        wall_clock: WallClock,
    ) -> Result<Self, SourceError> {
        let mut queries = open_queries(&*network, &options).await?;
        let server = Server::inspect(&mut queries, &options).await?;
        let position = server.start_position(&mut queries, start).await?;
        let unresolved = match start {
            // After the position was queried: transactions that are prepared later are read.
            Start::Now => xa::wait_until_resolved(&mut queries, options.prepared_wait_max).await?,
            // Those that were prepared before the position are among them. The others are read.
            Start::At(_) | Start::Earliest => xa::list_unresolved(&mut queries).await?,
        };
        let returned = Position(position.to_string());
        let mut assembler = Assembler::new(&options, position, server.has_checksum);
        assembler.set_unresolved(unresolved.clone());
        read_catalogue(&mut assembler, &mut queries).await?;
        options.has_been_read.store(true, Relaxed);
        Ok(MysqlSource {
            returned,
            assembler,
            unresolved,
            network,
            options,
            wall_clock,
            server,
            queries: Some(queries),
            dump: None,
            transactions_returned: 0,
            visibility_target: VisibilityTarget::default(),
            deferred_error: None,
            rejected: 0,
            anomalies: Anomalies::default(),
            log_begins_at: None,
            marks: Arc::default(),
            has_start_mark: false,
        })
    }

    /// Everything up to here was returned by [`Source::next`]; at first, where reading starts. Save it before the first
    /// read: starting at the present twice leaves a gap.
    pub fn position(&self) -> &Position {
        &self.returned
    }

    /// Identifies the server: `mysql:` and its UUID, or `mariadb:` with its domain and server id, which operators must
    /// keep unique. Positions of one server mean nothing to another, except to its replicas.
    pub fn identity(&self) -> &str {
        &self.server.identity
    }

    /// Settings because of which the log may lack commits.
    pub fn warnings(&self) -> &[String] {
        &self.server.warnings
    }

    /// How many invalid keys (too long, or with white space) were ignored.
    pub fn keys_rejected(&self) -> u64 {
        self.rejected + self.assembler.rejected()
    }

    /// Irregularities of the log. Each was logged as a warning.
    pub fn anomalies(&self) -> Anomalies {
        self.anomalies + self.assembler.anomalies()
    }

    /// Waits for an event, and reads on while more have arrived already.
    async fn read_events(&mut self, keys_max: usize) -> Result<(), SourceError> {
        self.read_catalogue().await?;
        let dump = match &mut self.dump {
            Some(dump) => dump,
            none => {
                let from = self.assembler.resume_position().clone();
                none.insert(self.server.open_dump(&*self.network, &self.options, &from).await?)
            }
        };
        let silence_max = (self.options.heartbeat * HEARTBEATS_MISSED_MAX).max(SILENCE_MIN);
        // `None`: the next event is one of a compressed transaction.
        let mut packet = match self.assembler.has_compressed() {
            true => None,
            false => Some(dump.read(silence_max).await?),
        };
        let (mut keys, mut events) = (0, 0);
        loop {
            let received_at = (self.wall_clock)();
            let ready_before = self.assembler.ready().len();
            let without_rows = self.assembler.anomalies().without_rows;
            // Dropped before the next one is read: both may be long.
            match packet.take() {
                Some(packet) => feed_packet(&mut self.assembler, &packet, &self.options, received_at)?,
                None => self.assembler.feed_compressed(received_at)?,
            }
            self.log_begins_at = self.log_begins_at.or(self.assembler.file_begun_at());
            // All before the first transaction of the dump is in the position.
            if !self.has_start_mark && self.assembler.is_inside_transaction() {
                let end = self.assembler.end();
                self.marks.lock().record(&self.returned, &end.file, end.offset);
                self.has_start_mark = true;
            }
            warn_of_missing_rows(&self.options, without_rows, self.assembler.anomalies().without_rows);
            keys += self.assembler.ready().range(ready_before..).map(|commit| commit.keys.len()).sum::<usize>();
            events += 1;
            // Checked before the next packet is read from the stream: a packet that was read must not be dropped.
            if keys >= keys_max || events >= EVENTS_OF_NEXT_MAX {
                return Ok(());
            }
            // The next event may need it.
            if self.assembler.needs_catalogue() {
                return Ok(());
            }
            if !self.assembler.has_compressed() {
                packet = dump.read_ready().await?;
                if packet.is_none() {
                    return Ok(());
                }
            }
        }
    }

    /// Reads the declared columns of outbox tables and tables with a rule, if the events read so far have made that
    /// necessary. Called between two events: dropped meanwhile, it loses none.
    async fn read_catalogue(&mut self) -> Result<(), SourceError> {
        if !self.assembler.needs_catalogue() {
            return Ok(());
        }
        let mut queries = match self.queries.take() {
            Some(queries) => queries,
            None => open_queries(&*self.network, &self.options).await?,
        };
        read_catalogue(&mut self.assembler, &mut queries).await?;
        self.queries = Some(queries);
        Ok(())
    }

    /// The commits to return, or an empty list with a newer position; `None` if there is neither.
    fn pop_commits(&mut self, keys_max: usize) -> Option<Commits> {
        let mut commits = Vec::new();
        let mut keys = 0;
        while keys < keys_max {
            let Some(commit) = self.assembler.ready().pop_front() else { break };
            keys += commit.keys.len();
            commits.push(commit);
        }
        let position = match self.assembler.ready().is_empty() {
            // The remaining commits are returned later, and so is the position after them.
            false => commits.last()?.position.clone(),
            true if commits.is_empty() && self.assembler.transactions_read() == self.transactions_returned => {
                return None;
            }
            true => Position(self.assembler.resume_position().to_string()),
        };
        self.transactions_returned = self.assembler.transactions_read();
        if commits.is_empty() && position == self.returned {
            return None;
        }
        self.returned = position.clone();
        if self.assembler.is_resume_position_at_end() {
            let end = self.assembler.end();
            self.marks.lock().record(&position, &end.file, end.offset);
        }
        Some(Commits { commits, position })
    }

    /// Closes the connection of the dump and drops what was read of an unfinished transaction.
    fn reset_dump(&mut self) -> Result<(), SourceError> {
        self.dump = None;
        // The next connection may lead to another server, with other files.
        self.marks.lock().clear();
        self.has_start_mark = false;
        self.rejected += self.assembler.rejected();
        self.anomalies = self.anomalies();
        self.visibility_target.add(std::mem::take(self.assembler.visibility_target()));
        let position = self.server.parse(&self.returned.0)?;
        self.assembler = Assembler::new(&self.options, position, self.server.has_checksum);
        self.assembler.set_unresolved(self.unresolved.clone());
        self.transactions_returned = 0;
        Ok(())
    }
}

impl Source for MysqlSource {
    /// With semi-synchronous replication (`AFTER_SYNC`) readers see a commit when a replica has it.
    fn gates_every_position(&self) -> bool {
        true
    }

    fn log_begins_at(&self) -> Option<SystemTime> {
        self.log_begins_at
    }

    fn keys_rejected(&self) -> u64 {
        self.keys_rejected()
    }

    fn anomalies(&self) -> Anomalies {
        self.anomalies()
    }

    fn next(&mut self, keys_max: usize) -> BoxFuture<'_, Result<Commits, SourceError>> {
        Box::pin(async move {
            let keys_max = keys_max.max(1);
            if let Some(error) = self.deferred_error.take() {
                self.reset_dump()?;
                return Err(error);
            }
            loop {
                if let Some(commits) = self.pop_commits(keys_max) {
                    return Ok(commits);
                }
                if let Err(error) = self.read_events(keys_max).await {
                    if self.assembler.ready().is_empty() {
                        self.reset_dump()?;
                        return Err(error);
                    }
                    self.deferred_error = Some(error);
                }
            }
        })
    }

    fn wait_until_visible<'a>(&'a mut self, position: &'a Position) -> BoxFuture<'a, Result<(), SourceError>> {
        Box::pin(async move {
            if self.options.is_gate_off {
                return Ok(());
            }
            let position = self.server.parse(&position.0)?;
            let mut queries = match self.queries.take() {
                Some(queries) => queries,
                None => open_queries(&*self.network, &self.options).await?,
            };
            self.visibility_target.add(std::mem::take(self.assembler.visibility_target()));
            gate::wait_until_visible(&mut queries, &self.options, &self.visibility_target, &position).await?;
            // After an error the connection is dropped, as it may hold unread replies.
            self.queries = Some(queries);
            self.visibility_target = VisibilityTarget::default();
            Ok(())
        })
    }
}

/// Opens the connection of the gate, which is idle for as long as nothing is committed.
async fn open_queries(network: &dyn Network, options: &MysqlOptions) -> Result<MysqlConnection, SourceError> {
    let mut connection = MysqlConnection::open(network, options).await?;
    connection.query(&format!("SET SESSION wait_timeout = {IDLE_MAX_S}")).await?;
    Ok(connection)
}

/// Gives the assembler what it needs of the catalogue.
async fn read_catalogue(assembler: &mut Assembler, queries: &mut MysqlConnection) -> Result<(), SourceError> {
    if let Some(rules) = assembler.row_tables().needed_catalogue() {
        let catalogue = catalogue::load(queries, &rules).await?;
        assembler.row_tables().set_catalogue(catalogue);
    }
    if let Some(outbox_tables) = assembler.outbox_tables()
        && let Some(names) = outbox_tables.needed_names()
    {
        let declared = catalogue::load_first_columns(queries, names).await?;
        outbox_tables.set_declared(declared)?;
    }
    Ok(())
}

/// Feeds a packet of the dump to the assembler.
fn feed_packet(
    assembler: &mut Assembler,
    packet: &[u8],
    options: &MysqlOptions,
    received_at: SystemTime,
) -> Result<(), SourceError> {
    match packet.first() {
        Some(&HEAD_EVENT) => assembler.feed(&packet[1..], received_at),
        Some(&HEAD_ERROR) => {
            let error = connection::error_of(packet)?;
            Err(server_check::dump_error(error, assembler.resume_position(), &options.user))
        }
        _ => Err(SourceError::Unreachable { why: "the server ended the stream of its log".into() }),
    }
}

/// Warns of statements that are in the log without their rows: of the first, and whenever their number has doubled.
fn warn_of_missing_rows(options: &MysqlOptions, before: u64, now: u64) {
    if options.comments_only || before.checked_ilog2() == now.checked_ilog2() {
        return;
    }
    tracing::warn!(
        statements = now,
        "a session changes rows with a binlog_format other than ROW: keys that the outbox table names there ARE NOT \
         DELETED. Revoke the right to set it, or name all keys in comments and use --comments-only"
    );
}
