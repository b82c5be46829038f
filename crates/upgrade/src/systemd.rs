//! Notifies systemd (sd_notify(3)) that the process is ready, and of its process id. Without systemd it does nothing.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The socket of systemd: a path, or `@` and a name in the abstract namespace.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// Notifies systemd that this process serves, also after a takeover.
pub fn notify_ready() {
    let Ok(path) = std::env::var(SOCKET_VARIABLE) else { return };
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let state = format!("MAINPID={}\nREADY=1\n", std::process::id());
    let sent = UnixDatagram::unbound().and_then(|socket| socket.send_to_addr(state.as_bytes(), &address?));
    if let Err(error) = sent {
        tracing::warn!("cannot notify systemd at {path} ({SOCKET_VARIABLE}): {error}");
    }
}
