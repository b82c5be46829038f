//! A rule bound to the columns of its table: its templates refer to columns by index. This is where a change becomes
//! keys.

use super::{
    change::{Column, Inexpressible, RowChange},
    file::Rule,
    template::{Template, TemplatePart},
    value::RowValue,
};
use lookaside_protocol::KEY_BYTES_MAX;

/// A rule that fits a table.
#[derive(Clone, Debug)]
pub struct BoundRule {
    templates: Vec<BoundTemplate>,
    /// For each column, whether a template has it.
    used: Vec<bool>,
    /// For each column, whether its change alone makes no key stale; empty if the rule ignores none.
    ignored: Vec<bool>,
}

type BoundTemplate = Vec<BoundPart>;

#[derive(Clone, Debug)]
enum BoundPart {
    Literal(Vec<u8>),
    Column(usize),
}

/// Why a rule does not fit a table: one reason for each column at fault, to be read after the table's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub Vec<String>);

/// The result of [`BoundRule::write_row_keys`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// How many keys were written, with repetitions.
    pub keys: u64,
    /// Why some could not be; `None` if all were, or if they hold a NULL.
    pub inexpressible: Option<Inexpressible>,
    /// Whether only columns changed that the rule ignores.
    pub is_ignored: bool,
}

impl BoundRule {
    /// Binds `rule` to a table with these columns. A name that differs only in the case of letters is accepted, as
    /// databases do, if no other has the right one.
    pub fn bind(rule: &Rule, columns: &[Column]) -> Result<BoundRule, Refused> {
        let mut reasons = Vec::new();
        let mut find = |name: &str| {
            let exact = columns.iter().position(|column| column.name == name);
            let found = exact.or_else(|| columns.iter().position(|column| column.name.eq_ignore_ascii_case(name)));
            if found.is_none() {
                reasons.push(format!("has no column {name}"));
            }
            found
        };
        let mut used = vec![false; columns.len()];
        let mut templates = Vec::new();
        for template in &rule.templates {
            templates.push(bind_template(template, |name| {
                let at = find(name)?;
                used[at] = true;
                Some(at)
            }));
        }
        let mut ignored = if rule.ignore_columns.is_empty() { Vec::new() } else { vec![false; columns.len()] };
        for name in &rule.ignore_columns {
            if let Some(at) = find(name) {
                ignored[at] = true;
            }
        }
        for (column, _) in columns.iter().zip(&used).filter(|(_, is_used)| **is_used) {
            if let Some(refusal) = &column.refusal {
                reasons.push(format!("has column {}, which no key can have: it is {refusal}", column.name));
            }
        }
        reasons.sort_unstable();
        reasons.dedup();
        match reasons.is_empty() {
            true => Ok(BoundRule { templates, used, ignored }),
            false => Err(Refused(reasons)),
        }
    }

    /// Whether a change's images need the value of column `at`. The others may be [`RowValue::NotInLog`].
    pub fn needs_column(&self, at: usize) -> bool {
        !self.ignored.is_empty() || self.used.get(at).is_some_and(|is_used| *is_used)
    }

    /// Calls `each` with every key of a change, with repetitions, and with texts that are no valid key. `scratch` is
    /// reused from call to call.
    pub fn write_row_keys(&self, change: RowChange<'_>, scratch: &mut Vec<u8>, each: &mut dyn FnMut(&[u8])) -> Written {
        let mut written = Written::default();
        match change {
            RowChange::Insert { after: row } | RowChange::Delete { before: row } => {
                self.write_image(row, None, scratch, each, &mut written);
            }
            RowChange::Update { before, after } => {
                if self.changes_ignored_columns_only(before, after) {
                    return Written { is_ignored: true, ..written };
                }
                self.write_image(before, None, scratch, each, &mut written);
                // A column that is not in the new image has not changed.
                self.write_image(after, Some(before), scratch, each, &mut written);
            }
        }
        written
    }

