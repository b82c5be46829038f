//! Whether a cached value is stale.
//!
//! The row is read before and after the value. If it is the same both times, and the value does not match it, the value
//! is suspected. It is read again after a pause that is longer than a delete takes to arrive. Only the same item beside
//! the same row counts then: what is being changed during the comparison is never reported.
//!
//! ```text
//! row -> value -> row     pause     row -> value -> row
//!  \______ same _____/               \_____ same as at first, value and item too _____/   => stale
//! ```

use super::{cached_value::CachedValue, queries::ValueFormat};
use serde_json::{Number, Value};

/// A column of a row, as text; `None` for NULL.
pub type Column = (String, Option<String>);

/// What was read about one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparand {
    /// The row before the value was read; `None` if there is none.
    pub before: Option<Vec<Column>>,
    /// The value; `None` if it is not cached.
    pub cached: Option<CachedItem>,
    /// The row afterwards.
    pub after: Option<Vec<Column>>,
}

impl Comparand {
    /// The bytes of rows and value, about.
    pub fn bytes(&self) -> usize {
        let rows = [&self.before, &self.after].into_iter().flatten().flatten();
        let text = |(name, text): &Column| name.len() + text.as_ref().map_or(0, String::len);
        rows.map(text).sum::<usize>() + self.cached.as_ref().map_or(0, |item| item.value.bytes())
    }
}

/// An item of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedItem {
    /// Its CAS unique.
    pub cas: u64,
    /// Its value.
    pub value: CachedValue,
}

/// What a comparison shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The value is that of the row.
    Fresh,
    /// There is a row, and no value is cached.
    Missing,
    /// There is neither.
    Nothing,
    /// The row or the value has changed meanwhile.
    Changing,
    /// The value cannot be decoded.
    Unreadable,
    /// The value is another one than that of the row.
    Stale,
    /// A value is cached, and there is no row.
    Orphaned,
    /// The row is not that of the master yet: the value may have been read there.
    Behind,
}

