//! Keys from comments in SQL (§4.1: statements "are amended to include memcache keys"):
//!
//! ```sql
//! UPDATE users SET name = 'x' /* lookaside: user:42 profile:42 */ WHERE id = 42
//! ```
//!
//! The word `lookaside:` opens the comment, white space may stand before it, keys follow it, literally, separated by
//! white space. Several such comments may stand anywhere in a statement.
//!
//! This is a lexer and not a search: the text of a comment inside a string literal, a quoted identifier or a line
//! comment is data that somebody typed, and names no key. One pass, linear in the statement's length.
//!
//! What it takes for what:
//! ```text
//! '...'         string: '' and \' stand for a quote (see below)
//! "..."         string, or identifier: the same, or only "" stands for a quote (see below)
//! `...`         identifier
//! # ... \n      line comment (MySQL)            -- ... \n   line comment, where white space follows --
//! /* ... */     comment; they do not nest       /*! ... */ and /*M! ... */   code; may hold comments
//! ```
//!
//! What a backslash means depends on the session's `sql_mode` (`NO_BACKSLASH_ESCAPES`, `ANSI_QUOTES`), which the log
//! does not carry beside a statement, and which each connection may set for itself. So a statement with a backslash is
//! read in every way that a server may have read it, and the union of the keys counts: a delete too many is harmless,
//! one that is missing is not. The price: text inside a literal with a backslash may name a key, which is then deleted
//! for nothing.
//!
//! Absent on purpose: dollar quoting (PostgreSQL brings its keys another way), character sets in which a backslash or
//! quote can be the second byte of a letter (GBK, Big5, SJIS), and the server's version: the inside of
//! `/*!99999 ... */` is taken for code even where the server would skip it. A comment without an end is no statement
//! that a server would carry out, and names nothing.

use super::accept;
use memchr::{memchr, memchr2, memmem};
use std::ops::Range;

/// What a comment that names keys begins with, white space aside.
const MARK: &[u8] = b"lookaside:";

/// What a backslash in quotes means, where servers differ by the session's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dialect {
    /// Whether `\` in `'...'` takes the next byte's meaning away. Off under `NO_BACKSLASH_ESCAPES`.
    escapes_in_strings: bool,
    /// The same in `"..."`. Off as well under `ANSI_QUOTES`, which makes it an identifier.
    escapes_in_double_quotes: bool,
}

/// As MySQL and MariaDB are delivered.
const DELIVERED: Dialect = Dialect { escapes_in_strings: true, escapes_in_double_quotes: true };

/// All the ways in which a statement with a backslash may have been read.
const DIALECTS: [Dialect; 3] = [
    DELIVERED,
    Dialect { escapes_in_strings: true, escapes_in_double_quotes: false },
    Dialect { escapes_in_strings: false, escapes_in_double_quotes: false },
];

/// Appends the keys that the comments of `sql` name to `out`, in order, repeated where they are repeated; those that
/// cannot be keys are left out, logged and counted in `rejected`. With a backslash in `sql`, the keys that it names in
/// any dialect.
///
/// ```
/// use lookaside_invalidator::keys::keys_in;
/// let (mut keys, mut rejected) = (Vec::new(), 0);
/// keys_in(b"UPDATE t SET a='/* lookaside: no */' /* lookaside: user:42 */", &mut keys, &mut rejected);
/// assert_eq!(keys, [b"user:42"]);
/// ```
pub fn keys_in(sql: &[u8], out: &mut Vec<Vec<u8>>, rejected: &mut u64) {
    let mut places = Vec::new();
    match memchr(b'\\', sql) {
        None => places_in(sql, DELIVERED, &mut places),
        Some(_) => {
            DIALECTS.into_iter().for_each(|dialect| places_in(sql, dialect, &mut places));
            places.sort_unstable_by_key(|place| (place.start, place.end));
            places.dedup();
        }
    }
    for place in places {
        accept(&sql[place], out, rejected);
    }
}

