//! A small server with leases, for the test's end of a connection.

use super::{AcceptedStream, AcceptedStreams};
use bytes::Bytes;
use lookaside_protocol::{
    Cas, Command, Direction, ErrorReply, LeaseToken, Operation, Reply, StoreMode,
    text::{END, Limits, Parsed, compose_reply, parse_command},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Notify,
    time::{Instant, sleep},
};

const LIMITS: Limits = Limits { value_bytes_max: 1 << 20, line_bytes_max: 1 << 16 };

/// How long other clients get hot misses after a token was issued.
const LEASE_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct Cache {
    items: BTreeMap<Vec<u8>, Item>,
    tokens: u64,
    uniques: u64,
    /// Stores are refused, as by a full server that does not evict; a `set` removes the value that was there.
    pub is_full: bool,
    /// Each `cas` is refused, as if memory were short of large chunks alone.
    pub refused_cas: bool,
    /// Each get is answered with an error line.
    pub refuses_gets: bool,
    /// How long every reply takes.
    pub delay: Duration,
    /// Keys of all lease-gets.
    pub lease_gets: usize,
    /// Lease-sets, refused ones included.
    pub lease_sets: usize,
    /// Stores without a lease.
    pub plain_sets: usize,
    /// The keys of all values that were stored, in their order.
    pub stored: Vec<String>,
    /// Command lines.
    pub lines: usize,
    /// Connections, ended ones included.
    pub connections: usize,
    /// Ends the connections on which a reply waits.
    pub end_of_silence: Arc<Notify>,
    /// Whether hits have the flags that their values were stored with; else all have 7.
    pub keeps_flags: bool,
}

#[derive(Default)]
struct Item {
    live: Option<Bytes>,
    unique: u64,
    flags: u32,
    /// `None` if the live value does not expire.
    expires: Option<Instant>,
    stale: Option<Bytes>,
    lease: Option<(LeaseToken, Instant)>,
}

impl Cache {
    pub fn live(&self, key: &str) -> Option<Bytes> {
        self.items.get(key.as_bytes())?.live.clone()
    }

    pub fn set(&mut self, key: &str, value: impl Into<Bytes>) {
        self.items.entry(key.into()).or_default().live = Some(value.into());
    }

    pub fn delete(&mut self, key: &str) -> bool {
        let item = self.items.entry(key.into()).or_default();
        item.lease = None;
        let was_live = item.live.is_some();
        item.stale = item.live.take().or(item.stale.take());
        was_live
    }

    fn lease_get(&mut self, key: &[u8]) -> Reply<Bytes> {
        self.lease_gets += 1;
        let now = Instant::now();
        if let Some(hit) = self.get(key) {
            return hit;
        }
        let item = self.items.entry(key.to_vec()).or_default();
        let token = match item.lease {
            Some((_, until)) if now < until => LeaseToken::HOT_MISS,
            _ => {
                self.tokens += 1;
                let token = LeaseToken(1_000 + self.tokens);
                item.lease = Some((token, now + LEASE_INTERVAL));
                token
            }
        };
        Reply::Lease { token, flags: 0, stale: item.stale.clone() }
    }

    fn get(&mut self, key: &[u8]) -> Option<Reply<Bytes>> {
        let item = self.items.get_mut(key)?;
        if item.expires.is_some_and(|expires| expires <= Instant::now()) {
            item.live = None;
        }
        let flags = if self.keeps_flags { item.flags } else { 7 };
        Some(Reply::Value { flags, cas: None, value: item.live.clone()? })
    }

    fn get_with_unique(&mut self, key: &[u8]) -> Option<Reply<Bytes>> {
        let unique = self.items.get(key)?.unique;
        match self.get(key)? {
            Reply::Value { flags, value, .. } => Some(Reply::Value { flags, cas: Some(Cas(unique)), value }),
            other => Some(other),
        }
    }

    fn unique_of(&mut self, key: &[u8]) -> Option<Cas> {
        self.get(key)?;
        Some(Cas(self.items[key].unique))
    }

    fn lease_set(&mut self, key: &[u8], token: LeaseToken) -> bool {
        self.lease_sets += 1;
        let item = self.items.entry(key.to_vec()).or_default();
        let is_valid = item.lease.is_some_and(|(held, _)| held == token);
        if is_valid {
            item.lease = None;
        }
        is_valid
    }

    fn store(&mut self, key: &[u8], flags: u32, exptime: i64, value: &[u8]) -> Reply<Bytes> {
        if self.is_full {
            return Reply::Error(ErrorReply::Server("out of memory storing object".into()));
        }
        self.uniques += 1;
        self.stored.push(String::from_utf8_lossy(key).into_owned());
        let item = self.items.entry(key.to_vec()).or_default();
        item.unique = self.uniques;
        item.live = (exptime >= 0).then(|| Bytes::copy_from_slice(value));
        item.flags = flags;
        item.expires = (exptime > 0).then(|| Instant::now() + Duration::from_secs(exptime as u64));
        Reply::Stored
    }

