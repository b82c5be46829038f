//! One server: what it owes, whether it is read, who works it off.
//!
//! Here is what is known of it; [`super::segments`] is what this router keeps for it, and [`super::peer_fence`] what other routers do.
//!
//! No file is touched under the lock (the writer and the replayer do that), and nothing waits under it.

use super::ids::Owner;
use super::peer_fence::Hold;
use super::peers::Debt;
use super::storage::Disk;
use lookaside_client::Fence;
use lookaside_routing::Address;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Bytes that all servers together owe.
pub(super) type TotalBytes = AtomicU64;

/// One server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) address: Address,
    pub(super) folder: String,
    pub(super) fence: Fence,
    state: Mutex<State>,
    /// The writer has let go of a segment.
    pub(super) settled: Notify,
    /// Somebody cannot wait for the next attempt.
    hurried: Notify,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// The oldest first.
    pub(super) segments: VecDeque<Segment>,
    pub(super) next_number: u64,
    /// The segment that the writer is about to extend.
    pub(super) writing: Option<u64>,
    /// Whether there is a task that works it off.
    pub(super) is_replayed: bool,
    /// Routers that owe it something.
    pub(super) holds: BTreeMap<Owner, Hold>,
    /// The number of the message by which each released it last.
    pub(super) released: BTreeMap<Owner, u64>,
    /// Whether a configuration of this run names the server.
    pub(super) is_configured: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) bytes: u64,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Deletes {
        records: u64,
        is_closed: bool,
    },
    /// `is_durable`: a file says so, whatever happens. `is_begun`: the server may be about to forget.
    Forget {
        is_durable: bool,
        is_begun: bool,
    },
}

/// Where the writer puts something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Nowhere: all will be forgotten.
    Covered,
    /// Behind the `at` bytes of this segment; at 0 it is a new one.
    Segment { number: u64, at: u64 },
    /// A new segment that is one forget: what is owed has become too much.
    Forget { number: u64 },
}

/// What the replayer does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Send the records in the first `bytes` of this segment.
    Deletes { number: u64, bytes: u64 },
    /// Tell the server to forget.
    Forget { number: u64 },
    /// Wait until the writer has let go.
    Wait,
    /// Nothing is owed, and the fence is down unless others owe something; or no configuration names the server any more.
    Done,
}

/// What was found on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A segment with so many deletes.
    Deletes { records: u64, bytes: u64 },
    /// A segment whose content stands for all that came before; is it sure to be found so again?
    Forget { is_durable: bool, bytes: u64 },
}

/// How much a server owes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owed {
    /// Deletes that are kept.
    pub records: u64,
    /// Their bytes on disk.
    pub bytes: u64,
    /// Whether all that it holds is to be forgotten.
    pub forget: bool,
}

impl Owed {
    /// Whether the server may be read.
    pub fn is_nothing(&self) -> bool {
        self.records == 0 && !self.forget
    }
}

/// The name of a segment's file.
pub(super) fn file_name(number: u64) -> String {
    format!("{number:016}.deletes")
}

/// The number in a segment's name.
pub(super) fn file_number(name: &str) -> Option<u64> {
    name.strip_suffix(".deletes").filter(|digits| digits.len() == 16)?.parse().ok()
}

impl Server {
    pub(super) fn new(address: Address, folder: String, fence: Fence) -> Arc<Server> {
        let (settled, hurried) = (Notify::new(), Notify::new());
        Arc::new(Server { address, folder, fence, state: Mutex::default(), settled, hurried })
    }

    /// Nothing panics under the lock; if it did, the state is still whole.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether deletes go to the spool without asking the server.
    pub(super) fn is_fenced(&self) -> bool {
        self.fence.is_raised()
    }

    pub(super) fn owed(&self) -> Owed {
        let state = self.state();
        let mut owed = Owed::default();
        for segment in &state.segments {
            owed.bytes += segment.bytes;
            match segment.kind {
                Kind::Deletes { records, .. } => owed.records += records,
                Kind::Forget { .. } => owed.forget = true,
            }
        }
        owed
    }

    /// Whether no configuration of this run names it.
    pub(super) fn is_stranger(&self) -> bool {
        !self.state().is_configured
    }

    /// Whether nobody owes it anything.
    pub(super) fn is_free(&self) -> bool {
        let state = self.state();
        state.segments.is_empty() && state.holds.is_empty()
    }

    /// What peers are told of it.
    pub(super) fn debt(&self) -> Debt {
        let state = self.state();
        match (state.segments.is_empty(), state.is_configured) {
            (true, _) => Debt::Nothing,
            (false, true) => Debt::Owed,
            (false, false) => Debt::Abandoned,
        }
    }

    /// Takes up what was found on disk, before anybody is served.
    pub(super) fn find(&self, number: u64, found: Found, total: &TotalBytes) {
        let mut state = self.state();
        state.next_number = state.next_number.max(number + 1);
        let (bytes, kind) = match found {
            Found::Deletes { records, bytes } => (bytes, Kind::Deletes { records, is_closed: true }),
            Found::Forget { is_durable, bytes } => (bytes, Kind::Forget { is_durable, is_begun: false }),
        };
        state.segments.push_back(Segment { number, bytes, kind });
        total.fetch_add(bytes, Relaxed);
        self.fence.raise();
    }

    pub(super) fn lower_if_free(&self, state: &State) {
        if state.segments.is_empty() && state.holds.is_empty() {
            self.fence.lower();
        }
    }

    /// The number of the next segment.
    pub(super) fn skip_number(&self, number: u64) {
        let mut state = self.state();
        state.next_number = state.next_number.max(number + 1);
    }

    /// A configuration names the server. True if somebody must begin to work off what it owes.
    pub(super) fn configure(&self) -> bool {
        let mut state = self.state();
        state.is_configured = true;
        state.must_begin()
    }

    /// A new configuration does not name the server. What it owes waits, behind the fence.
    pub(super) fn unconfigure(&self) {
        self.state().is_configured = false;
        self.hurry();
    }

    /// Resolves when the writer has let go of a segment, perhaps before this was called.
    pub(super) async fn settled(&self) {
        self.settled.notified().await;
    }

    /// Makes the next attempt come at once.
    pub(super) fn hurry(&self) {
        self.hurried.notify_one();
    }

    /// Resolves when somebody cannot wait.
    pub(super) async fn hurried(&self) {
        self.hurried.notified().await;
    }

    /// Removes what is of no use. That a file stays is only a nuisance: it is sent once more after a restart.
    pub(super) fn remove(&self, disk: &dyn Disk, numbers: &[u64]) {
        for &number in numbers {
            if let Err(error) = disk.remove(&self.folder, &file_name(number)) {
                tracing::warn!(server = %self.address, %error, "a file of the spool that is done with stays");
            }
        }
    }
}

impl State {
    pub(super) fn must_begin(&mut self) -> bool {
        let begins = self.is_configured && !self.is_replayed && !self.segments.is_empty();
        self.is_replayed |= begins;
        begins
    }
}
