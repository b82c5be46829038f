//! The rule file while the daemon runs: it is read at the start, when its content changes, and on SIGHUP. A file that
//! cannot be used is refused with line and reason, and the rules before it stay.

use crate::{
    SourceError,
    rules::{ProblemKind, RowRules, RuleProblem, Rules},
};
use lookaside_routing::BoxFuture;
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{signal::unix::Signal, time::sleep};

/// How often the file is read, to see whether it has changed.
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Two reads this far apart must agree, so that a half-written file is not refused.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// A larger file is refused: it is no rule file.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Compares rules with the database.
pub type RuleChecker = Arc<dyn Fn(Rules) -> BoxFuture<'static, Result<Vec<RuleProblem>, SourceError>> + Send + Sync>;

/// Watches a rule file.
pub struct RuleFile {
    path: PathBuf,
    /// The content that was read last, or why it could not be read.
    seen: Result<String, String>,
    row_rules: Arc<RowRules>,
    check: RuleChecker,
}

impl RuleFile {
    /// Reads the file and parses it. The error names the file, the line and the reason.
    pub fn read(path: &Path) -> Result<(String, Rules), String> {
        let text = read_text(path)?;
        let rules = parse(path, &text)?;
        Ok((text, rules))
    }

    /// Watches `path`, which had the content `text` when the rules in use were read.
    pub fn new(path: PathBuf, text: String, row_rules: Arc<RowRules>, check: RuleChecker) -> RuleFile {
        RuleFile { path, seen: Ok(text), row_rules, check }
    }

    /// Compares the rules with the database. A rule that does not fit its table is an error, and so is a setting of the
    /// log that leaves out what rules need. A database that cannot be reached is none, as the daemon may start before it.
    pub async fn check(check: &RuleChecker, rules: &Rules) -> Result<(), String> {
        let problems = match check(rules.clone()).await {
            Ok(problems) => problems,
            Err(why) => {
                tracing::warn!(%why, "the rules could not be compared with the database; they are used nevertheless");
                return Ok(());
            }
        };
        let is_refused =
            |problem: &RuleProblem| matches!(problem.kind, ProblemKind::RuleRefused | ProblemKind::LogLacks);
        let (refused, other): (Vec<_>, Vec<_>) = problems.into_iter().partition(is_refused);
        for problem in other {
            tracing::warn!(%problem, "a rule does not cover all changes; `lookaside invalidator check-rules` shows all such");
        }
        match refused.is_empty() {
            true => Ok(()),
            false => Err(refused.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
        }
    }

    /// Loads the file again whenever it changes, and at each signal. Never returns.
    pub async fn watch(mut self, mut hangup: Signal) {
        loop {
            let is_requested = tokio::select! {
                _ = hangup.recv() => true,
                () = sleep(POLL_INTERVAL) => false,
            };
            let content = self.read_whole().await;
            if content == self.seen && !is_requested {
                continue;
            }
            self.seen = content;
            self.load().await;
        }
    }

    async fn read_whole(&self) -> Result<String, String> {
        let read = async || {
            let path = self.path.clone();
            tokio::task::spawn_blocking(move || read_text(&path)).await.expect("reading does not panic")
        };
        let mut content = read().await;
        while content != self.seen {
            sleep(DEBOUNCE).await;
            let again = read().await;
            if again == content {
                break;
            }
            content = again;
        }
        content
    }

    async fn load(&self) {
        let parsed = self.seen.clone().and_then(|text| parse(&self.path, &text));
        let loaded = match parsed {
            Ok(rules) => Self::check(&self.check, &rules).await.map(|()| rules),
            Err(why) => Err(why),
        };
        let statistics = &self.row_rules.statistics;
        match loaded {
            Ok(rules) => {
                let count = rules.iter().count();
                self.row_rules.replace(rules);
                statistics.loads.add(1);
                tracing::info!(file = %self.path.display(), rules = count, "the rule file was loaded");
            }
            Err(why) => {
                statistics.load_failures.add(1);
                tracing::error!(
                    file = %self.path.display(),
                    why,
                    "the rule file was refused, and the rules before it stay in use; correct it"
                );
            }
        }
    }
}

fn parse(path: &Path, text: &str) -> Result<Rules, String> {
    Rules::parse(text).map_err(|error| format!("{}: {error}", path.display()))
}

fn read_text(path: &Path) -> Result<String, String> {
    let describe = |error: io::Error| format!("{} cannot be read: {error}", path.display());
    let file_bytes = fs::metadata(path).map_err(describe)?.len();
    if file_bytes > FILE_BYTES_MAX {
        return Err(format!("{} has {file_bytes} bytes; the limit is {FILE_BYTES_MAX}", path.display()));
    }
    fs::read_to_string(path).map_err(describe)
}
