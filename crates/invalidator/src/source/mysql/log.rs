//! One server's log as a [`CommitLog`]: opens sources, and compares their positions with the end of the log.
//!
//! Serves the delete path, and the statistics of the lag.

use super::{
    connection::{MysqlConnection, ServerError},
    gtid,
    options::MysqlOptions,
    read_marks::ReadMarks,
    rule_check,
    server_check::{self, Server},
    source::MysqlSource,
    succession,
    unresolved::UnresolvedHistory,
};
use crate::{
    CommitLog, LogDistance, LogLookup, OpenedSource, Position, SourceError, Start, WallClock, source::PreparedState,
};
use lookaside_client::Network;
use lookaside_routing::BoxFuture;
use lookaside_sync::Mutex;
use std::sync::Arc;

/// One server's log, for one reader.
pub struct MysqlLog {
    options: MysqlOptions,
    network: Arc<dyn Network>,
    wall_clock: WallClock,
    /// The warnings that were logged last.
    logged_warnings: Mutex<Vec<String>>,
    /// The server that the source reads which was opened last; `None` if none was.
    read_identity: Mutex<Option<String>>,
    history: Arc<Mutex<UnresolvedHistory>>,
    /// Of the source that was opened last.
    marks: Arc<Mutex<ReadMarks>>,
}

impl MysqlLog {
    /// The log of the server that `options` name. Connects when it is used.
    pub fn new(options: MysqlOptions, network: Arc<dyn Network>, wall_clock: WallClock) -> Self {
        let (logged_warnings, read_identity) = (Mutex::default(), Mutex::default());
        let (history, marks) = (Arc::default(), Arc::default());
        MysqlLog { options, network, wall_clock, logged_warnings, read_identity, history, marks }
    }

    /// Fails unless `server` is the one whose log is read. During a failover the address may lead to another one before
    /// the reader has noticed: the end of that one's log says nothing of what is read.
    fn check_is_read(&self, server: &Server) -> Result<(), SourceError> {
        match &*self.read_identity.lock() {
            Some(read) if *read != server.identity => Err(SourceError::Unreachable {
                why: format!("the address leads to {} now, and the log of {read} is read", server.identity),
            }),
            _ => Ok(()),
        }
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
            let (options, network, wall_clock) = (self.options.clone(), self.network.clone(), self.wall_clock.clone());
            let history = self.history.clone();
            let mut source = MysqlSource::open_with(options, start, network, wall_clock, history).await?;
            self.log_warnings(&source);
            *self.read_identity.lock() = Some(source.identity().to_owned());
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
            self.check_is_read(&server)?;
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

    fn begin_at(&self, position: &Position, prepared: PreparedState) {
        let mut history = self.history.lock();
        history.begin_at(position, prepared.unresolved);
        history.set_read_until(prepared.read_until);
    }

    fn prepared_state_at(&self, position: &Position) -> Option<PreparedState> {
        let history = self.history.lock();
        let unresolved = history.at(position)?;
        Some(PreparedState { unresolved, read_until: history.read_until().cloned() })
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
