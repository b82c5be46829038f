//! `lookaside invalidator try`: the keys of a row that is given as JSON, without a database, and of rows that were read
//! from one.

use super::{
    bound_rule::BoundRule,
    change::{Column, Inexpressible, RowChange},
    file::Rule,
    template::Template,
    value::RowValue,
};
use lookaside_protocol::check_key;
use serde_json::{Map, Value as Json};

/// The keys of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preview {
    /// Sorted, without repetitions.
    pub keys: Vec<String>,
    /// Keys that no server accepts, with the reason.
    pub refused: Vec<String>,
    /// Why keys are missing; `None` if none are.
    pub inexpressible: Option<Inexpressible>,
}

impl Preview {
    /// The keys of a row of the table of `rule`: an update if both images are given, else an insert or a delete.
    /// Columns that an image does not name are not in the log. Text, decimals, dates and times are strings in the form
    /// in which keys have them.
    pub fn of_row(
        rule: &Rule,
        before: Option<&Map<String, Json>>,
        after: Option<&Map<String, Json>>,
    ) -> Result<Preview, String> {
        let named = [before, after].into_iter().flatten().flat_map(Map::keys).cloned();
        let of_rule = rule.templates.iter().flat_map(Template::columns).map(String::from);
        let mut names: Vec<String> = Vec::new();
        for name in named.chain(of_rule).chain(rule.ignore_columns.iter().cloned()) {
            if !names.iter().any(|known| known.eq_ignore_ascii_case(&name)) {
                names.push(name);
            }
        }
        let columns: Vec<Column> = names.iter().map(|name| Column::writable(name.as_str())).collect();
        let bound = BoundRule::bind(rule, &columns).map_err(|refused| refused.0.join("; "))?;
        let (before, after) = (image(&names, before)?, image(&names, after)?);
        let change = match (&before, &after) {
            (Some(before), Some(after)) => RowChange::Update { before, after },
            (Some(before), None) => RowChange::Delete { before },
            (None, Some(after)) => RowChange::Insert { after },
            (None, None) => return Err("neither a row nor the row before is given".into()),
        };
        let mut preview = Preview::default();
        preview.add(&bound, change);
        Ok(preview)
    }

    /// The keys of rows of the table of `rule`, each as it was, or as it is. `columns` are those of the table that keys
    /// have.
    pub fn of_rows(rule: &Rule, columns: &[Column], rows: &[Vec<RowValue<'_>>]) -> Result<Preview, String> {
        // Of no consequence for one image; and `columns` need not have them.
        let rule = Rule { ignore_columns: Vec::new(), ..rule.clone() };
        let bound = BoundRule::bind(&rule, columns).map_err(|refused| refused.0.join("; "))?;
        let mut preview = Preview::default();
        rows.iter().for_each(|row| preview.add(&bound, RowChange::Insert { after: row }));
        Ok(preview)
    }

    fn add(&mut self, bound: &BoundRule, change: RowChange<'_>) {
        let written = bound.write_row_keys(change, &mut Vec::new(), &mut |key| {
            let text = String::from_utf8_lossy(key).into_owned();
            match check_key(key) {
                Ok(()) => self.keys.push(text),
                Err(why) => self.refused.push(format!("{text:?}: {why}")),
            }
        });
        self.inexpressible = self.inexpressible.or(written.inexpressible);
        for list in [&mut self.keys, &mut self.refused] {
            list.sort();
            list.dedup();
        }
    }
}

/// The rows that a statement would change, in a SELECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSelection {
    /// Another name of the table, as it is written in SQL; `None` if it has none.
    pub alias: Option<String>,
    /// What is behind the table in the SELECT, such as `WHERE id = 1`; empty for all rows. It must be a part of one
    /// statement however the server reads quotes.
    pub condition: String,
    /// The most rows that are read.
    pub rows_max: usize,
}

/// Rows of a table with a rule, as the database has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadRows {
    /// The columns that keys of the rule have.
    pub columns: Vec<(Column, ColumnForm)>,
    /// The rows, with a value for each of these columns.
    pub rows: Vec<Vec<RowValue<'static>>>,
    /// Whether there are more rows.
    pub is_more: bool,
}

/// How a literal of SQL becomes a value of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnForm {
    /// An integer stays as it is.
    Integer,
    /// Text stays as it is.
    Text,
    /// Only the database knows.
    Other,
}

fn image<'a>(names: &[String], row: Option<&'a Map<String, Json>>) -> Result<Option<Vec<RowValue<'a>>>, String> {
    let Some(row) = row else { return Ok(None) };
    let value_of = |name: &String| match row.iter().find(|(column, _)| column.eq_ignore_ascii_case(name)) {
        None => Ok(RowValue::NotInLog),
        Some((_, Json::Null)) => Ok(RowValue::Null),
        Some((_, Json::Bool(value))) => Ok(RowValue::Integer(i128::from(*value))),
        Some((_, Json::String(text))) => Ok(RowValue::Text(text.as_str().into())),
        Some((_, Json::Number(number))) => match number.as_i128() {
            Some(integer) => Ok(RowValue::Integer(integer)),
            None => Err(format!("column {name} is {number}; write a decimal as a string, such as \"12.50\"")),
        },
        Some((_, value)) => {
            Err(format!("column {name} is {value}; expected a string, an integer, true, false or null"))
        }
    };
    names.iter().map(value_of).collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::{super::file::Rules, *};

    fn preview(before: Option<&str>, after: Option<&str>) -> Result<Preview, String> {
        let rules = Rules::parse("[[rule]]\ntable = 'app.users'\nkeys = ['u:{id}', 'e:{email}']").expect("valid");
        let row = |text: &str| serde_json::from_str::<Map<String, Json>>(text).expect("an object");
        let (before, after) = (before.map(row), after.map(row));
        Preview::of_row(rules.rule(b"app", b"users").expect("it is there"), before.as_ref(), after.as_ref())
    }

    #[test]
    fn keys_of_a_row_are_shown() {
        let update = preview(Some(r#"{"id": 42, "email": "a"}"#), Some(r#"{"ID": 42, "email": "b c"}"#)).expect("good");
        assert_eq!(update.keys, ["e:a", "u:42"]);
        assert_eq!((update.refused.len(), update.inexpressible), (1, None));
        let delete = preview(Some(r#"{"id": 42}"#), None).expect("good");
        assert_eq!((delete.keys, delete.inexpressible), (vec!["u:42".into()], Some(Inexpressible::NotInLog)));
        assert_eq!(preview(None, Some(r#"{"id": true, "email": null}"#)).expect("good").keys, ["u:1"]);
        for bad in [r#"{"id": 1.5}"#, r#"{"id": [1]}"#] {
            assert!(preview(None, Some(bad)).is_err(), "{bad}");
        }
    }
}
