//! Routes and servers by the names that mcrouter prints, for `stats servers` and `__mcrouter__.route_handles`.
//!
//! ```text
//!   PoolRoute|main      asynclog:main
//!                        hash|Ch3|salt=x
//!   its first server    host|pool=main|id=0|ap=10.0.0.1:11211:ascii:plain:notcompressed|timeout=1000ms
//! ```

use super::explain::Explanation;
use lookaside_routing::{Address, DestinationSettings, Handle, Pool, PoolRouteConfig, Protocol, Security};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Types whose name is not that of the type without `Route`, in lower case with hyphens.
const NAMES: [(&str, &str); 9] = [
    ("DevNullRoute", "devnull"),
    ("FailoverWithExptimeRoute", "failover"),
    ("KeySplitRoute", "keysplit"),
    ("L1L2CacheRoute", "l1l2-cache"),
    ("L1L2SizeSplitRoute", "l1l2-sizesplit"),
    ("LatestRoute", "failover"),
    ("LoadBalancerRoute", "loadbalancer"),
    ("SaltedFailoverRoute", "failover"),
    ("SlowWarmUpRoute", "slow-warmup"),
];

/// How mcrouter names a server and how it is reached.
pub(crate) fn access_point(address: &Address, settings: &DestinationSettings) -> String {
    let protocol = match settings.protocol {
        Protocol::Text => "ascii",
        Protocol::Meta => "meta",
    };
    let security = if settings.security == Security::Plain { "plain" } else { "ssl" };
    let address: String = address.0.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("{address}:{protocol}:{security}:notcompressed")
}

/// The names of a route, the outermost first: mcrouter has several routes in place of one.
pub(super) fn route_names(handle: &Handle) -> Vec<String> {
    if let Some(PoolRouteConfig { pool, hash, .. }) = handle.config::<PoolRouteConfig>() {
        let salt = if hash.salt.is_empty() { String::new() } else { format!("|salt={}", hash.salt) };
        let hash = format!("hash|{}{salt}", hash.function.name());
        let asynclog = pool.settings.asynclog.then(|| format!("asynclog:{}", pool.name));
        return asynclog.into_iter().chain([hash]).collect();
    }
    let label = handle.label();
    let (kind, argument) = label.split_once('|').unwrap_or((&label, ""));
    vec![match kind {
        "ErrorRoute" => format!("error|log|{argument}"),
        kind => type_name(kind),
    }]
}

fn type_name(kind: &str) -> String {
    if let Some((_, name)) = NAMES.iter().find(|(own, _)| *own == kind) {
        return (*name).to_owned();
    }
    let mut name = String::new();
    for letter in kind.strip_suffix("Route").unwrap_or(kind).chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

/// The options of a server, but for its pool.
pub(super) fn server_name(address: &Address, settings: &DestinationSettings) -> String {
    format!("ap={}|timeout={}ms", access_point(address, settings), settings.server_timeout_ms)
}

/// The tree that a request takes, a name in each line, indented by a blank for each caller.
pub(crate) fn route_handles(explanation: &Explanation, pools: &BTreeMap<String, Arc<Pool>>) -> String {
    let mut lines = vec!["proxy".to_owned(), " root".to_owned()];
    let mut callers: Vec<Caller<'_>> = Vec::new();
    for step in &explanation.0 {
        callers.retain(|caller| caller.depth < step.depth);
        let (mut indent, outer) = callers.last().map_or((2, None), |caller| (caller.indent, caller.pool));
        let pool = step.at.split_once('|').and_then(|(_, name)| pools.get(name)).map(|pool| &**pool).or(outer);
        for name in &step.names {
            let name = if step.is_server { host_line(&step.at, name, pool) } else { name.clone() };
            lines.push(format!("{:indent$}{name}", ""));
            indent += 1;
        }
        callers.push(Caller { depth: step.depth, indent, pool });
    }
    lines.join("\r\n")
}

struct Caller<'a> {
    depth: usize,
    /// That of its children.
    indent: usize,
    /// The pool of the nearest route over one.
    pool: Option<&'a Pool>,
}

fn host_line(address: &str, options: &str, pool: Option<&Pool>) -> String {
    let place = pool.and_then(|pool| Some((pool, pool.servers.iter().position(|server| *server.0 == *address)?)));
    match place {
        Some((pool, id)) => format!("host|pool={}|id={id}|{options}", pool.name),
        None => format!("host|{options}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_types() {
        for (kind, name) in [
            ("AllSyncRoute", "all-sync"),
            ("AllMajorityRoute", "all-majority"),
            ("OperationSelectorRoute", "operation-selector"),
            ("WarmUpRoute", "warm-up"),
            ("LatestRoute", "failover"),
            ("DevNullRoute", "devnull"),
            ("BigValueRoute", "big-value"),
            ("MissFailoverRoute", "miss-failover"),
            ("L1L2CacheRoute", "l1l2-cache"),
            ("NullRoute", "null"),
        ] {
            assert_eq!(type_name(kind), name);
        }
    }
}
