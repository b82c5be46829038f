//! A read-through (§3.2.1 of the paper) in steps: the loader is Python code, which must not run inside the runtime. It
//! may take long, and may use the client itself. So a read stops where values must be loaded, and continues with them.
//!
//! ```text
//!   next() -> ToLoad { .. }  the caller runs the loader, and calls load_succeeded(values)
//!   next() -> Done(values)
//! ```
//!
//! The cache is waited for during a bounded time, which all steps share; the loader's time does not count. After that
//! the read gives the cache up: what it does not have yet is loaded, and not filled. Dropped, a read releases its
//! leases.
//!
//! With remote markers, each value is loaded from the database that they name. The values of one step are from one.
//!
//! Keys whose values expire at different times are read side by side: by a client with batching their lookups are one
//! round trip, and what they miss is loaded together.

use crate::positions::group_equal;
use bytes::Bytes;
use futures_util::future::try_join_all;
use lookaside_client::{Content, ReadFrom, ReadOptions, RegionalClient, TypedClient, TypedReadError};
use lookaside_routing::BoxFuture;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

/// The loader has failed. Its error is known to the caller of the read.
#[derive(Debug)]
pub(crate) struct LoadFailed;

impl fmt::Display for LoadFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the loader has failed")
    }
}

type ReadError = TypedReadError<LoadFailed>;
type LoadReply = oneshot::Sender<Result<Vec<Content>, LoadFailed>>;

struct LoadCall {
    /// `None` without remote markers.
    from: Option<ReadFrom>,
    keys: Vec<Bytes>,
    reply: LoadReply,
}

/// Keys whose values expire at the same time, by their indexes.
pub(crate) struct KeyGroup {
    indexes: Vec<usize>,
    exptime: i64,
}

impl KeyGroup {
    /// The groups of keys, by the exptime of all of them, or that of each.
    pub(crate) fn by_exptime(keys: usize, exptimes: &[i64]) -> Vec<KeyGroup> {
        if let [exptime] = *exptimes {
            return vec![KeyGroup { indexes: (0..keys).collect(), exptime }];
        }
        assert_eq!(exptimes.len(), keys, "an exptime for all keys, or one for each");
        group_equal(exptimes).into_iter().map(|(exptime, indexes)| KeyGroup { indexes, exptime }).collect()
    }
}

/// What a read needs next.
pub(crate) enum Step {
    /// The values of the keys, in order.
    Done(Vec<Content>),
    /// The values of these keys, from the loader.
    ToLoad {
        keys: Vec<Bytes>,
        /// The database to load them from; `None` without remote markers.
        from: Option<ReadFrom>,
    },
    Failed(ReadError),
}

pub(crate) struct Read {
    keys: Vec<Bytes>,
    /// `None` once the cache was given up.
    running: Option<BoxFuture<'static, Result<Vec<Content>, ReadError>>>,
    load_calls: mpsc::UnboundedReceiver<LoadCall>,
    /// Calls that have come, for another database than those that were asked for last.
    waiting: VecDeque<LoadCall>,
    /// Where values are loaded from once the cache was given up; `None` without remote markers.
    from_when_unknown: Option<ReadFrom>,
    /// The keys whose values were asked for last.
    missing: Vec<Bytes>,
    /// Where the values go, each with their number; empty if the cache does not wait for them.
    replies: Vec<(usize, LoadReply)>,
    loaded: HashMap<Bytes, Content>,
    /// For how long the cache may still be waited for.
    time_left: Duration,
    runtime: Handle,
}

impl Read {
    /// A read of valid keys, by a client without a deadline of its own. The cache is waited for during `time_max`.
    /// `regional` has the same client, and its remote markers; `None` without.
    pub(crate) fn new(
        client: TypedClient,
        regional: Option<RegionalClient>,
        runtime: Handle,
        keys: Vec<Bytes>,
        groups: Vec<KeyGroup>,
        options: ReadOptions,
        time_max: Duration,
    ) -> Read {
        let (calls, load_calls) = mpsc::unbounded_channel();
        let wanted = keys.clone();
        let from_when_unknown = regional.as_ref().map(RegionalClient::when_unknown);
        let running = Box::pin(async move {
            let reads =
                groups.into_iter().map(|group| read_group(&client, regional.as_ref(), &wanted, group, options, &calls));
            let mut values: Vec<Option<Content>> = wanted.iter().map(|_| None).collect();
            for (index, value) in try_join_all(reads).await?.into_iter().flatten() {
                values[index] = Some(value);
            }
            Ok::<_, ReadError>(values.into_iter().map(|value| value.expect("each key is of a group")).collect())
        });
        Read {
            keys,
            running: Some(running),
            load_calls,
            waiting: VecDeque::new(),
            from_when_unknown,
            missing: Vec::new(),
            replies: Vec::new(),
            loaded: HashMap::new(),
            time_left: time_max,
            runtime,
        }
    }

