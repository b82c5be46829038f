//! Parses good and bad configurations, and builds the good ones over fakes.

use crate::fakes::Fake;
use lookaside_routing::{
    Address, Configuration, Defaults, Destination, DestinationSettings, Destinations, Failure, RootRoute,
};
use std::{collections::BTreeMap, sync::Arc};

pub fn read(text: &str) -> Configuration {
    Configuration::parse(text, &Defaults::default()).unwrap_or_else(|error| panic!("{error}"))
}

pub fn refusal(text: &str) -> String {
    Configuration::parse(text, &Defaults::default()).expect_err("a bad configuration").to_string()
}

/// A configuration with this route and a valid pool `A`.
pub fn with_route(route: &str) -> String {
    format!("{{\"pools\": {{\"A\": {{\"servers\": [\"a:1\"]}}}},\n\"route\": {route}}}")
}

pub fn with_pool(pool: &str) -> String {
    format!("{{\"pools\": {{\"main\": {{\"servers\": [\"a:1\"]}},\n\"A\": {pool}}},\n\"route\": \"PoolRoute|A\"}}")
}

/// Makes fakes, and records the calls.
#[derive(Default)]
pub struct FakeDestinations {
    pub made: BTreeMap<String, Arc<Fake>>,
    pub asked_for: Vec<(String, u64, u64)>,
    pub down: Vec<&'static str>,
}

impl Destinations for FakeDestinations {
    fn destination(&mut self, address: &Address, settings: &DestinationSettings) -> Arc<dyn Destination> {
        let name = address.to_string();
        self.asked_for.push((name.clone(), settings.server_timeout_ms, settings.connect_timeout_ms));
        let fake = match self.down.contains(&&*name) {
            true => Fake::failing(&name, Failure::ConnectFailed),
            false => Fake::hit(&name),
        };
        self.made.insert(name, fake.clone());
        fake
    }
}

impl FakeDestinations {
    pub fn asked(&self, name: &str) -> Vec<String> {
        self.made[name].asked()
    }
}

/// The routes of a configuration over fakes.
pub fn build(text: &str) -> (RootRoute, FakeDestinations) {
    let mut fakes = FakeDestinations::default();
    (read(text).build(&mut fakes), fakes)
}
