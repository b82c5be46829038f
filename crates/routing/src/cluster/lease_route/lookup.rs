//! What becomes of the reads of a batch after their first outcomes: tokens are taken for those that missed, and reads
//! whose token another client holds are held back.

use super::{Role, UnansweredReads, role};
use crate::{
    Batch, ClientMisses, Context, Outcome, Outcomes, Route,
    client_misses::{Age, KeyState},
    configuration::HotMisses,
    environment::Clock,
    outcome::{as_get, is_error, is_miss, verb},
    split::route_some,
    verb::VerbKind,
};
use bytes::Bytes;
use lookaside_protocol::{ErrorReply, LeaseToken, Operation, Reply, Request, meta::MetaStatus};
use std::time::Duration;

/// The first wait of a hot miss; each further one is twice as long, up to [`WAIT_MS_MAX`].
const WAIT_MS_MIN: u64 = 4;
/// The longest time between two requests for a hot miss.
const WAIT_MS_MAX: u64 = 32;

/// The reads of one batch.
pub(super) struct Lookup<'a> {
    pub(super) target: &'a dyn Route,
    pub(super) clock: &'a dyn Clock,
    pub(super) hot_misses: HotMisses,
    pub(super) misses: &'a ClientMisses,
    pub(super) age: Age,
}

/// A `get` or another lookup of a batch.
pub(super) struct Read {
    pub(super) at: usize,
    pub(super) request: Request<Bytes>,
    pub(super) hash: u64,
    /// Whether it was sent as `lease-get`.
    pub(super) is_leased: bool,
}

/// What is known of the reads so far.
struct Progress<'a> {
    /// Of the whole batch.
    outcomes: Outcomes,
    /// Reads that missed and have not asked for a token yet.
    unleased: Vec<Read>,
    /// Reads that are held back.
    held: Vec<Read>,
    /// Reads whose key has a value by now, and which must show more of it than a `lease-get` does.
    found: Vec<Read>,
    /// Tokens that no set can use: their servers would keep other clients waiting.
    returned: Batch,
    /// Reads whose misses are not recorded yet.
    unanswered: UnansweredReads<'a>,
}

