//! The part of a statement that names the tables which it changes. The rest names tables that it reads.
//!
//! | statement | part |
//! |---|---|
//! | INSERT, REPLACE, MERGE, COPY ... FROM | the table behind it |
//! | UPDATE | up to SET: joined tables count, too |
//! | DELETE | up to the condition |
//! | WITH | each of these in it |
//! | SELECT, VALUES, COPY ... TO | none |
//! | others, such as TRUNCATE and DDL | the whole statement |

use super::sql_text::{Placed, SqlToken, Syntax, compose_names};
use std::ops::Range;

/// Words that may stand between a verb and its table.
const MODIFIERS: [&str; 8] = ["low_priority", "high_priority", "delayed", "quick", "ignore", "into", "from", "only"];

/// The statements of `tokens` that change tables, each as [`lookaside_invalidator`] reads it, and cut behind the
/// tables.
pub fn changing_parts(tokens: &[Placed], syntax: Syntax) -> Vec<String> {
    let tokens = strip_prefix(tokens, syntax);
    let Some(verb) = tokens.first().map(|placed| &placed.token) else { return Vec::new() };
    if verb.is_one_of(&["select", "values", "table"]) {
        return Vec::new();
    }
    if verb.is_word("with") {
        return modifications(tokens).iter().flat_map(|part| changing_parts(part, syntax)).collect();
    }
    if verb.is_one_of(&["insert", "replace"]) {
        return changed_rows(&tokens[target(tokens)]).into_iter().collect();
    }
    if syntax == Syntax::Postgres && verb.is_word("merge") {
        return changed_rows(&tokens[target(tokens)]).into_iter().collect();
    }
    if syntax == Syntax::Postgres && verb.is_word("copy") {
        let is_read = position_at_top(tokens, &["from", "to"]).is_some_and(|at| tokens[at].token.is_word("from"));
        return changed_rows(&tokens[target(tokens)]).filter(|_| is_read).into_iter().collect();
    }
    let (is_update, is_delete) = (verb.is_word("update"), verb.is_word("delete"));
    let end = match is_delete {
        true => position_at_top(tokens, &["where", "order", "limit", "returning"]),
        false => position_at_top(tokens, &["set"]).filter(|_| is_update),
    };
    // PostgreSQL's DELETE ... USING reads the further tables; that of MariaDB and MySQL may change them.
    let using = position_at_top(tokens, &["using"]).filter(|_| syntax == Syntax::Postgres && is_delete);
    let end = using.or(end).unwrap_or(tokens.len());
    vec![compose_names(&tokens[..end])]
}

/// A statement that changes rows of the table `name`; `None` if that is no name.
fn changed_rows(name: &[Placed]) -> Option<String> {
    (!name.is_empty()).then(|| format!("UPDATE {}", compose_names(name)))
}

/// Where the name behind the verb is; empty if there is none.
pub fn target(tokens: &[Placed]) -> Range<usize> {
    let begin = (1..tokens.len()).find(|at| !tokens[*at].token.is_one_of(&MODIFIERS)).unwrap_or(tokens.len());
    begin..begin + name_length(&tokens[begin..])
}

/// How many tokens the name has with which `tokens` begin: `a`, `a.b`, `a.b.c`; 0 if they begin with none.
pub fn name_length(tokens: &[Placed]) -> usize {
    let is_name = |at: usize| tokens.get(at).is_some_and(|placed| placed.token.name().is_some());
    let is_dot = |at: usize| tokens.get(at).is_some_and(|placed| placed.token.is_symbol('.'));
    if !is_name(0) {
        return 0;
    }
    let mut length = 1;
    while is_dot(length) && is_name(length + 1) {
        length += 2;
    }
    length
}

/// Where the first of these keywords is that is not in parentheses.
pub fn position_at_top(tokens: &[Placed], keywords: &[&str]) -> Option<usize> {
    let mut depth = 0_usize;
    tokens.iter().position(|Placed { token, .. }| {
        match token {
            SqlToken::Symbol('(') => depth += 1,
            SqlToken::Symbol(')') => depth = depth.saturating_sub(1),
            _ => return depth == 0 && token.is_one_of(keywords),
        }
        false
    })
}

/// The statement without what may stand in front of it: parentheses, and in MariaDB and MySQL settings and ANALYZE.
fn strip_prefix(tokens: &[Placed], syntax: Syntax) -> &[Placed] {
    let is = |at: usize, keyword: &str| tokens.get(at).is_some_and(|placed| placed.token.is_word(keyword));
    match tokens.first() {
        Some(placed) if placed.token.is_symbol('(') => strip_prefix(&tokens[1..], syntax),
        Some(_) if syntax == Syntax::Postgres => tokens,
        Some(_) if is(0, "set") && is(1, "statement") => match position_at_top(tokens, &["for"]) {
            Some(end) => strip_prefix(&tokens[end + 1..], syntax),
            None => tokens,
        },
        // ANALYZE FORMAT = JSON
        Some(_) if is(0, "analyze") && is(1, "format") && tokens.len() > 4 => strip_prefix(&tokens[4..], syntax),
        Some(_) if is(0, "analyze") && !is(1, "table") => strip_prefix(&tokens[1..], syntax),
        _ => tokens,
    }
}

