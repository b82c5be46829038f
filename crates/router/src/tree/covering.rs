//! The root of a tree while more than one configuration is covered
//! ([ADR 012](../../../../docs/adr/012-resize.md)): requests are routed by one of them, and deletes also go to the
//! places under the others.
//!
//! | verb | effect |
//! |---|---|
//! | delete | routed, and sent to each server that another covered configuration places the key at; an error if any failed, spooled if any is |
//! | set cas replace append prepend incr decr | routed, and the key is deleted at those servers; an error if a delete failed, although the update may be done |
//! | all others | routed |
//!
//! `add`, `lease-set` and the touching verbs do not change a value, or only where there was none.
//!
//! **The order.** The places of one configuration have replied before the next one's are sent anything, in the order in
//! which the configurations were covered. A router may fill a key's new owner with the copy of the former one
//! ([`super::former_owners`]): it takes a lease at the new owner first. Since a delete reaches the former owner first,
//! the copy is either gone there, or the delete at the new owner is still to come, and voids the lease.
//! ```text
//!   fill      lease at NEW ---- get at OLD ---- lease-set at NEW          voided
//!   delete                                delete at OLD ---- delete at NEW
//! ```
//! This holds for a key whose places change once in that order. If they change to and fro, the former owner of one
//! router is the new owner of another, and may be filled again behind the first delete: such a key is not copied
//! ([`CoveredPlaces::is_owned`]). So what is copied from is never copied to.
//!
//! A server that hangs must not keep a key's present owner from being deleted from, which would be read meanwhile. So
//! after [`EARLY_AFTER`] deletes are sent to all further places at once, and again in the order. What is deleted too
//! often is only missed once more; what counts for the order, and for the reply, is the last delete.
//!
//! A request waits only for the servers to which deletes of its own key go first. A configuration with the same places
//! as the one before it adds nothing. For others all places count, also those that the one before had: several former
//! owners may be read.
//!
//! The servers are found by a [`Placement`] of each configuration. A server that the routed tree has, too, is reached
//! through the same destination.

use super::active_configs::{ActiveConfigs, CoveredConfig};
use super::explain::{Explanation, Step, command_line, example_request};
use super::placement::{Place, Placement, StoredPlaces};
use bytes::Bytes;
use futures_util::future::join_all;
use lookaside_protocol::Request;
use lookaside_routing::{
    Address, Batch, BoxFuture, Context, Destination, Failure, Outcome, Outcomes, Route, Verb, is_failed_delete,
    merge_deletes, stored_key,
};
use lookaside_sync::SharedCounter;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::sleep;

/// How long a group's deletes wait for their order before they are also sent without it. Most servers reply within a
/// millisecond. A reader of the present owner sees what was committed this much earlier at most.
const EARLY_AFTER: Duration = Duration::from_millis(100);

/// The places of keys under all covered configurations.
pub(super) struct CoveredPlaces {
    reads: Placement,
    others: Vec<(Placement, CoveredConfig)>,
    /// How many of `others` come before `reads`.
    reads_at: usize,
}

/// The places of one request under one of the configurations.
pub(super) struct CoveredStep<'a> {
    /// Of the configuration, in the order of [`CoveredPlaces`].
    config: usize,
    pub(super) id: &'a str,
    pub(super) places: Vec<Place>,
}

impl CoveredPlaces {
    pub(super) fn of(active: &ActiveConfigs) -> CoveredPlaces {
        let other = |covered: &CoveredConfig| (Placement::of(&covered.config), covered.clone());
        let others = active.covered.iter().map(other).collect();
        CoveredPlaces { reads: Placement::of(&active.reads), others, reads_at: active.reads_at }
    }

    /// The other configurations.
    pub(super) fn covered(&self) -> impl Iterator<Item = &CoveredConfig> {
        self.others.iter().map(|(_, covered)| covered)
    }

