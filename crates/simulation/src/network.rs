//! A network in memory: byte streams between named hosts, with delays drawn from a seed, cut links and dead hosts.
//!
//! It keeps what TCP promises (the bytes of one connection arrive in order or not at all) and nothing more:
//!
//! * every write arrives after a delay of its own, so two connections between the same hosts overtake each other;
//! * a cut link holds the bytes back. When it heals they arrive late, or the connection has been reset meanwhile. A
//!   reset is seen at each end on its own: what one end wrote may still arrive although that end saw an error, which is
//!   how a request that "failed" is carried out later;
//! * a host that dies loses its listeners and resets all of its connections.
//!
//! Time is tokio's paused clock; there is no thread and no randomness but the seed.

use crate::stream::{Pipe, SimulatedStream};
use lookaside_client::{Listener, Network, Stream};
use lookaside_routing::{Address, BoxFuture};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};
use tokio::{sync::mpsc, time::Instant};

/// How a link behaves.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// The shortest delay of a write, in microseconds.
    pub delay_us_min: u64,
    /// The longest delay of most writes, in microseconds.
    pub delay_us_max: u64,
    /// One write in so many is late by up to [`Weather::late_us_max`] instead; 0 for none.
    pub late_one_in: u32,
    /// The delay of a late write, in microseconds, at most.
    pub late_us_max: u64,
}

/// All hosts and connections of a simulated network. Clones are the same one.
#[derive(Clone)]
pub struct SimulatedNetwork(Arc<Mutex<Wires>>);

struct Wires {
    rng: fastrand::Rng,
    weather: Weather,
    listeners: BTreeMap<Address, (Arc<str>, Accepting)>,
    connections: Vec<Connection>,
    /// Pairs of hosts without a link.
    cuts: BTreeSet<Pair>,
}

/// Where a listener takes new connections from.
type Accepting = mpsc::UnboundedSender<Box<dyn Stream>>;

/// Two hosts, in alphabetical order.
type Pair = (Arc<str>, Arc<str>);

/// End 0 connected, end 1 accepted. End 0 writes into pipe 0 and reads from pipe 1; end 1 the other way round.
struct Connection {
    hosts: Pair,
    pipes: [Weak<Mutex<Pipe>>; 2],
}

impl Weather {
    fn delay(&self, rng: &mut fastrand::Rng) -> Duration {
        let is_late = self.late_one_in > 0 && rng.u32(0..self.late_one_in) == 0;
        let longest_us = if is_late { self.late_us_max } else { self.delay_us_max };
        Duration::from_micros(rng.u64(self.delay_us_min..=longest_us.max(self.delay_us_min)))
    }
}

impl SimulatedNetwork {
    /// A network without hosts.
    pub fn new(seed: u64, weather: Weather) -> Self {
        SimulatedNetwork(Arc::new(Mutex::new(Wires {
            rng: fastrand::Rng::with_seed(seed),
            weather,
            listeners: BTreeMap::new(),
            connections: Vec::new(),
            cuts: BTreeSet::new(),
        })))
    }

    /// What a program on the host `name` connects and listens with.
    pub fn host(&self, name: &str) -> Arc<dyn Network> {
        Arc::new(Host { name: name.into(), network: self.clone() })
    }

    /// Cuts the link between two hosts. Half of their connections are reset at one end, the rest hold their bytes.
    pub fn cut(&self, one: &str, other: &str) {
        let mut wires = self.wires();
        let Wires { rng, connections, cuts, .. } = &mut *wires;
        let pair = pair(one, other);
        for connection in connections.iter().filter(|connection| connection.hosts == pair) {
            // Which end gives up; above 1, neither does.
            let gives_up = rng.usize(0..4);
            for (index, pipe) in connection.pipes() {
                let mut pipe = pipe.lock().expect("one thread runs a simulation");
                pipe.is_cut = true;
                pipe.writer_is_reset |= gives_up == index;
                pipe.reader_is_reset |= gives_up + index == 1;
                pipe.wake();
            }
        }
        cuts.insert(pair);
    }

