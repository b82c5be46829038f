//! WeightedCh3: Ch3, where a server of weight w accepts the part w of its keys.
//!
//! ```text
//!   try 0: the key     try i: the key with the digits of i - 1 behind it, the lowest digit first
//!   server = Ch3(text);  SpookyHash(text) below weight x 2^32? accepted, otherwise the next try; the 32nd: accepted
//! ```
//!
//! Lowering one weight moves keys of that server only, to all others. A server of weight 0 gets a key only if all tries
//! lead to such servers.

use super::{append::with_appended, ch3::ch3, spooky::spooky32};

const SEED: u32 = 0xface_2014;

/// The number of tries; the last one is accepted whatever its weight.
const TRIES: u32 = 32;

/// The server for `key`; `weights` are in parts of 2^32.
pub(super) fn pick(key: &[u8], weights: &[u64]) -> u32 {
    let servers = weights.len() as u32;
    let mut tried = try_server(key, weights);
    for number in 0..TRIES - 1 {
        if let (server, true) = tried {
            return server;
        }
        let (digits, length) = digits(number);
        tried = with_appended(key, &digits[..length], |text| try_server(text, weights));
    }
    tried.0.min(servers - 1)
}

/// A server, and whether it accepts the key.
fn try_server(text: &[u8], weights: &[u64]) -> (u32, bool) {
    let server = ch3(text, weights.len() as u32);
    (server, u64::from(spooky32(text, SEED)) < weights[server as usize])
}

/// The decimal digits of a number below 100, the lowest first.
fn digits(number: u32) -> ([u8; 2], usize) {
    let digit = |number: u32| b'0' + (number % 10) as u8;
    ([digit(number), digit(number / 10)], if number < 10 { 1 } else { 2 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: u64 = 1 << 32;

    #[test]
    fn with_whole_weights_it_is_ch3() {
        for n in 0..2_000 {
            let key = format!("key:{n}");
            assert_eq!(pick(key.as_bytes(), &[WHOLE; 10]), ch3(key.as_bytes(), 10));
        }
    }

    #[test]
    fn a_lower_weight_moves_only_keys_of_that_server() {
        let (before, mut after) = ([WHOLE; 10], [WHOLE; 10]);
        after[3] = WHOLE / 4;
        let (mut moved, mut stayed) = (0, 0);
        for n in 0..20_000 {
            let key = format!("key:{n}");
            match (pick(key.as_bytes(), &before), pick(key.as_bytes(), &after)) {
                (3, 3) => stayed += 1,
                (3, _) => moved += 1,
                (home, now) => assert_eq!(home, now, "{key}"),
            }
        }
        // Of the keys that are tried again a tenth comes back, and a quarter of that is accepted.
        let share = f64::from(stayed) / f64::from(stayed + moved);
        assert!((0.25..0.30).contains(&share), "{share} stayed");
    }

    #[test]
    fn digits_are_reversed() {
        assert_eq!(
            [0, 9, 10, 31].map(|n| {
                let (digits, length) = digits(n);
                digits[..length].to_vec()
            }),
            [b"0".to_vec(), b"9".to_vec(), b"01".to_vec(), b"13".to_vec(),]
        );
        let key = b"key";
        assert_eq!(pick(key, &[0; 8]), ch3(b"key03", 8), "the last try has the number 30");
    }
}
