//! Routes that ask several children, or one of several: which children are asked, what is returned, and what continues
//! after the caller is dropped.

use crate::environment::{FakeEnvironment, HeldRoute};
use crate::fakes::{self, Fake, VERBS, ask, server_error};
use futures_util::FutureExt;
use lookaside_protocol::{LeaseToken, Operation, Reply};
use lookaside_routing::{
    AllAsyncRoute, AllFastestRoute, AllInitialRoute, AllMajorityRoute, Background, Context, DevNullRoute,
    FailoverErrors, Failure, HostIdRoute, LatestRoute, MissFailoverRoute, OriginalClientHashRoute, RandomRoute, Route,
};
use std::{net::IpAddr, sync::Arc};

const TIMEOUT: Failure = Failure::TimedOut;

fn leaves(fakes: &[&Arc<Fake>]) -> Vec<Arc<dyn Route>> {
    fakes.iter().map(|fake| fake.leaf()).collect()
}

fn background_of(env: &Arc<FakeEnvironment>) -> Background {
    env.environment(10).background
}

#[tokio::test]
async fn all_async_asks_all_children_and_awaits_none() {
    let (env, a, b) = (FakeEnvironment::new(), Fake::hit("a"), Fake::failing("b", TIMEOUT));
    let route = AllAsyncRoute::new(leaves(&[&a, &b]), background_of(&env));
    for verb in VERBS {
        let request = format!("{verb} k");
        let expected = match verb {
            "get" | "gets" | "gat" | "gats" | "lease-get" | "metaget" => "Miss",
            "delete" | "incr" | "decr" | "touch" => "NotFound",
            _ => "NotStored",
        };
        assert_eq!(ask(&route, &[&request]).await, [expected], "{verb}");
        assert!(a.asked().is_empty(), "{verb}: no child is asked before the reply");
        assert_eq!(env.run_background().await, 1);
        assert_eq!((a.asked().len(), b.asked().len()), (1, 1), "{verb}");
    }
}

#[tokio::test]
async fn all_initial_returns_the_first_childs_reply_for_every_verb() {
    for (first, expected) in
        [(Fake::hit("a"), "Deleted"), (Fake::miss("a"), "NotFound"), (Fake::failing("a", TIMEOUT), "server timed out")]
    {
        let (env, b) = (FakeEnvironment::new(), Fake::hit("b"));
        let route = AllInitialRoute::new(leaves(&[&first, &b]), background_of(&env));
        assert_eq!(ask(&route, &["delete k"]).await, [expected]);
        assert!(b.asked().is_empty());
        for verb in VERBS {
            ask(&route, &[&format!("{verb} k")]).await;
        }
        env.run_background().await;
        assert_eq!(first.asked().len(), 1 + VERBS.len());
        assert_eq!(b.asked().len(), 1 + VERBS.len());
    }
}

/// A client that disconnects must not prevent the delete of the other copies.
#[tokio::test]
async fn the_rest_continues_after_the_caller_is_dropped() {
    for n in 0..3 {
        let (env, a, b) = (FakeEnvironment::new(), Fake::hit("a"), Fake::hit("b"));
        let (first, second) = (HeldRoute::new(a.leaf()), HeldRoute::new(b.leaf()));
        let children = vec![first.clone() as Arc<dyn Route>, second.clone()];
        let route: Box<dyn Route> = match n {
            0 => Box::new(AllInitialRoute::new(children, background_of(&env))),
            1 => Box::new(AllFastestRoute::new(children, background_of(&env))),
            _ => Box::new(AllMajorityRoute::new(children, background_of(&env))),
        };
        assert!(ask(&*route, &["delete k"]).now_or_never().is_none(), "no child has replied");
        first.release_one();
        second.release_one();
        assert_eq!(env.run_background().await, 1, "route {n}");
        assert_eq!(b.asked(), ["delete k"], "route {n}");
        // The first child of AllInitialRoute is asked by the caller, as in any other route.
        assert_eq!(a.asked().len(), usize::from(n > 0), "route {n}");
    }
}

