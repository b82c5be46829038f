//! All interleavings of writers, readers and replication, with the state machines of production and a small model of
//! the rest: one key, two databases, a cluster with leases, a regional pool.
//!
//! A user writes, and then reads. A read is wrong if it is older than the user's own write. [`explore`] goes through
//! every reachable state once. Deletes of the invalidator come in any order, each once, or once more if
//! [`Faults::repeats_deletes`]: at least once is what an invalidator promises.

mod exploration;
mod world;

use super::{
    load::ReadFrom,
    marking::Marking,
    names::{TOKENS_MAX, Token},
    settings::MarkerForm,
};
use exploration::{Explored, explore};
use world::{Faults, NO_FAULTS, Order, Running, User, UserStep, World, names};

/// A user that writes and then reads. It checks the tokens of other writes from the first on.
fn writer(form: MarkerForm, token: u64) -> User {
    writer_with_lists_of(TOKENS_MAX, form, token)
}

/// The same; a list is full with `tokens_max` tokens.
fn writer_with_lists_of(tokens_max: usize, form: MarkerForm, token: u64) -> User {
    let marking = Marking::new(names(form), Token(token), 60).with_tokens(1, tokens_max);
    User { step: UserStep::Mark(Running::new(marking)), written: 0, reads: true, order: Order::LeaseFirst }
}

fn reader(order: Order) -> User {
    User { step: UserStep::LeaseGet(None), written: 0, reads: true, order }
}

fn assert_never_stale(world: World, states_min: usize) {
    let Explored { states, violation } = explore(world);
    assert_eq!(violation, None);
    assert!(states >= states_min, "{states} states are too few: something cannot happen any more");
}

fn assert_stale_after(world: World, step: &str) {
    let violation = explore(world).violation.expect("the model sees this race");
    assert!(violation.iter().any(|label| label.contains(step)), "{violation:#?}");
}

#[test]
fn two_writers_read_their_own_writes() {
    for is_last_first in [false, true] {
        let faults = Faults { repeats_deletes: !is_last_first, is_last_first, ..NO_FAULTS };
        let writers = [1, 2].map(|token| writer(MarkerForm::PerWrite, token));
        assert_never_stale(World::new(MarkerForm::PerWrite, faults, writers.into()), 10_000);
    }
}

#[test]
fn a_writer_reads_its_own_write_among_readers() {
    let users = vec![writer(MarkerForm::PerWrite, 1), reader(Order::LeaseFirst), reader(Order::LeaseFirst)];
    assert_never_stale(World::new(MarkerForm::PerWrite, NO_FAULTS, users), 1_000);
}

#[test]
fn a_writer_reads_its_own_write_beside_another_writer_and_a_reader() {
    let another = User { reads: false, ..writer(MarkerForm::PerWrite, 2) };
    let users = vec![writer(MarkerForm::PerWrite, 1), another, reader(Order::LeaseFirst)];
    assert_never_stale(World::new(MarkerForm::PerWrite, NO_FAULTS, users), 10_000);
}

/// A list that is full is replaced, and later ones forget that it was: when the marker of every token has expired.
#[test]
fn full_lists_make_no_read_stale() {
    let writers = [1, 2].map(|token| writer_with_lists_of(1, MarkerForm::PerWrite, token));
    assert_never_stale(World::new(MarkerForm::PerWrite, NO_FAULTS, writers.into()), 1_000);
}

#[test]
fn a_pool_that_fails_makes_no_read_stale() {
    let faults = Faults { pool_fails: true, ..NO_FAULTS };
    let users = || vec![writer(MarkerForm::PerWrite, 1), reader(Order::LeaseFirst)];
    assert_never_stale(World::new(MarkerForm::PerWrite, faults, users()), 500);
    let to_replica = Faults { when_unknown: ReadFrom::Replica, ..faults };
    assert_stale_after(World::new(MarkerForm::PerWrite, to_replica, users()), "of b\"marker:k");
}

/// The race that §5 of the paper accepts.
#[test]
fn with_one_marker_for_each_key_the_replication_of_one_write_uncovers_another() {
    let writers = [1, 2].map(|token| writer(MarkerForm::PerKey, token));
    let world = World::new(MarkerForm::PerKey, NO_FAULTS, writers.into());
    assert_stale_after(world, "the invalidator deletes b\"marker:k\"");
    let alone = vec![writer(MarkerForm::PerKey, 1), reader(Order::LeaseFirst)];
    assert_never_stale(World::new(MarkerForm::PerKey, NO_FAULTS, alone), 100);
}

/// Why the markers are not looked up in the batch of the lease-get.
#[test]
fn a_reader_that_looks_for_markers_before_it_has_the_lease_fills_an_old_value() {
    let users = vec![writer(MarkerForm::PerWrite, 1), reader(Order::MarkersFirst)];
    assert_stale_after(World::new(MarkerForm::PerWrite, NO_FAULTS, users), "Fill(0)");
}

/// It needs no local delete: a value that the cluster has cached does not matter.
#[test]
fn a_writer_that_reads_past_the_cache_reads_its_own_write() {
    let past_cache = |token| User { order: Order::PastCache, ..writer(MarkerForm::PerWrite, token) };
    let world = |users| World::new(MarkerForm::PerWrite, NO_FAULTS, users);
    let another = User { reads: false, ..writer(MarkerForm::PerWrite, 2) };
    assert_never_stale(world(vec![past_cache(1), another]), 1_000);
    assert_never_stale(world(vec![past_cache(1), reader(Order::LeaseFirst)]), 100);

    let faults = Faults { pool_fails: true, repeats_deletes: true, ..NO_FAULTS };
    let alone = || vec![past_cache(1)];
    assert_never_stale(World::new(MarkerForm::PerWrite, faults, alone()), 20);
    let to_replica = Faults { when_unknown: ReadFrom::Replica, ..faults };
    assert_stale_after(World::new(MarkerForm::PerWrite, to_replica, alone()), "Load { from: Replica");
}

/// The limit of the guarantee: a marker must not vanish before its write is replicated.
#[test]
fn a_pool_that_loses_its_memory_uncovers_a_write() {
    let faults = Faults { pool_restarts: true, ..NO_FAULTS };
    let world = World::new(MarkerForm::PerWrite, faults, vec![writer(MarkerForm::PerWrite, 1)]);
    assert_stale_after(world, "the pool restarts empty");
}
