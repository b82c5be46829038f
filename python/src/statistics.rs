//! Counters of a part of a client's calls, those of a page say: a client that shares all else counts them by itself,
//! too.

use crate::engine::Engine;
use lookaside_client::Client;
use lookaside_sync::Mutex;
use std::sync::{Arc, Weak};

/// The counters of one Python client that has its own.
#[derive(Default)]
pub(crate) struct OwnStatistics {
    /// The client that counts, and the engine that it is of: a forked child has another one, and begins at 0. Locked
    /// only with the GIL held, as in a fork, so that it is unlocked in a child.
    counted: Mutex<Option<(Weak<Engine>, Client)>>,
}

impl OwnStatistics {
    /// The engine's client without a deadline, whose calls are counted here, too.
    pub(crate) fn client(&self, engine: &Arc<Engine>) -> Client {
        let mut counted = self.counted.lock();
        match &*counted {
            Some((of, client)) if of.as_ptr() == Arc::as_ptr(engine) => client.clone(),
            _ => {
                let client = engine.unlimited_client().client().with_own_statistics();
                counted.insert((Arc::downgrade(engine), client)).1.clone()
            }
        }
    }
}
