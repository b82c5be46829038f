//! `stats conns`.

use super::list::stat;
use crate::net::connection_table::ConnectionEntry;
use crate::net::peer_address;
use crate::shared::ServerState;
use lookaside_store::Now;

impl ServerState {
    /// Appends `stats conns`: the listening sockets, then the connections, each in the order of descriptors.
    pub(super) fn write_connections(&self, now: Now, out: &mut Vec<u8>) {
        let uptime_s = self.clock.uptime_s(now);
        for (descriptor, address) in self.listening.get().into_iter().flatten() {
            let is_udp = address.starts_with("udp");
            if is_udp {
                stat(&format!("{descriptor}:UDP"), "UDP", out);
            }
            stat(&format!("{descriptor}:addr"), address, out);
            stat(&format!("{descriptor}:state"), if is_udp { "conn_read" } else { "conn_listening" }, out);
            stat(&format!("{descriptor}:secs_since_last_cmd"), uptime_s, out);
        }
        for ConnectionEntry { descriptor, active_s, phase } in self.net.connection_table.entries() {
            let Some((peer, local)) = peer_address::endpoints(descriptor) else { continue };
            stat(&format!("{descriptor}:addr"), peer, out);
            stat(&format!("{descriptor}:listen_addr"), local, out);
            stat(&format!("{descriptor}:state"), phase.name(), out);
            stat(&format!("{descriptor}:secs_since_last_cmd"), uptime_s.saturating_sub(active_s), out);
        }
    }
}
