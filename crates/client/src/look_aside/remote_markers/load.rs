//! Loads keys from the master or from the replica, each as its markers or the caller demand.

use bytes::Bytes;
use futures_util::future::try_join;

/// Which database to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadFrom {
    /// The master: the replica may not have the last write of the key yet, or the caller demands it.
    Master,
    /// The replica of this region.
    Replica,
}

/// Loads keys, in their order; those of the master and those of the replica at the same time.
pub(super) async fn load_each<T, E, L>(
    keys: Vec<Bytes>,
    sources: &[ReadFrom],
    load: impl Fn(ReadFrom, Vec<Bytes>) -> L,
) -> Result<Vec<T>, E>
where
    L: Future<Output = Result<Vec<T>, E>>,
{
    let Some(&first) = sources.first() else { return Ok(Vec::new()) };
    if sources.iter().all(|&source| source == first) {
        return load(first, keys).await;
    }
    let keys_of = |wanted| -> Vec<Bytes> {
        let zipped = keys.iter().zip(sources);
        zipped.filter(|&(_, &source)| source == wanted).map(|(key, _)| key.clone()).collect()
    };
    let (of_master, of_replica) = (keys_of(ReadFrom::Master), keys_of(ReadFrom::Replica));
    let expected = [of_master.len(), of_replica.len()];
    let (from_master, from_replica) =
        try_join(load(ReadFrom::Master, of_master), load(ReadFrom::Replica, of_replica)).await?;
    Ok(join_in_order(sources, expected, from_master, from_replica))
}

/// The values in the order of `sources`. If a loader has returned a wrong number, their number is wrong too, which the
/// caller reports: a value must not get under another key.
fn join_in_order<T>(sources: &[ReadFrom], expected: [usize; 2], from_master: Vec<T>, from_replica: Vec<T>) -> Vec<T> {
    if [from_master.len(), from_replica.len()] != expected {
        let is_total_right = from_master.len() + from_replica.len() == sources.len();
        let all = from_master.into_iter().chain(from_replica);
        return all.skip(usize::from(is_total_right)).collect();
    }
    let (mut from_master, mut from_replica) = (from_master.into_iter(), from_replica.into_iter());
    let next = |source: &ReadFrom| match source {
        ReadFrom::Master => from_master.next(),
        ReadFrom::Replica => from_replica.next(),
    };
    sources.iter().filter_map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ReadFrom::{Master, Replica};

    #[test]
    fn values_come_in_the_order_of_the_keys_or_in_a_wrong_number() {
        let sources = [Master, Replica, Replica, Master];
        let joined = join_in_order(&sources, [2, 2], vec!["m0", "m3"], vec!["r1", "r2"]);
        assert_eq!(joined, ["m0", "r1", "r2", "m3"]);
        for (from_master, from_replica) in [(vec![1], vec![2, 3, 4]), (vec![1, 2, 3], vec![4]), (vec![], vec![1, 2])] {
            let joined = join_in_order(&sources, [2, 2], from_master.clone(), from_replica.clone());
            assert_ne!(joined.len(), sources.len(), "{from_master:?} {from_replica:?}");
        }
    }
}
