//! The binlog of MariaDB and MySQL as a source.
//!
//! The source acts as a replica that stores nothing. It uses two connections: the log arrives event by event on one,
//! the gate queries the other.
//!
//! ```text
//! packet.rs -> event.rs, payload.rs, rows.rs, statement.rs -> assembler.rs -> source.rs -> commits
//!
//! log.rs                                  opens sources, and looks up the end of the log
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
//! unresolved.rs, counted_commits.rs       those that were prepared before reading began
//! ```
//!
//! Serves the delete path (§4.1 of the paper). Keys come from comments in statements, from rows of the outbox
//! table, and from rows of tables with a rule.
//!
//! No client library is used: none can request the text of statements from MariaDB (a flag of the dump command) or
//! decode its GTIDs, and none takes its connections from [`Network`](lookaside_client::Network). The part of the
//! protocol that is needed is small. Every read here is bounded and cannot panic.
//!
//! Not supported: logs without GTIDs.

mod assembler;
mod auth;
mod catalogue;
mod charset;
mod column_type;
mod connection;
mod counted_commits;
mod cursor;
mod event;
mod gate;
mod gtid;
mod log;
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
mod source;
mod statement;
mod statement_tokens;
mod succession;
mod table_metadata;
mod table_statement;
mod unresolved;
mod unsafe_setting;
mod visibility_target;
mod xa;

pub use assembler::KEYS_OF_COMMIT_MAX;
pub use connection::{MysqlConnection, Row, ServerError, text};
pub use log::MysqlLog;
pub use options::MysqlOptions;
pub use row_reading::read_rows;
pub use rule_check::{check_rules, check_settings};
pub use source::MysqlSource;
pub use table_statement::{ChangedTable, find_changed_tables};
pub use unsafe_setting::{UnsafeSetting, strip_acceptance};
pub use xa::KEYS_HELD_MAX;
