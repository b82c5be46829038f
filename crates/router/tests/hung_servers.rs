//! What a page of keys costs while a server and its gutter hang: one server timeout and the time that failovers may
//! take, however many keys it has. The clock is paused.

use crate::fake_network::Health;
use crate::session_over_network::{Fixture, SERVER_TIMEOUT, SERVERS};
use lookaside_router::FAILOVER_TIMEOUT;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const EPSILON: Duration = Duration::from_millis(20);

/// The keys of one page, of which some are on each server.
fn page(keys: usize) -> Vec<String> {
    (0..keys).map(|number| format!("user:{number}")).collect()
}

async fn fetch(fixture: &mut Fixture, keys: &[String]) -> (String, Duration) {
    let started = Instant::now();
    let reply = fixture.command(&format!("get {}", keys.join(" "))).await;
    (reply, started.elapsed())
}

/// Once it cost two timeouts, and pages with several chunks cost that several times.
#[tokio::test(start_paused = true)]
async fn a_page_costs_one_timeout_while_a_server_and_the_gutter_hang() {
    for keys in [24, 400] {
        let mut fixture = Fixture::start().await;
        let keys = page(keys);
        for key in &keys {
            assert_eq!(fixture.command(&format!("set {key} 0 0 1\r\n1")).await, "STORED\r\n");
        }
        fixture.server(0).be(Health::Frozen);
        fixture.gutter().be(Health::Frozen);
        fixture.last().be(Health::Frozen);
        let hung = keys.iter().filter(|key| fixture.server(0).has(key)).count();
        assert!(hung > 2 && hung < keys.len() - 2);
        let (reply, waited) = fetch(&mut fixture, &keys).await;
        assert_eq!(reply.matches("VALUE ").count(), keys.len() - hung, "the healthy servers' keys are found");
        assert!(reply.ends_with("\r\n") && reply.contains("SERVER_ERROR"), "{reply}");
        // One chunk, or a few.
        let chunks = if keys.len() > 32 { 3 } else { 1 };
        let most = SERVER_TIMEOUT + FAILOVER_TIMEOUT * chunks + EPSILON;
        assert!(waited <= most, "{} keys: {waited:?}", keys.len());
    }
}

#[tokio::test(start_paused = true)]
async fn the_gutter_serves_while_a_server_hangs() {
    let mut fixture = Fixture::start().await;
    let keys = page(24);
    for key in &keys {
        (0..SERVERS).for_each(|at| fixture.server(at).put(key, "server"));
        fixture.gutter().put(key, "gutter");
    }
    fixture.server(0).be(Health::Frozen);
    let (reply, waited) = fetch(&mut fixture, &keys).await;
    assert_eq!(reply.matches("VALUE ").count(), keys.len(), "{reply}");
    assert!(reply.contains("gutter") && reply.contains("server"));
    assert!(waited < SERVER_TIMEOUT + EPSILON, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_second_gutter_is_asked_if_the_first_fails_at_once() {
    let mut fixture = Fixture::start().await;
    let keys = page(24);
    for key in &keys {
        (0..SERVERS).for_each(|at| fixture.server(at).put(key, "server"));
        fixture.last().put(key, "last");
    }
    fixture.server(0).be(Health::Frozen);
    fixture.gutter().be(Health::Gone);
    let (reply, waited) = fetch(&mut fixture, &keys).await;
    assert_eq!(reply.matches("VALUE ").count(), keys.len(), "{reply}");
    assert!(waited < SERVER_TIMEOUT + EPSILON, "{waited:?}");
}

/// A delete that is given up early may not have been applied: it gets its server's whole timeout.
#[tokio::test(start_paused = true)]
async fn deletes_are_not_limited() {
    let mut fixture = Fixture::start().await;
    let gutter = fixture.gutter();
    let keys = page(24);
    for key in &keys {
        fixture.command(&format!("set {key} 0 0 1\r\n1")).await;
    }
    let key = keys.iter().find(|key| fixture.server(0).has(key)).expect("one is there");
    fixture.server(0).be(Health::Frozen);
    gutter.be(Health::Frozen);
    let wake = async {
        sleep(SERVER_TIMEOUT + FAILOVER_TIMEOUT * 2).await;
        gutter.be(Health::Well);
    };
    let delete = format!("delete {key}");
    let last = fixture.last();
    let (reply, ()) = tokio::join!(fixture.command(&delete), wake);
    assert!(reply.starts_with("SERVER_ERROR"), "{reply}");
    assert_eq!(last.asked("delete").len(), 1, "every child may hold the key");
    assert_eq!(gutter.asked("delete").len(), 1);
}
