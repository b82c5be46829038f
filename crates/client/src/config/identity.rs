//! The identity of a configuration: two texts that place every key alike, as far as that shows in the text, have the
//! same one. No request passes here.
//!
//! It is a digest of the configuration without comments, white space, the order of keys, the routers that it names for
//! clients ([`ROUTERS`]), and settings that cannot move a key ([`SETTINGS_OF_NO_PLACE`]). Routers of a cluster, and
//! clients that read servers directly, compare identities, so all of them must compute it alike.

use lookaside_routing::Configuration;
use md5::{Digest as _, Md5};
use serde_json::Value;
use std::fmt;

/// Settings of a pool that cannot move a key of the cache.
const SETTINGS_OF_NO_PLACE: [&str; 6] =
    ["server_timeout", "connect_timeout", "tko_tracker", "spare_after_ms", "flush_new_servers", "resize_warm_up_s"];

/// The key at the top of a configuration that names routers for clients. A server owns a key whichever routers there
/// are.
const ROUTERS: &str = "routers";

/// The identity of a configuration: a digest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigId(pub u128);

impl ConfigId {
    /// The identity of the valid configuration `text`.
    pub fn of(text: &str) -> Result<ConfigId, String> {
        let expanded = Configuration::expand_macros(text).map_err(|error| error.to_string())?;
        let mut value: Value = serde_json::from_str(&expanded).map_err(|error| error.to_string())?;
        remove_settings(&mut value);
        // An object of `serde_json` is ordered by its keys.
        Ok(ConfigId(u128::from_be_bytes(Md5::digest(value.to_string()).into())))
    }

    /// The identity in the text that [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<ConfigId> {
        let is_hexadecimal = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hexadecimal.then(|| u128::from_str_radix(text, 16).ok()).flatten().map(ConfigId)
    }
}

/// Removes the routers, and the settings of all pools, named ones and others. A pool, a handle or a key prefix may have
/// the name of a setting, and then it counts.
fn remove_settings(configuration: &mut Value) {
    if let Value::Object(top) = configuration {
        top.remove(ROUTERS);
    }
    let pools = configuration.get_mut("pools").and_then(Value::as_object_mut);
    pools.into_iter().flat_map(|pools| pools.values_mut()).for_each(remove_settings_of_pool);
    remove_settings_of_inline_pools(configuration);
}

fn remove_settings_of_pool(pool: &mut Value) {
    if let Value::Object(properties) = pool {
        properties.retain(|name, _| !SETTINGS_OF_NO_PLACE.contains(&&**name));
    }
}

