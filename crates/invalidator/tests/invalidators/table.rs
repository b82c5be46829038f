//! The table that invalidators share, over links and in a database with faults. It checks what they store.

use crate::fakes::{Cluster, Database, ms};
use lookaside_invalidator::election::{
    ElectionRecord, LockAttempt, LockSighting, RecordError, RecordStore, RecordVersion, SessionLock,
};
use lookaside_routing::BoxFuture;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::time::{Instant, sleep};

pub const CLUSTER: &str = "a";

/// What a broken database does not compare: a part of the expected version, or, where it tells whether a record is
/// stored, anything but the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    Nothing,
    Counter,
    Holder,
    State,
}

/// The locks of the database's sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locks {
    /// A lock ends with the session that holds it.
    EndWithSession,
    /// There are none.
    Missing,
    /// A lock ends a moment after it was taken, as if a proxy had closed a shared session that held it.
    Vanish,
}

/// How long a lock that vanishes is held: a renewal finds it, and another one follows.
const VANISHES_AFTER: Duration = Duration::from_millis(1_500);

/// The table, and what was found wrong.
pub struct Table {
    pub state: Mutex<TableState>,
    pub database: Arc<Database>,
    pub cluster: Arc<Cluster>,
    pub ignored: Ignored,
}

pub struct TableState {
    pub record: Option<ElectionRecord>,
    pub former_holders: BTreeSet<String>,
    pub is_away: bool,
    /// In how many of 100 accesses something goes wrong.
    pub failing_percent: u32,
    /// Statements that will be executed later.
    pub delayed: usize,
    pub locks: Locks,
    /// By lock: the session that took it, and when it ends; `None` while the session lives.
    held: BTreeMap<u64, (u64, Option<Instant>)>,
    /// By lock of a session: how often that session has beaten.
    beats: BTreeMap<u64, u64>,
    /// How many sessions there were; each has its number.
    sessions: u64,
    /// Sessions that have ended at the database, which their processes do not know yet.
    ended: BTreeSet<u64>,
    pub rng: fastrand::Rng,
    pub violation: Option<String>,
}

impl TableState {
    /// Ends all sessions, as a restart of the database does.
    pub fn end_sessions(&mut self) {
        self.held.clear();
        self.ended.extend(1..=self.sessions);
    }

    /// Ends the session that holds the lock which the record names, as an operator may, or a firewall.
    pub fn end_session_of_active(&mut self) {
        let lock = self.record.as_ref().and_then(|record| record.lock);
        if let Some((session, _)) = lock.and_then(|lock| self.held.remove(&lock.0)) {
            self.ended.insert(session);
        }
    }

    fn is_held(&self, lock: SessionLock) -> bool {
        self.held.get(&lock.0).is_some_and(|(_, ends_at)| ends_at.is_none_or(|at| Instant::now() < at))
    }
}

impl Table {
    pub fn new(rng: fastrand::Rng, ignored: Ignored) -> Arc<Table> {
        let database = Database::new();
        let cluster = Cluster::new(&database);
        let state = TableState {
            record: None,
            former_holders: BTreeSet::new(),
            is_away: false,
            failing_percent: 0,
            delayed: 0,
            locks: Locks::EndWithSession,
            held: BTreeMap::new(),
            beats: BTreeMap::new(),
            sessions: 0,
            ended: BTreeSet::new(),
            rng,
            violation: None,
        };
        Arc::new(Table { state: Mutex::new(state), database, cluster, ignored })
    }

    pub fn position(&self) -> usize {
        self.state().record.as_ref().map_or(0, position_of)
    }

    /// The database as an asynchronous replica has it that takes its place: without its newest commits, and with the
    /// record `record`.
    pub fn go_back(&self, record: Option<ElectionRecord>, commits: usize) {
        self.state().record = record;
        self.database.state().commits.truncate(commits);
    }

    /// One process's access.
    pub fn store(self: &Arc<Self>) -> Arc<dyn RecordStore> {
        self.store_over(&Arc::default())
    }

    /// The same, over a link that can be cut.
    pub fn store_over(self: &Arc<Self>, link: &Arc<Mutex<Link>>) -> Arc<dyn RecordStore> {
        Arc::new(FakeStore { table: self.clone(), link: link.clone(), session: Mutex::default() })
    }

    pub fn record(&self) -> Option<ElectionRecord> {
        self.state().record.clone()
    }

    pub fn state(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().expect("no panic while it is held")
    }

