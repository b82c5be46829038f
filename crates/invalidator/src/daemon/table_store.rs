//! Keeps what was seen of tables with a rule where positions are kept: in the shared record, or else in `--state-dir`.
//! What is shared is copied to `--state-dir`, as positions are, for a process without a shared state to continue from.

use crate::{
    election::{SharedTables, Term},
    observe::log_throttle,
    source::{RETRY_DELAY_MAX, postgres::SeenTables},
    state_file::{self, run_blocking},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

/// The file in `--state-dir`.
const FILE: &str = "seen_tables.json";

/// Where it is kept.
pub(super) struct TableStore {
    file: PathBuf,
    shared: Option<SharedTables>,
}

impl TableStore {
    /// In the record of `term`, or in `directory` if that is `None`.
    pub fn new(directory: &Path, term: Option<&Arc<Term>>) -> TableStore {
        TableStore { file: directory.join(FILE), shared: term.cloned().map(SharedTables) }
    }

    /// What was saved; the file counts until something is shared. Empty if there is none. Blocks.
    pub fn load(&self) -> Result<SeenTables, String> {
        if let Some(tables) = self.shared.as_ref().and_then(SharedTables::load) {
            return Ok(tables);
        }
        let failed = |why: String| {
            let file = self.file.display();
            format!("{file}: {why}; if no table with a rule was altered meanwhile, move the file away")
        };
        let Some(bytes) =
            state_file::read(&self.file, state_file::FILE_BYTES_MAX).map_err(|why| failed(why.to_string()))?
        else {
            return Ok(SeenTables::default());
        };
        let stored = serde_json::from_slice(&bytes).map_err(|why| why.to_string());
        let tables = stored.and_then(|stored| SeenTables::parse(&stored));
        Ok(tables.map_err(|why| failed(format!("it is malformed ({why})")))?.unwrap_or_default())
    }

    /// Saves what `seen` has, now and after each change, until its sender is gone.
    pub async fn save_changes(self, mut seen: watch::Receiver<SeenTables>) {
        if !seen.borrow().is_empty() {
            // It may be in the file alone.
            seen.mark_changed();
        }
        let mut throttle = log_throttle();
        while seen.changed().await.is_ok() {
            let tables = seen.borrow_and_update().clone();
            if let Err(why) = self.save(tables).await {
                if throttle.allow(Instant::now()).is_some() {
                    tracing::warn!(
                        why,
                        "what was seen of tables with a rule is not saved, so DDL may be unnoticed after a crash; retrying"
                    );
                }
                sleep(RETRY_DELAY_MAX).await;
                seen.mark_changed();
            }
        }
    }

    async fn save(&self, tables: SeenTables) -> Result<(), String> {
        if let Some(shared) = &self.shared {
            shared.save(tables.clone()).await.map_err(|error| error.0)?;
        }
        let (file, bytes) = (self.file.clone(), tables.to_json().to_string());
        let saved = run_blocking(move || state_file::replace(&file, bytes.as_bytes())).await;
        saved.map_err(|why| format!("{}: {why}", self.file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::{ElectionRecord, RecordError, RecordStore, RecordVersion, Standby};
    use lookaside_routing::BoxFuture;
    use lookaside_sync::Mutex;
    use std::fs;
    use std::future::ready;
    use std::time::Duration;

    fn seen(digest: &str) -> SeenTables {
        let stored = serde_json::json!({ "format": 3, "tables": [["app", "users", digest, "p", true]] });
        SeenTables::parse(&stored).expect("well-formed").expect("of this version")
    }

    #[tokio::test]
    async fn tables_are_loaded_as_they_were_saved_last() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = || TableStore::new(directory.path(), None);
        assert_eq!(store().load(), Ok(SeenTables::default()), "a missing file is no error");
        let sender = watch::Sender::new(SeenTables::default());
        let saving = tokio::spawn(store().save_changes(sender.subscribe()));
        for digest in ["1", "2"] {
            sender.send_replace(seen(digest));
            while store().load() != Ok(seen(digest)) {
                tokio::task::yield_now().await;
            }
        }
        drop(sender);
        saving.await.expect("it ends");
    }

    #[tokio::test]
    async fn a_malformed_file_is_refused_and_one_of_another_version_is_unknown() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = TableStore::new(directory.path(), None);
        for malformed in ["", "{", "{}", r#"{"format":3,"tables":[7]}"#, &" ".repeat(2 << 20)] {
            fs::write(directory.path().join(FILE), malformed).expect("written");
            let why = store.load().expect_err("refused");
            assert!(why.contains(FILE) && why.contains("move the file away"), "{why}");
        }
        fs::write(directory.path().join(FILE), r#"{"format":4}"#).expect("written");
        assert_eq!(store.load(), Ok(SeenTables::default()));
    }

    #[derive(Default)]
    struct MemoryRecord(Mutex<Option<ElectionRecord>>);

    impl RecordStore for MemoryRecord {
        fn read(&self) -> BoxFuture<'_, Result<Option<ElectionRecord>, RecordError>> {
            Box::pin(ready(Ok(self.0.lock().clone())))
        }

        fn replace<'a>(
            &'a self,
            _: Option<&'a RecordVersion>,
            record: &'a ElectionRecord,
        ) -> BoxFuture<'a, Result<bool, RecordError>> {
            *self.0.lock() = Some(record.clone());
            Box::pin(ready(Ok(true)))
        }
    }

    /// A process that was started again without `--shared-state` compared tables with what they had been before it was
    /// used, and flushed the cluster for DDL that had long been acted upon.
    #[tokio::test]
    async fn what_is_shared_is_copied_to_the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join(FILE), seen("1").to_json().to_string()).expect("written");
        let standby = Standby::new(Arc::<MemoryRecord>::default(), "one".to_owned(), Arc::default(), || 7);
        let term = standby.wait_until_active().await;
        // It stores changes at once.
        term.begin_close();
        let shared = TableStore::new(directory.path(), Some(&term));
        assert_eq!(shared.load(), Ok(seen("1")), "nothing is shared yet");
        let sender = watch::Sender::new(seen("2"));
        let copied = async {
            while TableStore::new(directory.path(), None).load() != Ok(seen("2")) {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = shared.save_changes(sender.subscribe()) => unreachable!("its sender is there"),
            () = term.hold() => unreachable!("there is no other"),
            copied = tokio::time::timeout(Duration::from_secs(60), copied) => copied.expect("it is copied"),
        }
        assert_eq!(SharedTables(term).load(), Some(seen("2")));
    }
}
