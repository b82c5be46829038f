//! The options of mcrouter's files of statistics.

use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Files of statistics.
#[derive(Args, Clone, Debug)]
pub struct StatsFileOptions {
    /// Write mcrouter's files of statistics, options and sources of the configuration into this folder
    #[arg(long, value_name = "DIR")]
    pub stats_root: Option<PathBuf>,
    /// How often they are written, in milliseconds; 0 for never
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    pub stats_logging_interval: u64,
}

impl StatsFileOptions {
    /// The folder, and how often the files in it are written; `None` if there are none.
    pub(super) fn root_and_interval(&self) -> Option<(&Path, Duration)> {
        let root = self.stats_root.as_deref().filter(|root| !root.as_os_str().is_empty())?;
        let interval = Duration::from_millis(self.stats_logging_interval);
        (!interval.is_zero()).then_some((root, interval))
    }
}
