//! memcached's options without effect here. A command line for memcached is accepted as it is; for each of these
//! options a log line says why it has no effect.
//!
//! Options that concern security are never ignored: a server that should ask for passwords and does not must not start
//! ([`CompatibleOptions::refusal`]).

use super::extended::{self, Support};
use super::values::MEGABYTES_MAX;
use clap::{ArgAction, Args};

const IGNORED_HEADING: &str = "Options of memcached without effect here";

/// A log line about an option without effect.
pub(crate) struct IgnoredOption {
    /// Whether the option would matter in memcached.
    pub(crate) is_unsupported: bool,
    pub(crate) text: String,
}

/// Options accepted for compatibility with memcached.
#[derive(Args, Clone, Debug, Default)]
pub struct CompatibleOptions {
    /// No effect here (memcached: large memory pages)
    #[arg(short = 'L', long, help_heading = IGNORED_HEADING)]
    enable_largepages: bool,
    /// No effect here (memcached: requests per event)
    #[arg(short = 'R', long, value_name = "COUNT", help_heading = IGNORED_HEADING)]
    max_reqs_per_event: Option<u32>,
    /// No effect here (memcached: no CAS values)
    #[arg(short = 'C', long, help_heading = IGNORED_HEADING)]
    disable_cas: bool,
    /// Refuse to list keys: no stats cachedump, no metadump, no mgdump
    #[arg(short = 'X', long)]
    pub(crate) disable_dumping: bool,
    /// No effect here (memcached: NAPI ids)
    #[arg(short = 'N', long, value_name = "COUNT", help_heading = IGNORED_HEADING)]
    napi_ids: Option<u32>,
    /// Options separated by commas: idle_timeout=SECONDS, slab_automove=0..2, track_sizes (for `stats sizes`),
    /// no_maxconns_fast (connections over -c wait), read_buf_mem_limit=MB and resp_obj_mem_limit=MB (limits on partial
    /// commands and unread replies of all connections, beside -m), plain_udp (-U beside -Z) and, with -Z, ssl_...;
    /// memcached's other options are accepted and have no effect, which the log says. All names are listed below
    #[arg(short = 'o', long, value_name = "OPTIONS", action = ArgAction::Append, value_delimiter = ',')]
    extended: Vec<String>,
    /// Refuse flush_all. A router with --spool needs flush_all when a server has missed too many deletes
    #[arg(short = 'F', long)]
    pub(crate) disable_flush_all: bool,
}

impl CompatibleOptions {
    /// `-o idle_timeout=N`; the last one counts.
    pub(crate) fn idle_timeout_s(&self) -> Option<u32> {
        let given = self.extended.iter().rev().find_map(|option| option.strip_prefix("idle_timeout="));
        given.and_then(|seconds| seconds.parse().ok())
    }

    /// `-o plain_udp`: whether UDP is served although TCP uses TLS.
    pub(crate) fn allows_plain_udp(&self) -> bool {
        self.extended.iter().any(|option| option == extended::PLAIN_UDP)
    }

    /// `-o slab_automove=N`: whether pages move between slab classes by themselves; the last one counts.
    pub(crate) fn slab_automove(&self) -> bool {
        self.extended.iter().rev().find_map(|option| automove(option)).is_none_or(|level| level != Some(0))
    }

    /// `-o track_sizes`: whether `stats sizes` is enabled.
    pub(crate) fn tracks_sizes(&self) -> bool {
        self.extended.iter().any(|option| extended::name_of(option) == "track_sizes")
    }

    /// `-o no_maxconns_fast`: connections over `-c` wait, instead of being refused; the last one counts.
    pub(crate) fn waits_when_full(&self) -> bool {
        let mut names = self.extended.iter().rev().map(|option| extended::name_of(option));
        names.find(|name| name.ends_with("maxconns_fast")) == Some("no_maxconns_fast")
    }

