//! The user and the resource limits of the process: `-u`, `-r`, `-k`.
//!
//! ```text
//!   read keys and passwords -> open ports -> become the user of -u -> build the store -> lock memory -> serve
//! ```
//!
//! So a port below 1024 and a key that only root may read need no privileges while clients are served. Files that are
//! reloaded (SIGHUP) and a region that outlives the process must be accessible to the user.

use crate::cli::{Arguments, UsageError};
use crate::startup::daemonize::PidFile;
use anyhow::Context;
use lookaside_net::open_socket_file;
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::unistd::{User, geteuid, initgroups, setgid, setuid};
use rustix::fs::{AtFlags, Gid, Uid, chownat};
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

/// The user that the process is to become.
pub(crate) struct TargetUser(User);

/// Looks up the user of `-u`; `None` if the process keeps its user.
pub(crate) fn find_target_user(name: Option<&str>) -> anyhow::Result<Option<TargetUser>> {
    let Some(name) = name else {
        if geteuid().is_root() {
            tracing::warn!("running as root: use -u USER to drop privileges once the ports are open");
        }
        return Ok(None);
    };
    let found = User::from_name(name).with_context(|| format!("cannot look up the user {name} (-u)"))?;
    let Some(user) = found else { return Err(UsageError(format!("there is no user {name} to switch to (-u)")).into()) };
    if user.uid == geteuid() {
        return Ok(None);
    }
    if !geteuid().is_root() {
        tracing::info!("-u {name} has no effect: only root can become another user");
        return Ok(None);
    }
    Ok(Some(TargetUser(user)))
}

impl TargetUser {
    pub(crate) fn uid(&self) -> u32 {
        self.0.uid.as_raw()
    }

    /// Becomes the user permanently: groups, group, user. No other thread may run yet that could act as root.
    fn drop_privileges(&self) -> anyhow::Result<()> {
        let TargetUser(user) = self;
        let failed = || format!("cannot become the user {} (-u)", user.name);
        let name = CString::new(user.name.as_str()).with_context(failed)?;
        initgroups(&name, user.gid).with_context(failed)?;
        setgid(user.gid).with_context(failed)?;
        setuid(user.uid).with_context(failed)?;
        // Dropping privileges that can be regained would be useless.
        anyhow::ensure!(setuid(0.into()).is_err(), "{}: root privileges can be regained", failed());
        tracing::info!("running as {}", user.name);
        Ok(())
    }

    /// Makes the user the owner of a file that was created before; otherwise the user could not connect to a socket,
    /// and the process could not remove a file from a folder like /tmp. By a descriptor: in the user's own folder the
    /// name could meanwhile be that of any file of root.
    fn chown(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.0.uid.as_raw()), Gid::from_raw(self.0.gid.as_raw()));
        Ok(chownat(file, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?)
    }

    fn chown_socket(&self, path: &Path) -> anyhow::Result<()> {
        let changed = open_socket_file(path).and_then(|file| self.chown(file.as_fd()));
        changed.with_context(|| self.chown_failed(path))
    }

    fn chown_failed(&self, path: &Path) -> String {
        format!("cannot change the owner of {} to {} (-u)", path.display(), self.0.name)
    }
}

/// Becomes the user of `-u`, and sets what `-r` and `-k` ask for.
pub(crate) fn change_user(
    arguments: &Arguments,
    pid_file: Option<&PidFile>,
    target_user: Option<TargetUser>,
) -> anyhow::Result<()> {
    if arguments.lock_memory {
        allow_locking();
    }
    if let Some(target_user) = target_user {
        let mut sockets = arguments.unix_path.iter().chain(&arguments.upgrade_socket);
        sockets.try_for_each(|path| target_user.chown_socket(path))?;
        if let Some(pid_file) = pid_file {
            target_user.chown(pid_file.as_fd()).with_context(|| target_user.chown_failed(pid_file.path()))?;
        }
        target_user.drop_privileges()?;
    }
    if arguments.enable_core_files { allow_core_files() } else { Ok(()) }
}

/// `-r`: allows core files as large as the system permits.
fn allow_core_files() -> anyhow::Result<()> {
    let mut limit = getrlimit(Resource::Core);
    limit.current = limit.maximum;
    let is_none = limit.current == Some(0);
    setrlimit(Resource::Core, limit).context("cannot raise the limit of core files (-r)")?;
    if is_none {
        tracing::warn!("-r has no effect: the system allows no core files (see `ulimit -H -c`)");
    }
    // The kernel writes none for a process that has changed its user, unless the process asks for it.
    set_dumpable_behavior(DumpableBehavior::Dumpable).context("cannot ask for core files (-r)")
}

/// The first half of `-k`, before privileges are dropped: removes the limit on locked memory.
fn allow_locking() {
    let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
}

/// The second half of `-k`: locks all present and future memory. Takes all of `-m` at once.
pub(crate) fn lock_memory() {
    if let Err(error) = mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE) {
        tracing::warn!("-k has no effect: memory is not locked: {error} (see `ulimit -l`)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_net::bind_unix;

    fn own_user() -> TargetUser {
        TargetUser(User::from_uid(geteuid()).expect("the system has users").expect("the user of this process"))
    }

    /// A compromised server put a link in place of its socket, and the next start as root changed the owner of the file
    /// behind the link. With a hard link, of the file itself.
    #[test]
    fn a_file_in_place_of_a_socket_keeps_its_owner() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let (file, socket) = (path("file"), path("socket"));
        std::fs::write(&file, "root's").expect("it can be written");
        let _bound = bind_unix(&socket, 0o700).expect("the path is free");
        let user = own_user();
        user.chown_socket(&socket).expect("it is a socket");
        std::os::unix::fs::symlink(&socket, path("symbolic")).expect("it can be created");
        std::fs::hard_link(&file, path("hard")).expect("it can be created");
        for name in ["symbolic", "hard"] {
            assert!(user.chown_socket(&path(name)).is_err(), "{name}");
        }
        std::fs::hard_link(&socket, path("second")).expect("it can be created");
        assert!(user.chown_socket(&path("second")).is_err(), "another's socket");
    }

    /// The name of the pid file led to another file when its owner was changed.
    #[test]
    fn the_owner_of_the_pid_file_is_changed_by_its_descriptor() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pid");
        let pid_file = PidFile::open(&path).expect("the path is free");
        std::fs::remove_file(&path).expect("it can be removed");
        own_user().chown(pid_file.as_fd()).expect("it needs no name");
    }
}
