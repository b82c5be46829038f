//! `watch`: connections that are told what happens, line by line, in memcached's words.
//!
//! ```text
//!   ts=1700000000.123000 gid=7 type=item_get key=user%3A42 status=found clsid=1 cfd=31 size=3
//! ```
//!
//! A watcher's connection leaves its worker for the one thread here, which collects what the workers have noted
//! ([`crate::observe::event_log`]) some fifty times a second and hands it on. It sleeps while nobody watches.
//!
//! Bounded: [`WATCHERS_MAX`] watchers, [`WATCHER_BYTES_MAX`] for each. A watcher that does not keep up loses whole lines,
//! and is told how many: `skipped=N`. Lines are in the order of their milliseconds; `gid` numbers them in that order.

use crate::net::connection::{Connection, Sent};
use crate::net::connection_table::ConnectionPhase;
use crate::observe::event_log::{EventSink, Line, kind};
use crate::startup::ServerState;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How many may watch at a time.
pub(crate) const WATCHERS_MAX: usize = 20;

/// What is kept for a watcher that does not read, in bytes.
const WATCHER_BYTES_MAX: usize = 256 << 10;

/// How often lines are collected while somebody watches.
const COLLECT_EVERY: Duration = Duration::from_millis(20);

/// All kinds that can be watched.
const WATCHABLE: u8 = kind::FETCHERS | kind::MUTATIONS | kind::EVICTIONS | kind::CONNECTIONS | kind::DELETIONS;

/// The watchers, from whatever thread one comes.
#[derive(Default)]
pub(crate) struct Watchers {
    arriving: Mutex<Vec<Watcher>>,
    wake: Condvar,
    is_stopping: AtomicBool,
    /// Watchers that are there or on their way.
    pub(crate) count: AtomicUsize,
    pub(crate) written: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) skipped: AtomicU64,
}

/// One connection that watches.
struct Watcher {
    connection: Connection,
    kinds: u8,
    unsent: Vec<u8>,
    skipped: u64,
}

impl Watchers {
    /// Takes a connection over.
    pub(crate) fn add(&self, connection: Connection, kinds: u8) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let watcher = Watcher { connection, kinds, unsent: Vec::new(), skipped: 0 };
        self.arriving.lock().unwrap_or_else(PoisonError::into_inner).push(watcher);
        self.wake.notify_one();
    }

    /// For a thread that is about to begin: nobody watches, whoever did before.
    pub(crate) fn reset(&self, state: &ServerState) {
        self.arriving.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.count.store(0, Ordering::Relaxed);
        self.is_stopping.store(false, Ordering::Release);
        update_interest(state, &[]);
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        // Under the lock, so that the thread is either before its look at the flag or asleep.
        let _arrived = self.arriving.lock().unwrap_or_else(PoisonError::into_inner);
        self.wake.notify_one();
    }

    /// The thread: serves the watchers until it is stopped.
    pub(crate) fn run(&self, state: &ServerState) {
        let (mut watchers, mut number) = (Vec::new(), 0);
        loop {
            if !self.wait(&mut watchers) {
                return;
            }
            update_interest(state, &watchers);
            let mut lines: Vec<Line> = event_sinks(state).flat_map(EventSink::take_lines).collect();
            lines.sort_by_key(|line| line.unix_ms);
            for line in &lines {
                number += 1;
                self.written.fetch_add(1, Ordering::Relaxed);
                watchers.iter_mut().for_each(|watcher| watcher.queue_line(line, number, self));
            }
            watchers.retain_mut(|watcher| {
                let is_open = watcher.send();
                if !is_open {
                    state.connection_table.remove(watcher.connection.socket.as_raw_fd());
                    self.count.fetch_sub(1, Ordering::Relaxed);
                }
                is_open
            });
            update_interest(state, &watchers);
        }
    }

    /// Waits for a watcher if there is none, else for the next time to collect; false at the end.
    fn wait(&self, watchers: &mut Vec<Watcher>) -> bool {
        let mut arriving = self.arriving.lock().unwrap_or_else(PoisonError::into_inner);
        while arriving.is_empty() && !self.is_stopping.load(Ordering::Acquire) {
            if watchers.is_empty() {
                arriving = self.wake.wait(arriving).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            arriving = self.wake.wait_timeout(arriving, COLLECT_EVERY).unwrap_or_else(PoisonError::into_inner).0;
            break;
        }
        watchers.append(&mut arriving);
        !self.is_stopping.load(Ordering::Acquire)
    }
}

/// All that note events.
fn event_sinks(state: &ServerState) -> impl Iterator<Item = &EventSink> {
    state.worker_handles.iter().map(|handle| &handle.events).chain([&*state.evictions])
}

/// Lets the workers note what these watchers want to see, and no more.
fn update_interest(state: &ServerState, watchers: &[Watcher]) {
    let kinds = watchers.iter().fold(0, |kinds, watcher| kinds | watcher.kinds);
    event_sinks(state).for_each(|events| events.set_interest(WATCHABLE, kinds));
    for watcher in watchers {
        let uptime_s = state.clock.uptime_s(state.clock.now());
        state.connection_table.set(watcher.connection.socket.as_raw_fd(), uptime_s, ConnectionPhase::Watch);
    }
}

impl Watcher {
    /// Notes a line, as a whole or not at all.
    fn queue_line(&mut self, line: &Line, number: u64, watchers: &Watchers) {
        if self.kinds & line.kind == 0 {
            return;
        }
        let (seconds, milliseconds) = (line.unix_ms / 1000, line.unix_ms % 1000);
        let skipped = if self.skipped > 0 { format!("skipped={}\n", self.skipped) } else { String::new() };
        let text = format!("{skipped}ts={seconds}.{milliseconds:03}000 gid={number} {}\n", line.text);
        if self.unsent.len() + text.len() > WATCHER_BYTES_MAX {
            self.skipped += 1;
            watchers.skipped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.skipped = 0;
        watchers.sent.fetch_add(1, Ordering::Relaxed);
        self.unsent.extend_from_slice(text.as_bytes());
    }

    /// Sends what the socket takes; false if nobody is there any more. What a watcher says is passed over.
    fn send(&mut self) -> bool {
        if !self.connection.drain_input() {
            return false;
        }
        match self.connection.send(&self.unsent) {
            Sent::All => self.unsent.clear(),
            Sent::Part(bytes) => drop(self.unsent.drain(..bytes)),
            Sent::Gone => return false,
        }
        true
    }
}

/// The kinds that `watch` names, none for those that never happen here; `None` for a word that is none of memcached's.
pub(crate) fn kinds_of<'a>(words: impl Iterator<Item = &'a str>) -> Option<u8> {
    let mut kinds = None;
    for word in words {
        let kind = match word {
            "fetchers" => kind::FETCHERS,
            "mutations" => kind::MUTATIONS,
            "evictions" => kind::EVICTIONS,
            "connevents" => kind::CONNECTIONS,
            "deletions" => kind::DELETIONS,
            "proxyreqs" | "proxyevents" | "proxyuser" | "sysevents" => 0,
            _ => return None,
        };
        kinds = Some(kinds.unwrap_or(0) | kind);
    }
    Some(kinds.unwrap_or(kind::FETCHERS))
}
