//! Pools with spares, and pools with a TKO limit: which servers are asked, and which configuration errors are reported.

use crate::fakes::{self, Fake, request};
use lookaside_protocol::{ErrorReply, Reply};
use lookaside_routing::{
    Address, Configuration, Context, Defaults, Destination, DestinationSettings, Destinations, Failure, Outcome, Pool,
    Route, Serving, Slot, SpareRoute, TkoLimit,
};
use std::{collections::BTreeMap, sync::Arc};

struct PoolPlace {
    servers: [Arc<Fake>; 3],
    slot: Arc<Slot>,
    route: SpareRoute,
}

/// A server and two spares.
fn place(servers: [Arc<Fake>; 3]) -> PoolPlace {
    let slot = Arc::new(Slot::default());
    let [server, spares @ ..] = servers.each_ref().map(Fake::leaf);
    PoolPlace { servers, slot: slot.clone(), route: SpareRoute::new(server, spares.to_vec(), slot) }
}

fn healthy_place() -> PoolPlace {
    place(["own", "x", "y"].map(Fake::hit))
}

impl PoolPlace {
    async fn ask(&self, batch: &[&str]) -> Vec<Outcome> {
        let batch = batch.iter().map(|text| request(text)).collect();
        self.route.route(batch, &Context::default()).await
    }

    fn asked(&self) -> [Vec<String>; 3] {
        self.servers.each_ref().map(|server| server.asked())
    }
}

#[tokio::test]
async fn only_the_serving_server_is_asked_and_deletes_go_to_all() {
    for (serving, child) in [(Serving::Own, 0), (Serving::Spare(0), 1), (Serving::Spare(1), 2)] {
        let place = healthy_place();
        place.slot.serve(serving);
        for verb in fakes::VERBS.iter().filter(|verb| **verb != "delete") {
            place.ask(&[&format!("{verb} k")]).await.remove(0).expect("all servers are healthy");
            let asked = place.asked();
            let counts: Vec<usize> = asked.iter().map(Vec::len).collect();
            assert_eq!((counts[child], counts.iter().sum::<usize>()), (1, 1), "{verb}: {asked:?}");
        }
        assert_eq!(place.ask(&["delete k"]).await, [Ok(Reply::Deleted)]);
        assert_eq!(place.asked(), [(); 3].map(|()| vec!["delete k".to_owned()]));
    }
}

#[tokio::test]
async fn a_mixed_batch_keeps_its_order_at_the_serving_server() {
    let place = healthy_place();
    place.slot.serve(Serving::Spare(1));
    let outcomes = place.ask(&["get a", "delete a", "set a", "delete b", "get b"]).await;
    assert_eq!(outcomes[1..4], [Ok(Reply::Deleted), Ok(Reply::Stored), Ok(Reply::Deleted)]);
    let [own, x, y] = place.asked();
    assert_eq!(y, ["get a", "delete a", "set a 0", "delete b", "get b"]);
    assert_eq!((&own, &x), (&vec!["delete a".to_owned(), "delete b".to_owned()], &own));
}

#[tokio::test]
async fn a_delete_is_done_when_all_have_done_it() {
    let failed = || Fake::failing("own", Failure::TimedOut);
    let spooled = || Fake::failing("own", Failure::Spooled);
    let refusing = || Fake::new("x", |_| Ok(Reply::Error(ErrorReply::Server("no".into()))));
    let (hit, miss) = (|| Fake::hit("x"), || Fake::miss("y"));
    for (servers, expected) in [
        ([miss(), miss(), miss()], Ok(Reply::NotFound)),
        ([miss(), miss(), hit()], Ok(Reply::Deleted)),
        ([failed(), hit(), miss()], Err(Failure::TimedOut)),
        ([hit(), failed(), hit()], Err(Failure::TimedOut)),
        // A failover route above must know this, as it may have other children to delete at.
        ([spooled(), hit(), miss()], Err(Failure::Spooled)),
        ([miss(), hit(), spooled()], Err(Failure::Spooled)),
        ([spooled(), failed(), hit()], Err(Failure::TimedOut)),
        ([failed(), spooled(), hit()], Err(Failure::TimedOut)),
        ([spooled(), refusing(), hit()], Ok(Reply::Error(ErrorReply::Server("no".into())))),
    ] {
        let place = place(servers);
        for serving in [Serving::Own, Serving::Spare(0), Serving::Spare(1)] {
            place.slot.serve(serving);
            assert_eq!(place.ask(&["delete k"]).await.remove(0), expected, "{serving:?}");
        }
    }
}

