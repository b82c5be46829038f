//! Announces the open ports: in the log and, as memcached does, in the file that MEMCACHED_PORT_FILENAME names.

use crate::net::acceptor::Listener;
use crate::session::context::Protocols;
use crate::shared::ServerState;
use crate::startup::listeners::local_address;
use anyhow::Context;
use lookaside_net::TlsMode;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

const PORT_FILE_VARIABLE: &str = "MEMCACHED_PORT_FILENAME";

pub(crate) fn announce(state: &ServerState, listeners: &[Listener]) -> anyhow::Result<()> {
    let arguments = &state.arguments;
    let mut ports = String::new();
    for listener in listeners {
        let Some(address) = local_address(&listener.socket) else { continue };
        state.tcp_port.store(address.port(), Ordering::Relaxed);
        ports += &format!("TCP {}: {}\n", if address.is_ipv6() { "INET6" } else { "INET" }, address.port());
        tracing::info!("listening on {address}{}{}", describe_tls(listener.tls), describe_protocol(listener.protocols));
    }
    if let Some(path) = &arguments.unix_path {
        tracing::info!("listening on {}", path.display());
    } else if state.udp_port != 0 {
        ports += &format!("UDP INET: {}\n", state.udp_port);
        tracing::info!("listening on UDP port {}", state.udp_port);
        if let Some(worker_ports) = arguments.udp_worker_ports() {
            let (first, last) = (worker_ports.start(), worker_ports.end());
            tracing::info!("listening on UDP ports {first} to {last}, one for each worker thread");
        }
    }
    if arguments.listen.is_empty() && arguments.unix_path.is_none() {
        tracing::info!("only this machine can connect; choose addresses with -l (memcached would listen on all)");
    }
    let Some(path) = std::env::var_os(PORT_FILE_VARIABLE).map(PathBuf::from) else { return Ok(()) };
    replace_file(&path, &ports)
        .with_context(|| format!("cannot write the ports to {} ({PORT_FILE_VARIABLE})", path.display()))
}

/// Writes another file and renames it, so that a process that waits for the file never reads half of it.
fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let temporary_path = path.with_extension("lookaside");
    // An existing file, or a link to another user's file, must not be written to.
    match fs::remove_file(&temporary_path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::create_new(&temporary_path)?.write_all(text.as_bytes())?;
    fs::rename(&temporary_path, path)
}

fn describe_tls(tls: Option<TlsMode>) -> &'static str {
    match tls {
        None => "",
        Some(TlsMode::Plain) => " without TLS",
        Some(TlsMode::Tls) => " with TLS",
        Some(TlsMode::MutualTls) => " with TLS, for clients with a certificate",
    }
}

fn describe_protocol(protocols: Option<Protocols>) -> &'static str {
    match protocols {
        Some(Protocols::Text) => ", for the text protocol",
        Some(Protocols::Binary) => ", for the binary protocol",
        Some(Protocols::Both) | None => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_behind_a_link_is_not_overwritten() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, other) = (folder.path().join("ports"), folder.path().join("other"));
        fs::write(&other, "another's").expect("written");
        for link in [path.clone(), path.with_extension("lookaside")] {
            std::os::unix::fs::symlink(&other, &link).expect("a link");
            replace_file(&path, "TCP INET: 1\n").expect("links are replaced");
            assert_eq!(fs::read_to_string(&path).expect("written"), "TCP INET: 1\n");
            assert_eq!(fs::read_to_string(&other).expect("it exists"), "another's");
        }
    }
}
