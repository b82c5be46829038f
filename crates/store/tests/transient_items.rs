//! §6.3 of the paper in a full memory: a family of keys with a short exptime, read within a moment and never again,
//! used 6 % of a pool; with the transient item cache 0.3 %, at the same hit rate.

use lookaside_protocol::StoreMode;
use lookaside_store::{Expiry, KeyHasher, NewItem, Now, Options, Statistics, Store};

const START_MS: u64 = 1_700_000_000_000;
const SECONDS: u64 = 150;
/// More than fit.
const LONG_LIVED: u64 = 41_000;
const LONG_LIVED_GETS_PER_S: u64 = 1_500;
const FAMILY_KEYS_PER_S: u64 = 30;
const FAMILY_EXPTIME_S: i64 = 2;

struct Outcome {
    family_share: f64,
    family_hit_ratio: f64,
    others_hit_ratio: f64,
    statistics: Statistics,
}

struct Run {
    store: Store,
    hits: [u64; 2],
    gets: [u64; 2],
}

impl Run {
    /// Look-aside: a get; on a miss, a set.
    fn read(&mut self, name: &str, family: bool, ms: u64) {
        let (key, now) = (KeyHasher::new(0).hash(name.as_bytes()), Now { unix_ms: START_MS + ms });
        let is_hit = self.store.reader(now).get(key, |_| ()).is_some();
        self.hits[usize::from(family)] += u64::from(is_hit);
        self.gets[usize::from(family)] += 1;
        if !is_hit {
            let expiry = if family { Expiry::from_exptime(FAMILY_EXPTIME_S, now) } else { Expiry::Never };
            self.store.store(key, StoreMode::Set, &NewItem { flags: 0, expiry, value: &[b'v'; 80] }, now);
        }
    }
}

fn spread(number: u64) -> u64 {
    let mixed = (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

fn family_in_a_full_memory(transient_s: u32) -> Outcome {
    let options = Options { memory_bytes_max: 4 << 20, item_bytes_max: 64 << 10, transient_s, ..Options::default() };
    let mut run = Run { store: Store::new(options).expect("the options are fine"), hits: [0; 2], gets: [0; 2] };
    (0..LONG_LIVED).for_each(|number| run.read(&format!("long-lived:{number}"), false, 0));
    for step in 0..SECONDS * LONG_LIVED_GETS_PER_S {
        let ms = step * 1_000 / LONG_LIVED_GETS_PER_S;
        let dice = spread(step);
        let reach = if dice >> 40 & 1 == 0 { LONG_LIVED / 10 } else { LONG_LIVED };
        run.read(&format!("long-lived:{}", dice % reach), false, ms);
        let steps_per_key = LONG_LIVED_GETS_PER_S / FAMILY_KEYS_PER_S;
        // The newest key, and the one from ten keys, a third of a second, ago.
        let (key, phase) = (step / steps_per_key, step % steps_per_key);
        match phase {
            0 => run.read(&format!("family:{key}"), true, ms),
            1 if key >= 10 => run.read(&format!("family:{}", key - 10), true, ms),
            _ => {}
        }
    }
    run.store.audit();
    let now = Now { unix_ms: START_MS + SECONDS * 1_000 };
    let items = run.store.statistics().items;
    let has = |number: &u64| {
        let name = format!("long-lived:{number}");
        run.store.reader(now).get(KeyHasher::new(0).hash(name.as_bytes()), |_| ()).is_some()
    };
    let long_lived = (0..LONG_LIVED).filter(has).count() as u64;
    Outcome {
        family_share: (items - long_lived) as f64 / items as f64,
        family_hit_ratio: run.hits[1] as f64 / run.gets[1] as f64,
        others_hit_ratio: run.hits[0] as f64 / run.gets[0] as f64,
        statistics: run.store.statistics(),
    }
}

/// Once timers got free pages only, and none when items held them all: in a full memory no item had a timer.
#[test]
#[cfg_attr(miri, ignore = "too long")]
fn timers_shrink_a_family_in_a_full_memory_to_a_twentieth() {
    let (off, on) = (family_in_a_full_memory(0), family_in_a_full_memory(60));
    let summary = format!(
        "share {:.4} and {:.4}; hit ratio of the family {:.4} and {:.4}, of the others {:.4} and {:.4}; {:?}",
        off.family_share,
        on.family_share,
        off.family_hit_ratio,
        on.family_hit_ratio,
        off.others_hit_ratio,
        on.others_hit_ratio,
        on.statistics
    );
    println!("{summary}");
    assert!(off.statistics.evictions > 10_000 && on.statistics.evictions > 10_000, "the memory was full: {summary}");
    assert!(off.family_share > 0.03 && on.family_share * 20.0 < off.family_share, "{summary}");
    // A page that moves may evict a young item.
    assert!(on.family_hit_ratio >= off.family_hit_ratio - 0.001, "{summary}");
    assert!(on.others_hit_ratio > off.others_hit_ratio, "{summary}");
    assert!(on.statistics.transients_untimed < 100, "{summary}");
}

/// Once a timer that started while a wheel lagged behind made it skip due entries, which expired a minute later.
#[test]
fn timers_that_start_while_a_wheel_lags_lose_no_entry() {
    const DUE: u64 = 40_000;
    const LATE: u64 = 50;
    let options = Options { memory_bytes_max: 16 << 20, item_bytes_max: 64 << 10, ..Options::default() };
    let store = Store::new(options).expect("the options are fine");
    let set = |name: String, exptime_s: i64, after_s: u64| {
        let now = Now { unix_ms: START_MS + after_s * 1_000 };
        let item = NewItem { flags: 0, expiry: Expiry::from_exptime(exptime_s, now), value: b"value" };
        store.store(KeyHasher::new(0).hash(name.as_bytes()), StoreMode::Set, &item, now);
    };
    let items_at = |after_s: u64| {
        store.tick(Now { unix_ms: START_MS + after_s * 1_000 });
        store.statistics().items
    };
    (0..DUE).for_each(|number| set(format!("due:{number}"), 2, 0));
    assert_eq!(store.statistics().transients_untimed, 0);
    // While there are more blocks than these verbs handle.
    (0..LATE).for_each(|number| set(format!("late:{number}"), 30, 30));
    (0..LATE).for_each(|number| set(format!("last:{number}"), 60, 30));
    assert!(store.statistics().items > DUE / 2, "the wheels lag");
    let untimed = store.statistics().transients_untimed;
    assert!(untimed > 0, "a wheel that lags starts no timer beyond its end");
    assert_eq!(items_at(30), 2 * LATE);
    assert_eq!(items_at(60), LATE);
    assert_eq!(items_at(90), untimed);
    store.audit();
}
