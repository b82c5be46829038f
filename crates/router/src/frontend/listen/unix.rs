//! The unix socket for clients on this machine, and its file.
//!
//! The file of a router that has died is replaced; that of a router that runs is not, nor is a file that is not a
//! socket. The file is removed at the end, if it is still the one that was created here. The file of a socket which
//! another process handed over belongs to that process until this one has taken over.

use lookaside_net::{bind_unix, open_socket_file, set_file_mode};
use lookaside_upgrade::Inherited;
use socket2::Socket;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file of a unix socket; removed when dropped.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Another router may have replaced the file.
    identity: FileIdentity,
    mode: u32,
    /// False while the process that created it may continue to serve there.
    is_owned: bool,
}

/// Device, inode, and creation time: inodes are reused.
type FileIdentity = (u64, u64, i64, i64);

/// Listens at `path`; the file gets `mode`. A socket of another process is taken from `inherited`.
pub(super) fn open(
    path: &Path,
    mode: u32,
    backlog: i32,
    inherited: &mut Inherited,
) -> Result<(Socket, SocketFile), String> {
    let describe = |error: io::Error| {
        let path = path.display();
        match error.kind() {
            io::ErrorKind::AddrInUse => format!("{path}: a process listens there, or the file is not a socket"),
            _ => format!("cannot listen at {path}: {error}"),
        }
    };
    let opened = match inherited.take_unix(path) {
        Some(socket) => file_of(path, mode, false).and_then(|file| listen(socket, file, backlog)),
        None => bind(path, mode).and_then(|(socket, file)| listen(socket, file, backlog)),
    };
    opened.map_err(|error| describe(error) + "; choose another file with --unix-domain-sock")
}

fn listen(socket: Socket, file: SocketFile, backlog: i32) -> io::Result<(Socket, SocketFile)> {
    // Before any client can connect.
    file.set_mode(file.mode)?;
    socket.listen(backlog)?;
    Ok((socket, file))
}

/// A socket that no client can connect to yet.
fn bind(path: &Path, mode: u32) -> io::Result<(Socket, SocketFile)> {
    let socket = bind_unix(path, mode)?;
    Ok((socket, file_of(path, mode, true)?))
}

fn file_of(path: &Path, mode: u32, is_owned: bool) -> io::Result<SocketFile> {
    let identity = identity_of(path).ok_or(io::ErrorKind::NotFound)?;
    Ok(SocketFile { path: path.to_owned(), identity, mode, is_owned })
}

fn identity_of(path: &Path) -> Option<FileIdentity> {
    fs::symlink_metadata(path).ok().as_ref().map(identity)
}

fn identity(file: &Metadata) -> FileIdentity {
    (file.dev(), file.ino(), file.mtime(), file.mtime_nsec())
}

impl SocketFile {
    /// Sets the access mode. A file that has replaced this one, and the target of a link, keep theirs.
    fn set_mode(&self, mode: u32) -> io::Result<()> {
        let file = open_socket_file(&self.path)?;
        if identity(&file.metadata()?) != self.identity {
            return Err(io::Error::other("another file has replaced it"));
        }
        set_file_mode(&file, mode)
    }

    /// Leaves the file to another process.
    pub(crate) fn keep_file(mut self) {
        self.is_owned = false;
    }

    /// Takes ownership when this process alone serves there. If the process that handed the socket over has removed the
    /// file at its end, binds and returns a new socket.
    pub(super) fn take_ownership(&mut self, backlog: i32) -> Result<Option<Socket>, String> {
        if self.is_owned || identity_of(&self.path) == Some(self.identity) {
            self.is_owned = true;
            return Ok(None);
        }
        let bound = bind(&self.path, self.mode).and_then(|(socket, file)| listen(socket, file, backlog));
        let lost = |error: io::Error| {
            format!("cannot listen again at {}, which was handed over: {error}", self.path.display())
        };
        let (socket, file) = bound.map_err(lost)?;
        *self = file;
        Ok(Some(socket))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_owned && identity_of(&self.path) == Some(self.identity) {
            // If it cannot be removed, the next router replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn file_has_its_mode_and_is_removed_at_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("router");
        let (socket, file) = open(&path, 0o720, 16, &mut Inherited::default()).expect("the path is free");
        assert_eq!(fs::metadata(&path).expect("a file").mode() & 0o777, 0o720);
        assert!(UnixStream::connect(&path).is_ok());
        drop((socket, file));
        assert!(!path.exists());
    }

    #[test]
    fn file_of_a_dead_router_is_replaced_and_that_of_a_live_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("router");
        let (socket, file) = open(&path, 0o700, 16, &mut Inherited::default()).expect("the path is free");
        let why = open(&path, 0o700, 16, &mut Inherited::default()).expect_err("a process listens there");
        assert!(why.contains("a process listens there") && why.contains("--unix-domain-sock"), "{why}");
        drop(socket); // As if it had been killed: the file stays.
        // Without the link the next file might get this one's inode, and the clock is not fine enough to distinguish
        // them.
        fs::hard_link(&path, folder.path().join("kept")).expect("a link");
        let next = open(&path, 0o700, 16, &mut Inherited::default()).expect("no process listens there");
        drop(file);
        assert!(path.exists(), "it is the next router's");
        drop(next);
        assert!(!path.exists());
    }

    #[test]
    fn file_of_an_inherited_socket_is_kept_until_it_is_owned_and_replaced_if_it_was_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("router");
        let (_socket, file) = open(&path, 0o700, 16, &mut Inherited::default()).expect("the path is free");
        file.keep_file();
        drop(file_of(&path, 0o700, false).expect("it exists"));
        assert!(path.exists(), "it is another process's");
        let mut file = file_of(&path, 0o700, false).expect("it exists");
        assert!(file.take_ownership(16).expect("the file is unchanged").is_none());
        drop(file);
        assert!(!path.exists(), "it was this process's");
        let (first, file) = open(&path, 0o700, 16, &mut Inherited::default()).expect("the path is free");
        let mut successor = file_of(&path, 0o700, false).expect("it exists");
        drop(file);
        assert!(!path.exists());
        let _second = successor.take_ownership(16).expect("the path is free").expect("another socket");
        drop(first);
        assert!(UnixStream::connect(&path).is_ok());
        drop(successor);
        assert!(!path.exists());
    }

    #[test]
    fn file_that_is_not_a_socket_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notes");
        fs::write(&path, "keep me").expect("written");
        assert!(open(&path, 0o700, 16, &mut Inherited::default()).is_err());
        assert_eq!(fs::read(&path).expect("it exists"), b"keep me");
    }

    #[test]
    fn link_that_replaced_the_file_changes_no_other_files_mode() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, other) = (folder.path().join("router"), folder.path().join("other"));
        fs::write(&other, "another's").expect("written");
        fs::set_permissions(&other, Permissions::from_mode(0o600)).expect("set");
        let (_socket, file) = bind(&path, 0o700).expect("the path is free");
        fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink(&other, &path).expect("a link");
        assert!(file.set_mode(0o777).is_err());
        assert_eq!(fs::metadata(&other).expect("it exists").mode() & 0o777, 0o600);
    }
}
