//! SQL that an operator typed, as the tokens of its statements. Nothing is parsed beyond that: `try` looks for the
//! tables that a statement changes and for its condition.
//!
//! | | MariaDB, MySQL | PostgreSQL |
//! |---|---|---|
//! | `` `a` `` | a name | characters |
//! | `"a"` | a string, or a name under ANSI_QUOTES | a name |
//! | `'a\'b'` | one string, unless under NO_BACKSLASH_ESCAPES | one string only behind `E` |
//! | `$a$ ... $a$` | words | a string |
//! | `#`, `--` without a space behind it | a comment, characters | characters, a comment |
//! | `/*! ... */` | code | a comment |
//! | comments inside of comments | end with the first `*/` | are counted |

use lookaside_invalidator::keys::SqlMode;

/// How a database reads a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// MariaDB and MySQL.
    Mysql(SqlMode),
    /// PostgreSQL.
    Postgres,
}

impl Syntax {
    /// Of an unknown database.
    pub fn all() -> Vec<Syntax> {
        SqlMode::ALL.into_iter().map(Syntax::Mysql).chain([Syntax::Postgres]).collect()
    }

    /// `name` in quotes.
    pub fn quote_name(self, name: &str) -> String {
        match self {
            Syntax::Mysql(_) => format!("`{}`", name.replace('`', "``")),
            Syntax::Postgres => format!("\"{}\"", name.replace('"', "\"\"")),
        }
    }
}

/// A part of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SqlToken {
    /// A word without quotes: a keyword, a number or a name.
    Word(String),
    /// A name in quotes.
    Name(String),
    /// A string; `None` if it has a backslash, which may stand for another character.
    Text(Option<String>),
    /// Another character.
    Symbol(char),
}

impl SqlToken {
    /// Whether it is a keyword, in any letters.
    pub fn is_word(&self, keyword: &str) -> bool {
        matches!(self, SqlToken::Word(word) if word.eq_ignore_ascii_case(keyword))
    }

    /// Whether it is one of these keywords.
    pub fn is_one_of(&self, keywords: &[&str]) -> bool {
        keywords.iter().any(|keyword| self.is_word(keyword))
    }

    /// Whether it is this character.
    pub fn is_symbol(&self, symbol: char) -> bool {
        *self == SqlToken::Symbol(symbol)
    }

    /// As a name, with or without quotes.
    pub fn name(&self) -> Option<&str> {
        match self {
            SqlToken::Word(name) | SqlToken::Name(name) => Some(name),
            SqlToken::Text(_) | SqlToken::Symbol(_) => None,
        }
    }
}

/// A token, and whether something separates it from the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    pub token: SqlToken,
    pub is_separate: bool,
}

/// One statement.
pub type Statement = Vec<Placed>;

/// The statements of `sql`, without those that are empty.
pub fn statements(sql: &str, syntax: Syntax) -> Vec<Statement> {
    let mut lexer = Lexer { rest: sql, syntax, executable_comments: 0 };
    let (mut found, mut statement, mut is_separate) = (Vec::new(), Statement::new(), true);
    while !lexer.rest.is_empty() {
        match lexer.next_token(statement.last().filter(|_| !is_separate)) {
            None => is_separate = true,
            Some(SqlToken::Symbol(';')) => {
                found.push(std::mem::take(&mut statement));
                is_separate = true;
            }
            Some(token) => {
                statement.push(Placed { token, is_separate });
                is_separate = false;
            }
        }
    }
    found.push(statement);
    found.retain(|statement| !statement.is_empty());
    found
}

struct Lexer<'a> {
    rest: &'a str,
    syntax: Syntax,
    /// How many `/*!` are open.
    executable_comments: usize,
}