/// An inline pool is the `pool` of a route, or is in a list of routes and has `"type": "Pool"`.
fn remove_settings_of_inline_pools(value: &mut Value) {
    match value {
        Value::Object(properties) => {
            properties.get_mut("pool").into_iter().for_each(remove_settings_of_pool);
            properties.values_mut().for_each(remove_settings_of_inline_pools);
            if value.get("type").is_some_and(|kind| kind == "Pool") {
                remove_settings_of_pool(value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(remove_settings_of_inline_pools),
        _ => {}
    }
}

impl fmt::Display for ConfigId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ConfigId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(pool: &str) -> ConfigId {
        ConfigId::of(&format!(r#"{{ "pools": {{ "a": {pool} }}, "route": "PoolRoute|a" }}"#)).expect("valid")
    }

    #[test]
    fn settings_that_move_no_key_do_not_count() {
        let plain = id(r#"{ "servers": ["h:1", "h:2"] }"#);
        for same in [
            r#"{ "servers": ["h:1", /* the second */ "h:2"], "server_timeout": 50 }"#,
            r#"{ "connect_timeout": 7, "servers": ["h:1","h:2"], "tko_tracker": { "enter": 1, "exit": 0 } }"#,
            r#"{ "servers": ["h:1","h:2"], "resize_warm_up_s": 60 }"#,
        ] {
            assert_eq!(id(same), plain, "{same}");
        }
        for other in [r#"{ "servers": ["h:2", "h:1"] }"#, r#"{ "servers": ["h:1", "h:2"], "weights": [1, 2] }"#] {
            assert_ne!(id(other), plain, "{other}");
        }
    }

    /// It was taken for a setting, and then two configurations that route its keys to different servers were the same
    /// one.
    #[test]
    fn a_key_prefix_or_a_handle_with_the_name_of_a_setting_counts() {
        for [one, other] in [
            [
                r#""type": "PrefixSelectorRoute", "policies": { "server_timeout": "PoolRoute|a" }, "wildcard": "PoolRoute|b""#,
                r#""type": "PrefixSelectorRoute", "policies": {}, "wildcard": "PoolRoute|b""#,
            ],
            [r#""type": "X", "servers": ["a:1"], "tko_tracker": "PoolRoute|a""#, r#""type": "X", "servers": ["a:1"]"#],
        ] {
            let id = |route: &str| ConfigId::of(&format!(r#"{{ "route": {{ {route} }} }}"#)).expect("valid");
            assert_ne!(id(one), id(other), "{one}");
        }
        let named = |name| ConfigId::of(&format!(r#"{{ "named_handles": {{ "{name}": "PoolRoute|a" }} }}"#));
        assert_ne!(named("connect_timeout"), named("spare_after_ms"));
    }

    #[test]
    fn settings_of_inline_pools_do_not_count() {
        for route in [
            r#"{ "type": "PoolRoute", "pool": { "servers": ["h:1"] SETTING } }"#,
            r#"{ "type": "HashRoute", "children": [[{ "type": "Pool", "servers": ["h:1"] SETTING }]] }"#,
        ] {
            let id = |setting| ConfigId::of(&format!(r#"{{ "route": {} }}"#, route.replace("SETTING", setting)));
            assert_eq!(id(r#", "server_timeout": 5"#), id(""), "{route}");
            assert_ne!(id(r#", "weights": [5]"#), id(""), "{route}");
        }
    }

    /// Routers that have read a new list would else refuse permits to clients that have not, and the reverse.
    #[test]
    fn the_routers_do_not_count_but_a_pool_or_handle_of_that_name_does() {
        let with = |routers: &str| {
            let rest = r#""pools": { "a": { "servers": ["h:1"] } }, "route": "PoolRoute|a""#;
            ConfigId::of(&format!("{{ {routers} {rest} }}")).expect("valid")
        };
        for routers in [r#"["r:1"]"#, r#"["r:2", "r:1"]"#, r#"{ "/a/b/": ["r:1"] }"#] {
            assert_eq!(with(&format!(r#""routers": {routers},"#)), with(""), "{routers}");
        }
        let pool = |server| ConfigId::of(&format!(r#"{{ "pools": {{ "routers": {{ "servers": ["{server}"] }} }} }}"#));
        assert_ne!(pool("a:1"), pool("b:1"));
        let handle = |pool| ConfigId::of(&format!(r#"{{ "named_handles": {{ "routers": "PoolRoute|{pool}" }} }}"#));
        assert_ne!(handle("a"), handle("b"));
    }

    #[test]
    fn a_pool_with_the_name_of_a_setting_counts() {
        let text = |server| format!(r#"{{ "pools": {{ "server_timeout": {{ "servers": ["{server}"] }} }} }}"#);
        assert_ne!(ConfigId::of(&text("a:1")), ConfigId::of(&text("b:1")));
    }

    #[test]
    fn an_identity_is_read_as_it_is_written() {
        let id = ConfigId(0x1f);
        assert_eq!(ConfigId::parse(&id.to_string()), Some(id));
        for bad in ["", "1f", "+000000000000000000000000000000f"] {
            assert_eq!(ConfigId::parse(bad), None, "{bad}");
        }
    }
}
