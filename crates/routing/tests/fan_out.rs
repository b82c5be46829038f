//! Routes that ask several children, or one of several: who is asked, who is not, what comes back, and what goes on
//! when the caller is gone.

mod fakes;
#[path = "fakes/world.rs"]
mod world;

use fakes::{Fake, VERBS, ask, server_error};
use futures_util::FutureExt;
use lookaside_protocol::{LeaseToken, Operation, Reply};
use lookaside_routing::{
    AllAsyncRoute, AllFastestRoute, AllInitialRoute, AllMajorityRoute, Background, Context, DevNullRoute,
    FailoverErrors, Failure, HostIdRoute, LatestRoute, MissFailoverRoute, OriginalClientHashRoute, RandomRoute, Route,
};
use std::{net::IpAddr, sync::Arc};
use world::{Held, World};

const TIMEOUT: Failure = Failure::TimedOut;

fn leaves(fakes: &[&Arc<Fake>]) -> Vec<Arc<dyn Route>> {
    fakes.iter().map(|fake| fake.leaf()).collect()
}

fn room(world: &Arc<World>) -> Background {
    world.environment(10).background
}

#[tokio::test]
async fn all_async_tells_everybody_and_hears_nobody() {
    let (world, a, b) = (World::new(), Fake::hit("a"), Fake::failing("b", TIMEOUT));
    let route = AllAsyncRoute::new(leaves(&[&a, &b]), room(&world));
    for verb in VERBS {
        let request = format!("{verb} k");
        let expected = match verb {
            "get" | "gets" | "gat" | "gats" | "lease-get" => "Miss",
            "delete" | "incr" | "decr" | "touch" => "NotFound",
            _ => "NotStored",
        };
        assert_eq!(ask(&route, &[&request]).await, [expected], "{verb}");
        assert!(a.asked().is_empty(), "{verb}: nobody is asked before the answer");
        assert_eq!(world.run_background().await, 1);
        assert_eq!((a.asked().len(), b.asked().len()), (1, 1), "{verb}");
    }
}

#[tokio::test]
async fn all_initial_answers_with_the_first_child_for_every_verb() {
    for (first, expected) in
        [(Fake::hit("a"), "Deleted"), (Fake::miss("a"), "NotFound"), (Fake::failing("a", TIMEOUT), "server timed out")]
    {
        let (world, b) = (World::new(), Fake::hit("b"));
        let route = AllInitialRoute::new(leaves(&[&first, &b]), room(&world));
        assert_eq!(ask(&route, &["delete k"]).await, [expected]);
        assert!(b.asked().is_empty());
        for verb in VERBS {
            ask(&route, &[&format!("{verb} k")]).await;
        }
        world.run_background().await;
        assert_eq!(first.asked().len(), 1 + VERBS.len());
        assert_eq!(b.asked().len(), 1 + VERBS.len());
    }
}

/// A client that hangs up must not keep a delete from the other copies.
#[tokio::test]
async fn the_rest_goes_on_when_the_caller_is_gone() {
    for n in 0..3 {
        let (world, a, b) = (World::new(), Fake::hit("a"), Fake::hit("b"));
        let (first, second) = (Held::new(a.leaf()), Held::new(b.leaf()));
        let children = vec![first.clone() as Arc<dyn Route>, second.clone()];
        let route: Box<dyn Route> = match n {
            0 => Box::new(AllInitialRoute::new(children, room(&world))),
            1 => Box::new(AllFastestRoute::new(children, room(&world))),
            _ => Box::new(AllMajorityRoute::new(children, room(&world))),
        };
        assert!(ask(&*route, &["delete k"]).now_or_never().is_none(), "nobody has answered");
        first.let_one();
        second.let_one();
        assert_eq!(world.run_background().await, 1, "route {n}");
        assert_eq!(b.asked(), ["delete k"], "route {n}");
        // AllInitialRoute's first child is the caller's own affair, as with any other route.
        assert_eq!(a.asked().len(), usize::from(n > 0), "route {n}");
    }
}

#[tokio::test]
async fn without_room_the_caller_waits_for_all() {
    for n in 0..4 {
        let (a, b) = (Fake::hit("a"), Fake::hit("b"));
        let held = Held::new(b.leaf());
        let (children, none) = (vec![a.leaf(), held.clone() as Arc<dyn Route>], Background::none());
        let route: Box<dyn Route> = match n {
            0 => Box::new(AllAsyncRoute::new(children, none)),
            1 => Box::new(AllInitialRoute::new(children, none)),
            2 => Box::new(AllFastestRoute::new(children, none)),
            _ => Box::new(AllMajorityRoute::new(children, none)),
        };
        let mut answer = Box::pin(ask(&*route, &["set k"]));
        assert!(answer.as_mut().now_or_never().is_none(), "route {n} waits");
        held.let_one();
        let expected = if n == 0 { "NotStored" } else { "Stored" };
        assert_eq!(answer.await, [expected], "route {n}");
        assert_eq!((a.asked().len(), b.asked().len()), (1, 1));
    }
}

