//! Spool files that are lost, damaged, unreadable or of another format, under a paused clock: no delete is lost in
//! silence. A server whose deletes are not known is flushed before it is read.

use crate::fake_network::Health;
use crate::spool_router::*;
use crate::tree_requests::*;
use lookaside_router::{Backlog, Disk as _, Spool};
use std::io::ErrorKind;
use std::time::Duration;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn damage_causes_a_flush_and_a_torn_tail_does_not() {
    for (is_torn, flushes) in [(true, 0), (false, 1)] {
        let fixture = Fixture::default();
        let (router, main) = (fixture.start(ONE, 1), fixture.main());
        main.put("other", "old");
        main.be(Health::Gone);
        for key in ["a", "b", "c"] {
            assert_eq!(router.delete(0, key).await, NOT_FOUND);
        }
        router.kill().await;
        fixture.disk.damage(|_, _, bytes| match is_torn {
            true => bytes.extend_from_slice(&[6, 0, 0]),
            false => bytes[20] ^= 1,
        });
        main.be(Health::Well);
        let router = fixture.start(ONE, 1);
        sleep(REPAIR).await;
        assert_eq!(router.statistics().counts.flushes, flushes);
        assert_eq!((main.has("other"), main.asked("delete").len()), (is_torn, if is_torn { 3 } else { 0 }));
        assert_eq!(router.backlog(), Backlog::default());
    }
}

/// Once any failure to read a file, such as a lack of file descriptors, caused a flush at once.
#[tokio::test(start_paused = true)]
async fn a_file_that_is_unreadable_for_a_short_time_causes_no_flush() {
    for (failure, duration, flushes) in [
        (ErrorKind::Other, REPAIR, 0),
        (ErrorKind::Other, Duration::from_secs(120), 1),
        (ErrorKind::NotFound, REPAIR, 1),
    ] {
        let fixture = Fixture::default();
        let (router, main) = (fixture.start(ONE, 1), fixture.main());
        main.put("k", "old");
        main.put("other", "old");
        fixture.disk.fail_reads(Some(failure));
        main.be(Health::Gone);
        assert_eq!(router.delete(0, "k").await, NOT_FOUND);
        main.be(Health::Well);
        sleep(duration).await;
        let expected = if flushes == 0 { TKO } else { MISS };
        assert_eq!(router.get(0, "k").await, expected, "{failure} {duration:?}");
        fixture.disk.fail_reads(None);
        sleep(REPAIR).await;
        assert_eq!(router.get(0, "k").await, MISS);
        assert_eq!(
            (router.statistics().counts.flushes, main.has("other")),
            (flushes, flushes == 0),
            "{failure} {duration:?}"
        );
    }
}

/// That the deletes of a missing file are lost was known to the running router alone. One that was killed before it had
/// flushed the server left an empty backlog, and the next read old values.
#[tokio::test(start_paused = true)]
async fn a_flush_for_lost_deletes_outlives_the_router() {
    for is_disk_full in [false, true] {
        let fixture = Fixture::default();
        let (router, main) = (fixture.start_with_backlog(Health::Gone).await, fixture.main());
        router.kill().await;
        let router = fixture.start(ONE, 1);
        for folder in fixture.disk.folders().unwrap() {
            fixture.disk.files(&folder).unwrap().iter().for_each(|file| fixture.disk.remove(&folder, file).unwrap());
        }
        fixture.disk.limit_free_bytes(is_disk_full.then_some(0));
        sleep(REPAIR).await;
        assert!(router.backlog().flush_pending);
        // The record is written as soon as there is space.
        fixture.disk.limit_free_bytes(None);
        sleep(REPAIR).await;
        router.kill().await;
        main.be(Health::Well);
        let router = fixture.start(ONE, 1);
        assert_ne!(router.get(0, "k").await, value("old"));
        sleep(REPAIR).await;
        assert_eq!((router.get(0, "k").await, router.statistics().counts.flushes), (MISS, 1));
    }
}

/// A full disk keeps no server from being flushed.
#[tokio::test(start_paused = true)]
async fn a_server_is_flushed_for_lost_deletes_although_the_disk_is_full() {
    let fixture = Fixture::default();
    let (router, main) = (fixture.start(ONE, 1), fixture.main());
    main.put("k", "old");
    fixture.disk.fail_reads(Some(ErrorKind::NotFound));
    main.be(Health::Gone);
    assert_eq!(router.delete(0, "k").await, NOT_FOUND);
    fixture.disk.limit_free_bytes(Some(0));
    fixture.repair().await;
    assert_eq!((router.get(0, "k").await, router.statistics().counts.flushes), (MISS, 1));
}

