//! `lookaside invalidator try`: the keys of a row that is given as JSON, without a database, and of rows that were read
//! from one.

use super::{
    bound_rule::BoundRule,
    change::{Column, Inexpressible, RowChange},
    column_form::ColumnForm,
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
    /// Columns that an image does not name are not in the log. `declared` are the columns of the table that keys have;
    /// `None` without a database: text, decimals, dates and times are then strings in the form in which keys have them.
    pub fn of_row(
        rule: &Rule,
        declared: Option<&[(Column, ColumnForm)]>,
        before: Option<&Map<String, Json>>,
        after: Option<&Map<String, Json>>,
    ) -> Result<Preview, String> {
        let named = [before, after].into_iter().flatten().flat_map(Map::keys).cloned();
        let of_rule = rule.templates.iter().flat_map(Template::columns).map(String::from);
        let known = declared.unwrap_or_default().iter().map(|(column, form)| (column.clone(), Some(form.clone())));
        let mut columns: Vec<(Column, Option<ColumnForm>)> = known.collect();
        for name in named.chain(of_rule).chain(rule.ignore_columns.iter().cloned()) {
            // One of the keys that the table does not have is an error.
            let is_missing = declared.is_some() && rule.uses_column(&name);
            if !is_missing && !columns.iter().any(|(known, _)| known.name.eq_ignore_ascii_case(&name)) {
                columns.push((Column::writable(name), None));
            }
        }
        let all: Vec<Column> = columns.iter().map(|(column, _)| column.clone()).collect();
        let bound = BoundRule::bind(rule, &all).map_err(|refused| refused.0.join("; "))?;
        let (before, after) = (image(&columns, before)?, image(&columns, after)?);
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

/// Numbers of JSON with a fraction may have lost digits.
const DECIMAL_IS_STRING: &str = "write a decimal as a string, such as \"12.50\"";

/// The values of a row that is given as JSON.
fn image(
    columns: &[(Column, Option<ColumnForm>)],
    row: Option<&Map<String, Json>>,
) -> Result<Option<Vec<RowValue<'static>>>, String> {
    let Some(row) = row else { return Ok(None) };
    let value_of = |(column, form): &(Column, Option<ColumnForm>)| {
        let name = &column.name;
        match row.iter().find(|(given, _)| given.eq_ignore_ascii_case(name)) {
            None => Ok(RowValue::NotInLog),
            Some((_, value)) => {
                value_in(form.as_ref(), value).map_err(|why| format!("column {name} is {value}; {why}"))
            }
        }
    };
    columns.iter().map(value_of).collect::<Result<_, _>>().map(Some)
}

/// A value of a column of this form. Without a form, what is given is the text of keys.
fn value_in(form: Option<&ColumnForm>, value: &Json) -> Result<RowValue<'static>, String> {
    let read = |form: &ColumnForm, text: &str| form.read(text).map_err(|expected| format!("expected {expected}"));
    match (value, form) {
        (Json::Null, _) => Ok(RowValue::Null),
        (Json::Bool(value), None | Some(ColumnForm::Integer | ColumnForm::Boolean)) => {
            Ok(RowValue::Integer(i128::from(*value)))
        }
        (Json::String(text), None) => Ok(RowValue::Text(text.clone().into())),
        (Json::String(text), Some(form)) => read(form, text),
        (Json::Number(number), None) => match number.as_i128() {
            Some(integer) => Ok(RowValue::Integer(integer)),
            None => Err(DECIMAL_IS_STRING.into()),
        },
        (Json::Number(number), Some(form)) if form.is_numeric() => match number.as_i128() {
            Some(integer) => read(form, &integer.to_string()),
            None => Err(DECIMAL_IS_STRING.into()),
        },
        (_, Some(form)) => Err(format!("expected {}", form.expected())),
        (_, None) => Err("expected a string, an integer, true, false or null".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::file::Rules, *};

    fn preview(before: Option<&str>, after: Option<&str>) -> Result<Preview, String> {
        let rules = Rules::parse("[[rule]]\ntable = 'app.users'\nkeys = ['u:{id}', 'e:{email}']").expect("valid");
        let row = |text: &str| serde_json::from_str::<Map<String, Json>>(text).expect("an object");
        let (before, after) = (before.map(row), after.map(row));
        Preview::of_row(rules.rule(b"app", b"users").expect("it is there"), None, before.as_ref(), after.as_ref())
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

    #[test]
    fn values_are_read_as_their_columns_are_declared() {
        let text = "[[rule]]\ntable = 'app.prices'\nignore_columns = ['seen']\n\
            keys = ['p:{price}', 'n:{name}', 'b:{is_on}', 'c:{code}', 'f:{flags}', 'y:{year}']";
        let rules = Rules::parse(text).expect("valid");
        let mut declared = vec![
            (Column::writable("Price"), ColumnForm::Decimal { scale: 2 }),
            (Column::writable("name"), ColumnForm::Text { is_padded: true }),
            (Column::writable("code"), ColumnForm::Other),
            (Column::writable("flags"), ColumnForm::Bits),
            (Column::writable("year"), ColumnForm::Year),
            (Column::writable("is_on"), ColumnForm::Boolean),
        ];
        let keys = |declared: &[(Column, ColumnForm)], before: Option<&str>, row: &str| {
            let parse = |text: &str| serde_json::from_str::<Map<String, Json>>(text).expect("an object");
            let (before, row) = (before.map(parse), parse(row));
            let rule = rules.rule(b"app", b"prices").expect("it is there");
            Preview::of_row(rule, Some(declared), before.as_ref(), Some(&row)).map(|preview| preview.keys)
        };
        for price in ["12.5", "12.50", "012.500"] {
            // A column that no key has is only compared.
            let row = format!(r#"{{"price": "{price}", "name": "Ada  ", "is_on": true, "note": "x"}}"#);
            assert_eq!(keys(&declared, None, &row).expect("good"), ["b:1", "n:Ada", "p:12.50"]);
        }
        assert_eq!(keys(&declared, None, r#"{"price": 12, "name": null, "is_on": null}"#).expect("good"), ["p:12.00"]);
        for (year, key) in [(2026, "y:2026"), (0, "y:0")] {
            let numbers = keys(&declared, None, &format!(r#"{{"flags": 5, "year": {year}}}"#)).expect("good");
            assert_eq!(numbers, ["f:5", key]);
        }
        let row = |seen: u32| format!(r#"{{"price": "1", "name": "a", "is_on": false, "seen": {seen}}}"#);
        assert!(keys(&declared, Some(&row(1)), &row(2)).expect("good").is_empty(), "an ignored column is set");
        for (bad, why) in [
            (r#"{"price": "12.345"}"#, "2 digits after the point"),
            (r#"{"price": 12.5}"#, "write a decimal as a string"),
            (r#"{"name": 7}"#, "expected text"),
            (r#"{"code": "a"}"#, "only the database"),
            (r#"{"year": 26}"#, "a year with four digits"),
            (r#"{"is_on": "yes"}"#, "expected true or false"),
        ] {
            let error = keys(&declared, None, bad).expect_err(bad);
            assert!(error.contains(why), "{error}");
        }
        declared.pop();
        let missing =
            keys(&declared, None, r#"{"price": "1", "name": "a", "is_on": true}"#).expect_err("is_on is missing");
        assert!(missing.contains("is_on"), "{missing}");
    }
}
