//! The commands of one server's operator: `slabs`, `lru`, `lru_crawler`, `cache_memlimit`, `shutdown`, `refresh_certs`,
//! `watch`.
//!
//! They are no part of the protocol that a router passes on: to the parser they are unknown verbs, and the session asks
//! here before it refuses one. No path of a request leads through this file.
//!
//! memcached tunes its slabs, its LRU and its crawler with them. Pages move as asked, and listings are given (`walk.rs`).
//! Of LRU and crawler the store here has none, so what is well formed is answered as memcached answers it and changes
//! nothing; the settings that `stats settings` would show stay as they are.
//!
//! Absent: `extstore`: an unknown command.

use crate::observe::watchers;
use crate::session::crawl::{ClassSet, Listing};

/// memcached refuses a memory limit below this, in megabytes.
const MEMORY_MEGABYTES_MIN: u64 = 8;

/// What memcached's classes of slabs are numbered.
const CLASSES: std::ops::RangeInclusive<i64> = 1..=63;

/// The largest number that a class here may have.
const CLASS_MAX: u32 = 255;

/// What a working set is asked about by default: the last hour, and one key in a hundred.
const WORKING_SET_S: u32 = 3_600;
const WORKING_SET_ONE_IN: u32 = 100;
/// The store knows when an item was last asked for by the seconds of six days.
const WORKING_SET_S_MAX: u32 = 500_000;
const WORKING_SET_ONE_IN_MAX: u32 = 1_000_000;

/// The longest pause of the crawler, in microseconds.
const CRAWLER_SLEEP_US_MAX: u64 = 1_000_000;

const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const BAD_CLASS: &str = "BADCLASS invalid src or dst class id";
const UNKNOWN: &str = "ERROR";

/// A line for the operator's commands: its first word is one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order<'a> {
    line: &'a str,
}

/// What is to be done about an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Say this.
    Line(&'static str),
    /// Change the memory limit, to so many megabytes.
    MemoryLimit(u64),
    /// End the process, if that is allowed.
    ShutDown,
    /// The same in a way that there is not.
    ShutDownUnknown,
    /// Switch the crawler on or off.
    Crawler(bool),
    /// Read the certificates anew, if there are any.
    RefreshCertificates,
    /// Make the connection a watcher of these kinds of events.
    Watch(u8),
    /// Walk over all keys; if keys may be listed.
    Walk(Listing),
    /// Move a page from one slab class to another.
    MovePage { from: usize, to: usize },
    /// Whether pages move by themselves.
    Automove(bool),
}

