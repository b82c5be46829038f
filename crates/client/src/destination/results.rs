//! The replies of a destination by mcrouter's names of results, and the requests that it was sent by verb. Serves every
//! path.
//!
//! The connection's task counts in plain numbers ([`UnpublishedCounts`]), once for each command line, and adds what has
//! changed to the counters that others read once for each read and write: a request costs no atomic operation. Requests
//! that fail are counted where they do.

use lookaside_protocol::{ErrorReply, Reply, meta::MetaStatus};
use lookaside_routing::{Failure, Verb, is_busy};
use lookaside_sync::SharedCounter;

/// The result of a request, as mcrouter counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the reply or the failure of its name")]
pub enum ServerResult {
    Found,
    NotFound,
    Stored,
    StaleStored,
    NotStored,
    Exists,
    Deleted,
    Touched,
    Ok,
    ClientError,
    RemoteError,
    Busy,
    ConnectError,
    ConnectTimeout,
    Timeout,
    Tko,
}

impl ServerResult {
    /// All, in the order of their numbers.
    pub const ALL: [ServerResult; 16] = [
        ServerResult::Found,
        ServerResult::NotFound,
        ServerResult::Stored,
        ServerResult::StaleStored,
        ServerResult::NotStored,
        ServerResult::Exists,
        ServerResult::Deleted,
        ServerResult::Touched,
        ServerResult::Ok,
        ServerResult::ClientError,
        ServerResult::RemoteError,
        ServerResult::Busy,
        ServerResult::ConnectError,
        ServerResult::ConnectTimeout,
        ServerResult::Timeout,
        ServerResult::Tko,
    ];

    /// mcrouter's name.
    pub fn name(self) -> &'static str {
        match self {
            ServerResult::Found => "found",
            ServerResult::NotFound => "notfound",
            ServerResult::Stored => "stored",
            ServerResult::StaleStored => "stalestored",
            ServerResult::NotStored => "notstored",
            ServerResult::Exists => "exists",
            ServerResult::Deleted => "deleted",
            ServerResult::Touched => "touched",
            ServerResult::Ok => "ok",
            ServerResult::ClientError => "client_error",
            ServerResult::RemoteError => "remote_error",
            ServerResult::Busy => "busy",
            ServerResult::ConnectError => "connect_error",
            ServerResult::ConnectTimeout => "connect_timeout",
            ServerResult::Timeout => "timeout",
            ServerResult::Tko => "tko",
        }
    }

    /// The result that a reply is.
    pub(super) fn of<B: AsRef<[u8]>>(reply: &Reply<B>) -> ServerResult {
        match reply {
            Reply::Value { .. } => ServerResult::Found,
            Reply::Miss | Reply::Lease { .. } | Reply::NotFound => ServerResult::NotFound,
            Reply::Stored | Reply::StoredAs(_) | Reply::Number(_) => ServerResult::Stored,
            Reply::StaleStored => ServerResult::StaleStored,
            Reply::NotStored => ServerResult::NotStored,
            Reply::Exists => ServerResult::Exists,
            Reply::Deleted => ServerResult::Deleted,
            Reply::Touched => ServerResult::Touched,
            Reply::Ok => ServerResult::Ok,
            Reply::Meta(meta) => match meta.status {
                MetaStatus::Value | MetaStatus::Debug => ServerResult::Found,
                MetaStatus::Miss | MetaStatus::NotFound => ServerResult::NotFound,
                MetaStatus::NotStored => ServerResult::NotStored,
                MetaStatus::Exists => ServerResult::Exists,
                MetaStatus::Done => ServerResult::Ok,
            },
            Reply::Error(ErrorReply::Client(_)) => ServerResult::ClientError,
            Reply::Error(ErrorReply::Server(why)) if is_busy(why.as_ref()) => ServerResult::Busy,
            Reply::Error(ErrorReply::Server(_) | ErrorReply::Unknown) => ServerResult::RemoteError,
        }
    }

    /// The result that a failure is; `None` if no destination has failed.
    pub(super) fn of_failure(failure: &Failure) -> Option<ServerResult> {
        match failure {
            Failure::ConnectFailed => Some(ServerResult::ConnectError),
            Failure::ConnectTimedOut => Some(ServerResult::ConnectTimeout),
            Failure::TimedOut | Failure::QueueTimedOut | Failure::DatagramLost { .. } => Some(ServerResult::Timeout),
            Failure::ConnectionLost | Failure::ReadFailed(_) | Failure::Malformed => Some(ServerResult::RemoteError),
            Failure::Tko(_) => Some(ServerResult::Tko),
            Failure::Busy | Failure::TooManyPending { .. } => Some(ServerResult::Busy),
            Failure::NoRoute(_) | Failure::NoTree | Failure::Refused { .. } | Failure::Spooled => None,
            Failure::OfServer { failure, .. } => ServerResult::of_failure(failure),
        }
    }
}

