//! Parses an operator's commands: `slabs`, `lru`, `lru_crawler`, `cache_memlimit`, `shutdown`, `refresh_certs`,
//! `watch`, and `stats` with a crawl. Routers send `lease-void-all`, too. [`super::execute::admin`] runs them.
//!
//! They are not part of the protocol that a router forwards. To the parser they are unknown verbs; the session tries
//! them here before it refuses a verb. No request passes here.
//!
//! In memcached they tune slabs, LRU and crawler. Pages move as requested, listings are produced, and expired items are
//! removed ([`super::crawl`]). The store has no LRU, so a well-formed command for it gets memcached's reply and has no
//! effect; `stats settings` does not change.
//!
//! The settings of `extstore`, which the server does not have, get memcached's reply in the same way.

use crate::observe::event_log;
use crate::session::crawl::{ClassSet, CrawlKind};

/// The smallest memory limit that memcached accepts, in megabytes.
const MEMORY_MEGABYTES_MIN: u64 = 8;

/// The largest number of a slab class here.
const CLASS_MAX: u32 = 255;

/// The defaults of `stats workingset`: the last hour, and one key in a hundred.
const WORKING_SET_S: u32 = 3_600;
const WORKING_SET_ONE_IN: u32 = 100;
/// The store records last accesses over six days.
const WORKING_SET_S_MAX: u32 = 500_000;
const WORKING_SET_ONE_IN_MAX: u32 = 1_000_000;

/// The longest pause of the crawler, in microseconds.
const CRAWLER_SLEEP_US_MAX: u64 = 1_000_000;

