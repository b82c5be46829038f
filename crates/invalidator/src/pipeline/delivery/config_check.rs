//! Compares the configurations of a cluster's routers.
//!
//! Any router's acknowledgement of a delete or of a flush counts for the whole cluster, since its routers send a key to the
//! same servers. With two configurations they may not: a delete that one of them acknowledges then leaves the value that
//! the other one serves. Routers load a changed configuration one after the other, so a difference is no fault before it
//! has lasted for [`DIFFERENCE_MAX`]. It is shown (`router_configs`) and logged; deletes go on, as nothing better is known.

use super::{router::Router, routers::RouterDelivery};
use futures_util::future::join_all;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// How often the routers are asked.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How long routers may take to load a changed configuration.
const DIFFERENCE_MAX: Duration = Duration::from_secs(60);

/// Since when the configurations differ, and whether that was logged; `None` if they are equal.
type Difference = Option<(Instant, bool)>;

impl RouterDelivery {
    /// Compares the configurations repeatedly. Never returns, unless there is nothing to compare.
    pub(super) async fn compare_configs(&self) {
        if self.router_count() < 2 {
            return;
        }
        let mut difference = None;
        loop {
            let digests: BTreeMap<usize, String> = join_all(self.routers().map(Router::config_digest))
                .await
                .into_iter()
                .enumerate()
                .filter_map(|(at, digest)| Some((at, digest?)))
                .collect();
            self.record_configs(&digests, &mut difference);
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// `digests` has the configuration of each router that has answered, by its index.
    fn record_configs(&self, digests: &BTreeMap<usize, String>, difference: &mut Difference) {
        let distinct: BTreeSet<&String> = digests.values().collect();
        self.statistics.set_router_configs(distinct.len());
        let cluster = &self.statistics.name;
        if distinct.len() < 2 {
            // A router that does not answer may still have another one.
            if digests.len() == self.router_count() && matches!(difference.take(), Some((_, true))) {
                tracing::info!(cluster, "the routers of the cluster have the same configuration again");
            }
            return;
        }
        let (since, is_logged) = difference.get_or_insert_with(|| (Instant::now(), false));
        if *is_logged || since.elapsed() < DIFFERENCE_MAX {
            return;
        }
        *is_logged = true;
        let routers: Vec<String> =
            digests.iter().map(|(&at, digest)| format!("{}: {digest}", self.router(at).address())).collect();
        tracing::error!(
            cluster,
            routers = routers.join(", "),
            "routers of one cluster have different configurations: what one of them deletes, another one may still serve. \
             Give all the same configuration, then flush the cluster"
        );
    }
}
