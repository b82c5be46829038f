//! The keys of the rows that a statement would change, for `lookaside invalidator try --sql --database`. The rows are
//! read by the statement's condition; the statement itself is never executed.
//!
//! | statement | keys |
//! |---|---|
//! | UPDATE | of the rows that match now, and of the same with those new values that are literals |
//! | DELETE | of the rows that match now |
//! | INSERT, REPLACE of literals | of the new rows |
//!
//! Each statement is looked at by itself, as if those before it had not been executed.

use super::row_statement::{Assigned, Literal, RowStatement};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    key_options::RowDatabase,
    rules::{Column, ColumnForm, Inexpressible, Preview, ReadRows, RowSelection, RowValue, Rule, Rules},
};

/// The most rows of a statement that are read.
const ROWS_MAX: usize = 100;

/// What was found of the rows of one statement.
#[derive(Debug, Default)]
pub struct AffectedRows {
    pub keys: Vec<String>,
    pub notes: Vec<String>,
    /// How many rows were looked at; `None` if they are not known.
    pub rows: Option<usize>,
    /// Whether only ignored columns are set, so that nothing is deleted.
    pub is_ignored: bool,
}

impl AffectedRows {
    /// Reads the rows of the table of `rule`, one of `rules`, that `statement` changes. `ignores` says whether an
    /// UPDATE of ignored columns alone deletes nothing.
    pub async fn read(
        database: &RowDatabase,
        (rules, rule): (&Rules, &Rule),
        statement: &RowStatement,
        ignores: bool,
    ) -> AffectedRows {
        let selection = match statement {
            RowStatement::Existing { alias, condition, .. } => {
                Some(RowSelection { alias: alias.clone(), condition: condition.clone(), rows_max: ROWS_MAX })
            }
            RowStatement::New { .. } => None,
        };
        let read = match database.read_rows(&TcpNetwork, (rules, rule), selection.as_ref()).await {
            Ok(read) => read,
            // Not as a source: this command reads no log.
            Err(why) => return AffectedRows::unread(rule, why.reason()),
        };
        match find_keys(rule, statement, &read, ignores) {
            Ok(found) => found,
            Err(why) => AffectedRows::unread(rule, &why),
        }
    }

    /// Of a statement whose rows are not known.
    pub fn unread(rule: &Rule, why: &str) -> AffectedRows {
        let note = format!("the keys of the rows of {} are not shown: {why}", rule.table);
        AffectedRows { notes: vec![note], ..AffectedRows::default() }
    }

    fn add(&mut self, preview: Preview, unknown: &str) {
        self.keys.extend(preview.keys);
        self.notes.extend(preview.refused.into_iter().map(|key| format!("refused as a key: {key}")));
        match preview.inexpressible {
            None => {}
            Some(Inexpressible::NotInLog) => self.notes.push(unknown.to_owned()),
            Some(why) => self.notes.push(format!("not all keys can be written, as {why}")),
        }
    }
}

fn find_keys(rule: &Rule, statement: &RowStatement, read: &ReadRows, ignores: bool) -> Result<AffectedRows, String> {
    let columns: Vec<Column> = read.columns.iter().map(|(column, _)| column.clone()).collect();
    let table = &rule.table;
    let mut found = AffectedRows::default();
    match statement {
        RowStatement::Existing { assigned, .. } => {
            let is_ignored = |assigned: &Assigned| {
                rule.ignore_columns.iter().any(|ignored| ignored.eq_ignore_ascii_case(&assigned.column))
            };
            if ignores && assigned.as_ref().is_some_and(|assigned| assigned.iter().all(is_ignored)) {
                found.is_ignored = true;
                found.notes.push(format!("only columns of {table} are set that its rule ignores: nothing is deleted"));
                return Ok(found);
            }
            found.rows = Some(read.rows.len());
            found.notes.push(match (read.is_more, read.rows.len()) {
                (true, count) => format!("more than {count} rows of {table} match now: the keys of {count} are shown"),
                (false, 0) => format!("no row of {table} matches now"),
                (false, 1) => format!("1 row of {table} matches now: its keys are shown"),
                (false, count) => format!("{count} rows of {table} match now: their keys are shown"),
            });
            found.add(preview(rule, &columns, &read.rows)?, "some columns were not read");
            if let Some(assigned) = assigned {
                let unknown = "keys with new values that are no literals, or not in the form of keys, are not shown";
                let after: Vec<_> = read.rows.iter().map(|row| with_assigned(row, &read.columns, assigned)).collect();
                found.add(preview(rule, &columns, &after)?, unknown);
            }
        }
        RowStatement::New { rows, may_replace } => {
            found.rows = Some(rows.len());
            let unknown = "keys with values that the statement does not have as literals, or not in the form of keys, are not \
                           shown";
            let none = vec![RowValue::NotInLog; columns.len()];
            let rows: Vec<_> = rows.iter().map(|row| with_assigned(&none, &read.columns, row)).collect();
            found.add(preview(rule, &columns, &rows)?, unknown);
            if *may_replace {
                found.notes.push(format!("keys of rows of {table} that it replaces are not shown"));
            }
        }
    }
    Ok(found)
}

