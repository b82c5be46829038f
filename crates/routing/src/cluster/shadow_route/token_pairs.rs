//! Pairs of lease tokens: the one that a client got from the normal target, and the one that a shadow gave for the same
//! miss. A copy of the client's `lease-set` is accepted by the shadow only with the latter.

use lookaside_protocol::LeaseToken;
use lookaside_sync::Mutex;
use std::collections::{BTreeMap, VecDeque};

/// The pairs of one shadow, shared by all threads: a client's fill may arrive at another one than its miss.
#[derive(Debug, Default)]
pub(super) struct TokenPairs(Mutex<Pairs>);

#[derive(Debug, Default)]
struct Pairs {
    /// The shadow's token by the client's.
    shadow_tokens: BTreeMap<u64, LeaseToken>,
    /// The clients' tokens, oldest first, including those whose pair has been taken.
    arrived: VecDeque<u64>,
}

impl TokenPairs {
    /// Remembers a pair. Above `pairs_max` the oldest are removed.
    pub(super) fn remember(&self, client: LeaseToken, shadow: LeaseToken, pairs_max: usize) {
        let Pairs { shadow_tokens, arrived } = &mut *self.0.lock();
        while arrived.len() >= pairs_max.max(1)
            && let Some(oldest) = arrived.pop_front()
        {
            shadow_tokens.remove(&oldest);
        }
        shadow_tokens.insert(client.0, shadow);
        arrived.push_back(client.0);
    }

    /// Removes the pair of a client's token. Returns the shadow's.
    pub(super) fn take(&self, client: LeaseToken) -> Option<LeaseToken> {
        self.0.lock().shadow_tokens.remove(&client.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_for_one_use_and_the_oldest_are_removed_first() {
        let pairs = TokenPairs::default();
        for client in 10..14 {
            pairs.remember(LeaseToken(client), LeaseToken(client + 100), 3);
        }
        assert_eq!([10, 11, 11].map(|client| pairs.take(LeaseToken(client))), [None, Some(LeaseToken(111)), None]);
        // The place of the pair that was taken counts until it is the oldest.
        pairs.remember(LeaseToken(14), LeaseToken(114), 3);
        let left = [12, 13, 14].map(|client| pairs.take(LeaseToken(client)).map(|token| token.0));
        assert_eq!(left, [Some(112), Some(113), Some(114)]);
    }
}
