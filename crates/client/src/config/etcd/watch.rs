//! Watches one key in etcd. Decides which replies are a new configuration, and when etcd is asked again.
//!
//! | etcd | the configuration | in the log |
//! |---|---|---|
//! | puts another value | changes | when it is applied |
//! | puts the same value | stays | nothing |
//! | deletes the key | stays | once, until there is a value again |
//! | does not reply | stays; the next endpoint is asked after a random wait of 0.1 to 5 seconds | once, and when it replies again |
//! | replies, but refuses the watch (a proxy that buffers streams, a missing permission) | changes when the key is read, at the same intervals | once, and when the watch starts |
//! | ends the watch (compaction, a lost leader) | stays; the key is read again after a moment, then watched again | at level debug |
//!
//! A watch can fail silently: a firewall drops the connection, a member hangs. So every [`CHECK_INTERVAL`] the key is
//! read over another connection. If that returns a value that the watch has not reported, the watch is started again.

use super::client::{EtcdClient, KeyState, Watch, WatchEvent};
use super::location::EtcdLocation;
use crate::Network;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The longest wait before the first retry. Each wait is random, between half of its longest and all of it.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// The longest wait before any later retry.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How often the key is read while the watch reports nothing.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

pub(crate) struct EtcdWatcher {
    location: EtcdLocation,
    network: Arc<dyn Network>,
    random: fastrand::Rng,
    /// The last value returned; `None` if the next is returned in any case.
    seen: Option<Vec<u8>>,
    /// The endpoint to ask next.
    endpoint: usize,
    session: Option<WatchSession>,
    retry: Duration,
    /// Consecutive attempts without a reply.
    failures: usize,
    /// Consecutive attempts in which the key was read but could not be watched.
    unwatched: usize,
    /// When etcd is asked again; `None` if at once.
    retry_at: Option<Instant>,
    is_deleted: bool,
}

struct WatchSession {
    watch: Watch,
    check_at: Instant,
}

/// An update of the key, or its state.
enum Update {
    /// The watch reported it.
    FromWatch(KeyState),
    /// The key was read to check the watch.
    FromRead(KeyState),
}

impl EtcdWatcher {
    /// Watches `location`. `seen` is the value that was read before, if any. `seed` determines the random waits.
    pub(crate) fn new(location: EtcdLocation, network: Arc<dyn Network>, seen: Option<&str>, seed: u64) -> EtcdWatcher {
        let (random, seen) = (fastrand::Rng::with_seed(seed), seen.map(|seen| seen.as_bytes().to_vec()));
        EtcdWatcher {
            location,
            network,
            random,
            seen,
            endpoint: 0,
            session: None,
            retry: RETRY_MIN,
            failures: 0,
            unwatched: 0,
            retry_at: None,
            is_deleted: false,
        }
    }

    /// Makes [`EtcdWatcher::next_change`] read the key at once and return its value, changed or not. An outage is
    /// logged again.
    pub(crate) fn request_read(&mut self) {
        self.seen = None;
        // An active watch may still report an older value.
        self.session = None;
        self.retry = RETRY_MIN;
        self.retry_at = None;
        self.failures = 0;
        self.is_deleted = false;
    }

    /// The value as it is now. Asks each endpoint once.
    pub(crate) async fn read(&mut self) -> Result<String, String> {
        let mut failures = Vec::new();
        for _ in 0..self.location.endpoints.len() {
            match self.read_key().await {
                Ok((_, KeyState { value: Some(value), .. })) => return text(value),
                Ok((_, KeyState { value: None, .. })) => return Err(self.missing()),
                Err(why) => failures.push(why),
            }
            self.endpoint += 1;
        }
        Err(format!("etcd does not answer: {}", failures.join("; ")))
    }

    /// The next value that differs from the last one; an error if it is not text. Waits while etcd is unreachable.
    /// Cancel safe.
    pub(crate) async fn next_change(&mut self) -> Result<String, String> {
        loop {
            if let Some(until) = self.retry_at {
                sleep_until(until).await;
                self.retry_at = None;
            }
            let value = match &mut self.session {
                None => self.start_watch().await.map(|state| self.new_value(state)),
                Some(session) => session.next(&self.location, &*self.network, self.endpoint).await.map(|update| {
                    self.retry = RETRY_MIN;
                    self.on_update(update)
                }),
            };
            match value {
                Ok(Some(value)) => return text(value),
                Ok(None) => {}
                Err(why) => self.on_failure(&why),
            }
        }
    }

