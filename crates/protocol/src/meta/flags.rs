//! Parses the flags of a meta command; refusals have memcached 1.6.45's messages.

use super::key::decode_key;
use super::verb::MetaVerb;
use crate::line::{Tokens, signed, unsigned};
use crate::refusal;
use crate::{Cas, Direction, KEY_BYTES_MAX, StoreMode};

/// The longest opaque token, in bytes. memcached's `protocol.txt` says 32, but memcached counts the letter too.
pub const OPAQUE_BYTES_MAX: usize = 31;
/// The opaque token of an `mg` by a tool that compares caches. It tells routers that no value will be stored after a
/// miss: they take no lease for it, and do not warm a cluster up. Servers only repeat it, as any opaque token.
pub const OBSERVER_OPAQUE: &[u8] = b"lookaside-observer";

/// The most flags of a command; of an `ms` one fewer, because its length counts.
const FLAGS_COUNT_MAX: usize = 18;

/// The flags of `mg`, `ms`, `md` and `ma`. Each command accepts all of them and ignores those that it does not use.
const LETTERS: Letters = Letters::of(b"bcfhklqstuvxCDEFIJLMNOPRT");

/// A set of letters, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Letters(u64);

impl Letters {
    const fn of(letters: &[u8]) -> Letters {
        let mut set = 0;
        let mut at = 0;
        while at < letters.len() {
            set |= Letters::bit(letters[at]);
            at += 1;
        }
        Letters(set)
    }

    /// `A` is 0x41 and `z` 0x7a: all letters fit into one block of 64.
    const fn bit(letter: u8) -> u64 {
        if letter.is_ascii_alphabetic() { 1 << (letter - 0x40) } else { 0 }
    }

    const fn has(self, letter: u8) -> bool {
        self.0 & Letters::bit(letter) != 0
    }
}

/// One flag of a command or a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaFlag<'a> {
    /// Its letter.
    pub letter: u8,
    /// Its token; often empty.
    pub token: &'a [u8],
}

/// The flags in a text, in order. They are not checked.
pub fn meta_flags(text: &[u8]) -> impl Iterator<Item = MetaFlag<'_>> + Clone {
    let mut tokens = Tokens(text);
    std::iter::from_fn(move || {
        let (&letter, token) = tokens.token()?.split_first()?;
        Some(MetaFlag { letter, token })
    })
}

/// The parsed flags of a command.
///
/// ```
/// use lookaside_protocol::meta::{MetaFlags, MetaVerb};
/// let flags = MetaFlags::read(MetaVerb::Get, b"v t T30 Oabc").unwrap();
/// assert!(flags.has(b'v') && !flags.has(b'k'));
/// assert_eq!((flags.ttl_s, flags.opaque), (Some(30), Some(&b"abc"[..])));
/// assert_eq!(MetaFlags::read(MetaVerb::Get, b"v v"), Err("CLIENT_ERROR duplicate flag"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaFlags<'a> {
    text: &'a [u8],
    letters: Letters,
    mode: u8,
    /// `C`: act only if the item has this CAS unique.
    pub cas_compare: Option<Cas>,
    /// `E`: the CAS unique that the item gets if it is changed.
    pub cas_new: Option<Cas>,
    /// `F`: the item's flags.
    pub client_flags: Option<u32>,
    /// `T`: the new time to live, as an exptime.
    pub ttl_s: Option<i32>,
    /// `N`: create the item if it is missing, with this time to live.
    pub vivify_ttl_s: Option<i32>,
    /// `R`: win the right to recache the item if its remaining time to live is below this.
    pub recache_below_s: Option<i32>,
    /// `J`: the initial value of an `ma` with `N`.
    pub initial: Option<u64>,
    /// `D`: the delta of an `ma`.
    pub delta: Option<u64>,
    /// `O`: returned with the reply.
    pub opaque: Option<&'a [u8]>,
}

impl<'a> MetaFlags<'a> {
    /// Parses a command's flags; the error is the reply to the client. Like memcached, the parser of commands checks
    /// the length of an opaque token last, and not here.
    pub fn read(verb: MetaVerb, text: &'a [u8]) -> Result<MetaFlags<'a>, &'static str> {
        MetaFlags::parse_with_key(verb, None, text)
    }

    /// As [`MetaFlags::read`]; checks the key when memcached does: after the letters and before the tokens.
    pub(crate) fn parse_with_key(
        verb: MetaVerb,
        key: Option<&[u8]>,
        text: &'a [u8],
    ) -> Result<MetaFlags<'a>, &'static str> {
        let mut flags = MetaFlags {
            text,
            letters: Letters(0),
            mode: 0,
            cas_compare: None,
            cas_new: None,
            client_flags: None,
            ttl_s: None,
            vivify_ttl_s: None,
            recache_below_s: None,
            initial: None,
            delta: None,
            opaque: None,
        };
        flags.parse_letters(verb)?;
        if flags.has(b'b') && key.is_some_and(|key| decode_key(key, &mut [0; KEY_BYTES_MAX]).is_none()) {
            return Err(match verb {
                MetaVerb::Debug => refusal::BAD_FORMAT,
                _ => remap_error(verb, "CLIENT_ERROR error decoding key"),
            });
        }
        // `me` ignores all flags but `b`.
        if verb != MetaVerb::Debug {
            for flag in meta_flags(text) {
                flags.parse_token(flag).map_err(|refusal| remap_error(verb, refusal))?;
            }
            flags.check_mode(verb)?;
        }
        Ok(flags)
    }

