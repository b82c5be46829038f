//! The file that says how values come from the database.
//!
//! ```toml
//! [[query]]
//! key = "user:{id}"
//! sql = "SELECT name, email FROM users WHERE id = {id}"
//! value = "json"                       # or "text", the default
//! flags = "clients"                    # the default, or "ignored"
//! list = "SELECT id FROM users"        # optional: the values of the placeholders of all keys
//! ```
//!
//! A placeholder of `sql` stands for a text, which is passed as a parameter or quoted.

use super::key_pattern::{KeyPattern, TemplatePart, split_placeholders};
use serde::Deserialize;

/// The most queries of a file.
const QUERIES_MAX: usize = 1_000;

/// How a value is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueFormat {
    /// The text of the only column.
    #[default]
    Text,
    /// JSON: an object with a field for each column, or the document in the only column. Further fields are ignored.
    Json,
}

/// What the flags of a value mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlagsMeaning {
    /// Format and compression, as the project's clients write them.
    #[default]
    Clients,
    /// Nothing: values are neither compressed nor encoded in another way, and their clients use flags for something
    /// else.
    Ignored,
}

/// Which query gives the values of some keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The keys.
    pub pattern: KeyPattern,
    /// Selects the row of one key.
    pub sql: SqlTemplate,
    /// How the value is encoded.
    pub format: ValueFormat,
    /// What its flags mean.
    pub flags: FlagsMeaning,
    /// Lists the values of the placeholders, in the order of the pattern; `None` if keys come from elsewhere.
    pub list: Option<String>,
}

/// SQL with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlTemplate(Vec<SqlPart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum SqlPart {
    Literal(String),
    /// The index of a placeholder in the pattern of the key.
    Value(usize),
}

impl SqlTemplate {
    fn parse(text: &str, pattern: &KeyPattern) -> Result<SqlTemplate, String> {
        let part = |part: TemplatePart<'_>| match part {
            TemplatePart::Literal(text) => Ok(SqlPart::Literal(text.to_owned())),
            TemplatePart::Placeholder(name) => pattern
                .placeholders()
                .position(|known| known == name)
                .map(SqlPart::Value)
                .ok_or_else(|| format!("the key {pattern} has no placeholder {{{name}}}, which its sql has")),
        };
        let parts = split_placeholders(text).map_err(|why| format!("the sql of {pattern} {why}"))?;
        parts.into_iter().map(part).collect::<Result<Vec<SqlPart>, String>>().map(SqlTemplate)
    }

    /// The SQL with `placeholder` in the place of each value, and the values in the order of these places.
    pub fn with_parameters<'a>(
        &self,
        values: &'a [String],
        placeholder: impl Fn(usize) -> String,
    ) -> (String, Vec<&'a str>) {
        let mut parameters = Vec::new();
        let sql = self.0.iter().map(|part| match part {
            SqlPart::Literal(text) => text.clone(),
            SqlPart::Value(index) => {
                parameters.push(values.get(*index).map_or("", String::as_str));
                placeholder(parameters.len())
            }
        });
        (sql.collect(), parameters)
    }

    /// The SQL with each value as a literal, which `quote` makes of it.
    pub fn with_literals(&self, values: &[String], quote: impl Fn(&str) -> String) -> String {
        let part = |part: &SqlPart| match part {
            SqlPart::Literal(text) => text.clone(),
            SqlPart::Value(index) => quote(values.get(*index).map_or("", String::as_str)),
        };
        self.0.iter().map(part).collect()
    }
}

/// The queries of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queries(Vec<Query>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    query: Vec<FileQuery>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileQuery {
    key: String,
    sql: String,
    #[serde(default)]
    value: ValueFormat,
    #[serde(default)]
    flags: FlagsMeaning,
    list: Option<String>,
}

impl Queries {
    /// Parses a file. The error says where it is wrong, and why.
    pub fn parse(text: &str) -> Result<Queries, String> {
        let file: File = toml::from_str(text).map_err(|why| why.to_string())?;
        if file.query.is_empty() || file.query.len() > QUERIES_MAX {
            return Err(format!("expected 1 to {QUERIES_MAX} tables [[query]]"));
        }
        let query = |query: FileQuery| {
            let pattern = KeyPattern::parse(&query.key)?;
            let sql = SqlTemplate::parse(&query.sql, &pattern)?;
            Ok(Query { pattern, sql, format: query.value, flags: query.flags, list: query.list })
        };
        file.query.into_iter().map(query).collect::<Result<_, String>>().map(Queries)
    }

    /// The queries, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Query> {
        self.0.iter()
    }

    /// The first query whose pattern `key` is of, and the values of the placeholders; `None` if there is none.
    pub fn find(&self, key: &[u8]) -> Option<(&Query, Vec<String>)> {
        self.0.iter().find_map(|query| Some((query, query.pattern.values_of(key)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [[query]]
        key = "cart:{shop}:{user}"
        sql = "SELECT body FROM carts WHERE user = {user} AND shop = {shop} AND {user} <> ''"
        value = "json"
        [[query]]
        key = "user:{id}"
        sql = "SELECT name FROM users WHERE id = {id}"
        list = "SELECT id FROM users"
    "#;

    #[test]
    fn placeholders_are_parameters_in_the_order_of_the_sql() {
        let queries = Queries::parse(FILE).expect("valid");
        let (query, values) = queries.find(b"cart:7:o'hara").expect("of the first");
        let (sql, parameters) = query.sql.with_parameters(&values, |number| format!("?{number}"));
        assert_eq!(sql, "SELECT body FROM carts WHERE user = ?1 AND shop = ?2 AND ?3 <> ''");
        assert_eq!(parameters, ["o'hara", "7", "o'hara"]);
        assert_eq!(query.format, ValueFormat::Json);
        let quote = |text: &str| format!("'{}'", text.replace('\'', "''"));
        assert!(query.sql.with_literals(&values, quote).contains("user = 'o''hara' AND shop = '7'"));
        let (query, _) = queries.find(b"user:1").expect("of the second");
        assert_eq!((query.format, query.list.as_deref()), (ValueFormat::Text, Some("SELECT id FROM users")));
        assert_eq!(query.flags, FlagsMeaning::Clients);
        assert_eq!(queries.find(b"list:users"), None);
    }

    #[test]
    fn bad_files_are_refused_with_the_reason() {
        for (file, reason) in [
            ("", "[[query]]"),
            ("[[query]]\nkey = 'a:{id}'", "sql"),
            ("[[query]]\nkey = 'a:{id}'\nsql = 'x {ip}'", "{ip}"),
            ("[[query]]\nkey = 'a'\nsql = 'x'", "no placeholder"),
            ("[[query]]\nkey = 'a:{id}'\nsql = 'x'\nvalue = 'xml'", "xml"),
            ("[[query]]\nkey = 'a:{id}'\nsql = 'x'\nflags = 'dalli'", "dalli"),
            ("[[query]]\nkey = 'a:{id}'\nsql = 'x'\ncolumn = 'y'", "column"),
        ] {
            let why = Queries::parse(file).expect_err(file);
            assert!(why.contains(reason), "{why}");
        }
    }
}
