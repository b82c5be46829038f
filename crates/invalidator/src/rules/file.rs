//! The rule file.
//!
//! ```toml
//! [[rule]]
//! table = "app.users"
//! keys = ["user:{id}", "user_by_email:{email}"]
//! ignore_columns = ["last_seen_at"]    # an UPDATE of these columns alone deletes nothing; default none
//! otherwise = "flush-pools"            # what to do with what cannot be expressed as keys; default "count"
//! ```
//!
//! A file is used as a whole or not at all: an error names its line, column and reason.

use super::template::Template;
use crate::keys::Flush;
use serde::Deserialize;
use std::{collections::BTreeMap, fmt, ops::Range, sync::Arc};
use toml::Spanned;

/// The most rules of a file.
const RULES_MAX: usize = 1_000;
/// The most keys of a rule.
const TEMPLATES_MAX: usize = 64;

/// The rules of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// By schema, then by table.
    by_table: BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Arc<Rule>>>,
    /// By table, the line of its rule in the file, from 1.
    lines: BTreeMap<TableName, usize>,
}

/// A table and the keys that its rows make stale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The table.
    pub table: TableName,
    /// Its keys.
    pub templates: Vec<Template>,
    /// Columns whose change alone makes no key stale.
    pub ignore_columns: Vec<String>,
    /// The reaction to changes that cannot be expressed as keys.
    pub otherwise: Otherwise,
}

/// A table's name with its schema (MySQL: its database).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableName {
    /// The schema.
    pub schema: String,
    /// The name in the schema.
    pub name: String,
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

/// The reaction to a change that cannot be expressed as keys. It is counted and logged in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Otherwise {
    /// Nothing more.
    #[default]
    Count,
    /// Flush the servers that may hold keys of the rule.
    FlushPools,
    /// Flush the whole cluster.
    FlushCluster,
}

impl Otherwise {
    const WORDS: [(&'static str, Otherwise); 3] = [
        ("count", Otherwise::Count),
        ("flush-pools", Otherwise::FlushPools),
        ("flush-cluster", Otherwise::FlushCluster),
    ];

    fn parse(text: &Spanned<String>) -> Result<Otherwise, ErrorAt> {
        let found = Otherwise::WORDS.iter().find(|(word, _)| word == text.get_ref());
        found.map(|(_, otherwise)| *otherwise).ok_or_else(|| {
            let words = Otherwise::WORDS.map(|(word, _)| format!("{word:?}")).join(", ");
            (text.span(), format!("otherwise is {:?}; expected one of {words}", text.get_ref()))
        })
    }
}

/// Why a rule file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleFileError {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// The reason.
    pub why: String,
}

impl std::error::Error for RuleFileError {}

impl fmt::Display for RuleFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.why)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    #[serde(default, rename = "rule")]
    rules: Vec<RuleText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    table: Spanned<String>,
    keys: Spanned<Vec<Spanned<String>>>,
    #[serde(default)]
    ignore_columns: Vec<Spanned<String>>,
    otherwise: Option<Spanned<String>>,
}

/// A reason, and where in the file.
type ErrorAt = (Range<usize>, String);

impl Rules {
    /// Parses a rule file.
    ///
    /// ```
    /// use lookaside_invalidator::rules::Rules;
    /// let rules = Rules::parse("[[rule]]\ntable = 'app.users'\nkeys = ['user:{id}']").unwrap();
    /// assert!(rules.rule(b"app", b"users").is_some());
    /// let error = Rules::parse("[[rule]]\ntable = 'app.users'\nkeys = ['user:{id']").unwrap_err();
    /// assert_eq!((error.line, error.column), (3, 9));
    /// ```
    pub fn parse(text: &str) -> Result<Rules, RuleFileError> {
        let parsed = toml::from_str::<FileText>(text)
            .map_err(|error| (error.span().unwrap_or_default(), error.message().to_owned()));
        let line_of = |at: usize| text[..text.floor_char_boundary(at)].matches('\n').count() + 1;
        parsed.and_then(|file| Rules::build(file, line_of)).map_err(|(span, why)| {
            let before = &text[..text.floor_char_boundary(span.start)];
            let line_start = before.rfind('\n').map_or(0, |at| at + 1);
            RuleFileError { line: line_of(span.start), column: before[line_start..].chars().count() + 1, why }
        })
    }