const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const BAD_CLASS: &str = "BADCLASS invalid src or dst class id";
const ERROR: &str = "ERROR";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdminCommand<'a> {
    line: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminAction {
    /// Reply with this line.
    Line(&'static str),
    /// Set the memory limit, in megabytes.
    MemoryLimit(u64),
    /// Stop the process, if that is allowed.
    ShutDown,
    /// The same, with an unknown mode.
    ShutDownBadMode,
    /// Remove items of these classes that have expired.
    ReclaimExpired(ClassSet),
    /// Enable or disable the crawler.
    SetCrawlerEnabled(bool),
    /// Reload the certificates.
    RefreshCertificates,
    /// Make the connection a watcher of these kinds of events.
    Watch(u8),
    /// Crawl all keys, if that is allowed.
    Crawl(CrawlKind),
    /// Move a page from one slab class to another.
    MovePage { from: usize, to: usize },
    /// Turn the automatic moves of pages on or off.
    Automove(bool),
    /// Void all leases.
    VoidLeases,
}

impl<'a> AdminCommand<'a> {
    /// Parses a line; `None` if its first word is no operator's command.
    pub(crate) fn parse(line: &'a [u8]) -> Option<AdminCommand<'a>> {
        const VERBS: [&str; 9] = [
            "slabs",
            "lru",
            "lru_crawler",
            "cache_memlimit",
            "shutdown",
            "refresh_certs",
            "watch",
            "extstore",
            "lease-void-all",
        ];
        let line = std::str::from_utf8(line).ok()?;
        let verb = line.split_whitespace().next().filter(|_| !line.starts_with(char::is_whitespace))?;
        VERBS.contains(&verb).then_some(AdminCommand { line })
    }

    /// Parses a `stats` line that needs a crawl; `None` for other statistics.
    pub(crate) fn parse_stats_crawl(line: &'a [u8]) -> Option<AdminCommand<'a>> {
        let line = std::str::from_utf8(line).ok()?;
        let mut words = line.split_whitespace();
        (words.next() == Some("stats") && matches!(words.next(), Some("cachedump" | "sizes" | "workingset")))
            .then_some(AdminCommand { line })
    }

    /// Whether the client wants no reply.
    pub(crate) fn is_quiet(&self) -> bool {
        // memcached always replies to `watch`, for which `noreply` is an unknown kind of events, and to `stats`.
        let is_answered = self.line.starts_with("watch") || self.line.starts_with("stats");
        self.line.split_whitespace().next_back() == Some("noreply") && !is_answered
    }

    /// The action, or memcached's reply.
    pub(crate) fn action(&self, is_crawler_enabled: bool) -> AdminAction {
        let words: Vec<&str> = self.line.split_whitespace().collect();
        match words[..] {
            ["slabs", ref arguments @ ..] => slabs(arguments),
            ["stats", "cachedump", ref arguments @ ..] => cachedump(arguments),
            ["stats", "sizes", ..] => AdminAction::Crawl(CrawlKind::Sizes),
            ["stats", "workingset", ref arguments @ ..] => working_set(arguments),
            ["lru", ref arguments @ ..] => AdminAction::Line(lru(arguments)),
            ["extstore", ref arguments @ ..] => AdminAction::Line(extstore(arguments)),
            ["lru_crawler", "enable"] if is_crawler_enabled => {
                AdminAction::Line("ERROR failed to start lru crawler thread")
            }
            ["lru_crawler", switch @ ("enable" | "disable")] => AdminAction::SetCrawlerEnabled(switch == "enable"),
            ["lru_crawler", "metadump" | "mgdump", _] if !is_crawler_enabled => {
                AdminAction::Line("CLIENT_ERROR lru crawler disabled")
            }
            ["lru_crawler", listing @ ("metadump" | "mgdump"), classes] => match ClassSet::parse(classes) {
                Some(classes) if listing == "metadump" => AdminAction::Crawl(CrawlKind::Metadump(classes)),
                Some(classes) => AdminAction::Crawl(CrawlKind::Mgdump(classes)),
                None => AdminAction::Line("BADCLASS invalid class id"),
            },
            ["lru_crawler", "crawl", _, ..] if !is_crawler_enabled => {
                AdminAction::Line("CLIENT_ERROR lru crawler disabled")
            }
            ["lru_crawler", "crawl", classes, ..] => match ClassSet::parse(classes).filter(|_| classes != "hash") {
                Some(classes) => AdminAction::ReclaimExpired(classes),
                None => AdminAction::Line("BADCLASS invalid class id"),
            },
            ["lru_crawler", ref arguments @ ..] => AdminAction::Line(lru_crawler(arguments)),
            ["cache_memlimit", megabytes, ..] => match megabytes.parse() {
                Ok(megabytes) if megabytes >= MEMORY_MEGABYTES_MIN => AdminAction::MemoryLimit(megabytes),
                Ok(_) => AdminAction::Line("MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m"),
                Err(_) => AdminAction::Line(ERROR),
            },
            ["shutdown"] | ["shutdown", "graceful"] => AdminAction::ShutDown,
            ["shutdown", ..] => AdminAction::ShutDownBadMode,
            ["watch", ref kinds @ ..] => match event_log::parse_kinds(kinds.iter().copied()) {
                Some(kinds) => AdminAction::Watch(kinds),
                None => AdminAction::Line(ERROR),
            },
            ["refresh_certs", ..] => AdminAction::RefreshCertificates,
            ["lease-void-all"] | ["lease-void-all", "noreply"] => AdminAction::VoidLeases,
            _ => AdminAction::Line(ERROR),
        }
    }
}

fn slabs(arguments: &[&str]) -> AdminAction {
    let line = match *arguments {
        ["reassign", source, target, ..] => match (source.parse::<i64>(), target.parse::<i64>()) {
            (Ok(source), Ok(target)) if source == target => "SAME src and dst class are identical",
            (Ok(source), Ok(target)) => match (usize::try_from(source), usize::try_from(target)) {
                (Ok(from), Ok(to)) => return AdminAction::MovePage { from, to },
                _ => BAD_CLASS,
            },
            _ => BAD_FORMAT,
        },
        ["automove", "ratio" | "freeratio" | "window", number, ..] => match number.parse::<f64>() {
            Ok(_) => "OK",
            Err(_) => ERROR,
        },
        ["automove", level, ..] => match level.parse::<u64>() {
            Ok(level @ 0..=2) => return AdminAction::Automove(level > 0),
            Ok(_) => ERROR,
            Err(_) => BAD_FORMAT,
        },
        _ => ERROR,
    };
    AdminAction::Line(line)
}

fn cachedump(arguments: &[&str]) -> AdminAction {
    let [class, items_max, ..] = *arguments else {
        return AdminAction::Line("CLIENT_ERROR bad command line");
    };
    match (class.parse::<u32>(), items_max.parse::<u32>()) {
        (Ok(class), Ok(_)) if class > CLASS_MAX => AdminAction::Line("CLIENT_ERROR Illegal slab id"),
        (Ok(class), Ok(items_max)) => {
            AdminAction::Crawl(CrawlKind::Cachedump { class: class as usize, items_max: items_max.into() })
        }
        _ => AdminAction::Line(BAD_FORMAT),
    }
}

/// `stats workingset [seconds [one in]]`
fn working_set(arguments: &[&str]) -> AdminAction {
    let number = |index: usize, default: u32, range: std::ops::RangeInclusive<u32>| {
        let number = arguments.get(index).map_or(Ok(default), |word| word.parse());
        number.ok().filter(|number| range.contains(number))
    };
    let within_s = number(0, WORKING_SET_S, 1..=WORKING_SET_S_MAX);
    let one_in = number(1, WORKING_SET_ONE_IN, 1..=WORKING_SET_ONE_IN_MAX);
    match (within_s, one_in) {
        (Some(within_s), Some(one_in)) if arguments.len() <= 2 => {
            AdminAction::Crawl(CrawlKind::WorkingSet { within_s, one_in })
        }
        _ => AdminAction::Line("CLIENT_ERROR usage: stats workingset [seconds, up to 500000 [one in, up to 1000000]]"),
    }
}

fn lru(arguments: &[&str]) -> &'static str {
    match *arguments {
        ["mode", "flat" | "segmented", ..] => "OK",
        ["temp_ttl", seconds, ..] if seconds.parse::<i64>().is_ok() => "OK",
        ["tune", hot, warm, hot_factor, warm_factor, ..] => {
            let factors = [hot_factor, warm_factor].map(str::parse::<f64>);
            match (hot.parse::<u32>(), warm.parse::<u32>(), factors) {
                (Ok(hot), Ok(warm), [Ok(_), Ok(_)]) if hot + warm <= 80 => "OK",
                (Ok(_), Ok(_), [Ok(_), Ok(_)]) => "ERROR hot and warm pcts must not exceed 80",
                _ => ERROR,
            }
        }
        _ => ERROR,
    }
}

fn extstore(arguments: &[&str]) -> &'static str {
    const NUMBERS: [&str; 8] =
        ["recache_rate", "item_size", "item_age", "low_ttl", "compact_under", "drop_under", "max_sleep", "drop_unread"];
    let is_number = |word: &str| word.parse::<u32>().is_ok();
    let is_known = match *arguments {
        ["free_memchunks", class, chunks, ..] => is_number(class) && is_number(chunks),
        ["max_frag", fraction, ..] => fraction.parse::<f64>().is_ok(),
        [name, number, ..] => NUMBERS.contains(&name) && is_number(number),
        _ => false,
    };
    if is_known { "OK" } else { ERROR }
}

fn lru_crawler(arguments: &[&str]) -> &'static str {
    match *arguments {
        ["sleep", microseconds, ..] => match microseconds.parse::<u64>() {
            Ok(microseconds) if microseconds <= CRAWLER_SLEEP_US_MAX => "OK",
            Ok(microseconds) if microseconds <= u64::from(u32::MAX) => "CLIENT_ERROR sleep must be one second or less",
            _ => BAD_FORMAT,
        },
        ["tocrawl", items, ..] if items.parse::<u32>().is_ok() => "OK",
        ["tocrawl", _, ..] => BAD_FORMAT,
        _ => ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_action(line: &str) -> AdminAction {
        AdminCommand::parse(line.as_bytes()).expect("an operator's command").action(true)
    }

    #[test]
    fn other_commands_are_not_parsed() {
        for line in ["get a", "slabsx", "", " slabs", "lru_crawlerx enable"] {
            assert_eq!(AdminCommand::parse(line.as_bytes()), None, "{line:?}");
        }
        assert!(AdminCommand::parse(b"slabs automove 1 noreply").expect("an operator's command").is_quiet());
    }

    #[test]
    fn well_formed_commands_are_acknowledged_and_others_refused() {
        for line in ["slabs automove window 1", "lru mode flat", "lru tune 10 20 0.2 2.0", "extstore item_age 10"] {
            assert_eq!(parse_action(line), AdminAction::Line("OK"), "{line}");
        }
        for line in ["extstore", "extstore item_age", "extstore item_age x", "extstore free_memchunks 1"] {
            assert_eq!(parse_action(line), AdminAction::Line(ERROR), "{line}");
        }
        assert_eq!(parse_action("slabs reassign 1 99"), AdminAction::MovePage { from: 1, to: 99 });
        assert_eq!(parse_action("slabs reassign -1 9"), AdminAction::Line(BAD_CLASS));
        assert_eq!(parse_action("slabs automove 0"), AdminAction::Automove(false));
        assert_eq!(
            parse_action("lru_crawler sleep 1000001"),
            AdminAction::Line("CLIENT_ERROR sleep must be one second or less")
        );
        assert_eq!(parse_action("lru_crawler metadump all"), AdminAction::Crawl(CrawlKind::Metadump(ClassSet::ALL)));
        assert_eq!(parse_action("lru_crawler metadump all x"), AdminAction::Line(ERROR));
        assert_eq!(parse_action("lru_crawler mgdump 0"), AdminAction::Line("BADCLASS invalid class id"));
        assert_eq!(parse_action("cache_memlimit 64"), AdminAction::MemoryLimit(64));
        assert_eq!(
            (parse_action("shutdown graceful"), parse_action("shutdown")),
            (AdminAction::ShutDown, AdminAction::ShutDown)
        );
        assert_eq!(parse_action("shutdown now"), AdminAction::ShutDownBadMode);
        assert_eq!(parse_action("shutdown graceful now"), AdminAction::ShutDownBadMode);
        assert_eq!(parse_action("lease-void-all"), AdminAction::VoidLeases);
        assert_eq!(parse_action("lease-void-all user:1"), AdminAction::Line(ERROR));
    }

    #[test]
    fn a_working_set_is_that_of_the_last_hour_by_default() {
        let listing =
            |line: &'static str| AdminCommand::parse_stats_crawl(line.as_bytes()).map(|command| command.action(true));
        let of = |within_s, one_in| Some(AdminAction::Crawl(CrawlKind::WorkingSet { within_s, one_in }));
        assert_eq!(listing("stats workingset"), of(3_600, 100));
        assert_eq!(listing("stats workingset 60 1"), of(60, 1));
        for bad in ["stats workingset 0", "stats workingset 60 0", "stats workingset 60 1 1", "stats workingset x"] {
            assert!(matches!(listing(bad), Some(AdminAction::Line(_))), "{bad}");
        }
        assert_eq!(listing("stats items"), None);
    }

    #[test]
    fn the_crawler_is_enabled_and_disabled() {
        let parse_with_crawler =
            |line: &'static str, is_crawler_enabled| AdminCommand { line }.action(is_crawler_enabled);
        assert_eq!(parse_with_crawler("lru_crawler disable", true), AdminAction::SetCrawlerEnabled(false));
        assert_eq!(
            parse_with_crawler("lru_crawler crawl all", false),
            AdminAction::Line("CLIENT_ERROR lru crawler disabled")
        );
        assert_eq!(parse_with_crawler("lru_crawler enable", false), AdminAction::SetCrawlerEnabled(true));
        assert_eq!(parse_with_crawler("lru_crawler crawl all", true), AdminAction::ReclaimExpired(ClassSet::ALL));
        let two = ClassSet::parse("1,2").expect("two classes");
        assert_eq!(parse_with_crawler("lru_crawler crawl 1,2", true), AdminAction::ReclaimExpired(two));
        for bad in ["lru_crawler crawl 0", "lru_crawler crawl hash", "lru_crawler crawl x"] {
            assert_eq!(parse_with_crawler(bad, true), AdminAction::Line("BADCLASS invalid class id"), "{bad}");
        }
    }
}