impl Lexer<'_> {
    /// The next token, `None` for white space and comments. `before` is the one right before it, if nothing separates
    /// them.
    fn next_token(&mut self, before: Option<&Placed>) -> Option<SqlToken> {
        let mysql = match self.syntax {
            Syntax::Mysql(mode) => Some(mode),
            Syntax::Postgres => None,
        };
        let first = self.rest.chars().next()?;
        match first {
            '\'' => {
                let is_escape_string = before.is_some_and(|before| before.token.is_word("e"));
                let has_escapes = mysql.map_or(is_escape_string, |mode| mode.has_escapes_in(b'\''));
                Some(self.take_string('\'', has_escapes))
            }
            '"' => match mysql.filter(|mode| !mode.has_ansi_quotes) {
                Some(mode) => Some(self.take_string('"', mode.has_escapes_in(b'"'))),
                None => Some(SqlToken::Name(self.take_quoted('"', false))),
            },
            '`' if mysql.is_some() => Some(SqlToken::Name(self.take_quoted('`', false))),
            '#' if mysql.is_some() => self.skip_line(),
            '-' if self.opens_line_comment() => self.skip_line(),
            '/' if mysql.is_some() && (self.rest.starts_with("/*!") || self.rest.starts_with("/*M!")) => {
                let head = if self.rest.starts_with("/*!") { 3 } else { 4 };
                self.rest = self.rest[head..].trim_start_matches(|c: char| c.is_ascii_digit());
                self.executable_comments += 1;
                None
            }
            '*' if self.executable_comments > 0 && self.rest.starts_with("*/") => {
                self.executable_comments -= 1;
                self.skip(2)
            }
            '/' if self.rest.starts_with("/*") => self.skip_comment(),
            '$' if mysql.is_none() && self.dollar_tag().is_some() => {
                let tag = self.dollar_tag().unwrap_or_default().to_owned();
                let inside = &self.rest[tag.len()..];
                let (text, rest) = inside.split_once(&tag).unwrap_or((inside, ""));
                self.rest = rest;
                Some(plain_text(text.to_owned()))
            }
            _ if is_word(first) => {
                let end = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
                let (word, rest) = self.rest.split_at(end);
                self.rest = rest;
                Some(SqlToken::Word(word.to_owned()))
            }
            _ => {
                self.rest = &self.rest[first.len_utf8()..];
                let is_space = first.is_ascii_whitespace() || first == '\u{b}';
                (!is_space).then_some(SqlToken::Symbol(first))
            }
        }
    }

    fn skip(&mut self, bytes: usize) -> Option<SqlToken> {
        self.rest = &self.rest[bytes..];
        None
    }

    fn skip_line(&mut self) -> Option<SqlToken> {
        self.skip(self.rest.find('\n').map_or(self.rest.len(), |end| end + 1))
    }

    fn opens_line_comment(&self) -> bool {
        let Some(behind) = self.rest.strip_prefix("--") else { return false };
        // MariaDB and MySQL: `5--3` is a number.
        self.syntax == Syntax::Postgres || behind.chars().next().is_none_or(|c| c <= ' ')
    }

    fn skip_comment(&mut self) -> Option<SqlToken> {
        let mut depth = 0;
        while !self.rest.is_empty() {
            if self.rest.starts_with("/*") && (depth == 0 || self.syntax == Syntax::Postgres) {
                depth += 1;
                self.skip(2);
            } else if self.rest.starts_with("*/") {
                depth -= 1;
                self.skip(2);
                if depth == 0 {
                    break;
                }
            } else {
                self.skip(self.rest.chars().next().map_or(0, char::len_utf8));
            }
        }
        None
    }

    /// The `$tag$` at the front, if one is there.
    fn dollar_tag(&self) -> Option<&str> {
        let inside = self.rest.strip_prefix('$')?;
        let end = inside.find('$')?;
        let tag = &inside[..end];
        let is_tag = tag.chars().all(is_word) && !tag.starts_with(|c: char| c.is_ascii_digit());
        is_tag.then(|| &self.rest[..end + 2])
    }

    fn take_string(&mut self, quote: char, has_escapes: bool) -> SqlToken {
        plain_text(self.take_quoted(quote, has_escapes))
    }

    /// What is inside of the quotes at the front. A doubled quote stands for one.
    fn take_quoted(&mut self, quote: char, has_escapes: bool) -> String {
        let (mut inside, mut chars) = (String::new(), self.rest.char_indices().skip(1).peekable());
        let mut end = self.rest.len();
        while let Some((at, c)) = chars.next() {
            inside.push(c);
            if c == '\\' && has_escapes {
                inside.extend(chars.next().map(|(_, escaped)| escaped));
            } else if c == quote && chars.next_if(|(_, next)| *next == quote).is_none() {
                inside.pop();
                end = at + quote.len_utf8();
                break;
            }
        }
        self.rest = &self.rest[end..];
        inside
    }
}

