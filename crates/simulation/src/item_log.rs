//! What servers have under the keys that requests name, and since when: what the answers to a monitor should say.
//!
//! An item changes only by a request that names its key, or it vanishes. So after each round of requests the log
//! compares the items under the named keys with what it knows.

use bytes::Bytes;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::time::Instant;

/// The beginnings of the keys that applications use.
const KEY_PREFIXES: [&[u8]; 2] = [b"row:", b"marker:"];

/// The items of all servers. Clones share them.
#[derive(Clone, Default)]
pub struct ItemLog(Arc<Mutex<Items>>);

#[derive(Default)]
struct Items {
    /// By server and key.
    present: BTreeMap<(Arc<str>, Bytes), StoredItem>,
    /// The answers to `me`, by key, the oldest first.
    answers: BTreeMap<Bytes, Vec<ServerAnswer>>,
    /// When each server has noted which items are stored by then, ascending.
    marks: BTreeMap<Arc<str>, Vec<Instant>>,
}

/// An item of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredItem {
    /// Its CAS unique.
    pub cas: u64,
    /// When it was stored.
    pub stored_at: Instant,
}

/// What a server has answered to `me`.
#[derive(Clone, Debug)]
pub struct ServerAnswer {
    /// The server.
    pub server: Arc<str>,
    /// When it answered.
    pub at: Instant,
    /// The item that a get would have found; `None` on a miss.
    pub item: Option<StoredItem>,
}

impl ItemLog {
    /// Records that `server` has the item with the CAS unique `cas` under `key` now, or none, and whether it has been
    /// asked about it by `me`.
    pub fn record(&self, server: &Arc<str>, key: Bytes, cas: Option<u64>, is_asked: bool) {
        let (mut items, now) = (self.items(), Instant::now());
        let place = (server.clone(), key.clone());
        let known = items.present.get(&place).copied();
        let item = cas.map(|cas| known.filter(|item| item.cas == cas).unwrap_or(StoredItem { cas, stored_at: now }));
        match item {
            Some(item) => items.present.insert(place, item),
            None => items.present.remove(&place),
        };
        if is_asked {
            items.answers.entry(key).or_default().push(ServerAnswer { server: server.clone(), at: now, item });
        }
    }

    /// Records that `server` notes which items it has.
    pub fn record_mark(&self, server: &Arc<str>) {
        self.items().marks.entry(server.clone()).or_default().push(Instant::now());
    }

    /// The first time after `stored_at` at which `server` has noted its items; `None` if it has not.
    pub fn first_mark_after(&self, server: &str, stored_at: Instant) -> Option<Instant> {
        let items = self.items();
        let marks = items.marks.get(server)?;
        marks.get(marks.partition_point(|mark| *mark < stored_at)).copied()
    }

    /// Records that `server` is empty.
    pub fn clear(&self, server: &str) {
        self.items().present.retain(|(other, _), _| **other != *server);
    }

    /// The answers about `key` between two times.
    pub fn answers(&self, key: &[u8], from: Instant, to: Instant) -> Vec<ServerAnswer> {
        let items = self.items();
        let answers = items.answers.get(key).map_or(&[][..], Vec::as_slice);
        let first = answers.partition_point(|answer| answer.at < from);
        answers[first..].iter().take_while(|answer| answer.at <= to).cloned().collect()
    }

    fn items(&self) -> MutexGuard<'_, Items> {
        self.0.lock().expect("one thread runs a simulation")
    }
}

/// The keys of applications that occur in requests, and whether `me` stands before them.
pub fn mentioned_keys(requests: &[u8]) -> Vec<(Bytes, bool)> {
    let mut before: &[u8] = b"";
    let mut keys = Vec::new();
    for word in requests.split(|byte| byte.is_ascii_whitespace()) {
        if KEY_PREFIXES.iter().any(|prefix| word.starts_with(prefix)) {
            keys.push((Bytes::copy_from_slice(word), before == b"me"));
        }
        before = word;
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_requests() {
        let requests =
            b"get row:1 row:2\r\nme row:3 a\r\nlease-set row:1 7 0 0 1\r\n5\r\nset marker:row:1|#|0a 0 0 1\r\n1\r\n";
        let keys: Vec<(Bytes, bool)> = mentioned_keys(requests);
        let expected =
            [("row:1", false), ("row:2", false), ("row:3", true), ("row:1", false), ("marker:row:1|#|0a", false)];
        assert_eq!(keys, expected.map(|(key, is_asked)| (Bytes::from(key), is_asked)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_is_as_old_as_its_cas_unique() {
        let (log, server, key) = (ItemLog::default(), Arc::from("s"), Bytes::from("row:1"));
        let begun = Instant::now();
        let step = || tokio::time::sleep(std::time::Duration::from_secs(1));
        for (cas, is_asked) in [(Some(1), false), (Some(1), true), (Some(2), true), (None, true)] {
            log.record(&server, key.clone(), cas, is_asked);
            step().await;
        }
        let answers = log.answers(&key, begun, Instant::now());
        let stored_s = |answer: &ServerAnswer| answer.item.map(|item| (item.stored_at - begun).as_secs());
        assert_eq!(answers.iter().map(stored_s).collect::<Vec<_>>(), [Some(0), Some(2), None]);
        log.record(&server, key.clone(), Some(3), false);
        log.clear("s");
        log.record(&server, key.clone(), Some(3), true);
        let last = log.answers(&key, Instant::now(), Instant::now());
        assert_eq!(last[0].item, Some(StoredItem { cas: 3, stored_at: Instant::now() }));
    }
}
