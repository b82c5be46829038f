//! Remembers which child issued a lease, so that the fill is sent there.
//!
//! | verb | effect |
//! |---|---|
//! | lease-get | a token that a child other than the first choice issued is remembered with that child |
//! | lease-set | goes to the child that its token is remembered with, and to no other; the pair is removed |
//! | all others | none |
//!
//! Example: the first choice does not reply, another child issues a token, and the first choice is back before the fill
//! arrives. Without pairing the fill goes to the first choice, which does not know the token and refuses it.
//!
//! Pairing improves the hit rate and is not needed for safety: tokens are 64 bits that cannot be guessed, unique across
//! servers, and a server refuses a token that it did not issue. So pairs are dropped after [`PAIR_TTL_S`], above
//! [`PAIRS_MAX`], with a new configuration, and with the process.
//!
//! All trees of one configuration share the pairs, as a client's next request may arrive at another thread. Another
//! router does not have them. A token cannot carry the child: every bit of it counts against guessing, and a client
//! that reads servers directly (§3.1: gets by UDP) and fills through a router has a token that no router has changed.

use crate::hash::murmur64a;
use lookaside_protocol::LeaseToken;
use lookaside_sync::Mutex;
use std::collections::{BTreeMap, VecDeque};

/// The lifetime of a pair, in seconds: that of mcrouter, and the time between two tokens for a key in the paper.
pub const PAIR_TTL_S: u64 = 10;

/// The maximum number of pairs; the oldest are removed first.
pub const PAIRS_MAX: usize = 65_536;

/// Tokens and the children that issued them.
#[derive(Debug, Default)]
pub struct LeasePairs(Mutex<Pairs>);

#[derive(Debug, Default)]
struct Pairs {
    by_token: BTreeMap<u64, Pair>,
    /// In the order of arrival, including removed ones.
    tokens: VecDeque<(u64, u64)>,
}

#[derive(Debug)]
struct Pair {
    child: u32,
    key_hash: u64,
    until_s: u64,
}

impl LeasePairs {
    pub(crate) fn remember(&self, token: LeaseToken, key: &[u8], child: u32, now_s: u64) {
        let until_s = now_s + PAIR_TTL_S;
        let pair = Pair { child, key_hash: murmur64a(key), until_s };
        let mut pairs = self.0.lock();
        let Pairs { by_token, tokens } = &mut *pairs;
        while let Some(&(oldest, its_until_s)) = tokens.front()
            && (its_until_s <= now_s || tokens.len() >= PAIRS_MAX)
        {
            tokens.pop_front();
            if by_token.get(&oldest).is_some_and(|pair| pair.until_s == its_until_s) {
                by_token.remove(&oldest);
            }
        }
        by_token.insert(token.0, pair);
        tokens.push_back((token.0, until_s));
    }

    /// Removes the pair of `token` and `key`. Returns the child that issued the token.
    pub(crate) fn remove_pair(&self, token: LeaseToken, key: &[u8], now_s: u64) -> Option<u32> {
        let mut pairs = self.0.lock();
        let is_for_key = pairs.by_token.get(&token.0).is_some_and(|pair| pair.key_hash == murmur64a(key));
        if !is_for_key {
            return None;
        }
        let pair = pairs.by_token.remove(&token.0)?;
        (pair.until_s > now_s).then_some(pair.child)
    }

    /// The number of pairs.
    pub fn count(&self) -> usize {
        self.0.lock().by_token.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_for_one_use_one_key_and_ten_seconds() {
        let pairs = LeasePairs::default();
        pairs.remember(LeaseToken(7), b"k", 3, 100);
        assert_eq!(pairs.remove_pair(LeaseToken(8), b"k", 100), None);
        assert_eq!(pairs.remove_pair(LeaseToken(7), b"other", 100), None);
        assert_eq!(pairs.remove_pair(LeaseToken(7), b"k", 109), Some(3));
        assert_eq!(pairs.remove_pair(LeaseToken(7), b"k", 109), None);
        pairs.remember(LeaseToken(7), b"k", 3, 100);
        assert_eq!(pairs.remove_pair(LeaseToken(7), b"k", 110), None);
    }

    #[test]
    fn memory_is_bounded() {
        let pairs = LeasePairs::default();
        for token in 0..PAIRS_MAX as u64 + 10 {
            pairs.remember(LeaseToken(token), b"k", 0, 100);
        }
        assert_eq!(pairs.count(), PAIRS_MAX);
        assert_eq!(pairs.remove_pair(LeaseToken(9), b"k", 100), None, "the oldest are removed");
        assert_eq!(pairs.remove_pair(LeaseToken(10), b"k", 100), Some(0));
        pairs.remember(LeaseToken(5), b"k", 0, 120);
        assert_eq!(pairs.count(), 1, "expired pairs are removed when a pair is added");
    }
}
