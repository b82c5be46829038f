//! An upgrade without a pause that clients would notice: a new process takes over what the running one listens on, its
//! connections and its region (§6.4 of the paper keeps the items; the rest is what nobody has to reconnect for). What the two
//! say to each other, and who may serve whatever dies in between: `lookaside_upgrade`.
//!
//! ```text
//!   new process                             running process
//!     Hello                          ->
//!     opens what is new, reads keys,        lets its mapping of the region go, which
//!     makes what threads need               takes long, bit by bit (Store::loosen)
//!     Ready                          ->     every worker answers what it has read, and ends
//!                                    <-     Connection, Connection, ...
//!                                           saves the region and lets it go
//!     takes the region up, reads only <-    Quiet
//!     Taken                          ->     closes what could not be handed over, ends
//! ```
//!
//! The new process has written nothing to the region before `Taken`: a region that it was killed over is as clean as it was
//! saved. (One that it cannot take up it has replaced; nothing is kept then.) Every delete that the old process has
//! acknowledged is in what it saves: its workers have ended by then.
//!
//! | connection | is |
//! |---|---|
//! | TCP or Unix, between requests, in the middle of one, or slow to read | handed over |
//! | TLS: its keys are in rustls | closed after its last reply |
//! | in the middle of a walk over all keys; with more than 4 MiB that its client does not read | closed |
//! | watching; at the metrics' port | closed |
//!
//! Here is [`farewell`], the end of those that are closed.

use lookaside_upgrade::Program;

/// Who can take over from each other. The format also counts what is said of connections.
pub(crate) const PROGRAM: Program = Program { name: "lookaside-server", format: 1 };
