//! Unix sockets, and which listener a connection belongs to.

use socket2::{Domain, SockAddr, Socket, Type};
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Binds a non-blocking Unix socket to `path`. It does not listen yet, so that the caller can set the file's mode
/// before a client can connect.
///
/// The socket file of a process that has died is replaced.
///
/// # Errors
///
/// `AddrInUse` if a process listens there, or if the file is not a socket.
pub fn bind_unix(path: &Path) -> io::Result<Socket> {
    if UnixStream::connect(path).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if is_socket {
        std::fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    Ok(socket)
}

/// Parses the access mode of a Unix socket: an octal number up to 777.
pub fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|&mode| mode <= 0o777);
    mode.ok_or_else(|| "an access mode is an octal number up to 777".to_owned())
}

/// Whether a connection whose own end is `local` was accepted by a listener at `listener`.
pub fn is_accepted_at(local: &SockAddr, listener: &SockAddr) -> bool {
    match (listener.as_socket(), local.as_socket()) {
        (Some(listener), Some(local)) => {
            let is_any = listener.ip().is_unspecified() && listener.is_ipv4() == local.is_ipv4();
            listener.port() == local.port() && (listener.ip() == local.ip() || is_any)
        }
        (None, None) => listener.as_pathname().is_some() && listener.as_pathname() == local.as_pathname(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    #[test]
    fn file_of_a_dead_process_is_replaced_and_that_of_a_live_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let first = bind_unix(&path).expect("the path is free");
        first.listen(1).expect("it can listen");
        let error = bind_unix(&path).expect_err("a process listens there");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(path.exists(), "as if the process had been killed");
        bind_unix(&path).expect("the old file is replaced");
    }

    #[test]
    fn file_that_is_not_a_socket_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notes");
        std::fs::write(&path, "keep me").expect("written");
        assert_eq!(bind_unix(&path).expect_err("not a socket").kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read(&path).expect("still there"), b"keep me");
    }

    #[test]
    fn mode_is_octal_and_at_most_777() {
        assert_eq!(parse_mode("700"), Ok(0o700));
        assert_eq!(parse_mode("0770"), Ok(0o770));
        for text in ["", "778", "1000", "rwx", "-1"] {
            assert!(parse_mode(text).is_err_and(|why| why.contains("octal")), "{text}");
        }
    }

    #[test]
    fn connection_belongs_to_its_own_address_or_to_any_address_of_its_family() {
        let address = |text: &str| SockAddr::from(text.parse::<SocketAddr>().expect("an address"));
        let local = address("10.0.0.1:7");
        for (listener, expected) in [
            ("10.0.0.1:7", true),
            ("0.0.0.0:7", true),
            ("10.0.0.2:7", false),
            ("10.0.0.1:8", false),
            ("0.0.0.0:8", false),
            ("[::]:7", false),
        ] {
            assert_eq!(is_accepted_at(&local, &address(listener)), expected, "{listener}");
        }
        let file = |path| SockAddr::unix(path).expect("a path");
        assert!(is_accepted_at(&file("/a"), &file("/a")) && !is_accepted_at(&file("/a"), &file("/b")));
        assert!(!is_accepted_at(&file("/a"), &local) && !is_accepted_at(&local, &file("/a")));
    }
}
