//! A daemon's log: one line per event to standard error, as text for people or as JSON for log collectors.
//!
//! ```text
//!   2026-11-22T07:12:31.024117Z  WARN etcd does not answer ... etcd=etcd://10.0.0.4:2379/one why=...
//!   {"timestamp":"2026-11-22T07:12:31.024117Z","level":"WARN","message":"etcd does not answer ...","etcd":"etcd://...","why":"...","target":"lookaside_client::config::etcd::watch"}
//! ```
//!
//! The level is set by `-v` until a client changes it with `verbosity`; RUST_LOG overrides `-v`.

use std::io::{self, IsTerminal as _};
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, fmt, reload};

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// An object per event, with its fields beside `timestamp`, `level`, `message` and `target`.
    Json,
}

impl FromStr for LogFormat {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<LogFormat, Self::Err> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err("expected text or json"),
        }
    }
}

/// Handle of the log.
#[derive(Debug)]
pub struct Log {
    filter: reload::Handle<EnvFilter, Registry>,
    verbosity: AtomicU32,
}

impl Log {
    /// Starts logging. If the process has a log already (the daemon is embedded in another program), it is not changed.
    pub fn start(format: LogFormat, verbosity: u32) -> Log {
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| level(verbosity));
        let (filter, handle) = reload::Layer::new(filter);
        let lines = fmt::layer().with_writer(io::stderr);
        let lines = match format {
            LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).with_target(false).boxed(),
            LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed(),
        };
        let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
        Log { filter: handle, verbosity: AtomicU32::new(verbosity) }
    }

    /// Sets the verbosity: 0 for operators, 1 for debugging, 2 for everything.
    pub fn set_verbosity(&self, verbosity: u32) {
        self.verbosity.store(verbosity, Relaxed);
        let _ = self.filter.reload(level(verbosity));
    }

    /// The verbosity.
    pub fn verbosity(&self) -> u32 {
        self.verbosity.load(Relaxed)
    }
}

fn level(verbosity: u32) -> EnvFilter {
    EnvFilter::new(match verbosity {
        0 => "info",
        1 => "debug",
        _ => "trace",
    })
}
