//! The command line as `__mcrouter__.options` shows it.

use super::Options;
use clap::{ArgMatches, CommandFactory as _};
use lookaside_client::config::EtcdLocation;

/// Every option with its value, given or default. Secrets are left out.
pub(super) fn options_as_given(matches: &ArgMatches) -> Vec<(String, String)> {
    let command = Options::command();
    let known = command.get_arguments().filter_map(|argument| Some((argument.get_id().as_str(), argument.get_long()?)));
    let value = |id: &str| -> Option<String> {
        let values: Vec<_> = matches.try_get_raw(id).ok()??.map(|value| value.to_string_lossy()).collect();
        let value = values.join(",");
        match (id, EtcdLocation::parse(&value)) {
            ("etcd_password", _) => Some("(given)".to_owned()),
            ("config", Some(location)) => location.ok().map(|location| location.to_string()),
            _ => Some(value),
        }
    };
    known.filter_map(|(id, long)| Some((long.replace('-', "_"), value(id)?))).collect()
}
