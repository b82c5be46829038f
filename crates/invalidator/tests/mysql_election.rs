//! The record of the active invalidator in a real MariaDB.

use crate::mysql_server::{Server, TABLES};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::election::{ElectionRecord, RecordVersion, SessionLock, SharedState, StateLocation};
use std::{sync::Arc, time::Duration};

fn record(counter: u64, losses: u64) -> ElectionRecord {
    let version = RecordVersion { holder: "one".into(), counter };
    let state = SharedState { losses, ..SharedState::default() };
    ElectionRecord { version, lock: Some(SessionLock(7)), hung_after: Some(Duration::from_millis(1_400)), state }
}

/// A renewal whose result was unknown had been executed, and its repetition, with newer positions, was taken for
/// stored: the row had the version that it was to have.
#[tokio::test]
async fn a_record_is_stored_by_the_statement_that_changed_the_row() {
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    client.run(TABLES).await;
    let location = StateLocation::Mysql(server.options(), "app".into());
    let setup = location.setup_sql("root");
    client.run(setup.split("GRANT").next().expect("the table comes first")).await;
    let store = location.store(Arc::new(TcpNetwork), "row");
    let (first, older, newer) = (record(1, 0), record(2, 1), record(2, 2));
    assert_eq!(store.replace(None, &first).await, Ok(true));
    assert_eq!(store.replace(None, &record(1, 7)).await, Ok(false));
    assert_eq!(store.replace(Some(&first.version), &older).await, Ok(true));
    assert_eq!(store.replace(Some(&first.version), &newer).await, Ok(false));
    assert_eq!(store.read().await, Ok(Some(older)));
}