#[tokio::test]
async fn without_a_permit_the_caller_waits_for_all() {
    for n in 0..4 {
        let (a, b) = (Fake::hit("a"), Fake::hit("b"));
        let held = HeldRoute::new(b.leaf());
        let (children, none) = (vec![a.leaf(), held.clone() as Arc<dyn Route>], Background::none());
        let route: Box<dyn Route> = match n {
            0 => Box::new(AllAsyncRoute::new(children, none)),
            1 => Box::new(AllInitialRoute::new(children, none)),
            2 => Box::new(AllFastestRoute::new(children, none)),
            _ => Box::new(AllMajorityRoute::new(children, none)),
        };
        let mut answer = Box::pin(ask(&*route, &["set k"]));
        assert!(answer.as_mut().now_or_never().is_none(), "route {n} waits");
        held.release_one();
        let expected = if n == 0 { "NotStored" } else { "Stored" };
        assert_eq!(answer.await, [expected], "route {n}");
        assert_eq!((a.asked().len(), b.asked().len()), (1, 1));
    }
}

#[tokio::test]
async fn a_background_permit_is_returned() {
    let (env, a, b) = (FakeEnvironment::new(), Fake::hit("a"), Fake::hit("b"));
    let background = env.environment(1).background;
    let route = AllInitialRoute::new(leaves(&[&a, &b]), background.clone());
    ask(&route, &["get k"]).await;
    assert_eq!(background.running(), 1);
    ask(&route, &["get k"]).await;
    assert_eq!((background.running(), b.asked().len()), (1, 1), "no permit: awaited at once");
    env.run_background().await;
    assert_eq!((background.running(), b.asked().len()), (0, 1));
}

#[tokio::test]
async fn the_fastest_reply_that_is_not_an_error_wins() {
    let env = FakeEnvironment::new();
    let (down, quick, slow) = (Fake::failing("down", TIMEOUT), Fake::hit("quick"), Fake::hit("slow"));
    let held = HeldRoute::new(slow.leaf());
    let route = AllFastestRoute::new(vec![down.leaf(), held.clone(), quick.leaf()], background_of(&env));
    for verb in VERBS {
        let outcome = ask(&route, &[&format!("{verb} k")]).now_or_never().expect("the slow child is not awaited");
        assert!(!outcome[0].contains("timed out"), "{verb}: {outcome:?}");
        held.release_one();
        env.run_background().await;
        assert_eq!((down.asked().len(), quick.asked().len(), slow.asked().len()), (1, 1, 1), "{verb}");
    }
    let miss = Fake::miss("miss");
    let route = AllFastestRoute::new(leaves(&[&miss, &quick]), background_of(&env));
    assert_eq!(ask(&route, &["get k"]).await, ["Miss"], "a miss is not an error");
    let broken = Fake::new("broken", |_| server_error("busy"));
    let route = AllFastestRoute::new(leaves(&[&broken, &down]), background_of(&env));
    assert_eq!(ask(&route, &["get k"]).await, ["server timed out"], "all failed: the last error");
}

#[tokio::test]
async fn a_majority_decides_and_without_one_the_worst() {
    let env = FakeEnvironment::new();
    let (hit, miss, down) = (Fake::hit("hit"), Fake::miss("miss"), Fake::failing("down", TIMEOUT));
    let vote = async |children: &[&Arc<Fake>], request: &str| {
        let route = AllMajorityRoute::new(leaves(children), background_of(&env));
        ask(&route, &[request]).await.remove(0)
    };
    assert_eq!(vote(&[&hit, &miss, &hit], "get k").await, "hit");
    assert_eq!(vote(&[&hit, &miss, &miss], "get k").await, "Miss");
    assert_eq!(vote(&[&down, &miss, &down], "get k").await, "server timed out");
    assert_eq!(vote(&[&hit, &miss], "delete k").await, "Deleted", "no majority: as AllSyncRoute");
    assert_eq!(vote(&[&hit, &miss, &down], "set k").await, "server timed out");
    for verb in VERBS {
        hit.asked();
        vote(&[&hit, &hit, &hit], &format!("{verb} k")).await;
        env.run_background().await;
        assert_eq!(hit.asked().len(), 3, "{verb}: all children are asked");
    }
    let held = HeldRoute::new(hit.leaf());
    let route = AllMajorityRoute::new(vec![hit.leaf(), held, hit.leaf()], background_of(&env));
    assert!(ask(&route, &["get k"]).now_or_never().is_some(), "two of three suffice");
}

