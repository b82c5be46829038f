//! The state of the model, and the steps that lead from it to others.

use super::super::{
    exchange::Exchange,
    load::ReadFrom,
    marking::Marking,
    names::{MarkerNames, Token},
    search::{Found, MarkerSearch},
    settings::{MarkerForm, MarkerSettings},
};
use bytes::Bytes;
use lookaside_protocol::{Cas, Operation, Reply, Request, StoreMode};
use lookaside_routing::{Failure, Outcome};
use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hasher},
};

const KEY: &[u8] = b"k";

/// A version of the key's row: the number of commits that it includes.
type Version = usize;

#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    /// Each delete of a marker may come twice.
    pub repeats_deletes: bool,
    /// Each request to the pool may fail, executed or not.
    pub pool_fails: bool,
    /// The pool may lose all its items, once.
    pub pool_restarts: bool,
    /// Where a miss is read if a search fails.
    pub when_unknown: ReadFrom,
    /// The requests of a batch to the pool are executed from the last to the first.
    pub is_last_first: bool,
}

pub(super) const NO_FAULTS: Faults = Faults {
    repeats_deletes: false,
    pool_fails: false,
    pool_restarts: false,
    when_unknown: ReadFrom::Master,
    is_last_first: false,
};

#[derive(Clone, Debug)]
pub(super) struct World {
    form: MarkerForm,
    faults: Faults,
    /// The keys that each commit of the master names.
    log: Vec<[Bytes; 2]>,
    /// Commits that the replica has.
    applied: Version,
    /// Deletes of the invalidator that may come, and how often.
    deletes: Vec<(Bytes, u8)>,
    pool: BTreeMap<Bytes, Bytes>,
    /// The markers that were in the pool when that of every token was set last, which outlives them.
    outlived: Vec<Bytes>,
    cached: Option<Version>,
    /// The user that holds the lease.
    lease: Option<usize>,
    users: Vec<User>,
}

#[derive(Clone, Debug)]
pub(super) struct User {
    pub step: UserStep,
    /// Its own write; 0 if it only reads.
    pub written: Version,
    /// Whether it reads after its write.
    pub reads: bool,
    pub order: Order,
}

/// When a reader looks for markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    LeaseFirst,
    /// As if both travelled in one batch, and the pool were faster.
    MarkersFirst,
    /// Without a lease: it reads past the cache. A writer does so before its local delete.
    PastCache,
}

#[derive(Clone, Debug)]
pub(super) enum UserStep {
    Mark(Running<Marking>),
    Commit(Marking),
    DeleteLocally,
    LeaseGet(Option<ReadFrom>),
    /// `None`: the lease comes after the search.
    Search(Running<MarkerSearch>, Option<bool>),
    Load {
        from: ReadFrom,
        is_holder: bool,
    },
    Fill(Version),
    Ended,
}

/// An exchange, and the outcomes of those of its requests that were executed.
#[derive(Clone, Debug)]
pub(super) struct Running<M> {
    machine: M,
    outcomes: Vec<Option<Outcome>>,
}

impl<M: Exchange> Running<M> {
    pub fn new(machine: M) -> Running<M> {
        let outcomes = vec![None; machine.requests().len()];
        Running { machine, outcomes }
    }

    /// The request of the batch that is executed next: the first, or the last.
    fn next_request(&self, is_last_first: bool) -> (usize, Request<Bytes>) {
        let requests = self.machine.requests().into_iter().enumerate();
        let mut waiting = requests.filter(|&(at, _)| self.outcomes[at].is_none());
        let next = if is_last_first { waiting.last() } else { waiting.next() };
        next.expect("the exchange is not over")
    }

    /// Returns whether the exchange is over.
    fn record(&mut self, at: usize, outcome: Outcome) -> bool {
        self.outcomes[at] = Some(outcome);
        if self.outcomes.iter().all(Option::is_some) {
            let outcomes = std::mem::take(&mut self.outcomes);
            self.machine.receive(outcomes.into_iter().flatten().collect());
            self.outcomes = vec![None; self.machine.requests().len()];
        }
        self.outcomes.is_empty()
    }
}

/// A user has read this version, which is older than its own write.
pub(super) struct Stale(pub Version);

type Successors = Vec<(String, Result<World, Stale>)>;

impl World {
    pub fn new(form: MarkerForm, faults: Faults, users: Vec<User>) -> World {
        World {
            form,
            faults,
            log: Vec::new(),
            applied: 0,
            deletes: Vec::new(),
            pool: BTreeMap::new(),
            outlived: Vec::new(),
            cached: None,
            lease: None,
            users,
        }
    }

