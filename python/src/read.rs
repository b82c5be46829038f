//! A read-through (§3.2.1 of the paper) in steps: the loader is Python code, which must not run inside the runtime. It
//! may take long, and may use the client itself. So a read stops where values must be loaded, and continues with them.
//!
//! ```text
//!   next() -> ToLoad(keys)   the caller runs the loader, and calls load_succeeded(values)
//!   next() -> Done(values)
//! ```
//!
//! The cache gets a bounded time for each step. After that the read gives it up: what it does not have yet is loaded,
//! and not filled. Dropped, a read releases its leases.

use bytes::Bytes;
use lookaside_client::{Content, ReadOptions, TypedClient, TypedReadError};
use lookaside_routing::BoxFuture;
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// The loader has failed. Its error is known to the caller of the read.
#[derive(Debug)]
pub(crate) struct LoadFailed;

impl fmt::Display for LoadFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the loader has failed")
    }
}

type ReadError = TypedReadError<LoadFailed>;

struct LoadCall {
    keys: Vec<Bytes>,
    reply: oneshot::Sender<Result<Vec<Content>, LoadFailed>>,
}

/// What a read needs next.
pub(crate) enum Step {
    /// The values of the keys, in order.
    Done(Vec<Content>),
    /// The values of these keys, from the loader.
    ToLoad(Vec<Bytes>),
    Failed(ReadError),
}

pub(crate) struct Read {
    keys: Vec<Bytes>,
    /// `None` once the cache was given up.
    running: Option<BoxFuture<'static, Result<Vec<Content>, ReadError>>>,
    load_calls: mpsc::UnboundedReceiver<LoadCall>,
    /// The keys whose values were asked for last.
    missing: Vec<Bytes>,
    /// `None` if the cache does not wait for them.
    reply: Option<oneshot::Sender<Result<Vec<Content>, LoadFailed>>>,
    loaded: HashMap<Bytes, Content>,
    step_max: Duration,
    runtime: Handle,
}

impl Read {
    /// A read of valid keys. Each step may take `step_max` in the cache; `client` has no deadline of its own.
    pub(crate) fn new(
        client: TypedClient,
        runtime: Handle,
        keys: Vec<Bytes>,
        options: ReadOptions,
        step_max: Duration,
    ) -> Read {
        let (calls, load_calls) = mpsc::unbounded_channel();
        let wanted = keys.clone();
        let running = Box::pin(async move {
            let load = |keys| {
                let calls = calls.clone();
                async move {
                    let (reply, loaded) = oneshot::channel();
                    calls.send(LoadCall { keys, reply }).map_err(|_| LoadFailed)?;
                    loaded.await.unwrap_or(Err(LoadFailed))
                }
            };
            client.get_or_load_many(&wanted, &options, load).await
        });
        Read {
            keys,
            running: Some(running),
            load_calls,
            missing: Vec::new(),
            reply: None,
            loaded: HashMap::new(),
            step_max,
            runtime,
        }
    }

    /// Continues until values must be loaded, or all are there.
    pub(crate) async fn next(&mut self) -> Step {
        if let Some(running) = &mut self.running {
            let step = async {
                tokio::select! {
                    biased;
                    Some(call) = self.load_calls.recv() => Ok(call),
                    ended = running => Err(ended),
                }
            };
            match timeout(self.step_max, step).await {
                Ok(Ok(LoadCall { keys, reply })) => {
                    self.reply = Some(reply);
                    return self.ask(keys);
                }
                Ok(Err(ended)) => return ended.map_or_else(Step::Failed, Step::Done),
                Err(_) => self.running = None,
            }
        }
        let mut missing: Vec<Bytes> = Vec::new();
        for key in &self.keys {
            if !self.loaded.contains_key(key) && !missing.contains(key) {
                missing.push(key.clone());
            }
        }
        match missing.is_empty() {
            true => Step::Done(self.keys.iter().map(|key| self.loaded[key].clone()).collect()),
            false => self.ask(missing),
        }
    }

    fn ask(&mut self, keys: Vec<Bytes>) -> Step {
        self.missing = keys.clone();
        Step::ToLoad(keys)
    }

    /// The values of the keys that the last step asked for, in their order.
    pub(crate) fn load_succeeded(&mut self, values: Vec<Content>) {
        assert_eq!(values.len(), self.missing.len(), "one value for each key");
        self.loaded.extend(self.missing.drain(..).zip(values.iter().cloned()));
        if let Some(reply) = self.reply.take() {
            // If the read has ended, its values are in `loaded`.
            let _ = reply.send(Ok(values));
        }
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        // Its leases are released by a task, whichever thread drops it.
        let _inside = self.runtime.enter();
        self.reply = None;
        self.running = None;
    }
}
