//! Families of keys in a trace: the keys with one prefix, and the factors by which the paper decides where they are
//! cached (§4.2, Table 1): users per key, gets per second, the size of values.
//!
//! Requests are counted all. What belongs to a key is kept for a sample of the keys, by their hashes, so that memory is
//! bounded: when there are too many, every other one is dropped. So it is with the clients of one second.

use crate::csv::CsvRequest;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
};

/// Keys of the sample.
const KEYS_MAX: usize = 2_000_000;
/// Pairs of a family and a client that has read it in the present second: a trace may have one time for all requests.
const READERS_MAX: usize = 1_000_000;
/// Further families are one, [`OTHER_FAMILIES`].
const FAMILIES_MAX: usize = 1_000;
/// The users of a key are counted up to this number.
pub const USERS_MAX: usize = 64;
/// The name of the families beyond [`FAMILIES_MAX`].
pub const OTHER_FAMILIES: &str = "(others)";
/// The name of the family of keys without a separator.
pub const NO_FAMILY: &str = "(no prefix)";

/// Measures the families of keys in a trace, request by request.
pub struct FamilyMeter {
    separator: String,
    clusters: u32,
    keys_max: usize,
    /// A key is in the sample if its hash is a multiple of this, a power of two.
    sample: u64,
    families: BTreeMap<String, Counts>,
    keys: HashMap<u64, KeyMeter>,
    readers: SecondReaders,
    present_s: usize,
    first_s: Option<usize>,
    last_s: usize,
    has_clients: bool,
}

#[derive(Default)]
struct Counts {
    number: u64,
    gets: u64,
    get_bytes: u64,
    sets: u64,
    written_bytes: u64,
    deletes: u64,
    /// Pairs of a client and a second in which it read keys of the family.
    pages: u64,
}

struct KeyMeter {
    family: u64,
    gets: u32,
    key_bytes: u32,
    value_bytes: u32,
    users: Vec<u32>,
}

/// The clients that have read each family in the present second, or a sample of them.
struct SecondReaders {
    /// Hashes of pairs of a family and a client.
    pairs: HashSet<u64>,
    pairs_max: usize,
    /// A pair is in the sample if its hash is a multiple of this, a power of two.
    sample: u64,
}

impl SecondReaders {
    fn new(pairs_max: usize) -> SecondReaders {
        SecondReaders { pairs: HashSet::new(), pairs_max, sample: 1 }
    }

    /// Another second begins.
    fn clear(&mut self) {
        self.pairs.clear();
        self.sample = 1;
    }

    /// Records that a client reads a family. Returns how many new pairs that stands for, 0 if it has read it before.
    fn record(&mut self, family: u64, client: &str) -> u64 {
        let pair = hash((family, client));
        if !pair.is_multiple_of(self.sample) || !self.pairs.insert(pair) {
            return 0;
        }
        let pairs = self.sample;
        if self.pairs.len() > self.pairs_max {
            self.sample *= 2;
            let sample = self.sample;
            self.pairs.retain(|pair| pair.is_multiple_of(sample));
        }
        pairs
    }
}

/// What a trace shows of a family of keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// The prefix, without the separator.
    pub name: String,
    /// Keys, estimated from the sample.
    pub keys: u64,
    /// Gets per second, over the whole trace.
    pub gets_per_s: f64,
    /// Bytes of the values that gets return, per second, if all hit.
    pub get_bytes_per_s: f64,
    /// Stores per second.
    pub sets_per_s: f64,
    /// Bytes stored per second.
    pub written_bytes_per_s: f64,
    /// Deletes per second.
    pub deletes_per_s: f64,
    /// Clients that used a key, the median over keys, at most [`USERS_MAX`]; `None` if the trace has no clients.
    pub users_median: Option<u32>,
    /// The size of a value in bytes, the median over keys.
    pub value_bytes_median: u32,
    /// The bytes of all keys and values, estimated from the sample.
    pub data_bytes: u64,
    /// Keys that a client reads within one second, on average: an upper bound of its batches.
    pub keys_per_page: f64,
    /// The bytes that the clusters hold of it together, if each get goes to one of them at random, less one copy.
    pub duplicate_bytes: u64,
}

impl FamilyMeter {
    /// Begins; a family is what precedes the first `separator` in a key. `clusters` share the traffic.
    pub fn new(separator: &str, clusters: u32) -> FamilyMeter {
        FamilyMeter {
            separator: separator.to_owned(),
            clusters,
            keys_max: KEYS_MAX,
            sample: 1,
            families: BTreeMap::new(),
            keys: HashMap::new(),
            readers: SecondReaders::new(READERS_MAX),
            present_s: 0,
            first_s: None,
            last_s: 0,
            has_clients: false,
        }
    }