    pub fn successors(&self) -> Successors {
        let mut all = Vec::new();
        (0..self.users.len()).for_each(|user| self.add_user_steps(user, &mut all));
        let mut add = |label: String, change: &dyn Fn(&mut World)| {
            let mut world = self.clone();
            change(&mut world);
            all.push((label, Ok(world)));
        };
        if self.applied < self.log.len() {
            add(format!("the replica applies commit {}", self.applied + 1), &|world| {
                let times = |key: &Bytes| 1 + u8::from(world.faults.repeats_deletes && key != KEY);
                let deletes: Vec<_> = world.log[world.applied].iter().map(|key| (key.clone(), times(key))).collect();
                world.deletes.extend(deletes);
                world.applied += 1;
            });
        }
        for (at, (key, _)) in self.deletes.iter().enumerate() {
            add(format!("the invalidator deletes {key:?}"), &|world| {
                world.delete(key);
                world.deletes[at].1 -= 1;
                world.deletes.retain(|&(_, times)| times > 0);
            });
        }
        if self.pool.contains_key(&every_marker()) && self.outlived.iter().all(|marker| self.is_applied(marker)) {
            add("the marker of every token expires".into(), &|world| {
                world.pool.remove(&every_marker());
            });
        }
        if self.faults.pool_restarts && !self.pool.is_empty() {
            add("the pool restarts empty".into(), &|world| {
                world.pool.clear();
                world.faults.pool_restarts = false;
            });
        }
        all
    }

    /// Whether the replica has the write of a marker. A marker lives until then at least: replication lags by less than
    /// that.
    fn is_applied(&self, marker: &Bytes) -> bool {
        self.log[..self.applied].iter().any(|[_, named]| named == marker)
    }

    fn add_user_steps(&self, user: usize, all: &mut Successors) {
        let mut add = |label: String, step: Result<World, Stale>| all.push((format!("user {user} {label}"), step));
        match &self.users[user].step {
            UserStep::Mark(running) => {
                let (at, request) = running.next_request(self.faults.is_last_first);
                for (label, mut world, outcome) in self.execute_in_all_ways(&request) {
                    let mut running = running.clone();
                    let is_over = running.record(at, outcome);
                    world.users[user].step = match running.machine.result() {
                        Some(Ok(())) if is_over => UserStep::Commit(running.machine),
                        // The write fails: nothing is written, and the user has nothing to read.
                        Some(Err(_)) if is_over => UserStep::Ended,
                        _ => UserStep::Mark(running),
                    };
                    add(label, Ok(world));
                }
            }
            UserStep::Search(running, is_holder) => {
                let (at, request) = running.next_request(self.faults.is_last_first);
                for (label, mut world, outcome) in self.execute_in_all_ways(&request) {
                    let mut running = running.clone();
                    running.record(at, outcome);
                    world.users[user].step = match (running.machine.found(), *is_holder) {
                        (None, is_holder) => UserStep::Search(running, is_holder),
                        (Some(found), None) => UserStep::LeaseGet(Some(self.source(found))),
                        (Some(found), Some(is_holder)) => UserStep::Load { from: self.source(found), is_holder },
                    };
                    add(label, Ok(world));
                }
            }
            UserStep::Ended => {}
            other => add(format!("{other:?}"), self.after(user, other)),
        }
    }

