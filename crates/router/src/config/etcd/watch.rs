//! Which of etcd's answers are a new configuration, and what is done while there are none.
//!
//! | etcd | the configuration | in the log |
//! |---|---|---|
//! | puts another value | changes | by who takes it |
//! | puts the same value | stays | nothing |
//! | deletes the key | stays | once, until there is a value again |
//! | does not answer | stays; etcd is asked again after 0.1 to 5 seconds, spread by chance, the next endpoint first | once, and when it answers again |
//! | answers, and lets nobody watch (a proxy that holds streams back, a right that is missing) | changes when the key is read, as often as an etcd that is away is asked | once, and when the watch begins |
//! | ends the watch (compaction, a lost leader) | stays; the key is read anew after a moment, then watched again | at level debug |
//!
//! A watch can be dead without a word: a firewall forgets the connection, a member hangs. So every [`CHECK_INTERVAL`] the
//! key is read over another connection, and where that knows more than the watch has told, the watch is made anew.

use super::client::{Found, Gateway, News, Watch};
use super::location::EtcdLocation;
use lookaside_client::Network;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The longest wait before etcd is asked again for the first time, and
const RETRY_MIN: Duration = Duration::from_millis(100);
/// before any later time. Each wait is drawn from half of its longest to all of it.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How often a watch that is quiet is held against what the key is.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Watches one key.
pub(crate) struct EtcdWatch {
    location: EtcdLocation,
    network: Arc<dyn Network>,
    random: fastrand::Rng,
    /// The value that was told last; `None` before there is any.
    seen: Option<Vec<u8>>,
    /// The endpoint to ask next.
    endpoint: usize,
    session: Option<Session>,
    retry: Duration,
    /// Attempts in a row that were not answered.
    refusals: usize,
    /// Attempts in a row in which the key was read and could not be watched.
    unwatched: usize,
    /// Nobody is asked before.
    rest_until: Option<Instant>,
    is_deleted: bool,
}

/// A watch that runs.
struct Session {
    watch: Watch,
    check_at: Instant,
}

/// What a session has found.
enum Heard {
    /// The watch has told it.
    Told(Found),
    /// The key was read, to see whether the watch tells all.
    Checked(Found),
}

impl EtcdWatch {
    /// A watch of `location`, whose value is known to be `seen`, if it is. `seed` is what waits are drawn from.
    pub(crate) fn new(location: EtcdLocation, network: Arc<dyn Network>, seen: Option<&str>, seed: u64) -> EtcdWatch {
        let (random, seen) = (fastrand::Rng::with_seed(seed), seen.map(|seen| seen.as_bytes().to_vec()));
        EtcdWatch {
            location,
            network,
            random,
            seen,
            endpoint: 0,
            session: None,
            retry: RETRY_MIN,
            refusals: 0,
            unwatched: 0,
            rest_until: None,
            is_deleted: false,
        }
    }

    /// The value as it is now; it has been seen then. Every endpoint is asked once.
    pub(crate) async fn read(&mut self) -> Result<String, String> {
        let mut refusals = Vec::new();
        // What a watch that runs may still tell could be older.
        self.session = None;
        self.rest_until = None;
        for _ in 0..self.location.endpoints.len() {
            match self.look().await {
                Ok((_, Found { value: Some(value), .. })) => {
                    self.seen = Some(value.clone());
                    return text(value);
                }
                Ok((_, Found { value: None, .. })) => return Err(self.missing()),
                Err(why) => refusals.push(why),
            }
            self.endpoint += 1;
        }
        Err(format!("etcd does not answer: {}", refusals.join("; ")))
    }

    /// The next value that differs from the one before; an error where that is no text. Waits while etcd is away. Nothing is
    /// lost where the future is dropped.
    pub(crate) async fn changed(&mut self) -> Result<String, String> {
        loop {
            if let Some(until) = self.rest_until {
                sleep_until(until).await;
                self.rest_until = None;
            }
            let value = match &mut self.session {
                None => self.begin().await.map(|found| self.take(found)),
                Some(session) => session.next(&self.location, &*self.network, self.endpoint).await.map(|heard| {
                    self.retry = RETRY_MIN;
                    self.hear(heard)
                }),
            };
            match value {
                Ok(Some(value)) => return text(value),
                Ok(None) => {}
                Err(why) => self.end(&why),
            }
        }
    }