    /// Parses all letters before any token, as memcached does: an unknown letter is reported before a bad number.
    fn parse_letters(&mut self, verb: MetaVerb) -> Result<(), &'static str> {
        if meta_flags(self.text).any(|flag| !flag.letter.is_ascii_alphanumeric()) {
            return Err("CLIENT_ERROR bad command line format");
        }
        if meta_flags(self.text).count() > FLAGS_COUNT_MAX - usize::from(verb == MetaVerb::Set) {
            return Err(remap_error(verb, "CLIENT_ERROR options flags are too long"));
        }
        for MetaFlag { letter, .. } in meta_flags(self.text) {
            if verb != MetaVerb::Debug {
                if !LETTERS.has(letter) {
                    return Err(remap_error(verb, "CLIENT_ERROR invalid flag"));
                }
                if self.letters.has(letter) {
                    return Err(remap_error(verb, "CLIENT_ERROR duplicate flag"));
                }
            }
            self.letters.0 |= Letters::bit(letter);
        }
        Ok(())
    }

    fn parse_token(&mut self, MetaFlag { letter, token }: MetaFlag<'a>) -> Result<(), &'static str> {
        const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
        let cas = || unsigned(token).map(Cas).ok_or(BAD_TOKEN);
        let seconds = || signed(token).and_then(|seconds| i32::try_from(seconds).ok()).ok_or(BAD_TOKEN);
        match letter {
            b'C' => self.cas_compare = Some(cas()?),
            b'E' => self.cas_new = Some(cas()?),
            b'T' => self.ttl_s = Some(seconds()?),
            b'N' => self.vivify_ttl_s = Some(seconds()?),
            b'R' => self.recache_below_s = Some(seconds()?),
            b'F' => {
                let flags = unsigned(token).and_then(|flags| u32::try_from(flags).ok());
                self.client_flags = Some(flags.ok_or("CLIENT_ERROR bad command line format")?);
            }
            b'D' => self.delta = Some(unsigned(token).ok_or("CLIENT_ERROR invalid numeric delta value")?),
            b'J' => self.initial = Some(unsigned(token).ok_or("CLIENT_ERROR invalid numeric initial value")?),
            b'M' => self.mode = token.first().copied().unwrap_or(0),
            b'O' => self.opaque = Some(token),
            _ => {}
        }
        Ok(())
    }

    fn check_mode(&self, verb: MetaVerb) -> Result<(), &'static str> {
        match verb {
            MetaVerb::Set if self.has(b'M') && !b"EAPRS".contains(&self.mode) => {
                Err("CLIENT_ERROR invalid mode for ms M token")
            }
            MetaVerb::Arithmetic if self.has(b'M') && !b"ID+-".contains(&self.mode) => {
                Err("CLIENT_ERROR invalid mode for ma M token")
            }
            _ => Ok(()),
        }
    }

    /// Whether the command has the flag.
    pub fn has(&self, letter: u8) -> bool {
        self.letters.has(letter)
    }

    /// The flags in the order in which they were sent.
    pub fn in_order(&self) -> impl Iterator<Item = MetaFlag<'a>> + Clone + use<'a> {
        meta_flags(self.text)
    }

    /// The mode of an `ms`: that of `M`, or with `C` a compare-and-swap if it would replace something. The caller
    /// compares [`MetaFlags::cas_compare`] for an append or prepend with `C`; an add does not compare.
    pub fn store_mode(&self) -> StoreMode {
        match (self.mode, self.cas_compare) {
            (b'E', _) => StoreMode::Add,
            (b'A', _) => StoreMode::Append,
            (b'P', _) => StoreMode::Prepend,
            (_, Some(cas)) => StoreMode::Cas(cas),
            (b'R', None) => StoreMode::Replace,
            (_, None) => StoreMode::Set,
        }
    }

    /// The direction of an `ma`.
    pub fn direction(&self) -> Direction {
        if matches!(self.mode, b'D' | b'-') { Direction::Down } else { Direction::Up }
    }
}

/// memcached's `ma` has one message for all bad flags.
pub(crate) fn remap_error(verb: MetaVerb, refusal: &'static str) -> &'static str {
    if verb == MetaVerb::Arithmetic { "CLIENT_ERROR invalid or duplicate flag" } else { refusal }
}