    /// `-o read_buf_mem_limit=MB`: the limit on all partial commands together; 0 is no limit.
    pub(crate) fn read_limit_bytes(&self) -> u64 {
        self.megabytes(extended::READ_LIMIT).flatten().unwrap_or(0) << 20
    }

    /// `-o resp_obj_mem_limit=MB`: the limit on all unread replies together; 0 is no limit.
    pub(crate) fn reply_limit_bytes(&self) -> u64 {
        self.megabytes(extended::REPLY_LIMIT).flatten().unwrap_or(0) << 20
    }

    /// The last value of an option; `None` if it is not given, `Some(None)` if it is not a number of megabytes.
    fn megabytes(&self, name: &str) -> Option<Option<u64>> {
        let mut given = self.extended.iter().rev().filter(|option| option.split('=').next() == Some(name));
        let (_, number) = given.next()?.split_once('=').unwrap_or_default();
        Some(number.parse().ok().filter(|&megabytes| megabytes <= MEGABYTES_MAX))
    }

    /// Why the server must not start: an option of `-o` that is unknown or has an invalid value.
    pub(crate) fn refusal(&self) -> Option<String> {
        let invalid = [
            (
                self.extended.iter().any(|option| option == "idle_timeout" || option.starts_with("idle_timeout="))
                    && self.idle_timeout_s().is_none(),
                "-o idle_timeout=N: N is a number of seconds",
            ),
            (
                self.extended.iter().any(|option| matches!(automove(option), Some(None | Some(3..)))),
                "-o slab_automove=N: N is 0, 1 or 2",
            ),
            (self.megabytes(extended::READ_LIMIT) == Some(None), "-o read_buf_mem_limit=N: N is a number of megabytes"),
            (
                self.megabytes(extended::REPLY_LIMIT) == Some(None),
                "-o resp_obj_mem_limit=N: N is a number of megabytes",
            ),
        ];
        let refusal = invalid.into_iter().find_map(|(is_given, why)| is_given.then(|| why.to_string()));
        refusal.or_else(|| {
            let mut given = self.extended.iter().filter(|option| !option.is_empty());
            given
                .find(|option| extended::support_of(option) == Support::Unknown)
                .map(|option| extended::unknown_option_error(option))
        })
    }

    /// The options given with `-o`.
    pub(crate) fn extended(&self) -> &[String] {
        &self.extended
    }

    /// A log line for each given option without effect.
    pub(crate) fn ignored_options(&self) -> Vec<IgnoredOption> {
        let given = [
            (self.enable_largepages, "-L", false, "the store asks for large pages by itself where the system has them"),
            (
                self.max_reqs_per_event.is_some(),
                "-R",
                false,
                "the work for a connection in one turn is bounded by bytes; conn_yields counts the turns that end with input left",
            ),
            (self.disable_cas, "-C", false, "every item has a CAS value"),
            (self.napi_ids.is_some(), "-N", false, "connections go to the thread that has the fewest"),
        ];
        let short = given.into_iter().filter(|(is_given, ..)| *is_given);
        let short = short.map(|(_, option, is_unsupported, why)| IgnoredOption {
            is_unsupported,
            text: format!("{option} has no effect: {why}"),
        });
        let extended = self.extended.iter().filter_map(|option| match extended::support_of(option) {
            Support::NoEffect => {
                Some(IgnoredOption { is_unsupported: false, text: format!("-o {option} has no effect") })
            }
            Support::Unsupported(why) => {
                Some(IgnoredOption { is_unsupported: true, text: format!("-o {option} has no effect: {why}") })
            }
            Support::Supported | Support::Unknown => None,
        });
        short.chain(extended).collect()
    }
}

/// The level of a `slab_automove`, 1 if it has none; `Some(None)` if it is not a number, `None` for another option.
fn automove(option: &str) -> Option<Option<u32>> {
    match option.split_once('=') {
        Some(("slab_automove", level)) => Some(level.parse().ok()),
        None if option == "slab_automove" => Some(Some(1)),
        None if option == "no_slab_automove" => Some(Some(0)),
        _ => None,
    }
}
