//! PostgreSQL's write-ahead log as a source, by logical replication (13 and later).
//!
//! The source uses two connections: the log arrives message by message on one, the gate queries the other.
//!
//! ```text
//! connection.rs -> replication_stream.rs -> log_stream.rs -> pgoutput.rs -> assembler.rs -> source.rs -> commits
//!
//! log.rs               opens sources, and looks up the end of the log
//! tls.rs, setup.rs     login, the SQL that prepares a database
//! slot.rs, slot_reader.rs   settings of the server, the replication slot, who reads that
//! failover_slot.rs     a slot that standbys copy
//! version.rs           what each version of the server has
//! gate.rs              waits until readers see what was read
//! transactions.rs      logs which transactions a start waits for
//! row_tables.rs, column_type.rs                    rows of tables with a rule, and their columns
//! catalogue.rs, catalogue_reader.rs, coverage.rs   types; changes of tables that the log does not have
//! table_coverage.rs, found_change.rs               what is seen of one table; a change until all have acknowledged it
//! open_writers.rs      transactions that may have changed a table before it was in the log
//! seen_tables.rs       what is kept of that beyond the end of a process
//! rule_check.rs        rules that the database does not fit
//! standby.rs           refuses to be a synchronous standby, and to read a physical one
//! timeline.rs          whether a promoted standby continues the log of its primary
//! legacy_slots.rs      slots of versions that had one for each cluster
//! ```
//!
//! Serves the delete path (§4.1 of the paper). Keys come from messages (`SELECT lookaside_invalidate('user:42')`, in
//! the transaction), from rows of the outbox table, and from rows of tables with a rule.
//!
//! There is one slot, for all clusters. It is confirmed up to what [`crate::spool`] has on disk: the server keeps its
//! log while the invalidator is stopped, as far as `max_slot_wal_keep_size` allows, but not for a cluster that is down.
//! If the slot is lost, so is the position, and the operator decides.
//!
//! Not supported: keys in comments of statements, which this log does not contain; the log of a standby. Transactions
//! arrive when they are committed, a prepared one when it is committed: no streaming in progress.

mod assembler;
mod catalogue;
mod catalogue_reader;
mod column_type;
mod connection;
mod coverage;
mod failover_slot;
mod found_change;
mod gate;
mod legacy_slots;
mod log;
mod log_stream;
mod lsn;
mod open_writers;
mod options;
mod pgoutput;
mod replication_stream;
mod row_reading;
mod row_tables;
mod rule_check;
mod seen_tables;
mod setup;
mod slot;
mod slot_reader;
mod source;
mod standby;
mod table_coverage;
mod timeline;
mod tls;
mod transactions;
mod version;

pub use assembler::{Anomalies, MESSAGE_PREFIX};
pub use connection::{PostgresConnection, Purpose, QueryError, Row, ServerError};
pub use failover_slot::has_failover_slots;
pub use log::PostgresLog;
pub use lsn::Lsn;
pub use options::PostgresOptions;
pub use row_reading::read_rows;
pub use rule_check::check_rules;
pub use seen_tables::SeenTables;
pub use setup::{quote_literal, quote_name, rules_setup_sql, setup_sql};
pub use slot_reader::IsActive;
pub use source::PostgresSource;
