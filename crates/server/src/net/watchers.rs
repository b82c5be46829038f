//! `watch`: connections that receive a line for each event, in memcached's format.
//!
//! ```text
//!   ts=1700000000.123000 gid=7 type=item_get key=user%3A42 status=found clsid=1 cfd=31 size=3
//! ```
//!
//! A watcher's connection moves from its worker to the one thread here, which makes all threads record what it watches,
//! and then replies `OK`: no event behind the reply is missing. About fifty times a second this thread collects
//! the lines that the workers have recorded ([`crate::observe::event_log`]) and sends them. It sleeps while there is no
//! watcher.
//!
//! Bounds: [`WATCHERS_MAX`] watchers, [`WATCHER_BYTES_MAX`] for each. A watcher that does not keep up loses whole
//! lines, and receives their number: `skipped=N`. Lines are in the order of their milliseconds; `gid` numbers them in
//! that order.

use crate::clock::Clock;
use crate::net::connection::Connection;
use crate::net::connection_table::{ConnectionPhase, ConnectionTable};
use crate::net::socket::Sent;
use crate::observe::event_log::{EventSink, Line, kind};
use lookaside_sync::{Mutex, SharedCounter};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, PoisonError};
use std::time::Duration;

pub(crate) const WATCHERS_MAX: usize = 20;

/// At most this many bytes are buffered for a watcher that does not read.
const WATCHER_BYTES_MAX: usize = 256 << 10;

/// How often lines are collected while there is a watcher.
const COLLECT_INTERVAL: Duration = Duration::from_millis(20);

/// The watchers; any thread may add one.
#[derive(Default)]
pub(crate) struct Watchers {
    arriving: Mutex<Vec<Watcher>>,
    wake: Condvar,
    is_stopping: AtomicBool,
    /// Includes watchers that the thread has not taken over yet.
    pub(crate) count: AtomicUsize,
    pub(crate) written: SharedCounter,
    pub(crate) sent: SharedCounter,
    pub(crate) skipped: SharedCounter,
}

/// The sources of the watchers' events, and the table in which it reports its connections.
pub(crate) struct WatchSources<'a> {
    pub(crate) sinks: Vec<&'a EventSink>,
    pub(crate) connection_table: &'a ConnectionTable,
    pub(crate) clock: Clock,
}

struct Watcher {
    connection: Connection,
    kinds: u8,
    unsent: Vec<u8>,
    skipped: u64,
}

impl Watchers {
    /// Adds a connection that has left its worker.
    pub(crate) fn add(&self, connection: Connection, kinds: u8) {
        self.count.fetch_add(1, Ordering::Relaxed);
        // Sent once all threads record what it watches: `OK` promises that.
        let watcher = Watcher { connection, kinds, unsent: b"OK\r\n".to_vec(), skipped: 0 };
        self.arriving.lock().push(watcher);
        self.wake.notify_one();
    }

    /// Removes all watchers, before the thread starts again.
    pub(crate) fn reset(&self, sources: &WatchSources<'_>) {
        self.arriving.lock().clear();
        self.count.store(0, Ordering::Relaxed);
        self.is_stopping.store(false, Ordering::Release);
        update_interest(sources, &[]);
    }

    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        // Under the lock, so that the thread either has not checked the flag yet or is asleep.
        let _arriving = self.arriving.lock();
        self.wake.notify_one();
    }

    /// The thread: serves the watchers until it is stopped.
    pub(crate) fn run(&self, sources: &WatchSources<'_>) {
        let (mut watchers, mut number) = (Vec::new(), 0);
        loop {
            if !self.wait(&mut watchers) {
                return;
            }
            update_interest(sources, &watchers);
            let mut lines: Vec<Line> = sources.sinks.iter().flat_map(|sink| sink.take_lines()).collect();
            lines.sort_by_key(|line| line.unix_ms);
            for line in &lines {
                number += 1;
                self.written.add(1);
                watchers.iter_mut().for_each(|watcher| watcher.queue_line(line, number, self));
            }
            watchers.retain_mut(|watcher| {
                let is_open = watcher.send();
                if !is_open {
                    sources.connection_table.remove(watcher.connection.socket.as_raw_fd());
                    self.count.fetch_sub(1, Ordering::Relaxed);
                }
                is_open
            });
            update_interest(sources, &watchers);
        }
    }

    /// Waits for a watcher if there is none, otherwise until it is time to collect; false once the thread is stopped.
    fn wait(&self, watchers: &mut Vec<Watcher>) -> bool {
        let mut arriving = self.arriving.lock();
        while arriving.is_empty() && !self.is_stopping.load(Ordering::Acquire) {
            if watchers.is_empty() {
                arriving = self.wake.wait(arriving).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            arriving = self.wake.wait_timeout(arriving, COLLECT_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
            break;
        }
        watchers.append(&mut arriving);
        !self.is_stopping.load(Ordering::Acquire)
    }
}

/// Makes the threads record what these watchers want to see, and no more.
fn update_interest(sources: &WatchSources<'_>, watchers: &[Watcher]) {
    let kinds = watchers.iter().fold(0, |kinds, watcher| kinds | watcher.kinds);
    sources.sinks.iter().for_each(|sink| sink.set_interest(kind::WATCHABLE, kinds));
    for watcher in watchers {
        let uptime_s = sources.clock.uptime_s(sources.clock.now());
        sources.connection_table.set(watcher.connection.socket.as_raw_fd(), uptime_s, ConnectionPhase::Watch);
    }
}

impl Watcher {
    /// Queues a line, as a whole or not at all.
    fn queue_line(&mut self, line: &Line, number: u64, watchers: &Watchers) {
        if self.kinds & line.kind == 0 {
            return;
        }
        let (seconds, milliseconds) = (line.unix_ms / 1000, line.unix_ms % 1000);
        let skipped = if self.skipped > 0 { format!("skipped={}\n", self.skipped) } else { String::new() };
        let text = format!("{skipped}ts={seconds}.{milliseconds:03}000 gid={number} {}\n", line.text);
        if self.unsent.len() + text.len() > WATCHER_BYTES_MAX {
            self.skipped += 1;
            watchers.skipped.add(1);
            return;
        }
        self.skipped = 0;
        watchers.sent.add(1);
        self.unsent.extend_from_slice(text.as_bytes());
    }

    /// Sends what the socket takes; false if the client has disconnected. Input from a watcher is discarded.
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
