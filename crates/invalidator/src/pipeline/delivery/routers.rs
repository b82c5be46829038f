//! The routers of a cluster, side by side: which one is asked first, and which one instead of one that does not answer
//! or refuses.
//!
//! ```text
//! batch -> those that answer, before TKO ones -> not demoted -> fewest unanswered batches -> in turn
//! ```
//!
//! A router that hangs or is down gets no batch while another one answers. Until that is known it has one batch more
//! than the others at most. A router that does not apply what another one applies, since it does not reach a server, is
//! asked after the others for a while ([`super::demotion`]).
//!
//! Which router has a batch makes no difference to what its acknowledgement means ([`super::batch`]), and deletes need
//! no order: each is sent after its commit is visible.

use super::{
    DeleteResult, Delivery, Refusal, WaitingRouter,
    batch::RoutedBatch,
    router::{Router, RouterConnections},
};
use crate::{keys::Flush, observe::stats::ClusterStatistics};
use bytes::Bytes;
use futures_util::future::join_all;
use lookaside_client::Network;
use lookaside_routing::BoxFuture;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// How long a router may leave a batch unanswered until another one gets it too, unless an option says otherwise.
pub const HEDGE_DELAY: Duration = Duration::from_millis(200);

/// Delivery through the routers of a cluster.
pub struct RouterDelivery {
    routers: Vec<Router>,
    network: Arc<dyn Network>,
    pub(super) statistics: Arc<ClusterStatistics>,
    pub(super) hedge_delay: Duration,
    /// Whether routers that refuse a flush are reported when they first answer.
    checks_flush: bool,
    /// The number of the database that the deletes come from; `None` if routers need not know it.
    source_id: Option<u64>,
    /// How many batches were sent: equal routers are asked first in turn.
    turns: AtomicUsize,
    /// How many batches had deletes that were rerouted.
    reroutes: AtomicUsize,
    /// Whether a batch had no answer from any router, and no router has answered since.
    is_unanswered: AtomicBool,
    recovered: Notify,
    /// Notified when a router waits at its start gate and that is not announced.
    has_waiting: Notify,
}

impl RouterDelivery {
    /// Delivers through `routers`, at least one. `network` reaches the same addresses.
    pub fn new(
        routers: Vec<RouterConnections>,
        network: Arc<dyn Network>,
        statistics: Arc<ClusterStatistics>,
    ) -> RouterDelivery {
        assert!(!routers.is_empty(), "a cluster has a router");
        RouterDelivery {
            routers: routers.into_iter().map(Router::new).collect(),
            network,
            statistics,
            hedge_delay: HEDGE_DELAY,
            checks_flush: false,
            source_id: None,
            turns: AtomicUsize::new(0),
            reroutes: AtomicUsize::new(0),
            is_unanswered: AtomicBool::new(false),
            recovered: Notify::new(),
            has_waiting: Notify::new(),
        }
    }

    /// Sends a batch to another router too when one does not answer within `hedge_delay`.
    pub fn with_hedge_delay(self, hedge_delay: Duration) -> RouterDelivery {
        RouterDelivery { hedge_delay, ..self }
    }

    /// Reports routers that refuse a flush when they first answer, if `checks_flush`.
    pub fn with_flush_check(self, checks_flush: bool) -> RouterDelivery {
        RouterDelivery { checks_flush, ..self }
    }

    /// Names the database `source_id` to routers that wait for the invalidators of several.
    pub fn with_source_id(self, source_id: u64) -> RouterDelivery {
        RouterDelivery { source_id: Some(source_id), ..self }
    }

    /// Every router once, the one that is to be asked first in front.
    pub(super) fn in_order(&self) -> Vec<usize> {
        let (now, count) = (Instant::now(), self.routers.len());
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let mut order: Vec<usize> = (0..count).map(|step| (turn + step) % count).collect();
        order.sort_by_cached_key(|&at| {
            let router = &self.routers[at];
            (router.is_tko(), router.demoted_until(now), router.unanswered())
        });
        order
    }

    pub(super) fn router(&self, at: usize) -> &Router {
        &self.routers[at]
    }

    pub(super) fn routers(&self) -> impl Iterator<Item = &Router> {
        self.routers.iter()
    }

    pub(super) fn router_count(&self) -> usize {
        self.routers.len()
    }