#[tokio::test]
async fn a_place_in_the_background_is_given_back() {
    let (world, a, b) = (World::new(), Fake::hit("a"), Fake::hit("b"));
    let background = world.environment(1).background;
    let route = AllInitialRoute::new(leaves(&[&a, &b]), background.clone());
    ask(&route, &["get k"]).await;
    assert_eq!(background.running(), 1);
    ask(&route, &["get k"]).await;
    assert_eq!((background.running(), b.asked().len()), (1, 1), "no place: awaited at once");
    world.run_background().await;
    assert_eq!((background.running(), b.asked().len()), (0, 1));
}

#[tokio::test]
async fn the_fastest_that_is_no_error_wins() {
    let world = World::new();
    let (down, quick, slow) = (Fake::failing("down", TIMEOUT), Fake::hit("quick"), Fake::hit("slow"));
    let held = Held::new(slow.leaf());
    let route = AllFastestRoute::new(vec![down.leaf(), held.clone(), quick.leaf()], room(&world));
    for verb in VERBS {
        let said = ask(&route, &[&format!("{verb} k")]).now_or_never().expect("nobody waits for the slow one");
        assert!(!said[0].contains("timed out"), "{verb}: {said:?}");
        held.let_one();
        world.run_background().await;
        assert_eq!((down.asked().len(), quick.asked().len(), slow.asked().len()), (1, 1, 1), "{verb}");
    }
    let miss = Fake::miss("miss");
    let route = AllFastestRoute::new(leaves(&[&miss, &quick]), room(&world));
    assert_eq!(ask(&route, &["get k"]).await, ["Miss"], "a miss is no error");
    let broken = Fake::new("broken", |_| server_error("busy"));
    let route = AllFastestRoute::new(leaves(&[&broken, &down]), room(&world));
    assert_eq!(ask(&route, &["get k"]).await, ["server timed out"], "all failed: the last error");
}

#[tokio::test]
async fn a_majority_decides_and_without_one_the_worst() {
    let world = World::new();
    let (hit, miss, down) = (Fake::hit("hit"), Fake::miss("miss"), Fake::failing("down", TIMEOUT));
    let vote = async |children: &[&Arc<Fake>], request: &str| {
        let route = AllMajorityRoute::new(leaves(children), room(&world));
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
        world.run_background().await;
        assert_eq!(hit.asked().len(), 3, "{verb}: everybody is asked");
    }
    let held = Held::new(hit.leaf());
    let route = AllMajorityRoute::new(vec![hit.leaf(), held, hit.leaf()], room(&world));
    assert!(ask(&route, &["get k"]).now_or_never().is_some(), "two of three suffice");
}

#[tokio::test]
async fn a_miss_is_looked_for_in_the_next_child() {
    let (empty, down, full, last) =
        (Fake::miss("empty"), Fake::failing("down", TIMEOUT), Fake::hit("full"), Fake::hit("last"));
    let route = MissFailoverRoute::new(leaves(&[&empty, &down, &full, &last]), false);
    for verb in VERBS {
        let said = ask(&route, &[&format!("{verb} k")]).await.remove(0);
        let asked = [&empty, &down, &full, &last].map(|fake| fake.asked());
        let counts = asked.each_ref().map(Vec::len);
        match verb {
            "get" | "gets" | "gat" | "gats" => assert_eq!((&*said, counts), ("full", [1, 1, 1, 0]), "{verb}"),
            "lease-get" => {
                assert_eq!((&*said, counts), ("full", [1, 1, 1, 0]));
                assert_eq!(asked[2], ["get k"], "no second lease");
            }
            "delete" => assert_eq!((&*said, counts), ("server timed out", [1, 1, 1, 1])),
            _ => assert_eq!(counts, [1, 0, 0, 0], "{verb}"),
        }
    }
    let route = MissFailoverRoute::new(leaves(&[&down, &empty]), false);
    for verb in VERBS {
        ask(&route, &[&format!("{verb} k")]).await;
        assert_eq!(empty.asked().len(), 1, "{verb} goes on after a timeout");
    }
}

#[tokio::test]
async fn when_nobody_has_it_the_last_or_the_best_is_the_answer() {
    let (empty, down) = (Fake::miss("empty"), Fake::failing("down", TIMEOUT));
    let last = MissFailoverRoute::new(leaves(&[&empty, &down]), false);
    assert_eq!(ask(&last, &["get k", "lease-get k"]).await, ["server timed out", "Lease 7"]);
    let best = MissFailoverRoute::new(leaves(&[&empty, &down]), true);
    assert_eq!(ask(&best, &["get k", "lease-get k"]).await, ["Miss", "Lease 7"]);
    let swapped = MissFailoverRoute::new(leaves(&[&down, &empty]), false);
    assert_eq!(ask(&swapped, &["get k", "lease-get k"]).await, ["Miss", "Lease 7"]);
}

