//! The words, names and punctuation of a statement in the log, for those that need not parse it.
//!
//! | in front of a statement | |
//! |---|---|
//! | comments, white space | skipped |
//! | `/*! ... */`, `/*M! ... */` | code, whatever version they name |
//! | `SET STATEMENT ... FOR` (MariaDB) | settings for this statement, skipped with their values |
//! | `ANALYZE`, `ANALYZE FORMAT=...` (MariaDB) | skipped: the statement is executed |
//!
//! Where a string ends, and whether "..." is one, depends on the session's [`SqlMode`].
//!
//! What else wraps a statement (`PREPARE`, `EXECUTE IMMEDIATE`, compound statements, routines, events) is not in the
//! log: the server writes each statement that it executes by itself.

use crate::keys::{SqlMode, line_bytes, opens_line_comment};
use memchr::{memchr, memmem};
use std::borrow::Cow;

/// A part of a statement.
pub enum Token<'a> {
    /// A word without quotes: a keyword, a number or a name.
    Word(&'a [u8]),
    /// What `...` holds, or "..." under ANSI_QUOTES.
    Quoted(Vec<u8>),
    Dot,
    /// A string, with its first byte, or another character.
    Other(u8),
}

impl<'a> Token<'a> {
    /// A word, or what quotes hold.
    pub fn into_name(self) -> Option<Cow<'a, [u8]>> {
        match self {
            Token::Word(word) => Some(word.into()),
            Token::Quoted(name) => Some(name.into()),
            Token::Dot | Token::Other(_) => None,
        }
    }

    pub fn into_word(self) -> Option<&'a [u8]> {
        match self {
            Token::Word(word) => Some(word),
            _ => None,
        }
    }
}

/// The rest of a statement.
#[derive(Clone, Debug)]
pub struct Tokens<'a> {
    sql: &'a [u8],
    mode: SqlMode,
}

/// The modes in which a server may have read `sql`, which it executed in mode `logged`; `None` if the log does not say.
/// Settings of `SET STATEMENT` may be of the mode, and hold once all of the text has been read.
pub fn possible_modes(sql: &[u8], logged: Option<SqlMode>) -> Vec<SqlMode> {
    let quotes_matter = memchr(b'"', sql).is_some() || memchr(b'\\', sql).is_some();
    match logged {
        _ if !quotes_matter => vec![SqlMode::DEFAULT],
        Some(mode) if !(Tokens { sql, mode }).has_settings() => vec![mode],
        _ => SqlMode::ALL.to_vec(),
    }
}

