//! Latency and processor time of gets that a client sends to servers itself, by UDP and by TCP, and of gets through a
//! router by TCP (§3.1 and Figure 3 of the paper). It prints a line of JSON for each measurement.
//! `experiments/cluster/udp_gets.py` starts the servers and the router.
//!
//!     udp_gets CONFIGURATION ROUTER SECONDS
//!
//! All of the client runs on one thread. The ways take turns, so that a change of the machine's load meets all of them.
//! A page is also read without a client, by bare sockets: that shows which part of the time is the kernel's alone.

use bytes::Bytes;
use hdrhistogram::Histogram;
use lookaside_client::config::Source;
use lookaside_client::{Client, DestinationOptions, DirectRoute, Lookup, TcpDestination, TcpNetwork, UdpOptions};
use lookaside_routing::{Address, DestinationRoute};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

const KEYS: usize = 10_000;
/// The paper's median.
const VALUE_BYTES: usize = 135;
/// The paper's mean number of keys of a request.
const PAGE_KEYS: usize = 24;
const PAGES: usize = 1_000;
/// Turns of each way.
const TURNS: u32 = 10;
/// How long the client may wait for its first permit.
const PERMIT_MAX: Duration = Duration::from_secs(10);

struct Way {
    name: &'static str,
    client: Client,
    /// `None` if it reads through the router.
    route: Option<Arc<DirectRoute>>,
}

/// What is read at a time.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    keys: usize,
    /// The number of requests that are outstanding all the time.
    outstanding: usize,
}

const LOADS: [Load; 3] = [
    Load { name: "one key", keys: 1, outstanding: 1 },
    Load { name: "a page", keys: PAGE_KEYS, outstanding: 1 },
    Load { name: "16 pages at a time", keys: PAGE_KEYS, outstanding: 16 },
];

/// The figures of a way under a load.
struct Figures {
    ns: Histogram<u64>,
    cpu: Duration,
    kernel_ticks: u64,
    ticks: u64,
    keys: u64,
    errors: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [configuration, router, seconds] = &arguments[..] else {
        return Err("usage: udp_gets CONFIGURATION ROUTER SECONDS".into());
    };
    let turn = Duration::from_secs_f64(seconds.parse()?) / TURNS;
    let ways = ways(configuration, &Address(router.as_str().into())).await?;
    let mut random = fastrand::Rng::with_seed(1);
    for number in 0..KEYS {
        ways.last().expect("the router is the last").client.set(key(number), vec![b'v'; VALUE_BYTES], 0, 0).await?;
    }
    let pages: Vec<Vec<Bytes>> =
        (0..PAGES).map(|_| (0..PAGE_KEYS).map(|_| key(random.usize(0..KEYS))).collect()).collect();
    let mut bare = BareSockets::connect(configuration)?;
    for load in LOADS {
        let mut figures: Vec<Figures> = ways.iter().map(|_| Figures::new()).collect();
        let mut of_bare = Figures::new();
        for _ in 0..TURNS {
            for (way, figures) in ways.iter().zip(&mut figures) {
                figures.measure(&way.client, &pages, load, turn).await;
            }
            if (load.keys, load.outstanding) == (PAGE_KEYS, 1) {
                // The clients' thread renews their permits meanwhile.
                (bare, of_bare) = spawn_blocking(move || bare.measure(of_bare, turn)).await??;
            }
        }
        for (way, figures) in ways.iter().zip(&figures) {
            println!("{}", figures.to_json(way.name, way.route.as_deref(), load));
        }
        if of_bare.keys > 0 {
            println!("{}", of_bare.to_json("bare", None, load));
        }
    }
    Ok(())
}

/// A page without a client: the same `get` of a part of its keys to each server, all written, and then all replies
/// read. Each is one system call that waits, so there are fewer than any client has that waits for all servers at once.
struct BareSockets {
    servers: Vec<TcpStream>,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl BareSockets {
    fn connect(configuration: &str) -> Result<BareSockets, Box<dyn Error>> {
        let configuration: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(configuration)?)?;
        let addresses = configuration["pools"]["main"]["servers"].as_array().ok_or("no pool named main")?;
        let keys: Vec<Bytes> = (0..PAGE_KEYS / addresses.len()).map(key).collect();
        let (mut request, mut stores, mut reply) = (b"get".to_vec(), Vec::new(), Vec::new());
        for key in &keys {
            let (key, value) = (std::str::from_utf8(key)?, "v".repeat(VALUE_BYTES));
            request.extend_from_slice(format!(" {key}").as_bytes());
            stores.extend_from_slice(format!("set {key} 0 0 {VALUE_BYTES} noreply\r\n{value}\r\n").as_bytes());
            reply.extend_from_slice(format!("VALUE {key} 0 {VALUE_BYTES}\r\n{value}\r\n").as_bytes());
        }
        request.extend_from_slice(b"\r\n");
        reply.extend_from_slice(b"END\r\n");
        let mut servers = Vec::new();
        for address in addresses {
            let mut server = TcpStream::connect(address.as_str().ok_or("a server is no text")?)?;
            server.set_nodelay(true)?;
            server.write_all(&stores)?;
            servers.push(server);
        }
        Ok(BareSockets { servers, request, reply })
    }

