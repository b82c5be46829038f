//! Several invalidators of one database, with faults by a seed: processes hang and are killed at any moment, the database
//! goes away, replies are lost, and statements of connections that are given up are executed seconds later.
//!
//! At each record that is stored:
//! * its holder has not been replaced before: never do two renew;
//! * no position passes a commit with a delete that no cluster has acknowledged;
//! * no position is before the one that it replaces.
//!
//! Within 5 s after the last fault one is active, and in the end every commit is deleted and the position is at the end.

mod fakes;

use fakes::{Cluster, Database, FakeLog, ms, wall_clock};
use lookaside_client::{GatedTask, TaskGate};
use lookaside_invalidator::{
    Start,
    election::{ElectionRecord, RecordError, RecordStore, RecordVersion, SharedPositions, Standby},
    observe::stats::Statistics,
    pipeline::{Options, Pipeline, positions::PositionFile},
};
use lookaside_routing::BoxFuture;
use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};

const CLUSTER: &str = "a";
const FAULTS_FOR: Duration = Duration::from_secs(60);
const ACTIVE_WITHIN: Duration = Duration::from_secs(5);

/// Which part of the expected version a broken database does not compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ignored {
    Nothing,
    Counter,
    Holder,
}

/// The table, and what was found wrong.
struct Table {
    state: Mutex<TableState>,
    database: Arc<Database>,
    cluster: Arc<Cluster>,
    ignored: Ignored,
}

struct TableState {
    record: Option<ElectionRecord>,
    former_holders: BTreeSet<String>,
    is_away: bool,
    /// In how many of 100 accesses something goes wrong.
    failing_percent: u32,
    /// Statements that will be executed later.
    delayed: usize,
    rng: fastrand::Rng,
    violation: Option<String>,
}

impl Table {
    fn new(rng: fastrand::Rng, ignored: Ignored) -> Arc<Table> {
        let database = Database::new();
        let cluster = Cluster::new(&database);
        let state = TableState {
            record: None,
            former_holders: BTreeSet::new(),
            is_away: false,
            failing_percent: 0,
            delayed: 0,
            rng,
            violation: None,
        };
        Arc::new(Table { state: Mutex::new(state), database, cluster, ignored })
    }

    fn position(&self) -> usize {
        self.state().record.as_ref().map_or(0, position_of)
    }

    fn state(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().expect("no panic while it is held")
    }

    fn execute(&self, expected: Option<&RecordVersion>, record: &ElectionRecord) -> bool {
        let mut state = self.state();
        let found = state.record.as_ref().map(|record| &record.version);
        let is_expected = match (found, expected, self.ignored) {
            (None, None, _) => true,
            (Some(found), Some(expected), Ignored::Nothing) => found == expected,
            (Some(found), Some(expected), Ignored::Counter) => found.holder == expected.holder,
            (Some(found), Some(expected), Ignored::Holder) => found.counter >= expected.counter,
            _ => false,
        };
        if is_expected {
            if let Err(violation) = self.check(&state, record) {
                state.violation.get_or_insert(violation);
            }
            let former = state.record.replace(record.clone());
            let former = former.map(|former| former.version.holder);
            state.former_holders.extend(former.filter(|former| *former != record.version.holder && !former.is_empty()));
        }
        is_expected
    }

    fn check(&self, state: &TableState, record: &ElectionRecord) -> Result<(), String> {
        let holder = &record.version.holder;
        if state.former_holders.contains(holder) {
            return Err(format!("{holder} renewed after it was replaced"));
        }
        let position = position_of(record);
        let before = state.record.as_ref().map_or(0, position_of);
        if position < before {
            return Err(format!("{holder} moved the position back from {before} to {position}"));
        }
        let (database, cluster) = (self.database.state(), self.cluster.state());
        for (number, commit) in database.commits.iter().enumerate().take(position).skip(before) {
            for key in &commit.keys {
                if !cluster.deleted.iter().any(|(deleted, at)| deleted == key && *at >= commit.visible_at) {
                    return Err(format!(
                        "{holder} saved {position}, and {key} of commit {} was not deleted",
                        number + 1
                    ));
                }
            }
        }
        Ok(())
    }
}

fn position_of(record: &ElectionRecord) -> usize {
    record.state.positions.get(CLUSTER).map_or(0, |saved| saved.position.0.parse().expect("a number"))
}

/// One process's access to the table.
struct FakeStore(Arc<Table>);

/// What happens to one access.
enum Fate {
    Succeeds,
    Fails,
    /// The statement is executed, and its reply is lost.
    ReplyLost,
    /// The statement is executed after this time, when its connection was given up.
    Delayed(Duration),
}

