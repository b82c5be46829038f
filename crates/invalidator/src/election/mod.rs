//! Which of several invalidators of one database is active, and the positions that they share (ADR 015).
//!
//! ```text
//! active:  every second     record {me, 17, positions}  ->  {me, 18, newer positions}     replaced if it is still {me, 17}
//! standby: reads it;        {other, 18, positions} unchanged for 3 s  ->  {me, 19, positions}   if it is still {other, 18}
//!                           or: the session that stored {other, 18} has ended  ->  the same, at once
//!                           or: it has not beaten for 500 ms  ->  the same
//! ```
//!
//! There is one record, a row of a table. It has the holder, a counter and the positions of all clusters (and, with
//! PostgreSQL, digests of what was seen of tables with a rule), and is replaced as a whole, by a statement that demands
//! the former holder and counter. So saving positions and being active are one operation: an invalidator that is no
//! longer active cannot save.
//!
//! Invariants:
//! * A record replaces the one that was read, and no other. The holder is a new name each time that an invalidator
//!   becomes active, so no record occurs twice, and a statement that a dead connection delivers late changes nothing.
//! * A saved position is one that all deletes up to it were acknowledged at, by this active invalidator or by the one
//!   whose record it replaced.
//! * No lock decides: an invalidator that hangs, or is cut off, stops renewing, and that is all it takes. A lock of the
//!   session that renews shows only sooner that it has ended (`session_lock`), and others that it takes in turn, that
//!   its process lives (`heartbeat`).
//! * Two may deliver for a moment: one that hung and resumes has not read the record yet. Deletes are idempotent; it
//!   saves nothing, and steps down at its next renewal.
//! * An active invalidator that cannot reach the record delivers, and saves nothing.
//! * A record that goes back shows that the database has lost commits. If its holder does not renew it, those that it
//!   had read may be among them: the standby that replaces it marks the position of each cluster as lost.
//! * One write a second at most, however busy the database is: the write is itself a commit, which moves the positions.
//!
//! | file | |
//! |---|---|
//! | `record.rs` | the record, and the interface of what stores it |
//! | `standby.rs` | a standby: waits until it is active |
//! | `seen_record.rs` | what a standby has seen of the record, and whether that went back |
//! | `member_options.rs` | options that all of them should have |
//! | `session_lock.rs`, `own_lock.rs` | the lock by which a standby sees that the active one's session has ended |
//! | `heartbeat.rs` | the locks by which a standby sees that the active one hangs |
//! | `term.rs` | the time that an invalidator is active: renewals, saves, the end |
//! | `shared_positions.rs` | saves of a pipeline, marks of the spool, and what was seen of tables, as parts of the next renewal |
//! | `mysql.rs`, `postgres.rs`, `kept_connection.rs` | the record in a table |
//! | `location.rs` | `--shared-state` |

mod heartbeat;
mod kept_connection;
mod location;
mod member_options;
mod mysql;
mod own_lock;
mod postgres;
mod record;
mod seen_record;
mod session_lock;
mod shared_positions;
mod standby;
mod term;

pub use location::StateLocation;
pub use member_options::{CurrentOptions, MemberOptions};
pub use record::{ElectionRecord, RecordError, RecordStore, RecordVersion, SharedState, TABLE};
pub use session_lock::{LockAttempt, LockSighting, SessionLock};
pub use shared_positions::{SharedMarks, SharedPositions, SharedTables};
pub use standby::Standby;
pub use term::Term;
