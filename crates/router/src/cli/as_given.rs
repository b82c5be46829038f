//! The command line as `__mcrouter__.options` shows it.

use super::Options;
use super::mcrouter::{Effect, FLAGS};
use clap::{ArgMatches, CommandFactory as _};
use lookaside_client::config::EtcdLocation;
use std::collections::BTreeMap;

/// Every option with its value, given or default. Secrets are left out.
pub(super) fn options_as_given(matches: &ArgMatches) -> Vec<(String, String)> {
    let command = Options::command();
    let known = command.get_arguments().filter_map(|argument| Some((argument.get_id().as_str(), argument.get_long()?)));
    let value = |id: &str| -> Option<String> {
        let values: Vec<_> = matches.try_get_raw(id).ok()??.map(|value| value.to_string_lossy()).collect();
        let value = values.join(",");
        match (id, EtcdLocation::parse(&value)) {
            ("etcd_password", _) => Some("(given)".to_owned()),
            ("config" | "config_history", Some(location)) => location.ok().map(|location| location.to_string()),
            _ => Some(value),
        }
    };
    known.filter_map(|(id, long)| Some((long.replace('-', "_"), value(id)?))).collect()
}

/// mcrouter's flags that are no options.
const NO_OPTIONS: [&str; 5] = ["D", "b", "d", "help", "version"];

/// The options `own` of this router, and those of mcrouter's names that are missing there: a configuration may use any
/// of them. Of a flag that is no option here, its value in `without_effect` or else mcrouter's default.
pub(super) fn add_mcrouters_names(
    own: Vec<(String, String)>,
    without_effect: &BTreeMap<&str, String>,
) -> Vec<(String, String)> {
    let value_of = |long: &str| {
        let name = long.replace('-', "_");
        own.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
    };
    let mut added = Vec::new();
    for flag in FLAGS.iter().filter(|flag| !NO_OPTIONS.contains(&flag.name) && value_of(flag.name).is_none()) {
        let value = match flag.effect {
            Effect::Own(long) => value_of(long),
            _ => without_effect.get(flag.name).cloned(),
        };
        added.push((flag.name.replace('-', "_"), value.unwrap_or_else(|| flag.default().to_owned())));
    }
    own.into_iter().chain(added).collect()
}
