//! Which child handed out a lease, so that the fill goes back there.
//!
//! | verb | effect |
//! |---|---|
//! | lease-get | a token that another child than the first choice handed out is remembered with that child |
//! | lease-set | goes to the child that its token is remembered with, and to no other; the pair is used up |
//! | all others | none |
//!
//! The story: the first choice does not answer, its stand-in hands out a token, the first choice is back before the fill
//! comes. Without pairing the fill goes to the first choice, which does not know the token and refuses it.
//!
//! That is all that is lost: pairing is for the hit rate, never for safety. Tokens are 64 bits that nobody can guess,
//! unique across servers, and a server refuses one that it did not hand out. So pairs may be forgotten, and are: after
//! [`PAIR_TTL_S`], when there are more than [`PAIRS_MAX`], with a new configuration, with the process.
//!
//! All trees of one configuration share the pairs, as a client's next request may come on another connection, served by
//! another thread. Another router does not have them. A token could carry the child only in bits that servers leave free
//! for it; they leave none, since every bit counts against guessing, and a client that asks servers itself (§3.1: gets by
//! UDP) and fills through a router holds a token that no router has written into.

use crate::hash::murmur64a;
use lookaside_protocol::LeaseToken;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, PoisonError},
};

/// How long a pair is remembered, in seconds: as long as mcrouter does, and as long as the paper's servers wait between
/// two tokens for a key.
pub const PAIR_TTL_S: u64 = 10;

/// Pairs remembered at a time; the oldest go first.
pub const PAIRS_MAX: usize = 65_536;

/// Tokens and who handed them out.
#[derive(Debug, Default)]
pub struct LeasePairs(Mutex<Pairs>);

#[derive(Debug, Default)]
struct Pairs {
    by_token: BTreeMap<u64, Pair>,
    /// In the order in which they came, used ones among them.
    tokens: VecDeque<(u64, u64)>,
}

#[derive(Debug)]
struct Pair {
    child: u32,
    key_hash: u64,
    until_s: u64,
}

impl LeasePairs {
    /// Remembers that `child` handed out `token` for `key`.
    pub(crate) fn remember(&self, token: LeaseToken, key: &[u8], child: u32, now_s: u64) {
        let until_s = now_s + PAIR_TTL_S;
        let pair = Pair { child, key_hash: murmur64a(key), until_s };
        let mut pairs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Who handed out `token` for `key`; asked a second time, nobody.
    pub(crate) fn remove_pair(&self, token: LeaseToken, key: &[u8], now_s: u64) -> Option<u32> {
        let mut pairs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_for_key = pairs.by_token.get(&token.0).is_some_and(|pair| pair.key_hash == murmur64a(key));
        if !is_for_key {
            return None;
        }
        let pair = pairs.by_token.remove(&token.0)?;
        (pair.until_s > now_s).then_some(pair.child)
    }

    /// How many pairs are remembered.
    pub fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).by_token.len()
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
        assert_eq!(pairs.remove_pair(LeaseToken(9), b"k", 100), None, "the oldest are gone");
        assert_eq!(pairs.remove_pair(LeaseToken(10), b"k", 100), Some(0));
        pairs.remember(LeaseToken(5), b"k", 0, 120);
        assert_eq!(pairs.count(), 1, "the old go when something new comes");
    }
}
