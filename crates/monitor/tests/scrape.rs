//! What a scrape of the metrics costs, and a save of the state. The allocator is the one that counts.

use lookaside_invalidator::{Commit, Commits, Position};
use lookaside_monitor::{
    observe::{Liveness, MonitorReport, render},
    sampling::{Look, Moment, Sampler, SamplerOptions, Seen, SeenItem},
};
use lookaside_test_support::{CountingAllocator, count_allocations};
use std::time::SystemTime;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn sampler(samples: usize) -> Sampler {
    let options = SamplerOptions { one_in: 1, ages_s: vec![1, 60], pending_max: 10_000 };
    let mut sampler = Sampler::new(options, [("one", "east"), ("two", "east")]);
    sampler.start_reading("log", &Position("0".into()));
    let keys = (0..samples).map(|n| format!("key:{n}").into_bytes()).collect();
    let commit = Commit { position: Position("1".into()), keys, committed_at: SystemTime::UNIX_EPOCH };
    let commits = Commits { commits: vec![commit], position: Position("1".into()) };
    sampler.add_commits(&commits, Moment { ms: 1 }, &|_, _| false);
    assert_eq!(sampler.clusters[0].pending(), samples);
    sampler
}

/// Each scrape copied all samples, in every cluster, into the form of the state file.
#[test]
fn a_scrape_costs_the_same_with_any_number_of_samples() {
    let cost = |samples: usize| {
        let sampler = sampler(samples);
        let liveness = Liveness { is_watching: true, saves_failed: 0 };
        count_allocations(|| {
            let text = render(&MonitorReport::of_sampler("east", 1, &sampler), liveness);
            assert!(
                text.contains(&format!("pending_samples{{cluster=\"two\",to_region=\"east\"}} {samples}\n")),
                "{text}"
            );
        })
    };
    let (few, many) = (cost(10), cost(10_000));
    assert!(many < few + 50, "{many} allocations with 10,000 samples, {few} with 10");
}

/// Each save copied and encoded all samples while they were locked, by the thread that asks: with many, no question was
/// asked for seconds.
#[test]
fn what_is_locked_for_a_save_costs_the_same_with_any_number_of_samples() {
    let cost = |samples: usize| {
        let mut sampler = sampler(samples);
        for cluster in &mut sampler.clusters {
            let batch = cluster.due(Moment { ms: 10 }, samples).expect("the first look is due");
            let seen = || Seen::Item(SeenItem { cas: 7, age: None });
            let look = || Look {
                from: "router:1".into(),
                sent_at: Moment { ms: 10 },
                received_at: Moment { ms: 11 },
                seen: seen(),
                servers: None,
            };
            let looks = batch.samples.iter().map(|_| vec![look()]).collect();
            cluster.record(batch, looks);
        }
        let mut copy = None;
        let allocations = count_allocations(|| copy = Some(sampler.clone()));
        assert_eq!(copy.map(|copy| copy.save()), Some(sampler.save()));
        allocations
    };
    let (few, many) = (cost(10), cost(10_000));
    assert!(many < few + 50, "{many} allocations with 10,000 samples, {few} with 10");
}
