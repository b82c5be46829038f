//! Splits values that are larger than a server accepts into chunks.
//!
//! ```text
//!   set k (2.5 thresholds)   k:0:S  k:1:S  k:2:S   the chunks, first and by plain sets
//!                            k = "1-3-S"           then the manifest under the requested verb, with flag 0x8000:
//!                                                  version, number of chunks, and a hash of the value, S
//! ```
//!
//! | verb | effect |
//! |---|---|
//! | set add replace cas lease-set | above `split_threshold`: the chunks, then the manifest; if a chunk is not stored, its outcome is returned |
//! | get gets gat gats | a manifest is followed by its chunks and returned as one value; a missing chunk makes it a miss |
//! | lease-get | the same; a manifest with a missing chunk is deleted and requested again, so that a client gets the lease |
//! | delete incr decr | the manifest; chunks without a manifest are evicted by age |
//! | touch | the manifest: its chunks keep their exptime, and if that is earlier the value becomes a miss then |
//! | append prepend | a get first; for a split value a read, and a cas of the whole value in new chunks (`append`) |
//! | meta commands | unchanged: they see the manifest, and store what the server accepts |
//!
//! Old and new chunks never mix, since their keys contain the hash of the value. A failure of a chunk, unlike its miss,
//! is returned. A stale manifest (of a lease) is dropped.
//!
//! Of one value, `batch_size` chunks are sent at a time.
//!
//! A value that needs more than [`CHUNKS_MAX`] chunks, or whose key has no space for `:i:S`, is sent unsplit. Bit 15 of
//! the client's flags is reserved. Keys with a `|#|` have their chunks on the same server. mcrouter's chunks can be
//! read if their version is 1.

mod append;

use crate::{
    Batch, BoxFuture, Context, Outcome, Outcomes, Route,
    configuration::{
        BigValueSettings, ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder,
    },
    hash::murmur64a,
    key::is_encoded,
    outcome::{as_get, is_error},
    split::route_some,
};
use bytes::{Bytes, BytesMut};
use lookaside_protocol::{KEY_BYTES_MAX, Operation, Reply, Request, StoreMode};
use std::{collections::BTreeSet, sync::Arc, vec};

/// The client flag that marks a manifest.
pub const BIG_VALUE_FLAG: u32 = 0x8000;

/// The maximum number of chunks of one value.
pub const CHUNKS_MAX: usize = 1_000;

const VERSION: u32 = 1;

/// Splits large values for its target.
pub struct BigValueRoute {
    target: Arc<dyn Route>,
    settings: BigValueSettings,
}

impl BigValueRoute {
    /// Sends large values to `target` in chunks.
    pub fn new(target: Arc<dyn Route>, settings: BigValueSettings) -> Self {
        let split_threshold_bytes = settings.split_threshold_bytes.max(1);
        BigValueRoute { target, settings: BigValueSettings { split_threshold_bytes, ..settings } }
    }

    /// Sends chunks, which are in the order of their values, `batch_size` of each value at a time.
    async fn route_chunks(&self, chunks: Vec<(usize, Request<Bytes>)>, context: &Context) -> Vec<(usize, Outcome)> {
        let mut rounds = self.rounds_of(&chunks);
        if rounds.is_empty() {
            return route_some(&*self.target, chunks, context).await;
        }
        let values: Vec<usize> = chunks.iter().map(|(value, _)| *value).collect();
        let mut chunks: Vec<_> = chunks.into_iter().map(|(_, chunk)| Some(chunk)).collect();
        let mut outcomes = vec![None; chunks.len()];
        for round in &mut rounds {
            let sent = round.drain(..).map(|place| (place, chunks[place].take().expect("each is in one round")));
            for (place, outcome) in route_some(&*self.target, sent.collect(), context).await {
                outcomes[place] = Some(outcome);
            }
        }
        values.into_iter().zip(outcomes.into_iter().map(|outcome| outcome.expect("each is in a round"))).collect()
    }