impl Outcome {
    /// The names of all, in their order.
    pub const NAMES: [&'static str; 8] =
        ["fresh", "missing", "nothing", "changing", "unreadable", "stale", "orphaned", "behind"];

    /// Whether the value is wrong.
    pub fn is_wrong(self) -> bool {
        matches!(self, Outcome::Stale | Outcome::Orphaned)
    }
}

/// What one comparison shows. A wrong value is suspected: see [`confirm`].
pub fn classify(format: ValueFormat, seen: &Comparand) -> Outcome {
    if seen.before != seen.after {
        return Outcome::Changing;
    }
    match (&seen.before, &seen.cached) {
        (None, None) => Outcome::Nothing,
        (Some(_), None) => Outcome::Missing,
        (None, Some(item)) if item.value == CachedValue::Absent => Outcome::Fresh,
        (None, Some(_)) => Outcome::Orphaned,
        (Some(row), Some(item)) => match matches_row(format, row, &item.value) {
            None => Outcome::Unreadable,
            Some(true) => Outcome::Fresh,
            Some(false) => Outcome::Stale,
        },
    }
}

/// What two comparisons show, of which the first has suspected the value: wrong only if nothing has changed in between.
pub fn confirm(format: ValueFormat, first: &Comparand, second: &Comparand) -> Outcome {
    match classify(format, second) {
        wrong if wrong.is_wrong() && second != first => Outcome::Changing,
        outcome => outcome,
    }
}

/// What a wrong value beside a replica's row shows, if the master's row is `master` now. Where a write is not
/// replicated, the value may have been read from the master ([ADR 020](../../../../docs/adr/020-remote-markers.md)),
/// and the delete of the write is still to come.
pub fn confirm_by_master(outcome: Outcome, seen: &Comparand, master: &Option<Vec<Column>>) -> Outcome {
    if outcome.is_wrong() && seen.after != *master { Outcome::Behind } else { outcome }
}

/// Whether the value is that of the row; `None` if it cannot be decoded.
fn matches_row(format: ValueFormat, row: &[Column], value: &CachedValue) -> Option<bool> {
    if *value == CachedValue::Absent {
        // A loader may return nothing for a row whose only column is NULL.
        return Some(matches!(row, [(_, None)]));
    }
    match (format, row) {
        (ValueFormat::Text, [(_, text)]) => match value {
            CachedValue::Text(value) => Some(text.as_deref().unwrap_or_default().as_bytes() == value),
            value => Some(is_scalar(&value.to_document()?, text.as_deref())),
        },
        (ValueFormat::Text, _) => None,
        (ValueFormat::Json, [(_, Some(text))]) if is_document(text) => {
            let document: Value = serde_json::from_str(text).ok()?;
            Some(is_same_document(&value.to_document()?, &document))
        }
        (ValueFormat::Json, columns) => {
            let Value::Object(fields) = value.to_document()? else { return None };
            let is_same =
                |(name, text): &Column| fields.get(name).is_some_and(|field| is_scalar(field, text.as_deref()));
            Some(columns.iter().all(is_same))
        }
    }
}

fn is_document(text: &str) -> bool {
    matches!(text.trim_start().as_bytes().first(), Some(b'{' | b'['))
}

/// Whether a field has the value of a column. Databases write booleans as 1, 0, t and f.
fn is_scalar(field: &Value, text: Option<&str>) -> bool {
    match (field, text) {
        (Value::Null, None) => true,
        (_, None) | (Value::Null, _) => false,
        (Value::String(field), Some(text)) => field == text,
        (Value::Bool(field), Some(text)) => match field {
            true => matches!(text, "1" | "t" | "true"),
            false => matches!(text, "0" | "f" | "false"),
        },
        (Value::Number(field), Some(text)) => is_number(field, text),
        (Value::Array(_) | Value::Object(_), Some(text)) => {
            serde_json::from_str::<Value>(text).is_ok_and(|document| is_same_document(&document, field))
        }
    }
}

/// Whether a number has the value of a column. A double cannot tell large integers from their neighbours, so an integer
/// is compared digit by digit, also with a decimal such as `36.00`. A field with a fraction or an exponent is a double.
fn is_number(field: &Number, text: &str) -> bool {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    match (to_integer(field), whole.parse::<i128>()) {
        (Some(field), Ok(whole)) if fraction.bytes().all(|byte| byte.is_ascii_digit()) => {
            field == whole && fraction.bytes().all(|digit| digit == b'0')
        }
        _ => field.as_f64().is_some_and(|field| text.parse() == Ok(field)),
    }
}

/// The integer that it is written as; `None` if it has a fraction or an exponent, or more than 64 bits.
fn to_integer(number: &Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

/// Whether two documents have the same content. `1` and `1.0` are the same number: many languages write both for one
/// value.
fn is_same_document(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => match (to_integer(one), to_integer(other)) {
            (Some(one), Some(other)) => one == other,
            _ => one.as_f64() == other.as_f64(),
        },
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same_document(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let is_in_other =
                |(name, value): (&String, &Value)| other.get(name).is_some_and(|other| is_same_document(value, other));
            one.len() == other.len() && one.iter().all(is_in_other)
        }
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row(columns: &[(&str, Option<&str>)]) -> Option<Vec<Column>> {
        Some(columns.iter().map(|(name, text)| ((*name).to_owned(), text.map(ToOwned::to_owned))).collect())
    }

    fn item(cas: u64, value: &str) -> CachedItem {
        CachedItem { cas, value: CachedValue::Text(value.to_owned().into()) }
    }

    fn seen(row: Option<Vec<Column>>, value: Option<&str>) -> Comparand {
        let cached = value.map(|value| item(1, value));
        Comparand { before: row.clone(), cached, after: row }
    }

    #[test]
    fn texts_and_json_are_compared_by_their_meaning() {
        use ValueFormat::{Json, Text};
        let name = row(&[("name", Some("Ada"))]);
        let user = row(&[("name", Some("Ada")), ("age", Some("36")), ("is_admin", Some("1")), ("email", None)]);
        let document = row(&[("body", Some("{\"a\": [1, 2]}"))]);
        for (format, row, value, outcome) in [
            (Text, &name, "Ada", Outcome::Fresh),
            (Text, &name, "Grace", Outcome::Stale),
            (Text, &user, "Ada", Outcome::Unreadable),
            (Json, &user, r#"{"email":null,"age":36,"is_admin":true,"name":"Ada","more":1}"#, Outcome::Fresh),
            (Json, &user, r#"{"email":null,"age":36.0,"is_admin":"1","name":"Ada"}"#, Outcome::Fresh),
            (Json, &user, r#"{"email":"","age":36,"is_admin":true,"name":"Ada"}"#, Outcome::Stale),
            (Json, &user, r#"{"email":null,"age":37,"is_admin":true,"name":"Ada"}"#, Outcome::Stale),
            (Json, &user, r#"{"email":null,"age":36,"name":"Ada"}"#, Outcome::Stale),
            (Json, &user, "not JSON", Outcome::Unreadable),
            (Json, &document, r#"{"a":[1,2]}"#, Outcome::Fresh),
            (Json, &document, r#"{"a":[1,3]}"#, Outcome::Stale),
        ] {
            assert_eq!(classify(format, &seen(row.clone(), Some(value))), outcome, "{value}");
        }
        assert_eq!(classify(Text, &seen(None, Some("Ada"))), Outcome::Orphaned);
        assert_eq!(classify(Text, &seen(name, None)), Outcome::Missing);
        assert_eq!(classify(Text, &seen(None, None)), Outcome::Nothing);
    }

    #[test]
    fn values_with_flags_are_compared_by_their_meaning() {
        use ValueFormat::{Json, Text};
        let compare = |format, row: &Option<Vec<Column>>, value: CachedValue| {
            let cached = Some(CachedItem { cas: 1, value });
            classify(format, &Comparand { before: row.clone(), cached, after: row.clone() })
        };
        let document = |json: &str| CachedValue::Document(serde_json::from_str(json).expect("JSON"));
        let user = row(&[("name", Some("Ada")), ("visits", Some("7"))]);
        let visits = row(&[("visits", Some("7"))]);
        assert_eq!(compare(Json, &user, document(r#"{"name":"Ada","visits":7}"#)), Outcome::Fresh);
        assert_eq!(compare(Json, &user, document(r#"{"name":"Ada","visits":8}"#)), Outcome::Stale);
        assert_eq!(compare(Text, &visits, document("7")), Outcome::Fresh);
        assert_eq!(compare(Text, &visits, document("8")), Outcome::Stale);
        // The mark of an absent row.
        assert_eq!(compare(Json, &None, CachedValue::Absent), Outcome::Fresh);
        assert_eq!(compare(Json, &user, CachedValue::Absent), Outcome::Stale);
        assert_eq!(compare(Text, &row(&[("name", None)]), CachedValue::Absent), Outcome::Fresh);
        for format in [Text, Json] {
            assert_eq!(compare(format, &visits, CachedValue::Unreadable), Outcome::Unreadable);
        }
        assert_eq!(compare(Json, &None, CachedValue::Unreadable), Outcome::Orphaned);
    }

    /// Numbers were compared as doubles: of two neighbours beyond 2^53 each counted as the other.
    #[test]
    fn large_integers_are_compared_digit_by_digit() {
        let compare = |column: &str, field: &str| {
            let row = row(&[("n", Some(column)), ("name", Some("Ada"))]);
            classify(ValueFormat::Json, &seen(row, Some(&format!(r#"{{"n":{field},"name":"Ada"}}"#))))
        };
        for (column, field) in [
            ("1700000000000000001", "1700000000000000001"),
            ("1700000000000000001.00", "1700000000000000001"),
            ("18446744073709551615", "18446744073709551615"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("36", "36.0"),
            ("36.00", "36"),
            ("0.10", "0.1"),
            ("1e3", "1000"),
            ("100000000000000000000", "100000000000000000000"),
        ] {
            assert_eq!(compare(column, field), Outcome::Fresh, "{column} {field}");
        }
        for (column, field) in [
            ("1700000000000000002", "1700000000000000001"),
            ("1700000000000000002.00", "1700000000000000001"),
            ("1700000000000000001.5", "1700000000000000001"),
            ("18446744073709551614", "18446744073709551615"),
            ("36.5", "36"),
            ("0.11", "0.1"),
            ("x", "36"),
            ("36.x", "36"),
            ("", "0"),
        ] {
            assert_eq!(compare(column, field), Outcome::Stale, "{column} {field}");
        }
    }

    #[test]
    fn numbers_of_documents_are_compared_by_their_value() {
        let compare =
            |column: &str, value: &str| classify(ValueFormat::Json, &seen(row(&[("body", Some(column))]), Some(value)));
        for (column, value) in [
            (r#"{"n": [1, {"m": 2.0}]}"#, r#"{"n":[1.0,{"m":2}]}"#),
            ("[1700000000000000001]", "[1700000000000000001]"),
            ("[true, null, \"1\"]", "[true,null,\"1\"]"),
        ] {
            assert_eq!(compare(column, value), Outcome::Fresh, "{column} {value}");
        }
        for (column, value) in [
            ("[1700000000000000002]", "[1700000000000000001]"),
            ("[1]", "[1.5]"),
            ("[1]", "[\"1\"]"),
            ("[1, 2]", "[1]"),
            (r#"{"n": 1}"#, r#"{"n":1,"m":1}"#),
            (r#"{"n": 1, "m": 1}"#, r#"{"n":1}"#),
        ] {
            assert_eq!(compare(column, value), Outcome::Stale, "{column} {value}");
        }
    }

    #[test]
    fn what_changes_is_not_reported() {
        let (old, new) = (row(&[("n", Some("1"))]), row(&[("n", Some("2"))]));
        let stale = seen(new.clone(), Some("1"));
        assert_eq!(confirm(ValueFormat::Text, &stale, &stale), Outcome::Stale);
        let changing = Comparand { before: old, ..stale.clone() };
        assert_eq!(classify(ValueFormat::Text, &changing), Outcome::Changing);
        let refilled = Comparand { cached: Some(item(2, "1")), ..stale.clone() };
        assert_eq!(confirm(ValueFormat::Text, &stale, &refilled), Outcome::Changing);
        let later = seen(row(&[("n", Some("3"))]), Some("1"));
        assert_eq!(confirm(ValueFormat::Text, &stale, &later), Outcome::Changing);
        assert_eq!(confirm(ValueFormat::Text, &stale, &seen(new, None)), Outcome::Missing);
    }

    #[test]
    fn beside_a_replica_that_lags_nothing_is_wrong() {
        let (old, new) = (row(&[("name", Some("ada"))]), row(&[("name", Some("Ada"))]));
        let from_master = seen(old.clone(), Some("Ada"));
        assert_eq!(classify(ValueFormat::Text, &from_master), Outcome::Stale, "as far as the replica knows");
        assert_eq!(confirm_by_master(Outcome::Stale, &from_master, &new), Outcome::Behind);
        assert_eq!(confirm_by_master(Outcome::Stale, &from_master, &old), Outcome::Stale);
        // A row that the replica does not have yet, and one that it still has.
        assert_eq!(confirm_by_master(Outcome::Orphaned, &seen(None, Some("Ada")), &new), Outcome::Behind);
        assert_eq!(confirm_by_master(Outcome::Orphaned, &seen(None, Some("Ada")), &None), Outcome::Orphaned);
        assert_eq!(confirm_by_master(Outcome::Fresh, &seen(old, Some("ada")), &None), Outcome::Fresh);
    }

    /// A key of which the row changes at some times; each change removes the value at most `delay` later, or never.
    #[derive(Clone, Debug)]
    struct World {
        /// When the row got the versions 1, 2, ...
        changes: Vec<u64>,
        delay: u64,
        is_lost: bool,
    }

    impl World {
        fn version_at(&self, now: u64) -> usize {
            self.changes.iter().filter(|&&at| at <= now).count()
        }

        /// The item: filled at once after each delete, with the row of that time.
        fn item_at(&self, now: u64) -> (u64, usize) {
            let deletes = self.changes.iter().map(|at| at + self.delay).filter(|&at| at <= now && !self.is_lost);
            deletes.max().map_or((0, 0), |at| (at, self.version_at(at)))
        }

        fn observe(&self, times: [u64; 3]) -> Comparand {
            let row_at = |now: u64| row(&[("version", Some(&self.version_at(now).to_string()))]);
            let (cas, version) = self.item_at(times[1]);
            let cached = Some(item(cas, &version.to_string()));
            Comparand { before: row_at(times[0]), cached, after: row_at(times[2]) }
        }
    }

    proptest! {
        #[test]
        fn a_value_that_is_wrong_for_less_than_the_pause_is_never_reported(
            mut changes in prop::collection::vec(0..20_000_u64, 0..30),
            delay in 0..999_u64,
            is_lost: bool,
            at in 0..20_000_u64,
            steps in [0..200_u64, 0..200, 0..200, 0..200],
        ) {
            const PAUSE: u64 = 1_000;
            changes.sort_unstable();
            let world = World { changes, delay, is_lost };
            let times = [at, at + steps[0], at + steps[0] + steps[1]];
            let again = times[2] + PAUSE;
            let first = world.observe(times);
            let second = world.observe([again, again + steps[2], again + steps[2] + steps[3]]);
            if classify(ValueFormat::Text, &first).is_wrong() {
                let is_wrong = confirm(ValueFormat::Text, &first, &second).is_wrong();
                prop_assert!(is_lost || !is_wrong, "every delete arrives");
                let is_quiet = world.version_at(times[0]) == world.version_at(again + steps[2] + steps[3]);
                prop_assert_eq!(is_wrong, is_lost && is_quiet, "a lost delete is found once the row stays");
            }
        }
    }
}