/// Makes fakes and slots by name.
#[derive(Default)]
struct Leaves {
    fakes: BTreeMap<Address, Arc<Fake>>,
    slots: BTreeMap<usize, Arc<Slot>>,
}

impl Destinations for Leaves {
    fn destination(&mut self, address: &Address, _: &DestinationSettings) -> Arc<dyn Destination> {
        self.fakes.entry(address.clone()).or_insert_with(|| Fake::hit(&address.0)).clone()
    }

    fn slot(&mut self, _: &Pool, at: usize) -> Arc<Slot> {
        self.slots.entry(at).or_default().clone()
    }
}

fn pool_of(text: &str) -> Result<Configuration, String> {
    let text = format!("{{ \"pools\": {{ \"A\": {text} }}, \"route\": \"PoolRoute|A\" }}");
    Configuration::parse(&text, &Defaults::default()).map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_spare_takes_the_place_of_a_server_and_no_other_key_moves() {
    let pool = r#"{ "servers": ["a:1", "b:1", "c:1"], "spares": ["x:1"], "spare_after_ms": 500 }"#;
    let mut leaves = Leaves::default();
    let tree = pool_of(pool).expect("it is good").build(&mut leaves);
    let mut asked_of = BTreeMap::new();
    for key in 0..200 {
        tree.route(vec![request(&format!("get {key}"))], &Context::default()).await;
    }
    for (address, fake) in &leaves.fakes {
        asked_of.insert(address.clone(), fake.asked());
    }
    assert!(asked_of.values().filter(|keys| keys.len() > 40).count() == 3, "{asked_of:?}");
    leaves.slots[&1].serve(Serving::Spare(0));
    for key in 0..200 {
        tree.route(vec![request(&format!("get {key}"))], &Context::default()).await;
    }
    let asked_now = |name: &str| leaves.fakes[&Address(name.into())].asked();
    let asked_before = |name: &str| asked_of[&Address(name.into())].clone();
    assert_eq!([asked_now("a:1"), asked_now("c:1")], [asked_before("a:1"), asked_before("c:1")]);
    assert_eq!((asked_now("x:1"), asked_now("b:1")), (asked_before("b:1"), Vec::new()));
}

#[test]
fn errors_in_spares_and_tko_limits_are_reported() {
    for (pool, expected) in [
        (r#"{ "servers": ["a:1"], "spares": "x:1" }"#, "spares: expected a list of"),
        (r#"{ "servers": ["a:1"], "spares": ["x"] }"#, "spares[0]: \"x\" is not a server"),
        (r#"{ "servers": ["a:1"], "spares": ["x:1", "a:1"] }"#, "spares[1]: a:1 is one of the pool's servers"),
        (r#"{ "servers": ["a:1"], "spares": ["x:1", "x:1"] }"#, "spares[1]: x:1 is given twice"),
        (r#"{ "servers": ["a:1"], "spare_after_ms": 5 }"#, "spare_after_ms: there are no \"spares\""),
        (r#"{ "servers": ["a:1"], "spares": [], "spare_after_ms": 5 }"#, "spares: no spares"),
        (r#"{ "servers": ["a:1"], "spares": ["x:1"], "spare_after_ms": 0 }"#, "milliseconds from 1 to 86400000"),
        (r#"{ "servers": ["a:1"], "tko_tracker": 3 }"#, "tko_tracker: expected an object with"),
        (r#"{ "servers": ["a:1"], "tko_tracker": {} }"#, "tko_tracker: expected \"num_tko_threshold_upper\""),
        (r#"{ "servers": ["a:1"], "tko_tracker": { "num_tko_threshold_upper": 1 } }"#, "expected both"),
        (
            r#"{ "servers": ["a:1", "b:1"], "tko_tracker": { "num_tko_threshold_upper": 3, "num_tko_threshold_lower": 1 } }"#,
            "num_tko_threshold_upper: expected a number of servers from 1 to 2, found",
        ),
        (
            r#"{ "servers": ["a:1", "b:1"], "tko_tracker": { "num_tko_threshold_upper": 1, "num_tko_threshold_lower": 1 } }"#,
            "expected the lower to be less",
        ),
    ] {
        let error = pool_of(pool).expect_err(pool);
        assert!(error.contains("line 1") && error.contains(expected), "{error}, not {expected}");
    }
    let many: Vec<String> = (0..17).map(|spare| format!("\"x:{}\"", spare + 1)).collect();
    let error =
        pool_of(&format!("{{ \"servers\": [\"a:1\"], \"spares\": [{}] }}", many.join(","))).expect_err("too many");
    assert!(error.contains("17 spares: expected at most 16"), "{error}");
}

/// It would be flushed while it serves.
#[test]
fn a_spare_cannot_be_a_server_of_another_pool() {
    let error = |text: &str| Configuration::parse(text, &Defaults::default()).expect_err(text).to_string();
    let a = r#""A": { "servers": ["a:1"], "spares": ["x:1"] }"#;
    let found = error(&format!(r#"{{ "pools": {{ {a}, "B": {{ "servers": ["x:1"] }} }}, "route": "PoolRoute|A" }}"#));
    assert!(found.contains("the spare x:1 is a server of pool \"B\""), "{found}");
    let found = error(&format!(r#"{{ "pools": {{ {a}, "0": {{ "servers": ["x:1"] }} }}, "route": "PoolRoute|A" }}"#));
    assert!(found.contains("the server x:1 is a spare of pool \"A\""), "{found}");
    let inline = r#"{ "type": "PoolRoute", "pool": { "name": "I", "servers": ["x:1"] } }"#;
    let found = error(&format!(r#"{{ "pools": {{ {a} }}, "route": {inline} }}"#));
    assert!(found.contains("the server x:1 is a spare of pool \"A\""), "{found}");
    let shared = format!(
        r#"{{ "pools": {{ {a}, "B": {{ "servers": ["b:1"], "spares": ["x:1"] }} }}, "route": "PoolRoute|A" }}"#
    );
    assert!(Configuration::parse(&shared, &Defaults::default()).is_ok(), "two pools may share a spare");
}

/// Records the pools that are used.
#[derive(Default)]
struct PoolRecorder(Leaves, Vec<Pool>);

impl Destinations for PoolRecorder {
    fn destination(&mut self, address: &Address, settings: &DestinationSettings) -> Arc<dyn Destination> {
        self.0.destination(address, settings)
    }

    fn use_pool(&mut self, pool: &Pool) {
        self.1.push(pool.clone());
    }
}

#[test]
fn thresholds_are_numbers_or_percent() {
    let servers = "\"servers\": [\"a:1\", \"b:1\", \"c:1\", \"d:1\", \"e:1\"]";
    let limit_of = |unit: &str, upper: u8, lower: u8| {
        let tracker = format!("\"{unit}_tko_threshold_upper\": {upper}, \"{unit}_tko_threshold_lower\": {lower}");
        let configuration = pool_of(&format!("{{ {servers}, \"tko_tracker\": {{ {tracker} }} }}")).expect("it is good");
        let mut recorder = PoolRecorder::default();
        configuration.build(&mut recorder);
        recorder.1.remove(0).tko_limit
    };
    assert_eq!(limit_of("num", 3, 1), Some(TkoLimit { enter: 3, exit: 1 }));
    assert_eq!(limit_of("percent", 50, 30), Some(TkoLimit { enter: 3, exit: 1 }));
    assert_eq!(limit_of("percent", 1, 0), Some(TkoLimit { enter: 1, exit: 0 }));
}
