//! Reads the catalogue when rows need it, and at intervals.

use super::{
    assembler::Assembler,
    catalogue,
    connection::{PostgresConnection, QueryError},
    coverage::Coverage,
    lsn::Lsn,
    open_writers::{self, OpenWriters},
    options::PostgresOptions,
};
use crate::{SourceError, WallClock};
use lookaside_sync::Mutex;
use std::sync::Arc;
use tokio::time::Instant;

/// How long a look at the catalogue waits for DDL that locks a table. Nothing is read meanwhile.
const LOCK_WAIT_MS_MAX: u32 = 50;
/// The SQLSTATE of a lock that was not to be had in time.
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// Reads the catalogue for one source.
pub(super) struct CatalogueReader {
    coverage: Arc<Mutex<Coverage>>,
    /// Clusters may skip what is emitted before this, so the tables are compared once the log was read up to here.
    not_before: Lsn,
    /// When the outbox is to be looked at, and the tables with a rule to be compared with what they were.
    due: Instant,
}

impl CatalogueReader {
    /// Reads once the log was read up to `not_before`, and then at intervals. `coverage` is what was found before.
    pub fn new(coverage: Arc<Mutex<Coverage>>, not_before: Lsn) -> CatalogueReader {
        CatalogueReader { coverage, not_before, due: Instant::now() }
    }

    /// When the catalogue must be read although no message has arrived, if the log was read up to `read`.
    pub fn due(&self, read: Lsn) -> Option<Instant> {
        (read >= self.not_before).then_some(self.due)
    }

    /// Whether [`CatalogueReader::read`] has something to do before the next message.
    pub fn is_due(&self, assembler: &mut Assembler) -> bool {
        let due = self.due(assembler.read());
        !assembler.row_tables().needed_types().is_empty() || due.is_some_and(|due| Instant::now() >= due)
    }

    /// Reads the types that rows of tables with a rule have, and, if that is due, looks at the outbox and compares the
    /// tables with what they were.
    /// Dropped meanwhile, it is repeated by the next call.
    pub async fn read(
        &mut self,
        queries: &mut PostgresConnection,
        options: &PostgresOptions,
        assembler: &mut Assembler,
        wall_clock: &WallClock,
    ) -> Result<(), SourceError> {
        let types = catalogue::load_types(queries, &assembler.row_tables().needed_types()).await?;
        assembler.row_tables().add_types(types);
        if self.due(assembler.read()).is_none_or(|due| Instant::now() < due) {
            return Ok(());
        }
        let (rules, publication) = (options.row_rules.current(), &options.publication);
        queries.query(&format!("SET lock_timeout = {LOCK_WAIT_MS_MAX}")).await?;
        let found = async {
            let outboxes = catalogue::load_unpublished_outboxes(queries, publication, &options.outbox_table).await?;
            let mut found = catalogue::load(queries, publication, &rules).await?;
            // The size of a partition is looked up if it matters only.
            let attached = self.coverage.lock().newly_attached(&found);
            let filled = catalogue::load_filled(queries, &attached).await?;
            found.values_mut().for_each(|table| table.attached.retain(|partition| filled.contains(partition)));
            let needs_writers = self.coverage.lock().needs_writers(&found);
            let writers = match needs_writers {
                true => open_writers::load(queries, &found).await?,
                false => OpenWriters::new(),
            };
            Ok((outboxes, found, writers))
        };
        let found = found.await;
        self.due = Instant::now() + options.catalogue_interval;
        match found {
            Ok((outboxes, found, writers)) => {
                let mut coverage = self.coverage.lock();
                coverage.observe_outboxes(outboxes, publication);
                let changes = coverage.observe(&rules, (&found, &writers), publication, assembler.read());
                options.row_rules.statistics.set_uncovered(coverage.uncovered());
                options.row_rules.statistics.set_unpublished_outboxes(coverage.unpublished_outboxes());
                for (rule, change) in changes {
                    assembler.add_unlogged_change(rule, change, wall_clock());
                }
                Ok(())
            }
            // What locks a table is not committed; the next look finds what it has done.
            Err(QueryError::Server(error)) if error.code == LOCK_NOT_AVAILABLE => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