impl<'a> Tokens<'a> {
    /// The tokens of `sql`, read in `mode`, without what is in front of the statement itself.
    pub fn of_statement(sql: &'a [u8], mode: SqlMode) -> Tokens<'a> {
        let mut tokens = Tokens { sql, mode };
        loop {
            let [first, second] = tokens.first_words();
            if tokens.has_settings() {
                tokens.skip_settings();
            } else if first.eq_ignore_ascii_case(b"analyze") {
                tokens.skip_words(if second.eq_ignore_ascii_case(b"format") { 3 } else { 1 });
            } else {
                return tokens;
            }
        }
    }

    /// The first two words; empty if there are none.
    fn first_words(&self) -> [&'a [u8]; 2] {
        let mut words = self.clone().filter_map(Token::into_word);
        [(); 2].map(|()| words.next().unwrap_or_default())
    }

    /// Whether it begins with `SET STATEMENT`.
    fn has_settings(&self) -> bool {
        let [first, second] = self.first_words();
        first.eq_ignore_ascii_case(b"set") && second.eq_ignore_ascii_case(b"statement")
    }

    /// Skips up to the FOR that ends the settings. One in parentheses is of a function: `SUBSTRING(a FROM 1 FOR 2)`.
    fn skip_settings(&mut self) {
        let mut depth = 0_usize;
        for token in self.by_ref() {
            match token {
                Token::Other(b'(') => depth += 1,
                Token::Other(b')') => depth = depth.saturating_sub(1),
                Token::Word(word) if depth == 0 && word.eq_ignore_ascii_case(b"for") => return,
                _ => {}
            }
        }
    }

    fn skip_words(&mut self, count: usize) {
        self.by_ref().filter_map(Token::into_word).take(count).for_each(drop);
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            let rest = self.sql;
            let (token, length) = match *rest.first()? {
                quote if quote == b'`' || quote == b'"' && self.mode.has_ansi_quotes => {
                    let (name, length) = quoted(rest);
                    (Some(Token::Quoted(name)), length)
                }
                quote @ (b'\'' | b'"') => (Some(Token::Other(quote)), string_bytes(rest, self.mode)),
                b'#' => (None, line_bytes(rest)),
                b'-' if opens_line_comment(rest) => (None, line_bytes(rest)),
                // Executable comments hold code.
                b'/' if rest.starts_with(b"/*!") || rest.starts_with(b"/*M!") => {
                    let head = if rest[2] == b'!' { 3 } else { 4 };
                    (None, head + rest[head..].iter().take_while(|byte| byte.is_ascii_digit()).count())
                }
                b'/' if rest.starts_with(b"/*") => {
                    (None, memmem::find(&rest[2..], b"*/").map_or(rest.len(), |end| end + 4))
                }
                b'.' => (Some(Token::Dot), 1),
                byte if is_word(byte) => {
                    let length = rest.iter().take_while(|byte| is_word(**byte)).count();
                    (Some(Token::Word(&rest[..length])), length)
                }
                // A vertical tab is white space to servers.
                byte if byte.is_ascii_whitespace() || byte == 0x0b => (None, 1),
                byte => (Some(Token::Other(byte)), 1),
            };
            self.sql = &rest[length..];
            if token.is_some() {
                return token;
            }
        }
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || byte >= 0x80
}

/// The identifier at the start of `text`, and its length with the quotes.
fn quoted(text: &[u8]) -> (Vec<u8>, usize) {
    let quote = text[0];
    let (mut name, mut at) = (Vec::new(), 1);
    while let Some(&byte) = text.get(at) {
        at += 1;
        if byte == quote {
            if text.get(at) != Some(&quote) {
                break;
            }
            at += 1;
        }
        name.push(byte);
    }
    (name, at)
}

/// The length of the string at the start of `text`. A doubled quote ends it, and begins the next one.
fn string_bytes(text: &[u8], mode: SqlMode) -> usize {
    let (quote, has_escapes) = (text[0], mode.has_escapes_in(text[0]));
    let mut at = 1;
    while let Some(&byte) = text.get(at) {
        at += if byte == b'\\' && has_escapes { 2 } else { 1 };
        if byte == quote {
            return at;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_word(sql: &str) -> String {
        let word = Tokens::of_statement(sql.as_bytes(), SqlMode::DEFAULT).find_map(Token::into_word);
        String::from_utf8_lossy(word.unwrap_or_default()).into_owned()
    }

    #[test]
    fn what_is_in_front_of_a_statement_is_skipped() {
        for sql in [
            "ALTER TABLE t",
            " \t\r\n\x0b\x0cALTER TABLE t",
            "--\nALTER TABLE t",
            "--\tx\n# y\n/* z */ALTER/**/TABLE t",
            "/*!ALTER TABLE t*/",
            "/*!50000 ALTER TABLE t*/",
            "/*M!100100ALTER TABLE t */",
            "/*!80000 /* why */ ALTER */ TABLE t",
            "SET STATEMENT max_statement_time=10 FOR ALTER TABLE t",
            "set\n/* a */ statement -- b\n max_statement_time = 10.5, sql_mode = 'for', foreign_key_checks=0 for ALTER TABLE t",
            "SET/*M! STATEMENT */ a = 1 /*!FOR*/ ALTER TABLE t",
            "SET STATEMENT a = SUBSTRING('xyz' FROM 1 FOR (1)), b=`for`, c=\"for\" FOR ALTER TABLE t",
            "SET STATEMENT a=1 FOR SET STATEMENT b=2 FOR ALTER TABLE t",
            "ANALYZE ALTER TABLE t",
            "ANALYZE FORMAT=JSON ALTER TABLE t",
            "SET STATEMENT a=1 FOR ANALYZE FORMAT = traditional ALTER TABLE t",
        ] {
            assert_eq!(first_word(sql), "ALTER", "{sql}");
        }
    }

    #[test]
    fn settings_may_change_the_mode_behind_them() {
        let plain = SqlMode { has_ansi_quotes: false, has_backslash_escapes: false };
        for (sql, logged, expected) in [
            (r"UPDATE t SET a='\'", Some(plain), &[plain][..]),
            (r"UPDATE t SET a='\'", None, &SqlMode::ALL),
            (r"SET STATEMENT sql_mode='' FOR UPDATE t SET a='\'", Some(plain), &SqlMode::ALL),
            ("UPDATE t SET a='x'", Some(plain), &[SqlMode::DEFAULT]),
        ] {
            assert_eq!(possible_modes(sql.as_bytes(), logged), expected, "{sql}");
        }
    }

    #[test]
    fn other_statements_are_left_as_they_are() {
        for (sql, first) in [
            ("SET PASSWORD FOR u = 'x'", "SET"),
            ("SET STATEMENT a = 1", ""),
            ("SET STATEMENT a = (1 FOR ALTER TABLE t", ""),
            ("ANALYZE TABLE t", "TABLE"),
            ("ANALYZE LOCAL TABLE t", "LOCAL"),
            ("ANALYZE", ""),
            ("`SET` STATEMENT a FOR b", "STATEMENT"),
            ("-- ALTER TABLE t", ""),
            ("/* no end", ""),
            ("", ""),
        ] {
            assert_eq!(first_word(sql), first, "{sql}");
        }
    }
}