/// Where in `sql` its comments name keys.
fn places_in(sql: &[u8], dialect: Dialect, out: &mut Vec<Range<usize>>) {
    let mut at = 0;
    // MySQL keeps no depth: the first `*/` in code ends the executable comment, however many were opened.
    let mut in_executable = false;
    while let Some(&byte) = sql.get(at) {
        let rest = &sql[at..];
        at += match byte {
            b'\'' => quoted_bytes(rest, dialect.escapes_in_strings),
            b'"' => quoted_bytes(rest, dialect.escapes_in_double_quotes),
            b'`' => quoted_bytes(rest, false),
            b'#' => line_bytes(rest),
            b'-' if opens_line_comment(rest) => line_bytes(rest),
            b'/' if rest.starts_with(b"/*!") || rest.starts_with(b"/*M!") => {
                in_executable = true;
                memchr(b'!', rest).expect("it begins with a mark that ends in !") + 1
            }
            b'/' if rest.starts_with(b"/*") => {
                let Some(inside) = memmem::find(&rest[2..], b"*/").map(|end| &rest[2..2 + end]) else { return };
                places_named(inside, at + 2, out);
                inside.len() + 4
            }
            b'*' if in_executable && rest.starts_with(b"*/") => {
                in_executable = false;
                2
            }
            _ => 1,
        };
    }
}

/// The length of the string or identifier that `text` begins with, quotes included. A doubled quote needs no care: it
/// ends one literal and begins the next.
fn quoted_bytes(text: &[u8], backslash_escapes: bool) -> usize {
    let quote = text[0];
    let mut at = 1;
    while let Some(step) = memchr2(quote, if backslash_escapes { b'\\' } else { quote }, &text[at.min(text.len())..]) {
        at += step;
        if text[at] == quote {
            return at + 1;
        }
        at += 2;
    }
    text.len()
}

/// The length up to the end of the line, the line feed included.
fn line_bytes(text: &[u8]) -> usize {
    memchr(b'\n', text).map_or(text.len(), |end| end + 1)
}

/// `--` opens a comment only before white space, a control byte or the end: `5--1` is 6.
fn opens_line_comment(text: &[u8]) -> bool {
    text.starts_with(b"--") && text.get(2).is_none_or(|&byte| byte <= b' ' || byte == 0x7f)
}