    /// Mends the link: what was held arrives, after a delay.
    pub fn heal(&self, one: &str, other: &str) {
        let mut wires = self.wires();
        let Wires { rng, weather, connections, cuts, .. } = &mut *wires;
        let pair = pair(one, other);
        cuts.remove(&pair);
        for connection in connections.iter().filter(|connection| connection.hosts == pair) {
            for (_, pipe) in connection.pipes() {
                let mut pipe = pipe.lock().expect("one thread runs a simulation");
                pipe.is_cut = false;
                pipe.delay_all(Instant::now() + weather.delay(rng));
                pipe.wake();
            }
        }
    }

    /// The host is gone at once: its listeners are closed, its connections reset. What it had written may arrive.
    pub fn kill(&self, name: &str) {
        let mut wires = self.wires();
        wires.listeners.retain(|_, (host, _)| &**host != name);
        let of_host = |connection: &&Connection| &*connection.hosts.0 == name || &*connection.hosts.1 == name;
        for connection in wires.connections.iter().filter(of_host) {
            for (_, pipe) in connection.pipes() {
                let mut pipe = pipe.lock().expect("one thread runs a simulation");
                pipe.reader_is_reset = true;
                pipe.writer_is_reset = true;
                pipe.wake();
            }
        }
    }

    /// When bytes written now arrive, without regard to what was written before.
    pub(crate) fn arrival(&self) -> Instant {
        Instant::now() + self.delay()
    }

    fn delay(&self) -> Duration {
        let mut wires = self.wires();
        let Wires { rng, weather, .. } = &mut *wires;
        weather.delay(rng)
    }

    fn is_cut(&self, from: &str, to: &Address) -> bool {
        let wires = self.wires();
        wires.listeners.get(to).is_some_and(|(host, _)| wires.cuts.contains(&pair(from, host)))
    }

    fn open(&self, from: &str, to: &Address) -> io::Result<Box<dyn Stream>> {
        let mut wires = self.wires();
        let refused = || io::Error::new(io::ErrorKind::ConnectionRefused, format!("nobody listens on {to}"));
        let (host, accepting) = wires.listeners.get(to).cloned().ok_or_else(refused)?;
        let pipes = [(), ()].map(|()| Arc::new(Mutex::new(Pipe::new())));
        let far = SimulatedStream::new(self.clone(), pipes[0].clone(), pipes[1].clone());
        let near = SimulatedStream::new(self.clone(), pipes[1].clone(), pipes[0].clone());
        accepting.send(Box::new(far)).map_err(|_| refused())?;
        wires.connections.retain(|connection| connection.pipes().next().is_some());
        let connection = Connection { hosts: pair(from, &host), pipes: pipes.each_ref().map(Arc::downgrade) };
        wires.connections.push(connection);
        Ok(Box::new(near))
    }

    fn wires(&self) -> MutexGuard<'_, Wires> {
        self.0.lock().expect("one thread runs a simulation")
    }
}

impl Connection {
    /// The pipes that an end still holds, with their index.
    fn pipes(&self) -> impl Iterator<Item = (usize, Arc<Mutex<Pipe>>)> {
        self.pipes.iter().enumerate().filter_map(|(index, pipe)| Some((index, pipe.upgrade()?)))
    }
}

fn pair(one: &str, other: &str) -> Pair {
    if one <= other { (one.into(), other.into()) } else { (other.into(), one.into()) }
}

/// A host's way into the network.
struct Host {
    name: Arc<str>,
    network: SimulatedNetwork,
}

impl Network for Host {
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let departs_cut = self.network.is_cut(&self.name, address);
            tokio::time::sleep(self.network.delay() * 2).await;
            if departs_cut || self.network.is_cut(&self.name, address) {
                // Packets vanish on the way there or back: the caller's own time limit ends this.
                std::future::pending::<()>().await;
            }
            self.network.open(&self.name, address)
        })
    }

    fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let (accepting, accepted) = mpsc::unbounded_channel();
            self.network.wires().listeners.insert(address.clone(), (self.name.clone(), accepting));
            Ok(Box::new(SimulatedListener(accepted)) as Box<dyn Listener>)
        })
    }
}

struct SimulatedListener(mpsc::UnboundedReceiver<Box<dyn Stream>>);

impl Listener for SimulatedListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move { self.0.recv().await.ok_or_else(|| io::Error::other("the host is gone")) })
    }
}
