//! The options of memcached 1.6.45 for `-o`, which of them are supported, and ours. Other names are refused: a misspelt
//! option would silently have no effect.

use super::tls::is_tls_option;

/// The supported options, beside those that begin with `ssl_`.
const SUPPORTED: &[&str] = &[
    "idle_timeout",
    "slab_automove",
    "no_slab_automove",
    "maxconns_fast",
    "no_maxconns_fast",
    "track_sizes",
    READ_LIMIT,
    REPLY_LIMIT,
    PLAIN_UDP,
];

/// Ours: with `-Z`, UDP is served all the same, in plain.
pub(super) const PLAIN_UDP: &str = "plain_udp";

/// The options of TLS.
const TLS: &[&str] = &[
    "ssl_chain_cert",
    "ssl_key",
    "ssl_ca_cert",
    "ssl_verify_mode",
    "ssl_keyformat",
    "ssl_ciphers",
    "ssl_session_cache",
    "no_ssl_session_cache",
    "ssl_min_version",
    "ssl_handshake_timeout",
];

/// Those that have no effect.
const TLS_NO_EFFECT: &[&str] = &["ssl_wbuf_size", "ssl_kernel_tls", "no_ssl_kernel_tls"];

/// The limits on what all connections buffer, in megabytes; 0 is no limit.
pub(super) const READ_LIMIT: &str = "read_buf_mem_limit";
pub(super) const REPLY_LIMIT: &str = "resp_obj_mem_limit";

/// Options that are not needed here.
const NO_EFFECT: &[&str] = &[
    "hash_algorithm",
    "hashpower",
    "hot_lru_pct",
    "hot_max_factor",
    "inline_ascii_resp",
    "lru_crawler",
    "lru_crawler_sleep",
    "lru_crawler_tocrawl",
    "lru_maintainer",
    "modern",
    "no_chunked_items",
    "no_drop_privileges",
    "drop_privileges",
    "no_hashexpand",
    "no_inline_ascii_resp",
    "no_lru_crawler",
    "no_lru_maintainer",
    "no_modern",
    "no_slab_reassign",
    "slab_automove_freeratio",
    "slab_automove_ratio",
    "slab_automove_window",
    "slab_chunk_max",
    "slab_reassign",
    "slab_sizes",
    "tail_repair_time",
    "temporary_ttl",
    "warm_lru_pct",
    "warm_max_factor",
    "watcher_logbuf_size",
    "worker_logbuf_size",
];

/// Options that are not supported, by prefix, with the reason.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("ext_", "nothing is stored on disk"),
    ("no_ext_drop_unread", "nothing is stored on disk"),
    ("proxy_", "this server is no proxy; lookaside-router is"),
    ("sock_cookie_id", "sockets get no id"),
];

/// The names of unsupported options.
const UNSUPPORTED_NAMES: &[&str] = &[
    "ext_compact_under",
    "ext_drop_under",
    "ext_drop_unread",
    "ext_item_age",
    "ext_item_size",
    "ext_low_ttl",
    "ext_max_frag",
    "ext_max_sleep",
    "ext_page_size",
    "ext_path",
    "ext_recache_rate",
    "ext_threads",
    "ext_wbuf_size",
    "no_ext_drop_unread",
    "proxy_arg",
    "proxy_config",
    "proxy_uring",
    "sock_cookie_id",
];

/// A name is suggested if its edit distance to the given one is at most this.
const SUGGESTION_DISTANCE_MAX: usize = 3;

/// All names, by whether they are supported.
pub(super) fn by_support() -> [(&'static str, Vec<&'static str>); 4] {
    let sorted = |lists: &[&[&'static str]]| {
        let mut names = lists.concat();
        names.sort_unstable();
        names
    };
    [
        ("  with an effect", sorted(&[SUPPORTED])),
        ("  with -Z", sorted(&[TLS])),
        ("  accepted without effect", sorted(&[NO_EFFECT, TLS_NO_EFFECT])),
        ("  accepted with a warning, since something is missing", sorted(&[UNSUPPORTED_NAMES])),
    ]
}

/// Whether an option of `-o` is supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Support {
    Supported,
    /// It has no effect, and is not needed.
    NoEffect,
    /// It has no effect, for this reason.
    Unsupported(&'static str),
    /// memcached has no such option.
    Unknown,
}

/// Looks up an option, which may include a value.
pub(super) fn support_of(option: &str) -> Support {
    let name = name_of(option);
    if is_tls_option(name) || SUPPORTED.contains(&name) {
        Support::Supported
    } else if NO_EFFECT.contains(&name) {
        Support::NoEffect
    } else if UNSUPPORTED_NAMES.contains(&name) {
        let why = UNSUPPORTED.iter().find_map(|(prefix, why)| name.starts_with(prefix).then_some(*why));
        Support::Unsupported(why.unwrap_or("it is not supported"))
    } else {
        Support::Unknown
    }
}

/// The error for an option that memcached does not have.
pub(super) fn unknown_option_error(option: &str) -> String {
    let name = name_of(option);
    let known = SUPPORTED.iter().chain(NO_EFFECT).chain(UNSUPPORTED_NAMES);
    let nearest = known.map(|known| (distance(name, known), *known)).min();
    let advice = match nearest {
        Some((distance, suggestion)) if distance <= SUGGESTION_DISTANCE_MAX.min(name.len() / 2) => {
            format!("did you mean {suggestion}?")
        }
        _ => format!("the supported ones are {} and, with -Z, ssl_...", SUPPORTED.join(", ")),
    };
    format!("-o {option}: memcached has no such option; {advice}")
}

pub(super) fn name_of(option: &str) -> &str {
    option.split_once('=').map_or(option, |(name, _)| name)
}

/// The Levenshtein distance.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (letter_at, letter) in one.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = letter_at + 1;
        for (other_at, other_letter) in other.bytes().enumerate() {
            let changed = diagonal + usize::from(letter != other_letter);
            diagonal = row[other_at + 1];
            row[other_at + 1] = changed.min(diagonal + 1).min(row[other_at] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_classified() {
        assert_eq!(support_of("idle_timeout=9"), Support::Supported);
        assert_eq!(support_of("no_ssl_kernel_tls"), Support::Supported);
        assert_eq!(support_of("hashpower=20"), Support::NoEffect);
        assert_eq!(support_of("ext_path=/x:1G"), Support::Unsupported("nothing is stored on disk"));
        assert!(UNSUPPORTED_NAMES.iter().all(|name| support_of(name) != Support::Unsupported("it is not supported")));
        assert_eq!(support_of("foo"), Support::Unknown);
    }

    #[test]
    fn the_nearest_option_is_suggested() {
        assert!(
            unknown_option_error("idle_timeot=9").contains("did you mean idle_timeout?"),
            "{}",
            unknown_option_error("idle_timeot=9")
        );
        assert!(unknown_option_error("foo").contains("the supported ones are"), "{}", unknown_option_error("foo"));
        assert_eq!((distance("kitten", "sitting"), distance("", "abc"), distance("abc", "abc")), (3, 3, 0));
    }
}
