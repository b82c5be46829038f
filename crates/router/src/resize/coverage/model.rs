//! A model of a cluster whose configuration changes: routers with the production [`Coverage`], servers that hold
//! copies and leases, a database, and clients. Every message has a random delay; polls are lost, batches hang, routers
//! crash and restart, with or without their memory, and see the configurations at different times.
//!
//! The checker asserts that no read returns a copy older than a delete that was acknowledged before the read began.

mod clients;
mod event;
mod new_pools;
mod schedule;
mod shared_history;

use super::views::ActiveCoverage;
use super::*;
use crate::resize::pool_servers::{FlushNew, PoolServers};
use event::Event;
use shared_history::SharedHistory;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

const KEYS: usize = 6;
const THREADS: usize = 2;
const END_MS: u64 = 45_000;
/// Of half of the runs. Sometimes the next change ends it.
const WARM_UP: Duration = Duration::from_secs(4);

/// A configuration: the pool's name, and the server of each key by the key's number. Those behind the first
/// [`KNOWN_CONFIGS`] have pools of which nothing is known.
const CONFIGS: [(&str, &[usize]); 10] = [
    ("p", &[0, 1, 2]),
    ("p", &[0, 1]),
    ("p", &[0, 1, 3]),
    ("p", &[2, 0, 1]),
    ("q", &[0, 1, 2]),
    ("q", &[2, 1]),
    ("q", &[0, 1, 3]),
    ("r", &[4, 5]),
    ("r", &[5, 6]),
    ("s", &[6]),
];
const KNOWN_CONFIGS: usize = 7;

fn place(config: ConfigId, key: usize) -> usize {
    let servers = CONFIGS[config.0 as usize].1;
    servers[key % servers.len()]
}

fn address(server: usize) -> Address {
    Address(format!("s:{server}").into())
}

fn candidate(config: usize, warm_up: Duration, flush_new: FlushNew) -> Candidate {
    let (pool, servers) = CONFIGS[config];
    let all: BTreeSet<Address> = servers.iter().map(|server| address(*server)).collect();
    let of_pool = PoolServers { servers: all.clone(), flush_new };
    let servers = ConfigServers { pools: [(pool.to_owned(), of_pool)].into(), all, warm_up };
    Candidate { id: ConfigId(config as u128), text: "".into(), servers: Arc::new(servers) }
}

/// A batch in progress: it belongs to the change by which it was routed.
#[derive(Clone, Copy, Debug)]
struct Batch {
    router: usize,
    run: u64,
    number: u64,
}

struct Delete {
    batch: Batch,
    key: usize,
    version: u64,
    /// The servers under each configuration, in the order in which they are sent.
    steps: VecDeque<BTreeSet<usize>>,
    /// Of the first step.
    pending: usize,
}

/// A copy of a key at its former owner that a router stores at the new one.
#[derive(Clone, Copy, Debug)]
struct Copying {
    batch: Batch,
    key: usize,
    former: usize,
    new: usize,
    /// `None` before the lease.
    token: Option<u64>,
}

struct Router {
    /// `None` while it is down.
    coverage: Option<Coverage>,
    saved: SavedCoverage,
    run: u64,
    threads: Vec<ActiveCoverage>,
    published: u64,
    in_flight: BTreeMap<u64, usize>,
    source: usize,
    /// It starts with nothing on disk.
    is_memory_lost: bool,
    /// The request to the shared history that runs; `None` if none does.
    history_request: Option<u64>,
    /// Emptyings, purges and fetches that run.
    started: BTreeSet<String>,
}

