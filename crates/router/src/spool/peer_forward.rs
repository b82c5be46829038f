//! The task that sends one peer the deletes that it is asked to forward ([`super::peers`]), one batch after the other.
//! Its connection is its own: a reply may take as long as the server of the deletes hangs.

use super::peer_connection::PeerConnection;
use super::peers::{ForwardRequest, Peers};
use lookaside_client::{CommandError, Network};

/// Forwards deletes through the peer at `index` until it is dropped. One call for each peer.
pub(super) async fn run(peers: &Peers, index: usize, network: &dyn Network) {
    let peer = peers.peer(index);
    let taken = peer.forward_queue.lock().take();
    let Some(mut forward_queue) = taken else { return std::future::pending().await };
    let mut connection = PeerConnection::new(network, &peer.address, peers.timeout());
    loop {
        let ForwardRequest { keys, reply } = forward_queue.recv().await.expect("the peer itself holds a sender");
        if reply.is_closed() {
            continue; // The caller has given up, and will ask again.
        }
        let was_open = connection.is_open();
        let mut replies = connection.get(&keys).await;
        if was_open && !matches!(replies, Ok(_) | Err(CommandError::TimedOut(_))) {
            // The peer may only have been restarted.
            connection.close();
            replies = connection.get(&keys).await;
        }
        let is_applied = match &replies {
            Ok(replies) => replies.iter().all(|reply| reply.as_deref() == Some(b"ok")),
            Err(error) => {
                tracing::debug!(peer = %peer.address, %error, "cannot forward deletes by a spool peer");
                connection.close();
                false
            }
        };
        let _ = reply.send(is_applied);
    }
}