fn preview(rule: &Rule, columns: &[Column], rows: &[Vec<RowValue<'static>>]) -> Result<Preview, String> {
    let why = |why| format!("the table {} {why}", rule.table);
    Preview::of_rows(rule, columns, rows).map_err(why)
}

/// The row with its new values; those that are not known are [`RowValue::NotInLog`].
fn with_assigned(
    row: &[RowValue<'static>],
    columns: &[(Column, ColumnForm)],
    assigned: &[Assigned],
) -> Vec<RowValue<'static>> {
    let value = |(before, (column, form)): (&RowValue<'static>, &(Column, ColumnForm))| {
        // The last one counts.
        match assigned.iter().rev().find(|assigned| assigned.column.eq_ignore_ascii_case(&column.name)) {
            None => before.clone(),
            Some(assigned) => value_of(&assigned.value, form),
        }
    };
    row.iter().zip(columns).map(value).collect()
}

fn value_of(literal: &Literal, form: &ColumnForm) -> RowValue<'static> {
    let text = match (literal, form) {
        (Literal::Null, _) => return RowValue::Null,
        // What bytes, bits and booleans are as text depends on the database, and an instant on the session's time zone.
        (_, ColumnForm::Bytes { .. } | ColumnForm::Bits | ColumnForm::Boolean | ColumnForm::Instant { .. }) => None,
        (Literal::Integer(digits), ColumnForm::Integer | ColumnForm::Year | ColumnForm::Decimal { .. }) => Some(digits),
        (Literal::Text(text), _) => Some(text),
        _ => None,
    };
    text.and_then(|text| form.read(text).ok()).unwrap_or(RowValue::NotInLog)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(rows: &[(&str, Option<&str>)]) -> ReadRows {
        let column = |name: &str, form| (Column::writable(name), form);
        let value = |text: &str| RowValue::Text(text.to_owned().into());
        let row = |(id, email): &(&str, Option<&str>)| vec![value(id), email.map_or(RowValue::Null, value)];
        ReadRows {
            columns: vec![column("id", ColumnForm::Integer), column("email", ColumnForm::Text { is_padded: false })],
            rows: rows.iter().map(row).collect(),
            is_more: false,
        }
    }

    fn keys_of(statement: &RowStatement, read: &ReadRows) -> (Vec<String>, String) {
        let text = "[[rule]]\ntable = 'app.users'\nkeys = ['u:{id}', 'e:{email}', 'all']\nignore_columns = ['seen']";
        let rules = Rules::parse(text).expect("valid");
        let mut found =
            find_keys(rules.rule(b"app", b"users").expect("it is there"), statement, read, true).expect("it fits");
        found.keys.sort();
        found.keys.dedup();
        (found.keys, found.notes.join("; "))
    }

    fn update(assigned: &[(&str, Literal)]) -> RowStatement {
        let assigned =
            assigned.iter().map(|(column, value)| Assigned { column: column.to_string(), value: value.clone() });
        let assigned = Some(assigned.collect());
        RowStatement::Existing { alias: None, condition: String::new(), assigned }
    }

    #[test]
    fn an_update_has_the_keys_of_the_old_and_the_new_values() {
        let rows = read(&[("1", Some("a")), ("2", None)]);
        let text = |text: &str| Literal::Text(text.into());
        let (keys, notes) = keys_of(&update(&[("EMAIL", text("b"))]), &rows);
        assert_eq!(
            (keys.join(" ").as_str(), notes.as_str()),
            ("all e:a e:b u:1 u:2", "2 rows of app.users match now: their keys are shown",)
        );
        for unknown in [Literal::Unknown, Literal::Integer("7".into())] {
            let (keys, notes) = keys_of(&update(&[("email", unknown)]), &rows);
            assert_eq!(keys, ["all", "e:a", "u:1", "u:2"]);
            assert!(notes.contains("new values that are no literals"), "{notes}");
        }
        let (keys, notes) = keys_of(&update(&[("seen", Literal::Unknown)]), &rows);
        assert!(keys.is_empty() && notes.contains("nothing is deleted"), "{keys:?} {notes}");
        let (keys, _) = keys_of(&update(&[("seen", Literal::Unknown), ("email", Literal::Null)]), &rows);
        assert_eq!(keys, ["all", "e:a", "u:1", "u:2"]);
    }

    #[test]
    fn a_delete_has_the_keys_of_its_rows_and_none_without_rows() {
        let delete = RowStatement::Existing { alias: None, condition: String::new(), assigned: None };
        assert_eq!(keys_of(&delete, &read(&[("1", Some("a"))])).0, ["all", "e:a", "u:1"]);
        let (keys, notes) = keys_of(&delete, &read(&[]));
        assert!(keys.is_empty() && notes.contains("no row of app.users matches now"), "{keys:?} {notes}");
        let many = ReadRows { is_more: true, ..read(&[("1", None)]) };
        assert!(keys_of(&delete, &many).1.contains("more than 1 rows"));
    }

    #[test]
    fn an_insert_has_the_keys_that_its_literals_show() {
        let id = |value| vec![Assigned { column: "id".into(), value }];
        let rows = vec![id(Literal::Integer("7".into())), id(Literal::Unknown)];
        let (keys, notes) = keys_of(&RowStatement::New { rows, may_replace: true }, &read(&[]));
        assert_eq!(keys, ["all", "u:7"]);
        assert!(notes.contains("not have as literals") && notes.contains("that it replaces"), "{notes}");
    }
}