struct World {
    random: fastrand::Rng,
    rules: Rules,
    /// Of every configuration.
    warm_up: Duration,
    /// Copies from former owners are stored under a lease.
    leases_copies: bool,
    /// A delete reaches the places under one configuration before those under the next.
    is_in_order: bool,
    /// Only keys that have moved once are copied.
    copies_once: bool,
    /// A router of a version that deletes at all places at once, and lists them sorted. It reads no former owners.
    earlier: Option<usize>,
    /// That router's report does not say that it is ordered.
    is_earlier_known: bool,
    /// Each delete takes up to 1.5 s.
    has_slow_deletes: bool,
    /// How many of ten polls are lost.
    lost_polls: u8,
    /// How many of 256 messages take up to 20 s.
    hanging: u8,
    /// Whether fills alone may take long.
    has_late_fills: bool,
    now: u64,
    queue: BinaryHeap<std::cmp::Reverse<(u64, u64, usize)>>,
    events: Vec<Option<Event>>,
    database: [u64; KEYS],
    acknowledged: [u64; KEYS],
    copies: BTreeMap<(usize, usize), u64>,
    leases: BTreeMap<(usize, usize), u64>,
    tokens: u64,
    routers: Vec<Router>,
    deletes: Vec<Delete>,
    /// `None` if the routers share none.
    history: Option<SharedHistory>,
    /// Configurations whose servers may be flushed, as the operator has decided.
    flushed: BTreeSet<usize>,
    /// Configurations about which the operator was asked.
    asked: BTreeSet<usize>,
    /// Counts that show that a run did something.
    hits: u64,
    former_hits: u64,
    former_fills: u64,
    changes_of_reads: u64,
    /// To a configuration whose pool was not known at first.
    new_pools_read: u64,
    released: u64,
}

impl World {
    fn new(seed: u64, rules: Rules) -> World {
        let mut random = fastrand::Rng::with_seed(seed);
        let routers = random.usize(2..=3);
        let warm_up = if seed.is_multiple_of(2) { WARM_UP } else { Duration::ZERO };
        let settings = CoverageSettings { peers: routers - 1, ignores_missing_peers: false, rules };
        let router = |_| {
            let first = candidate(0, warm_up, FlushNew::OfKnownPools);
            let coverage = Coverage::restore(first_start(first), settings.clone(), Duration::ZERO);
            Router {
                saved: coverage.saved(),
                threads: vec![coverage.active(); THREADS],
                published: coverage.active().number,
                coverage: Some(coverage),
                run: 0,
                in_flight: BTreeMap::new(),
                source: 0,
                is_memory_lost: false,
                history_request: None,
                started: BTreeSet::new(),
            }
        };
        let mut world = World {
            rules,
            warm_up,
            leases_copies: true,
            is_in_order: true,
            copies_once: true,
            earlier: None,
            is_earlier_known: true,
            has_slow_deletes: false,
            lost_polls: 1,
            hanging: [0, 0, 1, 3, 10][random.usize(..5)],
            has_late_fills: random.bool(),
            now: 0,
            queue: BinaryHeap::new(),
            events: Vec::new(),
            database: [1; KEYS],
            acknowledged: [1; KEYS],
            copies: BTreeMap::new(),
            leases: BTreeMap::new(),
            tokens: 0,
            routers: (0..routers).map(router).collect(),
            deletes: Vec::new(),
            history: None,
            flushed: BTreeSet::new(),
            asked: BTreeSet::new(),
            hits: 0,
            former_hits: 0,
            former_fills: 0,
            changes_of_reads: 0,
            new_pools_read: 0,
            released: 0,
            random,
        };
        world.schedule_faults();
        world
    }

