//! Reads the commits of one server: two connections, the assembler between them, and what survives a lost connection.
//!
//! Serves the delete path.

use super::{
    assembler::Assembler,
    catalogue,
    connection::{self, MysqlConnection},
    counted_commits::CountedCommits,
    gate,
    gtid::GtidPosition,
    options::MysqlOptions,
    packet::PacketStream,
    read_marks::ReadMarks,
    server_check::{self, Server},
    settings::ServerKind,
    unresolved::{PreparedList, UnresolvedHistory, UnresolvedTransactions},
    visibility_target::VisibilityTarget,
    xa,
};
use crate::{
    Commits, Position, Source, SourceError, Start, WallClock,
    source::{Anomalies, PreparedState, UnresolvedPrepared},
};
use lookaside_client::Network;
use lookaside_routing::BoxFuture;
use lookaside_sync::Mutex;
use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, SystemTime},
};

/// The most events that one call of [`Source::next`] reads before it returns.
const EVENTS_OF_NEXT_MAX: usize = 10_000;

/// How long the gate's connection may be idle before the server closes it. A server's own `wait_timeout` may be a minute:
/// the first commit after that would wait for a new connection. The server notices a dead client by TCP.
const IDLE_MAX_S: u32 = 24 * 60 * 60;

/// The connection is closed after this many missed heartbeats.
const HEARTBEATS_MISSED_MAX: u32 = 3;

/// The connection is never closed sooner than this: a busy machine may be late.
const SILENCE_MIN: Duration = Duration::from_secs(1);

/// How long a start from the present waits until what is prepared in its log is listed.
const PREPARE_PAUSE: Duration = Duration::from_millis(100);

/// The first byte of a packet of a dump.
const HEAD_EVENT: u8 = 0x00;
const HEAD_ERROR: u8 = 0xff;

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
    /// What was known of prepared transactions when this was opened.
    prepared: PreparedState,
    history: Arc<Mutex<UnresolvedHistory>>,
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
    pub(super) marks: Arc<Mutex<ReadMarks>>,
    /// Whether there is a mark where the dump began.
    has_start_mark: bool,
}

impl MysqlSource {
    /// Logs in, checks the settings of the server, and looks up `start`. Reading starts with the first call of
    /// [`Source::next`].
    ///
    /// Fails with [`SourceError::Unusable`] if a setting is wrong; the message names it. Fails with
    /// [`SourceError::PositionLost`] if `start` is a position that the server does not have, so that nothing is concluded
    /// from a position that cannot be read from.
    pub async fn open(
        options: MysqlOptions,
        start: &Start,
        network: Arc<dyn Network>,
        wall_clock: WallClock,
    ) -> Result<Self, SourceError> {
        MysqlSource::open_with(options, start, network, wall_clock, Arc::default()).await
    }

    pub(super) async fn open_with(
        options: MysqlOptions,
        start: &Start,
        network: Arc<dyn Network>,
        wall_clock: WallClock,
        history: Arc<Mutex<UnresolvedHistory>>,
    ) -> Result<Self, SourceError> {
        let mut queries = open_queries(&*network, &options).await?;
        let server = Server::inspect(&mut queries, &options).await?;
        let position = server.start_position(&mut queries, start).await?;
        let returned = Position(position.to_string());
        let unresolved = match start {
            // After the position was queried: transactions that are prepared later are read.
            Start::Now => wait_until_resolved(&server, &mut queries, &options, &position, &history).await?,
            Start::At(_) | Start::Earliest => find_unresolved(&server, &mut queries, &returned, &history).await?,
        };
        let mut assembler = Assembler::new(&options, position, server.has_checksum);
        assembler.set_unresolved(unresolved);
        read_catalogue(&mut assembler, &mut queries).await?;
        options.has_been_read.store(true, Relaxed);
        let mut source = MysqlSource {
            returned,
            prepared: assembler.prepared_state(),
            assembler,
            history,
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
        };
        if let Start::At(_) = start {
            source.begin_dump().await?;
            source.prepared = source.assembler.prepared_state();
        }
        Ok(source)
    }

