//! One cluster's pipeline: from the commit log to acknowledged deletes and a saved position (§4.1).
//!
//! ```text
//! LogReader (log, gate) -> PendingDeletes -> batches -> Delivery -> results -> PendingDeletes -> safe position -> disk
//! ```
//!
//! It runs as one future that drops all its work when it is dropped. Pipelines of different clusters share nothing but
//! the database.
//!
//! * A key that is not acknowledged is sent again, with growing delays, until it is. Other keys proceed meanwhile: keys
//!   in the retry queue use no capacity of [`Limits::keys_max`], and never all batches in flight. A commit that names
//!   such a key does not wait for its retry.
//! * [`PendingDeletes`](pending::PendingDeletes) is bounded. When it is full the reader waits, and the database's log
//!   keeps the rest.
//! * While no router of the cluster answers, no more than [`Limits::keys_max`] keys are held in all.
//! * No commit is accepted before the first position is on disk: after a crash the next start would begin at a later
//!   present.
//! * The saved position never passes a commit with a pending delete. After a crash, deletes are sent again: at least
//!   once.
//! * Batches adapt to the load: up to [`Options::batches_in_flight_max`] are in flight, and keys that arrive meanwhile
//!   share the next batch. Batches that a hung server holds up do not count (`batch_window`). A batch that is not full
//!   waits up to [`Options::linger_max`] while another one is unanswered (`linger`).
//!
//! **How late a delete may be.** From the moment at which readers see a commit, until its delete is sent to a server
//! that is healthy, while one other process of the cluster hangs or is dead:
//!
//! | the delete waits | at most | while what fails |
//! |---|---|---|
//! | to share a batch | [`Options::linger_max`], 1 ms | |
//! | for a place among the batches in flight | `batch_window::BATCH_SLOW_AFTER`, 10 ms | a server or gutter hangs |
//! | for an answer of the router, before another one is asked | [`delivery::HEDGE_DELAY`], 200 ms | a router hangs |
//! | for its router to accept a connection | nothing: another one is asked | a router is dead |
//! | for the retry of its key | nothing: it is sent by itself | a server, spare or gutter fails |
//! | in the router, for other deletes | nothing: they are routed side by side | a server or gutter hangs |
//!
//! So it waits some 11 ms for a server, and some 211 ms for a router. The second line needs a router that answers
//! before `batch_window::BATCHES_MAX` batches wait: those of 2.5 s with the defaults, which the router's server
//! timeout, a second, is far below. The sum does not contain [`Limits::retry_delay_max`]; only keys whose own server
//! fails wait for a retry, and keys of a cluster all of whose routers fail.

mod batch_window;
pub mod delivery;
mod linger;
mod log_reader;
pub mod pending;
pub mod positions;
mod retry_queue;
mod task;
mod waiting_routers;

pub use log_reader::{OnPositionLost, PipelineError};

use crate::{CommitLog, Start, WallClock, observe::stats::Statistics};
use delivery::Delivery;
use pending::Limits;
use positions::PositionStore;
use std::{sync::Arc, time::Duration};

/// Reading waits while the retry queue of a cluster holds this many keys.
pub const RETRY_QUEUE_KEYS_MAX: usize = 1_000_000;
/// Reading waits while the keys in the retry queue of a cluster have this many bytes.
pub const RETRY_QUEUE_BYTES_MAX: usize = 64 << 20;

/// How long keys wait for others to share a batch with, unless an option says otherwise.
pub const LINGER_MAX: Duration = Duration::from_millis(1);

/// Options of a pipeline.
#[derive(Clone, Debug)]
pub struct Options {
    /// The bounds of the pending deletes and of batches.
    pub limits: Limits,
    /// The most batches in flight.
    pub batches_in_flight_max: usize,
    /// The longest that keys wait for others to share a batch with, while another batch is unanswered.
    pub linger_max: Duration,
    /// About the most keys of one read; each read costs one call of the gate.
    pub read_keys_max: usize,
    /// The position is saved this long after it moved, so that a busy log costs a few writes a second.
    pub save_every: Duration,
    /// Where to start when no position has been saved.
    pub start: Start,
    /// The reaction to a log that no longer reaches back to the position.
    pub on_position_lost: OnPositionLost,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            limits: Limits {
                keys_max: 32_768,
                retry_queue_keys_max: RETRY_QUEUE_KEYS_MAX,
                retry_queue_bytes_max: RETRY_QUEUE_BYTES_MAX,
                batch_keys_max: 1_000,
                batch_bytes_max: 65_536,
                retry_delay_min: Duration::from_millis(10),
                retry_delay_max: Duration::from_secs(1),
            },
            batches_in_flight_max: 4,
            linger_max: LINGER_MAX,
            read_keys_max: 4_096,
            save_every: Duration::from_millis(100),
            start: Start::Now,
            on_position_lost: OnPositionLost::Stop,
        }
    }
}

/// A pipeline and everything that it uses.
pub struct Pipeline {
    /// The commit log.
    pub log: Arc<dyn CommitLog>,
    /// Delivers deletes to the cluster.
    pub delivery: Arc<dyn Delivery>,
    /// Stores the position.
    pub positions: Arc<dyn PositionStore>,
    /// The statistics of the daemon.
    pub statistics: Arc<Statistics>,
    /// The index of this pipeline's cluster in the statistics.
    pub cluster: usize,
    /// The time of day.
    pub wall_clock: WallClock,
    /// The options.
    pub options: Options,
}
