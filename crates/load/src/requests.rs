//! The requests of a load: which keys, in which order, and their bytes.
//!
//! A request is a get of some distinct keys, or a set of one. Keys are drawn evenly, by Zipf's law, or in order, each
//! once.

use crate::items::{DIGITS, Items, digits};
use fastrand::Rng;
use lookaside_workload::Zipf;
use std::io::Write as _;

/// Keys by Zipf's law are drawn before the load begins, and used again after this number: drawing one takes about as
/// long as a request for it.
const ZIPF_DRAWS: usize = 1 << 22;

/// A drawn key that the request has already is drawn again this many times; then the next free number is taken.
const REDRAWS_MAX: u32 = 16;

/// How keys are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyOrder {
    /// Evenly at random.
    Uniform,
    /// By Zipf's law with this exponent. Popular keys are spread over the numbers.
    Zipf(f64),
    /// In order, each once.
    Once,
}

/// What a load asks for.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// How keys are chosen.
    pub order: KeyOrder,
    /// The distinct keys of a get.
    pub keys_per_get: u32,
    /// The share of requests that are sets.
    pub set_share: f64,
}

/// A source of requests.
#[derive(Debug)]
pub struct Requests {
    keys: KeySource,
    count: u32,
    set_share: f64,
    keys_per_get: usize,
    get_line: Vec<u8>,
    key_bytes: usize,
    rng: Rng,
}

#[derive(Debug)]
enum KeySource {
    Uniform,
    Drawn { draws: Vec<u32>, next: usize },
    Once { next: u32 },
}

impl Requests {
    /// Requests for these items. One seed gives the same requests.
    pub fn new(items: &Items, mix: &Mix, seed: u64) -> Requests {
        let keys_per_get = mix.keys_per_get as usize;
        assert!(keys_per_get > 0 && mix.keys_per_get <= items.count(), "a get has distinct keys");
        let mut rng = Rng::with_seed(seed);
        let keys = match mix.order {
            KeyOrder::Uniform => KeySource::Uniform,
            KeyOrder::Zipf(exponent) => {
                KeySource::Drawn { draws: zipf_draws(items.count(), exponent, &mut rng), next: 0 }
            }
            KeyOrder::Once => KeySource::Once { next: 0 },
        };
        let mut get_line = b"get".to_vec();
        for _ in 0..keys_per_get {
            get_line.push(b' ');
            items.write_key(0, &mut get_line);
        }
        get_line.extend_from_slice(b"\r\n");
        let (count, key_bytes) = (items.count(), items.key_bytes());
        Requests { keys, count, set_share: mix.set_share, keys_per_get, get_line, key_bytes, rng }
    }

    /// Appends the next request to `out` and its keys to `keys`. Returns whether it is a set; `None` if there are no
    /// more requests.
    pub fn write_next(&mut self, items: &Items, keys: &mut Vec<u32>, out: &mut Vec<u8>) -> Option<bool> {
        let is_set = self.set_share > 0.0 && (self.set_share >= 1.0 || self.rng.f64() < self.set_share);
        let first = keys.len();
        let wanted = if is_set { 1 } else { self.keys_per_get };
        while keys.len() < first + wanted {
            match self.choose(&keys[first..]) {
                Some(item) => keys.push(item),
                None if keys.len() == first => return None,
                // The last get of keys in order may be shorter.
                None => break,
            }
        }
        if is_set {
            write_set(items, keys[first], out);
        } else if keys.len() == first + self.keys_per_get {
            self.write_whole_get(&keys[first..], out);
        } else {
            write_get(items, &keys[first..], out);
        }
        Some(is_set)
    }

    /// A key that the request does not have yet.
    fn choose(&mut self, chosen: &[u32]) -> Option<u32> {
        let mut item = self.draw()?;
        for _ in 0..REDRAWS_MAX {
            if !chosen.contains(&item) {
                return Some(item);
            }
            item = self.draw()?;
        }
        while chosen.contains(&item) {
            item = if item + 1 == self.count { 0 } else { item + 1 };
        }
        Some(item)
    }

    fn draw(&mut self) -> Option<u32> {
        match &mut self.keys {
            KeySource::Uniform => Some(self.rng.u32(..self.count)),
            KeySource::Drawn { draws, next } => {
                let item = draws[*next];
                *next = if *next + 1 == draws.len() { 0 } else { *next + 1 };
                Some(item)
            }
            KeySource::Once { next } => {
                let item = *next;
                *next += u32::from(item < self.count);
                (item < self.count).then_some(item)
            }
        }
    }

    /// Copies the line with all keys and then writes their digits into it.
    fn write_whole_get(&self, keys: &[u32], out: &mut Vec<u8>) {
        let begin = out.len();
        out.extend_from_slice(&self.get_line);
        let line = &mut out[begin + b"get".len()..];
        for (word, &item) in line.chunks_exact_mut(1 + self.key_bytes).zip(keys) {
            word[1 + self.key_bytes - DIGITS..].copy_from_slice(&digits(item));
        }
    }
}

