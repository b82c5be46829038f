//! What failover routes count.

use crate::failover::{Cluster, by_key, failover};
use crate::fakes::ask;
use lookaside_routing::{Failure, TkoReason};
use std::collections::BTreeMap;

/// Whether each of the counters that are not 0 has the value that is expected.
fn assert_counts(cluster: &Cluster, expected: &[(&str, u64)], what: &str) {
    let counts = cluster.env.statistics().counters.snapshot();
    let counted: BTreeMap<&str, u64> = counts.named().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counted, expected.iter().copied().collect(), "{what}");
}

/// A request, the children and further keys of a route, the servers that fail, and the counters that rise.
type FailoverCase<'a> = (&'a str, &'a str, &'a str, &'a [(&'a str, &'a Failure)], &'a [(&'a str, u64)]);

#[tokio::test]
async fn failovers_are_counted_by_policy_and_by_why_they_end() {
    let late = Failure::TimedOut;
    let tko = Failure::Tko(TkoReason::ConnectFailed);
    let least = r#", "failover_policy": {"type": "LeastFailuresPolicy", "max_tries": 9}"#;
    let rendezvous = r#", "failover_policy": {"type": "RendezvousPolicy", "tags": ["x", "y", "z"]}"#;
    let limit = r#", "failover_limit": {"rate": 0, "burst": 1}"#;
    let only_tko = r#", "failover_errors": ["tko"]"#;
    let pool = r#""Pool|T""#;
    let after_m = r#"["AllSyncRoute|Pool|M", "Pool|T"]"#;
    let refused = r#"[{"type": "ErrorRoute", "result": "mc_res_bad_key"}, "Pool|T"]"#;
    let (all, failed) = ("failover_all", "failover_all_failed");
    let (in_order, in_order_failed) = ("failover_inorder_policy", "failover_inorder_policy_failed");
    let (errors, tkos) = ("failover_policy_result_error", "failover_policy_tko_error");
    let (conditional, limited) = ("failover_conditional", "failover_rate_limited");
    let cases: &[FailoverCase<'_>] = &[
        ("get k", pool, "", &[], &[]),
        ("get k", r#"["NullRoute", "Pool|T"]"#, "", &[], &[]),
        ("get k", refused, "", &[], &[]),
        (
            "get k",
            pool,
            "",
            &[("t:1", &late), ("t:2", &tko)],
            &[(all, 2), (failed, 1), (in_order, 2), (in_order_failed, 1), (errors, 1), (tkos, 1)],
        ),
        ("delete k", pool, "", &[("t:1", &late)], &[(all, 2), (in_order, 2), (errors, 1)]),
        ("delete k", pool, "", &[("t:1", &Failure::Spooled)], &[(all, 2), (in_order, 2)]),
        (
            "get k",
            pool,
            least,
            &[("t:1", &late), ("t:2", &late)],
            &[
                (all, 2),
                (failed, 1),
                ("failover_least_failures_policy", 2),
                ("failover_least_failures_policy_failed", 1),
                (errors, 2),
            ],
        ),
        ("get k", after_m, rendezvous, &[("m:1", &late)], &[(all, 1), ("failover_rendezvous_policy", 1), (errors, 1)]),
        ("get k", pool, only_tko, &[("t:1", &late)], &[(conditional, 1)]),
        (
            "get k",
            pool,
            only_tko,
            &[("t:1", &tko), ("t:2", &late)],
            &[(all, 1), (failed, 1), (in_order, 1), (in_order_failed, 1), (tkos, 1), (conditional, 1)],
        ),
        (
            "get k",
            pool,
            limit,
            &[("t:1", &late), ("t:2", &late)],
            &[(all, 1), (failed, 1), (in_order, 1), (in_order_failed, 1), (errors, 2), (conditional, 1), (limited, 1)],
        ),
    ];
    for (request, children, rest, failing, expected) in cases {
        let (route, cluster) = Cluster::build(&failover(children, rest));
        for (server, failure) in *failing {
            cluster.fail(&[server], (*failure).clone());
        }
        ask(&route, &[request]).await;
        assert_counts(&cluster, expected, &format!("{request} {children} {rest}"));
    }
}

#[tokio::test]
async fn draws_are_counted_for_the_children_that_are_asked() {
    let policy = format!(r#""failover_policy": {{{}}}"#, by_key(6, 6, r#""enable_failure_domains": true"#));
    let (route, cluster) = Cluster::build(&format!(r#"{{"type": "SaltedFailoverRoute", "pool": "A", {policy}}}"#));
    let counts = || cluster.env.statistics().counters.snapshot();
    let all = ["a:1", "a:2", "a:3", "a:4", "a:5", "a:6"];
    let gets: Vec<String> = (0..40).map(|n| format!("get key:{n}")).collect();
    let gets: Vec<&str> = gets.iter().map(String::as_str).collect();
    cluster.fail(&["a:1"], Failure::TimedOut);
    ask(&route, &gets).await;
    let one_down = counts();
    let of_first = cluster.servers["a:1"].asked().len() as u64;
    assert!(of_first > 0 && one_down.failover_deterministic_order_policy == of_first);
    assert_eq!((one_down.failover_deterministic_order_policy_failed, one_down.failover_same_failure_domain), (0, 0));
    cluster.fail(&all, Failure::TimedOut);
    ask(&route, &gets).await;
    let all_down = counts().since(&one_down);
    let sent = all_down.failover_deterministic_order_policy;
    assert_eq!((all_down.failover_all, all_down.failover_deterministic_order_policy_failed), (sent, sent));
    assert_eq!(all_down.failover_policy_result_error, sent + 40);
    // Two further domains have not failed yet, for each key.
    assert_eq!(all_down.failover_same_failure_domain, sent - 2 * 40);
    // Those that lead to children that were never asked do not count.
    assert!(one_down.failover_num_collisions < all_down.failover_num_collisions, "{one_down:?} {all_down:?}");
    assert!(all_down.failover_num_failed_domain_collisions > 40, "{all_down:?}");
}
