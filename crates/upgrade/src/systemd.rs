//! What a supervisor is told (sd_notify(3)): that the ports are open, and which process it is that serves. Without one
//! there is nothing to tell. Serves no request.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where a supervisor listens: a path, or a name in the abstract namespace behind `@`.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// Says that this process serves, whichever did before.
pub fn notify_ready() {
    let Ok(place) = std::env::var(SOCKET_VARIABLE) else { return };
    let address = match place.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&place),
    };
    let state = format!("MAINPID={}\nREADY=1\n", std::process::id());
    let told = UnixDatagram::unbound().and_then(|socket| socket.send_to_addr(state.as_bytes(), &address?));
    if let Err(error) = told {
        tracing::warn!("cannot tell the supervisor at {place} ({SOCKET_VARIABLE}): {error}");
    }
}
