//! What the tests of row rules have in common, whatever the database.

pub mod common_types;

use lookaside_invalidator::{Commit, keys::FLUSH_CLUSTER, rules::RowRules};
use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
};

/// The keys of `commits` without the key `end`, sorted, without repetitions.
pub fn sorted_keys(commits: &[Commit]) -> Vec<String> {
    let keys = commits.iter().flat_map(|commit| &commit.keys);
    let mut keys: Vec<String> = keys.map(|key| String::from_utf8(key.clone()).expect("text")).collect();
    keys.retain(|key| key != "end");
    keys.sort();
    keys.dedup();
    keys
}

/// The mark that stands for a flush of the cluster.
pub fn flush() -> String {
    String::from_utf8_lossy(FLUSH_CLUSTER).into_owned()
}

/// Loads the rules again whenever `reading` has something to read. Returns its result, and how often they were loaded.
pub async fn while_rules_are_loaded<T>(rules: &Arc<RowRules>, reading: impl Future<Output = T>) -> (T, usize) {
    let (mut reading, mut loads) = (pin!(reading), 0);
    let result = poll_fn(|context| {
        rules.replace((*rules.current()).clone());
        loads += 1;
        reading.as_mut().poll(context)
    });
    (result.await, loads)
}
