//! A client in a replica region against a cluster and a regional pool, with a paused clock. Its steps in every
//! interleaving are in `src/look_aside/remote_markers/model.rs`.

use crate::fake::{Direct, FakeNetwork, Mode, cache::SharedCache, destination};
use bytes::Bytes;
use lookaside_client::{
    Client, ClientError, Codec, DestinationOptions, MarkError, MarkerForm, MarkerSettings, MarkerSettingsError, Origin,
    ReadError, ReadFrom, ReadOptions, RegionalClient, TypedClient, WhenNotSet,
};
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

/// A client, its cluster and its pool.
struct Region {
    client: RegionalClient,
    cluster: SharedCache,
    pool: SharedCache,
    pool_network: Arc<FakeNetwork>,
}

fn region(settings: MarkerSettings) -> Region {
    let [(network, cluster), (pool_network, pool)] = [(), ()].map(|()| {
        let (network, accepted) = FakeNetwork::new();
        let cache = SharedCache::default();
        cache.serve(accepted);
        (network, cache)
    });
    let route = |network| Arc::new(Direct(destination(network, DestinationOptions::default())));
    let client = Client::new(route(&network)).with_deadline(Duration::from_secs(60));
    let client = RegionalClient::new(client, route(&pool_network), settings).expect("valid settings");
    Region { client, cluster, pool, pool_network }
}

fn settings() -> MarkerSettings {
    MarkerSettings { seed: Some(1), ..MarkerSettings::default() }
}

/// A value that names the database.
async fn load(from: ReadFrom) -> Result<Bytes, Infallible> {
    Ok(format!("{from:?}").into())
}

impl Region {
    async fn read(&self, key: &str) -> (Origin, String) {
        let read = self.client.read(key, &ReadOptions::default(), load).await.expect("loading does not fail");
        (read.origin, String::from_utf8(read.value.to_vec()).expect("a name"))
    }

    /// As an invalidator: at the cluster and at the pool.
    fn invalidate<'a>(&self, keys: impl Iterator<Item = &'a Bytes>) {
        for key in keys {
            let key = std::str::from_utf8(key).expect("tests use text");
            self.cluster.lock().delete(key);
            self.pool.lock().delete(key);
        }
    }
}