    fn on_update(&mut self, update: Update) -> Option<Vec<u8>> {
        match update {
            Update::FromWatch(state) => self.new_value(state),
            Update::FromRead(state) => {
                let value = self.new_value(state);
                if value.is_some() {
                    // The watch may still report older values.
                    tracing::debug!(etcd = %self.location, "etcd's watch missed a change; restarting it");
                    self.session = None;
                }
                value
            }
        }
    }

    /// Reads the key and watches it from that revision on, if it can be watched.
    async fn start_watch(&mut self) -> Result<KeyState, String> {
        let (gateway, state) = self.read_key().await?;
        let watch = gateway.watch(&self.location.key, state.revision + 1).await;
        let endpoints = self.location.endpoints.len();
        if std::mem::take(&mut self.failures) >= endpoints {
            tracing::info!(etcd = %self.location, "etcd answers again");
        }
        match watch {
            Ok(watch) => {
                self.session = Some(WatchSession { watch, check_at: Instant::now() + CHECK_INTERVAL });
                if std::mem::take(&mut self.unwatched) >= endpoints {
                    tracing::info!(etcd = %self.location, "watching the key in etcd again");
                }
            }
            Err(why) => {
                self.unwatched += 1;
                if self.unwatched == endpoints {
                    tracing::warn!(etcd = %self.location, why, "cannot watch the key in etcd; reading it every {RETRY_MAX:?} instead");
                }
                self.back_off();
            }
        }
        Ok(state)
    }

    async fn read_key(&self) -> Result<(EtcdClient, KeyState), String> {
        read_key(&self.location, &*self.network, self.endpoint).await
    }

    /// The value of `state`; `None` if it is not new.
    fn new_value(&mut self, state: KeyState) -> Option<Vec<u8>> {
        let is_deleted = state.value.is_none();
        if is_deleted && !self.is_deleted {
            tracing::warn!(etcd = %self.location, "etcd has no such key; the configuration in force stays");
        }
        self.is_deleted = is_deleted;
        let value = state.value?;
        if self.seen.as_ref() == Some(&value) {
            return None;
        }
        self.seen = Some(value.clone());
        Some(value)
    }

    /// Handles an etcd that does not reply, or the end of the watch.
    fn on_failure(&mut self, why: &str) {
        match self.session.take() {
            // Whether etcd replies is not known yet.
            Some(_) => tracing::debug!(etcd = %self.location, why, "etcd's watch ended; reading the key again"),
            None => {
                self.failures += 1;
                if self.failures == self.location.endpoints.len() {
                    tracing::warn!(etcd = %self.location, why, "etcd does not answer; keeping the configuration in force and retrying");
                }
            }
        }
        self.back_off();
    }

    /// Selects the next endpoint, and when it is asked.
    fn back_off(&mut self) {
        self.endpoint += 1;
        let wait = self.retry.mul_f64(0.5 + 0.5 * self.random.f64());
        self.retry = (self.retry * 2).min(RETRY_MAX);
        self.retry_at = Some(Instant::now() + wait);
    }

    fn missing(&self) -> String {
        format!("{}: etcd has no such key", self.location)
    }
}

impl WatchSession {
    /// The next update of the key, or its state at a check. The error is why the watch has ended.
    async fn next(
        &mut self,
        location: &EtcdLocation,
        network: &dyn Network,
        endpoint: usize,
    ) -> Result<Update, String> {
        loop {
            tokio::select! {
                biased;
                event = self.watch.next() => match event? {
                    WatchEvent::Changed(state) => return Ok(Update::FromWatch(state)),
                    WatchEvent::Ended(why) => return Err(why),
                    WatchEvent::Other => {}
                },
                () = sleep_until(self.check_at) => {
                    let (_, state) = read_key(location, network, endpoint).await?;
                    self.check_at = Instant::now() + CHECK_INTERVAL;
                    return Ok(Update::FromRead(state));
                }
            }
        }
    }
}

async fn read_key(
    location: &EtcdLocation,
    network: &dyn Network,
    endpoint: usize,
) -> Result<(EtcdClient, KeyState), String> {
    let endpoint = &location.endpoints[endpoint % location.endpoints.len()];
    let mut gateway = EtcdClient::connect(network, endpoint, location.user.as_ref()).await?;
    let state = gateway.range(&location.key).await?;
    Ok((gateway, state))
}

fn text(value: Vec<u8>) -> Result<String, String> {
    String::from_utf8(value).map_err(|error| format!("the value is not text: {error}"))
}