impl Lookup<'_> {
    /// The outcomes of the batch, with the first `outcomes`.
    pub(super) async fn finish(
        &self,
        reads: Vec<Read>,
        outcomes: Outcomes,
        unanswered: UnansweredReads<'_>,
        context: &Context,
    ) -> Outcomes {
        let (unleased, held, found, returned) = (Vec::new(), Vec::new(), Vec::new(), Batch::new());
        let mut progress = Progress { outcomes, unleased, held, found, returned, unanswered };
        for read in reads {
            self.judge_first(read, &mut progress);
        }
        let unleased = std::mem::take(&mut progress.unleased);
        self.ask(unleased, &mut progress, context).await;
        let mut waits = waits(self.hot_misses.wait);
        while !progress.held.is_empty()
            && let Some(wait) = waits.next()
        {
            self.return_leases(&mut progress, context).await;
            self.clock.sleep(wait).await;
            let held = std::mem::take(&mut progress.held);
            self.misses.counters().hot_hits.add(self.ask(held, &mut progress, context).await);
        }
        for read in std::mem::take(&mut progress.held) {
            self.misses.counters().hot_misses.add(1);
            self.record(&read, None, &mut progress);
        }
        self.ask_again(&mut progress, context).await;
        self.return_leases(&mut progress, context).await;
        progress.unanswered.end();
        progress.outcomes
    }

    async fn return_leases(&self, progress: &mut Progress<'_>, context: &Context) {
        if !progress.returned.is_empty() {
            self.target.route(std::mem::take(&mut progress.returned), context).await;
        }
    }

    /// Judges the first outcome of a read.
    fn judge_first(&self, read: Read, progress: &mut Progress<'_>) {
        if read.is_leased {
            let outcome = std::mem::replace(&mut progress.outcomes[read.at], Ok(Reply::Miss));
            self.judge(read, outcome, progress);
            return;
        }
        let outcome = &progress.outcomes[read.at];
        // A client that gets an error reads the database, too.
        let is_failed_read = is_error(outcome) && is_read(&read);
        if is_absent(outcome) {
            self.judge_absent(read, progress);
        } else if is_failed_read {
            self.record(&read, None, progress);
        }
    }

    /// A key without a value, for which no token was asked for.
    fn judge_absent(&self, read: Read, progress: &mut Progress<'_>) {
        match self.misses.state(read.hash, self.age) {
            KeyState::Void if is_read(&read) && self.misses.is_answered_elsewhere(read.hash, self.age) => {
                progress.held.push(read);
            }
            // A token could not be used.
            KeyState::Void => self.record(&read, None, progress),
            KeyState::None | KeyState::Held(_) => progress.unleased.push(read),
        }
    }

    /// Asks for tokens; for keys that are void, only whether they have a value by now. Returns the number of those that
    /// have.
    async fn ask(&self, reads: Vec<Read>, progress: &mut Progress<'_>, context: &Context) -> u64 {
        let is_void = |read: &Read| self.misses.state(read.hash, self.age) == KeyState::Void;
        let probed: Vec<bool> = reads.iter().map(is_void).collect();
        let request = |(read, is_probed): (&Read, &bool)| match is_probed {
            true => (read.at, as_get(&read.request)),
            false => (read.at, as_lease_get(&read.request)),
        };
        let requests = reads.iter().zip(&probed).map(request).collect();
        let outcomes = route_some(self.target, requests, context).await;
        let mut found = 0;
        for ((read, is_probed), (_, outcome)) in reads.into_iter().zip(probed).zip(outcomes) {
            match outcome {
                Ok(Reply::Miss) if is_probed && is_void(&read) => self.judge_absent(read, progress),
                // The last older value has been refused meanwhile.
                Ok(Reply::Miss) if is_probed => progress.held.push(read),
                outcome => found += u64::from(self.judge(read, outcome, progress)),
            }
        }
        found
    }

    /// Judges the outcome of a read's `lease-get`, or `get`. Returns whether there is a value. In the outcomes so far
    /// the read has a miss.
    fn judge(&self, read: Read, outcome: Outcome, progress: &mut Progress<'_>) -> bool {
        let counters = self.misses.counters();
        let is_get = role(&read.request) == Role::Get;
        match outcome {
            Ok(Reply::Value { .. }) => {
                match is_get {
                    true => progress.outcomes[read.at] = outcome,
                    false => progress.found.push(read),
                }
                return true;
            }
            // The earlier token is void, and its client has yet to store: over another connection, in a moment.
            Ok(Reply::Lease { token, .. }) if token.is_held() && is_read(&read) && self.is_held_elsewhere(&read) => {
                self.misses.void(read.hash);
                progress.returned.push(as_lease_return(&read.request, token));
                progress.held.push(read);
            }
            Ok(Reply::Lease { token, .. }) if token.is_held() => self.record(&read, Some(token), progress),
            Ok(Reply::Lease { .. }) if self.is_held(&read) && !self.is_held_elsewhere(&read) => {
                self.record(&read, None, progress)
            }
            Ok(Reply::Lease { flags, stale: Some(value), .. }) if is_get && self.hot_misses.return_stale => {
                counters.stale_hits.add(1);
                progress.outcomes[read.at] = Ok(Reply::Value { flags, cas: None, value });
            }
            Ok(Reply::Lease { .. }) if is_read(&read) => progress.held.push(read),
            Ok(Reply::Lease { .. }) => {
                counters.hot_misses.add(1);
                self.record(&read, None, progress);
            }
            outcome => {
                self.record(&read, None, progress);
                if is_get {
                    progress.outcomes[read.at] = explain_unknown(outcome);
                }
            }
        }
        false
    }

    /// Whether the client has a token for the key already. If the set comes over this connection, too, nothing is
    /// gained by waiting.
    fn is_held(&self, read: &Read) -> bool {
        matches!(self.misses.state(read.hash, self.age), KeyState::Held(_))
    }

    fn is_held_elsewhere(&self, read: &Read) -> bool {
        self.is_held(read) && self.misses.is_answered_elsewhere(read.hash, self.age)
    }

    fn record(&self, read: &Read, token: Option<LeaseToken>, progress: &mut Progress<'_>) {
        progress.unanswered.remove(read.at);
        if let Some(unused) = self.misses.record(read.hash, token, self.age) {
            progress.returned.push(as_lease_return(&read.request, unused));
        }
    }

    /// Repeats the reads that were found meanwhile.
    async fn ask_again(&self, progress: &mut Progress<'_>, context: &Context) {
        let found = std::mem::take(&mut progress.found);
        let requests = found.iter().map(|read| (read.at, read.request.clone())).collect();
        let outcomes = route_some(self.target, requests, context).await;
        for (read, (at, outcome)) in found.iter().zip(outcomes) {
            if is_absent(&outcome) || is_error(&outcome) {
                self.record(read, None, progress);
            }
            progress.outcomes[at] = outcome;
        }
    }
}

pub(super) fn is_read(read: &Read) -> bool {
    verb(&read.request).kind() == VerbKind::Read
}

/// Whether a lookup has found that there is no value.
fn is_absent(outcome: &Outcome) -> bool {
    match outcome {
        Ok(Reply::NotFound) => true,
        Ok(Reply::Meta(meta)) if meta.status == MetaStatus::NotFound => true,
        outcome => is_miss(outcome),
    }
}

pub(super) fn as_lease_get(request: &Request<Bytes>) -> Request<Bytes> {
    Request { key: request.key.clone(), operation: Operation::LeaseGet }
}

/// A `lease-set` that uses up a token and stores nothing that can be read.
pub(super) fn as_lease_return(request: &Request<Bytes>, token: LeaseToken) -> Request<Bytes> {
    let operation = Operation::LeaseSet { token, flags: 0, exptime: EXPIRED, value: Bytes::new() };
    Request { key: request.key.clone(), operation }
}

/// The exptime of a value that has expired.
const EXPIRED: i64 = -1;

/// Says what is missing if the server does not know `lease-get`.
fn explain_unknown(outcome: Outcome) -> Outcome {
    const WHY: &[u8] = b"the server does not know lease-get, which LeaseRoute needs";
    match outcome {
        Ok(Reply::Error(ErrorReply::Unknown)) => Ok(Reply::Error(ErrorReply::Server(Bytes::from_static(WHY)))),
        outcome => outcome,
    }
}

/// The waits between the requests for a hot miss, `all` in sum.
fn waits(all: Duration) -> impl Iterator<Item = Duration> {
    let (mut next, mut left) = (Duration::from_millis(WAIT_MS_MIN), all);
    std::iter::from_fn(move || {
        let wait = next.min(left);
        left -= wait;
        next = (next * 2).min(Duration::from_millis(WAIT_MS_MAX));
        (!wait.is_zero()).then_some(wait)
    })
}