fn loaded(name: &str) -> (Origin, String) {
    (Origin::Database, name.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_written_key_is_read_from_the_master_until_the_replica_has_the_write() {
    let region = region(settings());
    assert_eq!(region.read("k").await, loaded("Replica"));
    let write = region.client.begin_write(&["k", "other", "k"]).await.expect("marked");
    let named: Vec<&Bytes> = write.keys().collect();
    assert_eq!((&named[0][..], &named[1][..], named.len()), (&b"k"[..], &b"other"[..], 4));
    assert!(named[2].starts_with(b"marker:k|#|") && named[3].starts_with(b"marker:other|#|"), "{named:?}");
    assert_eq!(region.read("k").await, (Origin::Cache, "Replica".into()), "hits look for no markers");
    write.finish().await.expect("deleted");
    assert_eq!(region.read("k").await, loaded("Master"));
    assert_eq!(region.read("k").await, (Origin::Cache, "Master".into()), "filled");
    assert_eq!(region.read("another").await, loaded("Replica"));
    region.invalidate(write.keys());
    assert_eq!(region.read("k").await, loaded("Replica"));
    let counted = region.client.marker_statistics();
    assert_eq!((counted.marked, counted.not_marked, counted.searches, counted.found), (2, 0, 4, 1));
}

#[tokio::test(start_paused = true)]
async fn writes_and_reads_take_few_round_trips() {
    let region = region(settings());
    let trips = || region.client.client().statistics().round_trips;
    let read = async || {
        let load = async |_, keys: Vec<Bytes>| Ok::<_, Infallible>(keys);
        region.client.read_many(&["a", "b", "c"], &ReadOptions::default(), load).await.expect("read");
    };
    read().await;
    assert_eq!(trips(), 3, "lookup, one search for all, fills");
    read().await;
    assert_eq!(trips(), 4, "hits");
    let write = region.client.begin_write(&["a", "b"]).await.expect("marked");
    assert_eq!(trips(), 6, "markers, lists");
    write.finish().await.expect("deleted");
    read().await;
    assert_eq!(trips(), 11, "deletes; lookup, lists, markers, fills");
}

#[tokio::test(start_paused = true)]
async fn keys_of_both_databases_are_loaded_together_and_come_in_order() {
    let region = region(settings());
    let keys = ["a", "b", "c", "d"];
    let write = region.client.begin_write(&["b", "d"]).await.expect("marked");
    write.finish().await.expect("deleted");
    let calls = Mutex::new(Vec::new());
    let load = |from, keys: Vec<Bytes>| {
        calls.lock().expect("no panic").push((from, keys.clone()));
        let values = keys.iter().map(|key| format!("{from:?} {}", String::from_utf8_lossy(key)).into()).collect();
        async move { Ok::<Vec<Bytes>, Infallible>(values) }
    };
    let values = region.client.read_many(&keys, &ReadOptions::default(), load).await.expect("read");
    let values: Vec<_> = values.iter().map(|value| &value.value[..]).collect();
    assert_eq!(values, [&b"Replica a"[..], b"Master b", b"Replica c", b"Master d"]);
    let mut calls = calls.into_inner().expect("no panic");
    calls.sort_by_key(|(from, _)| *from == ReadFrom::Replica);
    let expected = [(ReadFrom::Master, ["b", "d"]), (ReadFrom::Replica, ["a", "c"])];
    assert_eq!(calls, expected.map(|(from, keys)| (from, keys.map(Bytes::from).to_vec())));

    let short = async |from, mut keys: Vec<Bytes>| {
        keys.extend((from == ReadFrom::Master).then(|| Bytes::from("more")));
        keys.truncate(if from == ReadFrom::Replica { 1 } else { 3 });
        Ok::<_, Infallible>(keys)
    };
    region.client.client().delete_many(&keys).await.expect("deleted");
    let wrong = region.client.read_many(&keys, &ReadOptions::default(), short).await;
    assert_eq!(wrong, Err(ReadError::LoadedCount { keys: 4, loaded: 3 }), "three of two and one of two");
}

#[tokio::test(start_paused = true)]
async fn typed_values_are_loaded_from_the_database_that_the_markers_name() {
    let region = region(settings());
    region.cluster.lock().keeps_flags = true;
    let typed = TypedClient::new(region.client.client().clone(), Codec::default());
    let load = async |from, keys: Vec<Bytes>| Ok::<_, Infallible>(vec![format!("{from:?}"); keys.len()]);
    let read = async || {
        typed.get_or_load_many(&["k"], &ReadOptions::default(), region.client.loader(load)).await.expect("read")
    };
    region.client.begin_write(&["k"]).await.expect("marked").finish().await.expect("deleted");
    assert_eq!(read().await, ["Master"]);
    assert_eq!(typed.get::<String>("k").await, Ok(Some("Master".into())));
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_is_full_fails_the_write_or_leaves_it_unmarked() {
    let region = region(settings());
    region.pool.lock().is_full = true;
    let refused = region.client.begin_write(&["k"]).await.map(|_| ());
    let why = ClientError::Refused { why: "out of memory storing object".into() };
    assert_eq!(refused, Err(MarkError::NotSet { key: "k".into(), why: why.clone() }));
    assert_eq!(region.client.marker_statistics().not_marked, 1);

    let region = self::region(MarkerSettings { when_not_set: WhenNotSet::AcceptLag, ..settings() });
    let marked = region.client.begin_write(&["k"]).await.expect("marked");
    assert_eq!(marked.unmarked().count(), 0);
    region.pool.lock().is_full = true;
    let write = region.client.begin_write(&["k"]).await.expect("accepted");
    assert_eq!(write.unmarked().collect::<Vec<_>>(), [(&Bytes::from("k"), &why)]);
    assert_eq!(write.keys().count(), 2, "the marker may have been set");
    marked.abort().await.expect("removed");
    write.finish().await.expect("deleted");
    assert_eq!(region.read("k").await, loaded("Replica"));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_fails_leaves_no_marker_behind() {
    let region = region(settings());
    // The marker is stored, its list is not.
    region.pool.lock().set("marker:k", "00");
    region.pool.lock().refused_cas = true;
    assert!(matches!(region.client.begin_write(&["k"]).await, Err(MarkError::NotSet { .. })));
    let stored = region.pool.lock().stored.clone();
    assert!(matches!(&stored[..], [marker] if marker.starts_with("marker:k|#|")), "{stored:?}");
    let is_removed = async {
        while region.pool.lock().live(&stored[0]).is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_removed).await.expect("the marker is removed in the background");
}

/// A `set` that finds no memory removes the value that was there: the marker that another write still needed.
#[tokio::test(start_paused = true)]
async fn a_full_pool_keeps_the_marker_that_writes_of_a_key_share() {
    let region = region(MarkerSettings { form: MarkerForm::PerKey, ..settings() });
    let write = region.client.begin_write(&["k"]).await.expect("marked");
    write.finish().await.expect("deleted");
    region.pool.lock().is_full = true;
    let _ = region.client.begin_write(&["k"]).await;
    assert_eq!(region.read("k").await, loaded("Master"));
    assert!(matches!(region.client.begin_write(&["other"]).await, Err(MarkError::NotSet { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_shared_marker_lives_on_with_each_write() {
    let ttl = Duration::from_secs(100);
    let region = region(MarkerSettings { form: MarkerForm::PerKey, ttl_s: 100, ..settings() });
    for _ in 0..3 {
        region.client.begin_write(&["k"]).await.expect("marked").finish().await.expect("deleted");
        tokio::time::advance(ttl * 3 / 4).await;
        assert_eq!(region.read("k").await, loaded("Master"));
    }
    region.client.client().delete("k").await.expect("deleted");
    tokio::time::advance(ttl / 2).await;
    assert_eq!(region.read("k").await, loaded("Replica"), "it has expired");
}

/// A key with more writes under way than a list has room for is read from the master until the marker of all of them
/// has expired, and no longer, although it is written on.
#[tokio::test(start_paused = true)]
async fn a_key_with_a_full_list_returns_to_the_replica_while_it_is_written() {
    let region = region(MarkerSettings { ttl_s: 100, ..settings() });
    let mut writes = Vec::new();
    for _ in 0..40 {
        writes.push(region.client.begin_write(&["k"]).await.expect("marked"));
    }
    writes.iter().for_each(|write| region.invalidate(write.keys()));
    assert_eq!(region.read("k").await, loaded("Master"), "not known to be replicated");
    for _ in 0..4 {
        tokio::time::advance(Duration::from_secs(30)).await;
        let write = region.client.begin_write(&["k"]).await.expect("marked");
        region.invalidate(write.keys());
    }
    assert_eq!(region.read("k").await, loaded("Replica"));
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_does_not_answer_sends_reads_where_the_caller_chose() {
    for (when_unknown, name) in [(ReadFrom::Master, "Master"), (ReadFrom::Replica, "Replica")] {
        let region = region(MarkerSettings { when_unknown, ..settings() });
        region.pool_network.set(Mode::Refuse);
        assert!(matches!(region.client.begin_write(&["k"]).await, Err(MarkError::NotSet { .. })));
        assert_eq!(region.read("k").await, loaded(name));
        assert_eq!(region.client.marker_statistics().unknown, 1);
    }
}

/// Each key as `SOURCE KEY`.
async fn load_named(from: ReadFrom, keys: Vec<Bytes>) -> Result<Vec<String>, Infallible> {
    Ok(keys.iter().map(|key| format!("{from:?} {}", String::from_utf8_lossy(key))).collect())
}

/// In another cluster of the region, too, whose old value no one has deleted yet.
#[tokio::test(start_paused = true)]
async fn a_read_past_the_cache_follows_the_markers_and_leaves_the_cache_alone() {
    let region = region(settings());
    region.cluster.lock().set("b", "old");
    let write = region.client.begin_write(&["b", "d"]).await.expect("marked");
    let sources = region.client.find_sources(&["b", "c"]).await;
    assert_eq!(sources, Ok(vec![ReadFrom::Master, ReadFrom::Replica]));
    let read = region.client.read_past_cache(&["a", "b", "c", "d", "b"], load_named).await;
    assert_eq!(read.expect("read"), ["Replica a", "Master b", "Replica c", "Master d", "Master b"]);
    assert_eq!(region.cluster.lock().lines, 0, "nothing is looked up or filled");

    region.invalidate(write.keys());
    assert_eq!(region.client.read_past_cache(&["b"], load_named).await.expect("read"), ["Replica b"]);
    let counted = region.client.marker_statistics();
    assert_eq!((counted.searches, counted.found, counted.unknown, counted.demanded), (8, 4, 0, 0));
    assert_eq!(region.client.client().statistics().loads, 6);
}

/// A read by the cache would return what was there before the write, or fill that from the replica.
#[tokio::test(start_paused = true)]
async fn a_user_without_a_marker_reads_the_master_past_the_cache() {
    let accepting =
        MarkerSettings { when_not_set: WhenNotSet::AcceptLag, when_unknown: ReadFrom::Replica, ..settings() };
    let region = region(accepting);
    region.pool_network.set(Mode::Refuse);
    let write = region.client.begin_write(&["k", "other"]).await.expect("accepted");
    write.finish().await.expect("deleted");
    assert_eq!(region.read("k").await, loaded("Replica"));
    let unmarked: Vec<&Bytes> = write.unmarked().map(|(key, _)| key).collect();
    let before = region.cluster.lock().lines;
    let read = region.client.read_master(&unmarked, load_named).await.expect("read");
    assert_eq!(read, ["Master k", "Master other"]);
    assert_eq!(region.cluster.lock().lines, before, "nothing is looked up, leased or filled");
    assert_eq!(region.read("k").await, (Origin::Cache, "Replica".into()));
    let past_cache = region.client.read_past_cache(&["k"], load_named).await.expect("read");
    assert_eq!(past_cache, ["Replica k"], "when_unknown");
    assert_eq!(region.client.marker_statistics().demanded, 2);
}

#[tokio::test(start_paused = true)]
async fn reads_past_the_cache_fail_as_other_reads_do() {
    let region = region(settings());
    let client = &region.client;
    let refused = client.read_master(&["two words"], load_named).await;
    assert!(matches!(refused, Err(ReadError::BadKey(_))));
    assert!(client.read_past_cache(&["two words"], load_named).await.is_err());
    assert!(client.find_sources(&["two words"]).await.is_err());
    let fail = |_, _| async { Err::<Vec<()>, _>("no row") };
    assert_eq!(client.read_master(&["k"], fail).await, Err(ReadError::Load("no row")));
    assert_eq!(client.read_past_cache(&["k"], fail).await, Err(ReadError::Load("no row")));
    let short = |_, _| async { Ok::<_, Infallible>(vec![()]) };
    assert_eq!(client.read_master(&["a", "b"], short).await, Err(ReadError::LoadedCount { keys: 2, loaded: 1 }));
    let no_keys: [&str; 0] = [];
    assert_eq!(client.read_master(&no_keys, fail).await, Ok(Vec::new()), "there is nothing to load");
    assert_eq!(client.read_past_cache(&no_keys, fail).await, Ok(Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_reads_past_the_cache() {
    let region = region(settings());
    region.pool.lock().delay = Duration::from_secs(3600);
    let client = region.client.client().clone().with_deadline(Duration::from_millis(1));
    let client = region.client.with_client(client);
    assert_eq!(client.find_sources(&["k"]).await, Ok(vec![ReadFrom::Master]), "when_unknown");
    let read = client.read_past_cache(&["k"], load_named).await;
    assert_eq!(read, Err(ReadError::DeadlineExceeded));
    let load_forever = |_, _| std::future::pending::<Result<Vec<()>, Infallible>>();
    assert_eq!(client.read_master(&["k"], load_forever).await, Err(ReadError::DeadlineExceeded));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_the_marking() {
    let region = region(settings());
    region.pool.lock().delay = Duration::from_secs(3600);
    let refused = region.client.begin_write(&["k"]).await.map(|_| ());
    let Err(MarkError::NotSet { why, .. }) = refused else { panic!("{refused:?}") };
    assert!(matches!(why, ClientError::DeadlineExceeded | ClientError::Failed(_)), "{why}");
}

#[tokio::test(start_paused = true)]
async fn an_aborted_write_clears_its_own_markers_alone() {
    let region = region(settings());
    let [one, two] = [region.client.begin_write(&["k"]).await, region.client.begin_write(&["k"]).await];
    let (one, two) = (one.expect("marked"), two.expect("marked"));
    one.abort().await.expect("removed");
    assert_eq!(region.read("k").await, loaded("Master"));
    two.abort().await.expect("removed");
    region.client.client().delete("k").await.expect("deleted");
    assert_eq!(region.read("k").await, loaded("Replica"));
}

#[tokio::test(start_paused = true)]
async fn one_marker_for_each_key_is_cleared_by_any_write() {
    let region = region(MarkerSettings { form: MarkerForm::PerKey, ..settings() });
    let [one, two] = [region.client.begin_write(&["k"]).await, region.client.begin_write(&["k"]).await];
    let (one, two) = (one.expect("marked"), two.expect("marked"));
    assert_eq!(one.keys().collect::<Vec<_>>(), [&Bytes::from("k"), &Bytes::from("marker:k")]);
    one.abort().await.expect("does nothing");
    two.finish().await.expect("deleted");
    assert_eq!(region.read("k").await, loaded("Master"));
    region.invalidate(one.keys());
    assert_eq!(region.read("k").await, loaded("Replica"), "although the other write is not replicated");
}

#[tokio::test(start_paused = true)]
async fn names_are_shown_as_a_comment_if_they_can_be() {
    let region = region(MarkerSettings { form: MarkerForm::PerKey, ..settings() });
    let write = region.client.begin_write(&["user:42", "list"]).await.expect("marked");
    let comment = "/* lookaside: user:42 list marker:user:42 marker:list */";
    assert_eq!(write.sql_comment().as_deref(), Some(comment));
    for key in ["a*/b", "a/*b"] {
        assert_eq!(region.client.begin_write(&[key]).await.expect("marked").sql_comment(), None, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn keys_and_settings_that_cannot_be_are_refused() {
    let region = region(settings());
    let long = "k".repeat(225);
    let refused = region.client.begin_write(&[&long]).await.map(|_| ());
    assert_eq!(refused, Err(MarkError::KeyTooLong { key: long.clone().into(), bytes_max: 224 }));
    assert!(matches!(region.client.begin_write(&["two words"]).await, Err(MarkError::BadKey(_))));
    assert_eq!(region.pool.lock().lines, 0, "nothing was sent");
    assert_eq!(region.read(&long).await, loaded("Replica"), "it has no marker");
    assert_eq!(region.client.begin_write::<&str>(&[]).await.expect("nothing to mark").keys().count(), 0);

    let pool = Arc::new(lookaside_routing::NullRoute);
    let client = Client::new(pool.clone());
    let refuse = |change: MarkerSettings| RegionalClient::new(client.clone(), pool.clone(), change).map(|_| ());
    assert_eq!(refuse(MarkerSettings { ttl_s: 0, ..settings() }), Err(MarkerSettingsError::Ttl { ttl_s: 0 }));
    let month = 30 * 24 * 3600;
    assert_eq!(refuse(MarkerSettings { ttl_s: month, ..settings() }), Ok(()));
    assert!(refuse(MarkerSettings { ttl_s: month + 1, ..settings() }).is_err());
    for prefix in ["", "two words", &"p".repeat(231)] {
        assert!(refuse(MarkerSettings { key_prefix: prefix.into(), ..settings() }).is_err(), "{prefix}");
    }
    assert_eq!(refuse(MarkerSettings { key_prefix: "p".repeat(230), ..settings() }), Ok(()));
}
