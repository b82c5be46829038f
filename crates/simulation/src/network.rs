//! A network in memory: byte streams between named hosts, with delays drawn from a seed, cut links and dead hosts.
//!
//! It guarantees what TCP guarantees (the bytes of one connection arrive in order or not at all) and nothing more:
//!
//! * every write has its own delay, so two connections between the same hosts may overtake each other;
//! * a cut link delays all bytes. When it heals they arrive late, unless the connection has been reset meanwhile. Each
//!   end sees a reset on its own: bytes may still arrive although the end that wrote them saw an error, so a request
//!   that "failed" may be executed later;
//! * a host that dies loses its listeners and resets all of its connections;
//! * a process that hangs keeps both, and uses neither ([`crate::process`]).

pub use crate::link::LinkModel;
use crate::{
    link::LinkDelays,
    stream::{Pipe, SimulatedStream},
};
use lookaside_client::{Listener, Network, Stream};
use lookaside_routing::{Address, BoxFuture};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};
use tokio::{sync::mpsc, time::Instant};

/// All hosts and connections of a simulated network. Clones share them.
#[derive(Clone)]
pub struct SimulatedNetwork {
    delays: LinkDelays,
    state: Arc<Mutex<NetworkState>>,
}

struct NetworkState {
    listeners: BTreeMap<Address, ListeningSocket>,
    connections: Vec<SimulatedConnection>,
    cuts: BTreeSet<Pair>,
    /// The extra delay of slow links.
    slow: BTreeMap<Pair, Duration>,
}

#[derive(Clone)]
struct ListeningSocket {
    host: Arc<str>,
    accepting: mpsc::UnboundedSender<Box<dyn Stream>>,
}

/// Two hosts, in alphabetical order.
type Pair = (Arc<str>, Arc<str>);

/// End 0 connected, end 1 accepted. End 0 writes into pipe 0 and reads from pipe 1; end 1 the other way round.
struct SimulatedConnection {
    hosts: Pair,
    pipes: [Weak<Mutex<Pipe>>; 2],
}

impl SimulatedNetwork {
    /// A network without hosts.
    pub fn new(seed: u64, link_model: LinkModel) -> Self {
        let state = NetworkState {
            listeners: BTreeMap::new(),
            connections: Vec::new(),
            cuts: BTreeSet::new(),
            slow: BTreeMap::new(),
        };
        SimulatedNetwork { delays: LinkDelays::new(seed, link_model), state: Arc::new(Mutex::new(state)) }
    }

    /// The network as the host `name` uses it.
    pub fn host(&self, name: &str) -> Arc<dyn Network> {
        Arc::new(Host { name: name.into(), network: self.clone() })
    }

    /// Cuts the link between two hosts. Half of their connections are reset at one end; the others delay their bytes.
    pub fn cut(&self, one: &str, other: &str) {
        let mut state = self.state();
        let NetworkState { connections, cuts, .. } = &mut *state;
        let pair = pair(one, other);
        for connection in connections.iter().filter(|connection| connection.hosts == pair) {
            // The end that sees a reset; above 1, neither does.
            let reset_end = self.delays.rng().usize(0..4);
            for (index, pipe) in connection.pipes() {
                let mut pipe = pipe.lock().expect("one thread runs a simulation");
                pipe.is_cut = true;
                pipe.writer_is_reset |= reset_end == index;
                pipe.reader_is_reset |= reset_end + index == 1;
                pipe.wake();
            }
        }
        cuts.insert(pair);
    }

    /// Heals the link: delayed bytes arrive, after a delay.
    pub fn heal(&self, one: &str, other: &str) {
        let mut state = self.state();
        let NetworkState { connections, cuts, .. } = &mut *state;
        let pair = pair(one, other);
        cuts.remove(&pair);
        for connection in connections.iter().filter(|connection| connection.hosts == pair) {
            for (_, pipe) in connection.pipes() {
                let mut pipe = pipe.lock().expect("one thread runs a simulation");
                pipe.is_cut = false;
                pipe.delay_all(Instant::now() + self.delays.draw());
                pipe.wake();
            }
        }
    }

