//! Reads the commits of a slot's log one after the other.

use super::{
    assembler::{Anomalies, Assembler},
    catalogue_reader::CatalogueReader,
    connection::{OBJECT_IN_USE, PostgresConnection, Purpose, QueryError, protocol_error},
    gate,
    log::{Delivered, PostgresLog},
    log_stream::{LogStream, STATUS_INTERVAL},
    lsn::{LogPosition, Lsn, lsn_of},
    options::PostgresOptions,
    replication_stream::{LogMessage, ReplicationStream},
    slot::{self, Server},
    slot_reader::{self, SharedSlot},
    standby,
    timeline::{SharedLogId, Timelines},
};
use crate::{Commits, Position, Source, SourceError, Start, WallClock};
use lookaside_client::Network;
use lookaside_routing::BoxFuture;
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tokio::time::Instant;

/// The most messages that one call of [`Source::next`] reads before it returns.
const MESSAGES_OF_NEXT_MAX: usize = 10_000;

/// Reads the commits of one slot, from a position on.
///
/// After an error, the next call reconnects and resumes from the position that was returned last.
pub struct PostgresSource {
    network: Arc<dyn Network>,
    options: PostgresOptions,
    wall_clock: WallClock,
    server: Server,
    released: Arc<AtomicU64>,
    delivered: Delivered,
    read_log: SharedLogId,
    shared_slot: Option<SharedSlot>,
    /// The connection that has a temporary slot, until the log is read on it; `None` if the slot is not temporary.
    slot_connection: Option<PostgresConnection>,
    catalogue: CatalogueReader,
    queries: Option<PostgresConnection>,
    stream: Option<LogStream>,
    assembler: Assembler,
    /// Everything up to here was returned by `next`, at this time.
    returned: (Lsn, Instant),
    /// Where reading began, and the transactions that may have been committed before and were not visible yet.
    opening: (Lsn, BTreeSet<u32>),
    /// The transactions that the gate must still wait for.
    invisible: BTreeSet<u32>,
    /// An error that came after commits, which are returned first.
    deferred_error: Option<SourceError>,
    rejected: u64,
    anomalies: Anomalies,
}

impl PostgresSource {
    /// Logs in, checks the settings of the server, and looks up `start`. Reading starts with the first call of
    /// [`Source::next`].
    ///
    /// Fails with [`SourceError::Unusable`] if a setting is wrong; the message names it.
    pub async fn open(log: &PostgresLog, start: &Start) -> Result<Self, SourceError> {
        let PostgresLog {
            options,
            network,
            wall_clock,
            released,
            delivered,
            shared_slot,
            coverage,
            read_log,
            unreadable,
        } = log;
        let mut connection = PostgresConnection::open(&**network, options, Purpose::Replication).await?;
        let server = Server::inspect(&mut connection, options, unreadable).await?;
        for warning in &server.warnings {
            tracing::warn!(log = server.identity, warning, "the log may be incomplete");
        }
        let mut queries = open_queries(&**network, options).await?;
        let (newest, shared) = (*delivered.lock(), shared_slot.as_ref());
        let (from, timelines) =
            server.start_position(&mut connection, &mut queries, options, shared, start, newest).await?;
        // Also back: the log of a promoted standby may be shorter, and what was released of the former one is not safe.
        // A shared slot was confirmed up to what is safe; 0 confirms nothing.
        released.store(if shared_slot.is_some() { 0 } else { from.0 }, Relaxed);
        let is_resumed = matches!(start, Start::At(_));
        if !is_resumed || newest.lsn < from {
            // If it is not resumed, no cluster has a position in this part of the log.
            *delivered.lock() = timelines.position(from);
        }
        let not_before = delivered.lock().lsn;
        coverage.lock().begin_source(from, is_resumed);
        let unfinished = match start {
            Start::At(_) => BTreeSet::new(),
            Start::Now | Start::Earliest => gate::unfinished_transactions(&mut connection).await?,
        };
        *read_log.lock() = Some((server.identity.clone(), timelines.current()));
        Ok(PostgresSource {
            assembler: Assembler::new(&options.outbox_table, options.row_rules.clone(), from, timelines),
            catalogue: CatalogueReader::new(coverage.clone(), not_before),
            network: network.clone(),
            options: options.clone(),
            wall_clock: wall_clock.clone(),
            server,
            released: released.clone(),
            delivered: delivered.clone(),
            read_log: read_log.clone(),
            shared_slot: shared_slot.clone(),
            slot_connection: options.is_slot_temporary.then_some(connection),
            queries: Some(queries),
            stream: None,
            returned: (from, Instant::now()),
            opening: (from, unfinished),
            invisible: BTreeSet::new(),
            deferred_error: None,
            rejected: 0,
            anomalies: Anomalies::default(),
        })
    }

    /// Everything up to here was returned by [`Source::next`]; at first, where reading starts.
    pub fn position(&self) -> Position {
        self.position_of(self.returned.0)
    }