    fn build(file: FileText, line_of: impl Fn(usize) -> usize) -> Result<Rules, ErrorAt> {
        if file.rules.is_empty() {
            return Err((0..0, "the file has no [[rule]]; to use no rules, start without --rules".into()));
        }
        let mut rules = Rules::default();
        for (index, text) in file.rules.into_iter().enumerate() {
            let span = text.table.span();
            if index == RULES_MAX {
                return Err((span, format!("there are over {RULES_MAX} rules")));
            }
            let rule = Rule::build(text)?;
            let tables = rules.by_table.entry(rule.table.schema.clone().into_bytes()).or_default();
            if tables.contains_key(rule.table.name.as_bytes()) {
                return Err((span, format!("{} has a rule already; put all its keys into one rule", rule.table)));
            }
            rules.lines.insert(rule.table.clone(), line_of(span.start));
            tables.insert(rule.table.name.clone().into_bytes(), Arc::new(rule));
        }
        Ok(rules)
    }

    /// The rule of a table; `None` if changes of it name no keys.
    pub fn rule(&self, schema: &[u8], table: &[u8]) -> Option<&Arc<Rule>> {
        self.by_table.get(schema)?.get(table)
    }

    /// All rules.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.by_table.values().flat_map(BTreeMap::values)
    }

    /// The line of the rule of `table` in the file, from 1; `None` if it has none.
    pub fn line(&self, table: &TableName) -> Option<usize> {
        self.lines.get(table).copied()
    }

    /// Tells rules apart, in one version of the program; empty if there are none.
    pub fn digest(&self) -> String {
        match self.is_empty() {
            true => String::new(),
            // Without the lines.
            false => format!("{:08x}", crc32fast::hash(format!("{:?}", self.by_table).as_bytes())),
        }
    }

    /// Whether there are none, as without a rule file.
    pub fn is_empty(&self) -> bool {
        self.by_table.is_empty()
    }
}

impl Rule {
    /// Whether a key has this column.
    pub fn uses_column(&self, name: &str) -> bool {
        self.templates.iter().flat_map(Template::columns).any(|column| column.eq_ignore_ascii_case(name))
    }

    fn build(text: RuleText) -> Result<Rule, ErrorAt> {
        let table = table_name(&text.table)?;
        let keys_span = text.keys.span();
        let keys = text.keys.into_inner();
        if keys.is_empty() || keys.len() > TEMPLATES_MAX {
            return Err((keys_span, format!("a rule has 1 to {TEMPLATES_MAX} keys")));
        }
        let mut templates = Vec::new();
        for key in keys {
            templates.push(Template::parse(key.get_ref()).map_err(|why| (key.span(), why))?);
        }
        let is_used =
            |name: &str| templates.iter().flat_map(Template::columns).any(|column| column.eq_ignore_ascii_case(name));
        if let Some(column) = text.ignore_columns.iter().find(|column| is_used(column.get_ref())) {
            return Err((
                column.span(),
                format!("column {} is ignored, but a key of the rule has it", column.get_ref()),
            ));
        }
        let otherwise = text.otherwise.as_ref().map(Otherwise::parse).transpose()?.unwrap_or_default();
        let ignore_columns = text.ignore_columns.into_iter().map(Spanned::into_inner).collect();
        Ok(Rule { table, templates, ignore_columns, otherwise })
    }
}

impl Rule {
    /// The flushes in place of keys that cannot be expressed; none if these are only counted.
    pub fn flushes(&self) -> Vec<Flush<'_>> {
        match self.otherwise {
            Otherwise::Count => Vec::new(),
            Otherwise::FlushCluster => vec![Flush::Cluster],
            Otherwise::FlushPools => {
                let mut starts: Vec<&[u8]> = self.templates.iter().filter_map(Template::start).collect();
                // In order: what begins with another one, which flushes it too, comes after that.
                starts.sort_unstable();
                starts.dedup_by(|start, before| start.starts_with(before));
                starts.into_iter().map(Flush::of_prefix).collect()
            }
        }
    }
}

