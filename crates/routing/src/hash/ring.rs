//! Rings: each server has many points on a circle of 32-bit numbers, and a key belongs to the next one.
//! What other clients call ketama differs in the names of servers, the number of points, and the choice of
//! the next point.
//!
//! | client | points for each of n servers | text that is hashed, `i` from 0 | next |
//! |---|---|---|---|
//! | libmemcached, unweighted | 100 | one-at-a-time of `host:port-i` | at or after |
//! | libmemcached, weighted; twemproxy | 160 n weight / all weights, rounded down to a multiple of 4 | MD5 of `host:port-i`, four times 32 bits | at or after |
//! | spymemcached | 160 | MD5 of `address:port-i`, four times 32 bits | at or after |
//! | dalli | 160 n weight / all weights, rounded down | SHA-1 of `host:port:i`, the first 32 bits | at or before |
//!
//! libmemcached and twemproxy leave out `:port` if it is 11211.
//!
//! Of equal points, which are very rare among the 2^32, the first server's counts, for spymemcached the last's, as in
//! its map. Cost: one binary search for each key, 8 bytes for each point.

use super::digest::{first_word, one_at_a_time};
use md5::{Digest as _, Md5};
use sha1::Sha1;

/// Points in the order of the circle.
#[derive(Debug)]
pub(super) struct Ring {
    points: Box<[u32]>,
    /// The server of each point.
    servers: Box<[u32]>,
    at_or_before: bool,
}

impl Ring {
    fn from_points(mut points: Vec<(u32, u32)>, at_or_before: bool) -> Self {
        points.sort_by_key(|&(point, _)| point);
        let (points, servers): (Vec<u32>, Vec<u32>) = points.into_iter().unzip();
        Ring { points: points.into(), servers: servers.into(), at_or_before }
    }

    /// The server of the next point from `at`.
    pub(super) fn pick(&self, at: u32) -> u32 {
        let next = match self.at_or_before {
            true => self.points.partition_point(|&point| point <= at).checked_sub(1).unwrap_or(self.points.len() - 1),
            false => self.points.partition_point(|&point| point < at) % self.points.len(),
        };
        self.servers[next]
    }

    pub(super) fn libmemcached(names: &[String]) -> Self {
        const POINTS: u32 = 100;
        let of = |server: usize, i: u32| (one_at_a_time(format!("{}-{i}", names[server]).as_bytes()), server as u32);
        let points = (0..names.len()).flat_map(|server| (0..POINTS).map(move |i| of(server, i)));
        Ring::from_points(points.collect(), false)
    }

    /// libmemcached's ring with weights, and twemproxy's.
    pub(super) fn ketama(names: &[String], weights: &[f64]) -> Self {
        let total: f32 = weights.iter().map(|&weight| weight as f32).sum();
        let quarters = |weight: f64| {
            // Single precision and this order of operations matter, since the result is rounded down.
            let part = weight as f32 / total;
            (part * (POINTS / 4) as f32 * names.len() as f32 + 1e-10).floor() as u32
        };
        let counted = names.iter().zip(weights).map(|(name, &weight)| (name, quarters(weight)));
        Ring::from_points(md5_points(counted), false)
    }

    pub(super) fn spymemcached(names: &[String]) -> Self {
        let mut points = md5_points(names.iter().map(|name| (name, POINTS / 4)));
        points.reverse(); // The last of two equal points replaces the first.
        Ring::from_points(points, false)
    }

    pub(super) fn dalli(names: &[String], weights: &[f64]) -> Self {
        let total: f64 = weights.iter().sum();
        let mut points = Vec::new();
        for (server, (name, weight)) in names.iter().zip(weights).enumerate() {
            let count = (names.len() as f64 * f64::from(POINTS) * weight / total) as u32;
            let point = |i| Sha1::digest(format!("{name}:{i}"));
            points.extend((0..count).map(|i| {
                let digest = point(i);
                (u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]), server as u32)
            }));
        }
        Ring::from_points(points, true)
    }
}

/// The points of a server of average weight.
const POINTS: u32 = 160;

/// Four points for each MD5 of `name-i`.
fn md5_points<'a>(counted: impl Iterator<Item = (&'a String, u32)>) -> Vec<(u32, u32)> {
    let mut points = Vec::new();
    for (server, (name, quarters)) in counted.enumerate() {
        for i in 0..quarters {
            let digest = Md5::digest(format!("{name}-{i}"));
            points.extend(digest.chunks(4).map(|word| (first_word(word), server as u32)));
        }
    }
    points
}
