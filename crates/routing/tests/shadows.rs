//! Shadows. Which servers are asked, and what is returned.

use crate::environment::{FakeEnvironment, HeldRoute};
use crate::fakes::{Fake, VERBS, ask};
use futures_util::FutureExt;
use lookaside_routing::{Failure, KeyFraction, ShadowRoute};

const TIMEOUT: Failure = Failure::TimedOut;

#[tokio::test]
async fn shadows_get_copies_and_change_nothing() {
    for shadow in [Fake::hit("shadow"), Fake::miss("shadow"), Fake::failing("shadow", TIMEOUT)] {
        let (env, normal) = (FakeEnvironment::new(), Fake::hit("normal"));
        let shadows = vec![(shadow.leaf(), KeyFraction::ALL)];
        let route = ShadowRoute::new(normal.leaf(), shadows, env.environment(9).background);
        for verb in VERBS {
            let alone = ask(&*normal.leaf(), &[&format!("{verb} k")]).await;
            assert_eq!(ask(&route, &[&format!("{verb} k")]).await, alone);
            assert!(shadow.asked().is_empty(), "{verb}: only after the reply");
            env.run_background().await;
            let copy = match verb {
                "lease-get" => "get k".to_owned(),
                "lease-set" | "cas" => "set k 0".to_owned(),
                verb => format!("{verb} k"),
            };
            assert!(shadow.asked().concat().starts_with(&copy), "{verb}");
        }
    }
}

#[tokio::test]
async fn a_refused_fill_has_no_shadow_nor_has_a_request_without_a_permit() {
    let (env, normal, shadow) = (FakeEnvironment::new(), Fake::miss("normal"), Fake::hit("shadow"));
    let background = env.environment(1).background;
    let route = ShadowRoute::new(normal.leaf(), vec![(shadow.leaf(), KeyFraction::ALL)], background.clone());
    assert_eq!(ask(&route, &["lease-set k", "cas k"]).await, ["NotStored", "NotStored"]);
    assert_eq!(env.run_background().await, 0);
    ask(&route, &["get a"]).await;
    ask(&route, &["get b"]).await;
    assert_eq!(background.dropped(), 1);
    env.run_background().await;
    assert_eq!(shadow.asked(), ["get a"]);
    // The copy of a dropped caller is still sent.
    let route = ShadowRoute::new(HeldRoute::new(normal.leaf()), vec![(shadow.leaf(), KeyFraction::ALL)], background);
    assert!(ask(&route, &["delete k"]).now_or_never().is_none());
    env.run_background().await;
    assert_eq!(shadow.asked(), ["delete k"]);
}

#[tokio::test]
async fn always_the_same_fraction_of_keys_is_shadowed() {
    let (env, normal, shadow) = (FakeEnvironment::new(), Fake::hit("normal"), Fake::hit("shadow"));
    let quarter = KeyFraction { start: 250_000, end: 500_000 };
    let route = ShadowRoute::new(normal.leaf(), vec![(shadow.leaf(), quarter)], env.environment(9).background);
    let requests: Vec<String> = (0..2_000).map(|n| format!("get key:{n}")).collect();
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    let mut copies = Vec::new();
    for _ in 0..2 {
        ask(&route, &requests).await;
        env.run_background().await;
        copies.push(shadow.asked());
    }
    assert!((400..600).contains(&copies[0].len()), "{} of 2000", copies[0].len());
    assert_eq!(copies[0], copies[1]);
}
