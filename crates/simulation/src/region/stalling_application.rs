//! Clients that stall between a miss and its fill, for up to [`STALL_MS_MAX`]: longer than a change of a pool's servers
//! with its purge, or an outage of a server, and than a lease holds others back. The row changes meanwhile. The fill
//! may go through another router than the miss.
//!
//! Each has a row of its own, which is seldom written: every delete would void the token.

use super::application::Application;
use super::plain_application::{ask, request};
use crate::value::version_of;
use bytes::Bytes;
use lookaside_client::Origin;
use lookaside_protocol::{LeaseToken, Operation, Reply};
use std::time::Duration;

/// In each application.
pub(super) const STALLING_CLIENTS: usize = 16;
const STALL_MS_MAX: u64 = 20_000;
/// One row in this many does not change while its client stalls.
const UNCHANGED_ONE_IN: u8 = 4;
/// Reads after a fill, and the longest time between them.
const READS: usize = 3;
const READ_INTERVAL_US_MAX: u64 = 400_000;

impl Application {
    pub(super) async fn stall_loop(mut self, number: usize) {
        let key = format!("stalled:{}:{number}", self.cluster);
        self.region.database.write(&key).await;
        loop {
            if let Some(token) = self.take_lease(&key).await {
                let Ok(value) = self.load(&key).await;
                self.stall(&key).await;
                self.fill(&key, token, value).await;
            }
            for _ in 0..READS {
                self.read(&key).await;
                self.pause(READ_INTERVAL_US_MAX).await;
            }
            self.region.database.write(&key).await;
        }
    }

    /// `None` if there is a value, another client holds the lease, or no reply came.
    async fn take_lease(&mut self, key: &str) -> Option<LeaseToken> {
        match self.ask_any_router(key, Operation::LeaseGet).await {
            Some(Reply::Lease { token, .. }) if token.is_held() => Some(token),
            _ => None,
        }
    }

    /// Waits, and writes the row at any time.
    async fn stall(&mut self, key: &str) {
        let whole_ms = self.rng.u64(0..STALL_MS_MAX);
        let before_ms = self.rng.u64(0..=whole_ms);
        tokio::time::sleep(Duration::from_millis(before_ms)).await;
        if self.rng.u8(0..UNCHANGED_ONE_IN) > 0 {
            self.region.database.write(key).await;
        }
        tokio::time::sleep(Duration::from_millis(whole_ms - before_ms)).await;
    }

    async fn fill(&mut self, key: &str, token: LeaseToken, value: Bytes) {
        let fill = Operation::LeaseSet { token, flags: 0, exptime: 0, value };
        let reply = self.ask_any_router(key, fill).await;
        self.region.checker.count(|tally| match reply {
            Some(Reply::Stored) => tally.stalled_fills_stored += 1,
            Some(Reply::NotStored) => tally.stalled_fills_refused += 1,
            _ => {}
        });
    }

    async fn read(&mut self, key: &str) {
        let read_in_progress = self.begin_read(key);
        if let Some(Reply::Value { value, .. }) = self.ask_any_router(key, Operation::Get { cas: false }).await {
            self.region.checker.end_read(read_in_progress, version_of(&value), Origin::Cache);
        }
    }

    /// `None` if no reply came.
    async fn ask_any_router(&mut self, key: &str, operation: Operation<Bytes>) -> Option<Reply<Bytes>> {
        let router = self.rng.usize(0..self.routes.len());
        let route = self.connection(router);
        ask(&route, vec![request(key, operation)]).await.pop()?.ok()
    }
}