/// Takes the keys' places out of a comment's inside, which begins at `begin`, if it is one that names keys.
fn places_named(comment: &[u8], begin: usize, out: &mut Vec<Range<usize>>) {
    let Some(keys) = comment.trim_ascii_start().strip_prefix(MARK) else { return };
    let mut at = begin + comment.len() - keys.len();
    for key in keys.split(u8::is_ascii_whitespace) {
        if !key.is_empty() {
            out.push(at..at + key.len());
        }
        at += key.len() + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As one dialect has it.
    fn found(sql: impl AsRef<[u8]>) -> Vec<String> {
        found_in(sql.as_ref(), DELIVERED)
    }

    fn found_in(sql: &[u8], dialect: Dialect) -> Vec<String> {
        let mut places = Vec::new();
        places_in(sql, dialect, &mut places);
        places.into_iter().map(|place| text(&sql[place])).collect()
    }

    /// As the log's reader has it.
    fn found_in_any(sql: impl AsRef<[u8]>) -> Vec<String> {
        let (mut keys, mut rejected) = (Vec::new(), 0);
        keys_in(sql.as_ref(), &mut keys, &mut rejected);
        assert_eq!(rejected, 0);
        keys.iter().map(|key| text(key)).collect()
    }

    fn text(key: &[u8]) -> String {
        String::from_utf8(key.to_vec()).expect("the tests use UTF-8")
    }

    #[test]
    fn comments_anywhere_name_keys() {
        assert_eq!(found("/* lookaside: user:42 profile:42 */ UPDATE t SET a=1"), ["user:42", "profile:42"]);
        assert_eq!(found("UPDATE/*lookaside:a*/t SET a=1/* lookaside:\n b\t c\n*/"), ["a", "b", "c"]);
        assert_eq!(found("SELECT 2*/* lookaside: a */3"), ["a"]);
        assert_eq!(found("/* lookaside: user:\"1\" it's */"), ["user:\"1\"", "it's"], "keys are literal");
    }

    #[test]
    fn other_comments_name_none() {
        for sql in
            ["/* look: a */", "/* see lookaside: a */", "/*+ lookaside: a */", "/* lookaside: */", "lookaside: a"]
        {
            assert_eq!(found(sql), [""; 0], "{sql}");
        }
        assert_eq!(found("/* lookaside: a"), [""; 0], "no end, no statement");
        assert_eq!(found("/* /* lookaside: a */ */"), [""; 0], "comments do not nest");
        assert_eq!(found("-- /* lookaside: a */\n/* lookaside: b */"), ["b"]);
        assert_eq!(found("# /* lookaside: a */\n/* lookaside: b */"), ["b"]);
        assert_eq!(found("SELECT 5--1 /* lookaside: b */"), ["b"], "-- before a digit is two minus signs");
        assert_eq!(found("/*/ lookaside: a */ x */"), [""; 0], "/*/ opens and does not close");
    }

    #[test]
    fn literals_and_identifiers_name_none() {
        for sql in [
            "'/* lookaside: a */'",
            "'it''s /* lookaside: a */'",
            r"'it\'s /* lookaside: a */'",
            r"'\\' '/* lookaside: a */'",
            "\"/* lookaside: a */\"",
            "\"''\"\"/* lookaside: a */\"",
            "`/* lookaside: a */`",
            "```/* lookaside: a */`",
            "N'/* lookaside: a */'",
            r"'no end \",
            r"'no end /* lookaside: a */",
        ] {
            assert_eq!(found(sql), [""; 0], "{sql}");
        }
        assert_eq!(found(r"'ends in a backslash \\' /* lookaside: a */"), ["a"]);
        assert_eq!(found(r"`\` /* lookaside: a */"), ["a"], "a backslash means nothing in an identifier");
    }

    /// Under NO_BACKSLASH_ESCAPES `'C:\'` is a whole literal. Read by the other rule it swallowed the comment behind
    /// it, and the key was lost without a word.
    #[test]
    fn a_backslash_is_read_in_every_way_that_a_server_may_have_read_it() {
        assert_eq!(found_in_any(r"UPDATE t SET p='C:\' WHERE id=1 /* lookaside: a */"), ["a"]);
        assert_eq!(found_in_any(r"UPDATE t SET p='C:\' WHERE q='x' /* lookaside: a b */ AND r='y'"), ["a", "b"]);
        assert_eq!(
            found_in_any(r#"UPDATE t SET "column\"=1 /* lookaside: a */"#),
            ["a"],
            "an identifier under ANSI_QUOTES"
        );
        assert_eq!(found_in_any(r#"UPDATE t SET "column\"='it\'s' /* lookaside: a */"#), ["a"], "ANSI_QUOTES alone");
        assert_eq!(found_in_any(r"UPDATE t SET p='it\'s' /* lookaside: a */"), ["a"]);
        assert_eq!(
            found_in_any(r"/* lookaside: a */ UPDATE t SET p='\n' /* lookaside: a b */"),
            ["a", "a", "b"],
            "in order"
        );
        assert_eq!(found_in_any(r"'it\'s /* lookaside: a */'"), ["a"], "one too many, which is harmless");
    }

    #[test]
    fn a_bad_key_in_several_dialects_is_one_bad_key() {
        let (mut keys, mut rejected) = (Vec::new(), 0);
        keys_in(b"UPDATE t SET p='\\n' /* lookaside: b\x01 */", &mut keys, &mut rejected);
        assert_eq!((keys, rejected), (vec![], 1));
    }

    #[test]
    fn executable_comments_are_code() {
        assert_eq!(found("/*!50000 SET a='/* lookaside: no */' /* lookaside: a */ */ /* lookaside: b */"), ["a", "b"]);
        assert_eq!(found("/*M!100100 x */ '*/' /* lookaside: b */"), ["b"]);
        assert_eq!(found("/*! lookaside: a */"), [""; 0], "that is code, and wrong code");
        assert_eq!(found("/*! `*/ /* lookaside: no */` */ /* lookaside: b */"), ["b"]);
    }

    #[test]
    fn bad_keys_are_counted_and_the_others_stay() {
        let (mut keys, mut rejected) = (Vec::new(), 0);
        let sql = format!("/* lookaside: a {} b\x01 c */", "k".repeat(251));
        keys_in(sql.as_bytes(), &mut keys, &mut rejected);
        assert_eq!((keys, rejected), (vec![b"a".to_vec(), b"c".to_vec()], 2));
    }

    /// Quadratic behaviour would need minutes for any of these.
    #[test]
    fn megabytes_take_one_pass() {
        let megabytes = 4 << 20;
        for part in ["'", "''", "\\'", "/*", "/*!", "*/", "--", "-- ", "`\"'", "/* x */", "/", "'/* lookaside: no */'"]
        {
            let mut sql = part.repeat(megabytes / part.len());
            assert_eq!(found(&sql), [""; 0], "{part}");
            sql.insert_str(0, "/* lookaside: a */");
            assert_eq!(found(&sql), ["a"], "{part}");
            found_in_any(&sql);
        }
    }

    /// A piece of a statement, and the keys that it names.
    type Piece = (String, Vec<String>);

    /// Text that means mischief wherever it lands.
    fn mischief() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            Just("/* lookaside: stolen */"),
            Just("*/"),
            Just("/*"),
            Just("/*!"),
            Just("'"),
            Just("\""),
            Just("`"),
            Just("\\"),
            Just("-- "),
            Just("#"),
            Just("\n"),
            Just("x"),
            Just("é"),
        ];
        proptest::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
    }

    fn quoted(quote: &'static str) -> impl Strategy<Value = Piece> {
        (mischief(), any::<bool>()).prop_map(move |(text, doubled)| {
            let text = if quote == "`" { text } else { text.replace('\\', r"\\") };
            let escaped = if doubled || quote == "`" { quote.repeat(2) } else { format!("\\{quote}") };
            (format!("{quote}{}{quote}", text.replace(quote, &escaped)), vec![])
        })
    }

    fn keyed() -> impl Strategy<Value = Piece> {
        proptest::collection::vec("[a-z:'\"#`-]{1,9}", 1..4)
            .prop_map(|keys| (format!("/* lookaside: {} */", keys.join(" ")), keys))
    }

    fn flat() -> impl Strategy<Value = Piece> {
        let code = prop_oneof!["[a-z0-9 =,();+]{0,9}", Just("5--1".to_string()), Just("6 / 3 * 2".to_string())];
        prop_oneof![
            code.prop_map(|text| (text, vec![])),
            quoted("'"),
            quoted("\""),
            quoted("`"),
            mischief().prop_map(|text| (format!("-- {}\n", text.replace('\n', "")), vec![])),
            mischief().prop_map(|text| (format!("#{}\n", text.replace('\n', "")), vec![])),
            mischief().prop_map(|text| (format!("/* plain {} */", text.replace("*/", " ")), vec![])),
            keyed(),
        ]
    }

    /// Pieces stand apart by a blank: `'a''b'` is one literal, `/` and `*` beside each other a comment.
    fn joined(pieces: Vec<Piece>) -> Piece {
        let (texts, keys): (Vec<_>, Vec<_>) = pieces.into_iter().unzip();
        (texts.join(" "), keys.concat())
    }

    fn statement() -> impl Strategy<Value = Piece> {
        let executable = (prop_oneof![Just("!50000"), Just("!"), Just("M!")], proptest::collection::vec(flat(), 0..5))
            .prop_map(|(mark, pieces)| {
                let (text, keys) = joined(pieces);
                (format!("/*{mark} {text} */"), keys)
            });
        proptest::collection::vec(prop_oneof![4 => flat(), 1 => executable], 0..12).prop_map(joined)
    }

    proptest! {
        #[test]
        fn exactly_the_keys_of_real_comments_are_found((sql, keys) in statement()) {
            prop_assert_eq!(found(&sql), &keys[..], "{}", sql);
            let any = found_in_any(&sql);
            match sql.contains('\\') {
                true => prop_assert!(keys.iter().all(|key| any.contains(key)), "{}", sql),
                false => prop_assert_eq!(any, keys, "{}", sql),
            }
        }

        #[test]
        fn no_dialect_s_keys_are_missing(sql in mischief()) {
            let any = found_in_any(&sql);
            for dialect in DIALECTS {
                prop_assert!(found_in(sql.as_bytes(), dialect).iter().all(|key| any.contains(key)), "{}", sql);
            }
        }

        #[test]
        fn any_bytes_are_taken(sql in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'*'), Just(b'/'), Just(b'\''), Just(b'\\')], 0..64)) {
            keys_in(&sql, &mut Vec::new(), &mut 0);
        }
    }
}