#[tokio::test]
async fn after_a_miss_the_next_child_is_asked() {
    let (empty, down, full, last) =
        (Fake::miss("empty"), Fake::failing("down", TIMEOUT), Fake::hit("full"), Fake::hit("last"));
    let route = MissFailoverRoute::new(leaves(&[&empty, &down, &full, &last]), false);
    for verb in VERBS {
        let outcome = ask(&route, &[&format!("{verb} k")]).await.remove(0);
        let asked = [&empty, &down, &full, &last].map(|fake| fake.asked());
        let counts = asked.each_ref().map(Vec::len);
        match verb {
            "get" | "gets" | "gat" | "gats" => assert_eq!((&*outcome, counts), ("full", [1, 1, 1, 0]), "{verb}"),
            "lease-get" => {
                assert_eq!((&*outcome, counts), ("full", [1, 1, 1, 0]));
                assert_eq!(asked[2], ["get k"], "no second lease");
            }
            "metaget" => assert_eq!((&*outcome, counts), ("Debug", [1, 1, 1, 0])),
            "delete" => assert_eq!((&*outcome, counts), ("server timed out", [1, 1, 1, 1])),
            _ => assert_eq!(counts, [1, 0, 0, 0], "{verb}"),
        }
    }
    let route = MissFailoverRoute::new(leaves(&[&down, &empty]), false);
    for verb in VERBS {
        ask(&route, &[&format!("{verb} k")]).await;
        assert_eq!(empty.asked().len(), 1, "{verb} continues after a timeout");
    }
}

#[tokio::test]
async fn if_all_children_miss_the_last_or_the_best_outcome_is_returned() {
    let (empty, down) = (Fake::miss("empty"), Fake::failing("down", TIMEOUT));
    let last = MissFailoverRoute::new(leaves(&[&empty, &down]), false);
    assert_eq!(ask(&last, &["get k", "lease-get k"]).await, ["server timed out", "Lease 7"]);
    let best = MissFailoverRoute::new(leaves(&[&empty, &down]), true);
    assert_eq!(ask(&best, &["get k", "lease-get k"]).await, ["Miss", "Lease 7"]);
    let swapped = MissFailoverRoute::new(leaves(&[&down, &empty]), false);
    assert_eq!(ask(&swapped, &["get k", "lease-get k"]).await, ["Miss", "Lease 7"]);
}

#[tokio::test]
async fn a_random_choice_is_fair_seeded_and_keeps_a_batch_whole() {
    let fakes: Vec<Arc<Fake>> = (0..4).map(|n| Fake::hit(&format!("s{n}"))).collect();
    let choices = async |seed| {
        let route = RandomRoute::new(fakes.iter().map(|fake| fake.leaf()).collect(), seed);
        let mut chosen_children = Vec::new();
        for verb in VERBS.iter().cycle().take(1_600) {
            ask(&route, &[&format!("{verb} a"), "get b"]).await;
            let asked: Vec<usize> = fakes.iter().map(|fake| fake.asked_batches().concat().len()).collect();
            assert_eq!(asked.iter().sum::<usize>(), 2);
            chosen_children.push(asked.iter().position(|&count| count == 2).expect("the batch stays whole"));
        }
        chosen_children
    };
    let chosen_children = choices(1).await;
    for n in 0..4 {
        let count = chosen_children.iter().filter(|&&at| at == n).count();
        assert!((320..480).contains(&count), "child {n} was chosen {count} times of 1600");
    }
    assert_eq!(choices(1).await, chosen_children);
    assert_ne!(choices(2).await, chosen_children);
}

#[tokio::test]
async fn a_host_always_has_the_same_child_and_hosts_share_the_children() {
    let fakes: Vec<Arc<Fake>> = (0..3).map(|n| Fake::miss(&format!("s{n}"))).collect();
    let mut counts = [0; 3];
    for host in 0..300 {
        let route = HostIdRoute::new(fakes.iter().map(|fake| fake.leaf()).collect(), host, "");
        for verb in VERBS {
            ask(&route, &[&format!("{verb} k")]).await;
        }
        let asked: Vec<usize> = fakes.iter().map(|fake| fake.asked().len()).collect();
        let chosen = asked.iter().position(|&count| count == VERBS.len()).expect("one child for every verb");
        counts[chosen] += 1;
    }
    assert!(counts.iter().all(|count| (60..140).contains(count)), "{counts:?}");
}

