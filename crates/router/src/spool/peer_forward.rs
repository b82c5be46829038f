//! The task that sends one peer the deletes that it is asked to forward ([`super::peers`]): for each server one batch
//! after the other, for several servers at once. A reply may take as long as the server of the deletes hangs, so each
//! server that is being forwarded to has a connection of its own.

use super::peer_connection::PeerConnection;
use super::peers::{ForwardRequest, Peers};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lookaside_client::{CommandError, Network};
use lookaside_routing::Address;
use std::collections::{BTreeMap, VecDeque};

/// The most connections to one peer. Deletes for further servers wait, and their servers are fenced meanwhile.
const CONNECTIONS_MAX: usize = 16;
/// The most batches that wait for one server. The rest of the queue is for others.
const WAITING_PER_SERVER_MAX: usize = 250;

/// The batches that wait for a server, and whether one is being forwarded.
#[derive(Default)]
struct ServerForwards {
    waiting: VecDeque<ForwardRequest>,
    is_forwarding: bool,
}

/// Forwards deletes through the peer at `index` until it is dropped. One call for each peer.
pub(super) async fn run(peers: &Peers, index: usize, network: &dyn Network) {
    let peer = peers.peer(index);
    let taken = peer.forward_queue.lock().take();
    let Some(mut forward_queue) = taken else { return std::future::pending().await };
    let mut servers: BTreeMap<Address, ServerForwards> = BTreeMap::new();
    let mut idle: Vec<PeerConnection<'_>> = Vec::new();
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some((server, connection)) = running.next(), if !running.is_empty() => {
                idle.push(connection);
                let forwards: &mut ServerForwards = servers.get_mut(&server).expect("it is kept while it is forwarded to");
                forwards.is_forwarding = false;
            }
            request = forward_queue.recv() => {
                let request: ForwardRequest = request.expect("the peer itself holds a sender");
                let waiting = &mut servers.entry(request.server.clone()).or_default().waiting;
                waiting.retain(|waiting| !waiting.reply.is_closed());
                if waiting.len() < WAITING_PER_SERVER_MAX {
                    waiting.push_back(request);
                }
            }
        }
        for (server, forwards) in &mut servers {
            if running.len() < CONNECTIONS_MAX
                && !forwards.is_forwarding
                && let Some(request) = forwards.waiting.pop_front()
            {
                forwards.is_forwarding = true;
                let new = || PeerConnection::new(network, &peer.address, peers.timeout());
                let connection = idle.pop().unwrap_or_else(new);
                let server = server.clone();
                running.push(async move { (server, forward(connection, request).await) });
            }
        }
        servers.retain(|_, forwards| forwards.is_forwarding || !forwards.waiting.is_empty());
    }
}

/// Forwards one batch and replies to its caller. Returns the connection.
async fn forward<'a>(mut connection: PeerConnection<'a>, request: ForwardRequest) -> PeerConnection<'a> {
    let was_open = connection.is_open();
    let mut is_applied = forward_keys(&mut connection, &request).await;
    if was_open && !matches!(is_applied, Ok(_) | Err(CommandError::TimedOut(_))) {
        // The peer may only have been restarted.
        connection.close();
        is_applied = forward_keys(&mut connection, &request).await;
    }
    let is_applied = is_applied.unwrap_or_else(|error| {
        tracing::debug!(server = %request.server, %error, "cannot forward deletes by a spool peer");
        connection.close();
        false
    });
    let _ = request.reply.send(is_applied);
    connection
}

/// Whether the peer has applied all deletes. Stops when the caller has given up: it will ask again.
async fn forward_keys(connection: &mut PeerConnection<'_>, request: &ForwardRequest) -> Result<bool, CommandError> {
    for keys in request.keys.chunks(PeerConnection::KEYS_PER_GET_MAX) {
        if request.reply.is_closed() {
            return Ok(false);
        }
        let replies = connection.get(keys).await?;
        if replies.iter().any(|reply| reply.as_deref() != Some(b"ok")) {
            return Ok(false);
        }
    }
    Ok(true)
}
