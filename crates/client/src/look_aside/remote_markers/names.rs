//! The keys of markers, and the value that lists the tokens of a key's writes.
//!
//! A key and its markers differ only behind `|#|`, where hashing stops, so all markers of a key are on one server.

use super::settings::{MarkerForm, MarkerSettings};
use bytes::Bytes;
use lookaside_protocol::KEY_BYTES_MAX;
use std::fmt;

/// The most tokens that are listed for one key. With more writes that are not replicated, [`Token::EVERY`] takes their
/// place.
pub(super) const TOKENS_MAX: usize = 32;

/// What follows a key in the name of its marker.
pub(super) const MARKER_SUFFIX_BYTES: usize = 3 + 16;

/// The token of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Token(pub(super) u64);

impl Token {
    /// Stands for the tokens of a list that was full. Its marker is deleted by nothing, and expires after all of
    /// theirs.
    pub(super) const EVERY: Token = Token(0);

    /// A token that was never used before.
    pub(super) fn random(random: &mut fastrand::Rng) -> Token {
        Token(random.u64(1..))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The names of one key's markers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct MarkerNames {
    /// The list of tokens; with one marker for each key, that marker.
    pub(super) list: Bytes,
    pub(super) form: MarkerForm,
}

impl MarkerNames {
    /// The names for `key`; `None` if it is too long: its markers would not be keys.
    pub(super) fn new(settings: &MarkerSettings, key: &[u8]) -> Option<MarkerNames> {
        let list: Bytes = [settings.key_prefix.as_bytes(), key].concat().into();
        let is_short = list.len() + MARKER_SUFFIX_BYTES <= KEY_BYTES_MAX;
        is_short.then_some(MarkerNames { list, form: settings.form })
    }

    /// The marker of a write.
    pub(super) fn marker(&self, token: Token) -> Bytes {
        match self.form {
            MarkerForm::PerWrite => [&self.list, format!("|#|{token}").as_bytes()].concat().into(),
            MarkerForm::PerKey => self.list.clone(),
        }
    }
}

/// The writes whose markers a reader must look for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum TokenList {
    Tokens(Vec<Token>),
    /// A value that this version does not know: take the key as marked.
    Unknown,
}

impl TokenList {
    pub(super) fn parse(value: &[u8]) -> TokenList {
        let token = |word: &[u8]| Some(Token(u64::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?));
        let words = value.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
        match words.map(token).collect() {
            Some(tokens) => TokenList::Tokens(tokens),
            None => TokenList::Unknown,
        }
    }

    /// The value of a list of tokens.
    pub(super) fn value_of(tokens: &[Token]) -> Bytes {
        let words: Vec<String> = tokens.iter().map(Token::to_string).collect();
        words.join(" ").into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_protocol::check_key;

    #[test]
    fn a_list_is_read_as_it_was_written() {
        for count in [0, 1, TOKENS_MAX as u64] {
            let tokens: Vec<Token> = (0..count).map(|number| Token(number << 32 | number)).collect();
            assert_eq!(TokenList::parse(&TokenList::value_of(&tokens)), TokenList::Tokens(tokens));
        }
    }

    #[test]
    fn a_value_that_is_no_list_is_unknown() {
        for unknown in [&b"*"[..], b"12 *", b"x", b"12345678901234567", &[0xff]] {
            assert_eq!(TokenList::parse(unknown), TokenList::Unknown, "{unknown:?}");
        }
    }

    #[test]
    fn the_longest_key_has_markers_that_are_keys() {
        let settings = MarkerSettings::default();
        let longest = KEY_BYTES_MAX - settings.key_prefix.len() - MARKER_SUFFIX_BYTES;
        let names = MarkerNames::new(&settings, &vec![b'k'; longest]).expect("not too long");
        assert_eq!(names.marker(Token(u64::MAX)).len(), KEY_BYTES_MAX);
        assert_eq!(check_key(&names.marker(Token(0))), Ok(()));
        assert_eq!(MarkerNames::new(&settings, &vec![b'k'; longest + 1]), None);
    }
}