impl FakeStore {
    async fn meet(&self) -> Fate {
        let (latency, fate) = {
            let state = &mut *self.0.state();
            let rng = &mut state.rng;
            let fails = state.failing_percent > 0 && rng.u32(0..100) < state.failing_percent;
            let latency = if fails { ms(rng.u64(0..2_000)) } else { ms(rng.u64(0..20)) };
            let fate = match (state.is_away, fails, rng.u32(0..3)) {
                (true, _, 0) | (false, true, 0) => Fate::Delayed(ms(rng.u64(0..8_000))),
                (true, _, _) | (false, true, 1) => Fate::Fails,
                (false, true, _) => Fate::ReplyLost,
                (false, false, _) => Fate::Succeeds,
            };
            (latency, fate)
        };
        sleep(latency).await;
        fate
    }
}

fn failure() -> RecordError {
    RecordError("scripted failure".into())
}

impl RecordStore for FakeStore {
    fn read(&self) -> BoxFuture<'_, Result<Option<ElectionRecord>, RecordError>> {
        Box::pin(async {
            match self.meet().await {
                Fate::Succeeds => {
                    let record = self.0.state().record.clone();
                    // The reply is under way for a moment.
                    sleep(ms(1)).await;
                    Ok(record)
                }
                _ => Err(failure()),
            }
        })
    }

    fn replace<'a>(
        &'a self,
        expected: Option<&'a RecordVersion>,
        record: &'a ElectionRecord,
    ) -> BoxFuture<'a, Result<bool, RecordError>> {
        Box::pin(async move {
            match self.meet().await {
                Fate::Succeeds => {
                    let is_replaced = self.0.execute(expected, record);
                    sleep(ms(1)).await;
                    Ok(is_replaced)
                }
                Fate::Fails => Err(failure()),
                Fate::ReplyLost => {
                    self.0.execute(expected, record);
                    Err(failure())
                }
                Fate::Delayed(delay) => {
                    let (table, expected, record) = (self.0.clone(), expected.cloned(), record.clone());
                    self.0.state().delayed += 1;
                    // The database executes it, whatever becomes of the process.
                    tokio::spawn(async move {
                        sleep(delay).await;
                        table.execute(expected.as_ref(), &record);
                        table.state().delayed -= 1;
                    });
                    Err(failure())
                }
            }
        })
    }
}

/// A process that can hang.
#[derive(Default)]
struct Gate {
    is_hung: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl Gate {
    fn set_hung(&self, is_hung: bool) {
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
struct Node {
    name: String,
    gate: Arc<Gate>,
    tasks: JoinSet<()>,
    statistics: Arc<Statistics>,
}

static RANDOM: AtomicU64 = AtomicU64::new(0);

impl Node {
    fn new(name: &str) -> Node {
        Node { name: name.into(), gate: Arc::default(), tasks: JoinSet::new(), statistics: Statistics::new([CLUSTER]) }
    }

    /// Starts the process, as the daemon does.
    fn start(&mut self, table: &Arc<Table>) {
        self.gate = Arc::default();
        self.statistics = Statistics::new([CLUSTER]);
        self.statistics.election.enable();
        let (table, statistics, name) = (table.clone(), self.statistics.clone(), self.name.clone());
        let run = async move {
            let random = || RANDOM.fetch_add(1, Relaxed);
            let store = Arc::new(FakeStore(table.clone()));
            let standby = Standby::new(store, name, statistics.election.clone(), random);
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
                    options: Options { start: Start::Earliest, ..Options::default() },
                };
                tokio::select! {
                    () = term.hold() => {}
                    ended = pipeline.run(shutdown) => panic!("the pipeline ended: {ended:?}"),
                }
            }
        };
        self.tasks.spawn(GatedTask::new(self.gate.clone(), run));
    }

    /// Ends its hang, or starts it again.
    fn resume(&mut self, table: &Arc<Table>) {
        match self.is_running() {
            true => self.gate.set_hung(false),
            false => self.start(table),
        }
    }

    async fn kill(&mut self) {
        // An aborted task that hangs would not be polled.
        self.gate.set_hung(false);
        self.tasks.shutdown().await;
    }

    fn is_running(&self) -> bool {
        !self.tasks.is_empty()
    }

    fn is_active(&self) -> bool {
        self.is_running() && self.statistics.election.is_active()
    }
}

/// What can fail, and until when it does.
struct Faults {
    table: Arc<Table>,
    nodes: Vec<Node>,
    rng: fastrand::Rng,
    /// When each node resumes or is started again; `None` while it runs.
    node_back: Vec<Option<Instant>>,
    /// `None` while the database runs.
    database_back: Option<Instant>,
}

impl Faults {
    fn new(seed: u64, ignored: Ignored) -> Faults {
        let mut rng = fastrand::Rng::with_seed(seed);
        let table = Table::new(rng.fork(), ignored);
        let names = &["one", "two", "three"][..rng.usize(2..=3)];
        let mut nodes: Vec<Node> = names.iter().map(|name| Node::new(name)).collect();
        nodes.iter_mut().for_each(|node| node.start(&table));
        Faults { table, node_back: vec![None; nodes.len()], nodes, rng, database_back: None }
    }