    /// Measures one request.
    pub fn record(&mut self, request: &CsvRequest<'_>) {
        self.first_s.get_or_insert(request.time_s);
        self.last_s = self.last_s.max(request.time_s);
        if request.time_s != self.present_s {
            self.present_s = request.time_s;
            self.readers.clear();
        }
        self.has_clients |= request.client.is_some();
        let name = match request.key.split_once(self.separator.as_str()) {
            Some((prefix, _)) => prefix,
            None => NO_FAMILY,
        };
        let is_full = self.families.len() >= FAMILIES_MAX && !self.families.contains_key(name);
        let name = if is_full { OTHER_FAMILIES } else { name };
        if !self.families.contains_key(name) {
            let number = self.families.len() as u64;
            self.families.insert(name.to_owned(), Counts { number, ..Counts::default() });
        }
        let counts = self.families.get_mut(name).expect("inserted above");
        let is_get = request.operation.is_none_or(|operation| operation.starts_with("get"));
        match request.operation {
            _ if is_get => {
                counts.gets += 1;
                counts.get_bytes += u64::from(request.value_bytes);
                counts.pages += self.readers.record(counts.number, request.client.unwrap_or_default());
            }
            Some("delete") => counts.deletes += 1,
            _ => {
                counts.sets += 1;
                counts.written_bytes += u64::from(request.key_bytes) + u64::from(request.value_bytes);
            }
        }
        let family = counts.number;
        self.record_key(request, family, is_get);
    }

    fn record_key(&mut self, request: &CsvRequest<'_>, family: u64, is_get: bool) {
        let key = hash(request.key);
        if !key.is_multiple_of(self.sample) {
            return;
        }
        let meter = self.keys.entry(key).or_insert_with(|| KeyMeter {
            family,
            gets: 0,
            key_bytes: request.key_bytes,
            value_bytes: 0,
            users: Vec::new(),
        });
        meter.gets = meter.gets.saturating_add(u32::from(is_get));
        meter.value_bytes = meter.value_bytes.max(request.value_bytes);
        if let Some(client) = request.client {
            let user = hash(client) as u32;
            if meter.users.len() < USERS_MAX && !meter.users.contains(&user) {
                meter.users.push(user);
            }
        }
        if self.keys.len() > self.keys_max {
            self.sample *= 2;
            let sample = self.sample;
            self.keys.retain(|key, _| key.is_multiple_of(sample));
        }
    }

    /// The families, by name, of a trace that begins with its first request and ends with its last one. `None` if there
    /// were no requests.
    pub fn families(&self) -> Option<Vec<Family>> {
        Some(self.families_over((self.last_s - self.first_s? + 1) as f64))
    }

    /// The families, by name, of requests that took `seconds` with the time before the first and after the last one.
    pub fn families_over(&self, seconds: f64) -> Vec<Family> {
        let mut keys_of: HashMap<u64, Vec<&KeyMeter>> = HashMap::new();
        for key in self.keys.values() {
            keys_of.entry(key.family).or_default().push(key);
        }
        let family = |(name, counts): (&String, &Counts)| {
            let keys = keys_of.get(&counts.number).map(Vec::as_slice).unwrap_or_default();
            let bytes = |key: &KeyMeter| u64::from(key.key_bytes) + u64::from(key.value_bytes);
            let duplicates = |key: &&KeyMeter| bytes(key) as f64 * (expected_copies(key.gets, self.clusters) - 1.0);
            Family {
                name: name.clone(),
                keys: keys.len() as u64 * self.sample,
                gets_per_s: counts.gets as f64 / seconds,
                get_bytes_per_s: counts.get_bytes as f64 / seconds,
                sets_per_s: counts.sets as f64 / seconds,
                written_bytes_per_s: counts.written_bytes as f64 / seconds,
                deletes_per_s: counts.deletes as f64 / seconds,
                users_median: self.has_clients.then(|| median(keys.iter().map(|key| key.users.len() as u32))),
                value_bytes_median: median(keys.iter().map(|key| key.value_bytes)),
                data_bytes: keys.iter().map(|key| bytes(key)).sum::<u64>() * self.sample,
                keys_per_page: counts.gets as f64 / counts.pages.max(1) as f64,
                duplicate_bytes: keys.iter().map(duplicates).sum::<f64>() as u64 * self.sample,
            }
        };
        self.families.iter().map(family).collect()
    }
}

