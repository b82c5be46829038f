//! The flags of a meta command: read from their text, and refused in memcached 1.6.45's words.

use super::{MetaVerb, decode_key};
use crate::text::{Tokens, refusal, signed, unsigned};
use crate::{Cas, Direction, KEY_BYTES_MAX, StoreMode};

/// The longest opaque token. memcached's `protocol.txt` says 32, memcached counts the letter in.
pub const OPAQUE_BYTES_MAX: usize = 31;

/// The most flags a command may carry; an `ms` one fewer, because its length counts.
const FLAGS_COUNT_MAX: usize = 18;

/// The letters that are flags of `mg`, `ms`, `md` and `ma`; each of them takes all and ignores those that mean nothing
/// to it.
const LETTERS: Letters = Letters::of(b"bcfhklqstuvxCDEFIJLMNOPRT");

/// A set of letters, a bit each.
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

    /// `A` is 0x41 and `z` 0x7a: all letters lie in one block of 64.
    const fn bit(letter: u8) -> u64 {
        if letter.is_ascii_alphabetic() { 1 << (letter - 0x40) } else { 0 }
    }

    const fn has(self, letter: u8) -> bool {
        self.0 & Letters::bit(letter) != 0
    }
}

/// One flag of a command or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaFlag<'a> {
    /// Which.
    pub letter: u8,
    /// What came with it; often nothing.
    pub token: &'a [u8],
}

/// The flags in a text, in order, whatever they are.
pub fn meta_flags(text: &[u8]) -> impl Iterator<Item = MetaFlag<'_>> + Clone {
    let mut tokens = Tokens(text);
    std::iter::from_fn(move || {
        let (&letter, token) = tokens.token()?.split_first()?;
        Some(MetaFlag { letter, token })
    })
}

/// The flags of a command, read.
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
    /// `N`: make the item if it is missing, with this time to live.
    pub vivify_ttl_s: Option<i32>,
    /// `R`: win the right to fill the item anew if less than this remains to it.
    pub recache_below_s: Option<i32>,
    /// `J`: what an `ma` with `N` starts from.
    pub initial: Option<u64>,
    /// `D`: by how much an `ma` counts.
    pub delta: Option<u64>,
    /// `O`: to be returned with the answer.
    pub opaque: Option<&'a [u8]>,
}

impl<'a> MetaFlags<'a> {
    /// Reads a command's flags, or says what its sender is told. Allocates nothing. How long an opaque token is, memcached
    /// looks at last; so does the parser.
    pub fn read(verb: MetaVerb, text: &'a [u8]) -> Result<MetaFlags<'a>, &'static str> {
        MetaFlags::read_with_key(verb, None, text)
    }

    /// As [`MetaFlags::read`]; the key is checked where memcached does it: behind the letters, before the tokens.
    pub(crate) fn read_with_key(
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
        flags.note_letters(verb)?;
        if flags.has(b'b') && key.is_some_and(|key| decode_key(key, &mut [0; KEY_BYTES_MAX]).is_none()) {
            return Err(match verb {
                MetaVerb::Debug => refusal::BAD_FORMAT,
                _ => reworded(verb, "CLIENT_ERROR error decoding key"),
            });
        }
        // `me` shows what there is, whatever else it is asked.
        if verb != MetaVerb::Debug {
            for flag in meta_flags(text) {
                flags.read_token(flag).map_err(|refusal| reworded(verb, refusal))?;
            }
            flags.check_mode(verb)?;
        }
        Ok(flags)
    }

    /// All letters before any token, as memcached does: an unknown letter is told of before a bad number is.
    fn note_letters(&mut self, verb: MetaVerb) -> Result<(), &'static str> {
        if meta_flags(self.text).any(|flag| !flag.letter.is_ascii_alphanumeric()) {
            return Err("CLIENT_ERROR bad command line format");
        }
        if meta_flags(self.text).count() > FLAGS_COUNT_MAX - usize::from(verb == MetaVerb::Set) {
            return Err(reworded(verb, "CLIENT_ERROR options flags are too long"));
        }
        for MetaFlag { letter, .. } in meta_flags(self.text) {
            if verb != MetaVerb::Debug {
                if !LETTERS.has(letter) {
                    return Err(reworded(verb, "CLIENT_ERROR invalid flag"));
                }
                if self.letters.has(letter) {
                    return Err(reworded(verb, "CLIENT_ERROR duplicate flag"));
                }
            }
            self.letters.0 |= Letters::bit(letter);
        }
        Ok(())
    }

    fn read_token(&mut self, MetaFlag { letter, token }: MetaFlag<'a>) -> Result<(), &'static str> {
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

    /// Whether the flag is there.
    pub fn has(&self, letter: u8) -> bool {
        self.letters.has(letter)
    }

    /// The flags in the order they were sent.
    pub fn in_order(&self) -> impl Iterator<Item = MetaFlag<'a>> + Clone + use<'a> {
        meta_flags(self.text)
    }

    /// How an `ms` stores: by `M`, or with `C` as a compare-and-swap if it would replace something. An append or prepend
    /// with `C` has to look at [`MetaFlags::cas_compare`] itself; an add does not compare.
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

    /// Which way an `ma` counts.
    pub fn direction(&self) -> Direction {
        if matches!(self.mode, b'D' | b'-') { Direction::Down } else { Direction::Up }
    }
}

/// `ma` has one word for all that is wrong with a flag.
pub(crate) fn reworded(verb: MetaVerb, refusal: &'static str) -> &'static str {
    if verb == MetaVerb::Arithmetic { "CLIENT_ERROR invalid or duplicate flag" } else { refusal }
}
