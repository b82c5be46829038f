//! Gathers the lookups of all tasks that are ready now into one batch (the data-loader pattern). Serves gets of a
//! [`Client`](crate::Client) with [`with_batching`](crate::Client::with_batching); §3.1 of the paper.
//!
//! ```text
//!  task 1: get a, b  --.
//!  task 2: get b     ---+--> a, b, c --> the route, once --> replies to all
//!  task 3: get c     --'
//!        one turn of the scheduler
//! ```
//!
//! The first lookup spawns a task that yields once, so that every task that was ready by then has run, and then sends
//! what has been gathered. A key that several tasks ask for travels once: a hit goes to all of them, a lease to the
//! first that still waits, and the others have a hot miss, as if they had asked after it.
//!
//! What has been gathered is bounded by the number of tasks that wait for it. When all of them have gone, the batch is
//! dropped, as a lookup of one task is. No caller waits for another one's load.

use super::{
    error::ClientError,
    hedge::HedgedSender,
    lease::{Lease, Lookup, to_lookup},
    lookup::HeldLeases,
    stats::CallCounters,
};
use crate::tasks::spawn;
use bytes::Bytes;
use lookaside_protocol::LeaseToken;
use lookaside_routing::Failure;
use lookaside_sync::Mutex;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};
use tokio::sync::oneshot;

pub(super) struct Batcher {
    sender: HedgedSender,
    gathered: Mutex<Gathered>,
}

/// The lookups of one turn.
#[derive(Default)]
struct Gathered {
    /// Each key once.
    keys: Vec<Bytes>,
    positions: HashMap<Bytes, usize>,
    calls: Vec<Call>,
}

struct Call {
    /// The place of each of its keys in the batch.
    positions: Vec<usize>,
    counters: CallCounters,
    reply: oneshot::Sender<CallReply>,
}

/// Dropped unread, it releases its leases.
struct CallReply {
    lookups: Vec<Result<Lookup, ClientError>>,
    leases: HeldLeases,
}

impl Batcher {
    pub(super) fn new(sender: HedgedSender) -> Batcher {
        Batcher { sender, gathered: Mutex::default() }
    }

    /// Looks up valid keys together with those of other tasks.
    pub(super) async fn look_up(
        self: &Arc<Self>,
        keys: Vec<Bytes>,
        counters: &CallCounters,
    ) -> Vec<Result<Lookup, ClientError>> {
        let lookups = keys.len();
        let (reply, replied) = oneshot::channel();
        let is_first = {
            let mut gathered = self.gathered.lock();
            let is_first = gathered.calls.is_empty();
            let positions = keys.into_iter().map(|key| gathered.position_of(key)).collect();
            gathered.calls.push(Call { positions, counters: counters.clone(), reply });
            is_first
        };
        if is_first {
            let batcher = self.clone();
            spawn(async move {
                tokio::task::yield_now().await;
                batcher.send_gathered().await;
            });
        }
        match replied.await {
            Ok(CallReply { lookups, leases }) => {
                leases.disarm();
                lookups
            }
            // The task has panicked, or the runtime ends.
            Err(_) => vec![Err(ClientError::Failed(Failure::ConnectionLost)); lookups],
        }
    }

    async fn send_gathered(&self) {
        let Gathered { keys, mut calls, .. } = std::mem::take(&mut *self.gathered.lock());
        let mut counted = HashSet::new();
        for call in calls.iter().filter(|call| counted.insert(call.counters.id())) {
            call.counters.add(|counters| &counters.round_trips, 1);
        }
        let counters = calls[0].counters.clone();
        let all_gone = async {
            for call in &mut calls {
                call.reply.closed().await;
            }
        };
        let outcomes = tokio::select! {
            biased;
            () = all_gone => return,
            outcomes = self.sender.look_up(keys.clone(), &counters) => outcomes,
        };
        let mut found: Vec<_> = outcomes.into_iter().map(to_lookup).collect();
        for Call { positions, reply, .. } in calls {
            let lookups = positions.iter().map(|&position| take_lookup(&mut found[position])).collect::<Vec<_>>();
            let held = positions
                .iter()
                .zip(&lookups)
                .filter_map(|(&position, lookup)| held_token(lookup).map(|token| (keys[position].clone(), token)));
            let leases = HeldLeases::new(self.sender.sender(), held.collect());
            if let Err(CallReply { lookups, leases }) = reply.send(CallReply { lookups, leases }) {
                // Its caller has gone: the next one that asked gets the lease.
                let mut is_wanted = false;
                for (position, lookup) in positions.into_iter().zip(lookups) {
                    if held_token(&lookup).is_some() {
                        found[position] = lookup;
                        is_wanted = true;
                    }
                }
                if is_wanted {
                    leases.disarm();
                }
            }
        }
        let left = keys.into_iter().zip(&found).filter_map(|(key, lookup)| Some((key, held_token(lookup)?)));
        drop(HeldLeases::new(self.sender.sender(), left.collect()));
    }
}

impl Gathered {
    fn position_of(&mut self, key: Bytes) -> usize {
        *self.positions.entry(key).or_insert_with_key(|key| {
            self.keys.push(key.clone());
            self.keys.len() - 1
        })
    }
}

/// The lookup for the next caller. Only one gets the lease.
fn take_lookup(found: &mut Result<Lookup, ClientError>) -> Result<Lookup, ClientError> {
    let lookup = found.clone();
    if let Ok(Lookup::Stale { lease, .. } | Lookup::Miss { lease }) = found
        && matches!(lease, Lease::Held(_))
    {
        *lease = Lease::HotMiss;
    }
    lookup
}

fn held_token(lookup: &Result<Lookup, ClientError>) -> Option<LeaseToken> {
    match lookup {
        Ok(Lookup::Stale { lease: Lease::Held(token), .. } | Lookup::Miss { lease: Lease::Held(token) }) => {
            Some(*token)
        }
        _ => None,
    }
}