/// The number of clusters that hold a key after `gets` gets, each of which goes to one of `clusters` at random.
fn expected_copies(gets: u32, clusters: u32) -> f64 {
    let clusters = f64::from(clusters);
    (clusters * (1.0 - (1.0 - 1.0 / clusters).powf(f64::from(gets)))).max(1.0)
}

fn median(values: impl Iterator<Item = u32>) -> u32 {
    let mut values: Vec<u32> = values.collect();
    if values.is_empty() {
        return 0;
    }
    let middle = values.len() / 2;
    *values.select_nth_unstable(middle).1
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(clusters: u32, lines: &str) -> Vec<Family> {
        let mut meter = FamilyMeter::new(":", clusters);
        lines.lines().for_each(|line| meter.record(&CsvRequest::parse(line).unwrap()));
        meter.families().unwrap()
    }

    #[test]
    fn the_factors_of_a_family_are_those_of_its_requests() {
        let families = measure(
            2,
            "10,a:1,3,97,u1,get,0\n10,a:2,3,197,u1,get,0\n11,a:2,3,197,u2,get,0\n11,b:1,3,7,u1,set,0\n\
             12,b:1,3,0,u1,delete,0\n13,plain,5,5,u1,get,0",
        );
        let names: Vec<&str> = families.iter().map(|family| family.name.as_str()).collect();
        assert_eq!(names, [NO_FAMILY, "a", "b"]);
        let a = &families[1];
        assert_eq!((a.keys, a.users_median, a.value_bytes_median, a.data_bytes), (2, Some(2), 197, 300));
        assert_eq!((a.gets_per_s, a.get_bytes_per_s), (0.75, (97.0 + 2.0 * 197.0) / 4.0));
        assert_eq!(a.keys_per_page, 1.5);
        // a:1 was read once: one copy. a:2 was read twice: 1.5 copies of 200 bytes are expected.
        assert_eq!(a.duplicate_bytes, 100);
        let b = &families[2];
        assert_eq!((b.sets_per_s, b.written_bytes_per_s, b.deletes_per_s, b.data_bytes), (0.25, 2.5, 0.25, 10));
    }

    #[test]
    fn a_sample_estimates_what_all_keys_have() {
        let mut meter = FamilyMeter::new(":", 4);
        meter.keys_max = 1_000;
        for number in 0..20_000 {
            let line = format!("1,a:{number},10,90,u{number},get,0");
            meter.record(&CsvRequest::parse(&line).unwrap());
        }
        assert!(meter.keys.len() <= 1_000);
        let family = &meter.families().unwrap()[0];
        assert!((17_000..23_000).contains(&family.keys), "{}", family.keys);
        assert_eq!(family.data_bytes, family.keys * 100);
        assert_eq!((family.gets_per_s, family.users_median), (20_000.0, Some(1)));
    }

    /// The pairs of one second were kept all, however many.
    #[test]
    fn the_readers_of_one_second_are_bounded_and_estimated() {
        let mut meter = FamilyMeter::new(":", 4);
        meter.readers = SecondReaders::new(1_000);
        for number in 0..40_000 {
            let line = format!("1,a:{number},10,90,u{},get,0", number / 2);
            meter.record(&CsvRequest::parse(&line).unwrap());
            assert!(meter.readers.pairs.len() <= 1_000);
        }
        let keys_per_page = meter.families().unwrap()[0].keys_per_page;
        assert!((1.7..2.4).contains(&keys_per_page), "{keys_per_page}");
        // The next second begins with all of its clients.
        let before = meter.families["a"].pages;
        for number in 0..1_000 {
            let line = format!("2,a:{number},10,90,u{number},get,0");
            meter.record(&CsvRequest::parse(&line).unwrap());
        }
        assert_eq!(meter.families["a"].pages - before, 1_000);
    }

    #[test]
    fn rates_are_those_of_the_time_that_was_watched() {
        let mut meter = FamilyMeter::new(":", 2);
        for second in 3..5 {
            meter.record(&CsvRequest::parse(&format!("{second},a:1,3,97,u,get,0")).unwrap());
        }
        assert_eq!(meter.families().unwrap()[0].gets_per_s, 1.0);
        assert_eq!(meter.families_over(20.0)[0].gets_per_s, 0.1);
    }

    #[test]
    fn a_trace_without_clients_has_no_users() {
        assert_eq!(measure(2, "1,a:1,3,97")[0].users_median, None);
    }
}
