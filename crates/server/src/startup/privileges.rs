//! Who the process is, and what the system is asked for: `-u`, `-r`, `-k`. At the start, before any client is served.
//!
//! ```text
//!   read keys and passwords -> open ports -> take the user's identity -> make the store -> lock memory -> serve
//! ```
//!
//! So a port below 1024 and a key that only root may read need no rights while clients are served. Files that are read
//! anew (SIGHUP) and a region that outlives the process are the user's affair.

use crate::cli::UsageError;
use anyhow::Context;
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::unistd::{User, geteuid, initgroups, setgid, setuid};
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use std::ffi::CString;
use std::path::Path;

/// A user whose identity the process is to take.
pub(crate) struct TargetUser(User);

/// The user of `-u`, if the process can become that; `None` if it is to stay who it is.
pub(crate) fn find_target_user(name: Option<&str>) -> anyhow::Result<Option<TargetUser>> {
    let Some(name) = name else {
        if geteuid().is_root() {
            tracing::warn!("running as root: -u USER gives its rights up once the ports are open");
        }
        return Ok(None);
    };
    let found = User::from_name(name).with_context(|| format!("cannot look the user {name} up (-u)"))?;
    let Some(user) = found else { return Err(UsageError(format!("there is no user {name} to switch to (-u)")).into()) };
    if user.uid == geteuid() {
        return Ok(None);
    }
    if !geteuid().is_root() {
        tracing::info!("-u {name} changes nothing: only root can become another user");
        return Ok(None);
    }
    Ok(Some(TargetUser(user)))
}

impl TargetUser {
    /// The user's number.
    pub(crate) fn user(&self) -> u32 {
        self.0.uid.as_raw()
    }

    /// Becomes the user, for good: groups, group, user. No other thread may run yet that could do work as root.
    pub(crate) fn drop_privileges(&self) -> anyhow::Result<()> {
        let TargetUser(user) = self;
        let failed = || format!("cannot become the user {} (-u)", user.name);
        let name = CString::new(user.name.as_str()).with_context(failed)?;
        initgroups(&name, user.gid).with_context(failed)?;
        setgid(user.gid).with_context(failed)?;
        setuid(user.uid).with_context(failed)?;
        // Root given up halfway would be no safety at all.
        anyhow::ensure!(setuid(0.into()).is_err(), "{}: root can be had back", failed());
        tracing::info!("running as {}", user.name);
        Ok(())
    }

    /// Makes the user the owner of a file that was made before: else it could not be connected to, or removed. A symbolic
    /// link is not followed: in the user's own folder it could lead to any file of root's.
    pub(crate) fn chown(&self, path: &Path) -> anyhow::Result<()> {
        let (uid, gid) = (self.0.uid.as_raw(), self.0.gid.as_raw());
        std::os::unix::fs::lchown(path, Some(uid), Some(gid))
            .with_context(|| format!("cannot give {} to the user {} (-u)", path.display(), self.0.name))
    }
}

/// `-r`: a crash may leave a core file as large as the system allows.
pub(crate) fn allow_core_files() -> anyhow::Result<()> {
    let mut limit = getrlimit(Resource::Core);
    limit.current = limit.maximum;
    let is_none = limit.current == Some(0);
    setrlimit(Resource::Core, limit).context("cannot raise the limit of core files (-r)")?;
    if is_none {
        tracing::warn!("-r changes nothing: the system allows no core files (see `ulimit -H -c`)");
    }
    // A process that has changed its user leaves none unless it says so.
    set_dumpable_behavior(DumpableBehavior::Dumpable).context("cannot ask for core files (-r)")
}

/// The first half of `-k`, while the process may still: memory may be locked without limit.
pub(crate) fn allow_locking() {
    let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
}

/// The second half of `-k`: nothing that the process has or gets is ever paged out. All of `-m` is taken at once.
pub(crate) fn lock_memory() {
    if let Err(error) = mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE) {
        tracing::warn!("-k: memory is not locked: {error} (see `ulimit -l`)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that had been broken into put a link in the place of its socket, and the next start as root gave it the
    /// file that the link led to.
    #[test]
    fn a_file_behind_a_link_is_not_given_away() {
        let folder = tempfile::tempdir().expect("a folder");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("to nothing", &link).expect("there is room");
        let user = User::from_uid(geteuid()).expect("users can be asked for").expect("whoever runs this");
        TargetUser(user).chown(&link).expect("the link itself is given, not what it leads to");
    }
}
