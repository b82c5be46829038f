//! `-d` and `-P`: running in the background, and the pid file.
//!
//! The process does not fork; it starts itself a second time, so that no thread and no lock is cloned. The second
//! process recognizes itself by an environment variable, and becomes the leader of a session without a terminal. The
//! first one waits on a pipe until the second one's ports are open, and exits with its status if it ends before. Until
//! then the log goes where that of the first process goes, afterwards nowhere, as with memcached. Under a supervisor,
//! do not use `-d`.

use anyhow::Context;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

const BACKGROUND_VARIABLE: &str = "LOOKASIDE_SERVER_BACKGROUND";

fn is_background() -> bool {
    std::env::var_os(BACKGROUND_VARIABLE).is_some()
}

/// Starts the background process and waits for it. Returns `None` in the background process itself.
pub(crate) fn spawn_background() -> anyhow::Result<Option<ExitCode>> {
    if is_background() {
        // Fails if the process leads a group already: then it has no terminal to leave either.
        let _ = rustix::process::setsid();
        return Ok(None);
    }
    let program = std::env::current_exe().context("cannot find this program to start it in the background (-d)")?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).env(BACKGROUND_VARIABLE, "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start in the background (-d)")?;
    let mut ready = Vec::new();
    if let Some(pipe) = &mut child.stdout {
        pipe.read_to_end(&mut ready).context("cannot read from the server in the background (-d)")?;
    }
    if ready == READY {
        return Ok(Some(ExitCode::SUCCESS));
    }
    let status = child.wait().context("cannot read the exit status of the server in the background (-d)")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
    Ok(Some(code.map_or(ExitCode::FAILURE, ExitCode::from)))
}

/// Written to the pipe when the ports are open.
const READY: &[u8] = b"r";

/// Lets the waiting process exit, and closes standard output and standard error. Does nothing in a foreground process.
pub(crate) fn notify_ready() -> anyhow::Result<()> {
    if !is_background() {
        return Ok(());
    }
    let null_device = OpenOptions::new().write(true).open("/dev/null").context("cannot open /dev/null (-d)")?;
    // The waiting process may have been killed: continue all the same.
    let _ = rustix::io::write(std::io::stdout(), READY);
    rustix::stdio::dup2_stderr(&null_device).context("cannot redirect standard error (-d)")?;
    rustix::stdio::dup2_stdout(&null_device).context("cannot redirect standard output (-d)")
}

/// The file of `-P`. Removed at the end, unless another process has written its id to it meanwhile.
pub(crate) struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    /// Opens the file, so that it can still be written after a change of user. Its contents stay.
    ///
    /// A link is refused, and so is a file with another name: this process may be root, and a user that can write to
    /// the folder may have put it there so that its target is overwritten.
    pub(crate) fn open(path: &Path) -> anyhow::Result<PidFile> {
        let failed = || format!("cannot write the process id to {} (-P)", path.display());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::open(path, flags, Mode::from_raw_mode(0o644)) {
            Err(Errno::LOOP) => Err(anyhow::anyhow!("it is a symbolic link")),
            file => file.map_err(anyhow::Error::from),
        };
        let file = File::from(file.with_context(failed)?);
        let found = file.metadata().with_context(failed)?;
        if !found.is_file() || found.nlink() > 1 {
            return Err(anyhow::anyhow!("it is not a regular file with a single name")).with_context(failed);
        }
        Ok(PidFile { path: path.to_owned(), file })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn write(&self) -> anyhow::Result<()> {
        let id = format!("{}\n", std::process::id());
        let written = self.file.set_len(0).and_then(|()| self.file.write_all_at(id.as_bytes(), 0));
        written.with_context(|| format!("cannot write the process id to {} (-P)", self.path.display()))
    }

    /// Whether it contains this process's id, or is empty.
    fn names_this_process(&self) -> bool {
        std::fs::read_to_string(&self.path).is_ok_and(|id| id.is_empty() || id.trim() == std::process::id().to_string())
    }
}

impl AsFd for PidFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if self.names_this_process()
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A user that could write to the folder put a link there, and the server, as root, overwrote its target.
    #[test]
    fn a_file_behind_a_link_is_not_overwritten() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, other) = (folder.path().join("pid"), folder.path().join("other"));
        fs::write(&other, "another's").expect("written");
        let refuse = |what: &str| {
            let error = PidFile::open(&path).err().unwrap_or_else(|| panic!("{what} is refused"));
            let error = format!("{error:#}");
            assert!(error.contains("-P") && error.contains(&path.display().to_string()), "{error}");
            assert_eq!(fs::read_to_string(&other).expect("it exists"), "another's", "{what}");
            fs::remove_file(&path).expect("it is still there");
        };
        std::os::unix::fs::symlink(&other, &path).expect("a link");
        refuse("a symbolic link");
        std::os::unix::fs::symlink(folder.path().join("missing"), &path).expect("a link");
        refuse("a symbolic link to nothing");
        assert!(!folder.path().join("missing").exists());
        fs::hard_link(&other, &path).expect("a link");
        refuse("a hard link");

        let file = PidFile::open(&path).expect("the path is free");
        file.write().expect("it is open");
        assert_eq!(fs::read_to_string(&path).expect("written"), format!("{}\n", std::process::id()));
        drop(file);
        assert!(!path.exists());
    }
}
