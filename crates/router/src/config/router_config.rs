//! Where the configuration comes from, and what it says together with the command line.

use crate::config::etcd::{EtcdLocation, EtcdWatch};
use crate::{Host, Spares, Spool};
use lookaside_client::{DestinationOptions, Network, TcpNetwork, WindowSettings};
use lookaside_routing::{
    Address, Batch, BoxFuture, Configuration, ConfigurationError, ConfigurationWarning, Defaults, Destination,
    DestinationSettings, Destinations, Failure, Handle, Outcomes, Pool, Route,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Where the configuration comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file, watched while the router runs.
    File(PathBuf),
    /// A key in etcd, watched while the router runs.
    Etcd(EtcdLocation),
    /// The command line.
    Text(String),
}

impl Source {
    /// The text of the configuration as it is now. Not to be called where a runtime runs: it blocks. What is behind TLS is
    /// not read: this has no certificates.
    pub fn read(&self) -> Result<String, String> {
        match self {
            Source::Etcd(location) if location.is_secured => {
                Err(format!("{location} is read by a router alone, which knows whom to believe"))
            }
            _ => self.read_through(Arc::new(TcpNetwork)),
        }
    }

    /// The same through `network`, where it is on another host.
    pub(crate) fn read_through(&self, network: Arc<dyn Network>) -> Result<String, String> {
        match self {
            Source::File(path) => crate::config::file::read_configuration(path),
            Source::Etcd(location) => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.map_err(|error| format!("the system gives no event queue: {error}"))?;
                runtime.block_on(EtcdWatch::new(location.clone(), network, None, 0).read())
            }
            Source::Text(text) => Ok(text.clone()),
        }
    }

    /// Puts the source in front of what is wrong with it, unless that names it already.
    pub fn blame(&self, why: &str) -> String {
        let source = self.to_string();
        match why.contains(&source) {
            true => why.to_owned(),
            false => format!("{source}: {why}"),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Etcd(location) => write!(f, "{location}"),
            Source::Text(_) => write!(f, "configuration on the command line"),
        }
    }
}

/// A configuration that has been read and found good, with the habits towards servers that it does not speak of.
#[derive(Clone, Debug)]
pub struct Plan {
    text: String,
    configuration: Configuration,
    destination_options: DestinationOptions,
    host: Host,
    spool: Option<Arc<Spool>>,
    spares: Option<Arc<Spares>>,
    window: Option<WindowSettings>,
    is_measured: bool,
}

impl Plan {
    /// Reads a configuration. The error has line, column and reason.
    pub fn read(
        text: &str,
        defaults: &Defaults,
        destination_options: &DestinationOptions,
    ) -> Result<Plan, ConfigurationError> {
        let configuration = Configuration::read(text, defaults)?;
        let (text, destination_options) = (text.to_owned(), destination_options.clone());
        Ok(Plan {
            text,
            configuration,
            destination_options,
            host: Host::named("", 0),
            spool: None,
            spares: None,
            window: None,
            is_measured: false,
        })
    }

    /// The same plan for this host. Without it hosts are all alike, and the wall clock starts at 1970.
    pub fn on(self, host: Host) -> Plan {
        Plan { host, ..self }
    }

    /// The same plan with the deletes that fail kept in `spool`, if there is one. Its standings must be those of the
    /// destination options.
    pub fn spooling(self, spool: Option<Arc<Spool>>) -> Plan {
        Plan { spool, ..self }
    }

    /// The same plan with spares that serve when servers are dead for long. Their standings must be those of the destination
    /// options. Without it spares are told of deletes, and never serve.
    pub fn sparing(self, spares: Arc<Spares>) -> Plan {
        Plan { spares: Some(spares), ..self }
    }

    /// The same plan with one window over all that a thread has outstanding, if there is to be one.
    pub fn windowed(self, window: Option<WindowSettings>) -> Plan {
        Plan { window, ..self }
    }

    /// The same plan with measures around its pools and servers, if `is_measured`.
    pub fn measured(self, is_measured: bool) -> Plan {
        Plan { is_measured, ..self }
    }

    /// Whether there are measures around its pools and servers.
    pub fn is_measured(&self) -> bool {
        self.is_measured
    }

    /// The window over all that a thread has outstanding.
    pub fn window(&self) -> Option<WindowSettings> {
        self.window
    }

    /// The spares, if they ever serve.
    pub(crate) fn spares(&self) -> Option<&Arc<Spares>> {
        self.spares.as_ref()
    }

    /// Where deletes that fail are kept.
    pub fn spool(&self) -> Option<&Arc<Spool>> {
        self.spool.as_ref()
    }

    /// Every server that it names.
    pub fn servers(&self) -> BTreeSet<Address> {
        let mut census = Census::default();
        drop(self.configuration.build(&mut census));
        census.servers
    }

    /// Every pool that its routes use, by name.
    pub fn pools(&self) -> BTreeMap<String, Arc<Pool>> {
        let mut census = Census::default();
        drop(self.configuration.build(&mut census));
        census.pools
    }

    /// The host it is for.
    pub fn host(&self) -> Host {
        self.host
    }

    /// The text it was read from.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What it says.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// What holds for every destination; the timeouts are the configuration's.
    pub fn destination_options(&self) -> &DestinationOptions {
        &self.destination_options
    }

    /// What was ignored.
    pub fn warnings(&self) -> &[ConfigurationWarning] {
        &self.configuration.warnings
    }
}

/// Takes down who is named.
#[derive(Default)]
struct Census {
    servers: BTreeSet<Address>,
    pools: BTreeMap<String, Arc<Pool>>,
}

impl Destinations for Census {
    fn destination(&mut self, address: &Address, _: &DestinationSettings) -> Arc<dyn Destination> {
        self.servers.insert(address.clone());
        Arc::new(Named(address.clone()))
    }

    fn around(&mut self, handle: &Handle, route: Arc<dyn Route>) -> Arc<dyn Route> {
        if let Handle::Pool { pool, .. } | Handle::SaltedFailover { pool, .. } | Handle::Server { pool, .. } = handle {
            self.pools.insert(pool.name.clone(), pool.clone());
        }
        route
    }
}

/// A server that nobody asks anything.
struct Named(Address);

impl Destination for Named {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        Box::pin(std::future::ready(vec![Err(Failure::Tko); batch.len()]))
    }

    fn address(&self) -> &Address {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_behind_tls_is_not_asked_for_without_it() {
        // Nobody is there: who asked would be told so.
        let location = EtcdLocation::parse("etcds://127.0.0.1:1/k").expect("names etcd").expect("good");
        assert!(Source::Etcd(location).read().is_err_and(|why| why.contains("router alone")));
    }
}
