//! The watcher of the configuration file, on real files: a new content is noticed however it gets there.

use lookaside_client::config::{DEBOUNCE, FileWatcher, POLL_INTERVAL};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Long enough for the slowest machine. Reached only if the test fails.
const DEADLINE: Duration = Duration::from_secs(30);

async fn next(watch: &mut FileWatcher) -> Result<String, String> {
    timeout(DEADLINE, watch.next_change()).await.expect("a change is noticed")
}

fn watch(path: &Path) -> FileWatcher {
    FileWatcher::new(path, fs::read_to_string(path).expect("the test wrote it"))
}

#[tokio::test]
async fn file_written_or_renamed_into_place_has_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("router.json");
    fs::write(&path, "one").unwrap();
    let mut watch = watch(&path);
    fs::write(&path, "two").unwrap();
    assert_eq!(next(&mut watch).await.as_deref(), Ok("two"));
    let other = folder.path().join("router.json.new");
    fs::write(&other, "three").unwrap();
    fs::rename(&other, &path).unwrap();
    assert_eq!(next(&mut watch).await.as_deref(), Ok("three"));
}

#[tokio::test]
async fn same_bytes_are_not_a_change() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("router.json");
    fs::write(&path, "one").unwrap();
    let mut watch = watch(&path);
    fs::write(&path, "one").unwrap();
    let waited = timeout(lookaside_client::config::POLL_INTERVAL * 2, watch.next_change()).await;
    assert!(waited.is_err(), "{waited:?}");
}

/// Writes the file without end, faster than it is read.
async fn rewrite(path: &Path) {
    for version in 0_u64.. {
        fs::write(path, version.to_string()).unwrap();
        sleep(DEBOUNCE / 2).await;
    }
}

/// It was read without end, and nothing was logged.
#[tokio::test(start_paused = true)]
async fn a_file_that_changes_all_the_time_is_an_error_until_it_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("router.json");
    fs::write(&path, "one").unwrap();
    let mut watch = watch(&path);
    let mut rewriting = pin!(rewrite(&path));
    let found = tokio::select! {
        found = next(&mut watch) => found,
        () = &mut rewriting => unreachable!("it does not end"),
    };
    let why = found.expect_err("no two reads agree");
    assert!(why.contains("router.json") && why.contains("all the time"), "{why}");
    tokio::select! {
        again = timeout(POLL_INTERVAL * 20, watch.next_change()) => assert!(again.is_err(), "reported once: {again:?}"),
        () = &mut rewriting => unreachable!("it does not end"),
    }
    fs::write(&path, "one").unwrap();
    assert_eq!(next(&mut watch).await.as_deref(), Ok("one"), "what was there before, too");
}

#[tokio::test]
async fn link_to_another_file_has_changed() {
    let folder = tempfile::tempdir().unwrap();
    for (version, content) in [("v1", "one"), ("v2", "two")] {
        fs::create_dir(folder.path().join(version)).unwrap();
        fs::write(folder.path().join(version).join("router.json"), content).unwrap();
    }
    // As Kubernetes mounts a ConfigMap: file -> current/file, current -> v1.
    let (current, path) = (folder.path().join("current"), folder.path().join("router.json"));
    symlink("v1", &current).unwrap();
    symlink("current/router.json", &path).unwrap();
    let mut watch = watch(&path);
    symlink("v2", folder.path().join("next")).unwrap();
    fs::rename(folder.path().join("next"), &current).unwrap();
    assert_eq!(next(&mut watch).await.as_deref(), Ok("two"));
}

#[tokio::test]
async fn change_without_a_notification_is_found() {
    let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let far = elsewhere.path().join("router.json");
    fs::write(&far, "one").unwrap();
    let path = here.path().join("router.json");
    symlink(&far, &path).unwrap();
    let mut watch = watch(&path);
    // The watched folder itself does not change.
    fs::write(&far, "two").unwrap();
    assert_eq!(next(&mut watch).await.as_deref(), Ok("two"));
}

#[tokio::test]
async fn removed_file_is_an_error_and_may_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("router.json");
    fs::write(&path, "one").unwrap();
    let mut watch = watch(&path);
    fs::remove_file(&path).unwrap();
    let why = next(&mut watch).await.expect_err("gone");
    assert!(why.contains(path.to_str().unwrap()) && why.contains("cannot be read"), "{why}");
    fs::write(&path, "two").unwrap();
    assert_eq!(next(&mut watch).await.as_deref(), Ok("two"));
}

#[tokio::test]
async fn requested_read_returns_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("router.json");
    fs::write(&path, "one").unwrap();
    let mut watch = watch(&path);
    watch.request_read();
    assert_eq!(next(&mut watch).await.as_deref(), Ok("one"));
    let waited = timeout(lookaside_client::config::POLL_INTERVAL * 2, watch.next_change()).await;
    assert!(waited.is_err(), "once: {waited:?}");
}
