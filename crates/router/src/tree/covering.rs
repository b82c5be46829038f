//! The root of a tree while more than one configuration is covered
//! ([ADR 012](../../../../docs/adr/012-resize.md)): requests are routed by one of them, and deletes also go to the
//! places under the others.
//!
//! | verb | effect |
//! |---|---|
//! | delete | routed, and at the same time sent to each server that another covered configuration places the key at; an error if any failed, spooled if any is |
//! | set cas replace append prepend incr decr | routed, and the key is deleted at those servers; an error if a delete failed, although the update may be done |
//! | all others | routed |
//!
//! `add`, `lease-set` and the touching verbs do not change a value, or only where there was none.
//!
//! The servers are found by a [`Placement`] of each configuration. A server that the routed tree has, too, is reached
//! through the same destination.

use super::active_configs::{ActiveConfigs, CoveredConfig};
use super::explain::{Explanation, Step, command_line, example_request};
use super::placement::{Place, Placement};
use bytes::Bytes;
use futures_util::future::{join, join_all};
use lookaside_protocol::Request;
use lookaside_routing::{
    Address, Batch, BoxFuture, Context, Destination, Failure, Outcome, Outcomes, Route, Verb, is_failed_delete,
    merge_deletes,
};
use lookaside_sync::SharedCounter;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The places of keys under all covered configurations.
pub(super) struct CoveredPlaces {
    reads: Placement,
    others: Vec<(Placement, CoveredConfig)>,
}

impl CoveredPlaces {
    pub(super) fn of(active: &ActiveConfigs) -> CoveredPlaces {
        let other = |covered: &CoveredConfig| (Placement::of(&covered.config), covered.clone());
        CoveredPlaces { reads: Placement::of(&active.reads), others: active.covered.iter().map(other).collect() }
    }

    /// The places of a request's key under the other configurations, as far as the one that requests are routed by has
    /// not the same. Each with the identity of a configuration.
    pub(super) fn others(&self, request: &Request<Bytes>, context: &Context) -> Result<Vec<(Place, &str)>, Failure> {
        // If the routed tree refuses the delete, its own outcome is the failure.
        let routed = self.reads.places_of(request, context).unwrap_or_default();
        let mut known: BTreeSet<(Address, Bytes)> =
            routed.into_iter().map(|place| (place.server, place.delete.key)).collect();
        let mut places = Vec::new();
        for (placement, covered) in &self.others {
            for place in placement.places_of(request, context)? {
                let is_departed = covered.departed.contains(&place.server);
                if !is_departed && known.insert((place.server.clone(), place.delete.key.clone())) {
                    places.push((place, &*covered.id));
                }
            }
        }
        Ok(places)
    }
}

/// Adds the servers under other configurations to the explanation of a request.
pub(super) fn explain(
    places: &CoveredPlaces,
    routed: Result<Explanation, String>,
    verb: &str,
    key: &str,
    context: &Context,
) -> Result<Explanation, String> {
    let request = example_request(verb, key)?;
    if !is_covered(&request) {
        return routed;
    }
    let others = places.others(&request, context).map_err(|failure| failure.to_string())?;
    let mut explanation = match routed {
        // A key without a route may have had one.
        Err(why) if others.is_empty() => return Err(why),
        routed => routed.unwrap_or_default(),
    };
    for (place, id) in others {
        let requests = vec![command_line(&place.delete)];
        let replies = vec![format!("covered by {id}")];
        let at = place.server.to_string();
        explanation.0.push(Step { depth: 0, at, is_server: true, requests, replies });
    }
    Ok(explanation)
}

pub(super) struct CoveringRoute {
    pub(super) routed: Arc<dyn Route>,
    pub(super) places: Arc<CoveredPlaces>,
    /// Of every server under any configuration.
    pub(super) destinations: BTreeMap<Address, Arc<dyn Destination>>,
    pub(super) deletes: Arc<SharedCounter>,
}

/// The deletes for one server, each with the index of its request in the batch.
#[derive(Default)]
struct Part {
    batch: Batch,
    requests: Vec<usize>,
}

impl CoveringRoute {
    async fn cover(&self, batch: Batch, context: &Context) -> Outcomes {
        let mut parts: BTreeMap<Address, Part> = BTreeMap::new();
        let mut refused: Vec<(usize, Failure)> = Vec::new();
        let is_delete: Vec<bool> = batch.iter().map(|request| verb(request) == Verb::Delete).collect();
        for (at, request) in batch.iter().enumerate().filter(|(_, request)| is_covered(request)) {
            match self.places.others(request, context) {
                Ok(places) => {
                    for (place, _) in places {
                        let part = parts.entry(place.server).or_default();
                        part.batch.push(place.delete);
                        part.requests.push(at);
                    }
                }
                Err(failure) => refused.push((at, failure)),
            }
        }
        let (mut sent, mut requests) = (Vec::new(), Vec::new());
        for (server, part) in parts {
            self.deletes.add(part.batch.len() as u64);
            let destination = self.destinations.get(&server).expect("a covered server has a destination");
            sent.push(destination.send(part.batch));
            requests.push(part.requests);
        }
        let (mut outcomes, covering) = join(self.routed.route(batch, context), join_all(sent)).await;
        let covering =
            requests.into_iter().zip(covering).flat_map(|(requests, outcomes)| requests.into_iter().zip(outcomes));
        let refused = refused.into_iter().map(|(at, failure)| (at, Err(failure)));
        for (at, other) in covering.chain(refused) {
            let routed = std::mem::replace(&mut outcomes[at], Err(Failure::Tko));
            outcomes[at] = if is_delete[at] { merge_deletes(routed, other) } else { merge_update(routed, other) };
        }
        outcomes
    }
}

/// The outcome of an update whose key was deleted elsewhere. It must not promise that the old value is gone if it is
/// not.
fn merge_update(update: Outcome, delete: Outcome) -> Outcome {
    match update.is_ok() && is_failed_delete(&delete) {
        true => delete,
        false => update,
    }
}

fn verb(request: &Request<Bytes>) -> Verb {
    Verb::of(&request.operation)
}

/// Whether copies elsewhere are deleted.
pub(super) fn is_covered(request: &Request<Bytes>) -> bool {
    use Verb::{Append, Cas, Decr, Delete, Incr, Prepend, Replace, Set};
    matches!(verb(request), Delete | Set | Cas | Replace | Append | Prepend | Incr | Decr)
}

impl Route for CoveringRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        match batch.iter().any(is_covered) {
            true => Box::pin(self.cover(batch, context)),
            false => self.routed.route(batch, context),
        }
    }
}

#[cfg(test)]
mod tests;
