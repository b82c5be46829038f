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
use tokio::{
    signal::unix::Signal,
    time::{Instant, sleep},
};

/// How often the file is read, to see whether it has changed.
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often rules that the database refused are compared with it again: their tables may be altered to fit.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Two reads this far apart must agree, so that a half-written file is not refused.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// A larger file is refused: it is no rule file.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Compares rules with the database.
pub type RuleChecker = Arc<dyn Fn(Rules) -> BoxFuture<'static, Result<Vec<RuleProblem>, SourceError>> + Send + Sync>;

/// What makes a start fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleCheck {
    /// A rule that does not fit its table, and a log that leaves out what rules need.
    Full,
    /// The same, but for what the log lacks of single tables. That is logged, as when it happens while the daemon runs:
    /// the tables that the log does have must not go without deletes because of one that it does not. A log that lacks
    /// something of all tables is refused: each change of a row could be a flush.
    AllTables,
}

/// Watches a rule file.
pub struct RuleFile {
    path: PathBuf,
    /// The content that was read last, or why it could not be read.
    seen: Result<String, String>,
    /// Why the database refused it, and when it is compared again; `None` if it did not.
    refused: Option<(String, Instant)>,
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
        RuleFile { path, seen: Ok(text), refused: None, row_rules, check }
    }

    /// Compares the rules with the database. What `strictness` names is an error. A database that cannot be reached is
    /// none, as the daemon may start before it.
    pub async fn check(check: &RuleChecker, rules: &Rules, strictness: RuleCheck) -> Result<(), String> {
        match check(rules.clone()).await {
            Ok(problems) if strictness == RuleCheck::Full => judge(rules, problems),
            Ok(problems) => {
                let is_of_one_table =
                    |problem: &RuleProblem| problem.kind == ProblemKind::LogLacks && problem.table.is_some();
                let (lacking, others) = problems.into_iter().partition(is_of_one_table);
                judge(rules, others)?;
                log_lacking(lacking);
                Ok(())
            }
            Err(why) => {
                tracing::warn!(%why, "the rules could not be compared with the database; they are used nevertheless");
                Ok(())
            }
        }
    }

    /// Loads the file again whenever it changes, at each signal, and at intervals while the database refuses it. Never
    /// returns.
    pub async fn watch(mut self, mut hangup: Signal) {
        loop {
            let is_requested = tokio::select! {
                _ = hangup.recv() => true,
                () = sleep(POLL_INTERVAL) => false,
            };
            let content = self.read_whole().await;
            if content != self.seen || is_requested {
                self.seen = content;
                self.refused = None;
            } else if self.refused.as_ref().is_none_or(|(_, retry_at)| Instant::now() < *retry_at) {
                continue;
            }
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

    async fn load(&mut self) {
        let refused_before = self.refused.take().map(|(why, _)| why);
        let parsed = self.seen.clone().and_then(|text| parse(&self.path, &text));
        let checked = match (&parsed, &refused_before) {
            (Err(why), _) => Err(why.clone()),
            (Ok(rules), None) => Self::check(&self.check, rules, RuleCheck::Full).await,
            // What was refused is used only once it is known to fit.
            (Ok(rules), Some(before)) => match (self.check)(rules.clone()).await {
                Ok(problems) if is_refused_as(before, rules, &problems) => Err(before.clone()),
                Ok(problems) => judge(rules, problems),
                Err(_) => Err(before.clone()),
            },
        };
        if let (Ok(_), Err(why)) = (&parsed, &checked) {
            self.refused = Some((why.clone(), Instant::now() + RETRY_INTERVAL));
        }
        let loaded = checked.and(parsed);
        let statistics = &self.row_rules.statistics;
        match loaded {
            // Counted and logged once.
            Err(why) if refused_before.as_ref() == Some(&why) => {}
            Ok(rules) => {
                let count = rules.iter().count();
                self.row_rules.replace(rules);
                statistics.loads.add(1);
                tracing::info!(file = %self.path.display(), rules = count, "the rule file was loaded");
            }
            Err(why) => {
                statistics.load_failures.add(u64::from(refused_before.is_none()));
                tracing::error!(
                    file = %self.path.display(),
                    why,
                    "the rule file was refused, and the rules before it stay in use; correct it, or the tables"
                );
            }
        }
    }
}

/// An error if `problems` are such that `rules` are refused. Logs the others.
fn judge(rules: &Rules, problems: Vec<RuleProblem>) -> Result<(), String> {
    let refusal = refusal(rules, &problems);
    for problem in problems.iter().filter(|problem| !is_refusal(problem)) {
        tracing::warn!(%problem, "a rule does not cover all changes; `lookaside invalidator check-rules` shows all such");
    }
    refusal.map_or(Ok(()), Err)
}

fn log_lacking(problems: Vec<RuleProblem>) {
    for problem in problems {
        tracing::error!(%problem, "the log lacks what a rule needs: caches may be stale; all other rules are used");
    }
}

fn is_refused_as(before: &str, rules: &Rules, problems: &[RuleProblem]) -> bool {
    refusal(rules, problems).is_some_and(|why| why == before)
}

/// Why `rules` with these problems are refused, with the line of each rule in their file; `None` if they are not.
fn refusal(rules: &Rules, problems: &[RuleProblem]) -> Option<String> {
    let describe = |problem: &RuleProblem| match problem.table.as_ref().and_then(|table| rules.line(table)) {
        Some(line) => format!("line {line}: {problem}"),
        None => problem.to_string(),
    };
    let refused: Vec<_> = problems.iter().filter(|problem| is_refusal(problem)).map(describe).collect();
    (!refused.is_empty()).then(|| refused.join("; "))
}

fn is_refusal(problem: &RuleProblem) -> bool {
    matches!(problem.kind, ProblemKind::RuleRefused | ProblemKind::LogLacks)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Only errors of the syntax had the line.
    #[test]
    fn a_rule_that_does_not_fit_its_table_is_refused_with_its_line() {
        let rules =
            Rules::parse("[[rule]]\ntable = 'app.a'\nkeys = ['a']\n\n[[rule]]\ntable = 'app.b'\nkeys = ['{x}']\n");
        let rules = rules.expect("valid");
        let table = rules.rule(b"app", b"b").expect("it is there").table.clone();
        let problem = |table, kind| RuleProblem { table, kind, why: "has no column x".into() };
        let line = rules.line(&table).expect("it is known");
        let refused = problem(Some(table), ProblemKind::RuleRefused);
        let why = judge(&rules, vec![refused.clone()]).expect_err("it is refused");
        assert_eq!(why, format!("line {line}: {refused}"));
        assert!(line >= 5 && is_refused_as(&why, &rules, &[refused]));
        let of_all = problem(None, ProblemKind::LogLacks);
        assert_eq!(judge(&rules, vec![of_all.clone()]), Err(of_all.to_string()));
    }
}
