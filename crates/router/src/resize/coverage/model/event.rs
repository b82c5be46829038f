//! What happens in the model, each at its time.

use super::*;
use crate::resize::history::History;

#[derive(Clone, Debug)]
pub(super) enum Event {
    Write,
    Read,
    /// A batch of `router` arrives at a server.
    Delete {
        op: usize,
        server: usize,
    },
    Get {
        batch: Batch,
        server: usize,
        key: usize,
        floor: u64,
        former: Option<usize>,
    },
    GetFormer {
        batch: Batch,
        former: usize,
        new: usize,
        key: usize,
        floor: u64,
    },
    Copy {
        copying: Copying,
    },
    StoreCopy {
        copying: Copying,
        version: u64,
    },
    QueryDatabase {
        router: usize,
        server: usize,
        key: usize,
        token: u64,
    },
    Fill {
        router: usize,
        server: usize,
        key: usize,
        token: u64,
        version: u64,
    },
    StoreFill {
        batch: Batch,
        server: usize,
        key: usize,
        token: u64,
        version: u64,
    },
    Swap {
        router: usize,
        run: u64,
        thread: usize,
    },
    Poll {
        router: usize,
        run: u64,
    },
    PollArrives {
        router: usize,
        run: u64,
        peer: usize,
        polled_at: u64,
    },
    Report {
        router: usize,
        run: u64,
        peer: usize,
        polled_at: u64,
        report: CoverageReport,
    },
    Source {
        router: usize,
        config: usize,
    },
    Fetched {
        router: usize,
        run: u64,
        config: usize,
    },
    Empty {
        router: usize,
        run: u64,
        config: ConfigId,
        server: usize,
        emptying: Emptying,
    },
    Emptied {
        router: usize,
        run: u64,
        config: ConfigId,
        server: usize,
    },
    NotEmpty {
        router: usize,
        run: u64,
        config: ConfigId,
        server: usize,
    },
    RetryEmpty {
        router: usize,
        run: u64,
        config: ConfigId,
        server: usize,
    },
    /// The operator has read that servers of a configuration hold items.
    Decide {
        config: usize,
    },
    PurgeKey {
        router: usize,
        run: u64,
        purge: Purge,
        active: Vec<ConfigId>,
        key: usize,
    },
    Crash {
        router: usize,
    },
    Restart {
        router: usize,
    },
    /// All routers crash, and their disks are lost.
    LoseMemory,
    ReplaceHistory {
        router: usize,
        run: u64,
        request: u64,
        /// A revision that the history never has, for a read.
        expected: i64,
        next: History,
    },
    HistoryReply {
        router: usize,
        run: u64,
        request: u64,
        /// `None` if there was none in time.
        seen: Option<(i64, History)>,
    },
}
