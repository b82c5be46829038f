//! The log in a file (`--log-path`): standard error leads there from the start, so that what a panic writes is there,
//! too.

use std::fs::OpenOptions;
use std::path::Path;

/// Makes standard error the end of the file at `path`, which is created if there is none. The error names the option.
pub(super) fn append_log_to(path: &Path) -> Result<(), String> {
    let describe = |error: std::io::Error| format!("--log-path: cannot append to {}: {error}", path.display());
    let file = OpenOptions::new().append(true).create(true).open(path).map_err(describe)?;
    rustix::stdio::dup2_stderr(&file).map_err(|error| describe(error.into()))
}
