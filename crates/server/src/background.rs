//! `-d` and `-P`: a process in the background, and the file that says which.
//!
//! The process does not fork, it starts itself a second time and leaves: so no thread and no lock is cloned. The second
//! one knows itself by an environment variable, and becomes the leader of a session without a terminal. As with
//! memcached its log goes nowhere; a server under a supervisor wants no `-d`.

use anyhow::Context;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Set for the process in the background.
const BACKGROUND_VARIABLE: &str = "LOOKASIDE_SERVER_BACKGROUND";

/// Says whether this is the process in the background. If not, that one has been started and this one is to end.
pub(crate) fn enter() -> anyhow::Result<bool> {
    if std::env::var_os(BACKGROUND_VARIABLE).is_some() {
        // It fails for who leads a group already: then there is no terminal to leave either.
        let _ = rustix::process::setsid();
        return Ok(true);
    }
    let program = std::env::current_exe().context("cannot find this program to start it in the background (-d)")?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).env(BACKGROUND_VARIABLE, "1");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("cannot start in the background (-d)")?;
    Ok(false)
}

/// The file of `-P`, there while this value is.
pub(crate) struct PidFile(PathBuf);

impl PidFile {
    pub(crate) fn write(path: &Path) -> anyhow::Result<PidFile> {
        std::fs::write(path, format!("{}\n", std::process::id()))
            .with_context(|| format!("cannot write the process id to {} (-P)", path.display()))?;
        Ok(PidFile(path.to_owned()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::warn!("cannot remove {}: {error}", self.0.display());
        }
    }
}