    /// The steps that do not ask the pool.
    fn after(&self, user: usize, step: &UserStep) -> Result<World, Stale> {
        let mut world = self.clone();
        let User { written, reads, order, .. } = world.users[user];
        let search = |is_holder| UserStep::Search(Running::new(MarkerSearch::new(names(self.form))), is_holder);
        let see = |version| if version < written { Err(Stale(version)) } else { Ok(()) };
        world.users[user].step = match *step {
            UserStep::Commit(ref marking) => {
                world.log.push([Bytes::from_static(KEY), marking.marker()]);
                world.users[user].written = world.log.len();
                if order == Order::PastCache { search(Some(false)) } else { UserStep::DeleteLocally }
            }
            UserStep::DeleteLocally => {
                world.delete(KEY);
                if reads { UserStep::LeaseGet(None) } else { UserStep::Ended }
            }
            UserStep::LeaseGet(None) if order == Order::MarkersFirst => search(None),
            UserStep::LeaseGet(None) if order == Order::PastCache => search(Some(false)),
            UserStep::LeaseGet(source) => match (world.cached, source) {
                (Some(version), _) => {
                    see(version)?;
                    UserStep::Ended
                }
                // If another user holds the lease, this one has waited for too long: it loads and does not fill.
                (None, source) => {
                    let is_holder = world.lease.is_none();
                    world.lease = world.lease.or(Some(user));
                    source.map_or_else(|| search(Some(is_holder)), |from| UserStep::Load { from, is_holder })
                }
            },
            UserStep::Load { from, is_holder } => {
                let version = match from {
                    ReadFrom::Master => world.log.len(),
                    ReadFrom::Replica => world.applied,
                };
                see(version)?;
                if is_holder { UserStep::Fill(version) } else { UserStep::Ended }
            }
            UserStep::Fill(version) => {
                if world.lease == Some(user) {
                    (world.cached, world.lease) = (Some(version), None);
                }
                UserStep::Ended
            }
            UserStep::Mark(_) | UserStep::Search(..) | UserStep::Ended => unreachable!("not here"),
        };
        Ok(world)
    }

    fn source(&self, found: Found) -> ReadFrom {
        match found {
            Found::Marked => ReadFrom::Master,
            Found::Unmarked => ReadFrom::Replica,
            Found::Unknown => self.faults.when_unknown,
        }
    }

    /// A delete in the cluster or in the pool.
    fn delete(&mut self, key: &[u8]) {
        if key == KEY {
            (self.cached, self.lease) = (None, None);
        } else {
            self.pool.remove(key);
        }
    }

    fn execute_in_all_ways(&self, request: &Request<Bytes>) -> Vec<(String, World, Outcome)> {
        let mut executed = self.clone();
        let outcome = executed.execute(request);
        let label = format!("{:?} of {:?}: {outcome:?}", request.operation, request.key);
        let mut ways = vec![(label, executed.clone(), outcome)];
        if self.faults.pool_fails {
            let lost = || Err(Failure::ConnectionLost);
            ways.push((format!("{:?} of {:?} is not executed", request.operation, request.key), self.clone(), lost()));
            ways.push((format!("{:?} of {:?} gets no reply", request.operation, request.key), executed, lost()));
        }
        ways
    }

    fn execute(&mut self, request: &Request<Bytes>) -> Outcome {
        let found = self.pool.get(&request.key).cloned();
        let (mode, value) = match &request.operation {
            Operation::Get { cas } => {
                let hit = |value: Bytes| Reply::Value { flags: 0, cas: cas.then(|| unique_of(&value)), value };
                return Ok(found.map_or(Reply::Miss, hit));
            }
            Operation::Touch { .. } if found.is_none() => return Ok(Reply::NotFound),
            Operation::Touch { .. } => {
                self.note_life(&request.key);
                return Ok(Reply::Touched);
            }
            Operation::Store { mode, value, .. } => (*mode, value.clone()),
            other => panic!("not for the pool: {other:?}"),
        };
        match (mode, found) {
            (StoreMode::Add, Some(_)) | (StoreMode::Replace, None) => return Ok(Reply::NotStored),
            (StoreMode::Cas(_), None) => return Ok(Reply::NotFound),
            (StoreMode::Cas(cas), Some(found)) if cas != unique_of(&found) => return Ok(Reply::Exists),
            _ => {}
        }
        self.note_life(&request.key);
        self.pool.insert(request.key.clone(), value);
        Ok(Reply::Stored)
    }

    /// The life of a marker begins again.
    fn note_life(&mut self, marker: &Bytes) {
        if *marker == every_marker() {
            let is_of_one_write = |key: &&Bytes| key.len() == marker.len() && *key != marker;
            self.outlived = self.pool.keys().filter(is_of_one_write).cloned().collect();
        }
    }
}

/// Equal values have equal uniques, so that there are fewer states. A real `cas` succeeds less often.
fn unique_of(value: &[u8]) -> Cas {
    let mut hasher = DefaultHasher::new();
    hasher.write(value);
    Cas(hasher.finish())
}

fn settings(form: MarkerForm) -> MarkerSettings {
    MarkerSettings { form, ..MarkerSettings::default() }
}

pub(super) fn names(form: MarkerForm) -> MarkerNames {
    MarkerNames::new(&settings(form), KEY).expect("a short key")
}

fn every_marker() -> Bytes {
    names(MarkerForm::PerWrite).marker(Token::EVERY)
}