    pub fn execute(&self, expected: Option<&RecordVersion>, record: &ElectionRecord) -> bool {
        let mut state = self.state();
        let found = state.record.as_ref().map(|record| &record.version);
        let is_expected = match (found, expected, self.ignored) {
            (None, None, _) => true,
            (Some(found), Some(expected), Ignored::Nothing | Ignored::State) => found == expected,
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

    /// Executes a statement, and tells whether it has stored the record.
    fn store_record(&self, expected: Option<&RecordVersion>, record: &ElectionRecord) -> bool {
        let is_executed = self.execute(expected, record);
        let mut state = self.state();
        let found = state.record.as_ref().filter(|found| found.version == record.version);
        if let Some(found) = found.filter(|_| self.ignored == Ignored::State) {
            if found != record {
                let (holder, reported) = (&record.version.holder, position_of(record));
                let violation = format!("{holder} takes {reported} for stored, and {} is", position_of(found));
                state.violation.get_or_insert(violation);
            }
            return true;
        }
        is_executed
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

/// What a process's link to the database does. The database keeps a session whose link is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    #[default]
    Open,
    /// Nothing passes: an access that begins fails after two seconds.
    Swallows,
    /// An access fails at once.
    Refuses,
}

/// One process's access to the table.
struct FakeStore {
    table: Arc<Table>,
    link: Arc<Mutex<Link>>,
    /// `None` while there is no connection.
    session: Mutex<Option<FakeSession>>,
}

#[derive(Clone, Copy)]
struct FakeSession {
    number: u64,
    lock: Option<SessionLock>,
}

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
    /// Connects if that is necessary, and returns the session.
    fn session(&self, state: &mut TableState) -> FakeSession {
        *self.session.lock().expect("no panic while it is held").get_or_insert_with(|| {
            state.sessions += 1;
            FakeSession { number: state.sessions, lock: None }
        })
    }

    /// Closes the connection. While there are faults, the database may notice that late.
    fn disconnect(&self, state: &mut TableState) {
        let session = self.session.lock().expect("no panic while it is held").take();
        if let Some((_, ends_at)) = session.and_then(|session| state.held.get_mut(&session.lock?.0)) {
            let is_late = (state.is_away || state.failing_percent > 0) && state.rng.bool();
            *ends_at = Some(Instant::now() + if is_late { ms(state.rng.u64(0..8_000)) } else { ms(0) });
        }
    }

    async fn meet(&self) -> Fate {
        let link = *self.link.lock().expect("no panic while it is held");
        if link != Link::Open {
            sleep(ms(if link == Link::Swallows { 2_000 } else { 0 })).await;
            self.session.lock().expect("no panic while it is held").take();
            return Fate::Fails;
        }
        let fate = self.meet_fate().await;
        let state = &mut *self.table.state();
        let session = self.session(state);
        let fate = if state.ended.contains(&session.number) { Fate::Fails } else { fate };
        if !matches!(fate, Fate::Succeeds) {
            self.disconnect(state);
        }
        fate
    }

    async fn meet_fate(&self) -> Fate {
        let (latency, fate) = {
            let state = &mut *self.table.state();
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
                    let record = self.table.state().record.clone();
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
                    let is_replaced = self.table.store_record(expected, record);
                    sleep(ms(1)).await;
                    Ok(is_replaced)
                }
                Fate::Fails => Err(failure()),
                Fate::ReplyLost => {
                    self.table.execute(expected, record);
                    Err(failure())
                }
                Fate::Delayed(delay) => {
                    let (table, expected, record) = (self.table.clone(), expected.cloned(), record.clone());
                    self.table.state().delayed += 1;
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

    fn hold_lock(&self, number: u64) -> BoxFuture<'_, Result<LockAttempt, RecordError>> {
        Box::pin(async move {
            let Fate::Succeeds = self.meet().await else { return Err(failure()) };
            let state = &mut *self.table.state();
            if state.locks == Locks::Missing {
                return Ok(LockAttempt::Refused("there are no locks".into()));
            }
            let FakeSession { number: session, lock: known } = self.session(state);
            let lock = known.unwrap_or(SessionLock(number));
            if known.is_none() {
                let vanishes_at = (state.locks == Locks::Vanish).then_some(Instant::now() + VANISHES_AFTER);
                state.held.insert(number, (session, vanishes_at));
                let mut connected = self.session.lock().expect("no panic while it is held");
                connected.as_mut().expect("it is connected").lock = Some(lock);
            }
            match state.is_held(lock) {
                true => Ok(LockAttempt::Held(lock)),
                false => Ok(LockAttempt::Refused("it is gone".into())),
            }
        })
    }

    fn look_up_lock(&self, lock: SessionLock) -> BoxFuture<'_, Result<Option<LockSighting>, RecordError>> {
        Box::pin(async move {
            let Fate::Succeeds = self.meet().await else { return Err(failure()) };
            let state = &mut *self.table.state();
            let beat = 1 << (state.beats.get(&lock.0).unwrap_or(&0) % 8);
            Ok(Some(LockSighting { is_held: state.is_held(lock), beat, connection: self.session(state).number }))
        })
    }

    fn beat(&self) -> BoxFuture<'_, Result<bool, RecordError>> {
        Box::pin(async move {
            let Fate::Succeeds = self.meet().await else { return Err(failure()) };
            let state = &mut *self.table.state();
            let Some(lock) = self.session(state).lock else { return Ok(false) };
            *state.beats.entry(lock.0).or_default() += 1;
            Ok(true)
        })
    }
}

/// A process that ends closes its connections.
impl Drop for FakeStore {
    fn drop(&mut self) {
        if let Ok(mut state) = self.table.state.lock() {
            self.disconnect(&mut state);
        }
    }
}
