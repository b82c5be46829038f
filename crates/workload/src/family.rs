//! A family of short-lived keys among long-lived ones (§6.3 of the paper): each is stored with a short exptime, read a
//! few times within a second, and never again. Expired items use memory until they are evicted: in the paper 6 % of a
//! pool's, until the transient item cache reduced that to 0.3 % at the same hit rate.
//!
//! The long-lived keys are more than fit, and of the same sizes as the family's: with slab classes of its own a family
//! would reuse the memory of its own expired items.

use crate::trace::Trace;
use fastrand::Rng;

/// The number of long-lived objects.
pub const LONG_LIVED_OBJECTS: u32 = 160_000;
/// The exptime of the family's keys, in seconds.
pub const FAMILY_EXPTIME_S: u32 = 2;

const VALUE_BYTES: std::ops::Range<u32> = 60..100;
const LONG_LIVED_GETS_PER_S: usize = 6_000;
const FAMILY_KEYS_PER_S: usize = 160;
/// The times at which a key of the family is read, in milliseconds from its first get: the later gets hit.
const FAMILY_GETS_MS: [usize; 4] = [0, 150, 400, 800];
const FAMILY_KEY_BYTES: usize = 24;

/// A trace of the family and the long-lived objects over `seconds`. At first every long-lived object is read once.
pub fn family(seconds: usize, seed: u64) -> Trace {
    let mut rng = Rng::with_seed(seed);
    let key_bytes = FAMILY_KEY_BYTES as u32;
    let mut object_bytes: Vec<u32> = (0..LONG_LIVED_OBJECTS).map(|_| key_bytes + rng.u32(VALUE_BYTES)).collect();
    let mut object_exptime_s = vec![0; LONG_LIVED_OBJECTS as usize];
    // (milliseconds, object)
    let mut requests: Vec<(usize, u32)> = (0..LONG_LIVED_OBJECTS).map(|object| (0, object)).collect();
    for index in 0..seconds * LONG_LIVED_GETS_PER_S {
        // Half of the gets go to a tenth of the objects.
        let reach = if rng.bool() { LONG_LIVED_OBJECTS / 10 } else { LONG_LIVED_OBJECTS };
        requests.push((index * 1_000 / LONG_LIVED_GETS_PER_S, rng.u32(..reach)));
    }
    for index in 0..seconds * FAMILY_KEYS_PER_S {
        let first_ms = index * 1_000 / FAMILY_KEYS_PER_S;
        let object = object_bytes.len() as u32;
        object_bytes.push(key_bytes + rng.u32(VALUE_BYTES));
        object_exptime_s.push(FAMILY_EXPTIME_S);
        requests.extend(FAMILY_GETS_MS.map(|after_ms| (first_ms + after_ms, object)));
    }
    requests.sort_by_key(|&(ms, _)| ms);
    let mut requests_per_s = vec![0; seconds + 1];
    requests.iter().for_each(|&(ms, _)| requests_per_s[ms / 1_000] += 1);
    Trace {
        requests: requests.into_iter().map(|(_, object)| object).collect(),
        verbs: Vec::new(),
        object_bytes,
        object_exptime_s,
        requests_per_s,
        key_bytes: FAMILY_KEY_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_of_the_family_is_read_within_its_exptime_only() {
        const SECONDS: usize = 10;
        let trace = family(SECONDS, 1);
        assert_eq!(trace.requests_per_s.iter().sum::<u32>() as usize, trace.requests.len());
        let last = trace.object_bytes.len() as u32 - 1;
        let gets = trace.requests.iter().filter(|&&object| object == last).count();
        assert_eq!((trace.exptime_s(last), gets), (FAMILY_EXPTIME_S, FAMILY_GETS_MS.len()));
        assert_eq!(trace.exptime_s(LONG_LIVED_OBJECTS - 1), 0);
        assert_eq!(last + 1 - LONG_LIVED_OBJECTS, (SECONDS * FAMILY_KEYS_PER_S) as u32);
        assert!(FAMILY_GETS_MS.iter().all(|&after_ms| after_ms < 1_000 * (FAMILY_EXPTIME_S as usize - 1)));
    }
}