    /// Lets something fail, or ends that.
    async fn step(&mut self) {
        let (rng, now) = (&mut self.rng, Instant::now());
        for (node, back) in self.nodes.iter_mut().zip(&mut self.node_back) {
            match back {
                None if rng.u32(0..100) == 0 => {
                    *back = Some(now + ms(rng.u64(0..8_000)));
                    if rng.bool() { node.kill().await } else { node.gate.set_hung(true) }
                }
                Some(at) if *at <= now => {
                    *back = None;
                    node.resume(&self.table);
                }
                _ => {}
            }
        }
        match self.database_back {
            None if rng.u32(0..200) == 0 => self.database_back = Some(now + ms(rng.u64(0..6_000))),
            Some(at) if at <= now => self.database_back = None,
            _ => {}
        }
        let failing_percent = if rng.u32(0..4) == 0 { rng.u32(0..60) } else { 0 };
        let cluster_percent = rng.u32(0..20);
        self.set(self.database_back.is_some(), failing_percent, cluster_percent);
    }

    fn set(&self, is_away: bool, failing_percent: u32, cluster_percent: u32) {
        let mut state = self.table.state();
        (state.is_away, state.failing_percent) = (is_away, failing_percent);
        self.table.database.state().failing_percent = if is_away { 100 } else { 0 };
        self.table.cluster.state().failing_percent = cluster_percent;
    }

    /// Ends all of them.
    async fn end(&mut self) {
        self.set(false, 0, 0);
        while self.table.state().delayed > 0 {
            sleep(ms(1)).await;
        }
        self.nodes.iter_mut().for_each(|node| node.resume(&self.table));
    }

    fn active(&self) -> usize {
        self.nodes.iter().filter(|node| node.is_active()).count()
    }
}

/// One run. Returns how many takeovers there were, or what was found wrong.
async fn run(seed: u64, ignored: Ignored) -> Result<usize, String> {
    let mut faults = Faults::new(seed, ignored);
    let (table, faults_end) = (faults.table.clone(), Instant::now() + FAULTS_FOR);
    let mut commits = 0;
    while Instant::now() < faults_end {
        let (pause, hidden_for) = (ms(faults.rng.u64(1..100)), ms(faults.rng.u64(0..5)));
        sleep(pause).await;
        table.database.commit(&[&format!("key:{commits}")], hidden_for);
        commits += 1;
        faults.step().await;
    }
    faults.end().await;
    let faults_ended = Instant::now();
    while faults.active() == 0 {
        if faults_ended.elapsed() > ACTIVE_WITHIN {
            return Err("none is active".into());
        }
        sleep(ms(10)).await;
    }
    table.database.commit(&["last"], ms(1));
    let end = table.database.state().commits.len();
    while table.position() != end {
        if faults_ended.elapsed() > ACTIVE_WITHIN * 4 {
            return Err(format!("the position stays at {} of {end}", table.position()));
        }
        sleep(ms(10)).await;
    }
    if faults.active() != 1 {
        return Err("two stay active".into());
    }
    let mut state = table.state();
    match state.violation.take() {
        Some(violation) => Err(violation),
        None => Ok(state.former_holders.len()),
    }
}

fn run_seed(seed: u64, ignored: Ignored) -> Result<usize, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(run(seed, ignored))
}

fn seeds() -> u64 {
    std::env::var("LOOKASIDE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(40)
}

#[test]
fn one_renews_and_no_delete_is_lost_whatever_fails() {
    let mut takeovers = 0;
    for seed in 0..seeds() {
        takeovers += run_seed(seed, Ignored::Nothing).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
    assert!(takeovers as u64 > 2 * seeds(), "{takeovers} takeovers");
}

/// The checks find what goes wrong when a statement replaces a record that it does not know.
#[test]
fn statements_that_demand_less_are_found() {
    for (ignored, expected) in [(Ignored::Counter, "moved the position back"), (Ignored::Holder, "was replaced")] {
        let mut found = (0..100).filter_map(|seed| run_seed(seed, ignored).err());
        assert!(found.any(|found| found.contains(expected)), "{ignored:?}: not found");
    }
}

/// The time that a standby needs, by the moment of the death.
#[tokio::test(start_paused = true)]
async fn a_standby_is_active_soon_after_a_death() {
    for killed_after in [0, 300, 600, 900] {
        let table = Table::new(fastrand::Rng::with_seed(1), Ignored::Nothing);
        let [mut one, mut two] = [Node::new("one"), Node::new("two")];
        one.start(&table);
        fakes::until("it is active", || one.is_active()).await;
        two.start(&table);
        sleep(Duration::from_secs(2) + ms(killed_after)).await;
        assert!(!two.is_active());
        one.kill().await;
        let killed_at = Instant::now();
        fakes::until("the standby is active", || two.is_active()).await;
        let took = killed_at.elapsed();
        assert!((ms(1_900)..=ms(3_500)).contains(&took), "{took:?}");
    }
}
