//! The faults of a run: which part failed, and when. Tells whether an old value was read inside the failed part, or
//! outside of it, where reads must stay fresh.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::time::Instant;

/// How long after its end a fault still has effects: keys wait for their next retry, servers for their next probe, the
/// fences of silent routers for their end.
pub const AFTERMATH: Duration = Duration::from_secs(4);

/// The part that a fault concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailedPart {
    /// A router is down, hangs, or is being replaced, and its cluster has others.
    Router,
    /// A server, spare or gutter is down or hangs.
    Server(String),
    /// The invalidator is down or hangs.
    Invalidator,
    /// The only router of a cluster, a link, or several parts at once.
    Delivery,
}

/// All faults of a run. Clones share them.
#[derive(Clone, Default)]
pub struct FaultLog(Arc<Mutex<Vec<Fault>>>);

struct Fault {
    /// `None`: all clusters.
    cluster: Option<String>,
    part: FailedPart,
    began: Instant,
    /// `None`: not yet.
    ended: Option<Instant>,
}

/// Where a read was, relative to the faults that could have made it stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// No part of the cluster had failed.
    Calm,
    /// One router had failed, and nothing else.
    OneRouter,
    /// One server that the key is not read from had failed, and nothing else.
    OneServer,
    /// The invalidator had failed, and nothing else, and it was repaired then.
    InvalidatorUntil(Instant),
    /// More had failed, or the part that the key needs.
    Failed,
}

impl FaultLog {
    /// Records the beginning of a fault. Returns its number.
    pub fn begin(&self, cluster: Option<String>, part: FailedPart) -> usize {
        let mut faults = self.faults();
        faults.push(Fault { cluster, part, began: Instant::now(), ended: None });
        faults.len() - 1
    }

    /// Records the end of a fault.
    pub fn end(&self, fault: usize) {
        self.faults()[fault].ended = Some(Instant::now());
    }

    /// The faults that could have kept a key of `cluster` from being deleted between `from` and `to`. `owners` are the
    /// servers that it is read from; `None` if that is not known.
    pub fn exposure(&self, cluster: &str, owners: Option<&[String]>, from: Instant, to: Instant) -> Exposure {
        let faults = self.faults();
        let mut concerned = faults.iter().filter(|fault| {
            let is_here = fault.cluster.as_deref().is_none_or(|other| other == cluster);
            is_here && fault.began <= to && fault.ended.is_none_or(|ended| from < ended + AFTERMATH)
        });
        let (Some(fault), another) = (concerned.next(), concerned.next()) else { return Exposure::Calm };
        match (&fault.part, fault.ended) {
            _ if another.is_some() => Exposure::Failed,
            (FailedPart::Router, _) => Exposure::OneRouter,
            (FailedPart::Server(server), _) if owners.is_some_and(|owners| !owners.contains(server)) => {
                Exposure::OneServer
            }
            (FailedPart::Invalidator, Some(ended)) => Exposure::InvalidatorUntil(ended),
            _ => Exposure::Failed,
        }
    }

    fn faults(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.0.lock().expect("one thread runs a simulation")
    }
}
