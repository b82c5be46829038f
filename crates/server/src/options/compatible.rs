//! memcached's options that mean nothing here. A command line of memcached's is taken as it is; for each of these that is
//! given, the log has a line that says why it changes nothing.
//!
//! Options that promise safety are not among the ignored: a server that was told to ask for passwords and does not must
//! not start ([`Compatible::refusal`]).

use crate::tls::options::TlsOptions;
use clap::{ArgAction, Args};

/// What is accepted for memcached's sake.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Accepted as memcached's, without effect")]
pub struct Compatible {
    /// Errors instead of evictions when memory is full
    #[arg(short = 'M', long)]
    disable_evictions: bool,
    /// Large memory pages
    #[arg(short = 'L', long)]
    enable_largepages: bool,
    /// Requests per event
    #[arg(short = 'R', long, value_name = "COUNT")]
    max_reqs_per_event: Option<u32>,
    /// No CAS uniques
    #[arg(short = 'C', long)]
    disable_cas: bool,
    /// No stats cachedump, no metadump, no mgdump
    #[arg(short = 'X', long)]
    pub(crate) disable_dumping: bool,
    /// NAPI ids
    #[arg(short = 'N', long, value_name = "COUNT")]
    napi_ids: Option<u32>,
    /// Extended options, separated by commas
    #[arg(short = 'o', long, value_name = "OPTIONS", action = ArgAction::Append, value_delimiter = ',')]
    extended: Vec<String>,
    /// No flush_all (refused: not served)
    #[arg(short = 'F', long)]
    disable_flush_all: bool,
}

impl Compatible {
    /// `-o idle_timeout=N`; the last one counts.
    pub(crate) fn idle_timeout_s(&self) -> Option<u32> {
        let given = self.extended.iter().rev().find_map(|option| option.strip_prefix("idle_timeout="));
        given.and_then(|seconds| seconds.parse().ok())
    }

    /// `-o slab_automove=N`: whether pages move between slab classes by themselves; the last one counts.
    pub(crate) fn slab_automove(&self) -> bool {
        self.extended.iter().rev().find_map(|option| automove(option)).is_none_or(|level| level != Some(0))
    }

    /// Why the server must not start, if an option promises what it does not keep.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        let promises = [
            (
                self.extended.iter().any(|option| option.starts_with("idle_timeout"))
                    && self.idle_timeout_s().is_none(),
                "-o idle_timeout=N: N is a number of seconds",
            ),
            (
                self.extended.iter().any(|option| matches!(automove(option), Some(None | Some(3..)))),
                "-o slab_automove=N: N is 0, 1 or 2",
            ),
            (self.disable_flush_all, "-F: flush_all cannot be switched off"),
        ];
        promises.into_iter().find_map(|(is_given, why)| is_given.then_some(why))
    }

    /// What was given with `-o`, option by option.
    pub(crate) fn extended(&self) -> &[String] {
        &self.extended
    }

    /// A line for the log about each option that was given and changes nothing.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let given = [
            (self.disable_evictions, "-M", "a full store evicts"),
            (self.enable_largepages, "-L", "the store asks for large pages by itself where the system has them"),
            (self.max_reqs_per_event.is_some(), "-R", "what one connection may do in a turn is bounded by bytes"),
            (self.disable_cas, "-C", "every item has a CAS unique"),
            (self.napi_ids.is_some(), "-N", "connections go to the thread that has the fewest"),
        ];
        let short = given.into_iter().filter(|(is_given, ..)| *is_given);
        let short = short.map(|(_, option, why)| format!("{option} changes nothing here: {why}"));
        let extended = self.extended.iter().filter(|option| !option.is_empty() && !is_served(option));
        short.chain(extended.map(|option| format!("-o {option} changes nothing here"))).collect()
    }
}

/// Whether an option of `-o` has a meaning here.
fn is_served(option: &str) -> bool {
    TlsOptions::is_one(option) || option.starts_with("idle_timeout=") || automove(option).is_some()
}

/// The level of a `slab_automove`, if it is a number; without one it is 1. Nothing for another option.
fn automove(option: &str) -> Option<Option<u32>> {
    match option.split_once('=') {
        Some(("slab_automove", level)) => Some(level.parse().ok()),
        None if option == "slab_automove" => Some(Some(1)),
        _ => None,
    }
}