/// The statements in a WITH that change rows: in parentheses, and the one behind all of them.
fn modifications(tokens: &[Placed]) -> Vec<&[Placed]> {
    let begins = |at: usize| {
        let is_call = tokens.get(at + 1).is_some_and(|next| next.token.is_symbol('('));
        let is_behind_parenthesis = matches!(tokens[at - 1].token, SqlToken::Symbol('(' | ')'));
        is_behind_parenthesis && !is_call && tokens[at].token.is_one_of(&["insert", "update", "delete", "merge"])
    };
    (1..tokens.len())
        .filter(|at| begins(*at))
        .map(|at| &tokens[at..at + length_to_parenthesis(&tokens[at..])])
        .collect()
}

/// How many tokens there are before a parenthesis closes that was open before.
fn length_to_parenthesis(tokens: &[Placed]) -> usize {
    let mut depth = 0_usize;
    let end = tokens.iter().position(|Placed { token, .. }| match token {
        SqlToken::Symbol('(') => {
            depth += 1;
            false
        }
        SqlToken::Symbol(')') if depth == 0 => true,
        SqlToken::Symbol(')') => {
            depth -= 1;
            false
        }
        _ => false,
    });
    end.unwrap_or(tokens.len())
}

#[cfg(test)]
mod tests {
    use super::{super::sql_text::statements, *};
    use lookaside_invalidator::keys::SqlMode;

    fn parts(sql: &str, syntax: Syntax) -> Vec<String> {
        statements(sql, syntax).iter().flat_map(|tokens| changing_parts(tokens, syntax)).collect()
    }

    #[test]
    fn what_a_statement_only_reads_is_left_out() {
        for syntax in [Syntax::Mysql(SqlMode::DEFAULT), Syntax::Postgres] {
            for (sql, expected) in [
                ("SELECT * FROM users FOR UPDATE", vec![]),
                ("(SELECT 1) UNION (SELECT * FROM users)", vec![]),
                ("INSERT INTO app . posts SELECT * FROM users", vec!["UPDATE app . posts"]),
                ("UPDATE posts SET a = (SELECT max(id) FROM users)", vec!["UPDATE posts"]),
                ("DELETE FROM posts WHERE a IN (SELECT id FROM users)", vec!["DELETE FROM posts"]),
                ("BEGIN; DELETE FROM users; COMMIT", vec!["BEGIN", "DELETE FROM users", "COMMIT"]),
                ("TRUNCATE app.users", vec!["TRUNCATE app . users"]),
                ("WITH a AS (SELECT * FROM users) SELECT * FROM a", vec![]),
                ("WITH a AS (SELECT insert(b, 1, 1, 'c') FROM users) DELETE FROM posts", vec!["DELETE FROM posts"]),
            ] {
                assert_eq!(parts(sql, syntax), expected, "{sql} {syntax:?}");
            }
        }
    }

    #[test]
    fn each_syntax_has_statements_of_its_own() {
        let mysql = Syntax::Mysql(SqlMode::DEFAULT);
        for (sql, expected) in [
            ("REPLACE LOW_PRIORITY users VALUES (1)", vec!["UPDATE users"]),
            ("SET STATEMENT a = (SELECT 1 FOR b) FOR DELETE FROM users", vec!["DELETE FROM users"]),
            ("ANALYZE FORMAT=JSON DELETE FROM users WHERE a", vec!["DELETE FROM users"]),
            ("ANALYZE SELECT * FROM users", vec![]),
            ("DELETE u FROM users u JOIN posts p WHERE 1", vec!["DELETE u FROM users u JOIN posts p"]),
            ("MERGE INTO users USING posts", vec!["MERGE INTO users USING posts"]),
        ] {
            assert_eq!(parts(sql, mysql), expected, "{sql}");
        }
        for (sql, expected) in [
            ("MERGE INTO users u USING posts p ON true WHEN MATCHED THEN DELETE", vec!["UPDATE users"]),
            ("COPY public.users (id) FROM STDIN", vec!["UPDATE public . users"]),
            ("COPY users TO STDOUT", vec![]),
            ("COPY (SELECT * FROM users) TO STDOUT", vec![]),
            ("DELETE FROM ONLY posts USING users WHERE true", vec!["DELETE FROM ONLY posts"]),
            (
                "WITH a AS (DELETE FROM users RETURNING *) INSERT INTO old SELECT * FROM a",
                vec!["DELETE FROM users", "UPDATE old"],
            ),
        ] {
            assert_eq!(parts(sql, Syntax::Postgres), expected, "{sql}");
        }
    }
}