    fn position_of(&self, lsn: Lsn) -> Position {
        self.assembler.timelines().position(lsn).position()
    }

    /// How many invalid keys (too long, or with white space) were ignored.
    pub fn keys_rejected(&self) -> u64 {
        self.rejected + self.assembler.rejected()
    }

    /// Irregularities of the log. Each was logged as a warning.
    pub fn anomalies(&self) -> Anomalies {
        self.anomalies + self.assembler.anomalies()
    }

    /// Notes it if an error means that the server lacks the log that the slot needs: a standby that was made after that
    /// log was written, and then promoted. It has removed nothing, so it does not report the slot as lost. The next
    /// attempt to resume finds that the position is lost.
    fn note_unreadable_slot(&self, error: &QueryError) {
        if let QueryError::Server(error) = error
            && error.is_of_missing_log()
        {
            self.server.unreadable.lock().clone_from(&self.read_log.lock());
        }
    }

    async fn open_stream(&mut self) -> Result<(), QueryError> {
        if self.stream.is_none() {
            let mut connection = self.open_replication().await?;
            standby::check_is_primary(&mut connection).await?;
            let read = self.assembler.read();
            // This connection may lead to another server than the last one did.
            let (from, delivered) = (self.assembler.timelines().position(read), *self.delivered.lock());
            let timelines = Timelines::read(&mut connection, from, delivered).await?;
            *self.read_log.lock() = Some((self.server.identity.clone(), timelines.current()));
            self.assembler.set_timelines(timelines);
            let command = self.server.start_command(&self.options, read);
            let stream = match ReplicationStream::start(connection, &command).await {
                Err(QueryError::Server(error)) if error.code == OBJECT_IN_USE => {
                    let mut queries = PostgresConnection::open(&*self.network, &self.options, Purpose::Queries).await?;
                    let shared = self.shared_slot.as_ref();
                    if slot_reader::end_earlier_session(&mut queries, &self.options, shared).await? {
                        let slot = &self.options.slot;
                        tracing::info!(slot, "ended an earlier session, which held the slot");
                    }
                    slot_reader::check(&mut queries, &self.options, shared).await?;
                    return Err(QueryError::Server(error));
                }
                started => started?,
            };
            self.check_confirmed().await?;
            self.stream = Some(LogStream::new(stream));
        }
        Ok(())
    }

    /// A connection on which the slot can be read. A temporary slot is read on the one that created it, once.
    async fn open_replication(&mut self) -> Result<PostgresConnection, SourceError> {
        if !self.options.is_slot_temporary {
            return PostgresConnection::open(&*self.network, &self.options, Purpose::Replication).await;
        }
        let ended = || SourceError::Unreachable { why: "the temporary slot has ended with its connection".into() };
        self.slot_connection.take().ok_or_else(ended)
    }

    /// Whether another reader had the slot after it was looked at and before it became ours. The server would begin
    /// where that one left off.
    async fn check_confirmed(&mut self) -> Result<(), SourceError> {
        let mut queries = self.take_queries().await?;
        let confirmed = slot::confirmed_position(&mut queries, &self.options).await?;
        self.queries = Some(queries);
        slot::check_not_confirmed_beyond(confirmed, self.assembler.read(), &self.options.slot)
    }

    /// The connection for queries. The caller gives it back, unless a query has failed or was given up: it may hold
    /// unread replies then.
    async fn take_queries(&mut self) -> Result<PostgresConnection, SourceError> {
        match self.queries.take() {
            Some(queries) => Ok(queries),
            None => open_queries(&*self.network, &self.options).await,
        }
    }

    /// Reads the catalogue if that is due. Called between two messages: dropped meanwhile, it loses none.
    async fn read_catalogue(&mut self) -> Result<(), SourceError> {
        if self.catalogue.is_due(&mut self.assembler) {
            let mut queries = self.take_queries().await?;
            self.catalogue.read(&mut queries, &self.options, &mut self.assembler, &self.wall_clock).await?;
            self.queries = Some(queries);
        }
        Ok(())
    }

    /// When reading must pause although no message has arrived; `None` if it need not.
    fn pause_at(&self) -> Option<Instant> {
        let (returned, at) = self.returned;
        let withheld = (self.assembler.read() > returned).then_some(at + STATUS_INTERVAL);
        withheld.into_iter().chain(self.catalogue.due(self.assembler.read())).min()
    }

