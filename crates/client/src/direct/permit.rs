//! A read permit: what a router tells a client that reads servers directly
//! ([ADR 017](../../../../docs/adr/017-direct-clients.md)). The router composes its text, the client parses it.
//! Sans-I/O.
//!
//! ```text
//! get __mcrouter__.read_permit\r\n
//!                                   restricted-permit 200                              valid for 200 milliseconds
//!                                   configuration 0f3c...                              from when it was requested
//!                                   fenced 10.0.0.7:11211
//!                                   spare web 3 0                  the pool, the server's index in it, the spare's
//!                                   leases                         the router takes leases for plain clients
//!                                   options --route-prefix=/a/b/   of the router: the client must read by the same ones
//! ```
//!
//! A permit whose lines a client must not ignore begins with `restricted-permit` instead of `permit`:
//!
//! | first word | a line that begins with a word that the reader does not know |
//! |---|---|
//! | `permit` | is ignored, so that later routers can add some that restrict nothing |
//! | `restricted-permit` | makes it no permit: the client reads through a router. One that does not know the first word does so, too |
//!
//! A permit with `leases` or `options` is a restricted one. Without `options` the router has none of those that decide
//! where a key is and what clients get for it ([`Defaults::data_options`](lookaside_routing::Defaults::data_options)).
//! The reply can also be a refusal, without `leases` from a router that does not say:
//!
//! ```text
//!                                   refused the router waits for the invalidator
//!                                   leases yes                     or no
//! ```
//!
//! Bytes of an address, of a pool's name or of the options that are no printable ASCII are % and hex.

use crate::config::ConfigId;
use lookaside_protocol::percent;
use lookaside_routing::Address;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// The key that a client gets from a router to read servers directly.
pub const PERMIT_KEY: &str = "__mcrouter__.read_permit";

/// How long a client may read directly, from the moment at which it requested the permit.
pub const PERMIT_DURATION: Duration = Duration::from_millis(200);

/// How long the router assumes that a permit is in use, from the moment at which it gives it: clocks of clients may run
/// slower by a quarter.
pub const PERMIT_ENDS_AFTER: Duration = Duration::from_millis(250);

/// What a client may read directly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit {
    /// For how long, from the moment at which it requested the permit.
    pub duration: Duration,
    /// By which configuration.
    pub configuration: ConfigId,
    /// By which options of the router's command line, as
    /// [`Defaults::data_options`](lookaside_routing::Defaults::data_options) has them.
    pub data_options: String,
    /// Not these servers.
    pub fenced: BTreeSet<Address>,
    /// Places of pools that a spare serves.
    pub spares: BTreeSet<ServingSpare>,
    /// Whether the router takes leases for clients that know none
    /// ([ADR 016](../../../../docs/adr/016-leases-for-plain-clients.md)). Then the client takes leases for its own
    /// plain gets, and sends plain stores and deletes through a router.
    pub takes_leases: bool,
}

/// A place of a pool that a spare serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServingSpare {
    /// The pool's name.
    pub pool: String,
    /// The index of the server in the pool.
    pub server: usize,
    /// The index of the spare among the pool's.
    pub spare: usize,
}

/// The reply to a request for a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PermitReply {
    /// The client may read directly.
    Permitted(Permit),
    /// It may not, for now.
    Refused {
        /// The reason, for people.
        why: String,
        /// As [`Permit::takes_leases`]; `None` if the router does not say.
        takes_leases: Option<bool>,
    },
}

/// The first word of a permit that restricts nothing which a reader might not know.
const PERMIT: &str = "permit";
/// The first word of a permit all of whose lines must be known.
const RESTRICTED_PERMIT: &str = "restricted-permit";

impl PermitReply {
    /// The reply in the value of [`PERMIT_KEY`]; `None` if it is malformed, or restricts what this client does not
    /// know.
    pub fn parse(value: &[u8]) -> Option<PermitReply> {
        let text = str::from_utf8(value).ok()?;
        let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
        let (word, argument) = first.trim_end().split_once(' ')?;
        match word {
            "refused" => {
                let takes_leases = rest.lines().find_map(|line| match line {
                    "leases yes" => Some(true),
                    "leases no" => Some(false),
                    _ => None,
                });
                Some(PermitReply::Refused { why: argument.to_owned(), takes_leases })
            }
            PERMIT => parse_permit(argument, rest, false).map(PermitReply::Permitted),
            RESTRICTED_PERMIT => parse_permit(argument, rest, true).map(PermitReply::Permitted),
            _ => None,
        }
    }

    /// Whether the router takes leases for clients that know none; `None` if it does not say.
    pub(super) fn takes_leases(&self) -> Option<bool> {
        match self {
            PermitReply::Permitted(permit) => Some(permit.takes_leases),
            PermitReply::Refused { takes_leases, .. } => *takes_leases,
        }
    }
}

