//! A statement that changes rows of one table, as far as its rows can be found without executing it: an UPDATE or
//! DELETE by its condition, an INSERT by the values in it.
//!
//! The condition is executed in a SELECT. So what could do more than read is not taken: functions, INTO, locks, strings
//! with backslashes ([`compose`]); and nothing that ends the condition early.

use super::{
    changing_part::{name_length, position_at_top, target},
    sql_text::{Placed, SqlToken, Syntax, compose},
};

/// Words in front of a parenthesis that call no function.
const NO_FUNCTIONS: [&str; 14] =
    ["and", "or", "not", "in", "any", "all", "some", "exists", "between", "like", "where", "by", "limit", "xor"];
/// Words that a condition does not have, at least not outside of parentheses; `into` nowhere.
const NO_CONDITION: [&str; 12] = [
    "select",
    "union",
    "intersect",
    "except",
    "minus",
    "for",
    "lock",
    "procedure",
    "group",
    "having",
    "window",
    "fetch",
];

/// The rows that a statement changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowStatement {
    /// UPDATE or DELETE.
    Existing {
        /// The other name of the table, in quotes; `None` if it has none.
        alias: Option<String>,
        /// What is behind the table's name in a SELECT of the same rows, such as `WHERE id = 1`; empty for all.
        condition: String,
        /// The columns that an UPDATE sets; `None` of a DELETE.
        assigned: Option<Vec<Assigned>>,
    },
    /// INSERT or REPLACE.
    New {
        /// By row, the columns that the statement names.
        rows: Vec<Vec<Assigned>>,
        /// Whether it may change rows that are there.
        may_replace: bool,
    },
}

/// A column, and the value that it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    pub column: String,
    pub value: Literal,
}

/// A value in a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Literal {
    Null,
    /// Decimal digits, perhaps with a sign.
    Integer(String),
    Text(String),
    /// Only the database knows it.
    Unknown,
}

impl RowStatement {
    /// Reads a statement whose changing part names one table. The error says why its rows cannot be found.
    pub fn parse(tokens: &[Placed], syntax: Syntax) -> Result<RowStatement, &'static str> {
        let verb = tokens.first().map(|placed| &placed.token);
        match verb {
            Some(verb) if verb.is_word("delete") => parse_delete(tokens, syntax),
            Some(verb) if verb.is_word("update") => parse_update(tokens, syntax),
            Some(verb) if verb.is_one_of(&["insert", "replace"]) => parse_insert(tokens),
            _ => Err("it is no simple INSERT, UPDATE or DELETE"),
        }
    }
}

const SEVERAL_TABLES: &str = "it names several tables";

fn parse_delete(tokens: &[Placed], syntax: Syntax) -> Result<RowStatement, &'static str> {
    let (alias, rest) = table_and_alias(tokens, syntax, &["where", "order", "limit", "returning"])?;
    Ok(RowStatement::Existing { alias, condition: condition(rest, syntax)?, assigned: None })
}

fn parse_update(tokens: &[Placed], syntax: Syntax) -> Result<RowStatement, &'static str> {
    let (alias, rest) = table_and_alias(tokens, syntax, &["set"])?;
    let rest = rest.get(1..).unwrap_or_default();
    let end = position_at_top(rest, &["where", "order", "limit", "returning", "from"]).unwrap_or(rest.len());
    let (assignments, rest) = rest.split_at(end);
    if rest.first().is_some_and(|placed| placed.token.is_word("from")) {
        return Err(SEVERAL_TABLES);
    }
    let assigned = split_at_commas(assignments).into_iter().map(assignment).collect::<Option<_>>();
    let assigned = Some(assigned.ok_or("its SET is not a list of columns and values")?);
    Ok(RowStatement::Existing { alias, condition: condition(rest, syntax)?, assigned })
}

