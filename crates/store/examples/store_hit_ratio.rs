//! Miss ratio of a look-aside cache on a request trace, in process: get; on a miss, set.
//!
//! ```text
//! zstd -d twitter-cluster52-3m.pack.zst -o trace.pack
//! cargo run --release -p lookaside-store --example store_hit_ratio -- trace.pack 3000000 16 64 128
//! ```
//! The trace is in packed planes, little-endian: the object of each request (three planes, a byte per
//! request), the size of each object (u16), the requests in each second (u16). The second argument is the number of
//! requests; then come the sizes of memory in MiB. Options come from the environment: EXPONENT, REBALANCE=off, FACTOR.
//! The trace of Twitter's cache cluster 52 is CC-BY 4.0, by Yang et al.

use lookaside_protocol::StoreMode;
use lookaside_store::{Expiry, NewItem, Now, Options, Store};

struct Trace {
    requests: Vec<u32>,
    object_bytes: Vec<u16>,
    requests_per_s: Vec<u16>,
}

impl Trace {
    fn parse(bytes: &[u8], requests: usize) -> Trace {
        let (planes, rest) = bytes.split_at(3 * requests);
        let plane = |number: usize, at: usize| u32::from(planes[number * requests + at]);
        let requests: Vec<u32> =
            (0..requests).map(|at| plane(0, at) | plane(1, at) << 8 | plane(2, at) << 16).collect();
        let objects = *requests.iter().max().expect("a trace has requests") as usize + 1;
        let mut words = rest.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        let object_bytes = words.by_ref().take(objects).collect();
        Trace { requests, object_bytes, requests_per_s: words.collect() }
    }
}

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn replay(trace: &Trace, memory_mib: usize) {
    let options = Options {
        memory_bytes_max: memory_mib << 20,
        age_exponent: setting("EXPONENT", 0.5),
        growth_factor: setting("FACTOR", 1.07),
        rebalance: setting("REBALANCE", String::new()) != "off",
        ..Options::default()
    };
    let store = Store::new(options).expect("the options are fine");
    let value = vec![b'v'; 1 << 16];
    let (mut misses, mut missed_bytes, mut bytes, mut at) = (0, 0, 0, 0);
    for (second, &count) in trace.requests_per_s.iter().enumerate() {
        for step in 0..count {
            let unix_ms = 1_700_000_000_000 + second as u64 * 1000 + u64::from(step) * 1000 / u64::from(count);
            let now = Now { unix_ms };
            let object = trace.requests[at];
            at += 1;
            let object_bytes = usize::from(trace.object_bytes[object as usize]);
            bytes += object_bytes;
            // Keys of the length that the trace's authors report, or shorter if the object is smaller.
            let name = format!("{object:024}");
            let key = store.hasher().hash(&name.as_bytes()[24 - object_bytes.clamp(8, 24)..]);
            if store.reader(now).get(key, |_| ()).is_none() {
                misses += 1;
                missed_bytes += object_bytes;
                let value = &value[..object_bytes.saturating_sub(key.key().len())];
                store.store(key, StoreMode::Set, &NewItem { flags: 0, expiry: Expiry::Never, value }, now);
            }
        }
    }
    let statistics = store.statistics();
    println!(
        "{memory_mib:4} MiB: miss ratio {:.4}, of bytes {:.4}; compulsory {:.4}; {} items, {} evictions, {} page moves, {} items relocated",
        misses as f64 / at as f64,
        missed_bytes as f64 / bytes as f64,
        trace.object_bytes.len() as f64 / at as f64,
        statistics.items,
        statistics.evictions,
        statistics.page_moves,
        statistics.items_moved,
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, path, requests, sizes @ ..] = arguments.as_slice() else {
        eprintln!("usage: store_hit_ratio TRACE REQUESTS MIB...");
        std::process::exit(2);
    };
    let bytes = std::fs::read(path).expect("the trace can be read");
    let trace = Trace::parse(&bytes, requests.parse().expect("the number of requests is a number"));
    for size in sizes {
        replay(&trace, size.parse().expect("a size of memory is a number of MiB"));
    }
}
