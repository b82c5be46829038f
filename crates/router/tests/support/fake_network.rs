//! A network of memcached servers in one thread, for tests with a paused clock: each can be well, gone, or frozen.

use lookaside_client::{Listener, Network, Stream};
use lookaside_protocol::text::{END, Limits, Parsed, compose_reply, parse_command};
use lookaside_protocol::{Command, Operation, Reply, Request};
use lookaside_routing::{Address, BoxFuture};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, split};
use tokio::sync::{mpsc, watch};

const LIMITS: Limits = Limits { value_bytes_max: 1 << 20, line_bytes_max: 1 << 20 };
const PIPE_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Well,
    /// Refuses connections, and ends those there are.
    Gone,
    /// Takes connections and bytes, and answers when it is well again.
    Frozen,
}

/// One server. It keeps its values while it is gone, like a server behind a partition.
pub struct FakeServer {
    pub values: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// `verb key` of each executed command, in order.
    pub asked: Mutex<Vec<String>>,
    /// Replies to commands that begin with the key. These commands are not executed.
    pub refusals: Mutex<BTreeMap<String, String>>,
    health: watch::Sender<Health>,
}

impl FakeServer {
    pub fn be(&self, health: Health) {
        self.health.send_replace(health);
    }

    pub fn put(&self, key: &str, value: &str) {
        self.values.lock().unwrap().insert(key.into(), value.into());
    }

    pub fn has(&self, key: &str) -> bool {
        self.values.lock().unwrap().contains_key(key.as_bytes())
    }

    pub fn refuse(&self, command: &str, answer: &str) {
        self.refusals.lock().unwrap().insert(command.into(), answer.into());
    }

    /// The executed commands that begin with `verb`.
    pub fn asked(&self, verb: &str) -> Vec<String> {
        self.asked.lock().unwrap().iter().filter(|line| line.starts_with(verb)).cloned().collect()
    }

    fn answer(&self, command: Command<'_>, out: &mut Vec<u8>) {
        let name = match &command {
            Command::Retrieve { operation: Operation::LeaseGet, .. } => "lease-get",
            Command::Retrieve { .. } => "get",
            Command::FlushAll { .. } => "flush_all",
            Command::Version => "version",
            Command::Single { request, .. } => match &request.operation {
                Operation::Delete { hold_off_ms: 0 } => "delete",
                Operation::Delete { .. } => "delete-hold-off",
                Operation::Meta(_) => "md",
                _ => "set",
            },
            _ => "other",
        };
        if let Some(refusal) = self.refusals.lock().unwrap().get(name) {
            return out.extend_from_slice(format!("{refusal}\r\n").as_bytes());
        }
        let note = |key: &[u8]| self.asked.lock().unwrap().push(format!("{name} {}", String::from_utf8_lossy(key)));
        let mut values = self.values.lock().unwrap();
        match command {
            Command::Retrieve { keys, .. } => {
                for key in keys {
                    note(key);
                    if let Some(value) = values.get(key) {
                        compose_reply(key, &Reply::Value { flags: 0, cas: None, value: value.clone() }, out);
                    }
                }
                out.extend_from_slice(END);
            }
            Command::Single { request: Request { key, operation }, .. } => {
                note(key);
                let reply = match operation {
                    Operation::Store { value, .. } => {
                        values.insert(key.to_vec(), value.to_vec());
                        Reply::Stored
                    }
                    Operation::Meta(_) => {
                        values.remove(key);
                        return out.extend_from_slice(b"HD\r\n");
                    }
                    _ if values.remove(key).is_some() => Reply::Deleted,
                    _ => Reply::<Vec<u8>>::NotFound,
                };
                compose_reply(key, &reply, out);
            }
            Command::FlushAll { .. } => {
                note(b"");
                values.clear();
                out.extend_from_slice(b"OK\r\n");
            }
            _ => out.extend_from_slice(b"VERSION fake\r\n"),
        }
    }

    async fn serve(self: Arc<Self>, mut stream: DuplexStream) {
        let mut health = self.health.subscribe();
        let mut buffer = Vec::new();
        loop {
            tokio::select! {
                biased;
                _ = health.wait_for(|now| *now == Health::Gone) => return,
                read = stream.read_buf(&mut buffer) => if !matches!(read, Ok(1..)) { return },
            }
            let Ok(now) = health.wait_for(|now| *now != Health::Frozen).await.map(|now| *now) else { return };
            if now == Health::Gone {
                return;
            }
            let mut out = Vec::new();
            while let Parsed::Command { command, consumed } = parse_command(&buffer, &LIMITS) {
                self.answer(command, &mut out);
                buffer.drain(..consumed);
            }
            if stream.write_all(&out).await.is_err() {
                return;
            }
        }
    }
}

