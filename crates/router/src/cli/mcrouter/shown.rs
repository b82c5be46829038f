//! The words of a command line while they are read, and the line that may be shown: `stats` shows it to every client.
//!
//! | word | shown |
//! |---|---|
//! | the value of `--etcd-password`; the value of an unknown flag, which may be a typing error for it | `...` |
//! | `etcd://USER:PASSWORD@HOST/KEY` | `etcd://...@HOST/KEY` |
//! | a configuration | `{...}` |
//! | a word of more than [`WORD_CHARS_MAX`] characters, a line of more than [`LINE_CHARS_MAX`] | its beginning, and `...` |

use crate::stats::counters::one_line;
use std::ffi::OsString;
use std::iter::Peekable;
use std::vec;

/// The most characters of a word that are shown.
pub(super) const WORD_CHARS_MAX: usize = 256;

/// The most characters of the line that are shown.
pub(super) const LINE_CHARS_MAX: usize = 4_096;

/// In the place of what is not shown.
const HIDDEN: &str = "...";

/// The words that are not read yet, and how those before them are shown.
pub(super) struct Words {
    rest: Peekable<vec::IntoIter<OsString>>,
    shown: Vec<String>,
}

impl Words {
    pub(super) fn new(words: impl IntoIterator<Item = OsString>) -> Words {
        let words: Vec<OsString> = words.into_iter().collect();
        Words { rest: words.into_iter().peekable(), shown: Vec::new() }
    }

    pub(super) fn next(&mut self) -> Option<OsString> {
        self.next_if(|_| true)
    }

    /// The next word, if it is as wanted.
    pub(super) fn next_if(&mut self, is_wanted: impl FnOnce(&OsString) -> bool) -> Option<OsString> {
        let word = self.rest.next_if(is_wanted)?;
        self.shown.push(shown_word(&word.to_string_lossy()));
        Some(word)
    }

    /// Hides the word that was read last: the value of a flag.
    pub(super) fn hide_word(&mut self) {
        if let Some(last) = self.shown.last_mut() {
            *last = HIDDEN.to_owned();
        }
    }

    /// Hides the value in the word that was read last, behind `=` or the letter of its flag.
    pub(super) fn hide_attached(&mut self) {
        let Some(last) = self.shown.last_mut() else { return };
        let name = match last.split_once('=') {
            Some((name, _)) if last.starts_with("--") => format!("{name}="),
            _ => last.chars().take(2).collect(),
        };
        *last = name + HIDDEN;
    }

    /// The line, of the words that were read.
    pub(super) fn into_shown(self) -> String {
        cut(self.shown.join(" "), LINE_CHARS_MAX)
    }
}

/// A word without the secrets that it may have wherever it stands.
pub(super) fn shown_word(word: &str) -> String {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) if name.starts_with("--") => (&word[..=name.len()], value),
        _ => ("", word),
    };
    let value = match value.rsplit_once('@') {
        _ if value.trim_start().starts_with('{') => format!("{{{HIDDEN}}}"),
        Some((user, rest)) => {
            let scheme = user.find("://").map_or("", |at| &user[..at + 3]);
            format!("{scheme}{HIDDEN}@{rest}")
        }
        None => value.to_owned(),
    };
    cut(one_line(&format!("{name}{value}")), WORD_CHARS_MAX)
}

fn cut(text: String, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((at, _)) => format!("{}{HIDDEN}", &text[..at]),
        None => text,
    }
}
