//! A unix socket for clients on this machine, and its file.
//!
//! A file that a dead router left is taken over: nobody answers there. One that somebody answers at is not, nor is a
//! file that is no socket. At the end the file goes, if it is still the one that was made here. That of a socket which
//! another process handed over is that process's until this one has taken over.

use lookaside_upgrade::Inherited;
use rustix::fs::{Mode, OFlags};
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The file of an open unix socket; removed when dropped.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Another router may have put its own in the place.
    identity: Identity,
    mode: u32,
    /// Not while the process that made it may go on serving there.
    is_ours: bool,
}

/// Device, inode, and when it was made: inodes are given out again.
type Identity = (u64, u64, i64, i64);

/// Listens at `path`; who may connect, `mode` says.
/// One that another process had opened is taken from `inherited`.
pub(super) fn open(
    path: &Path,
    mode: u32,
    backlog: i32,
    inherited: &mut Inherited,
) -> Result<(Socket, SocketFile), String> {
    let in_words = |error: io::Error| {
        let path = path.display();
        match error.kind() {
            io::ErrorKind::AddrInUse => format!("{path}: somebody listens there, or it is a file of another kind"),
            _ => format!("{path} cannot be listened at: {error}"),
        }
    };
    let opened = match inherited.take_unix(path) {
        Some(socket) => file_of(path, mode, false).and_then(|file| listen(socket, file, backlog)),
        None => bind(path, mode).and_then(|(socket, file)| listen(socket, file, backlog)),
    };
    opened.map_err(|error| in_words(error) + "; choose another file with --unix-domain-sock")
}

fn listen(socket: Socket, file: SocketFile, backlog: i32) -> io::Result<(Socket, SocketFile)> {
    // Before anybody can connect.
    file.set_mode(file.mode)?;
    socket.listen(backlog)?;
    Ok((socket, file))
}

/// A socket that nobody can connect to yet.
fn bind(path: &Path, mode: u32) -> io::Result<(Socket, SocketFile)> {
    if UnixStream::connect(path).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    if fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    Ok((socket, file_of(path, mode, true)?))
}

fn file_of(path: &Path, mode: u32, is_ours: bool) -> io::Result<SocketFile> {
    let identity = identity_of(path).ok_or(io::ErrorKind::NotFound)?;
    Ok(SocketFile { path: path.to_owned(), identity, mode, is_ours })
}

fn identity_of(path: &Path) -> Option<Identity> {
    fs::symlink_metadata(path).ok().as_ref().map(identity)
}

fn identity(file: &Metadata) -> Identity {
    (file.dev(), file.ino(), file.mtime(), file.mtime_nsec())
}

impl SocketFile {
    /// Says who may connect. Another file that has been put in the place, and what a link there leads to, stay as they are.
    fn set_mode(&self, mode: u32) -> io::Result<()> {
        // The file itself, whatever its name leads to by now.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(&self.path, flags, Mode::empty())?);
        let found = file.metadata()?;
        if !found.file_type().is_socket() || identity(&found) != self.identity {
            return Err(io::Error::other("another file has been put in its place"));
        }
        fs::set_permissions(format!("/proc/self/fd/{}", file.as_raw_fd()), Permissions::from_mode(mode))
    }

    /// It is another process's now.
    pub(crate) fn disown(mut self) {
        self.is_ours = false;
    }

    /// It is this process's from now on: nobody else serves there. A socket in the place of the one that was handed over, if the
    /// process before this one has removed the file at its end.
    pub(super) fn take_ownership(&mut self, backlog: i32) -> Result<Option<Socket>, String> {
        if self.is_ours || identity_of(&self.path) == Some(self.identity) {
            self.is_ours = true;
            return Ok(None);
        }
        let bound = bind(&self.path, self.mode).and_then(|(socket, file)| listen(socket, file, backlog));
        let lost = |error: io::Error| {
            format!("{}, which was handed over, cannot be listened at anew: {error}", self.path.display())
        };
        let (socket, file) = bound.map_err(lost)?;
        *self = file;
        Ok(Some(socket))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_ours && identity_of(&self.path) == Some(self.identity) {
            // Who may not remove it leaves it: the next router takes it over.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_its_mode_and_goes_with_the_router() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("router");
        let (socket, file) = open(&path, 0o720, 16, &mut Inherited::default()).expect("nobody is there");
        assert_eq!(fs::metadata(&path).expect("a file").mode() & 0o777, 0o720);
        assert!(UnixStream::connect(&path).is_ok());
        drop((socket, file));
        assert!(!path.exists());
    }

    #[test]
    fn what_a_dead_router_left_is_taken_over_and_what_lives_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("router");
        let (socket, file) = open(&path, 0o700, 16, &mut Inherited::default()).expect("nobody is there");
        let why = open(&path, 0o700, 16, &mut Inherited::default()).expect_err("somebody answers");
        assert!(why.contains("somebody listens there") && why.contains("--unix-domain-sock"), "{why}");
        drop(socket); // As if it had been killed: the file stays.
        // Else the next file might have this one's inode, and the clock is not fine enough to tell them apart.
        fs::hard_link(&path, folder.path().join("kept")).expect("a link");
        let next = open(&path, 0o700, 16, &mut Inherited::default()).expect("nobody answers");
        drop(file);
        assert!(path.exists(), "it is the next one's by now");
        drop(next);
        assert!(!path.exists());
    }

    #[test]
    fn the_file_of_an_inherited_socket_is_left_until_it_is_taken_and_made_anew_if_it_has_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("router");
        let (_socket, file) = open(&path, 0o700, 16, &mut Inherited::default()).expect("nobody is there");
        file.disown();
        drop(file_of(&path, 0o700, false).expect("there"));
        assert!(path.exists(), "it is another process's");
        let mut file = file_of(&path, 0o700, false).expect("there");
        assert!(file.take_ownership(16).expect("nothing to do").is_none());
        drop(file);
        assert!(!path.exists(), "it was this one's");
        let (first, file) = open(&path, 0o700, 16, &mut Inherited::default()).expect("nobody is there");
        let mut heir = file_of(&path, 0o700, false).expect("there");
        drop(file);
        assert!(!path.exists());
        let _second = heir.take_ownership(16).expect("nobody is there").expect("another socket");
        drop(first);
        assert!(UnixStream::connect(&path).is_ok());
        drop(heir);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notes");
        fs::write(&path, "keep me").expect("written");
        assert!(open(&path, 0o700, 16, &mut Inherited::default()).is_err());
        assert_eq!(fs::read(&path).expect("there"), b"keep me");
    }

    #[test]
    fn a_link_put_in_the_place_changes_no_other_files_mode() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, other) = (folder.path().join("router"), folder.path().join("other"));
        fs::write(&other, "another's").expect("written");
        fs::set_permissions(&other, Permissions::from_mode(0o600)).expect("set");
        let (_socket, file) = bind(&path, 0o700).expect("nobody is there");
        fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink(&other, &path).expect("a link");
        assert!(file.set_mode(0o777).is_err());
        assert_eq!(fs::metadata(&other).expect("there").mode() & 0o777, 0o600);
    }
}
