//! Replication from the master's database to a replica: each commit is a packet that may be late, lost and sent again,
//! doubled, or overtaken. The replica applies commits in the order of the log. It does not have one before readers of
//! the master see it: a reader that is directed to the master would read an older row there than in the replica.

use crate::database::{LoggedCommit, SimulatedDatabase};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::pending,
    time::Duration,
};
use tokio::time::{Instant, sleep_until};

const DELAY_MS: std::ops::RangeInclusive<u64> = 2..=60;
/// One packet in this many is lost, and sent again after [`RETRANSMISSION_MS`].
const LOST_ONE_IN: u8 = 20;
const RETRANSMISSION_MS: std::ops::RangeInclusive<u64> = 200..=900;
/// One packet in this many arrives twice.
const DOUBLED_ONE_IN: u8 = 20;

/// The link to one replica.
pub(super) struct ReplicationLink {
    rng: RefCell<fastrand::Rng>,
    /// Nothing arrives before.
    stopped_until: Cell<Instant>,
}

impl ReplicationLink {
    pub(super) fn new(rng: fastrand::Rng) -> ReplicationLink {
        ReplicationLink { rng: RefCell::new(rng), stopped_until: Cell::new(Instant::now()) }
    }

    /// Lets nothing arrive until then.
    pub(super) fn stop_until(&self, until: Instant) {
        self.stopped_until.set(until.max(self.stopped_until.get()));
    }

    /// When the copies of a packet that is sent now arrive.
    fn arrivals(&self) -> Vec<Instant> {
        let mut rng = self.rng.borrow_mut();
        let copies = if rng.u8(0..DOUBLED_ONE_IN) == 0 { 2 } else { 1 };
        let mut arrival = || {
            let mut delay_ms = rng.u64(DELAY_MS);
            while rng.u8(0..LOST_ONE_IN) == 0 {
                delay_ms += rng.u64(RETRANSMISSION_MS);
            }
            Instant::now() + Duration::from_millis(delay_ms)
        };
        (0..copies).map(|_| arrival()).collect()
    }

    /// Copies the log of `master` to `replica`, for ever.
    pub(super) async fn replicate(&self, master: &SimulatedDatabase, replica: &SimulatedDatabase) {
        let mut sent = replica.logged();
        let mut in_flight: BTreeMap<(Instant, u64, usize), LoggedCommit> = BTreeMap::new();
        let mut arrived: BTreeMap<u64, LoggedCommit> = BTreeMap::new();
        loop {
            let first = in_flight.keys().next().map(|(arrival, ..)| *arrival);
            tokio::select! {
                biased;
                () = self.wait_for_arrival(first) => {
                    while let Some(packet) = in_flight.first_entry().filter(|packet| packet.key().0 <= Instant::now()) {
                        let ((_, position, _), commit) = packet.remove_entry();
                        if position > replica.logged() {
                            arrived.insert(position, commit);
                        }
                    }
                    while let Some(commit) = arrived.remove(&(replica.logged() + 1)) {
                        replica.apply(&commit);
                    }
                }
                commits = master.visible_after(sent) => {
                    for commit in commits {
                        sent += 1;
                        for (copy, arrival) in self.arrivals().into_iter().enumerate() {
                            in_flight.insert((arrival, sent, copy), commit.clone());
                        }
                    }
                }
            }
        }
    }

    async fn wait_for_arrival(&self, first: Option<Instant>) {
        let Some(first) = first else { return pending().await };
        sleep_until(first).await;
        while Instant::now() < self.stopped_until.get() {
            sleep_until(self.stopped_until.get()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(seed: u64) -> SimulatedDatabase {
        SimulatedDatabase::new(seed, 1_000, true)
    }

    #[tokio::test(start_paused = true)]
    async fn commits_are_applied_once_and_in_order_whatever_happens_to_packets() {
        let (master, replica) = (database(1), database(2));
        let link = ReplicationLink::new(fastrand::Rng::with_seed(3));
        let write = async {
            let mut is_behind = 0;
            for commit in 0..500 {
                master.write(&format!("row:{}", commit % 7)).await;
                is_behind += u32::from(replica.logged() < master.logged());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert!(is_behind > 300, "{is_behind}");
            replica.wait_until_visible(500).await;
        };
        tokio::select! {
            () = link.replicate(&master, &replica) => {}
            () = write => {}
        }
        let copied = replica.all_commits();
        assert_eq!(copied.len(), 500);
        for (commit, original) in copied.iter().zip(master.all_commits()) {
            assert_eq!(commit.key, original.key);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_arrives_while_the_link_is_stopped() {
        let (master, replica) = (database(1), database(2));
        let link = ReplicationLink::new(fastrand::Rng::with_seed(3));
        let until = Instant::now() + Duration::from_secs(60);
        link.stop_until(until);
        master.write("row:1").await;
        tokio::select! {
            () = link.replicate(&master, &replica) => {}
            () = replica.wait_until_visible(1) => {}
        }
        assert!(Instant::now() >= until);
    }
}