    /// Waits for a message, or until a position is due that was withheld or the catalogue must be read, and reads on
    /// while more have arrived already.
    async fn read_messages(&mut self, keys_max: usize) -> Result<(), QueryError> {
        self.read_catalogue().await?;
        if !self.assembler.ready().is_empty() {
            return Ok(());
        }
        self.open_stream().await?;
        let wait_until = self.pause_at();
        let log = self.stream.as_mut().expect("it was opened");
        let read = self.assembler.read();
        let confirmed = Lsn(self.released.load(Relaxed)).min(read);
        let message = log.read(&self.options, read, confirmed, &self.wall_clock, wait_until).await?;
        let Some(mut message) = message else { return Ok(()) };
        let (mut keys, mut messages) = (0, 0);
        loop {
            let ready_before = self.assembler.ready().len();
            match message {
                LogMessage::Data(bytes) => {
                    self.assembler.feed(bytes).map_err(|malformed| protocol_error(malformed.0))?;
                }
                LogMessage::Skipped { relation } => {
                    self.assembler.record_oversized(relation).map_err(|malformed| protocol_error(malformed.0))?;
                }
                LogMessage::Keepalive { end, is_reply_requested } => {
                    self.assembler.advance(end);
                    if is_reply_requested {
                        let read = self.assembler.read();
                        log.send_status(read, confirmed, &self.wall_clock).await?;
                    }
                }
            }
            keys += self.assembler.ready().range(ready_before..).map(|commit| commit.keys.len()).sum::<usize>();
            messages += 1;
            if keys >= keys_max || messages >= MESSAGES_OF_NEXT_MAX {
                return Ok(());
            }
            // The next message may need them.
            if !self.assembler.row_tables().needed_types().is_empty() {
                return Ok(());
            }
            match log.read_ready()? {
                Some(more) => message = more,
                None => return Ok(()),
            }
        }
    }

    /// The commits to return, or an empty list with a newer position; `None` if there is neither.
    fn pop_commits(&mut self, keys_max: usize) -> Option<Commits> {
        let (mut commits, mut keys) = (Vec::new(), 0);
        while keys < keys_max {
            let Some(commit) = self.assembler.ready().pop_front() else { break };
            keys += commit.keys.len();
            commits.push(commit);
        }
        let position = match self.assembler.ready().is_empty() {
            // The remaining commits are returned later, and so is the position after them.
            false => lsn_of(&commits.last()?.position)?,
            true => self.assembler.read(),
        };
        let (returned, at) = self.returned;
        if commits.is_empty() && (position == returned || at.elapsed() < STATUS_INTERVAL) {
            return None;
        }
        self.returned = (position, Instant::now());
        Some(Commits { commits, position: self.position_of(position) })
    }

    /// Closes the connection of the log and drops what was read of an unfinished transaction.
    fn reset_stream(&mut self) {
        self.stream = None;
        self.rejected += self.assembler.rejected();
        self.anomalies = self.anomalies();
        self.invisible.append(&mut self.assembler.take_xids());
        let (outbox_table, row_rules) = (&self.options.outbox_table, self.options.row_rules.clone());
        let timelines = self.assembler.timelines().clone();
        self.assembler = Assembler::new(outbox_table, row_rules, self.returned.0, timelines);
    }
}

/// A connection for the gate and for the catalogue: to a primary, whose readers see what it sees.
async fn open_queries(network: &dyn Network, options: &PostgresOptions) -> Result<PostgresConnection, SourceError> {
    let mut queries = PostgresConnection::open(network, options, Purpose::Queries).await?;
    standby::check_is_primary(&mut queries).await?;
    Ok(queries)
}

impl Source for PostgresSource {
    fn keys_rejected(&self) -> u64 {
        self.keys_rejected()
    }

    fn messages_untransactional(&self) -> u64 {
        self.anomalies().untransactional
    }

    fn messages_oversized(&self) -> u64 {
        self.anomalies().oversized
    }

    fn next(&mut self, keys_max: usize) -> BoxFuture<'_, Result<Commits, SourceError>> {
        Box::pin(async move {
            let keys_max = keys_max.max(1);
            if let Some(error) = self.deferred_error.take() {
                self.reset_stream();
                return Err(error);
            }
            loop {
                if let Some(commits) = self.pop_commits(keys_max) {
                    return Ok(commits);
                }
                if let Err(error) = self.read_messages(keys_max).await {
                    self.note_unreadable_slot(&error);
                    let error = SourceError::from(error);
                    if self.assembler.ready().is_empty() {
                        self.reset_stream();
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
            let mut queries = self.take_queries().await?;
            self.invisible.append(&mut self.assembler.take_xids());
            // The position where reading began covers commits that are not read. Later ones stand for those that are.
            let (from, unfinished) = &mut self.opening;
            let is_opening = *from == LogPosition::of_position(position)?.lsn;
            let gate = async {
                if is_opening {
                    gate::wait_until_ended(&mut queries, unfinished).await?;
                }
                gate::wait_until_visible(&mut queries, &self.invisible, self.options.visible_wait_max).await
            };
            let read = self.assembler.read();
            let confirmed = Lsn(self.released.load(Relaxed)).min(read);
            match &mut self.stream {
                Some(log) => log.report_during(gate, read, confirmed, &self.wall_clock).await?,
                None => gate.await?,
            }
            // After an error the connection is dropped, as it may hold unread replies.
            self.queries = Some(queries);
            self.invisible.clear();
            Ok(())
        })
    }
}
