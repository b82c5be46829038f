//! A model of a cluster whose configuration changes: routers with the production [`Coverage`], servers that hold
//! copies and leases, a database, and clients. Every message has a random delay; polls are lost, batches hang, routers
//! crash and restart, with or without their memory, and see the configurations at different times.
//!
//! The checker asserts that no read returns a copy older than a delete that was acknowledged before the read began.

mod clients;
mod event;
mod new_pools;
mod routers;
mod schedule;
mod shared_history;

use super::views::ActiveCoverage;
use super::*;
use crate::resize::pool_servers::{FlushNew, PoolServers};
use event::Event;
use routers::first_start;
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

    fn flush(&mut self, server: usize) {
        self.copies.retain(|(at, _), _| *at != server);
        self.leases.retain(|(at, _), _| *at != server);
    }
}
