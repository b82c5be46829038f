//! Routes and servers by the names that mcrouter prints, for `stats servers` and `__mcrouter__.route_handles`.
//!
//! ```text
//!   PoolRoute|main      asynclog:main
//!                        hash|Ch3|salt=x
//!   its first server    host|pool=main|id=0|ap=10.0.0.1:11211:ascii:plain:notcompressed|timeout=1000ms
//! ```

use super::explain::{Explanation, Step};
use crate::stats::counters::one_line;
use lookaside_routing::{Address, DestinationSettings, Handle, Pool, Protocol, Security};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How mcrouter names a server and how it is reached.
pub(crate) fn access_point(address: &Address, settings: &DestinationSettings) -> String {
    let protocol = match settings.protocol {
        Protocol::Text => "ascii",
        Protocol::Meta => "meta",
    };
    let security = if settings.security == Security::Plain { "plain" } else { "ssl" };
    let address = one_line(&address.0);
    format!("{address}:{protocol}:{security}:notcompressed")
}

/// The names of a route ([`RouteConfig::mcrouter_names`](lookaside_routing::RouteConfig::mcrouter_names)).
pub(super) fn route_names(handle: &Handle) -> Vec<String> {
    // The text of an error is the operator's.
    handle.mcrouter_names().iter().map(|name| one_line(name)).collect()
}

/// The options of a server, but for its pool.
pub(super) fn server_name(address: &Address, settings: &DestinationSettings) -> String {
    format!("ap={}|timeout={}ms", access_point(address, settings), settings.server_timeout_ms)
}

/// The tree that a request takes, a name in each line, indented by a blank for each caller.
pub(crate) fn route_handles(explanation: &Explanation, pools: &BTreeMap<String, Arc<Pool>>) -> String {
    let mut lines = vec!["proxy".to_owned(), " root".to_owned()];
    for_each_step(explanation, pools, |step, indent, place| {
        for (at, name) in step.names.iter().enumerate() {
            let name = if step.is_server { host_line(name, place) } else { name.clone() };
            lines.push(format!("{:width$}{name}", "", width = indent + at));
        }
    });
    lines.join("\r\n")
}

/// The bucket of a key: the index of the first server that is asked for it in its pool; `None` if no server of a pool
/// is asked.
pub(crate) fn bucket(explanation: &Explanation, pools: &BTreeMap<String, Arc<Pool>>) -> Option<usize> {
    let mut bucket = None;
    for_each_step(explanation, pools, |_, _, place| bucket = bucket.or(place.map(|(_, id)| id)));
    bucket
}

/// A pool, and the index of a server among its entries.
type Place<'a> = (&'a Pool, usize);

/// Calls `visit` with each step, the blanks before its name, and the place of the server that it is.
fn for_each_step<'a>(
    explanation: &Explanation,
    pools: &'a BTreeMap<String, Arc<Pool>>,
    mut visit: impl FnMut(&Step, usize, Option<Place<'a>>),
) {
    let mut callers: Vec<Caller<'_>> = Vec::new();
    for step in &explanation.0 {
        callers.retain(|caller| caller.depth < step.depth);
        let (indent, outer) = callers.last().map_or((2, None), |caller| (caller.indent, caller.pool));
        let pool = step.at.split_once('|').and_then(|(_, name)| pools.get(name)).map(|pool| &**pool).or(outer);
        visit(step, indent, pool.filter(|_| step.is_server).and_then(|pool| place_in(pool, &step.at)));
        callers.push(Caller { depth: step.depth, indent: indent + step.names.len(), pool });
    }
}

fn place_in<'a>(pool: &'a Pool, address: &str) -> Option<Place<'a>> {
    let server = pool.servers.iter().position(|server| *server.0 == *address)?;
    Some((pool, pool.entry_index(server)))
}

struct Caller<'a> {
    depth: usize,
    /// That of its children.
    indent: usize,
    /// The pool of the nearest route over one.
    pool: Option<&'a Pool>,
}