    /// The places of a request's key under the other configurations, as far as neighbours in the order differ. An
    /// update does not delete where it updates.
    pub(super) fn steps(&self, request: &Request<Bytes>, context: &Context) -> Result<Vec<CoveredStep<'_>>, Failure> {
        // If the routed tree refuses the delete, its own outcome is the failure.
        let routed = self.reads.places_of(request, context).unwrap_or_default();
        let mut steps = Vec::with_capacity(self.others.len());
        for (config, (placement, covered)) in self.others.iter().enumerate() {
            let mut places = placement.places_of(request, context)?;
            places.retain(|place| !covered.departed.contains(&place.server));
            steps.push(CoveredStep { config, id: &covered.id, places });
        }
        let mut sequence: Vec<_> = steps.iter().map(|step| keys(&step.places)).collect();
        sequence.insert(self.reads_at, keys(&routed));
        for step in &mut steps {
            let at = step.config + usize::from(step.config >= self.reads_at);
            let (first, last) = (at.min(self.reads_at), at.max(self.reads_at));
            let is_with_routed = sequence[first..=last].iter().all(|places| *places == sequence[at]);
            let is_as_before = at > 0 && sequence[at] == sequence[at - 1];
            if is_with_routed || is_as_before {
                step.places.clear();
            }
        }
        if verb(request) != Verb::Delete {
            let updated = &sequence[self.reads_at];
            steps.iter_mut().for_each(|step| step.places.retain(|place| !updated.contains(&key(place))));
        }
        steps.retain(|step| !step.places.is_empty());
        Ok(steps)
    }

    /// Whether a stored key may be copied from its owner under the configuration `former` to its owner under the one
    /// that is read. In the order of deletes its places change only once under the configurations that a router may
    /// read by, and between these two: from places with the former owner to places without it, of the same keys of
    /// clients. Each of these keys moves from the one to the other, or has neither; and a delete reaches the copies. No delete at the former owner is left in the background when those at the new one are sent.
    pub(super) fn is_owned(&self, former: &str, former_owner: &Address, owner: &Address, stored: &Bytes) -> bool {
        let others = self.others.iter().map(|(placement, covered)| (placement, Some(covered)));
        let mut configs: Vec<(&Placement, Option<&CoveredConfig>)> = others.collect();
        configs.insert(self.reads_at, (&self.reads, None));
        configs.retain(|(_, covered)| covered.is_none_or(|covered| !covered.is_released));
        let is_former = |covered: Option<&CoveredConfig>| covered.is_some_and(|covered| *covered.id == *former);
        let former_at = configs.iter().position(|(_, covered)| is_former(*covered));
        let reads_at = configs.iter().position(|(_, covered)| covered.is_none());
        let sequence: Vec<StoredPlaces> =
            configs.iter().map(|(placement, _)| placement.stored_places(stored)).collect();
        let change = sequence.iter().position(|places| places.servers != sequence[0].servers);
        let (Some(change), Some(former_at)) = (change, former_at) else { return false };
        let (before, after) = sequence.split_at(change);
        let moves = |(before, after): (&BTreeSet<Address>, &BTreeSet<Address>)| {
            before.contains(former_owner) == after.contains(owner) && !after.contains(former_owner)
        };
        let (from, to) = (&before[0].servers, &after[0].servers);
        (former_at < change && Some(change) <= reads_at)
            && before.iter().all(|places| places.is_awaited)
            && after.iter().all(|places| places.servers == *to)
            && from.keys().eq(to.keys())
            && from.values().zip(to.values()).all(moves)
            && from.iter().any(|(key, servers)| key.is_some() && servers.contains(former_owner))
            && from.get(&None).is_none_or(|undeleted| !undeleted.contains(former_owner))
    }
}

/// Two places with equal keys are deleted at once.
fn key(place: &Place) -> (Address, Bytes) {
    (place.server.clone(), place.delete.key.clone())
}

