//! Failover with `enable_lease_pairing`: a fill goes back to the issuer of its token.

use crate::failover::{Cluster, POOLS, failover, token_of};
use crate::fakes::{ask, request};
use lookaside_protocol::{LeaseToken, Operation, Reply};
use lookaside_routing::{Configuration, Context, Defaults, Failure, Route};
use std::time::Duration;

fn lease_set(key: &str, server: &str) -> lookaside_protocol::Request<bytes::Bytes> {
    let mut request = request(&format!("lease-set {key} 60"));
    if let Operation::LeaseSet { token, .. } = &mut request.operation {
        *token = LeaseToken(token_of(server));
    }
    request
}

/// The second server issues a token, the first server returns, then the fill arrives.
#[tokio::test]
async fn a_fill_goes_to_the_issuer_of_its_token() {
    let context = Context::default();
    let route = |rest: &str| {
        format!(
            r#"{{"type": "FailoverWithExptimeRoute", "normal": "PoolRoute|M", "failover": ["PoolRoute|G"], "failover_exptime": 10{rest}}}"#
        )
    };
    let paired = r#", "enable_lease_pairing": true"#;
    for (rest, later_s, fill_of, outcome, asked) in [
        (paired, 0, "k", Reply::Stored, ["g:1"]),
        (paired, 9, "k", Reply::Stored, ["g:1"]),
        (paired, 10, "k", Reply::NotStored, ["m:1"]),
        (paired, 0, "other", Reply::NotStored, ["m:1"]),
        ("", 0, "k", Reply::NotStored, ["m:1"]),
    ] {
        let (root, cluster) = Cluster::build(&route(rest));
        cluster.fail(&["m:1"], Failure::TimedOut);
        assert_eq!(ask(&root, &["lease-get /././k"]).await, [format!("Lease {}", token_of("g:1"))]);
        cluster.recover();
        cluster.asked();
        cluster.env.advance(Duration::from_secs(later_s));
        let fills = vec![lease_set(fill_of, "g:1")];
        assert_eq!(root.route(fills, &context).await, [Ok(outcome)], "{rest} {later_s} {fill_of}");
        let requests = cluster.servers["g:1"].requests();
        if asked == ["g:1"] {
            assert!(
                matches!(requests[0].operation, Operation::LeaseSet { exptime: 10, .. }),
                "it is short-lived there"
            );
        } else {
            assert_eq!((requests.len(), cluster.asked()), (0, asked.map(String::from).to_vec()));
        }
    }
}

#[tokio::test]
async fn a_token_is_paired_once_and_a_failure_of_its_child_is_returned() {
    let context = Context::default();
    let route = failover(r#"["PoolRoute|M", "PoolRoute|G", "Pool|T"]"#, r#", "enable_lease_pairing": true"#);
    let (root, cluster) = Cluster::build(&route);
    cluster.fail(&["m:1"], Failure::TimedOut);
    ask(&root, &["lease-get k"]).await;
    cluster.recover();
    cluster.fail(&["g:1"], Failure::TimedOut);
    cluster.asked();
    let mut batch = vec![request("get a"), lease_set("k", "g:1"), request("delete k")];
    let outcomes = root.route(batch.clone(), &context).await;
    assert_eq!(outcomes[1..], [Err(Failure::TimedOut), Ok(Reply::Deleted)]);
    assert_eq!(cluster.asked(), ["g:1", "m:1"], "no other child accepts that token");
    batch.truncate(2);
    assert_eq!(root.route(batch, &context).await[1], Ok(Reply::NotStored), "the second time it is an ordinary fill");
    assert_eq!(cluster.asked(), ["m:1"]);
}

#[tokio::test]
async fn fills_that_go_back_to_their_issuer_are_counted() {
    let route = failover(r#"["PoolRoute|M", "PoolRoute|G"]"#, r#", "enable_lease_pairing": true"#);
    let (root, cluster) = Cluster::build(&route);
    cluster.fail(&["m:1"], Failure::TimedOut);
    ask(&root, &["lease-get k"]).await;
    cluster.recover();
    for _ in 0..2 {
        // The second time it is an ordinary fill.
        root.route(vec![lease_set("k", "g:1")], &Context::default()).await;
    }
    assert_eq!(cluster.env.statistics().counters.redirected_lease_set_count.value(), 1);
}

/// Each thread has a tree, and a client's next request may arrive at another thread.
#[tokio::test]
async fn all_trees_of_a_configuration_share_the_pairs() {
    let route = failover(r#"["PoolRoute|M", "PoolRoute|G"]"#, r#", "enable_lease_pairing": true"#);
    let text = format!("{{\"pools\": {{{POOLS}}}, \"route\": {route}}}");
    let configuration = Configuration::parse(&text, &Defaults::default()).unwrap();
    let ((one, its), (other, others)) = (Cluster::of(&configuration), Cluster::of(&configuration));
    its.fail(&["m:1"], Failure::TimedOut);
    ask(&one, &["lease-get k"]).await;
    assert_eq!(other.route(vec![lease_set("k", "g:1")], &Context::default()).await, [Ok(Reply::Stored)]);
    assert_eq!(others.asked(), ["g:1"]);
}
