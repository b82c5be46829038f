//! Keys from comments in SQL (§4.1: statements "are amended to include memcache keys"):
//!
//! ```sql
//! UPDATE users SET name = 'x' /* lookaside: user:42 profile:42 */ WHERE id = 42
//! ```
//!
//! The comment begins with `lookaside:`, after optional white space. Literal keys follow, separated by white space. A
//! statement may have several such comments anywhere.
//!
//! This is a lexer, not a search: text that looks like a comment inside a string literal, a quoted identifier or a line
//! comment is data, and names no key. It runs in one pass, linear in the statement's length.
//!
//! ```text
//! '...'         string: '' and \' stand for a quote (see below)
//! "..."         string, or identifier: the same, or only "" stands for a quote (see below)
//! `...`         identifier
//! # ... \n      line comment (MySQL)            -- ... \n   line comment, where white space follows --
//! /* ... */     comment; they do not nest       /*! ... */ and /*M! ... */   code; may hold comments
//! ```
//!
//! The meaning of a backslash depends on the [`SqlMode`], which each connection may set for itself. The log has it with
//! a statement that stands for its rows, and not with one whose rows follow: such a one is read in every mode if it has
//! a backslash, and the union of the keys is deleted. A superfluous delete is harmless, a missing one is not. The
//! price: text inside a literal with a backslash may name a key.
//!
//! Not supported: dollar quoting (PostgreSQL), character sets in which a backslash or quote can be the second byte of a
//! letter (GBK, Big5, SJIS), and version conditions: the content of `/*!99999 ... */` counts as code even if the server
//! skips it. A statement with an unterminated comment is not executed by any server, so such a comment names no key.

use super::{SqlMode, push_valid_key};
use memchr::{memchr, memchr2, memmem};
use std::{collections::BTreeSet, ops::Range};

/// The beginning of a comment that names keys, after white space.
const MARK: &[u8] = b"lookaside:";

/// Whether a backslash escapes in `'...'`, and in `"..."`.
type Escapes = (bool, bool);

/// Appends the keys that the comments of `sql` name to `out`, in order, with repetitions. Invalid keys are ignored,
/// logged and counted in `rejected`. If `sql` has a backslash, the keys are those that it names in any of `modes`.
///
/// ```
/// use lookaside_invalidator::keys::{SqlMode, extract_keys};
/// let (mut keys, mut rejected) = (Vec::new(), 0);
/// let sql = b"UPDATE t SET a='/* lookaside: no */' /* lookaside: user:42 */";
/// extract_keys(sql, &SqlMode::ALL, &mut keys, &mut rejected);
/// assert_eq!(keys, [b"user:42"]);
/// ```
pub fn extract_keys(sql: &[u8], modes: &[SqlMode], out: &mut Vec<Vec<u8>>, rejected: &mut u64) {
    let mut ranges = Vec::new();
    if memchr(b'\\', sql).is_none() {
        find_key_ranges(sql, (false, false), &mut ranges);
    } else {
        let escapes: BTreeSet<Escapes> =
            modes.iter().map(|mode| (mode.has_escapes_in(b'\''), mode.has_escapes_in(b'"'))).collect();
        escapes.into_iter().for_each(|escapes| find_key_ranges(sql, escapes, &mut ranges));
        ranges.sort_unstable_by_key(|range| (range.start, range.end));
        ranges.dedup();
    }
    for range in ranges {
        push_valid_key(&sql[range], out, rejected);
    }
}