fn keys(places: &[Place]) -> BTreeSet<(Address, Bytes)> {
    places.iter().map(key).collect()
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
    let steps = places.steps(&request, context).map_err(|failure| failure.to_string())?;
    let mut explanation = match routed {
        // A key without a route may have had one.
        Err(why) if steps.is_empty() => return Err(why),
        routed => routed.unwrap_or_default(),
    };
    for (id, place) in steps.into_iter().flat_map(|step| step.places.into_iter().map(move |place| (step.id, place))) {
        let requests = vec![command_line(&place.delete)];
        let replies = vec![format!("covered by {id}")];
        let at = place.server.to_string();
        explanation.0.push(Step { depth: 0, at, names: Vec::new(), is_server: true, requests, replies });
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

/// The deletes of a group under one configuration.
type Parts = BTreeMap<Address, Part>;

/// Requests of a batch that wait for the same servers before they are routed.
struct Group {
    /// Their indices in the batch.
    requests: Vec<usize>,
    batch: Batch,
    /// Of each other configuration.
    steps: Vec<Parts>,
}

impl CoveringRoute {
    async fn cover(&self, batch: Batch, context: &Context) -> Outcomes {
        let mut outcomes = vec![Err(Failure::ConnectionLost); batch.len()];
        let (groups, refused) = self.groups_of(batch, context);
        let groups = join_all(groups.into_iter().map(|group| self.cover_group(group, context))).await;
        for (at, outcome) in groups.into_iter().flatten() {
            outcomes[at] = outcome;
        }
        for (at, is_delete, failure) in refused {
            merge(&mut outcomes[at], is_delete, Err(failure));
        }
        outcomes
    }

    /// Sorts a batch by the servers that must have replied first. Requests for one key stay in their order. Also
    /// returns the failures of requests whose places are unknown, and whether they are deletes.
    fn groups_of(&self, batch: Batch, context: &Context) -> (Vec<Group>, Vec<(usize, bool, Failure)>) {
        let mut refused = Vec::new();
        let mut waits: BTreeMap<Vec<u8>, BTreeSet<Address>> = BTreeMap::new();
        let mut covered = Vec::with_capacity(batch.len());
        for (at, request) in batch.into_iter().enumerate() {
            let steps = match is_covered(&request) {
                true => self.places.steps(&request, context).unwrap_or_else(|failure| {
                    refused.push((at, verb(&request) == Verb::Delete, failure));
                    Vec::new()
                }),
                false => Vec::new(),
            };
            let servers = waits.entry(stored_key(&request).into_owned()).or_default();
            let earlier = steps.iter().filter(|step| step.config < self.places.reads_at);
            servers.extend(earlier.flat_map(|step| &step.places).map(|place| place.server.clone()));
            covered.push((request, steps));
        }
        let mut groups: BTreeMap<&BTreeSet<Address>, Group> = BTreeMap::new();
        for (at, (request, steps)) in covered.into_iter().enumerate() {
            let new = || Group {
                requests: Vec::new(),
                batch: Batch::new(),
                steps: self.places.others.iter().map(|_| Parts::new()).collect(),
            };
            let group = groups.entry(&waits[&*stored_key(&request)]).or_insert_with(new);
            steps.into_iter().for_each(|step| add_step(&mut group.steps, group.batch.len(), step));
            group.requests.push(at);
            group.batch.push(request);
        }
        (groups.into_values().collect(), refused)
    }

    /// The outcome of each request, with its index in the batch.
    async fn cover_group(&self, group: Group, context: &Context) -> Vec<(usize, Outcome)> {
        let Group { requests, batch, steps } = group;
        let is_delete: Vec<bool> = batch.iter().map(|request| verb(request) == Verb::Delete).collect();
        let progress = AtomicUsize::new(0);
        let early = self.delete_early(&batch, &steps, &progress, context);
        let in_order = self.route_in_order(batch.clone(), &steps, &progress, context);
        let (mut outcomes, covering) = tokio::select! {
            biased;
            outcomes = in_order => outcomes,
            never = early => match never {},
        };
        for (at, other) in covering {
            merge(&mut outcomes[at], is_delete[at], other);
        }
        requests.into_iter().zip(outcomes).collect()
    }

    /// Routes a group, and sends its deletes under each other configuration when all of the one before have an outcome.
    /// Returns the routed outcomes, and the others with their indices in the group. `progress` is the place in the
    /// order whose requests have been sent.
    async fn route_in_order(
        &self,
        batch: Batch,
        steps: &[Parts],
        progress: &AtomicUsize,
        context: &Context,
    ) -> (Outcomes, Vec<(usize, Outcome)>) {
        let (before, after) = steps.split_at(self.places.reads_at);
        let mut covering = Vec::new();
        for (at, parts) in before.iter().enumerate() {
            progress.store(at, Relaxed);
            self.delete_at(parts, &mut covering).await;
        }
        progress.store(before.len(), Relaxed);
        let outcomes = self.routed.route(batch, context).await;
        for (at, parts) in after.iter().enumerate() {
            progress.store(before.len() + 1 + at, Relaxed);
            self.delete_at(parts, &mut covering).await;
        }
        (outcomes, covering)
    }

    /// Sends the deletes of a group under one configuration, and adds their outcomes to `covering`.
    async fn delete_at(&self, parts: &Parts, covering: &mut Vec<(usize, Outcome)>) {
        let outcomes = join_all(parts.iter().map(|(server, part)| self.send(server, part))).await;
        for (part, outcomes) in parts.values().zip(outcomes) {
            covering.extend(part.requests.iter().copied().zip(outcomes));
        }
    }

    fn send(&self, server: &Address, part: &Part) -> BoxFuture<'_, Outcomes> {
        self.deletes.add(part.batch.len() as u64);
        self.destinations.get(server).expect("a covered server has a destination").send(part.batch.clone())
    }

    /// If the order takes longer than [`EARLY_AFTER`], sends the deletes of a group to all places that come later than
    /// `progress`. Their outcomes do not matter, and it never ends.
    async fn delete_early(
        &self,
        batch: &Batch,
        steps: &[Parts],
        progress: &AtomicUsize,
        context: &Context,
    ) -> Infallible {
        if steps.iter().all(Parts::is_empty) {
            return pending().await;
        }
        sleep(EARLY_AFTER).await;
        let (progress, reads_at) = (progress.load(Relaxed), self.places.reads_at);
        let later = steps.iter().enumerate().filter(|(at, _)| at + usize::from(*at >= reads_at) > progress);
        let mut sent: Vec<_> =
            later.flat_map(|(_, parts)| parts).map(|(server, part)| self.send(server, part)).collect();
        let deletes: Batch = batch.iter().filter(|request| verb(request) == Verb::Delete).cloned().collect();
        if reads_at > progress && !deletes.is_empty() {
            sent.push(self.routed.route(deletes, context));
        }
        join_all(sent).await;
        pending().await
    }
}

fn add_step(steps: &mut [Parts], at: usize, step: CoveredStep<'_>) {
    for place in step.places {
        let part = steps[step.config].entry(place.server).or_default();
        part.batch.push(place.delete);
        part.requests.push(at);
    }
}

/// Adds the outcome of a delete elsewhere to that of a routed request.
fn merge(routed: &mut Outcome, is_delete: bool, other: Outcome) {
    let outcome = std::mem::replace(routed, Err(Failure::ConnectionLost));
    *routed = if is_delete { merge_deletes(outcome, other) } else { merge_update(outcome, other) };
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
