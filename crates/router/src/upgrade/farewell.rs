//! The end of connections that no other process can go on with, such as TLS: each is sent what its client is still to get, is
//! told that nothing more comes, and closed once the client has gone.
//!
//! A socket that is closed while bytes lie in it unread resets its connection, and a reply that is on its way may be lost with
//! it. So the client ends first, or has been given time; what it still asks for is read and passed over: nothing of it is
//! carried out.

use crate::frontend::session::SuspendedSession;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long all of it may take.
const FAREWELL_MAX: Duration = Duration::from_secs(3);

/// Says farewell to all of them.
pub(crate) async fn farewell(clients: Vec<SuspendedSession>) {
    let mut leaving: JoinSet<()> = clients.into_iter().map(part).collect();
    let all = async { while leaving.join_next().await.is_some() {} };
    if timeout(FAREWELL_MAX, all).await.is_err() {
        tracing::info!("{} connections are closed that their clients have not ended", leaving.len());
    }
}

async fn part(SuspendedSession { mut stream, connection_state }: SuspendedSession) {
    let mut passed_over = [0; 4_096];
    let is_told = stream.write_all(&connection_state.output).await.is_ok() && stream.shutdown().await.is_ok();
    while is_told && matches!(stream.read(&mut passed_over).await, Ok(1..)) {}
}