#[tokio::test]
async fn chance_is_fair_seeded_and_keeps_a_batch_together() {
    let fakes: Vec<Arc<Fake>> = (0..4).map(|n| Fake::hit(&format!("s{n}"))).collect();
    let draws = async |seed| {
        let route = RandomRoute::new(fakes.iter().map(|fake| fake.leaf()).collect(), seed);
        let mut drawn = Vec::new();
        for verb in VERBS.iter().cycle().take(1_600) {
            ask(&route, &[&format!("{verb} a"), "get b"]).await;
            let asked: Vec<usize> = fakes.iter().map(|fake| fake.asked_batches().concat().len()).collect();
            assert_eq!(asked.iter().sum::<usize>(), 2);
            drawn.push(asked.iter().position(|&count| count == 2).expect("the batch stays whole"));
        }
        drawn
    };
    let drawn = draws(1).await;
    for n in 0..4 {
        let count = drawn.iter().filter(|&&at| at == n).count();
        assert!((320..480).contains(&count), "child {n} was drawn {count} times of 1600");
    }
    assert_eq!(draws(1).await, drawn);
    assert_ne!(draws(2).await, drawn);
}

#[tokio::test]
async fn a_host_keeps_to_its_child_and_hosts_share_the_children() {
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
async fn a_client_keeps_to_its_replica() {
    let fakes: Vec<Arc<Fake>> = (0..3).map(|n| Fake::failing(&format!("s{n}"), TIMEOUT)).collect();
    let leaves = || fakes.iter().map(|fake| fake.leaf()).collect::<Vec<_>>();
    let (route, turned) =
        (OriginalClientHashRoute::new(leaves(), "", 0), OriginalClientHashRoute::new(leaves(), "", 1));
    let chosen = async |route: &OriginalClientHashRoute, client: Option<IpAddr>| {
        for verb in VERBS {
            route.route(vec![fakes::request(&format!("{verb} k"))], &Context { client }).await;
        }
        let asked: Vec<usize> = fakes.iter().map(|fake| fake.asked().len()).collect();
        asked.iter().position(|&count| count == VERBS.len()).expect("one replica for every verb")
    };
    let mut counts = [0; 3];
    for n in 0..=255 {
        let client: IpAddr = format!("10.0.0.{n}").parse().unwrap();
        let at = chosen(&route, Some(client)).await;
        counts[at] += 1;
        assert_eq!(chosen(&turned, Some(client)).await, (at + 1) % 3);
        let mapped: IpAddr = format!("::ffff:10.0.0.{n}").parse().unwrap();
        assert_eq!(chosen(&route, Some(mapped)).await, at, "the same client over IPv6");
    }
    assert!(counts.iter().all(|count| (50..120).contains(count)), "{counts:?}");
    assert_eq!((chosen(&route, None).await, chosen(&turned, None).await), (0, 1));
}

#[tokio::test]
async fn latest_fails_over_among_a_few_in_the_hosts_own_order() {
    let fakes: Vec<Arc<Fake>> = (0..8).map(|n| Fake::failing(&format!("s{n}"), TIMEOUT)).collect();
    let mut firsts = std::collections::BTreeSet::new();
    for host in 0..40 {
        let children = fakes.iter().map(|fake| fake.leaf()).collect();
        let route = LatestRoute::new(children, 3, host, "", FailoverErrors::default());
        for verb in VERBS {
            assert_eq!(ask(&route, &[&format!("{verb} k")]).await, ["server timed out"]);
            let asked: Vec<usize> = (0..8).filter(|&n| fakes[n].asked().len() == 1).collect();
            assert_eq!(asked.len(), 3, "{verb}");
            firsts.insert(asked);
        }
    }
    assert!(firsts.len() > 10, "hosts differ: {firsts:?}");
    let (miss, hit) = (Fake::miss("miss"), Fake::hit("hit"));
    let route = LatestRoute::new(leaves(&[&miss, &miss]), 2, 0, "", FailoverErrors::default());
    ask(&route, &["get k"]).await;
    assert_eq!((miss.asked().len(), hit.asked().len()), (1, 0), "a miss does not fail over");
}

#[tokio::test]
async fn dev_null_swallows_and_counts() {
    let route = DevNullRoute::default();
    assert_eq!(ask(&route, &["get k", "set k", "delete k"]).await, ["Miss", "NotStored", "NotFound"]);
    assert_eq!(route.dropped(), 3);
}

/// A hot miss and a lease are both misses, and the lease is the first child's.
#[tokio::test]
async fn a_hot_miss_is_looked_for_too_and_stays_one() {
    let hot = Fake::new("hot", |request| match request.operation {
        Operation::LeaseGet => Ok(Reply::Lease { token: LeaseToken::HOT_MISS, flags: 0, stale: None }),
        _ => Ok(Reply::Miss),
    });
    let empty = Fake::miss("empty");
    let route = MissFailoverRoute::new(leaves(&[&hot, &empty]), false);
    assert_eq!(ask(&route, &["lease-get k"]).await, ["Lease 1"]);
    assert_eq!(empty.asked(), ["get k"]);
}