#[tokio::test]
async fn a_client_always_has_the_same_replica() {
    let fakes: Vec<Arc<Fake>> = (0..3).map(|n| Fake::failing(&format!("s{n}"), TIMEOUT)).collect();
    let leaves = || fakes.iter().map(|fake| fake.leaf()).collect::<Vec<_>>();
    let (route, rotated) =
        (OriginalClientHashRoute::new(leaves(), "", 0), OriginalClientHashRoute::new(leaves(), "", 1));
    let chosen = async |route: &OriginalClientHashRoute, client: Option<IpAddr>| {
        for verb in VERBS {
            route.route(vec![fakes::request(&format!("{verb} k"))], &Context { client, ..Context::default() }).await;
        }
        let asked: Vec<usize> = fakes.iter().map(|fake| fake.asked().len()).collect();
        asked.iter().position(|&count| count == VERBS.len()).expect("one replica for every verb")
    };
    let mut counts = [0; 3];
    for n in 0..=255 {
        let client: IpAddr = format!("10.0.0.{n}").parse().unwrap();
        let at = chosen(&route, Some(client)).await;
        counts[at] += 1;
        assert_eq!(chosen(&rotated, Some(client)).await, (at + 1) % 3);
        let mapped: IpAddr = format!("::ffff:10.0.0.{n}").parse().unwrap();
        assert_eq!(chosen(&route, Some(mapped)).await, at, "the same client over IPv6");
    }
    assert!(counts.iter().all(|count| (50..120).contains(count)), "{counts:?}");
    assert_eq!((chosen(&route, None).await, chosen(&rotated, None).await), (0, 1));
}

#[tokio::test]
async fn latest_fails_over_among_a_few_in_the_hosts_own_order() {
    let fakes: Vec<Arc<Fake>> = (0..8).map(|n| Fake::failing(&format!("s{n}"), TIMEOUT)).collect();
    let mut firsts = std::collections::BTreeSet::new();
    for host in 0..40 {
        let children: Vec<_> = fakes.iter().map(|fake| fake.leaf()).collect();
        let route = LatestRoute::new(&children, 3, host, "", FailoverErrors::default());
        for verb in VERBS {
            assert_eq!(ask(&route, &[&format!("{verb} k")]).await, ["server timed out"]);
            let asked: Vec<usize> = (0..8).filter(|&n| fakes[n].asked().len() == 1).collect();
            assert_eq!(asked.len(), 3, "{verb}");
            firsts.insert(asked);
        }
    }
    assert!(firsts.len() > 10, "hosts differ: {firsts:?}");
    let (miss, hit) = (Fake::miss("miss"), Fake::hit("hit"));
    let route = LatestRoute::new(&leaves(&[&miss, &miss]), 2, 0, "", FailoverErrors::default());
    ask(&route, &["get k"]).await;
    assert_eq!((miss.asked().len(), hit.asked().len()), (1, 0), "a miss does not fail over");
}

#[tokio::test]
async fn dev_null_drops_and_counts() {
    let route = DevNullRoute::default();
    assert_eq!(ask(&route, &["get k", "set k", "delete k"]).await, ["Miss", "NotStored", "NotFound"]);
    assert_eq!(route.dropped(), 3);
}

/// A hot miss and a lease are both misses; the first child's reply is kept.
#[tokio::test]
async fn after_a_hot_miss_the_next_child_is_asked_and_the_hot_miss_stays() {
    let hot = Fake::new("hot", |request| match request.operation {
        Operation::LeaseGet => Ok(Reply::Lease { token: LeaseToken::HOT_MISS, flags: 0, stale: None }),
        _ => Ok(Reply::Miss),
    });
    let empty = Fake::miss("empty");
    let route = MissFailoverRoute::new(leaves(&[&hot, &empty]), false);
    assert_eq!(ask(&route, &["lease-get k"]).await, ["Lease 1"]);
    assert_eq!(empty.asked(), ["get k"]);
}