    /// The position in `routers` of the one that gets what another one has refused: each of those that answer in turn,
    /// so that a cluster of many routers tries all of them in the end. `None` if none answers.
    pub(super) fn next_for_reroute(&self, routers: &[usize]) -> Option<usize> {
        let is_answering = |&position: &usize| !self.routers[routers[position]].is_tko();
        let answering: Vec<usize> = (0..routers.len()).filter(is_answering).collect();
        let turn = self.reroutes.fetch_add(1, Ordering::Relaxed).checked_rem(answering.len())?;
        Some(answering[turn])
    }

    /// Records that router `at` refused deletes that router `other` then applied.
    pub(super) fn record_refusals(&self, at: usize, other: usize, deletes: u32) {
        self.statistics.router_refusals.add(u64::from(deletes));
        self.routers[at].record_refusals(deletes, self.routers[other].address(), &self.statistics);
    }

    /// Records that router `other` answered a batch, and router `at` did not answer it in time.
    pub(super) fn record_late(&self, at: usize, other: usize) {
        self.routers[at].demote("it does not answer", self.routers[other].address(), &self.statistics);
    }

    /// Records that no router has answered a batch.
    pub(super) fn record_unanswered(&self) {
        self.is_unanswered.store(true, Ordering::Relaxed);
    }

    /// Records that a router does not answer.
    pub(super) fn record_failure(&self, at: usize, why: &str) {
        let has_others = self.routers.iter().enumerate().any(|(other, router)| other != at && !router.is_tko());
        self.routers[at].record_failure(why, has_others, &self.statistics);
        self.count_tko();
    }

    /// Records that a router has answered.
    pub(super) fn record_answer(&self, at: usize) {
        self.routers[at].record_answer(&self.statistics);
        self.count_tko();
        if self.is_unanswered.swap(false, Ordering::Relaxed) {
            self.recovered.notify_one();
        }
    }

    fn count_tko(&self) {
        self.statistics.set_routers_tko(self.routers.iter().filter(|router| router.is_tko()).count());
    }

    /// Reaches the routers by other connections than those of deletes and probes.
    pub(super) fn network(&self) -> &dyn Network {
        &*self.network
    }
}

impl Delivery for RouterDelivery {
    fn delete(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<DeleteResult>> {
        match keys.iter().any(|key| Flush::parse(key).is_some()) {
            true => Box::pin(self.delete_and_flush(keys)),
            false => Box::pin(RoutedBatch::new(self, keys).run()),
        }
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(self.flush_cluster())
    }

    fn watch_routers(&self) -> BoxFuture<'_, ()> {
        let probes = join_all(self.routers.iter().enumerate().map(|(at, router)| {
            let on_answer = move |is_waiting| {
                self.record_answer(at);
                if is_waiting {
                    self.has_waiting.notify_one();
                }
            };
            let on_failure = move |why: &str| self.record_failure(at, why);
            router.probe_repeatedly(self.hedge_delay, on_answer, on_failure)
        }));
        let checked = self.routers.iter().filter(|_| self.checks_flush);
        let checks = join_all(checked.map(|router| router.check_flush(&self.statistics)));
        Box::pin(async move {
            tokio::join!(probes, checks, self.compare_configs());
        })
    }

    fn is_reachable(&self) -> bool {
        self.routers.iter().any(|router| !router.is_tko())
    }

    fn recovered(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.recovered.notified())
    }

    fn waiting_router(&self) -> BoxFuture<'_, WaitingRouter> {
        Box::pin(async move {
            loop {
                let announced = |(index, router): (usize, &Router)| Some((index, router.announce_waiting()?));
                if let Some((index, token)) = self.routers.iter().enumerate().find_map(announced) {
                    return WaitingRouter { index, token };
                }
                self.has_waiting.notified().await;
            }
        })
    }

    fn report_caught_up(&self, waiting: WaitingRouter) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let router = &self.routers[waiting.index];
            let (cluster, address) = (&self.statistics.name, router.address());
            if router.report_caught_up(&waiting.token, self.source_id).await {
                self.statistics.start_gates_opened.add(1);
                tracing::info!(cluster, router = %address, "notified a router that its cluster is up to date");
            } else {
                router.announce_again(&waiting.token);
            }
        })
    }

    fn announce_again(&self, waiting: &WaitingRouter) {
        self.routers[waiting.index].announce_again(&waiting.token);
    }
}