    /// Reads pages during a turn.
    fn measure(mut self, mut figures: Figures, turn: Duration) -> io::Result<(BareSockets, Figures)> {
        let (cpu_before, ticks_before, until) = (cpu(), ticks(), Instant::now() + turn);
        let mut received = vec![0; self.reply.len()];
        let mut now = Instant::now();
        while now < until {
            for server in &mut self.servers {
                server.write_all(&self.request)?;
            }
            for server in &mut self.servers {
                server.read_exact(&mut received)?;
                assert!(received == self.reply, "all keys are in the cache");
            }
            let started = std::mem::replace(&mut now, Instant::now());
            figures.ns.record((now - started).as_nanos() as u64).expect("it resizes");
            figures.keys += PAGE_KEYS as u64;
        }
        figures.add_processor_time(cpu_before, ticks_before);
        Ok((self, figures))
    }
}

async fn ways(configuration: &str, router: &Address) -> Result<Vec<Way>, Box<dyn Error>> {
    let builder = || DirectRoute::builder(Source::File(configuration.into()), [router.clone()]);
    let mut ways = Vec::new();
    for (name, builder) in [
        ("udp", builder().udp(UdpOptions::default())),
        ("udp, no window", builder().udp(UdpOptions::default()).window(None)),
        ("tcp", builder()),
        ("tcp, no window", builder().window(None)),
    ] {
        let route = builder.build().await?;
        let started = Instant::now();
        while !route.is_permitted() {
            if started.elapsed() > PERMIT_MAX {
                return Err("no permit: is the router's configuration the same?".into());
            }
            sleep(Duration::from_millis(1)).await;
        }
        ways.push(Way { name, client: Client::new(route.clone()), route: Some(route) });
    }
    let router = TcpDestination::new(router.clone(), Arc::new(TcpNetwork), DestinationOptions::default());
    let client = Client::new(Arc::new(DestinationRoute::new(Arc::new(router), true)));
    ways.push(Way { name: "router", client, route: None });
    Ok(ways)
}

fn key(number: usize) -> Bytes {
    format!("page:item:{number:014}").into()
}

/// The processor time of this thread.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The clock ticks that this thread has run, and those of them in the kernel.
fn ticks() -> (u64, u64) {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux has it");
    let fields = stat.rsplit(')').next().expect("the name ends with it").split_whitespace();
    // proc_pid_stat(5): utime and stime are the fields 14 and 15, the first one after the name is 3.
    let times: Vec<u64> = fields.skip(11).take(2).map(|field| field.parse().expect("a number")).collect();
    (times[0] + times[1], times[1])
}

impl Figures {
    fn new() -> Figures {
        let ns = Histogram::new(3).expect("valid");
        Figures { ns, cpu: Duration::ZERO, kernel_ticks: 0, ticks: 0, keys: 0, errors: 0 }
    }

    async fn measure(&mut self, client: &Client, pages: &[Vec<Bytes>], load: Load, turn: Duration) {
        let (cpu_before, ticks_before, until) = (cpu(), ticks(), Instant::now() + turn);
        let readers = (0..load.outstanding).map(|reader| read(client, pages, load.keys, reader, until));
        for (ns, errors) in futures_util::future::join_all(readers).await {
            self.errors += errors;
            self.keys += (ns.len() * load.keys) as u64;
            for ns in ns {
                self.ns.record(ns).expect("it resizes");
            }
        }
        self.add_processor_time(cpu_before, ticks_before);
    }

    /// Adds what this thread has used since then.
    fn add_processor_time(&mut self, cpu_before: Duration, ticks_before: (u64, u64)) {
        self.cpu += cpu() - cpu_before;
        let (ticks, kernel_ticks) = ticks();
        self.ticks += ticks - ticks_before.0;
        self.kernel_ticks += kernel_ticks - ticks_before.1;
    }

    /// `route` is `None` if servers are not read by permits.
    fn to_json(&self, way: &str, route: Option<&DirectRoute>, load: Load) -> String {
        let us = |ns: f64| ns / 1_000.0;
        let percentile = |share: f64| us(self.ns.value_at_quantile(share) as f64);
        let statistics = route.map(DirectRoute::statistics).unwrap_or_default();
        format!(
            concat!(
                r#"{{"way": "{}", "load": "{}", "requests": {}, "keys": {}, "errors": {}, "mean_us": {:.1}, "#,
                r#""p50_us": {:.1}, "p95_us": {:.1}, "cpu_us_per_key": {:.3}, "kernel_share": {:.3}, "unpermitted_reads": {}}}"#
            ),
            way,
            load.name,
            self.ns.len(),
            self.keys,
            self.errors,
            us(self.ns.mean()),
            percentile(0.5),
            percentile(0.95),
            self.cpu.as_secs_f64() * 1e6 / self.keys as f64,
            self.kernel_ticks as f64 / self.ticks.max(1) as f64,
            statistics.unpermitted_reads,
        )
    }
}

/// Reads one request after the other; returns the nanoseconds of each, and how many keys were errors.
async fn read(client: &Client, pages: &[Vec<Bytes>], keys: usize, reader: usize, until: Instant) -> (Vec<u64>, u64) {
    let (mut ns, mut errors, mut page) = (Vec::new(), 0, reader * PAGES / 16);
    let mut now = Instant::now();
    while now < until {
        page += 1;
        let lookups = client.get_many(&pages[page % PAGES][..keys]).await.expect("valid keys");
        for lookup in &lookups {
            match lookup {
                Ok(Lookup::Hit { value, .. }) => assert_eq!(value.len(), VALUE_BYTES),
                Ok(other) => panic!("all keys are in the cache: {other:?}"),
                Err(_) => errors += 1,
            }
        }
        let started = std::mem::replace(&mut now, Instant::now());
        ns.push((now - started).as_nanos() as u64);
    }
    (ns, errors)
}
