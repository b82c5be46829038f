//! The duration of a warm restart of a full store (§6.4 of the paper): `cargo run --release -p lookaside-store
//! --example store_warm_restart -- 4096` for 4096 MiB.
//!
//! Fills a region with items of 24 + 200 bytes until some are evicted, saves and restores it three times, and reads
//! 100,000 of its items. The region is removed at the end.

use lookaside_protocol::StoreMode;
use lookaside_store::{Expiry, NewItem, Now, Options, RegionName, Store, remove_region};
use std::time::Instant;

const NOW: Now = Now { unix_ms: 1_700_000_000_000 };
const VALUE: [u8; 200] = [7; 200];
const GETS: u64 = 100_000;
const ROUNDS: usize = 3;

struct Scratch(RegionName);

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = remove_region(&self.0) {
            eprintln!("region not removed: {error}");
        }
    }
}

fn main() {
    let mebibytes: usize = std::env::args().nth(1).map_or(4096, |word| word.parse().expect("a number of mebibytes"));
    let options = Options { memory_bytes_max: mebibytes << 20, ..Options::default() };
    let name = RegionName::new(format!("lookaside example {}", std::process::id())).expect("it is a name");
    let scratch = Scratch(name);
    let attach = || {
        let start_time = Instant::now();
        let (store, start) = Store::attach(options.clone(), &scratch.0, NOW).expect("the region can be attached");
        println!("attach {:8.2} ms  {start:?}", start_time.elapsed().as_secs_f64() * 1e3);
        store
    };
    let mut store = attach();
    let mut items = 0u64;
    while !items.is_multiple_of(1 << 12) || store.statistics().evictions == 0 {
        let key = format!("a key of 24 bytes{items:07}");
        let item = NewItem { flags: 0, expiry: Expiry::Never, value: &VALUE };
        store.store(store.hasher().hash(key.as_bytes()), StoreMode::Set, &item, NOW);
        items += 1;
    }
    for _ in 0..ROUNDS {
        let start_time = Instant::now();
        let saved = store.save(NOW).expect("the region is there").expect("it has a region");
        println!("save   {:8.2} ms  {saved:?}", start_time.elapsed().as_secs_f64() * 1e3);
        store = attach();
    }
    let start_time = Instant::now();
    let reader = store.reader(NOW);
    let number = |get: u64| get.wrapping_mul(0x9e37_79b9_7f4a_7c15) % items;
    let keys = (0..GETS).map(|get| format!("a key of 24 bytes{:07}", number(get)));
    let hits = keys.filter(|key| reader.get(store.hasher().hash(key.as_bytes()), |_| ()).is_some()).count();
    println!("{GETS} first gets {:.2} ms, {hits} of them hits", start_time.elapsed().as_secs_f64() * 1e3);
}