/// The alias behind the table's name, and the tokens from one of `ends` on.
fn table_and_alias<'t>(
    tokens: &'t [Placed],
    syntax: Syntax,
    ends: &[&str],
) -> Result<(Option<String>, &'t [Placed]), &'static str> {
    let name = target(tokens);
    let behind = &tokens[name.end..];
    let (between, rest) = behind.split_at(position_at_top(behind, ends).unwrap_or(behind.len()));
    let between = match between.first() {
        Some(placed) if placed.token.is_word("as") => &between[1..],
        _ => between,
    };
    match between {
        [] if !name.is_empty() => Ok((None, rest)),
        [alias] => match alias.token.name() {
            Some(name) => Ok((Some(quote_as_typed(&alias.token, name, syntax)), rest)),
            None => Err(SEVERAL_TABLES),
        },
        _ => Err(SEVERAL_TABLES),
    }
}

/// A word is folded by the database; a name in quotes stays as it is.
fn quote_as_typed(token: &SqlToken, name: &str, syntax: Syntax) -> String {
    match token {
        SqlToken::Name(_) => syntax.quote_name(name),
        _ => name.to_owned(),
    }
}

/// What follows the table's name in a SELECT of the rows.
fn condition(tokens: &[Placed], syntax: Syntax) -> Result<String, &'static str> {
    let end = position_at_top(tokens, &["returning"]).unwrap_or(tokens.len());
    let tokens = &tokens[..end];
    let mut depth = 0_i64;
    for (at, Placed { token, .. }) in tokens.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| &tokens[before].token);
        match token {
            SqlToken::Symbol('(') => {
                let is_call = before.is_some_and(|before| before.name().is_some() && !before.is_one_of(&NO_FUNCTIONS));
                if is_call {
                    return Err("its condition calls a function");
                }
                depth += 1;
            }
            SqlToken::Symbol(')') => depth -= 1,
            SqlToken::Symbol('@' | '?') => return Err("its condition has a variable or a placeholder"),
            SqlToken::Text(None) => return Err("its condition has a string with a backslash"),
            // A character of operators in PostgreSQL.
            SqlToken::Symbol('`') => return Err("its condition is not a simple one"),
            word if word.is_word("into") || depth == 0 && word.is_one_of(&NO_CONDITION) => {
                return Err("its condition is not a simple one");
            }
            _ => {}
        }
        if depth < 0 {
            return Err("its parentheses do not match");
        }
    }
    if depth != 0 {
        return Err("its parentheses do not match");
    }
    compose(tokens, syntax).ok_or("its condition has a backslash")
}

/// The parts between commas that are not in parentheses.
fn split_at_commas(tokens: &[Placed]) -> Vec<&[Placed]> {
    let mut depth = 0_usize;
    let parts = tokens.split(|Placed { token, .. }| {
        match token {
            SqlToken::Symbol('(') => depth += 1,
            SqlToken::Symbol(')') => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && token.is_symbol(',')
    });
    parts.collect()
}

/// `column = value`, perhaps behind the table's name.
fn assignment(tokens: &[Placed]) -> Option<Assigned> {
    let (name, rest) = tokens.split_at(name_length(tokens));
    let (column, [equals, value @ ..]) = (name.last()?.token.name()?, rest) else { return None };
    equals.token.is_symbol('=').then(|| Assigned { column: column.to_owned(), value: literal(value) })
}

fn literal(tokens: &[Placed]) -> Literal {
    let (sign, rest) = match tokens {
        [sign, rest @ ..] if sign.token.is_symbol('-') => ("-", rest),
        _ => ("", tokens),
    };
    match rest {
        [Placed { token: SqlToken::Word(word), .. }] if word.bytes().all(|byte| byte.is_ascii_digit()) => {
            let digits = word.trim_start_matches('0');
            match digits.is_empty() {
                true => Literal::Integer("0".into()),
                false => Literal::Integer(format!("{sign}{digits}")),
            }
        }
        [Placed { token: SqlToken::Text(Some(text)), .. }] if sign.is_empty() => Literal::Text(text.clone()),
        [Placed { token, .. }] if sign.is_empty() && token.is_word("null") => Literal::Null,
        _ => Literal::Unknown,
    }
}

/// `INSERT INTO t (a, b) VALUES (1, 2), (3, 4)`.
fn parse_insert(tokens: &[Placed]) -> Result<RowStatement, &'static str> {
    const NO_LIST: &str = "it is no INSERT of a list of columns and their VALUES";
    let behind = target(tokens).end;
    let values = position_at_top(tokens, &["values", "value"]).filter(|at| *at >= behind).ok_or(NO_LIST)?;
    let columns = parenthesised(&tokens[behind..values]).ok_or(NO_LIST)?;
    let column = |tokens: &[Placed]| match tokens {
        [Placed { token, .. }] => token.name().map(str::to_owned),
        _ => None,
    };
    let columns: Option<Vec<String>> = split_at_commas(columns).into_iter().map(column).collect();
    let columns = columns.ok_or(NO_LIST)?;
    let rows = &tokens[values + 1..];
    let end = position_at_top(rows, &["on", "returning", "as"]).unwrap_or(rows.len());
    let row = |tokens: &[Placed]| {
        let values = split_at_commas(parenthesised(tokens)?);
        let assigned =
            |(column, value): (&String, &[Placed])| Assigned { column: column.clone(), value: literal(value) };
        (values.len() == columns.len()).then(|| columns.iter().zip(values).map(assigned).collect())
    };
    let rows: Option<Vec<_>> = split_at_commas(&rows[..end]).into_iter().map(row).collect();
    let may_replace = tokens[0].token.is_word("replace") || position_at_top(tokens, &["on"]).is_some();
    rows.map(|rows| RowStatement::New { rows, may_replace }).ok_or(NO_LIST)
}