/// Pairs of a host and an address whose connections are cut. Written bytes wait.
type Cuts = BTreeSet<(String, String)>;

pub struct FakeNetwork {
    servers: Mutex<BTreeMap<Address, Arc<FakeServer>>>,
    listeners: Mutex<BTreeMap<Address, mpsc::UnboundedSender<DuplexStream>>>,
    cuts: watch::Sender<Cuts>,
}

impl Default for FakeNetwork {
    fn default() -> Self {
        let (servers, listeners) = (Mutex::default(), Mutex::default());
        FakeNetwork { servers, listeners, cuts: watch::Sender::new(Cuts::new()) }
    }
}

impl FakeNetwork {
    /// The server at `address`, which is well and empty at first.
    pub fn server(&self, address: &str) -> Arc<FakeServer> {
        let mut servers = self.servers.lock().unwrap();
        let make = || {
            Arc::new(FakeServer {
                values: Mutex::default(),
                asked: Mutex::default(),
                refusals: Mutex::default(),
                health: watch::Sender::new(Health::Well),
            })
        };
        servers.entry(Address(address.into())).or_insert_with(make).clone()
    }

    /// The network of a program on `host`.
    pub fn view(self: &Arc<Self>, host: &str) -> Arc<View> {
        Arc::new(View { host: host.into(), network: self.clone() })
    }

    /// Cuts the way from `host` to `address`, or mends it.
    pub fn cut(&self, host: &str, address: &str, is_cut: bool) {
        let pair = (host.to_owned(), address.to_owned());
        self.cuts.send_modify(|cuts| match is_cut {
            true => drop(cuts.insert(pair)),
            false => drop(cuts.remove(&pair)),
        });
    }

    fn far_end(&self, address: &Address, far: DuplexStream) -> io::Result<()> {
        if let Some(listener) = self.listeners.lock().unwrap().get(address) {
            return listener.send(far).map_err(|_| io::ErrorKind::ConnectionRefused.into());
        }
        let server = self.servers.lock().unwrap().get(address).cloned().ok_or(io::ErrorKind::ConnectionRefused)?;
        if *server.health.borrow() == Health::Gone {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        tokio::spawn(server.serve(far));
        Ok(())
    }
}

/// The network as one host sees it.
pub struct View {
    host: String,
    network: Arc<FakeNetwork>,
}

impl Network for View {
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            tokio::time::sleep(std::time::Duration::from_micros(100)).await;
            let pair = (self.host.clone(), address.0.to_string());
            let mut cuts = self.network.cuts.subscribe();
            cuts.wait_for(|cuts| !cuts.contains(&pair)).await.expect("the network stays");
            let (near, middle) = tokio::io::duplex(PIPE_BYTES);
            let (other_middle, far) = tokio::io::duplex(PIPE_BYTES);
            self.network.far_end(address, far)?;
            let ((read, write), (other_read, other_write)) = (split(middle), split(other_middle));
            tokio::spawn(pump(read, other_write, cuts.clone(), pair.clone()));
            tokio::spawn(pump(other_read, write, cuts, pair));
            Ok(Box::new(near) as Box<dyn Stream>)
        })
    }

    fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let (connect, accept) = mpsc::unbounded_channel();
            self.network.listeners.lock().unwrap().insert(address.clone(), connect);
            Ok(Box::new(Accept(accept)) as Box<dyn Listener>)
        })
    }
}

/// Carries bytes one way, and holds them while the way is cut.
async fn pump(
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    mut cuts: watch::Receiver<Cuts>,
    pair: (String, String),
) {
    let mut block = [0; 4_096];
    while let Ok(bytes @ 1..) = from.read(&mut block).await {
        if cuts.wait_for(|cuts| !cuts.contains(&pair)).await.is_err() || to.write_all(&block[..bytes]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

struct Accept(mpsc::UnboundedReceiver<DuplexStream>);

impl Listener for Accept {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            match self.0.recv().await {
                Some(stream) => Ok(Box::new(stream) as Box<dyn Stream>),
                None => std::future::pending().await,
            }
        })
    }
}

impl Network for FakeNetwork {
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            // A round trip, so that a paused clock has somewhere to go.
            tokio::time::sleep(std::time::Duration::from_micros(100)).await;
            let server = self.server(&address.0);
            if *server.health.borrow() == Health::Gone {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (near, far) = tokio::io::duplex(PIPE_BYTES);
            tokio::spawn(server.serve(far));
            Ok(Box::new(near) as Box<dyn Stream>)
        })
    }

    fn listen<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}