    /// The places of the chunks of each round; empty if one round suffices.
    fn rounds_of(&self, chunks: &[(usize, Request<Bytes>)]) -> Vec<Vec<usize>> {
        let batch_size = self.settings.batch_size;
        let mut rounds: Vec<Vec<usize>> = Vec::new();
        if batch_size == 0 || chunks.len() <= batch_size {
            return rounds;
        }
        let (mut value, mut number) = (usize::MAX, 0);
        for (place, (of, _)) in chunks.iter().enumerate() {
            number = if *of == value { number + 1 } else { 0 };
            value = *of;
            let round = number / batch_size;
            rounds.resize_with(rounds.len().max(round + 1), Vec::new);
            rounds[round].push(place);
        }
        rounds
    }

    async fn route_batch(&self, mut batch: Batch, context: &Context) -> Outcomes {
        let mut refused = self.store_chunks(&mut batch, context).await;
        let requests = batch.clone();
        let manifests = batch.into_iter().enumerate().filter(|(at, _)| refused[*at].is_none());
        for (at, outcome) in route_some(&*self.target, manifests.collect(), context).await {
            refused[at] = Some(outcome);
        }
        let mut outcomes: Outcomes =
            refused.into_iter().map(|outcome| outcome.expect("refused above, or sent here")).collect();
        outcomes.iter_mut().for_each(drop_stale_manifest);
        self.join(&requests, &mut outcomes, context).await;
        outcomes
    }

    async fn route_runs(&self, batch: Batch, context: &Context) -> Outcomes {
        let mut outcomes = Outcomes::with_capacity(batch.len());
        for run in split_into_runs(batch) {
            outcomes.extend(match is_append(&run[0]) {
                true => self.append(run, context).await,
                false => self.route_batch(run, context).await,
            });
        }
        outcomes
    }

    /// Stores chunks and replaces their values by manifests. Returns the outcome of each request whose chunks were not
    /// all stored.
    async fn store_chunks(&self, batch: &mut Batch, context: &Context) -> Vec<Option<Outcome>> {
        let mut chunks = Vec::new();
        for (at, request) in batch.iter_mut().enumerate() {
            if let Some(manifest) = self.manifest_of(request) {
                chunks.extend(self.chunks_of(request, &manifest).map(|chunk| (at, chunk)));
                replace_by_manifest(request, &manifest);
            }
        }
        let mut refused = vec![None; batch.len()];
        for (at, outcome) in self.route_chunks(chunks, context).await {
            if outcome != Ok(Reply::Stored) && refused[at].is_none() {
                refused[at] = Some(outcome);
            }
        }
        refused
    }

    /// The manifest of a value that must be split; `None` if it is sent unsplit.
    fn manifest_of(&self, request: &Request<Bytes>) -> Option<Manifest> {
        let (_, _, value) = stored_value(&request.operation)?;
        let manifest =
            Manifest { chunks: value.len().div_ceil(self.settings.split_threshold_bytes), hash: murmur64a(value) };
        let fits = || manifest.key(&request.key, manifest.chunks).len() <= KEY_BYTES_MAX;
        (manifest.chunks > 1 && manifest.chunks <= CHUNKS_MAX && fits() && !is_encoded(request)).then_some(manifest)
    }