#[tokio::test(start_paused = true)]
async fn a_newer_format_is_refused() {
    let fixture = Fixture::default();
    fixture.start_with_backlog(Health::Gone).await.kill().await;
    fixture.disk.damage(|_, _, bytes| bytes[7] = 9);
    let why = fixture.try_start(ONE, 1).err().expect("the backlog is unknown");
    assert!(why.contains("format 9") && why.contains(MAIN), "{why}");
}

/// As in an upgrade that fails, while a backlog is removed by hand: the fence of the first spool stayed for ever.
#[tokio::test(start_paused = true)]
async fn a_fence_without_a_record_ends_in_a_flush_when_the_spool_is_opened_again() {
    let fixture = Fixture::default();
    let (mut router, main) = (fixture.start_with_backlog(Health::Frozen).await, fixture.main());
    router.replay.abort();
    router.spool.close().await.expect("it is released");
    let folder = fixture.disk.folders().expect("a list").into_iter().next().expect("the server's");
    for file in fixture.disk.files(&folder).expect("a list") {
        fixture.disk.remove(&folder, &file).expect("it is there");
    }
    let trackers = router.config.destination_options().tko_trackers.clone().expect("the fixture's");
    let reopened = Spool::open(fixture.disk.clone(), trackers, fixture.settings.clone()).expect("the disk is good");
    reopened.adopt_fences(&router.spool);
    router.spool = reopened.clone();
    router.reload(&fixture, ONE);
    let network = fixture.network.clone();
    router.replay = tokio::spawn(async move { reopened.replay(network, 7).await });
    fixture.repair().await;
    assert_eq!(router.get(0, "k").await, MISS, "it is read again");
    assert_eq!(main.asked("flush_all").len(), 1);
}

/// A record as the spool writes it, with any body.
fn record(body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_le_bytes();
    let sum = crc32fast::hash(&[&length[..], body].concat());
    [&length[..], &sum.to_le_bytes(), body].concat()
}

fn delete_record(key: &[u8]) -> Vec<u8> {
    record(&[&[1, 0, 0, 0, 0, 0][..], key].concat())
}

/// The replay ended with a panic (without debug assertions, the key's second line was a command), or the delete was
/// dropped as if its write had not been finished.
#[tokio::test(start_paused = true)]
async fn a_record_that_no_server_accepts_causes_a_flush() {
    for bad in [delete_record(b"two words"), delete_record(b"a\r\nset b 0 0 1\r\nx"), record(&[9])] {
        for behind in [Vec::new(), delete_record(b"c")] {
            let fixture = Fixture::default();
            let (router, main) = (fixture.start(ONE, 1), fixture.main());
            main.put("other", "old");
            main.be(Health::Gone);
            assert_eq!(router.delete(0, "a").await, NOT_FOUND);
            router.kill().await;
            fixture.disk.damage(|_, _, bytes| bytes.extend([&bad[..], &behind].concat()));
            main.be(Health::Well);
            let router = fixture.start(ONE, 1);
            sleep(REPAIR).await;
            assert_eq!((router.statistics().counts.flushes, main.has("other"), main.has("b")), (1, false, false));
            assert_eq!(router.backlog(), Backlog::default());
        }
    }
}

/// The flush was ignored, and nothing was left of the delete: the server was read with its old value.
#[tokio::test(start_paused = true)]
async fn a_flush_record_among_the_deletes_of_a_running_router_causes_a_flush() {
    let fixture = Fixture::default();
    let (router, main) = (fixture.start(ONE, 1), fixture.main());
    main.put("four", "old");
    main.be(Health::Gone);
    assert_eq!(router.delete(0, "four").await, NOT_FOUND);
    fixture.disk.damage(|_, _, bytes| {
        let header = bytes[..8].to_vec();
        let flushes = [record(&[2]), record(&[2])].concat();
        assert_eq!(bytes.len(), header.len() + flushes.len());
        *bytes = [header, flushes].concat();
    });
    fixture.repair().await;
    assert_eq!(router.get(0, "four").await, MISS);
    assert_eq!((router.statistics().counts.flushes, main.has("four")), (1, false));
}