fn parse_permit(duration_ms: &str, lines: &str, is_restricted: bool) -> Option<Permit> {
    let duration = Duration::from_millis(duration_ms.parse().ok()?);
    let (mut fenced, mut spares) = (BTreeSet::new(), BTreeSet::new());
    let (mut configuration, mut data_options, mut takes_leases) = (None, String::new(), false);
    for line in lines.lines() {
        let mut words = line.split(' ');
        match words.next()? {
            "configuration" => configuration = Some(ConfigId::parse(words.next()?)?),
            "fenced" => drop(fenced.insert(Address(percent::decode_text(words.next()?)?.into()))),
            "spare" => {
                let pool = percent::decode_text(words.next()?)?;
                let (server, spare) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                spares.insert(ServingSpare { pool, server, spare });
            }
            "leases" => takes_leases = true,
            "options" => data_options = percent::decode_text(words.next()?)?,
            _ if is_restricted => return None,
            _ => {}
        }
    }
    Some(Permit { duration, configuration: configuration?, data_options, fenced, spares, takes_leases })
}

impl fmt::Display for PermitReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let permit = match self {
            PermitReply::Permitted(permit) => permit,
            PermitReply::Refused { why, takes_leases } => {
                write!(f, "refused {why}\r\n")?;
                return match takes_leases {
                    Some(true) => f.write_str("leases yes\r\n"),
                    Some(false) => f.write_str("leases no\r\n"),
                    None => Ok(()),
                };
            }
        };
        let is_restricted = permit.takes_leases || !permit.data_options.is_empty();
        let word = if is_restricted { RESTRICTED_PERMIT } else { PERMIT };
        write!(f, "{word} {}\r\nconfiguration {}\r\n", permit.duration.as_millis(), permit.configuration)?;
        for server in &permit.fenced {
            write!(f, "fenced {}\r\n", encode(&server.0))?;
        }
        for ServingSpare { pool, server, spare } in &permit.spares {
            write!(f, "spare {} {server} {spare}\r\n", encode(pool))?;
        }
        if permit.takes_leases {
            f.write_str("leases\r\n")?;
        }
        if !permit.data_options.is_empty() {
            write!(f, "options {}\r\n", encode(&permit.data_options))?;
        }
        Ok(())
    }
}

fn encode(text: &str) -> impl fmt::Display {
    percent::encode_except(text.as_bytes(), |byte| byte.is_ascii_graphic() && byte != b'%')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permit() -> Permit {
        Permit {
            duration: PERMIT_DURATION,
            configuration: ConfigId(0x1f),
            data_options: "--route-prefix=/a%b/c/ --disable-shard-split-route".to_owned(),
            fenced: ["10.0.0.7:11211", "/run/a b\n%"].map(|server| Address(server.into())).into(),
            spares: [ServingSpare { pool: "a b%".to_owned(), server: 3, spare: 0 }].into(),
            takes_leases: true,
        }
    }

    fn refusal(takes_leases: Option<bool>) -> PermitReply {
        PermitReply::Refused { why: "the start gate is closed".to_owned(), takes_leases }
    }

    #[test]
    fn parsing_reverses_composing() {
        let (fenced, spares, data_options) = (BTreeSet::new(), BTreeSet::new(), String::new());
        let bare = Permit { fenced, spares, data_options, takes_leases: false, ..permit() };
        let with_options = Permit { takes_leases: false, ..permit() };
        let with_leases = Permit { data_options: String::new(), ..permit() };
        for reply in [
            PermitReply::Permitted(permit()),
            PermitReply::Permitted(bare),
            PermitReply::Permitted(with_options),
            PermitReply::Permitted(with_leases),
            refusal(None),
            refusal(Some(true)),
            refusal(Some(false)),
        ] {
            assert_eq!(PermitReply::parse(reply.to_string().as_bytes()), Some(reply));
        }
    }

    /// Once `leases` was one more line of a permit, which a client that did not know it ignored: it sent plain gets to
    /// servers, past the router that had to see their misses.
    #[test]
    fn a_client_that_does_not_know_a_restriction_has_no_permit() {
        let text = PermitReply::Permitted(permit()).to_string();
        assert!(!text.starts_with("permit "), "a client of then knows this word only");
        let restricted = format!("{text}later words\r\n");
        assert_eq!(PermitReply::parse(restricted.as_bytes()), None);
        let of_an_older_router = text.replacen("restricted-permit", "permit", 1);
        assert_eq!(PermitReply::parse(of_an_older_router.as_bytes()), Some(PermitReply::Permitted(permit())));
    }

    #[test]
    fn unknown_lines_are_ignored_and_malformed_ones_are_no_permit() {
        let permit = Permit { takes_leases: false, data_options: String::new(), ..permit() };
        let text = PermitReply::Permitted(permit.clone()).to_string();
        let longer = format!("{text}later words\r\n");
        assert_eq!(PermitReply::parse(longer.as_bytes()), Some(PermitReply::Permitted(permit)));
        let refused = b"refused for a while\r\nlater words\r\n";
        assert!(matches!(PermitReply::parse(refused), Some(PermitReply::Refused { takes_leases: None, .. })));
        for bad in ["", "permit", "permit x\r\n", "permit 200\r\n", "allowed 200\r\nconfiguration 1\r\n"] {
            assert_eq!(PermitReply::parse(bad.as_bytes()), None, "{bad:?}");
        }
        for (part, replacement) in
            [("fenced 10", "fenced %zz10"), ("spare a", "spare %zz"), ("3 0", "3 x"), ("1f", "g")]
        {
            let bad = text.replacen(part, replacement, 1);
            assert_eq!(PermitReply::parse(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