/// What is in the parentheses that `tokens` consists of.
fn parenthesised(tokens: &[Placed]) -> Option<&[Placed]> {
    match tokens {
        [open, inside @ .., close] if open.token.is_symbol('(') && close.token.is_symbol(')') => Some(inside),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::sql_text::statements, *};
    use lookaside_invalidator::keys::SqlMode;

    const MYSQL: Syntax = Syntax::Mysql(SqlMode::DEFAULT);

    fn parse(sql: &str, syntax: Syntax) -> Result<RowStatement, &'static str> {
        let found = statements(sql, syntax);
        assert_eq!(found.len(), 1, "{sql}");
        RowStatement::parse(&found[0], syntax)
    }

    fn condition_of(sql: &str, syntax: Syntax) -> (Option<String>, String) {
        match parse(sql, syntax) {
            Ok(RowStatement::Existing { alias, condition, .. }) => (alias, condition),
            other => panic!("{sql}: {other:?}"),
        }
    }

    #[test]
    fn conditions_are_found() {
        for (sql, alias, condition) in [
            ("DELETE FROM users", None, ""),
            ("DELETE FROM app.users WHERE id IN (1, 2) /* why */", None, "WHERE id IN (1, 2)"),
            ("DELETE LOW_PRIORITY FROM `users` AS u WHERE u.id=1", Some("u"), "WHERE u.id=1"),
            ("UPDATE users SET a = 1, b = 'x' WHERE id = 1", None, "WHERE id = 1"),
            ("UPDATE app.users u SET a = (SELECT 1) WHERE (id = 1) OR a > 'b'", Some("u"), "WHERE (id = 1) OR a > 'b'"),
            ("DELETE FROM users WHERE a = 1 ORDER BY b LIMIT 5", None, "WHERE a = 1 ORDER BY b LIMIT 5"),
            ("DELETE FROM users WHERE a = 1 RETURNING id", None, "WHERE a = 1"),
            ("DELETE FROM users WHERE a IN (SELECT b FROM c)", None, "WHERE a IN (SELECT b FROM c)"),
        ] {
            assert_eq!(condition_of(sql, MYSQL), (alias.map(String::from), condition.into()), "{sql}");
        }
        let found = condition_of("UPDATE ONLY \"Users\" AS \"U\" SET a = 1 WHERE \"Id\" = $$x$$", Syntax::Postgres);
        assert_eq!(found, (Some("\"U\"".into()), "WHERE \"Id\" = 'x'".into()));
    }

    /// The condition is executed: whatever could do more than find rows is left alone.
    #[test]
    fn conditions_that_may_do_more_than_read_are_refused() {
        for sql in [
            "DELETE FROM users WHERE sleep(10)",
            "DELETE FROM users WHERE `sleep`(10)",
            "DELETE FROM users WHERE app.f (id)",
            "DELETE FROM users WHERE id = 1 INTO OUTFILE '/tmp/x'",
            "DELETE FROM users WHERE id IN (SELECT 1 INTO @a)",
            "DELETE FROM users WHERE id = 1) AS a, (SELECT 2",
            "DELETE FROM users WHERE id = 1)",
            "DELETE FROM users WHERE (id = 1",
            "DELETE FROM users WHERE id = 1 UNION SELECT 2",
            "DELETE FROM users WHERE id = 1 FOR UPDATE",
            "DELETE FROM users WHERE a = @b",
            "DELETE FROM users WHERE a = ?",
            r"DELETE FROM users WHERE a = 'x\'y'",
            "DELETE u FROM users u WHERE id = 1",
            "DELETE FROM users, posts WHERE id = 1",
            "UPDATE users, posts SET a = 1",
            "UPDATE users JOIN posts SET a = 1",
            "UPDATE users SET (a, b) = (1, 2)",
            "TRUNCATE users",
        ] {
            for syntax in [MYSQL, Syntax::Postgres] {
                assert!(parse(sql, syntax).is_err(), "{sql} {syntax:?}");
            }
        }
        assert!(parse("UPDATE users SET a = 1 FROM posts WHERE b", Syntax::Postgres).is_err());
        assert!(parse("DELETE FROM users USING posts WHERE b", Syntax::Postgres).is_err());
    }

    #[test]
    fn simple_values_are_known() {
        let value = |value: &str| match parse(&format!("UPDATE users SET app.users.a = {value}, b = 1"), MYSQL) {
            Ok(RowStatement::Existing { assigned: Some(assigned), .. }) => {
                assert_eq!((assigned[0].column.as_str(), assigned.len()), ("a", 2));
                assigned[0].value.clone()
            }
            other => panic!("{value}: {other:?}"),
        };
        for (text, expected) in [
            ("5", Literal::Integer("5".into())),
            ("-007", Literal::Integer("-7".into())),
            ("-0", Literal::Integer("0".into())),
            ("'it''s'", Literal::Text("it's".into())),
            ("NULL", Literal::Null),
            ("5.0", Literal::Unknown),
            ("a + 1", Literal::Unknown),
            ("'a' 'b'", Literal::Unknown),
            ("_utf8mb4'a'", Literal::Unknown),
            ("concat('a', 'b')", Literal::Unknown),
            ("-'1'", Literal::Unknown),
            (r"'a\n'", Literal::Unknown),
        ] {
            assert_eq!(value(text), expected, "{text}");
        }
    }

    #[test]
    fn rows_of_an_insert_are_known_by_their_columns() {
        let text = |text: &str| Literal::Text(text.into());
        let row = |id: &str, name: Literal| {
            vec![
                Assigned { column: "id".into(), value: Literal::Integer(id.into()) },
                Assigned { column: "name".into(), value: name },
            ]
        };
        for (sql, may_replace) in [
            ("INSERT INTO app.users (id, `name`) VALUES (1, 'a'), (2, now())", false),
            ("REPLACE users(id, name) VALUES (1, 'a'), (2, now())", true),
            ("INSERT INTO users (id, name) VALUES (1, 'a'), (2, now()) ON DUPLICATE KEY UPDATE name = 'b'", true),
        ] {
            let rows = vec![row("1", text("a")), row("2", Literal::Unknown)];
            assert_eq!(parse(sql, MYSQL), Ok(RowStatement::New { rows, may_replace }), "{sql}");
        }
        for sql in [
            "INSERT INTO users VALUES (1, 'a')",
            "INSERT INTO users (id) SELECT 1",
            "INSERT INTO users (id, name) VALUES (1)",
            "INSERT INTO users SET id = 1",
            "INSERT INTO users (id) VALUES 1",
        ] {
            assert!(parse(sql, MYSQL).is_err(), "{sql}");
        }
    }
}
