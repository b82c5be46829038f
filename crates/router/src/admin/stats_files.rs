//! mcrouter's files of statistics (`--stats-root`), for monitors that read files: replaced at the start and then at an
//! interval, also while there are no requests.
//!
//! | file | contents, as sorted JSON |
//! |---|---|
//! | `libmcrouter.SERVICE.ROUTER.stats` | `libmcrouter.SERVICE.ROUTER.NAME`: the numbers of `stats all` |
//! | `.startup_options` | the options by name, as text, and `version` and `pid` |
//! | `.config_sources_info` | the MD5 of the configuration and of what it imports |

use super::stats_command::StatsView;
use crate::config::last_good::replace_file_unsynced;
use crate::config::router_config::RouterConfig;
use crate::shared::SharedState;
use serde_json::{Map, Number, Value, json};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

const MODE: u32 = 0o664;

pub(crate) struct StatsFiles {
    /// The folder.
    pub(crate) root: PathBuf,
    /// `libmcrouter.SERVICE.ROUTER`.
    pub(crate) name: String,
    pub(crate) interval: Duration,
    /// The command line.
    pub(crate) options: Arc<[(String, String)]>,
    pub(crate) version: String,
    /// As the process was started.
    pub(crate) command_line: String,
    /// The limit on client connections.
    pub(crate) connections_max: usize,
}

impl StatsFiles {
    /// Writes the files again and again. Never returns. `sources` is the third of them.
    pub(crate) async fn run(&self, shared: &SharedState, sources: impl Fn() -> Value) {
        let mut ticks = interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_failing = false;
        loop {
            ticks.tick().await;
            // The threads may not have started yet.
            let Some(stats) = self.statistics(shared) else { continue };
            let files = [
                ("stats", stats),
                ("startup_options", self.startup_options(shared)),
                ("config_sources_info", sources()),
            ];
            // A slow disk must hold back neither the replay of the spool nor a change of the configuration.
            let (root, name) = (self.root.clone(), self.name.clone());
            let writing = spawn_blocking(move || {
                fs::create_dir_all(&root)?;
                files.iter().try_for_each(|(extension, value)| {
                    replace_file_unsynced(&root.join(format!("{name}.{extension}")), &format!("{value:#}\n"), MODE)
                })
            });
            let written = writing.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
            match written {
                Err(error) if !is_failing => {
                    let root = self.root.display();
                    tracing::error!(%root, %error, "cannot write files of statistics; check --stats-root");
                    is_failing = true;
                }
                Err(_) => {}
                Ok(()) => is_failing = false,
            }
        }
    }

    /// The numbers of `stats all`; `None` before the first thread serves.
    fn statistics(&self, shared: &SharedState) -> Option<Value> {
        let tree = shared.sources().first()?.tree();
        let StatsFiles { version, connections_max, command_line, .. } = self;
        let view = StatsView { shared, tree, version, connections_max: *connections_max, command_line };
        let mut lines = Vec::new();
        view.write(b"all", &mut lines);
        Some(Value::Object(numbers(&String::from_utf8_lossy(&lines), &self.name)))
    }

    fn startup_options(&self, shared: &SharedState) -> Value {
        let options = self.options.iter().map(|(name, value)| (name.clone(), Value::String(value.clone())));
        let mut options: Map<String, Value> = options.collect();
        options.insert("version".to_owned(), self.version.clone().into());
        options.insert("pid".to_owned(), shared.identity().pid.to_string().into());
        Value::Object(options)
    }
}

/// The numbers in the reply to `stats`, by their names behind `prefix`.
fn numbers(reply: &str, prefix: &str) -> Map<String, Value> {
    let stat = |line: &str| {
        let (name, value) = line.strip_prefix("STAT ")?.split_once(' ')?;
        let number: Number = value.parse().ok()?;
        Some((format!("{prefix}.{name}"), Value::Number(number)))
    };
    reply.lines().filter_map(stat).collect()
}

/// What the configuration in force, of this file, was read from.
pub(crate) fn config_sources(file: &str, config: &RouterConfig) -> Value {
    let (digest, imported) = (config.md5_digest(), config.imported());
    json!({ "config_file": file, "mcrouter_config": digest, "config_import": imported, "pools": {} })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_are_written() {
        let reply = "STAT pid 7\r\nSTAT version lookaside-router 1\r\nSTAT rate 0.5\r\nEND\r\n";
        let expected = json!({ "libmcrouter.a.0.pid": 7, "libmcrouter.a.0.rate": 0.5 });
        assert_eq!(Value::Object(numbers(reply, "libmcrouter.a.0")), expected);
    }
}