    fn write_image(
        &self,
        row: &[RowValue<'_>],
        unchanged: Option<&[RowValue<'_>]>,
        scratch: &mut Vec<u8>,
        each: &mut dyn FnMut(&[u8]),
        written: &mut Written,
    ) {
        for template in &self.templates {
            scratch.clear();
            match write_key(template, row, unchanged, scratch) {
                Ok(true) => {
                    each(scratch);
                    written.keys += 1;
                }
                Ok(false) => {}
                Err(why) => written.inexpressible = Some(why),
            }
        }
    }

    fn changes_ignored_columns_only(&self, before: &[RowValue<'_>], after: &[RowValue<'_>]) -> bool {
        let is_unchanged =
            |(before, after): (&RowValue<'_>, &RowValue<'_>)| *after == RowValue::NotInLog || before == after;
        !self.ignored.is_empty()
            && self
                .ignored
                .iter()
                .zip(before.iter().zip(after))
                .all(|(is_ignored, images)| *is_ignored || is_unchanged(images))
    }
}

/// Calls `each` with the keys of the templates without columns, which need neither rows nor the table's columns. The
/// other ones are inexpressible, because of `why`.
pub(super) fn write_constant_keys(rule: &Rule, why: Inexpressible, each: &mut dyn FnMut(&[u8])) -> Written {
    let mut written = Written::default();
    for template in &rule.templates {
        match template.parts.as_slice() {
            [TemplatePart::Literal(key)] => {
                each(key);
                written.keys += 1;
            }
            _ => written.inexpressible = Some(why),
        }
    }
    written
}

fn bind_template(template: &Template, mut find: impl FnMut(&str) -> Option<usize>) -> BoundTemplate {
    let bind = |part: &TemplatePart| match part {
        TemplatePart::Literal(text) => Some(BoundPart::Literal(text.clone())),
        TemplatePart::Column(name) => find(name).map(BoundPart::Column),
    };
    template.parts.iter().filter_map(bind).collect()
}

/// Writes one key; false if a column is NULL.
fn write_key(
    template: &BoundTemplate,
    row: &[RowValue<'_>],
    unchanged: Option<&[RowValue<'_>]>,
    out: &mut Vec<u8>,
) -> Result<bool, Inexpressible> {
    for part in template {
        match part {
            BoundPart::Literal(text) => out.extend_from_slice(text),
            BoundPart::Column(at) => {
                let value = match (row.get(*at), unchanged) {
                    (None | Some(RowValue::NotInLog), Some(unchanged)) => unchanged.get(*at),
                    (value, _) => value,
                };
                match value {
                    None | Some(RowValue::NotInLog) => return Err(Inexpressible::NotInLog),
                    Some(RowValue::Null) => return Ok(false),
                    // The key is too long for a server already; a long value is not copied.
                    Some(RowValue::Text(text)) if text.len() > KEY_BYTES_MAX => {
                        out.extend_from_slice(&text.as_bytes()[..=KEY_BYTES_MAX])
                    }
                    Some(RowValue::Bytes(bytes)) if bytes.len() > KEY_BYTES_MAX => {
                        out.extend_from_slice(&bytes[..=KEY_BYTES_MAX])
                    }
                    Some(value) => {
                        if !value.write_to(out) {
                            return Err(Inexpressible::Unwritable);
                        }
                    }
                }
            }
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::{super::change::TableChange, super::file::Rules, *};

    fn bound(rule: &str) -> BoundRule {
        let columns = ["id", "email", "seen"].map(Column::writable);
        bind(rule, &columns).expect("it fits")
    }

    fn bind(rule: &str, columns: &[Column]) -> Result<BoundRule, Refused> {
        let rules = Rules::parse(&format!("[[rule]]\ntable = 'app.users'\n{rule}")).expect("a valid file");
        BoundRule::bind(rules.rule(b"app", b"users").expect("it is there"), columns)
    }

    fn row<'a>(id: i128, email: &'a str, seen: i128) -> [RowValue<'a>; 3] {
        let email = if email == "-" { RowValue::Null } else { RowValue::Text(email.into()) };
        [RowValue::Integer(id), email, RowValue::Integer(seen)]
    }

    fn keys(rule: &BoundRule, change: RowChange<'_>) -> (Vec<String>, Option<Inexpressible>) {
        let mut keys = Vec::new();
        let mut push = |key: &[u8]| keys.push(String::from_utf8_lossy(key).into_owned());
        let written = rule.write_row_keys(change, &mut Vec::new(), &mut push);
        assert_eq!(written.keys, keys.len() as u64);
        keys.dedup();
        (keys, written.inexpressible)
    }

    const BOTH: &str = "keys = ['u:{id}', 'e:{email}']";

    #[test]
    fn both_images_of_an_update_give_keys() {
        let rule = bound(BOTH);
        let (before, after) = (row(1, "a", 0), row(1, "b", 0));
        assert_eq!(keys(&rule, RowChange::Insert { after: &after }), (vec!["u:1".into(), "e:b".into()], None));
        assert_eq!(keys(&rule, RowChange::Delete { before: &before }), (vec!["u:1".into(), "e:a".into()], None));
        let (found, why) = keys(&rule, RowChange::Update { before: &before, after: &after });
        assert_eq!((found, why), (["u:1", "e:a", "u:1", "e:b"].map(String::from).to_vec(), None));
    }

    #[test]
    fn null_gives_no_key_of_its_template() {
        let rule = bound(BOTH);
        assert_eq!(keys(&rule, RowChange::Insert { after: &row(1, "-", 0) }), (vec!["u:1".into()], None));
        let (before, after) = (row(1, "a", 0), row(1, "-", 0));
        let (found, why) = keys(&rule, RowChange::Update { before: &before, after: &after });
        assert_eq!((found, why), (["u:1", "e:a", "u:1"].map(String::from).to_vec(), None));
    }

    #[test]
    fn a_column_that_the_log_lacks_is_unchanged_or_unknown() {
        let rule = bound(BOTH);
        let whole = row(1, "a", 0);
        let email_unknown = [RowValue::Integer(1), RowValue::NotInLog, RowValue::NotInLog];
        let (found, why) = keys(&rule, RowChange::Update { before: &whole, after: &email_unknown });
        assert_eq!((found, why), (["u:1", "e:a", "u:1", "e:a"].map(String::from).to_vec(), None), "unchanged");
        // The new key is written, and the old one is known to be missing.
        let (found, why) = keys(&rule, RowChange::Update { before: &email_unknown, after: &whole });
        assert_eq!((found, why), (["u:1", "e:a"].map(String::from).to_vec(), Some(Inexpressible::NotInLog)).clone());
        assert_eq!(keys(&rule, RowChange::Delete { before: &email_unknown }).1, Some(Inexpressible::NotInLog));
    }

    #[test]
    fn values_that_cannot_be_written_are_reported() {
        let image = [RowValue::Integer(1), RowValue::Raw(b"infinity".as_slice().into()), RowValue::Null];
        let (found, why) = keys(&bound(BOTH), RowChange::Insert { after: &image });
        assert_eq!((found, why), (vec!["u:1".to_owned()], Some(Inexpressible::Unwritable)));
    }

    #[test]
    fn updates_of_ignored_columns_alone_delete_nothing() {
        let rule = bound("keys = ['u:{id}']\nignore_columns = ['seen']");
        let (before, after) = (row(1, "a", 0), row(1, "a", 9));
        assert!(keys(&rule, RowChange::Update { before: &before, after: &after }).0.is_empty());
        let renamed = row(1, "b", 9);
        assert_eq!(keys(&rule, RowChange::Update { before: &before, after: &renamed }).0, ["u:1"]);
        let minimal = [RowValue::NotInLog, RowValue::Text("b".into()), RowValue::NotInLog];
        let only_key = [RowValue::Integer(1), RowValue::NotInLog, RowValue::NotInLog];
        assert_eq!(keys(&rule, RowChange::Update { before: &only_key, after: &minimal }).0, ["u:1"], "it may differ");
        assert_eq!(keys(&rule, RowChange::Insert { after: &after }).0, ["u:1"]);
    }

    #[test]
    fn templates_without_columns_are_keys_of_every_change() {
        let constant = |keys: &str| {
            let rules = Rules::parse(&format!("[[rule]]\ntable = 'app.users'\n{keys}")).expect("a valid file");
            let rule = rules.rule(b"app", b"users").expect("it is there");
            let mut found = Vec::new();
            let truncated = Inexpressible::Table(TableChange::Truncate);
            let written = write_constant_keys(rule, truncated, &mut |key| found.push(key.to_vec()));
            (found, written.inexpressible == Some(truncated))
        };
        assert_eq!(constant("keys = ['list', 'u:{id}']"), (vec![b"list".to_vec()], true));
        assert_eq!(constant("keys = ['list']"), (vec![b"list".to_vec()], false), "all is expressed");
    }

    #[test]
    fn a_rule_that_does_not_fit_is_refused_with_every_reason() {
        let float = Column { name: "score".into(), refusal: Some("of type double".into()) };
        let columns = [Column::writable("ID"), float];
        let Refused(reasons) = bind("keys = ['{id}:{score}:{gone}']", &columns).expect_err("two reasons");
        assert_eq!(reasons, ["has column score, which no key can have: it is of type double", "has no column gone"]);
        assert!(bind("keys = ['{id}']\nignore_columns = ['gone']", &columns).is_err());
        assert!(bind("keys = ['{id}']\nignore_columns = ['score']", &columns).is_ok(), "ignored columns have any type");
        let twins = [Column::writable("Id"), Column::writable("id")];
        let rule = bind("keys = ['{id}']", &twins).expect("it fits");
        assert!(!rule.needs_column(0) && rule.needs_column(1), "the right case is preferred");
    }

    #[test]
    fn long_values_are_cut_above_the_longest_key() {
        let long = "k".repeat(1_000_000);
        let image = [RowValue::Integer(1), RowValue::Text(long.as_str().into()), RowValue::Null];
        let mut lengths = Vec::new();
        bound(BOTH)
            .write_row_keys(RowChange::Insert { after: &image }, &mut Vec::new(), &mut |key| lengths.push(key.len()));
        assert_eq!(lengths, [3, 253], "over the limit, so that it is refused");
    }
}
