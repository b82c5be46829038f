//! What a round of comparisons has found, as it is printed.

use super::comparison::Outcome;
use anyhow::Result;
use serde_json::{Map, json};
use std::io::Write as _;

/// The counts of a round.
#[derive(Debug, Default)]
pub struct AuditRound {
    /// By outcome, in the order of [`Outcome::NAMES`].
    outcomes: [u64; Outcome::NAMES.len()],
    /// Keys that no query is for.
    pub without_query: u64,
    /// Keys that no cache can have: too long, or with a space or a control character.
    pub invalid_keys: u64,
    /// Comparisons, and listings of keys, that failed.
    pub failed: u64,
    /// Wrong values that were deleted.
    pub repaired: u64,
}

impl AuditRound {
    /// Counts a comparison.
    pub fn add(&mut self, outcome: Outcome) {
        self.outcomes[outcome as usize] += 1;
    }

    /// The wrong values that are left.
    pub fn wrong(&self) -> u64 {
        let wrong = self.outcomes[Outcome::Stale as usize] + self.outcomes[Outcome::Orphaned as usize];
        wrong - self.repaired
    }

    /// Prints the counts to standard output: a line, or a JSON object.
    pub fn print(&self, is_json: bool) -> Result<()> {
        let outcomes = Outcome::NAMES.into_iter().zip(self.outcomes);
        let others = [
            ("without_query", self.without_query),
            ("invalid_keys", self.invalid_keys),
            ("failed", self.failed),
            ("repaired", self.repaired),
        ];
        let all: Vec<(&str, u64)> = outcomes.chain(others).collect();
        let mut out = std::io::stdout().lock();
        match is_json {
            true => {
                let fields = all.into_iter().map(|(name, count)| (name.to_owned(), json!(count)));
                writeln!(out, "{}", json!({ "round": fields.collect::<Map<_, _>>() }))?;
            }
            false => {
                let words: Vec<String> = all.into_iter().map(|(name, count)| format!("{count} {name}")).collect();
                writeln!(out, "{}", words.join(", "))?;
            }
        }
        Ok(out.flush()?)
    }
}