fn table_name(text: &Spanned<String>) -> Result<TableName, ErrorAt> {
    match text.get_ref().split_once('.') {
        Some((schema, name)) if !schema.is_empty() && !name.is_empty() => {
            Ok(TableName { schema: schema.into(), name: name.into() })
        }
        _ => Err((text.span(), format!("the table {:?} must be SCHEMA.TABLE, such as \"app.users\"", text.get_ref()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "[[rule]]\ntable = \"app.users\"\nkeys = [\"user:{id}\"]\n";

    #[test]
    fn a_rule_file_is_parsed() {
        let text = format!("# users\n{USERS}ignore_columns = ['seen']\notherwise = 'flush-cluster'\n");
        let rules = Rules::parse(&text).expect("valid");
        let rule = rules.rule(b"app", b"users").expect("the table has a rule");
        assert_eq!(rule.table.to_string(), "app.users");
        assert_eq!((rule.templates.len(), rule.otherwise), (1, Otherwise::FlushCluster));
        assert_eq!(rule.ignore_columns, ["seen"]);
        assert!(rules.rule(b"app", b"Users").is_none() && rules.rule(b"users", b"app").is_none());
        assert_eq!(rules.iter().count(), 1);
        let plain = Rules::parse(USERS).expect("valid");
        assert_eq!((plain.digest().len(), Rules::default().digest()), (8, String::new()));
        assert_eq!(plain.digest(), Rules::parse(&format!("# users\n{USERS}")).expect("valid").digest());
        assert_ne!(plain.digest(), rules.digest());
        assert_eq!((plain.line(&rule.table), rules.line(&rule.table)), (Some(2), Some(3)));
    }

    #[test]
    fn an_error_names_line_column_and_reason() {
        for (text, line, column, reason) in [
            ("", 1, 1, "no [[rule]]"),
            ("[[rule]\n", 1, 8, "unclosed"),
            ("[[rule]]\nkeys = ['a']\n", 1, 1, "missing field `table`"),
            ("[[rule]]\ntable = 'app.users'\nkeys = ['a', 'b c']", 3, 14, "space"),
            ("[[rule]]\ntable = 'users'\nkeys = ['a']", 2, 9, "SCHEMA.TABLE"),
            ("[[rule]]\ntable = 'app.users'\nkeys = []", 3, 8, "1 to 64 keys"),
            ("[[rule]]\ntable = 'app.users'\nkeys = ['a']\notherwise = 'flush'", 4, 13, "flush-cluster"),
            ("[[rule]]\ntable = 'app.users'\nkeys = ['ä{id}']\nignore_columns = ['ID']", 4, 19, "column ID is ignored"),
            ("[[rule]]\ntable = 'app.users'\nkey = ['a']", 3, 1, "unknown field `key`"),
            ("[[rule]]\ntable = 'app.users'\nkeys = ['a']\notherwise = 'flush-pool:main'", 4, 13, "\"flush-pools\""),
            (&format!("{USERS}{USERS}"), 5, 9, "has a rule already"),
        ] {
            let error = Rules::parse(text).expect_err(text);
            assert_eq!((error.line, error.column), (line, column), "{text}: {error}");
            assert!(error.why.contains(reason), "{text}: {error}");
        }
    }
    #[test]
    fn a_rule_flushes_the_pools_of_the_prefixes_that_its_keys_have() {
        let flushes = |keys: &str| {
            let text = format!("[[rule]]\ntable = 'app.users'\nkeys = {keys}\notherwise = 'flush-pools'");
            let rules = Rules::parse(&text).expect("valid");
            let rule = rules.rule(b"app", b"users").expect("the table has a rule");
            rule.flushes().into_iter().map(|flush| String::from_utf8(flush.to_key()).expect("text")).collect::<Vec<_>>()
        };
        assert_eq!(
            flushes("['user:{id}', 'list', 'email:{email}', 'user:x:{id}', 'user:{email}']"),
            ["\0flush-prefix:email:", "\0flush-prefix:user:"],
            "a key without columns is always known, and a longer prefix adds nothing"
        );
        assert_eq!(flushes("['user:{id}', '{id}:user']"), ["\0flush-cluster"], "its keys may begin with anything");
        assert_eq!(flushes("['list']"), Vec::<String>::new());
    }
}
