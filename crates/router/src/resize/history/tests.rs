//! The record as text, and all orders in which routers can change it.

use super::*;

fn id(number: u128) -> ConfigId {
    ConfigId(number)
}

fn config(number: u128, is_readable: bool) -> RecordedConfig {
    RecordedConfig { id: id(number), is_readable, is_lost: false }
}

fn departed(servers: &[&str]) -> Departed {
    let mut departed = Departed::default();
    departed.add(servers.iter().map(|server| Address((*server).into())));
    departed
}

#[test]
fn a_record_is_read_as_it_is_written_and_another_one_is_an_error() {
    let mut history = History { configs: vec![config(2, false), config(1, true)], departed: departed(&["b:1", "a:1"]) };
    let of_earlier = history.to_json();
    assert_eq!(History::parse(&of_earlier).as_ref(), Ok(&history));
    assert!(!of_earlier.contains("departed_unread"), "{of_earlier}");
    history.departed.add_unread([Address("0:1".into())]);
    history.departed.add([Address("c:1".into())]);
    let text = history.to_json();
    assert_eq!(History::parse(&text), Ok(history));
    let many = (0..=HISTORY_CONFIGS_MAX as u128).map(|number| config(number, true)).collect();
    let many = History { configs: many, departed: Departed::default() }.to_json();
    for (bad, why) in [
        ("", "malformed"),
        ("{\"version\": 1}", "malformed"),
        (&*text.replace("\"version\":1", "\"version\":2"), "version 2; expected 1"),
        (&*text.replace(&id(1).to_string(), "x"), "\"x\" is not an identity"),
        (&*many, "9 configurations"),
        (&*" ".repeat(BYTES_MAX + 1), "the limit is"),
    ] {
        let refused = History::parse(bad).expect_err(why);
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn the_number_of_configurations_is_bounded() {
    let mut history = History::default();
    assert!((0..HISTORY_CONFIGS_MAX as u128).all(|number| history.set_readable(id(number))));
    assert!(!history.set_readable(id(100)) && history.set_readable(id(0)));
    assert_eq!(history.configs.len(), HISTORY_CONFIGS_MAX);
}

#[test]
fn a_change_has_the_texts_of_what_joins_and_leaves() {
    let before = History { configs: vec![config(1, false), config(2, true)], ..History::default() };
    let after = History { configs: vec![config(2, true), config(3, true)], ..History::default() };
    let change = change_of(7, &before, &after, |id| Some(id.to_string().into()));
    assert_eq!((change.expected, change.removed), (7, vec![id(1)]));
    assert_eq!(change.texts, [(id(3), id(3).to_string().into())]);
}

#[test]
fn a_router_that_starts_reads_the_newest_that_it_may() {
    let configs = vec![config(1, true), config(2, true), config(3, false)];
    let history = History { configs, departed: departed(&["a:1"]) };
    let reads = |newest| history.to_report(id(newest)).expect("one is readable").reads;
    assert_eq!((reads(1), reads(2), reads(3)), (vec![id(1), id(2)], vec![id(2), id(1)], vec![id(2), id(1)]));
    let report = history.to_report(id(3)).expect("one is readable");
    assert_eq!((report.covers.len(), report.claims, report.departed.len()), (3, [id(1), id(2)].into(), 1));
    assert_eq!(History::default().to_report(id(1)), None);
}

/// What a router decides by the record that it has seen.
#[derive(Clone, Copy, Debug)]
enum Decision {
    Read(u128),
    Release(u128),
    Remove(u128),
    Depart(&'static str),
}

impl Decision {
    fn apply(self, history: &mut History) {
        match self {
            Decision::Read(number) => assert!(history.set_readable(id(number))),
            Decision::Release(number) => history.set_unreadable(id(number)),
            Decision::Remove(number) => history.remove(id(number)),
            Decision::Depart(server) => history.departed.add([Address(server.into())]),
        }
    }
}

/// A router: what it still has to decide, and the record that it has seen, if it is about to replace it.
#[derive(Clone)]
struct Router {
    decisions: Vec<Decision>,
    seen: Option<(u64, History)>,
}

#[derive(Clone)]
struct Cluster {
    stored: (u64, History),
    routers: Vec<Router>,
    /// In the order in which they were stored.
    made: Vec<Decision>,
    compares: bool,
}

impl Cluster {
    /// Runs all orders of the routers' reads and writes, and `check`s each end.
    fn run_all(&self, check: &mut impl FnMut(&Cluster)) {
        let mut is_done = true;
        for at in 0..self.routers.len() {
            if let Some(next) = self.step(at) {
                is_done = false;
                next.run_all(check);
            }
        }
        if is_done {
            check(self);
        }
    }

    /// The next read or write of a router; `None` if it has nothing to do.
    fn step(&self, at: usize) -> Option<Cluster> {
        let mut next = self.clone();
        let router = &mut next.routers[at];
        let decision = *router.decisions.first()?;
        match router.seen.take() {
            None => router.seen = Some(next.stored.clone()),
            Some((revision, mut history)) => {
                decision.apply(&mut history);
                if revision == next.stored.0 || !self.compares {
                    router.decisions.remove(0);
                    next.stored = (next.stored.0 + 1, history);
                    next.made.push(decision);
                } else {
                    // The reply has the present record.
                    router.seen = Some(next.stored.clone());
                }
            }
        }
        assert!(next.stored.1.configs.iter().any(|config| config.is_readable), "a router can start");
        Some(next)
    }
}

fn cluster(decisions: &[&[Decision]], compares: bool) -> Cluster {
    let stored = (1, History { configs: vec![config(1, true)], ..History::default() });
    let router = |decisions: &&[Decision]| Router { decisions: decisions.to_vec(), seen: None };
    Cluster { stored, routers: decisions.iter().map(router).collect(), made: Vec::new(), compares }
}

/// The decisions of three routers while configuration 2 replaces 1, and one of them goes back.
const CHANGE: [&[Decision]; 3] = [
    &[Decision::Read(2), Decision::Release(1)],
    &[Decision::Depart("old:1"), Decision::Remove(1)],
    &[Decision::Read(1)],
];

#[test]
fn in_every_order_of_their_requests_routers_lose_no_decision() {
    let mut ends = 0;
    cluster(&CHANGE, true).run_all(&mut |end| {
        ends += 1;
        assert_eq!(end.made.len(), 5);
        // The end is what the decisions give one after the other.
        let mut expected = History { configs: vec![config(1, true)], ..History::default() };
        end.made.iter().for_each(|decision| decision.apply(&mut expected));
        assert_eq!(end.stored.1, expected, "{:?}", end.made);
        assert!(end.stored.1.is_readable(id(2)) && end.stored.1.departed == departed(&["old:1"]));
        // A router that goes back is not forgotten by those that had released it before.
        let at = |wanted: fn(&Decision) -> bool| end.made.iter().position(wanted);
        let (back, release) =
            (at(|made| matches!(made, Decision::Read(1))), at(|made| matches!(made, Decision::Release(1))));
        assert!(back < release || end.stored.1.is_readable(id(1)));
    });
    assert!(ends > 1_000, "{ends}");
}

#[test]
fn without_the_comparison_a_decision_is_lost() {
    let mut lost = 0;
    cluster(&[&[Decision::Read(2)], &[Decision::Depart("old:1")]], false).run_all(&mut |end| {
        lost += usize::from(!end.stored.1.is_readable(id(2)) || end.stored.1.departed == Departed::default());
    });
    assert!(lost > 0);
}