    /// Delays every write on the link between two hosts by `extra` from now on; zero: no longer. Bytes in flight are
    /// not overtaken.
    pub fn slow_down(&self, one: &str, other: &str, extra: Duration) {
        let mut state = self.state();
        let pair = pair(one, other);
        for connection in state.connections.iter().filter(|connection| connection.hosts == pair) {
            for (_, pipe) in connection.pipes() {
                pipe.lock().expect("one thread runs a simulation").extra_delay = extra;
            }
        }
        state.slow.insert(pair, extra);
    }

    /// Kills a host: its listeners are closed, its connections reset. Bytes that it had written may arrive.
    pub fn kill(&self, name: &str) {
        let mut state = self.state();
        state.listeners.retain(|_, socket| &*socket.host != name);
        let of_host = |connection: &&SimulatedConnection| &*connection.hosts.0 == name || &*connection.hosts.1 == name;
        for connection in state.connections.iter().filter(of_host) {
            for (_, pipe) in connection.pipes() {
                let mut pipe = pipe.lock().expect("one thread runs a simulation");
                pipe.reader_is_reset = true;
                pipe.writer_is_reset = true;
                pipe.wake();
            }
        }
    }

    /// Whether a program accepts connections at `address`.
    pub fn is_listening(&self, address: &Address) -> bool {
        self.state().listeners.contains_key(address)
    }

    fn is_cut(&self, from: &str, to: &Address) -> bool {
        let state = self.state();
        state.listeners.get(to).is_some_and(|socket| state.cuts.contains(&pair(from, &socket.host)))
    }

    fn open(&self, from: &Host, to: &Address) -> io::Result<Box<dyn Stream>> {
        let mut state = self.state();
        let refused = || io::Error::new(io::ErrorKind::ConnectionRefused, format!("nothing listens on {to}"));
        let ListeningSocket { host, accepting } = state.listeners.get(to).cloned().ok_or_else(refused)?;
        let hosts = pair(&from.name, &host);
        let extra_delay = state.slow.get(&hosts).copied().unwrap_or_default();
        let pipes = [(), ()].map(|()| Arc::new(Mutex::new(Pipe::new(extra_delay))));
        let far = SimulatedStream::new(self.delays.clone(), pipes[0].clone(), pipes[1].clone());
        let near = SimulatedStream::new(self.delays.clone(), pipes[1].clone(), pipes[0].clone());
        accepting.send(Box::new(far)).map_err(|_| refused())?;
        state.connections.retain(|connection| connection.pipes().next().is_some());
        let connection = SimulatedConnection { hosts, pipes: pipes.each_ref().map(Arc::downgrade) };
        state.connections.push(connection);
        Ok(Box::new(near))
    }

    fn state(&self) -> MutexGuard<'_, NetworkState> {
        self.state.lock().expect("one thread runs a simulation")
    }
}

impl SimulatedConnection {
    /// The pipes that an end still has, with their index.
    fn pipes(&self) -> impl Iterator<Item = (usize, Arc<Mutex<Pipe>>)> {
        self.pipes.iter().enumerate().filter_map(|(index, pipe)| Some((index, pipe.upgrade()?)))
    }
}

fn pair(one: &str, other: &str) -> Pair {
    if one <= other { (one.into(), other.into()) } else { (other.into(), one.into()) }
}

struct Host {
    name: Arc<str>,
    network: SimulatedNetwork,
}

impl Network for Host {
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let was_cut = self.network.is_cut(&self.name, address);
            tokio::time::sleep(self.network.delays.draw() * 2).await;
            if was_cut || self.network.is_cut(&self.name, address) {
                // Packets are lost in one direction: the caller's own timeout ends this.
                std::future::pending::<()>().await;
            }
            self.network.open(self, address)
        })
    }

    fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let (accepting, accepted) = mpsc::unbounded_channel();
            let socket = ListeningSocket { host: self.name.clone(), accepting };
            self.network.state().listeners.insert(address.clone(), socket);
            Ok(Box::new(SimulatedListener { accepted }) as Box<dyn Listener>)
        })
    }
}

struct SimulatedListener {
    accepted: mpsc::UnboundedReceiver<Box<dyn Stream>>,
}

impl Listener for SimulatedListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move { self.accepted.recv().await.ok_or_else(|| io::Error::other("the host has been killed")) })
    }
}
