//! Finds the programs of a database, and runs those that end by themselves.

use anyhow::{Context, Result, bail};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Where distributions put servers, which need not be in the path of every user.
const SERVER_DIRS: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/usr/local/bin"];

/// A program of the path, or of `dirs`; `None` if it is not installed.
pub fn find(name: &str, dirs: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path);
    let dirs = dirs.iter().cloned().chain(in_path).chain(SERVER_DIRS.map(PathBuf::from));
    dirs.map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Runs a command to its end, and fails with what it printed if it fails. Its name is part of the error.
pub async fn run_to_end(mut command: Command) -> Result<()> {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    command.stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await?;
    let output = output.with_context(|| format!("cannot start {name}"))?;
    if output.status.success() {
        return Ok(());
    }
    let printed = [output.stdout, output.stderr].concat();
    bail!("{name} failed ({}): {}", output.status, String::from_utf8_lossy(&printed).trim())
}

/// A password of 128 random bits.
pub fn random_password() -> Result<String> {
    use std::io::Read;
    let mut bits = [0; 16];
    std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bits))?;
    Ok(bits.iter().map(|byte| format!("{byte:02x}")).collect())
}