fn plain_text(text: String) -> SqlToken {
    SqlToken::Text((!text.contains('\\')).then_some(text))
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$') || !c.is_ascii()
}

/// The tokens as SQL for `syntax`, with nothing in it that another reading of quotes could take for a further
/// statement, or for a comment: there are no backslashes and no comments, and all quotes are the standard's. `None` if
/// a string cannot be written so.
pub fn compose(tokens: &[Placed], syntax: Syntax) -> Option<String> {
    let mut sql = String::new();
    for (at, Placed { token, is_separate }) in tokens.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| &tokens[before].token);
        // `- -1` is no comment, and `/ *` is none.
        let may_comment = matches!(
            (before, token),
            (Some(SqlToken::Symbol('-')), SqlToken::Symbol('-')) | (Some(SqlToken::Symbol('/')), SqlToken::Symbol('*'))
        );
        if at > 0 && (*is_separate || may_comment) {
            sql.push(' ');
        }
        match token {
            SqlToken::Word(word) => sql.push_str(word),
            SqlToken::Name(name) => sql.push_str(&syntax.quote_name(name)),
            SqlToken::Text(text) => sql.push_str(&format!("'{}'", text.as_ref()?.replace('\'', "''"))),
            SqlToken::Symbol(';' | '\\') => return None,
            SqlToken::Symbol(symbol) => sql.push(*symbol),
        }
    }
    Some(sql)
}