    /// Continues until values must be loaded, or all are there.
    pub(crate) async fn next(&mut self) -> Step {
        if let Some(call) = self.waiting.pop_front().filter(|_| self.running.is_some()) {
            return self.ask_for(call);
        }
        if let Some(running) = &mut self.running {
            let began = Instant::now();
            let step = async {
                tokio::select! {
                    biased;
                    Some(call) = self.load_calls.recv() => Ok(call),
                    ended = running => Err(ended),
                }
            };
            let step = timeout(self.time_left, step).await;
            self.time_left = self.time_left.saturating_sub(began.elapsed());
            match step {
                Ok(Ok(call)) => return self.ask_for(call),
                Ok(Err(ended)) => return ended.map_or_else(Step::Failed, Step::Done),
                Err(_) => self.running = None,
            }
        }
        let missing = self.missing_keys();
        match missing.is_empty() {
            true => Step::Done(self.keys.iter().map(|key| self.loaded[key].clone()).collect()),
            false => self.ask(missing, self.from_when_unknown),
        }
    }

    /// The keys without a value, each once.
    fn missing_keys(&self) -> Vec<Bytes> {
        let mut found = HashSet::new();
        let keys = self.keys.iter().filter(|key| !self.loaded.contains_key(*key) && found.insert(*key));
        keys.cloned().collect()
    }

    /// Asks for the values of a call, and of those of other groups that came with it and are of the same database.
    fn ask_for(&mut self, first: LoadCall) -> Step {
        let from = first.from;
        self.waiting.push_front(first);
        self.waiting.extend(std::iter::from_fn(|| self.load_calls.try_recv().ok()));
        let mut keys = Vec::new();
        for call in std::mem::take(&mut self.waiting) {
            if call.from == from {
                self.replies.push((call.keys.len(), call.reply));
                keys.extend(call.keys);
            } else {
                self.waiting.push_back(call);
            }
        }
        self.ask(keys, from)
    }

    fn ask(&mut self, keys: Vec<Bytes>, from: Option<ReadFrom>) -> Step {
        self.missing = keys.clone();
        Step::ToLoad { keys, from }
    }

    /// The values of the keys that the last step asked for, in their order.
    pub(crate) fn load_succeeded(&mut self, values: Vec<Content>) {
        assert_eq!(values.len(), self.missing.len(), "one value for each key");
        self.loaded.extend(self.missing.drain(..).zip(values.iter().cloned()));
        let mut values = values.into_iter();
        for (count, reply) in self.replies.drain(..) {
            // If the read has ended, its values are in `loaded`.
            let _ = reply.send(Ok(values.by_ref().take(count).collect()));
        }
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        // Its leases are released by a task, whichever thread drops it.
        let _inside = self.runtime.enter();
        self.replies.clear();
        self.waiting.clear();
        self.running = None;
    }
}

/// Reads the keys of one group; returns each value with the index of its key.
async fn read_group(
    client: &TypedClient,
    regional: Option<&RegionalClient>,
    keys: &[Bytes],
    group: KeyGroup,
    options: ReadOptions,
    calls: &mpsc::UnboundedSender<LoadCall>,
) -> Result<Vec<(usize, Content)>, ReadError> {
    let wanted: Vec<Bytes> = group.indexes.iter().map(|&index| keys[index].clone()).collect();
    let load = |from, keys| async move {
        let (reply, loaded) = oneshot::channel();
        calls.send(LoadCall { from, keys, reply }).map_err(|_| LoadFailed)?;
        loaded.await.unwrap_or(Err(LoadFailed))
    };
    let options = ReadOptions { exptime: group.exptime, ..options };
    let values = match regional {
        None => client.get_or_load_many(&wanted, &options, |keys| load(None, keys)).await?,
        Some(regional) => {
            let load = regional.loader(|from, keys| load(Some(from), keys));
            client.get_or_load_many(&wanted, &options, load).await?
        }
    };
    Ok(group.indexes.into_iter().zip(values).collect())
}
