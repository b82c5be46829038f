//! The daemon's log: to standard error, with a level that `verbosity` changes while it runs.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU32, Ordering};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

/// The running log's handle.
pub(crate) struct Log {
    level: reload::Handle<LevelFilter, Registry>,
    verbosity: AtomicU32,
}

impl Log {
    /// Starts logging. If the process logs already (it is embedded in another), that stays as it is.
    pub(crate) fn start(verbosity: u32) -> Log {
        let (filter, level) = reload::Layer::new(level_of(verbosity));
        let _ = tracing_subscriber::registry()
            .with(filter)
            .with(
                fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal()).with_target(false),
            )
            .try_init();
        Log { level, verbosity: AtomicU32::new(verbosity) }
    }

    pub(crate) fn set_verbosity(&self, verbosity: u32) {
        self.verbosity.store(verbosity, Ordering::Relaxed);
        let _ = self.level.modify(|level| *level = level_of(verbosity));
    }

    pub(crate) fn verbosity(&self) -> u32 {
        self.verbosity.load(Ordering::Relaxed)
    }
}

fn level_of(verbosity: u32) -> LevelFilter {
    match verbosity {
        0 => LevelFilter::INFO,
        1 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}
