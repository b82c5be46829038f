//! Parses good and bad configurations.

use lookaside_routing::{Configuration, Defaults};

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
