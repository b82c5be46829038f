//! Asks a cluster what it has under some keys, without filling, counting or touching anything.
//!
//! The request is `me KEY a`, which this project's servers answer with the item's age
//! ([from memcached](../../../../docs/from_memcached.md)); memcached answers without it.
//!
//! | a cluster is given by | asked | sees |
//! |---|---|---|
//! | its routers | one, or another one if that does not answer | what a client would read: not a fenced server, the gutter in place of a TKO server |
//! | its servers | each about each key | also what no router reads at present, as after a change of a pool |

mod endpoint;
mod item_reply;

pub use item_reply::parse_item;

use crate::sampling::{Look, Moment, Seen};
use endpoint::AskedEndpoint;
use futures_util::future::join_all;
use lookaside_client::Network;
use lookaside_routing::Address;
use std::{sync::Arc, time::Duration};

/// The most keys of a batch.
pub const BATCH_KEYS_MAX: usize = 100;

/// Returns the time by the monitor's clock.
pub type MonitorClock = Arc<dyn Fn() -> Moment + Send + Sync>;

/// How a cluster is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// By one of its routers.
    Routers,
    /// By all of its servers.
    Servers,
}

/// Asks one cluster.
pub struct Asker {
    through: Through,
    endpoints: Vec<AskedEndpoint>,
    /// The router that is asked first.
    preferred: usize,
}

impl Asker {
    /// Asks the routers or servers at these addresses, each of which may take `timeout` for a batch.
    pub fn new(
        through: Through,
        addresses: &[String],
        timeout: Duration,
        network: &Arc<dyn Network>,
        clock: &MonitorClock,
    ) -> Asker {
        let address = |text: &String| Address(text.as_str().into());
        let endpoint = |text| AskedEndpoint::new(address(text), timeout, network.clone(), clock.clone());
        Asker { through, endpoints: addresses.iter().map(endpoint).collect(), preferred: 0 }
    }

    /// The addresses of the cluster's routers; none if its servers are asked.
    pub fn routers(&self) -> Vec<String> {
        match self.through {
            Through::Routers => self.endpoints.iter().map(|endpoint| endpoint.address().to_owned()).collect(),
            Through::Servers => Vec::new(),
        }
    }

    /// How many questions one key needs, if all are answered.
    pub fn questions_per_key(&self) -> u32 {
        match self.through {
            Through::Routers => 1,
            Through::Servers => self.endpoints.len() as u32,
        }
    }

    /// The questions that were sent so far, answered or not.
    pub fn questions_sent(&self) -> u64 {
        self.endpoints.iter().map(|endpoint| endpoint.questions).sum()
    }

    /// Asks about up to [`BATCH_KEYS_MAX`] keys. Returns the looks at each of them: one by a router, or one for each
    /// server.
    pub async fn ask(&mut self, keys: &[&[u8]]) -> Vec<Vec<Look>> {
        match self.through {
            Through::Routers => self.ask_a_router(keys).await.into_iter().map(|look| vec![look]).collect(),
            Through::Servers => {
                let asked = join_all(self.endpoints.iter_mut().map(|endpoint| endpoint.ask(keys))).await;
                let mut looks: Vec<Vec<Look>> = keys.iter().map(|_| Vec::with_capacity(asked.len())).collect();
                for of_server in asked {
                    looks.iter_mut().zip(of_server).for_each(|(looks, look)| looks.push(look));
                }
                looks
            }
        }
    }

    /// The servers that the router at this address reads the key from at present; `None` if it is no router of the
    /// cluster, or does not say.
    pub async fn find_servers(&mut self, router: &str, key: &[u8]) -> Option<String> {
        if self.through == Through::Servers {
            return None;
        }
        let endpoint = self.endpoints.iter_mut().find(|endpoint| endpoint.address() == router)?;
        endpoint.find_servers(key).await
    }

    /// Another router is asked about what the first has not answered. The one that answers is asked first from then on.
    async fn ask_a_router(&mut self, keys: &[&[u8]]) -> Vec<Look> {
        let is_failed = |look: &Look| matches!(look.seen, Seen::Failed(_));
        let mut looks = self.endpoints[self.preferred].ask(keys).await;
        for offset in 1..self.endpoints.len() {
            let failed: Vec<usize> = (0..looks.len()).filter(|&at| is_failed(&looks[at])).collect();
            if failed.is_empty() {
                break;
            }
            let router = (self.preferred + offset) % self.endpoints.len();
            let again: Vec<&[u8]> = failed.iter().map(|&at| keys[at]).collect();
            let answers = self.endpoints[router].ask(&again).await;
            if failed.len() == keys.len() && !answers.iter().all(is_failed) {
                self.preferred = router;
            }
            for (at, look) in failed.into_iter().zip(answers).filter(|(_, look)| !is_failed(look)) {
                looks[at] = look;
            }
        }
        looks
    }
}
