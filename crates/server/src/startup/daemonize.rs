//! `-d` and `-P`: a process in the background, and the file that says which.
//!
//! The process does not fork, it starts itself a second time: so no thread and no lock is cloned. The second one knows
//! itself by an environment variable, and becomes the leader of a session without a terminal. The first waits on a pipe
//! until the second's ports are open, and leaves with its exit status if it ends before. Until then the log goes where
//! the first one's does, afterwards nowhere, as with memcached; a server under a supervisor wants no `-d`.

use anyhow::Context;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Set for the process in the background.
const BACKGROUND_VARIABLE: &str = "LOOKASIDE_SERVER_BACKGROUND";

fn is_background() -> bool {
    std::env::var_os(BACKGROUND_VARIABLE).is_some()
}

/// `None` in the process that is to serve; in the one that has started it, how that went.
pub(crate) fn spawn_background() -> anyhow::Result<Option<ExitCode>> {
    if is_background() {
        // It fails for who leads a group already: then there is no terminal to leave either.
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
        pipe.read_to_end(&mut ready).context("cannot tell what became of the server in the background (-d)")?;
    }
    if ready == READY {
        return Ok(Some(ExitCode::SUCCESS));
    }
    let status = child.wait().context("cannot tell how the server in the background has ended (-d)")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
    Ok(Some(code.map_or(ExitCode::FAILURE, ExitCode::from)))
}

/// What goes through the pipe when the ports are open.
const READY: &[u8] = b"r";

/// Lets the process go that waits, and all that it may be read through. Only where the process is in the background.
pub(crate) fn notify_ready() -> anyhow::Result<()> {
    if !is_background() {
        return Ok(());
    }
    let null_device = OpenOptions::new().write(true).open("/dev/null").context("cannot open /dev/null (-d)")?;
    // Who waited may have been killed: that is no reason to end.
    let _ = rustix::io::write(std::io::stdout(), READY);
    rustix::stdio::dup2_stderr(&null_device).context("cannot let go of standard error (-d)")?;
    rustix::stdio::dup2_stdout(&null_device).context("cannot let go of standard output (-d)")
}

/// The file of `-P`. Removed at the end, unless another process has written its id there meanwhile.
pub(crate) struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    /// Makes sure that the file can be written, whoever the process is afterwards; what is in it stays.
    pub(crate) fn open(path: &Path) -> anyhow::Result<PidFile> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("cannot write the process id to {} (-P)", path.display()))?;
        Ok(PidFile { path: path.to_owned(), file })
    }

    /// Writes the process's id.
    pub(crate) fn write(&self) -> anyhow::Result<()> {
        let id = format!("{}\n", std::process::id());
        let written = self.file.set_len(0).and_then(|()| self.file.write_all_at(id.as_bytes(), 0));
        written.with_context(|| format!("cannot write the process id to {} (-P)", self.path.display()))
    }

    /// Whether it names this process, or nobody.
    fn names_this_process(&self) -> bool {
        std::fs::read_to_string(&self.path).is_ok_and(|id| id.is_empty() || id.trim() == std::process::id().to_string())
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
