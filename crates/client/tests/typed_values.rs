//! Typed values and cached absence, against a cache with leases, with a paused clock.
#![cfg(all(feature = "json", feature = "lz4", feature = "messagepack", feature = "zstd"))]

use crate::fake::{Direct, FakeNetwork, cache::SharedCache, destination};
use bytes::Bytes;
use lookaside_client::{
    Client, Codec, Compression, Content, DecodeError, DestinationOptions, EncodeError, Format, Json, MessagePack,
    ReadError, ReadOptions, ToContent, TypedClient, TypedError, TypedReadError,
};
use std::{cell::Cell, collections::BTreeMap, convert::Infallible, time::Duration};
use tokio::time::sleep;

fn cached(codec: Codec) -> (TypedClient, SharedCache) {
    let (network, accepted) = FakeNetwork::new();
    let cache = SharedCache::default();
    cache.lock().keeps_flags = true;
    cache.serve(accepted);
    let server = destination(&network, DestinationOptions::default());
    (TypedClient::new(Client::new(std::sync::Arc::new(Direct(server))), codec), cache)
}

#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct User {
    name: String,
}

const OPTIONS: ReadOptions = ReadOptions { allow_stale: false, exptime: 0, hot_miss_wait_ms: 1_000, absent_exptime: 5 };

#[tokio::test(start_paused = true)]
async fn a_loaded_value_is_stored_compressed_and_read_again() {
    let (client, cache) = cached(Codec::default().with_compression(Compression::Zstd, 100));
    let user = MessagePack(User { name: "ada ".repeat(100) });
    let loaded = client.get_or_load("u", &OPTIONS, || async { Ok::<_, Infallible>(user.clone()) }).await;
    assert_eq!(loaded, Ok(user.clone()));
    assert!(cache.lock().live("u").expect("filled").len() < 50);
    let again = client.get_or_load("u", &OPTIONS, || async { Err("the cache has it") }).await;
    assert_eq!(again, Ok(user.clone()));
    assert_eq!(client.get("u").await, Ok(Some(user)));
    assert_eq!(client.get::<MessagePack<User>>("other").await, Ok(None));
    let wrong = client.get::<Json<User>>("u").await;
    let error = DecodeError::WrongFormat { expected: Format::Json, found: Format::MessagePack };
    assert_eq!(wrong, Err(TypedError::Decode(error)));
}

#[tokio::test(start_paused = true)]
async fn a_get_of_a_typed_value_takes_no_lease() {
    let (client, cache) = cached(Codec::default());
    assert_eq!(client.get::<String>("a").await, Ok(None));
    assert_eq!(cache.lock().lease_gets, 0);
    client.set("a", "text", 0).await.expect("stored");
    let found = client.get_many::<String, _>(&["a", "b"]).await.expect("valid keys");
    assert_eq!(found, [Ok(Some("text".to_owned())), Ok(None)]);
    assert_eq!(client.delete("a").await, Ok(true));
}

/// An absent row is neither a miss, which would be loaded each time, nor an empty value.
#[tokio::test(start_paused = true)]
async fn absence_is_cached_for_its_own_time_and_ends_with_a_delete() {
    let (client, cache) = cached(Codec::default());
    let rows: Cell<Option<&str>> = Cell::new(None);
    let loads = Cell::new(0);
    let read = async || {
        let load = || async {
            loads.set(loads.get() + 1);
            Ok::<_, Infallible>(rows.get().map(str::to_owned))
        };
        client.get_or_load("row", &OPTIONS, load).await.expect("loads")
    };
    assert_eq!((read().await, read().await, loads.get()), (None, None, 1));
    assert_eq!(client.client().statistics().absent_loads, 1);
    assert_eq!(client.get::<Option<String>>("row").await, Ok(Some(None)), "known to be absent");
    assert_eq!(client.get::<Option<String>>("other").await, Ok(None), "not known");
    let wrong = DecodeError::WrongFormat { expected: Format::Text, found: Format::Absent };
    assert_eq!(client.get::<String>("row").await, Err(TypedError::Decode(wrong)));

    // The row is inserted, and its key is deleted.
    rows.set(Some("here"));
    client.delete("row").await.expect("deleted");
    assert_eq!(read().await.as_deref(), Some("here"));

    rows.set(None);
    client.delete("row").await.expect("deleted");
    assert_eq!((read().await, loads.get()), (None, 3));
    sleep(Duration::from_secs(4)).await;
    assert_eq!((read().await, loads.get()), (None, 3));
    sleep(Duration::from_secs(2)).await;
    assert_eq!((read().await, loads.get()), (None, 4), "after five seconds it is loaded again");
    assert_eq!(cache.lock().live("row").as_deref(), Some(&b"\x80\x02N."[..]));
}

#[tokio::test(start_paused = true)]
async fn absence_that_was_read_before_an_insert_is_not_stored_after_it() {
    let (client, cache) = cached(Codec::default());
    let load = || async {
        // The row is inserted, and its key deleted, after this query.
        cache.lock().delete("row");
        Ok::<Option<String>, Infallible>(None)
    };
    assert_eq!(client.get_or_load("row", &OPTIONS, load).await, Ok(None));
    assert_eq!(cache.lock().live("row"), None);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_cannot_be_decoded_is_loaded_and_counted() {
    let (client, cache) = cached(Codec::default());
    client.client().set("k", "of another client", 1 << 30, 0).await.expect("stored");
    client.client().set("fine", "1", 2, 0).await.expect("stored");
    let unknown = TypedError::Decode(DecodeError::UnknownFlags { flags: 1 << 30 });
    assert_eq!(client.get::<String>("k").await, Err(unknown));
    let values = client.get_or_load_many(&["fine", "k"], &OPTIONS, |keys| async move {
        assert_eq!(keys, ["k"]);
        Ok::<_, Infallible>(vec![7u64])
    });
    assert_eq!(values.await, Ok(vec![1, 7]));
    assert_eq!(cache.lock().live("k").as_deref(), Some(&b"of another client"[..]), "not overwritten without a lease");
    let statistics = client.client().statistics();
    assert_eq!((statistics.undecodable, statistics.loads), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_value_that_cannot_be_written_is_an_error_and_its_lease_is_released() {
    let (client, cache) = cached(Codec::default());
    let unwritable = || async { Ok::<_, Infallible>(Json(BTreeMap::from([((1u8, 2u8), 3u8)]))) };
    let error = client.get_or_load("k", &OPTIONS, unwritable).await;
    assert!(matches!(error, Err(TypedReadError::Encode(EncodeError::Failed { what: "JSON", .. }))), "{error:?}");
    sleep(Duration::from_millis(1)).await;
    assert_eq!(cache.lock().lease_sets, 1, "the release");
    let loaded = client.get_or_load("k", &OPTIONS, || async { Err::<u64, _>("database") }).await;
    assert_eq!(loaded, Err(TypedReadError::Read(ReadError::Load("database"))));
}

#[tokio::test(start_paused = true)]
async fn content_passes_through_as_it_is() {
    let (client, _) = cached(Codec::default().with_compression(Compression::Lz4, 10));
    let pickled = Content { format: Format::Pickle, bytes: Bytes::from(vec![b'p'; 1_000]) };
    assert_eq!(pickled.to_content(), Ok(pickled.clone()));
    client.set("k", &pickled, 0).await.expect("stored");
    assert_eq!(client.get("k").await, Ok(Some(pickled)));
}
