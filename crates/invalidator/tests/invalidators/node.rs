//! An invalidator, which can hang and be killed.

use super::table::{CLUSTER, Link, Table};
use crate::fakes::{FakeLog, wall_clock};
use lookaside_client::{GatedTask, TaskGate};
use lookaside_invalidator::{
    Start,
    election::{SharedPositions, Standby},
    observe::stats::Statistics,
    pipeline::{OnPositionLost, Options, Pipeline, positions::PositionFile},
};
use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};
use tokio::{sync::watch, task::JoinSet};

/// A process that can hang.
#[derive(Default)]
pub struct Gate {
    is_hung: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl Gate {
    pub fn set_hung(&self, is_hung: bool) {
        self.is_hung.store(is_hung, Relaxed);
        if !is_hung {
            self.waiting.lock().expect("no panic").drain(..).for_each(Waker::wake);
        }
    }
}

impl TaskGate for Gate {
    fn poll_running(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_hung.load(Relaxed) {
            return Poll::Ready(());
        }
        self.waiting.lock().expect("no panic").push(cx.waker().clone());
        Poll::Pending
    }
}

/// One invalidator.
pub struct Node {
    pub name: String,
    pub gate: Arc<Gate>,
    pub link: Arc<Mutex<Link>>,
    pub tasks: JoinSet<()>,
    pub statistics: Arc<Statistics>,
    pub on_position_lost: OnPositionLost,
}

static RANDOM: AtomicU64 = AtomicU64::new(0);

impl Node {
    pub fn new(name: &str) -> Node {
        Node {
            name: name.into(),
            gate: Arc::default(),
            link: Arc::default(),
            tasks: JoinSet::new(),
            statistics: Statistics::new([CLUSTER]),
            on_position_lost: OnPositionLost::Stop,
        }
    }

    /// Starts the process, as the daemon does.
    pub fn start(&mut self, table: &Arc<Table>) {
        self.gate = Arc::default();
        self.statistics = Statistics::new([CLUSTER]);
        self.statistics.election.enable();
        let (table, statistics, name) = (table.clone(), self.statistics.clone(), self.name.clone());
        let (on_position_lost, link) = (self.on_position_lost, self.link.clone());
        let run = async move {
            let random = || RANDOM.fetch_add(1, Relaxed);
            let standby = Standby::new(table.store_over(&link), name, statistics.election.clone(), random);
            loop {
                let term = standby.wait_until_active().await;
                let file = PositionFile::new(Path::new("/nonexistent"), CLUSTER);
                let (_shutdown, shutdown) = watch::channel(false);
                let pipeline = Pipeline {
                    log: Arc::new(FakeLog(table.database.clone())),
                    delivery: table.cluster.clone(),
                    positions: Arc::new(SharedPositions::new(term.clone(), CLUSTER, file)),
                    statistics: statistics.clone(),
                    cluster: 0,
                    wall_clock: wall_clock(),
                    options: Options { start: Start::Earliest, on_position_lost, ..Options::default() },
                };
                tokio::select! {
                    () = term.hold() => {}
                    ended = pipeline.run(shutdown) => panic!("the pipeline ended: {ended:?}"),
                }
            }
        };
        self.tasks.spawn(GatedTask::new(self.gate.clone(), run));
    }

    /// Cuts its link to the database, or mends it.
    pub fn set_link(&self, link: Link) {
        *self.link.lock().expect("no panic while it is held") = link;
    }

    /// Ends its hang, or starts it again.
    pub fn resume(&mut self, table: &Arc<Table>) {
        match self.is_running() {
            true => self.gate.set_hung(false),
            false => self.start(table),
        }
    }

    pub async fn kill(&mut self) {
        // An aborted task that hangs would not be polled.
        self.gate.set_hung(false);
        self.tasks.shutdown().await;
    }

    pub fn is_running(&self) -> bool {
        !self.tasks.is_empty()
    }

    pub fn is_active(&self) -> bool {
        self.is_running() && self.statistics.election.is_active()
    }
}