    fn count(&mut self, key: &[u8], direction: Direction, delta: u64) -> Reply<Bytes> {
        let Some(value) = self.items.get_mut(key).and_then(|item| item.live.as_mut()) else { return Reply::NotFound };
        let number = std::str::from_utf8(value).ok().and_then(|digits| digits.parse::<u64>().ok());
        let Some(number) = number else { return Reply::Error(ErrorReply::Client("not a number".into())) };
        let number = match direction {
            Direction::Up => number.wrapping_add(delta),
            Direction::Down => number.saturating_sub(delta),
        };
        *value = number.to_string().into();
        Reply::Number(number)
    }

    fn touch(&mut self, key: &[u8], exptime: i64) -> Reply<Bytes> {
        if self.get(key).is_none() {
            return Reply::NotFound;
        }
        let item = self.items.get_mut(key).expect("it is live");
        item.expires = (exptime > 0).then(|| Instant::now() + Duration::from_secs(exptime as u64));
        Reply::Touched
    }

    fn append_reply(&mut self, command: &Command<'_>, out: &mut Vec<u8>) {
        self.lines += 1;
        match command {
            Command::Retrieve { .. } if self.refuses_gets => {
                out.extend_from_slice(b"SERVER_ERROR out of memory reading request\r\n");
            }
            Command::Retrieve { keys, operation } => {
                for key in *keys {
                    let reply = match operation {
                        Operation::LeaseGet => self.lease_get(key),
                        Operation::Get { cas: true } => self.get_with_unique(key).unwrap_or(Reply::Miss),
                        _ => self.get(key).unwrap_or(Reply::Miss),
                    };
                    compose_reply(key, &reply, out);
                }
                out.extend_from_slice(END);
            }
            Command::Single { request, .. } => {
                let reply = match &request.operation {
                    Operation::LeaseSet { token, flags, exptime, value } => match self.lease_set(request.key, *token) {
                        true => self.store(request.key, *flags, *exptime, value),
                        false => Reply::NotStored,
                    },
                    Operation::Delete { .. } => {
                        let key = std::str::from_utf8(request.key).expect("tests use text");
                        if self.delete(key) { Reply::Deleted } else { Reply::NotFound }
                    }
                    Operation::Store { mode: StoreMode::Add, .. } if self.get(request.key).is_some() => {
                        Reply::NotStored
                    }
                    Operation::Store { mode: StoreMode::Cas(_), .. } if self.refused_cas => {
                        Reply::Error(ErrorReply::Server("out of memory storing object".into()))
                    }
                    Operation::Store { mode: StoreMode::Cas(cas), .. } if self.unique_of(request.key) != Some(*cas) => {
                        if self.get(request.key).is_some() {
                            Reply::Exists
                        } else {
                            Reply::NotFound
                        }
                    }
                    Operation::Store { mode, flags, exptime, value, .. } => {
                        self.plain_sets += 1;
                        if self.is_full && *mode == StoreMode::Set {
                            self.items.remove(request.key);
                        }
                        self.store(request.key, *flags, *exptime, value)
                    }
                    Operation::Arithmetic { direction, delta } => self.count(request.key, *direction, *delta),
                    Operation::Touch { exptime } => self.touch(request.key, *exptime),
                    other => panic!("not for this fake: {other:?}"),
                };
                compose_reply(request.key, &reply, out);
            }
            // A probe.
            Command::Version => out.extend_from_slice(b"VERSION fake\r\n"),
            other => panic!("not for this fake: {other:?}"),
        }
    }
}

/// A cache that all connections share.
#[derive(Clone, Default)]
pub struct SharedCache(Arc<Mutex<Cache>>);

impl SharedCache {
    pub fn lock(&self) -> MutexGuard<'_, Cache> {
        self.0.lock().expect("no test panics while it holds the lock")
    }

    /// Serves all connections.
    pub fn serve(&self, mut accepted: AcceptedStreams) {
        let cache = self.clone();
        tokio::spawn(async move {
            while let Some(stream) = accepted.0.recv().await {
                cache.lock().connections += 1;
                tokio::spawn(cache.clone().serve_stream(AcceptedStream(stream)));
            }
        });
    }

    async fn serve_stream(self, mut peer: AcceptedStream) {
        let mut read = Vec::new();
        while peer.0.read_buf(&mut read).await.is_ok_and(|bytes| bytes > 0) {
            let mut out = Vec::new();
            while let Parsed::Command { command, consumed } = parse_command(&read, &LIMITS) {
                self.lock().append_reply(&command, &mut out);
                read.drain(..consumed);
            }
            let delay = self.lock().delay;
            let end = self.lock().end_of_silence.clone();
            tokio::select! {
                () = sleep(delay) => {}
                () = end.notified() => return,
            }
            if peer.0.write_all(&out).await.is_err() {
                return;
            }
        }
    }
}
