//! SpookyHash V2 (Bob Jenkins, public domain), the 32 bits of it that WeightedCh3 and shadows read.
//!
//! ```text
//!   below 192 bytes   4 words of state, 32 bytes a step, the last 0..16 bytes and the length into two of them
//!   from 192 bytes    12 words of state, 96 bytes a step, the rest filled up with 0s, its length in the last byte
//! ```
//!
//! Words are little endian on every machine, as on those that mcrouter runs on.

/// The initial value of words without a seed.
const CONSTANT: u64 = 0xdead_beef_dead_beef;

/// Texts of this length and longer use the long form.
const LONG_BYTES: usize = 192;

const WORDS: usize = 12;

/// The low half of the 64-bit hash of `text`.
pub(crate) fn spooky32(text: &[u8], seed: u32) -> u32 {
    match text.len() < LONG_BYTES {
        true => short(text, seed.into()) as u32,
        false => long(text, seed.into()) as u32,
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

fn short(text: &[u8], seed: u64) -> u64 {
    let [mut a, mut b, mut c, mut d] = [seed, seed, CONSTANT, CONSTANT];
    let (blocks, mut rest) = text.as_chunks::<32>();
    for block in blocks {
        c = c.wrapping_add(word(&block[..8]));
        d = d.wrapping_add(word(&block[8..16]));
        [a, b, c, d] = short_mix([a, b, c, d]);
        a = a.wrapping_add(word(&block[16..24]));
        b = b.wrapping_add(word(&block[24..]));
    }
    if rest.len() >= 16 {
        c = c.wrapping_add(word(&rest[..8]));
        d = d.wrapping_add(word(&rest[8..16]));
        [a, b, c, d] = short_mix([a, b, c, d]);
        rest = &rest[16..];
    }
    d = d.wrapping_add((text.len() as u64) << 56);
    if rest.is_empty() {
        c = c.wrapping_add(CONSTANT);
        d = d.wrapping_add(CONSTANT);
    } else {
        let (low, high) = rest.split_at(rest.len().min(8));
        c = c.wrapping_add(word(low));
        d = d.wrapping_add(word(high));
    }
    short_end([a, b, c, d])
}

fn short_mix(mut h: [u64; 4]) -> [u64; 4] {
    const ROTATIONS: [u32; 12] = [50, 52, 30, 41, 54, 48, 38, 37, 62, 34, 5, 36];
    for (step, rotation) in ROTATIONS.into_iter().enumerate() {
        let at = (step + 2) % 4;
        h[at] = h[at].rotate_left(rotation).wrapping_add(h[(at + 1) % 4]);
        h[(at + 2) % 4] ^= h[at];
    }
    h
}

fn short_end(mut h: [u64; 4]) -> u64 {
    const ROTATIONS: [u32; 11] = [15, 52, 26, 51, 28, 9, 47, 54, 32, 25, 63];
    for (step, rotation) in ROTATIONS.into_iter().enumerate() {
        let (at, before) = ((step + 3) % 4, (step + 2) % 4);
        h[at] ^= h[before];
        h[before] = h[before].rotate_left(rotation);
        h[at] = h[at].wrapping_add(h[before]);
    }
    h[0]
}

fn long(text: &[u8], seed: u64) -> u64 {
    let mut state: [u64; WORDS] = std::array::from_fn(|at| if at % 3 == 2 { CONSTANT } else { seed });
    let (blocks, rest) = text.as_chunks::<{ WORDS * 8 }>();
    for block in blocks {
        mix(&mut state, block);
    }
    let mut last = [0; WORDS * 8];
    last[..rest.len()].copy_from_slice(rest);
    last[WORDS * 8 - 1] = rest.len() as u8;
    for (state, bytes) in state.iter_mut().zip(last.chunks(8)) {
        *state = state.wrapping_add(word(bytes));
    }
    for _ in 0..3 {
        end_part(&mut state);
    }
    state[0]
}

fn mix(s: &mut [u64; WORDS], block: &[u8; WORDS * 8]) {
    const ROTATIONS: [u32; WORDS] = [11, 32, 43, 31, 17, 28, 39, 57, 55, 54, 22, 46];
    for (at, rotation) in ROTATIONS.into_iter().enumerate() {
        let (before, after) = ((at + 11) % WORDS, (at + 1) % WORDS);
        s[at] = s[at].wrapping_add(word(&block[at * 8..at * 8 + 8]));
        s[(at + 2) % WORDS] ^= s[(at + 10) % WORDS];
        s[before] ^= s[at];
        s[at] = s[at].rotate_left(rotation);
        s[before] = s[before].wrapping_add(s[after]);
    }
}

fn end_part(h: &mut [u64; WORDS]) {
    const ROTATIONS: [u32; WORDS] = [44, 15, 34, 21, 38, 33, 10, 13, 38, 53, 42, 54];
    for (step, rotation) in ROTATIONS.into_iter().enumerate() {
        let (into, from) = ((step + 11) % WORDS, (step + 1) % WORDS);
        h[into] = h[into].wrapping_add(h[from]);
        h[(step + 2) % WORDS] ^= h[into];
        h[from] = h[from].rotate_left(rotation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of `bytes seed hash`, written by the script beside the file, which defines the text.
    #[test]
    fn it_equals_the_authors_hash() {
        let lines: Vec<&str> = include_str!("../../tests/vectors/spooky.txt").lines().collect();
        assert_eq!(lines.len(), 108);
        for line in lines {
            let [bytes, seed, hash] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let text: Vec<u8> = (0..bytes.parse::<usize>().unwrap()).map(|i| (7 * i + 3) as u8).collect();
            assert_eq!(spooky32(&text, seed.parse().unwrap()).to_string(), hash, "{line}");
        }
    }
}
