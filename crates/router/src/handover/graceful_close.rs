//! Closes connections that cannot be handed over, such as TLS: each gets its remaining output and an end of stream,
//! and is closed when its client has closed it too.
//!
//! Closing a socket with unread input resets the connection, and a reply in flight may be lost. So the client closes
//! first, or is given time to. What it still sends is read and discarded; no command in it is executed.

use crate::frontend::session::ClientSession;
use lookaside_upgrade::{GRACE_PERIOD, log_unclosed};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::timeout;

pub(crate) async fn close_gracefully(clients: Vec<ClientSession>) {
    let mut closing: JoinSet<()> = clients.into_iter().map(close).collect();
    let all = async { while closing.join_next().await.is_some() {} };
    if timeout(GRACE_PERIOD, all).await.is_err() {
        log_unclosed(closing.len());
    }
}

async fn close(ClientSession { mut stream, connection_state }: ClientSession) {
    let mut discarded = [0; 4_096];
    let is_shut_down = stream.write_all(&connection_state.output).await.is_ok() && stream.shutdown().await.is_ok();
    while is_shut_down && matches!(stream.read(&mut discarded).await, Ok(1..)) {}
}