/// Counts by result and by verb.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResultCounts {
    results: [u64; ServerResult::ALL.len()],
    sent: [u64; Verb::ALL.len()],
}

impl ResultCounts {
    /// Requests with this result.
    pub fn of(&self, result: ServerResult) -> u64 {
        self.results[result as usize]
    }

    /// Requests of this verb that were sent.
    pub fn sent(&self, verb: Verb) -> u64 {
        self.sent[verb as usize]
    }

    /// Adds `other`.
    pub fn add(&mut self, other: &ResultCounts) {
        self.results.iter_mut().zip(other.results).for_each(|(sum, count)| *sum += count);
        self.sent.iter_mut().zip(other.sent).for_each(|(sum, count)| *sum += count);
    }
}

/// The counts of a destination, or of several, as other threads see them.
#[derive(Debug, Default)]
pub struct ResultCounters {
    results: [SharedCounter; ServerResult::ALL.len()],
    sent: [SharedCounter; Verb::ALL.len()],
}

impl ResultCounters {
    /// The counts at this moment.
    pub fn snapshot(&self) -> ResultCounts {
        ResultCounts {
            results: self.results.each_ref().map(SharedCounter::value),
            sent: self.sent.each_ref().map(SharedCounter::value),
        }
    }

    /// Counts requests that have failed.
    pub(super) fn count_failure(&self, failure: &Failure, requests: usize) {
        if let Some(result) = ServerResult::of_failure(failure) {
            self.results[result as usize].add(requests as u64);
        }
    }

    /// Adds the counts of a destination that is dropped.
    pub(super) fn add(&self, counts: &ResultCounts) {
        self.results.iter().zip(counts.results).for_each(|(sum, count)| sum.add(count));
        self.sent.iter().zip(counts.sent).for_each(|(sum, count)| sum.add(count));
    }
}

/// Counts that are not published yet.
#[derive(Debug, Default)]
pub(super) struct UnpublishedCounts {
    counts: ResultCounts,
    /// A bit for each result that has changed.
    results: u32,
    /// A bit for each verb that has changed.
    sent: u32,
}

impl UnpublishedCounts {
    pub(super) fn add_result(&mut self, result: ServerResult, requests: usize) {
        self.counts.results[result as usize] += requests as u64;
        self.results |= 1 << result as u32;
    }

    pub(super) fn add_sent(&mut self, verb: Verb, requests: usize) {
        self.counts.sent[verb as usize] += requests as u64;
        self.sent |= 1 << verb as u32;
    }

    pub(super) fn publish(&mut self, counters: &ResultCounters) {
        publish(&mut self.results, &mut self.counts.results, &counters.results);
        publish(&mut self.sent, &mut self.counts.sent, &counters.sent);
    }
}

fn publish(changed: &mut u32, counts: &mut [u64], counters: &[SharedCounter]) {
    while *changed != 0 {
        let at = changed.trailing_zeros() as usize;
        *changed &= *changed - 1;
        counters[at].add(std::mem::take(&mut counts[at]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_published_once() {
        assert!(ServerResult::ALL.iter().enumerate().all(|(at, result)| *result as usize == at));
        assert!(Verb::ALL.iter().enumerate().all(|(at, verb)| *verb as usize == at));
        let (mut counts, counters) = (UnpublishedCounts::default(), ResultCounters::default());
        counts.add_result(ServerResult::Found, 3);
        counts.add_result(ServerResult::Tko, 1);
        counts.add_sent(Verb::Metaget, 4);
        for _ in 0..2 {
            counts.publish(&counters);
            let published = counters.snapshot();
            assert_eq!((published.of(ServerResult::Found), published.of(ServerResult::Tko)), (3, 1));
            assert_eq!((published.sent(Verb::Metaget), published.sent(Verb::Get)), (4, 0));
        }
    }

    #[test]
    fn busy_is_a_number_or_more_behind_it() {
        let of = |why: &'static [u8]| ServerResult::of(&Reply::Error(ErrorReply::Server(why)));
        assert_eq!((of(b"307 busy"), of(b"307")), (ServerResult::Busy, ServerResult::Busy));
        assert_eq!((of(b"3070"), of(b"out of memory")), (ServerResult::RemoteError, ServerResult::RemoteError));
    }
}