fn write_get(items: &Items, keys: &[u32], out: &mut Vec<u8>) {
    out.extend_from_slice(b"get");
    for &item in keys {
        out.push(b' ');
        items.write_key(item, out);
    }
    out.extend_from_slice(b"\r\n");
}

fn write_set(items: &Items, item: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(b"set ");
    items.write_key(item, out);
    write!(out, " 0 0 {}\r\n", items.value_bytes(item)).expect("a vector takes all bytes");
    items.write_value(item, out);
    out.extend_from_slice(b"\r\n");
}

/// Items in the order of their draws. The popular ones are at random numbers: servers place items that are stored one
/// after another side by side.
fn zipf_draws(count: u32, exponent: f64, rng: &mut Rng) -> Vec<u32> {
    let zipf = Zipf::new(count as usize, exponent);
    let mut item_of_rank: Vec<u32> = (0..count).collect();
    rng.shuffle(&mut item_of_rank);
    (0..ZIPF_DRAWS).map(|_| item_of_rank[zipf.rank(rng.f64())]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(items: &Items, order: KeyOrder, keys_per_get: u32, set_share: f64) -> Requests {
        Requests::new(items, &Mix { order, keys_per_get, set_share }, 1)
    }

    #[test]
    fn get_has_distinct_keys_and_is_the_line_that_memcached_parses() {
        let items = Items::new(30, 24, 32..=32);
        for order in [KeyOrder::Uniform, KeyOrder::Zipf(1.2)] {
            let mut requests = requests(&items, order, 24, 0.0);
            for _ in 0..1_000 {
                let (mut keys, mut out, mut expected) = (Vec::new(), Vec::new(), Vec::new());
                assert_eq!(requests.write_next(&items, &mut keys, &mut out), Some(false));
                write_get(&items, &keys, &mut expected);
                assert_eq!(out, expected);
                assert!(keys.iter().all(|&item| item < 30));
                keys.sort_unstable();
                keys.dedup();
                assert_eq!(keys.len(), 24);
            }
        }
    }

    #[test]
    fn set_is_the_block_that_memcached_parses() {
        let items = Items::new(10, 13, 9..=9);
        let (mut keys, mut out) = (Vec::new(), Vec::new());
        assert_eq!(requests(&items, KeyOrder::Once, 1, 1.0).write_next(&items, &mut keys, &mut out), Some(true));
        assert!(out.starts_with(b"set load:00000000 0 0 9\r\n00000000"));
        assert!(out.ends_with(b"\r\n"));
        assert_eq!(out.len(), b"set load:00000000 0 0 9\r\n".len() + 9 + 2);
    }

    #[test]
    fn keys_in_order_come_once_and_end() {
        let items = Items::new(7, 24, 1..=1);
        let mut requests = requests(&items, KeyOrder::Once, 3, 0.0);
        let (mut keys, mut out) = (Vec::new(), Vec::new());
        while requests.write_next(&items, &mut keys, &mut out).is_some() {}
        assert_eq!(keys, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(out.iter().filter(|&&byte| byte == b'\n').count(), 3);
    }

    #[test]
    fn mix_has_the_share_of_sets() {
        let items = Items::new(1_000, 24, 1..=1);
        let mut requests = requests(&items, KeyOrder::Uniform, 1, 0.25);
        let sets = (0..100_000).filter(|_| requests.write_next(&items, &mut Vec::new(), &mut Vec::new()) == Some(true));
        let sets = sets.count();
        assert!((24_000..26_000).contains(&sets), "{sets} sets of 100,000");
    }

    #[test]
    fn zipf_prefers_few_keys_by_the_law() {
        const COUNT: u32 = 1_000;
        let items = Items::new(COUNT, 24, 1..=1);
        let mut requests = requests(&items, KeyOrder::Zipf(1.0), 1, 0.0);
        let (mut keys, mut out) = (Vec::new(), Vec::new());
        (0..200_000).for_each(|_| {
            requests.write_next(&items, &mut keys, &mut out);
            out.clear();
        });
        let mut counts = vec![0; COUNT as usize];
        keys.iter().for_each(|&item| counts[item as usize] += 1);
        counts.sort_unstable_by(|one, other| other.cmp(one));
        // The harmonic number of 1,000 is 7.485.
        let share = f64::from(counts[0]) / 200_000.0;
        assert!((share * 7.485 - 1.0).abs() < 0.05, "the first key has {share}");
        let ratio = f64::from(counts[0]) / f64::from(counts[9]);
        assert!((8.0..12.5).contains(&ratio), "the tenth key is asked for {ratio} times less");
    }

    #[test]
    fn seed_gives_the_same_requests() {
        let items = Items::new(1_000, 24, 1..=1);
        let bytes = |seed| {
            let mix = Mix { order: KeyOrder::Uniform, keys_per_get: 5, set_share: 0.5 };
            let mut requests = Requests::new(&items, &mix, seed);
            let mut out = Vec::new();
            for _ in 0..100 {
                requests.write_next(&items, &mut Vec::new(), &mut out);
            }
            out
        };
        assert_eq!(bytes(1), bytes(1));
        assert_ne!(bytes(1), bytes(2));
    }
}
