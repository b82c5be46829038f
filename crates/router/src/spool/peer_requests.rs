//! Replies to the requests of other routers ([`super::peer_protocol`]), and ends the fences of those that are silent.

use super::Spool;
use super::ids::RouterId;
use super::peer_protocol::{self, FenceRequest};
use super::record::Deletion;
use super::recovery::SERVERS_MAX;
use super::server_log::ServerLog;
use super::writer::{AppendError, WriteEntry};
use bytes::Bytes;
use lookaside_protocol::Request;
use lookaside_routing::Address;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::Instant;

/// The most servers that no configuration names. Beyond it requests of peers for further ones are refused.
pub(super) const UNCONFIGURED_SERVERS_MAX: usize = 1_000;
/// The most routers that fence one server.
const PEER_FENCES_MAX: usize = 1_000;

impl Spool {
    /// The reply to another router: `name` is the key behind `spool_`. `None` if it is no request, or there are no
    /// peers.
    pub(crate) async fn reply_to_peer(&self, name: &[u8]) -> Option<Vec<u8>> {
        if self.shared.peers.is_empty() {
            return None;
        }
        if self.fragments.insert(name) {
            return Some(b"ok".to_vec());
        }
        if let Some(router) = peer_protocol::parse_fenced_query(name) {
            return self.list_fenced_for(router);
        }
        if let Some(request) = FenceRequest::parse(name) {
            return self.fence_for_peer(request).await;
        }
        let (router, sequence, address) = peer_protocol::parse_release(name)?;
        self.release_for_peer(router, sequence, &address).await
    }

    /// The server and the request of a delete that another router asks to forward: `name` is the key behind `spool_`.
    pub(crate) fn parse_forwarded_delete(&self, name: &[u8]) -> Option<(Address, Request<Bytes>)> {
        if self.shared.peers.is_empty() {
            return None;
        }
        let (address, deletion) = self.fragments.parse_delete(name)?;
        Some((address, Deletion::request(&deletion)))
    }

    /// The server that another router asks to flush: `name` is the key behind `spool_`.
    pub(crate) fn parse_forwarded_flush(&self, name: &[u8]) -> Option<Address> {
        peer_protocol::parse_flush(name).filter(|_| !self.shared.peers.is_empty())
    }

    fn list_fenced_for(&self, router: RouterId) -> Option<Vec<u8>> {
        let servers = self.shared.servers.lock();
        let fenced = servers.values().filter(|server| server.is_fenced_for(router)).map(|server| &*server.address.0);
        // A router that is configured as its own peer gets no reply.
        (!self.is_own_id(router)).then(|| fenced.collect::<Vec<_>>().join("\r\n").into_bytes())
    }

    async fn fence_for_peer(&self, request: FenceRequest) -> Option<Vec<u8>> {
        let FenceRequest { router, number: sequence, duration, server: address } = request;
        if self.is_own_id(router) {
            return None;
        }
        if !self.is_known(&address) && !self.has_space_for_unconfigured() {
            return Some(b"too many servers".to_vec());
        }
        let server = self.server(&address);
        if server.peer_fences() >= PEER_FENCES_MAX && !server.is_fenced_for(router) {
            return Some(b"too many routers have fenced the server".to_vec());
        }
        // The other router acknowledges deletes for half of its own time-out after the last renewal.
        let duration = duration.unwrap_or(self.shared.settings.peer_timeout);
        let until = Instant::now() + duration;
        let reply =
            self.write_peer_entry(&server, router, WriteEntry::Fence { router, sequence, until, duration }).await;
        // Not while clients of this router may read the server, which do not know of the fence yet.
        let is_read = reply == b"ok" && server.permits_left(&self.shared.settings.read_permits).is_some();
        Some(if is_read { peer_protocol::PERMITS_IN_USE.to_vec() } else { reply })
    }

    async fn release_for_peer(&self, router: RouterId, sequence: u64, address: &Address) -> Option<Vec<u8>> {
        if self.is_own_id(router) {
            return None;
        }
        if !self.is_known(address) {
            return Some(b"ok".to_vec());
        }
        let server = self.server(address);
        Some(self.write_peer_entry(&server, router, WriteEntry::Release { router, sequence }).await)
    }

    /// Writes a request of `router`, logs its effect and returns the reply.
    async fn write_peer_entry(&self, server: &Arc<ServerLog>, router: RouterId, entry: WriteEntry) -> Vec<u8> {
        let was_fenced = server.is_fenced_for(router);
        let written: Result<(), AppendError> = self.writer.write(server, entry).await;
        let is_fenced = server.is_fenced_for(router);
        let allowed = (was_fenced != is_fenced).then(|| self.peer_fence_log.lock().allow(Instant::now())).flatten();
        match allowed {
            Some(suppressed) if is_fenced => tracing::warn!(
                server = %server.address, %router, suppressed,
                "server fenced by peer: that router has undelivered deletes for it"
            ),
            Some(suppressed) => {
                tracing::info!(server = %server.address, %router, suppressed, "peer released its fence");
            }
            None => {}
        }
        written.map_or_else(|error| error.to_string().into_bytes(), |()| b"ok".to_vec())
    }

    /// Makes every server with the fence of a silent router flush.
    pub(super) async fn expire_peer_fences(&self) {
        let now = Instant::now();
        let servers: Vec<_> = self.shared.servers.lock().values().cloned().collect();
        for server in servers {
            for router in server.overdue_peers(now) {
                tracing::warn!(
                    server = %server.address, %router,
                    "a router that has fenced this server is silent: the server will be flushed before it is read"
                );
                // A failed write is tried again; until then the server stays fenced.
                let _ = self.writer.write(&server, WriteEntry::Expire { router }).await;
            }
        }
    }

    fn is_own_id(&self, router: RouterId) -> bool {
        self.shared.peers.own_id() == router
    }

    fn is_known(&self, address: &Address) -> bool {
        self.shared.servers.lock().contains_key(address)
    }

    /// Whether one more server that no configuration names may be added. Removes idle ones if need be.
    fn has_space_for_unconfigured(&self) -> bool {
        let mut servers = self.shared.servers.lock();
        let has_space = |servers: &BTreeMap<_, Arc<ServerLog>>| {
            let unconfigured = servers.values().filter(|server| server.is_unconfigured()).count();
            servers.len() < SERVERS_MAX && unconfigured < UNCONFIGURED_SERVERS_MAX
        };
        if has_space(&servers) {
            return true;
        }
        self.remove_unused(&mut servers);
        has_space(&servers)
    }
}