    fn at(&mut self, at: u64, event: Event) {
        let index = self.events.len();
        self.events.push(Some(event));
        self.queue.push(std::cmp::Reverse((at, self.random.u64(..), index)));
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    /// Of a message; rarely long.
    fn delay(&mut self) -> u64 {
        let hanging = self.hanging;
        match self.random.u8(..) {
            kind if kind < hanging => self.random.u64(..20_000),
            kind if kind < hanging + 17 => self.random.u64(..1_500),
            _ => self.random.u64(..20),
        }
    }

    fn run(&mut self) -> Result<(), String> {
        while let Some(std::cmp::Reverse((at, _, index))) = self.queue.pop() {
            if at > END_MS {
                return Ok(());
            }
            self.now = at;
            let event = self.events[index].take().expect("each runs once");
            self.handle(event)?;
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Write => self.write(),
            Event::Read => self.read(),
            Event::Delete { op, server } => self.delete_at(op, server),
            Event::Get { batch, server, key, floor, former } => return self.get_at(batch, server, key, floor, former),
            Event::GetFormer { batch, former, new, key, floor } => {
                return self.get_former(batch, former, new, key, floor);
            }
            Event::Copy { copying } => self.copy(copying),
            Event::StoreCopy { copying, version } => self.store_copy(copying, version),
            Event::QueryDatabase { router, server, key, token } => {
                let (version, delay) = (self.database[key], self.delay());
                self.after(delay, Event::Fill { router, server, key, token, version });
            }
            Event::Fill { router, server, key, token, version } => {
                // Another server does not know the token.
                let Some((batch, active)) = self.begin_batch(router) else { return Ok(()) };
                match place(active.reads, key) == server {
                    true => {
                        let is_late = self.has_late_fills && self.random.u8(..40) == 0;
                        let delay = if is_late { self.random.u64(7_000..17_000) } else { self.delay() };
                        self.after(delay, Event::StoreFill { batch, server, key, token, version });
                    }
                    false => self.end_batch(batch),
                }
            }
            Event::StoreFill { batch, server, key, token, version } => {
                if self.leases.get(&(server, key)) == Some(&token) {
                    self.leases.remove(&(server, key));
                    self.copies.insert((server, key), version);
                }
                self.end_batch(batch);
            }
            Event::Crash { router } => self.crash(router),
            Event::Restart { router } => self.restart(router),
            Event::LoseMemory => self.lose_memory(),
            Event::ReplaceHistory { router, run, request, expected, next } => {
                self.replace_history(router, run, request, expected, next);
            }
            event => self.handle_change(event),
        }
        Ok(())
    }

    /// Events of one router's change.
    fn handle_change(&mut self, event: Event) {
        match event {
            Event::Swap { router, run, thread } if self.is_up(router, run) => {
                let active = self.coverage(router).active();
                self.routers[router].threads[thread] = active;
                self.report_applied(router);
            }
            Event::Poll { router, run } if self.is_up(router, run) => self.poll(router, run),
            Event::PollArrives { router, run, peer, polled_at } => {
                if let Some(coverage) = &self.routers[peer].coverage {
                    let mut report = coverage.report();
                    if self.earlier == Some(peer) {
                        report.covers.sort();
                        report.is_ordered = !self.is_earlier_known;
                    }
                    let delay = self.delay();
                    self.after(delay, Event::Report { router, run, peer, polled_at, report });
                }
            }
            Event::Report { router, run, peer, polled_at, report } if self.is_up(router, run) => {
                let index = peer - usize::from(peer > router);
                self.change(router, |coverage, now| {
                    coverage.record_report(index, Duration::from_millis(polled_at), report, now);
                });
            }
            Event::Source { config, .. } if self.is_unusable(config) => {}
            Event::Source { router, config } => {
                self.routers[router].source = config;
                let target = self.candidate(config);
                if self.routers[router].coverage.is_some() {
                    self.change(router, |coverage, now| coverage.set_target(target, now));
                }
            }
            Event::Fetched { router, run, config } if self.is_up(router, run) => {
                self.routers[router].started.remove(&format!("fetch {config}"));
                let (needed, is_unusable) = (self.candidate(config), self.is_unusable(config));
                self.change(router, |coverage, now| match is_unusable {
                    true => coverage.record_unusable(needed.id, now),
                    false => _ = coverage.cover_for_peer(&needed, now),
                });
            }
            Event::Empty { router, run, config, server, emptying } if self.is_up(router, run) => {
                let is_flushed = emptying == Emptying::Flush || self.holds_no_copies(server);
                let delay = self.delay();
                match is_flushed {
                    true => {
                        self.flush(server);
                        self.after(delay, Event::Emptied { router, run, config, server });
                    }
                    false => self.after(delay, Event::NotEmpty { router, run, config, server }),
                }
            }
            Event::Emptied { router, run, config, server } if self.is_up(router, run) => {
                self.routers[router].started.remove(&format!("empty {config} {server}"));
                self.change(router, |coverage, now| coverage.record_emptied(config, &address(server), now));
            }
            Event::NotEmpty { router, run, config, server } if self.is_up(router, run) => {
                self.record_not_empty(router, run, config, server);
            }
            Event::RetryEmpty { router, run, config, server } if self.is_up(router, run) => {
                self.routers[router].started.remove(&format!("empty {config} {server}"));
                self.change(router, |coverage, now| coverage.advance(now));
            }
            Event::Decide { config } => self.decide(config),
            Event::PurgeKey { router, run, purge, active, key } if self.is_up(router, run) => {
                self.purge_key(router, run, purge, active, key);
            }
            Event::HistoryReply { router, run, request, seen } if self.is_up(router, run) => {
                self.take_history_reply(router, request, seen);
            }
            _ => {}
        }
    }

    /// What routers read in their files.
    fn candidate(&self, config: usize) -> Candidate {
        let flush_new = if self.flushed.contains(&config) { FlushNew::Always } else { FlushNew::OfKnownPools };
        candidate(config, self.warm_up, flush_new)
    }

    fn flush(&mut self, server: usize) {
        self.copies.retain(|(at, _), _| *at != server);
        self.leases.retain(|(at, _), _| *at != server);
    }

    fn is_up(&self, router: usize, run: u64) -> bool {
        self.routers[router].run == run && self.routers[router].coverage.is_some()
    }

    fn coverage(&self, router: usize) -> &Coverage {
        self.routers[router].coverage.as_ref().expect("the router is up")
    }

    /// Routes a batch by a random thread of a router; `None` while it is down.
    fn begin_batch(&mut self, router: usize) -> Option<(Batch, ActiveCoverage)> {
        let state = &mut self.routers[router];
        state.coverage.as_ref()?;
        let active = state.threads[self.random.usize(..THREADS)].clone();
        *state.in_flight.entry(active.number).or_default() += 1;
        Some((Batch { router, run: state.run, number: active.number }, active))
    }

    fn end_batch(&mut self, batch: Batch) {
        if self.is_up(batch.router, batch.run) {
            *self.routers[batch.router].in_flight.get_mut(&batch.number).expect("it was begun") -= 1;
            self.report_applied(batch.router);
        }
    }

    fn report_applied(&mut self, router: usize) {
        let state = &mut self.routers[router];
        state.in_flight.retain(|_, batches| *batches > 0);
        let swapped = state.threads.iter().map(|thread| thread.number).min().expect("there are threads");
        let is_drained = state.in_flight.first_key_value().is_none_or(|(number, _)| *number >= swapped);
        if is_drained || !self.rules.drain {
            self.change(router, |coverage, now| coverage.record_applied(swapped, now));
        }
    }

    fn poll(&mut self, router: usize, run: u64) {
        for peer in (0..self.routers.len()).filter(|peer| *peer != router) {
            if self.random.u8(..10) >= self.lost_polls {
                let (delay, polled_at) = (self.delay(), self.now);
                self.after(delay, Event::PollArrives { router, run, peer, polled_at });
            }
        }
        self.after(if self.coverage(router).is_changing() { 200 } else { 1_000 }, Event::Poll { router, run });
        self.change(router, |coverage, now| coverage.advance(now));
        self.read_history(router, run);
    }

    /// Changes the coverage of a router that is up, and starts what it asks for.
    fn change(&mut self, router: usize, change: impl FnOnce(&mut Coverage, Duration)) {
        let now = Duration::from_millis(self.now);
        let state = &mut self.routers[router];
        let coverage = state.coverage.as_mut().expect("the router is up");
        let (reads, covered) = (coverage.reads(), coverage.active().others.len());
        change(coverage, now);
        coverage.record_announced(now);
        let is_changed = coverage.reads() != reads;
        self.changes_of_reads += u64::from(is_changed);
        self.new_pools_read += u64::from(is_changed && coverage.reads().0 >= KNOWN_CONFIGS as u128);
        self.released += u64::from(coverage.active().others.len() < covered);
        state.saved = coverage.saved();
        self.start_work(router);
    }

    fn start_work(&mut self, router: usize) {
        let state = &mut self.routers[router];
        let (run, coverage) = (state.run, state.coverage.as_ref().expect("the router is up"));
        let mut work = Vec::new();
        if coverage.active().number > state.published {
            state.published = coverage.active().number;
            work.extend((0..THREADS).map(|thread| Event::Swap { router, run, thread }));
        }
        let missing = coverage.missing().into_iter().map(|(_, id)| id);
        for id in missing.chain(coverage.missing_in_history()) {
            if state.started.insert(format!("fetch {}", id.0)) {
                work.push(Event::Fetched { router, run, config: id.0 as usize });
            }
        }
        let server = |address: &Address| address.0[2..].parse().expect("s:NUMBER");
        for (to_empty, emptying) in coverage.servers_to_empty() {
            let (config, server) = (coverage.target().expect("there is a target"), server(&to_empty));
            if state.started.insert(format!("empty {config} {server}")) {
                work.push(Event::Empty { router, run, config, server, emptying });
            }
        }
        for purge in coverage.purges() {
            if state.started.insert(format!("{purge:?}")) {
                work.push(Event::PurgeKey { router, run, active: coverage.active_ids(), purge, key: 0 });
            }
        }
        for event in work {
            let delay = self.delay();
            self.after(delay, event);
        }
        self.record_history(router, run);
        self.ask_operator(router);
    }

    fn purge_key(&mut self, router: usize, run: u64, purge: Purge, active: Vec<ConfigId>, key: usize) {
        let server: usize = purge.server.0[2..].parse().expect("s:NUMBER");
        if key == KEYS {
            return self.change(router, |coverage, now| coverage.record_purged(&purge, now));
        }
        let is_there = |config: &ConfigId| place(*config, key) == server;
        if is_there(&purge.config) && !active.iter().any(is_there) && self.copies.remove(&(server, key)).is_some() {
            self.leases.remove(&(server, key));
        }
        let delay = self.delay();
        self.after(delay, Event::PurgeKey { router, run, purge, active, key: key + 1 });
    }

    /// Starts a router from its disk, or, if all its peers are up or its disk was lost, from them and the history.
    fn restart(&mut self, router: usize) {
        let peers: Vec<_> = (0..self.routers.len()).filter(|peer| *peer != router).collect();
        let mut reports: Vec<_> =
            peers.iter().filter_map(|peer| Some(self.routers[*peer].coverage.as_ref()?.report())).collect();
        let settings = CoverageSettings { peers: peers.len(), ignores_missing_peers: false, rules: self.rules };
        let is_memory_lost = reports.len() == peers.len() && self.random.bool();
        self.record_unusable(router);
        let source = self.routers[router].source;
        reports.extend(self.history_report(source));
        let from_reports = || {
            let mut ids: Vec<ConfigId> = Vec::new();
            for id in reports.iter().flat_map(|report| &report.covers) {
                if !ids.contains(id) {
                    ids.push(*id);
                }
            }
            let configs = ids.iter().map(|id| self.candidate(id.0 as usize)).collect();
            SavedCoverage::from_peers(&reports, configs).unwrap_or_else(|| first_start(self.candidate(source)))
        };
        let is_memory_lost = self.routers[router].is_memory_lost || is_memory_lost;
        let saved = if is_memory_lost { from_reports() } else { self.routers[router].saved.clone() };
        let state = &mut self.routers[router];
        state.is_memory_lost = false;
        let mut coverage = Coverage::restore(saved, settings, Duration::from_millis(self.now));
        if let Some(history) = &self.history {
            history.introduce(&mut coverage, Duration::from_millis(self.now));
        }
        state.threads = vec![coverage.active(); THREADS];
        state.published = coverage.active().number;
        state.in_flight.clear();
        state.started.clear();
        state.history_request = None;
        state.coverage = Some(coverage);
        let run = state.run;
        self.after(0, Event::Poll { router, run });
        let target = self.candidate(source);
        self.change(router, |coverage, now| coverage.set_target(target, now));
    }
}

/// The state of a router that remembers nothing, and finds nothing.
fn first_start(config: Candidate) -> SavedCoverage {
    let only = SavedConfig { config, is_claimed: true, was_read: true };
    SavedCoverage { reads: only.config.id, covered: vec![only], departed: Departed::default() }
}
