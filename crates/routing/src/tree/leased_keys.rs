//! Which keys a configuration leases for clients that know no leases: those whose requests pass a `LeaseRoute`. Two
//! configurations are compared by it, since misses of keys that were not leased before are not known
//! ([`crate::ClientMisses`]).

use crate::{
    Handle, LeaseRoute, LeaseScope,
    configuration::{Json, JsonValue},
};

/// The keys that a configuration leases. Equal ones lease the same keys; others may, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedKeys {
    /// The connections whose misses are needed together.
    pub scope: LeaseScope,
    /// The part of the configuration that decides which keys pass a `LeaseRoute`; `None` if all do.
    routes: Option<String>,
}

impl LeasedKeys {
    /// Those of a configuration with these trees.
    pub(super) fn of<'a>(
        scope: LeaseScope,
        mut trees: impl Iterator<Item = &'a Handle>,
        named: &[(String, Handle)],
        configuration: &Json,
    ) -> LeasedKeys {
        let are_all = trees.all(|tree| begins_with_lease(tree, named));
        LeasedKeys { scope, routes: (!are_all).then(|| routes_of(configuration)) }
    }

    /// Whether every key is leased.
    pub fn are_all(&self) -> bool {
        self.routes.is_none()
    }
}

fn begins_with_lease(handle: &Handle, named: &[(String, Handle)]) -> bool {
    match handle {
        // It refers only to those before it, unless the configuration has errors.
        Handle::Named(at) => named.get(*at).is_some_and(|(_, target)| begins_with_lease(target, &named[..*at])),
        Handle::PoolEntry { route, .. } => begins_with_lease(route, named),
        handle => LeaseRoute::is_described_by(handle),
    }
}

/// The configuration without its pools, so that a change of their servers is not taken for one of the routes; its
/// macros are expanded. Where the servers of a pool are among the children of a route, it may choose by their number, and
/// so may a pool that has routes among its servers: then the pools are not left out. The routers that it names for clients
/// lease no other keys.
fn routes_of(configuration: &Json) -> String {
    let text = configuration.to_string();
    let JsonValue::Object(properties) = &configuration.value else { return text };
    let do_pools_count =
        text.contains(r#""Pool|"#) || text.contains(r#""Pool""#) || has_route_among_servers(configuration);
    let counts = |name: &str| match name {
        "routers" => false,
        "pools" | "macros" => do_pools_count,
        _ => true,
    };
    let routes = properties.iter().filter(|property| counts(&property.name));
    routes.map(|property| format!("{}:{}\n", property.name, property.value)).collect()
}

/// Whether a pool has a route among its servers, also one that is described where it is used.
fn has_route_among_servers(value: &Json) -> bool {
    let is_list_with_object = |value: &Json| match &value.value {
        JsonValue::List(entries) => entries.iter().any(|entry| matches!(entry.value, JsonValue::Object(_))),
        _ => false,
    };
    match &value.value {
        JsonValue::Object(properties) => properties.iter().any(|property| {
            property.name == "servers" && is_list_with_object(&property.value)
                || has_route_among_servers(&property.value)
        }),
        JsonValue::List(values) => values.iter().any(has_route_among_servers),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Configuration, Defaults};

    fn leased(pools: &str, route: &str) -> Option<LeasedKeys> {
        let text = format!(r#"{{ "pools": {{ {pools} }}, "route": {route} }}"#);
        Configuration::parse(&text, &Defaults::default()).expect("it is valid").leased_keys
    }

    const ONE: &str = r#""A": { "servers": ["a:1"] }"#;
    const TWO: &str = r#""A": { "servers": ["a:1", "a:2"] }"#;

    fn by_prefix(leased: &str) -> String {
        format!(
            r#"{{ "type": "PrefixSelectorRoute", "policies": {{ "{leased}": "LeaseRoute|PoolRoute|A" }}, "wildcard": "PoolRoute|A" }}"#
        )
    }

    #[test]
    fn a_change_of_servers_leases_the_same_keys_and_one_of_routes_does_not() {
        let users = leased(ONE, &by_prefix("user:")).expect("some are");
        assert!(!users.are_all());
        assert_eq!(leased(TWO, &by_prefix("user:")), Some(users.clone()));
        assert_ne!(leased(ONE, &by_prefix("post:")), Some(users));
        assert_eq!(leased(ONE, r#""PoolRoute|A""#), None);
    }

    #[test]
    fn all_keys_are_leased_whatever_the_routes_below() {
        let all = leased(ONE, r#""LeaseRoute|PoolRoute|A""#).expect("all are");
        assert!(all.are_all());
        let below =
            r#"{ "type": "LeaseRoute", "target": { "type": "HashRoute", "children": ["Pool|A", "NullRoute"] } }"#;
        assert_eq!(leased(TWO, below), Some(all.clone()));
        let of_addresses = r#"{ "type": "LeaseRoute", "scope": "address", "target": "PoolRoute|A" }"#;
        assert_ne!(leased(ONE, of_addresses), Some(all));
    }

    #[test]
    fn the_routers_lease_no_other_keys() {
        let over_servers = r#"{ "type": "HashRoute", "children": ["Pool|A", "LeaseRoute|PoolRoute|A"] }"#;
        for route in [&*by_prefix("user:"), over_servers] {
            let of = |routers: &str| {
                let text = format!(r#"{{ "pools": {{ {ONE} }}, {routers} "route": {route} }}"#);
                Configuration::parse(&text, &Defaults::default()).expect("it is valid").leased_keys.expect("some are")
            };
            assert_eq!(of(r#""routers": ["r:1"],"#), of(r#""routers": ["r:1", "r:2"],"#), "{route}");
            assert_eq!(of(r#""routers": ["r:1"],"#), of(""), "{route}");
        }
    }

    /// A key moves between the servers and the route among them when there is another server.
    #[test]
    fn servers_count_if_there_are_routes_among_them() {
        let pool = |servers: &str| {
            format!(
                r#""A": {{ "servers": [{servers} {{ "type": "LeaseRoute", "target": "PoolRoute|B" }}] }}, "B": {{ "servers": ["b:1"] }}"#
            )
        };
        let (one, two) = (pool(r#""a:1","#), pool(r#""a:1", "a:2","#));
        let some = leased(&one, r#""PoolRoute|A""#);
        assert!(some.as_ref().is_some_and(|some| !some.are_all()));
        assert_eq!(leased(&one, r#""PoolRoute|A""#), some);
        assert_ne!(leased(&two, r#""PoolRoute|A""#), some);
        // The pool of the route inherits the weights.
        let weighted = |weights: &str| format!(r#""W": {{ "servers": ["w:1"], "weights": {weights} }}"#);
        let inline = r#"{ "type": "PoolRoute", "pool": {
            "inherit": "W", "servers": ["x:1", { "type": "LeaseRoute", "target": "PoolRoute|W" }] } }"#;
        assert_ne!(leased(&weighted("[0.1, 1]"), inline), leased(&weighted("[1, 0.1]"), inline));
    }

    /// A key moves between the servers and the other children when there is another server.
    #[test]
    fn servers_count_if_they_are_children_beside_routes() {
        let route = r#"{ "type": "HashRoute", "children": ["Pool|A", "LeaseRoute|PoolRoute|A"] }"#;
        assert_eq!(leased(ONE, route), leased(ONE, route));
        assert_ne!(leased(ONE, route), leased(TWO, route));
    }
}