    fn chunks_of<'a>(
        &self,
        request: &'a Request<Bytes>,
        manifest: &'a Manifest,
    ) -> impl Iterator<Item = Request<Bytes>> + use<'a> {
        let (_, exptime, value) = stored_value(&request.operation).expect("only stores have a manifest");
        let (bytes, value) = (self.settings.split_threshold_bytes, value.clone());
        (0..manifest.chunks).map(move |n| {
            let value = value.slice(n * bytes..value.len().min((n + 1) * bytes));
            let operation = Operation::Store { mode: StoreMode::Set, flags: 0, exptime, value, cas: false };
            Request { key: manifest.key(&request.key, n), operation }
        })
    }

    async fn join(&self, batch: &[Request<Bytes>], outcomes: &mut Outcomes, context: &Context) {
        let mut manifests = Vec::new();
        let mut chunks = Vec::new();
        for (at, (request, outcome)) in batch.iter().zip(&*outcomes).enumerate() {
            if let Ok(Reply::Value { flags, value, .. }) = outcome
                && let Some(manifest) = Manifest::parse(*flags, value)
            {
                chunks
                    .extend((0..manifest.chunks).map(|n| (at, chunk_request(request, manifest.key(&request.key, n)))));
                manifests.push((at, manifest.chunks));
            }
        }
        let mut chunks = self.route_chunks(chunks, context).await.into_iter();
        let mut broken = Vec::new();
        for (at, count) in manifests {
            let whole = join_chunks(&mut chunks, count);
            let Ok(Reply::Value { flags, value, .. }) = &mut outcomes[at] else { unreachable!("manifests are values") };
            match whole {
                Ok(whole) => {
                    *value = whole;
                    if self.settings.hides_flag {
                        *flags &= !BIG_VALUE_FLAG;
                    }
                }
                Err(Ok(Reply::Miss)) => {
                    outcomes[at] = Ok(Reply::Miss);
                    broken.push(at);
                }
                Err(failure) => outcomes[at] = failure,
            }
        }
        self.request_leases(broken, batch, outcomes, context).await;
    }

    /// Deletes manifests with missing chunks and requests a lease again: a server grants no lease for a manifest that
    /// it holds.
    async fn request_leases(
        &self,
        broken: Vec<usize>,
        batch: &[Request<Bytes>],
        outcomes: &mut Outcomes,
        context: &Context,
    ) {
        let of_lease = broken.into_iter().filter(|&at| matches!(batch[at].operation, Operation::LeaseGet));
        let again = of_lease.flat_map(|at| {
            let delete = Request { key: batch[at].key.clone(), operation: Operation::Delete { hold_off_ms: 0 } };
            [(at, delete), (at, batch[at].clone())]
        });
        for (at, mut outcome) in route_some(&*self.target, again.collect(), context).await {
            drop_stale_manifest(&mut outcome);
            if matches!(outcome, Ok(Reply::Lease { .. }) | Err(_)) {
                outcomes[at] = outcome;
            }
        }
    }
}

impl Route for BigValueRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        match batch.iter().any(is_append) {
            false => Box::pin(self.route_batch(batch, context)),
            true => Box::pin(self.route_runs(batch, context)),
        }
    }
}

/// Whether a request appends to a value, or prepends.
fn is_append(request: &Request<Bytes>) -> bool {
    matches!(request.operation, Operation::Store { mode: StoreMode::Append | StoreMode::Prepend, .. })
}

/// Splits a batch into runs that may be sent concurrently: appends to different keys, or no appends.
fn split_into_runs(batch: Batch) -> Vec<Batch> {
    let mut runs: Vec<Batch> = Vec::new();
    let mut keys = BTreeSet::new();
    for request in batch {
        let is_other = |run: &Batch| is_append(&run[0]) != is_append(&request);
        let is_again = !keys.insert(request.key.clone()) && is_append(&request);
        match runs.last_mut() {
            Some(run) if !is_other(run) && !is_again => run.push(request),
            _ => {
                keys = BTreeSet::from([request.key.clone()]);
                runs.push(vec![request]);
            }
        }
    }
    runs
}

/// The chunks of a split value.
#[derive(Clone, Copy)]
struct Manifest {
    chunks: usize,
    hash: u64,
}

impl Manifest {
    fn parse(flags: u32, value: &[u8]) -> Option<Manifest> {
        if flags & BIG_VALUE_FLAG == 0 {
            return None;
        }
        let mut parts = str::from_utf8(value).ok()?.split('-');
        let (version, chunks, hash) = (parts.next()?, parts.next()?, parts.next()?);
        let is_ours = version.parse() == Ok(VERSION) && parts.next().is_none();
        let manifest = Manifest { chunks: chunks.parse().ok()?, hash: hash.parse().ok()? };
        (is_ours && (1..=CHUNKS_MAX).contains(&manifest.chunks)).then_some(manifest)
    }

    fn value(self) -> Bytes {
        format!("{VERSION}-{}-{}", self.chunks, self.hash).into()
    }