impl<'a> Order<'a> {
    /// The order that a line is, if it is one.
    pub(crate) fn read(line: &'a [u8]) -> Option<Order<'a>> {
        const VERBS: [&str; 7] =
            ["slabs", "lru", "lru_crawler", "cache_memlimit", "shutdown", "refresh_certs", "watch"];
        let line = std::str::from_utf8(line).ok()?;
        let verb = line.split_whitespace().next().filter(|_| !line.starts_with(char::is_whitespace))?;
        VERBS.contains(&verb).then_some(Order { line })
    }

    /// The listing that a `stats` line asks for, if it does.
    pub(crate) fn read_listing(line: &'a [u8]) -> Option<Order<'a>> {
        let line = std::str::from_utf8(line).ok()?;
        let mut words = line.split_whitespace();
        (words.next() == Some("stats") && matches!(words.next(), Some("cachedump" | "sizes" | "workingset")))
            .then_some(Order { line })
    }

    /// Whether its sender wants no answer.
    pub(crate) fn is_quiet(&self) -> bool {
        // memcached answers a `watch` always: to it this is a kind of events that it does not know. It answers `stats`, too.
        let is_answered = self.line.starts_with("watch") || self.line.starts_with("stats");
        self.line.split_whitespace().next_back() == Some("noreply") && !is_answered
    }

    /// What memcached would say, or what is to be done. `crawls` is whether the crawler is on.
    pub(crate) fn answer(&self, crawls: bool) -> Answer {
        let words: Vec<&str> = self.line.split_whitespace().collect();
        match words[..] {
            ["slabs", ref arguments @ ..] => slabs(arguments),
            ["stats", "cachedump", ref arguments @ ..] => cachedump(arguments),
            ["stats", "sizes", ..] => Answer::Walk(Listing::Sizes),
            ["stats", "workingset", ref arguments @ ..] => working_set(arguments),
            ["lru", ref arguments @ ..] => Answer::Line(lru(arguments)),
            ["lru_crawler", "enable"] if crawls => Answer::Line("ERROR failed to start lru crawler thread"),
            ["lru_crawler", switch @ ("enable" | "disable")] => Answer::Crawler(switch == "enable"),
            ["lru_crawler", "metadump" | "mgdump", _] if !crawls => Answer::Line("CLIENT_ERROR lru crawler disabled"),
            ["lru_crawler", listing @ ("metadump" | "mgdump"), classes] => match ClassSet::read(classes) {
                Some(classes) if listing == "metadump" => Answer::Walk(Listing::Metadump(classes)),
                Some(classes) => Answer::Walk(Listing::Mgdump(classes)),
                None => Answer::Line("BADCLASS invalid class id"),
            },
            ["lru_crawler", ref arguments @ ..] => Answer::Line(lru_crawler(arguments, crawls)),
            ["cache_memlimit", megabytes, ..] => match megabytes.parse() {
                Ok(megabytes) if megabytes >= MEMORY_MEGABYTES_MIN => Answer::MemoryLimit(megabytes),
                Ok(_) => Answer::Line("MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m"),
                Err(_) => Answer::Line(UNKNOWN),
            },
            ["shutdown"] | ["shutdown", "graceful"] => Answer::ShutDown,
            ["shutdown", ..] => Answer::ShutDownUnknown,
            ["watch", ref kinds @ ..] => match watchers::kinds_of(kinds.iter().copied()) {
                Some(kinds) => Answer::Watch(kinds),
                None => Answer::Line(UNKNOWN),
            },
            ["refresh_certs", ..] => Answer::RefreshCertificates,
            _ => Answer::Line(UNKNOWN),
        }
    }
}

fn slabs(arguments: &[&str]) -> Answer {
    let line = match *arguments {
        ["reassign", source, target, ..] => match (source.parse::<i64>(), target.parse::<i64>()) {
            (Ok(source), Ok(target)) if source == target => "SAME src and dst class are identical",
            (Ok(source), Ok(target)) => match (usize::try_from(source), usize::try_from(target)) {
                (Ok(from), Ok(to)) => return Answer::MovePage { from, to },
                _ => BAD_CLASS,
            },
            _ => BAD_FORMAT,
        },
        ["automove", "ratio" | "freeratio" | "window", number, ..] => match number.parse::<f64>() {
            Ok(_) => "OK",
            Err(_) => UNKNOWN,
        },
        ["automove", level, ..] => match level.parse::<u64>() {
            Ok(level @ 0..=2) => return Answer::Automove(level > 0),
            Ok(_) => UNKNOWN,
            Err(_) => BAD_FORMAT,
        },
        _ => UNKNOWN,
    };
    Answer::Line(line)
}

fn cachedump(arguments: &[&str]) -> Answer {
    let [class, items_max, ..] = *arguments else {
        return Answer::Line("CLIENT_ERROR bad command line");
    };
    match (class.parse::<u32>(), items_max.parse::<u32>()) {
        (Ok(class), Ok(_)) if class > CLASS_MAX => Answer::Line("CLIENT_ERROR Illegal slab id"),
        (Ok(class), Ok(items_max)) => {
            Answer::Walk(Listing::Cachedump { class: class as usize, items_max: items_max.into() })
        }
        _ => Answer::Line(BAD_FORMAT),
    }
}

/// `stats workingset [seconds [one in]]`
fn working_set(arguments: &[&str]) -> Answer {
    let number = |place: usize, default: u32, range: std::ops::RangeInclusive<u32>| {
        let number = arguments.get(place).map_or(Ok(default), |word| word.parse());
        number.ok().filter(|number| range.contains(number))
    };
    let within_s = number(0, WORKING_SET_S, 1..=WORKING_SET_S_MAX);
    let one_in = number(1, WORKING_SET_ONE_IN, 1..=WORKING_SET_ONE_IN_MAX);
    match (within_s, one_in) {
        (Some(within_s), Some(one_in)) if arguments.len() <= 2 => {
            Answer::Walk(Listing::WorkingSet { within_s, one_in })
        }
        _ => Answer::Line("CLIENT_ERROR usage: stats workingset [seconds, up to 500000 [one in, up to 1000000]]"),
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
                _ => UNKNOWN,
            }
        }
        _ => UNKNOWN,
    }
}

