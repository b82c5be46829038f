//! Unix sockets, and which listener a connection belongs to.

use rustix::fs::{Mode, OFlags, fchmod};
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

/// Binds a non-blocking Unix socket to `path`; the file gets `mode`. It does not listen yet: no client can connect.
///
/// The socket file of a process that has died is replaced.
///
/// # Errors
///
/// `AddrInUse` if a process listens there, or if the file is not a socket.
pub fn bind_unix(path: &Path, mode: u32) -> io::Result<Socket> {
    let address = SockAddr::unix(path)?;
    if is_listened_at(&address)? {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if is_socket {
        std::fs::remove_file(path)?;
    }
    let socket = new_socket()?;
    // The file is created with this mode, less the bits of the umask: at no moment may more users connect.
    fchmod(&socket, Mode::from_raw_mode(mode))?;
    socket.bind(&address)?;
    set_socket_mode(path, mode)?;
    Ok(socket)
}

/// Sets the access mode of the socket file at `path`. Not of a file of another kind, nor of the target of a link:
/// users that can write to the folder may have put it there, and this process may be root.
///
/// # Errors
///
/// The file is not a socket, or is a link, or its mode cannot be changed.
pub fn set_socket_mode(path: &Path, mode: u32) -> io::Result<()> {
    let file = open_socket_file(path)?;
    let has_mode = file.metadata()?.permissions().mode() & 0o7777 == mode;
    if has_mode { Ok(()) } else { set_file_mode(&file, mode) }
}

/// Opens the socket file at `path` itself, whatever the name refers to later.
///
/// # Errors
///
/// The file is not a socket, is a link, or has another name: then it may be another's.
pub fn open_socket_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let found = file.metadata()?;
    match found.file_type().is_socket() && found.nlink() == 1 {
        true => Ok(file),
        false => Err(io::Error::other("the file is not a socket with a single name: another file has replaced it")),
    }
}

/// Sets the access mode of a file that was opened by [`open_socket_file`].
pub fn set_file_mode(file: &File, mode: u32) -> io::Result<()> {
    // A descriptor that was opened with O_PATH does not allow fchmod.
    std::fs::set_permissions(format!("/proc/self/fd/{}", file.as_raw_fd()), Permissions::from_mode(mode))
}

/// Whether a process listens there. It may have no room for another connection.
fn is_listened_at(address: &SockAddr) -> io::Result<bool> {
    match new_socket()?.connect(address) {
        Ok(()) => Ok(true),
        Err(error) => Ok(error.kind() == io::ErrorKind::WouldBlock),
    }
}

fn new_socket() -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
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
        let first = bind_unix(&path, 0o700).expect("the path is free");
        first.listen(1).expect("it can listen");
        let error = bind_unix(&path, 0o700).expect_err("a process listens there");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(path.exists(), "as if the process had been killed");
        bind_unix(&path, 0o700).expect("the old file is replaced");
    }

    #[test]
    fn file_that_is_not_a_socket_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notes");
        std::fs::write(&path, "keep me").expect("written");
        assert_eq!(bind_unix(&path, 0o700).expect_err("not a socket").kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read(&path).expect("still there"), b"keep me");
    }

    /// With a full queue the check whether a process listens there waited until that process accepted, for ever if it
    /// was stopped.
    #[test]
    fn file_of_a_process_that_does_not_accept_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let first = bind_unix(&path, 0o700).expect("the path is free");
        first.listen(0).expect("it can listen");
        let address = SockAddr::unix(&path).expect("a path");
        let clients: Vec<Socket> = (0..4).map(|_| new_socket().expect("a socket")).collect();
        assert!(clients.iter().any(|client| client.connect(&address).is_err()), "the queue is full");
        assert_eq!(bind_unix(&path, 0o700).expect_err("a process listens there").kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn file_has_its_mode_whatever_the_umask_is() {
        let folder = tempfile::tempdir().expect("a folder");
        for mode in [0o700, 0o600, 0o777, 0o022] {
            let path = folder.path().join(format!("socket-{mode:o}"));
            bind_unix(&path, mode).expect("the path is free");
            let found = std::fs::metadata(&path).expect("it was created").permissions().mode() & 0o7777;
            assert_eq!(found, mode, "{found:o}");
        }
    }

    /// A user that could write to the folder replaced the file by a link, and the next process that took the socket
    /// over as root changed the mode of the file behind the link.
    #[test]
    fn mode_of_a_file_behind_a_link_is_not_changed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, other) = (folder.path().join("socket"), folder.path().join("other"));
        let socket = bind_unix(&other, 0o600).expect("the path is free");
        let file = folder.path().join("file");
        std::fs::write(&file, "another's").expect("written");
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("set");
        for target in [&other, &file, &folder.path().join("missing")] {
            std::os::unix::fs::symlink(target, &path).expect("a link");
            assert!(set_socket_mode(&path, 0o777).is_err(), "{target:?}");
            assert!(bind_unix(&path, 0o777).is_err(), "{target:?}");
            std::fs::remove_file(&path).expect("the link is still there");
        }
        assert!(set_socket_mode(&file, 0o777).is_err());
        std::fs::hard_link(&other, &path).expect("a hard link");
        assert!(set_socket_mode(&path, 0o777).is_err(), "another's socket");
        for path in [&other, &file] {
            assert_eq!(std::fs::metadata(path).expect("it exists").permissions().mode() & 0o777, 0o600);
        }
        drop(socket);
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