/// Finds the ranges of `sql` that are keys in its comments.
fn find_key_ranges(sql: &[u8], (in_strings, in_double_quotes): Escapes, out: &mut Vec<Range<usize>>) {
    let mut at = 0;
    // MySQL counts no depth: the first `*/` in code ends the executable comment, however many were opened.
    let mut in_executable = false;
    while let Some(&byte) = sql.get(at) {
        let rest = &sql[at..];
        at += match byte {
            b'\'' => quoted_bytes(rest, in_strings),
            b'"' => quoted_bytes(rest, in_double_quotes),
            b'`' => quoted_bytes(rest, false),
            b'#' => line_bytes(rest),
            b'-' if opens_line_comment(rest) => line_bytes(rest),
            b'/' if rest.starts_with(b"/*!") || rest.starts_with(b"/*M!") => {
                in_executable = true;
                memchr(b'!', rest).expect("it begins with a prefix that ends in !") + 1
            }
            b'/' if rest.starts_with(b"/*") => {
                let Some(inside) = memmem::find(&rest[2..], b"*/").map(|end| &rest[2..2 + end]) else { return };
                push_key_ranges(inside, at + 2, out);
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

/// The length of the string or identifier at the start of `text`, with its quotes. A doubled quote needs no special
/// case: it ends one literal and begins the next.
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

/// The length up to the end of the line, with the line feed.
pub(crate) fn line_bytes(text: &[u8]) -> usize {
    memchr(b'\n', text).map_or(text.len(), |end| end + 1)
}

/// Whether `text` starts a line comment: `--` before white space, a control byte or the end. `5--1` is 6.
pub(crate) fn opens_line_comment(text: &[u8]) -> bool {
    text.starts_with(b"--") && text.get(2).is_none_or(|&byte| byte <= b' ' || byte == 0x7f)
}

/// Appends the ranges of the keys in the content of a comment, which begins at offset `begin`.
fn push_key_ranges(comment: &[u8], begin: usize, out: &mut Vec<Range<usize>>) {
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

    /// The keys in the default mode.
    fn found(sql: impl AsRef<[u8]>) -> Vec<String> {
        found_in(sql, &[SqlMode::DEFAULT])
    }

    /// The keys in any mode.
    fn found_in_any(sql: impl AsRef<[u8]>) -> Vec<String> {
        found_in(sql, &SqlMode::ALL)
    }

    fn found_in(sql: impl AsRef<[u8]>, modes: &[SqlMode]) -> Vec<String> {
        let (mut keys, mut rejected) = (Vec::new(), 0);
        extract_keys(sql.as_ref(), modes, &mut keys, &mut rejected);
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
    fn other_comments_name_no_keys() {
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
    fn literals_and_identifiers_name_no_keys() {
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

    /// Under NO_BACKSLASH_ESCAPES `'C:\'` is a complete literal. In the default mode it includes the comment after it,
    /// so the key was silently lost.
    #[test]
    fn statement_with_a_backslash_is_read_in_every_mode() {
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
        assert_eq!(found_in_any(r"'it\'s /* lookaside: a */'"), ["a"], "superfluous, which is harmless");
    }

    /// Where the log has the mode, text in a literal names no key.
    #[test]
    fn a_statement_is_read_in_the_mode_of_its_session() {
        let [default, ansi, plain, ansi_plain] = SqlMode::ALL.map(|mode| move |sql: &str| found_in(sql, &[mode]));
        let ends_in_a_backslash = r"UPDATE t SET p='C:\' WHERE q='x' /* lookaside: a */ AND r='y'";
        assert_eq!((plain(ends_in_a_backslash), ansi_plain(ends_in_a_backslash)), (vec!["a".into()], vec!["a".into()]));
        assert_eq!((default(ends_in_a_backslash), ansi(ends_in_a_backslash)), (vec![], vec![]));
        let in_a_literal = r"UPDATE t SET p='it\'s /* lookaside: a */'";
        assert_eq!((default(in_a_literal), ansi(in_a_literal)), (vec![], vec![]));
        assert_eq!(plain(in_a_literal), ["a"], "it is no literal in this mode, nor a statement that a server executes");
        let in_double_quotes = r#"UPDATE t SET "p\"=1 /* lookaside: a */ WHERE "q"=2"#;
        assert_eq!((default(in_double_quotes), ansi(in_double_quotes)), (vec![], vec!["a".into()]));
    }

    #[test]
    fn invalid_key_in_several_modes_is_counted_once() {
        let (mut keys, mut rejected) = (Vec::new(), 0);
        extract_keys(b"UPDATE t SET p='\\n' /* lookaside: b\x01 */", &SqlMode::ALL, &mut keys, &mut rejected);
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
    fn invalid_keys_are_counted_and_the_others_returned() {
        let (mut keys, mut rejected) = (Vec::new(), 0);
        let sql = format!("/* lookaside: a {} b\x01 c */", "k".repeat(251));
        extract_keys(sql.as_bytes(), &SqlMode::ALL, &mut keys, &mut rejected);
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

    /// Text that confuses a lexer wherever it stands.
    fn confusing_text() -> impl Strategy<Value = String> {
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
        (confusing_text(), any::<bool>()).prop_map(move |(text, doubled)| {
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
            confusing_text().prop_map(|text| (format!("-- {}\n", text.replace('\n', "")), vec![])),
            confusing_text().prop_map(|text| (format!("#{}\n", text.replace('\n', "")), vec![])),
            confusing_text().prop_map(|text| (format!("/* plain {} */", text.replace("*/", " ")), vec![])),
            keyed(),
        ]
    }

    /// Joins pieces by a blank: `'a''b'` is one literal, `/` and `*` beside each other a comment.
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
        fn keys_of_every_mode_are_found(sql in confusing_text()) {
            let any = found_in_any(&sql);
            for mode in SqlMode::ALL {
                prop_assert!(found_in(&sql, &[mode]).iter().all(|key| any.contains(key)), "{}", sql);
            }
        }

        #[test]
        fn random_bytes_never_panic(sql in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'*'), Just(b'/'), Just(b'\''), Just(b'\\')], 0..64)) {
            extract_keys(&sql, &SqlMode::ALL, &mut Vec::new(), &mut 0);
        }
    }
}