    fn key(self, key: &[u8], chunk: usize) -> Bytes {
        [key, format!(":{chunk}:{}", self.hash).as_bytes()].concat().into()
    }
}

/// Flags, exptime and value of a request that replaces a value; `None` for other requests.
fn stored_value(operation: &Operation<Bytes>) -> Option<(u32, i64, &Bytes)> {
    match operation {
        Operation::Store { mode: StoreMode::Append | StoreMode::Prepend, .. } => None,
        Operation::Store { flags, exptime, value, .. } | Operation::LeaseSet { flags, exptime, value, .. } => {
            Some((*flags, *exptime, value))
        }
        _ => None,
    }
}

fn replace_by_manifest(request: &mut Request<Bytes>, manifest: &Manifest) {
    if let Operation::Store { flags, value, .. } | Operation::LeaseSet { flags, value, .. } = &mut request.operation {
        *flags |= BIG_VALUE_FLAG;
        *value = manifest.value();
    }
}

/// Reads a chunk in the way its manifest was read, so that a `gat` touches all.
fn chunk_request(request: &Request<Bytes>, key: Bytes) -> Request<Bytes> {
    match request.operation {
        Operation::GetAndTouch { exptime, .. } => {
            Request { key, operation: Operation::GetAndTouch { exptime, cas: false } }
        }
        _ => Request { key, ..as_get(request) },
    }
}

/// Joins the next `count` chunks. The error is the outcome of a missing one; failures take precedence over misses.
fn join_chunks(chunks: &mut vec::IntoIter<(usize, Outcome)>, count: usize) -> Result<Bytes, Outcome> {
    let mut whole = BytesMut::new();
    let mut lost = None;
    for (_, outcome) in chunks.take(count) {
        match outcome {
            Ok(Reply::Value { value, .. }) => whole.extend_from_slice(&value),
            outcome if is_error(&outcome) => lost = Some(outcome),
            _ => lost = lost.or(Some(Ok(Reply::Miss))),
        }
    }
    lost.map_or(Ok(whole.freeze()), Err)
}

/// Drops a stale manifest from a lease: it is not a value for clients.
fn drop_stale_manifest(outcome: &mut Outcome) {
    if let Ok(Reply::Lease { flags, stale, .. }) = outcome
        && stale.as_ref().is_some_and(|stale| Manifest::parse(*flags, stale).is_some())
    {
        (*flags, *stale) = (0, None);
    }
}

impl BigValueRoute {
    /// The description of a `BigValueRoute` over `target`.
    pub(crate) fn handle(target: Handle, settings: BigValueSettings) -> Handle {
        Handle::route(Config { target, settings })
    }
}

/// No server accepts larger items.
const SPLIT_THRESHOLD_BYTES_MAX: i64 = 1 << 30;

pub(crate) const TYPE: RouteType = RouteType::new("BigValueRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    target: Handle,
    settings: BigValueSettings,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys::known(&["type", "name", "target", "split_threshold", "batch_size", "hide_reply_flag"]))?;
    let threshold = object.require("split_threshold", "the largest value that is not split, in bytes")?;
    let threshold_bytes = threshold.integer("bytes", 1, SPLIT_THRESHOLD_BYTES_MAX)? as usize;
    let default = BigValueSettings::above(threshold_bytes);
    let batch_size = object.integer_or("batch_size", "chunks", CHUNKS_MAX as i64, default.batch_size as i64)?;
    let hides_flag = object.get("hide_reply_flag").map_or(Ok(default.hides_flag), |node| node.boolean())?;
    Ok(Handle::route(Config {
        settings: BigValueSettings { batch_size: batch_size as usize, hides_flag, ..default },
        target: parser.parse_required(object, "target")?,
    }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let BigValueSettings { split_threshold_bytes, batch_size, hides_flag } = self.settings;
        vec![
            ("split_threshold", split_threshold_bytes.to_string()),
            ("batch_size", batch_size.to_string()),
            ("hide_reply_flag", hides_flag.to_string()),
        ]
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        Arc::new(BigValueRoute::new(tree.build(&self.target), self.settings))
    }
}
