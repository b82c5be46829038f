//! Routers and servers in memory, by their addresses, and the permits of the routers.

use super::{FakeNetwork, Mode, cache::SharedCache};
use lookaside_client::config::ConfigId;
use lookaside_client::{Listener, Network, PERMIT_DURATION, PERMIT_KEY, Permit, PermitReply, Stream};
use lookaside_routing::{Address, BoxFuture};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

/// A network of caches by their addresses.
#[derive(Clone, Default)]
pub struct Cluster(Arc<BTreeMap<String, (Arc<FakeNetwork>, SharedCache)>>);

impl Cluster {
    pub fn of(addresses: &[&str]) -> Cluster {
        let caches = addresses.iter().map(|address| {
            let (network, accepted) = FakeNetwork::new();
            let cache = SharedCache::default();
            cache.serve(accepted);
            ((*address).to_owned(), (network, cache))
        });
        Cluster(Arc::new(caches.collect()))
    }

    pub fn cache(&self, address: &str) -> &SharedCache {
        &self.0[address].1
    }

    pub fn set_mode(&self, address: &str, mode: Mode) {
        self.0[address].0.set(mode);
    }

    /// The router at `address` gives this permit from now on.
    pub fn permit(&self, address: &str, reply: &PermitReply) {
        self.cache(address).lock().set(PERMIT_KEY, reply.to_string());
    }

    /// Every cache has the key, with its own address as the value.
    pub fn set_everywhere(&self, key: &str) {
        for (address, (_, cache)) in &*self.0 {
            cache.lock().set(key, address.clone());
        }
    }
}

impl Network for Cluster {
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        self.0[&*address.0].0.connect(address)
    }

    fn listen<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        unimplemented!("nothing listens")
    }
}

pub fn config(server: &str) -> String {
    format!(
        r#"{{
            "pools": {{ "main": {{ "servers": ["{server}"] }}, "gutter": {{ "servers": ["gutter:1"] }} }},
            "route": {{ "type": "FailoverRoute", "children": ["PoolRoute|main", "PoolRoute|gutter"] }}
        }}"#
    )
}

pub fn permit(configuration: &str) -> PermitReply {
    permit_except(configuration, [])
}

pub fn permit_except<const N: usize>(configuration: &str, fenced: [&str; N]) -> PermitReply {
    let fenced = fenced.map(|server| Address(server.into())).into();
    PermitReply::Permitted(Permit { fenced, ..bare_permit(configuration) })
}

/// The refusal of a router that takes no leases for plain clients.
pub fn refusal(why: &str) -> PermitReply {
    PermitReply::Refused { why: why.to_owned(), takes_leases: Some(false) }
}

/// A permit of a router that takes leases for plain clients.
pub fn permit_with_leases(configuration: &str) -> PermitReply {
    PermitReply::Permitted(Permit { takes_leases: true, ..bare_permit(configuration) })
}

/// The permit of a router with these options.
pub fn with_options(reply: PermitReply, data_options: &str) -> PermitReply {
    match reply {
        PermitReply::Permitted(permit) => {
            PermitReply::Permitted(Permit { data_options: data_options.to_owned(), ..permit })
        }
        refused => refused,
    }
}

fn bare_permit(configuration: &str) -> Permit {
    Permit {
        duration: PERMIT_DURATION,
        configuration: ConfigId::of(configuration).expect("the configuration is valid"),
        data_options: String::new(),
        fenced: BTreeSet::new(),
        spares: BTreeSet::new(),
        takes_leases: false,
    }
}