fn lru_crawler(arguments: &[&str], crawls: bool) -> &'static str {
    match *arguments {
        ["crawl", ..] if arguments.len() > 1 && !crawls => "CLIENT_ERROR lru crawler disabled",
        ["crawl", "all", ..] => "OK",
        ["crawl", classes, ..] => {
            let is_class = |class: &str| class.parse().is_ok_and(|class: i64| CLASSES.contains(&class));
            if classes.split(',').all(is_class) { "OK" } else { "BADCLASS invalid class id" }
        }
        ["sleep", microseconds, ..] => match microseconds.parse::<u64>() {
            Ok(microseconds) if microseconds <= CRAWLER_SLEEP_US_MAX => "OK",
            Ok(microseconds) if microseconds <= u64::from(u32::MAX) => "CLIENT_ERROR sleep must be one second or less",
            _ => BAD_FORMAT,
        },
        ["tocrawl", items, ..] if items.parse::<u32>().is_ok() => "OK",
        ["tocrawl", _, ..] => BAD_FORMAT,
        _ => UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> Answer {
        Order::read(line.as_bytes()).expect("an order").answer(true)
    }

    #[test]
    fn only_orders_are_read() {
        for line in ["get a", "slabsx", "", " slabs", "lru_crawlerx enable"] {
            assert_eq!(Order::read(line.as_bytes()), None, "{line:?}");
        }
        assert!(Order::read(b"slabs automove 1 noreply").expect("an order").is_quiet());
    }

    #[test]
    fn well_formed_orders_are_acknowledged_and_others_named() {
        for line in ["slabs automove window 1", "lru mode flat", "lru tune 10 20 0.2 2.0", "lru_crawler crawl 1,2"] {
            assert_eq!(said(line), Answer::Line("OK"), "{line}");
        }
        assert_eq!(said("slabs reassign 1 99"), Answer::MovePage { from: 1, to: 99 });
        assert_eq!(said("slabs reassign -1 9"), Answer::Line(BAD_CLASS));
        assert_eq!(said("slabs automove 0"), Answer::Automove(false));
        assert_eq!(said("lru_crawler sleep 1000001"), Answer::Line("CLIENT_ERROR sleep must be one second or less"));
        assert_eq!(said("lru_crawler metadump all"), Answer::Walk(Listing::Metadump(ClassSet::ALL)));
        assert_eq!(said("lru_crawler metadump all x"), Answer::Line(UNKNOWN));
        assert_eq!(said("lru_crawler mgdump 0"), Answer::Line("BADCLASS invalid class id"));
        assert_eq!(said("cache_memlimit 64"), Answer::MemoryLimit(64));
        assert_eq!((said("shutdown graceful"), said("shutdown")), (Answer::ShutDown, Answer::ShutDown));
        assert_eq!(said("shutdown now"), Answer::ShutDownUnknown);
        assert_eq!(said("shutdown graceful now"), Answer::ShutDownUnknown);
    }

    #[test]
    fn a_working_set_is_of_the_last_hour_unless_said() {
        let listing = |line: &'static str| Order::read_listing(line.as_bytes()).map(|order| order.answer(true));
        let of = |within_s, one_in| Some(Answer::Walk(Listing::WorkingSet { within_s, one_in }));
        assert_eq!(listing("stats workingset"), of(3_600, 100));
        assert_eq!(listing("stats workingset 60 1"), of(60, 1));
        for bad in ["stats workingset 0", "stats workingset 60 0", "stats workingset 60 1 1", "stats workingset x"] {
            assert!(matches!(listing(bad), Some(Answer::Line(_))), "{bad}");
        }
        assert_eq!(listing("stats items"), None);
    }

    #[test]
    fn the_crawler_is_switched() {
        let say = |line: &'static str, crawls| Order { line }.answer(crawls);
        assert_eq!(say("lru_crawler disable", true), Answer::Crawler(false));
        assert_eq!(say("lru_crawler crawl all", false), Answer::Line("CLIENT_ERROR lru crawler disabled"));
        assert_eq!(say("lru_crawler enable", false), Answer::Crawler(true));
        assert_eq!(say("lru_crawler crawl all", true), Answer::Line("OK"));
    }
}
