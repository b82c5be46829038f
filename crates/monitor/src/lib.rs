//! The monitor (§7.3 of the paper): samples deletes, and asks every cluster at intervals whether a value that is older
//! than the commit is still there.
//!
//! ```text
//! commit log -> one delete in N -> 1 s, 10 s, 1 min, 10 min, 1 h later: me KEY a -> routers or servers
//!                                       |                                             |
//!                                  state file, metrics  <---- verdict: old or not <---+
//! ```
//!
//! | module | |
//! |---|---|
//! | [`sampling`] | which deletes are asked about and when, what an answer means, and what was found: without sockets and clocks |
//! | [`asking`] | asks a cluster, by its routers or all of its servers |
//! | [`follow`] | reads the commit log, by a connection of its own |
//! | [`questions`] | asks a cluster what is due, and records the answers |
//! | [`state`] | the file that keeps counts and samples over restarts |
//! | [`observe`] | metrics, summary, and the figure |
//! | [`daemon`] | assembles them; [`options`] is its command line |
//!
//! The monitor is independent of the invalidator: it reads the log itself, so that it sees a delete that the
//! invalidator has lost ([ADR 019](../../../docs/adr/019-monitor.md)). It changes nothing: `me` neither fills nor
//! counts nor is an access.
#![forbid(unsafe_code)]

pub mod asking;
pub mod daemon;
pub mod follow;
pub mod observe;
pub mod options;
pub mod questions;
pub mod sampling;
pub mod state;
