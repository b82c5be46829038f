//! `lookaside monitor`: what `lookaside-monitor` has found, as a table, as JSON, or drawn.

use anyhow::{Context, Result, anyhow, bail};
use lookaside_monitor::{
    observe::{MonitorReport, curves, draw, to_json, to_table},
    state::StateFile,
};
use std::{fs, io::Write as _, path::PathBuf};

const EXAMPLES: &str = "Examples:
  lookaside monitor --state-dir /var/lib/lookaside-monitor
  lookaside monitor --state-dir /var/lib/lookaside-monitor --json
  lookaside monitor --state-dir /var/lib/lookaside-monitor --svg stale.svg

It reads the file that the monitor writes about once a second; the monitor may be running.

Exit status: 0 success; 1 the file is missing or cannot be read; 2 usage error.";

/// The options of `monitor`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The --state-dir of the monitor
    #[arg(long, value_name = "PATH")]
    state_dir: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Draw the curves of the pairs of regions into this file, beside the paper's (figure 11)
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Prints and draws.
pub fn run(options: &Options) -> Result<()> {
    let file = StateFile::in_directory(&options.state_dir);
    let Some(state) = file.load().map_err(|why| anyhow!(why))? else {
        bail!("{} has no state of a monitor", options.state_dir.display());
    };
    let report = MonitorReport::of_state(state);
    if let Some(path) = &options.svg {
        let (_, pairs) = curves(&report);
        fs::write(path, draw(&pairs)).with_context(|| format!("{} cannot be written", path.display()))?;
    }
    let mut out = std::io::stdout().lock();
    match options.json {
        true => Ok(writeln!(out, "{}", to_json(&report))?),
        false => Ok(write!(out, "{}", to_table(&report))?),
    }
}