/// The tokens as a statement that [`lookaside_invalidator`] reads in any mode: no strings, and names in `` ` ``.
pub fn compose_names(tokens: &[Placed]) -> String {
    let part = |placed: &Placed| match &placed.token {
        SqlToken::Word(word) => word.clone(),
        SqlToken::Name(name) => format!("`{}`", name.replace('`', "``")),
        SqlToken::Text(_) => "''".into(),
        SqlToken::Symbol('#' | '`' | '"' | '\'') => "?".into(),
        SqlToken::Symbol(symbol) => symbol.to_string(),
    };
    tokens.iter().map(part).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MYSQL: Syntax = Syntax::Mysql(SqlMode::DEFAULT);

    fn split(sql: &str, syntax: Syntax) -> Vec<String> {
        statements(sql, syntax).iter().map(|tokens| compose_names(tokens)).collect()
    }

    #[test]
    fn statements_end_at_semicolons_outside_of_quotes_and_comments() {
        for syntax in Syntax::all() {
            for (sql, expected) in [
                ("BEGIN; DELETE FROM t; COMMIT", vec!["BEGIN", "DELETE FROM t", "COMMIT"]),
                ("DELETE FROM t WHERE a = 'x;y' /* a;b */ ;;", vec!["DELETE FROM t WHERE a = ''"]),
                ("A 'it''s;' -- ; b\n;B", vec!["A ''", "B"]),
                ("", vec![]),
                ("-- only", vec![]),
            ] {
                assert_eq!(split(sql, syntax), expected, "{sql} {syntax:?}");
            }
        }
        assert_eq!(split(r"A 'it\';' ; B", MYSQL), ["A ''", "B"]);
        assert_eq!(split(r"A 'C:\' ; B", Syntax::Postgres), ["A ''", "B"]);
        assert_eq!(split(r"A E'it\';' ; B", Syntax::Postgres), ["A E ''", "B"]);
        assert_eq!(split("A $f$ x; $$ y; $f$; B", Syntax::Postgres), ["A ''", "B"]);
        assert_eq!(split("A /* /* ; */ ; */; B", Syntax::Postgres), ["A", "B"]);
        assert_eq!(split("A # ;\n; B", MYSQL), ["A", "B"]);
        assert_eq!(split("/*!50000 A ; */ `b;` ; \"c;\"", MYSQL), ["A", "`b;`", "''"]);
        assert_eq!(split("A \"b;\" ; C", Syntax::Postgres), ["A `b;`", "C"]);
    }

    #[test]
    fn composed_sql_is_one_statement_whatever_the_reader_makes_of_backslashes() {
        let composed = |sql: &str, syntax| {
            let found = statements(sql, syntax);
            assert_eq!(found.len(), 1, "{sql}");
            compose(&found[0], syntax)
        };
        for (sql, expected) in [
            ("a >= 5 AND `b c`='x''y'", "a >= 5 AND `b c`='x''y'"),
            ("a = \"x;y\" /* c */ AND b=1", "a = 'x;y' AND b=1"),
            ("a = 5--3", "a = 5- -3"),
            ("a = - -'x'", "a = - -'x'"),
            ("a/ *b", "a/ *b"),
            ("a = _utf8mb4'x' AND c.d<=>NULL", "a = _utf8mb4'x' AND c.d<=>NULL"),
        ] {
            assert_eq!(composed(sql, MYSQL).as_deref(), Some(expected), "{sql}");
        }
        assert_eq!(composed("a = $x$it's; b$x$", Syntax::Postgres).as_deref(), Some("a = 'it''s; b'"));
        for (sql, syntax) in
            [(r"a = 'x\'' OR b = '; DROP TABLE t'", MYSQL), (r"a = 'x\'", Syntax::Postgres), ("a = \\", MYSQL)]
        {
            assert_eq!(composed(sql, syntax), None, "{sql}");
        }
    }

    #[test]
    fn text_that_ends_early_is_read_to_its_end() {
        let tokens_of = |sql: &str, syntax| -> Vec<SqlToken> {
            statements(sql, syntax).into_iter().flatten().map(|placed| placed.token).collect()
        };
        let word = |text: &str| SqlToken::Word(text.to_owned());
        let name = |text: &str| SqlToken::Name(text.to_owned());
        let text = |text: &str| SqlToken::Text(Some(text.to_owned()));
        let symbols = |symbols: &str| symbols.chars().map(SqlToken::Symbol).collect::<Vec<_>>();
        let backslash = SqlToken::Text(None);
        for (sql, of_mysql, of_postgres) in [
            ("'", vec![text("")], vec![text("")]),
            ("'\\", vec![backslash.clone()], vec![backslash]),
            ("`a", vec![name("a")], vec![SqlToken::Symbol('`'), word("a")]),
            ("\"", vec![text("")], vec![name("")]),
            ("/*", vec![], vec![]),
            ("/* /*", vec![], vec![]),
            ("$a$", vec![word("$a$")], vec![text("")]),
            ("$a", vec![word("$a")], vec![word("$a")]),
            ("--", vec![], vec![]),
            ("#", vec![], symbols("#")),
            ("/*!", vec![], vec![]),
            ("é'ü", vec![word("é"), text("ü")], vec![word("é"), text("ü")]),
            ("*/", symbols("*/"), symbols("*/")),
        ] {
            assert_eq!(tokens_of(sql, MYSQL), of_mysql, "{sql}");
            assert_eq!(tokens_of(sql, Syntax::Postgres), of_postgres, "{sql}");
            // The other modes of MariaDB and MySQL differ in what quotes mean, not in where the text ends.
            for syntax in Syntax::all().into_iter().filter(|syntax| *syntax != Syntax::Postgres) {
                assert_eq!(tokens_of(sql, syntax).len(), of_mysql.len(), "{sql} {syntax:?}");
            }
        }
    }
}