    fn hear(&mut self, heard: Heard) -> Option<Vec<u8>> {
        match heard {
            Heard::Told(found) => self.take(found),
            Heard::Checked(found) => {
                let value = self.take(found);
                if value.is_some() {
                    // What the watch may still tell is older.
                    tracing::debug!(etcd = %self.location, "etcd's watch has told nothing of a change; it is made anew");
                    self.session = None;
                }
                value
            }
        }
    }

    /// Reads the key and watches it from there, if it can be watched.
    async fn begin(&mut self) -> Result<Found, String> {
        let (gateway, found) = self.look().await?;
        let watch = gateway.watch(&self.location.key, found.revision + 1).await;
        let endpoints = self.location.endpoints.len();
        if std::mem::take(&mut self.refusals) >= endpoints {
            tracing::info!(etcd = %self.location, "etcd answers again");
        }
        match watch {
            Ok(watch) => {
                self.session = Some(Session { watch, check_at: Instant::now() + CHECK_INTERVAL });
                if std::mem::take(&mut self.unwatched) >= endpoints {
                    tracing::info!(etcd = %self.location, "etcd's key is watched again");
                }
            }
            Err(why) => {
                self.unwatched += 1;
                if self.unwatched == endpoints {
                    tracing::warn!(etcd = %self.location, why, "etcd answers, and its key cannot be watched: it is read every {RETRY_MAX:?} instead");
                }
                self.rest();
            }
        }
        Ok(found)
    }

    async fn look(&self) -> Result<(Gateway, Found), String> {
        look(&self.location, &*self.network, self.endpoint).await
    }

    /// The value in `found`, if it is a new one.
    fn take(&mut self, found: Found) -> Option<Vec<u8>> {
        let is_deleted = found.value.is_none();
        if is_deleted && !self.is_deleted {
            tracing::warn!(etcd = %self.location, "etcd has no such key; the configuration in force stays");
        }
        self.is_deleted = is_deleted;
        let value = found.value?;
        if self.seen.as_ref() == Some(&value) {
            return None;
        }
        self.seen = Some(value.clone());
        Some(value)
    }

    /// Nobody answers, or the watch has ended.
    fn end(&mut self, why: &str) {
        match self.session.take() {
            // Whether anybody answers is not known yet.
            Some(_) => tracing::debug!(etcd = %self.location, why, "etcd's watch has ended; the key is read anew"),
            None => {
                self.refusals += 1;
                if self.refusals == self.location.endpoints.len() {
                    tracing::warn!(etcd = %self.location, why, "etcd does not answer: the configuration in force stays, and etcd is asked again");
                }
            }
        }
        self.rest();
    }

    /// The next endpoint is asked, after a while.
    fn rest(&mut self) {
        self.endpoint += 1;
        let wait = self.retry.mul_f64(0.5 + 0.5 * self.random.f64());
        self.retry = (self.retry * 2).min(RETRY_MAX);
        self.rest_until = Some(Instant::now() + wait);
    }

    fn missing(&self) -> String {
        format!("{} is not there: etcd has no such key", self.location)
    }
}

impl Session {
    /// What the key has become, or has been all the time. The error says why there is nothing more to hear.
    async fn next(&mut self, location: &EtcdLocation, network: &dyn Network, endpoint: usize) -> Result<Heard, String> {
        loop {
            tokio::select! {
                biased;
                news = self.watch.next() => match news? {
                    News::Changed(found) => return Ok(Heard::Told(found)),
                    News::Ended(why) => return Err(why),
                    News::Nothing => {}
                },
                () = sleep_until(self.check_at) => {
                    let (_, found) = look(location, network, endpoint).await?;
                    self.check_at = Instant::now() + CHECK_INTERVAL;
                    return Ok(Heard::Checked(found));
                }
            }
        }
    }
}

async fn look(location: &EtcdLocation, network: &dyn Network, endpoint: usize) -> Result<(Gateway, Found), String> {
    let endpoint = &location.endpoints[endpoint % location.endpoints.len()];
    let mut gateway = Gateway::connect(network, endpoint, location.user.as_ref()).await?;
    let found = gateway.range(&location.key).await?;
    Ok((gateway, found))
}

fn text(value: Vec<u8>) -> Result<String, String> {
    String::from_utf8(value).map_err(|error| format!("the value is no text: {error}"))
}
