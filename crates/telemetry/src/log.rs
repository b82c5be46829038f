//! A daemon's log: one line per event to standard error, as text for people or as JSON for log collectors.
//!
//! ```text
//!   2026-11-22T07:12:31.024117Z  WARN etcd does not answer ... etcd=etcd://10.0.0.4:2379/one why=...
//!   {"timestamp":"2026-11-22T07:12:31.024117Z","level":"WARN","message":"etcd does not answer ...","etcd":"etcd://...","why":"...","target":"lookaside_client::config::etcd::watch"}
//! ```
//!
//! A process that others tell apart by a name has that in its warnings and errors, as the field `service`.
//!
//! The level is set by `-v` until a client changes it with `verbosity`; RUST_LOG overrides `-v`.

use std::io::{self, IsTerminal as _};
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
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
        Log::start_as(None, format, verbosity)
    }

    /// The same; warnings and errors have `service` as a field.
    pub fn start_as(service: Option<&str>, format: LogFormat, verbosity: u32) -> Log {
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| level(verbosity));
        let (filter, handle) = reload::Layer::new(filter);
        let lines = fmt::layer().with_writer(io::stderr);
        let end = service.map(|service| end_of_failure(format, service));
        let lines = match format {
            LogFormat::Text => {
                let lines = lines.with_ansi(io::stderr().is_terminal()).with_target(false);
                lines.map_event_format(|inner| NamedFailures { inner, end }).boxed()
            }
            LogFormat::Json => {
                let lines = lines.json().flatten_event(true).with_current_span(false).with_span_list(false);
                lines.map_event_format(|inner| NamedFailures { inner, end }).boxed()
            }
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

/// Adds a field to warnings and errors.
struct NamedFailures<F> {
    inner: F,
    /// What stands at the end of such a line, with the end that it replaces; `None` if nothing is added.
    end: Option<FailureEnd>,
}

struct FailureEnd {
    replaced: &'static str,
    with: String,
}

/// The end of a failure of `service`.
fn end_of_failure(format: LogFormat, service: &str) -> FailureEnd {
    match format {
        LogFormat::Text => FailureEnd { replaced: "\n", with: format!(" service={}\n", printable(service)) },
        LogFormat::Json => {
            let escaped = printable(service).replace('\\', "\\\\").replace('"', "\\\"");
            FailureEnd { replaced: "}\n", with: format!(",\"service\":\"{escaped}\"}}\n") }
        }
    }
}

fn printable(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

impl<S, N, F> FormatEvent<S, N> for NamedFailures<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let Some(end) = self.end.as_ref().filter(|_| *event.metadata().level() <= Level::WARN) else {
            return self.inner.format_event(context, writer, event);
        };
        // A line of text loses its colours here: failures are rare, and their words count.
        let mut line = String::new();
        self.inner.format_event(context, Writer::new(&mut line), event)?;
        match line.strip_suffix(end.replaced) {
            Some(line) => write!(writer, "{line}{}", end.with),
            None => writer.write_str(&line),
        }
    }
}

fn level(verbosity: u32) -> EnvFilter {
    EnvFilter::new(match verbosity {
        0 => "info",
        1 => "debug",
        _ => "trace",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tracing::subscriber::with_default;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat) -> String {
        let (lines, end) = (Lines::default(), Some(end_of_failure(format, "lib.a\"b\n.0")));
        let writer = lines.clone();
        let layer = fmt::layer().with_writer(move || writer.clone()).without_time();
        let layer = match format {
            LogFormat::Text => {
                layer.with_ansi(false).with_target(false).map_event_format(|inner| NamedFailures { inner, end }).boxed()
            }
            LogFormat::Json => {
                let layer = layer.json().flatten_event(true).with_current_span(false).with_target(false);
                layer.map_event_format(|inner| NamedFailures { inner, end }).boxed()
            }
        };
        with_default(tracing_subscriber::registry().with(layer), || {
            tracing::info!(n = 1, "fine");
            tracing::warn!(n = 2, "odd");
            tracing::error!("bad");
        });
        String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn failures_have_the_name_of_the_process() {
        let text = " INFO fine n=1\n WARN odd n=2 service=lib.a\"b .0\nERROR bad service=lib.a\"b .0\n";
        assert_eq!(logged(LogFormat::Text), text);
        let json = logged(LogFormat::Json);
        let [fine, odd, bad] = json.lines().collect::<Vec<_>>()[..] else { panic!("{json}") };
        assert!(fine.ends_with('}') && !fine.contains("service"), "{fine}");
        for failure in [odd, bad] {
            assert!(failure.ends_with(r#","service":"lib.a\"b .0"}"#), "{failure}");
        }
    }
}