fn host_line(options: &str, place: Option<Place<'_>>) -> String {
    match place {
        Some((pool, id)) => format!("host|pool={}|id={id}|{options}", pool.name),
        None => format!("host|{options}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::explain::{Outages, explain};
    use super::*;
    use crate::config::router_config::RouterConfig;
    use lookaside_client::DestinationOptions;
    use lookaside_routing::{Context, Defaults};

    /// The lines for a get below the root, without their indentation, and the bucket.
    async fn names_of(route: &str) -> (Vec<String>, Option<usize>) {
        let text = format!(
            r#"{{"pools": {{"A": {{"servers": ["a:1", "a:2", "a:3"]}}, "B": {{"servers": ["b:1"]}}}},
                "route": {route}}}"#
        );
        let config = RouterConfig::parse(&text, &Defaults::default(), &DestinationOptions::default());
        let config = config.unwrap_or_else(|why| panic!("{route}: {why}"));
        let steps = explain(&config, "get", "id:17:k", &Context::default(), &Outages::default()).await;
        let steps = steps.unwrap_or_else(|why| panic!("{route}: {why}"));
        let (text, bucket) = (route_handles(&steps, &config.pools()), bucket(&steps, &config.pools()));
        let mut lines = text.split("\r\n");
        assert_eq!((lines.next(), lines.next()), (Some("proxy"), Some(" root")));
        let trimmed = lines.enumerate().map(|(at, line)| {
            assert!(line.starts_with(' ') && line.len() - line.trim_start().len() <= at + 2, "{text}");
            line.trim_start().to_owned()
        });
        (trimmed.collect(), bucket)
    }

    const HOST_B: &str = "host|pool=B|id=0|ap=b:1:ascii:plain:notcompressed|timeout=1000ms";

    /// The first line of each handle.
    #[tokio::test]
    async fn each_handle_has_mcrouters_name_and_its_options() {
        for (route, line) in [
            (r#""NullRoute""#, "null"),
            (r#""DevNullRoute""#, "devnull"),
            (r#""ErrorRoute""#, "error|log|mc_res_local_error"),
            (r#""ErrorRoute|no way""#, "error|log|mc_res_local_error|no way"),
            (
                r#"{"type": "ErrorRoute", "response": "no", "result": "mc_res_busy", "enable_logging": false}"#,
                "error|no-log|mc_res_busy|no",
            ),
            (r#"{"type": "LoggingRoute", "target": "PoolRoute|B"}"#, "logging"),
            (
                r#"{"type": "BigValueRoute", "target": "PoolRoute|B", "split_threshold": 1000, "batch_size": 5}"#,
                "big-value|split_threshold=1000|batch_size=5|hide_reply_flag=false",
            ),
            (
                r#"{"type": "OutstandingLimitRoute", "target": "PoolRoute|B", "max_outstanding": 7}"#,
                "outstanding-limit|limit=7",
            ),
            (
                r#"{"type": "RateLimitRoute", "target": "PoolRoute|B",
                    "rates": {"gets_rate": 10, "deletes_rate": 3, "deletes_burst": 4}}"#,
                "rate-limit|gets_rate=10|gets_burst=10|deletes_rate=3|deletes_burst=4",
            ),
            (r#""AllSyncRoute|Pool|A""#, "all-sync"),
            (r#""AllAsyncRoute|Pool|A""#, "all-async"),
            (r#""AllFastestRoute|Pool|A""#, "all-fastest"),
            (r#""AllInitialRoute|Pool|A""#, "all-initial"),
            (r#""AllMajorityRoute|Pool|A""#, "all-majority"),
            (r#"{"type": "FailoverRoute", "children": "Pool|A"}"#, "failover"),
            (r#"{"type": "FailoverWithExptimeRoute", "normal": "PoolRoute|A", "failover": "PoolRoute|B"}"#, "failover"),
            (r#"{"type": "SaltedFailoverRoute", "pool": "A"}"#, "failover"),
            (r#"{"type": "LatestRoute", "children": "Pool|A"}"#, "failover"),
            (r#"{"type": "MissFailoverRoute", "children": "Pool|A"}"#, "miss-failover"),
            (
                r#"{"type": "ShadowRoute", "children": "PoolRoute|A",
                    "shadows": [{"target": "PoolRoute|B", "keys_to_shadow": ["x"]}]}"#,
                "shadow",
            ),
            (r#"{"type": "ShardSplitRoute", "destination": "PoolRoute|A", "shard_splits": {"17": 2}}"#, "shard-split"),
            (
                r#"{"type": "L1L2CacheRoute", "l1": "PoolRoute|A", "l2": "PoolRoute|B", "upgradingL1Exptime": 5}"#,
                "l1l2-cache",
            ),
            (
                r#"{"type": "L1L2SizeSplitRoute", "l1": "PoolRoute|A", "l2": "PoolRoute|B", "threshold": 10}"#,
                "l1l2-sizesplit",
            ),
            (r#"{"type": "MigrateRoute", "from": "PoolRoute|A", "to": "PoolRoute|B", "start_time": 1}"#, "migrate"),
            (r#"{"type": "ModifyKeyRoute", "target": "PoolRoute|A", "ensure_key_prefix": "x"}"#, "modify-key"),
            (r#"{"type": "ModifyExptimeRoute", "target": "PoolRoute|A", "exptime": 5}"#, "modify-exptime"),
            (r#"{"type": "OperationSelectorRoute", "default_policy": "PoolRoute|A"}"#, "operation-selector"),
            (r#"{"type": "RoutingGroupRoute", "default_policy": "PoolRoute|A"}"#, "routing-group"),
            (r#"{"type": "RandomRoute", "children": "Pool|A"}"#, "random"),
            (r#"{"type": "WarmUpRoute", "cold": "PoolRoute|A", "warm": "PoolRoute|B"}"#, "warm-up"),
            (r#"{"type": "StagingRoute", "warm": "PoolRoute|A", "staging": "PoolRoute|B"}"#, "staging"),
            (r#"{"type": "KeySplitRoute", "destination": "PoolRoute|A", "replicas": 2}"#, "keysplit"),
            (r#"{"type": "LoadBalancerRoute", "children": "Pool|A", "failover_count": 2}"#, "loadbalancer"),
        ] {
            let (lines, _) = names_of(route).await;
            assert_eq!(lines[0], line, "{route}");
        }
    }

    #[tokio::test]
    async fn pools_have_a_line_for_each_of_mcrouters_routes() {
        let asynclog = ["asynclog:A".to_owned(), "hash|Ch3".to_owned()];
        let (lines, bucket) = names_of(r#""PoolRoute|A""#).await;
        assert_eq!((&lines[..2], lines.len()), (&asynclog[..], 3));
        let id = bucket.expect("a server is asked");
        let host = |timeout| format!("host|pool=A|id={id}|ap=a:{}:ascii:plain:notcompressed|{timeout}", id + 1);
        assert_eq!(lines[2], host("timeout=1000ms"));
        let (lines, bucket) = names_of(r#"{"type": "PoolRoute", "pool": "B", "asynclog": false}"#).await;
        assert_eq!((lines, bucket), (vec!["hash|Ch3".to_owned(), HOST_B.to_owned()], Some(0)));
        let (lines, _) = names_of(
            r#"{"type": "PoolRoute", "pool": "B", "hash": {"hash_func": "Crc32", "salt": "x"}, "max_outstanding": 3,
                "rates": {"sets_rate": 9, "sets_burst": 1}, "shard_splits": {"17": 1},
                "slow_warmup": {"failoverTarget": "PoolRoute|A"}, "asynclog": false}"#,
        )
        .await;
        let expected = [
            "shard-split",
            "rate-limit|sets_rate=9|sets_burst=1",
            "hash|Crc32|salt=x",
            "slow-warmup",
            "outstanding-limit|limit=3",
        ];
        assert_eq!(lines[..5], expected, "{lines:?}");
        assert_eq!(names_of(r#""NullRoute""#).await.1, None, "no server is asked");
    }
}