    /// Opens the dump, and reads its first packet: a server that does not have the position refuses it there.
    async fn begin_dump(&mut self) -> Result<(), SourceError> {
        let from = self.assembler.resume_position().clone();
        let mut dump = self.server.open_dump(&*self.network, &self.options, &from).await?;
        let packet = dump.read(silence_max(&self.options)).await?;
        feed_packet(&mut self.assembler, &packet, &self.options, (self.wall_clock)())?;
        self.dump = Some(dump);
        Ok(())
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
        // `None`: the next event is one of a compressed transaction.
        let mut packet = match self.assembler.has_compressed() {
            true => None,
            false => Some(dump.read(silence_max(&self.options)).await?),
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
        self.assembler.record_read_until();
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
        let (unresolved, read_until, counted) = {
            let mut history = self.history.lock();
            history.rewind(&self.returned);
            let unresolved = history.at(&self.returned).unwrap_or_else(|| self.prepared.unresolved.clone());
            let read_until = history.read_until().or(self.prepared.read_until.as_ref()).cloned();
            (unresolved, read_until, history.counted(&self.server.identity, &self.returned))
        };
        let read_until = read_until.map(|position| self.server.parse(&position.0)).transpose()?;
        let unresolved = UnresolvedTransactions::new(self.history.clone(), unresolved, None);
        self.assembler.set_unresolved(unresolved.with_read_until(read_until).with_counted(counted));
        self.transactions_returned = 0;
        Ok(())
    }
}

impl Source for MysqlSource {
    /// With semi-synchronous replication (`AFTER_SYNC`) readers see a commit when a replica has it.
    fn gates_every_position(&self) -> bool {
        true
    }

    fn prepared_state(&self) -> Option<PreparedState> {
        Some(self.prepared.clone())
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

/// How long the server may be silent.
fn silence_max(options: &MysqlOptions) -> Duration {
    (options.heartbeat * HEARTBEATS_MISSED_MAX).max(SILENCE_MIN)
}

/// Waits for the transactions that are prepared now, whose keys are not read from `start` on, and returns those that
/// are not resolved.
async fn wait_until_resolved(
    server: &Server,
    queries: &mut MysqlConnection,
    options: &MysqlOptions,
    start: &GtidPosition,
    history: &Arc<Mutex<UnresolvedHistory>>,
) -> Result<UnresolvedTransactions, SourceError> {
    if server.kind == ServerKind::Mariadb && !options.is_gate_off {
        gate::wait_until_visible(queries, options, &VisibilityTarget::default(), start).await?;
    }
    tokio::time::sleep(PREPARE_PAUSE).await;
    let unresolved = xa::wait_until_resolved(queries, options.prepared_wait_max, history).await?;
    let end = server.start_position(queries, &Start::Now).await?;
    let incomplete = match server.kind {
        ServerKind::Mysql => Some(BTreeSet::new()),
        // Queried after the end.
        ServerKind::Mariadb => xa::list_prepared(queries, history, unresolved != UnresolvedPrepared::Unknown).await?,
    };
    let incomplete = incomplete.filter(|incomplete| incomplete.len() <= xa::TRANSACTIONS_HELD_MAX);
    let counted = incomplete.map(|incomplete| CountedCommits { end, incomplete });
    history.lock().record_start(&server.identity, &Position(start.to_string()), counted.clone());
    let unresolved = UnresolvedTransactions::new(history.clone(), unresolved, None);
    Ok(unresolved.with_read_until(Some(start.clone())).with_counted(counted))
}

/// The transactions that were prepared before `position`, and whose keys are not read from there on.
async fn find_unresolved(
    server: &Server,
    queries: &mut MysqlConnection,
    position: &Position,
    history: &Arc<Mutex<UnresolvedHistory>>,
) -> Result<UnresolvedTransactions, SourceError> {
    let (known, read_until, counted) = {
        let mut history = history.lock();
        history.rewind(position);
        (history.at(position), history.read_until().cloned(), history.counted(&server.identity, position))
    };
    let has_names = matches!(known, Some(UnresolvedPrepared::Named(_)));
    let names = match known == Some(UnresolvedPrepared::none()) {
        true => None,
        false => xa::list_prepared(queries, history, has_names).await?,
    };
    // Queried after the list.
    let end = server.start_position(queries, &Start::Now).await?;
    let (unresolved, listed) = match (known, names) {
        // Those that were prepared before the position are among them. The others are read.
        (None, Some(names)) => (UnresolvedPrepared::from_names(names), None),
        (Some(known), Some(names)) => (known, Some(PreparedList { names, end: end.clone() })),
        (known, None) => (known.unwrap_or(UnresolvedPrepared::Unknown), None),
    };
    let read_until = match read_until {
        Some(read_until) => server.known_part(queries, server.parse(&read_until.0)?).await?,
        None if unresolved == UnresolvedPrepared::Unknown => server.parse(&position.0)?,
        // What is not listed was resolved before, or it was being prepared and is committed later.
        None => end,
    };
    let unresolved = UnresolvedTransactions::new(history.clone(), unresolved, listed);
    Ok(unresolved.with_read_until(Some(read_until)).with_counted(counted))
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
