//! One server's log as a [`CommitLog`]: opens sources, and compares their positions with the end of the log.
//!
//! Serves the delete path, and the statistics of the lag.

use super::{
    connection::{PostgresConnection, Purpose},
    coverage::Coverage,
    lsn::{LogPosition, Lsn, lsn_of},
    options::PostgresOptions,
    seen_tables::SeenTables,
    slot::{self, Server},
    slot_reader::{IsActive, SharedSlot},
    source::PostgresSource,
    timeline::SharedLogId,
};
use crate::{CommitLog, LogDistance, LogLookup, OpenedSource, Position, SourceError, Start, WallClock};
use lookaside_client::Network;
use lookaside_routing::BoxFuture;
use lookaside_sync::Mutex;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use tokio::sync::watch;

/// One slot of one server's log.
pub struct PostgresLog {
    pub(super) options: PostgresOptions,
    pub(super) network: Arc<dyn Network>,
    pub(super) wall_clock: WallClock,
    /// The server need not keep its log before this.
    pub(super) released: Arc<AtomicU64>,
    /// No cluster has got more.
    pub(super) delivered: Delivered,
    /// `None` if no other invalidator may use the slot.
    pub(super) shared_slot: Option<SharedSlot>,
    pub(super) coverage: Arc<Mutex<Coverage>>,
    /// The log that is read.
    pub(super) read_log: SharedLogId,
    /// The log that lacks what the slot needs, although its server does not report the slot as lost.
    pub(super) unreadable: SharedLogId,
}

/// The newest position that was given to clusters, which skip what comes before theirs.
pub(super) type Delivered = Arc<Mutex<LogPosition>>;

impl PostgresLog {
    /// The log of the server that `options` name. Connects when it is used.
    pub fn new(mut options: PostgresOptions, network: Arc<dyn Network>, wall_clock: WallClock) -> Self {
        options.application_name = format!("{} {:016x}", options.application_name, fastrand::u64(..));
        let (released, delivered, coverage) = (Arc::default(), Arc::default(), Arc::default());
        PostgresLog {
            options,
            network,
            wall_clock,
            released,
            delivered,
            shared_slot: None,
            coverage,
            read_log: Arc::default(),
            unreadable: Arc::default(),
        }
    }

    /// Fails unless the log `identity`, which is on this timeline, is the one that is read. During a failover the
    /// address may lead to the promoted standby before the reader has noticed: the end of its log says nothing of what
    /// is read, since positions before and behind the fork look alike.
    fn check_is_read(&self, identity: &str, timeline: Option<u32>) -> Result<(), SourceError> {
        match &*self.read_log.lock() {
            Some((read, of_read)) if read != identity || *of_read != timeline => {
                let shown = |timeline: Option<u32>| timeline.map_or("unknown".to_owned(), |number| number.to_string());
                let why = format!(
                    "the address leads to {identity} on timeline {} now, and the log of {read} on timeline {} is read",
                    shown(timeline),
                    shown(*of_read)
                );
                Err(SourceError::Unreachable { why })
            }
            _ => Ok(()),
        }
    }

    /// The same, where an earlier process has seen the tables in `kept`. What is to be kept now is sent to its
    /// receivers.
    pub fn with_seen_tables(self, kept: watch::Sender<SeenTables>) -> PostgresLog {
        PostgresLog { coverage: Arc::new(Mutex::new(Coverage::new(kept))), ..self }
    }

    /// The same for a slot that a standby uses when it becomes active: it reads on from the saved positions, so the
    /// slot is confirmed by [`CommitLog::release`] alone, and the session of one that hangs is ended while `is_active`
    /// returns true. Those that share the slot have the same `name`.
    pub fn with_shared_slot(mut self, name: &str, is_active: IsActive) -> PostgresLog {
        let shared = SharedSlot::new(name, is_active);
        self.options.application_name = shared.application_name(fastrand::u64(..));
        PostgresLog { shared_slot: Some(shared), ..self }
    }
}

impl CommitLog for PostgresLog {
    fn identity(&self) -> BoxFuture<'_, Result<String, SourceError>> {
        Box::pin(async move {
            let mut connection = PostgresConnection::open(&*self.network, &self.options, Purpose::Replication).await?;
            Ok(Server::inspect(&mut connection, &self.options, &self.unreadable).await?.identity)
        })
    }

    fn open<'a>(&'a self, start: &'a Start) -> BoxFuture<'a, Result<OpenedSource, SourceError>> {
        Box::pin(async move {
            let source = PostgresSource::open(self, start).await?;
            let position = source.position();
            Ok(OpenedSource { source: Box::new(source), position })
        })
    }

    fn newest_position(&self) -> BoxFuture<'_, Result<Position, SourceError>> {
        Box::pin(async move {
            let mut connection = PostgresConnection::open(&*self.network, &self.options, Purpose::Queries).await?;
            let (newest, identity) = slot::newest_position(&mut connection).await?;
            self.check_is_read(&identity, newest.timeline)?;
            Ok(newest.lsn.position())
        })
    }

    fn look_up(&self) -> BoxFuture<'_, Result<LogLookup, SourceError>> {
        Box::pin(async move {
            let mut connection = PostgresConnection::open(&*self.network, &self.options, Purpose::Queries).await?;
            let (newest, next_transaction_id) = slot::look_up(&mut connection).await?;
            let next_transaction_id = Some(next_transaction_id);
            Ok(LogLookup { newest: newest.position(), next_transaction_id, ..LogLookup::default() })
        })
    }

    fn covers(&self, position: &Position, other: &Position) -> bool {
        matches!((lsn_of(position), lsn_of(other)), (Some(position), Some(other)) if position >= other)
    }

    fn distance(&self, from: &Position, to: &Position) -> LogDistance {
        let ends = lsn_of(from).zip(lsn_of(to));
        LogDistance { transactions: None, bytes: ends.map(|(from, to)| to.0.saturating_sub(from.0)) }
    }

    fn remembered_position(&self) -> BoxFuture<'_, Result<Option<Position>, SourceError>> {
        Box::pin(async move {
            let mut connection = PostgresConnection::open(&*self.network, &self.options, Purpose::Queries).await?;
            let shared = self.shared_slot.as_ref();
            Ok(slot::remembered_position(&mut connection, &self.options, shared).await?.map(Lsn::position))
        })
    }

    fn release(&self, position: &Position) {
        if let Some(position) = lsn_of(position) {
            self.released.fetch_max(position.0, Relaxed);
        }
    }

    fn note_delivered(&self, position: &Position) {
        let mut delivered = self.delivered.lock();
        if let Some(position) = LogPosition::parse(position).filter(|position| position.lsn > delivered.lsn) {
            *delivered = position;
        }
    }

    fn acknowledge(&self, position: &Position) {
        if let Some(position) = lsn_of(position) {
            self.coverage.lock().acknowledge(position);
        }
    }
}
