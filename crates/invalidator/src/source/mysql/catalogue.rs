//! The columns of watched tables as information_schema shows them: it knows what the log of a server with its default
//! settings lacks (names, signedness, character sets, labels), and what no log has (that sixteen bytes are a UUID).
//!
//! It shows the present, and the log the past. [`Declared::fits`] compares both, column by column.

use super::{
    charset::Charset,
    connection::{MysqlConnection, Row, text},
    table_metadata::BINARY_COLLATION,
};
use crate::{SourceError, rules::Rules, rules::TableName};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// The declared columns of tables. A table that is missing does not exist, or the account has no privilege on it.
pub type Catalogue = BTreeMap<TableName, Vec<Declared>>;

/// A column's declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    pub name: String,
    /// As in DATA_TYPE: `varchar`, without length and sign.
    pub data_type: String,
    /// As in COLUMN_TYPE: `int(10) unsigned`, `enum('a','b')`.
    pub column_type: String,
    /// The name of the character set; `None` unless it is text.
    pub charset: Option<String>,
    /// The numbers of the collations that values of it have in the log; empty if they are not known.
    pub collations: Arc<BTreeSet<u64>>,
    /// The longest value in bytes; 0 unless it is text or bytes.
    pub octets: u64,
    pub precision: u64,
    pub scale: u64,
    /// Whether it is computed when it is read, and so is not in the log.
    pub is_virtual: bool,
    /// Whether it belongs to the primary key.
    pub is_primary: bool,
}

/// As [`Declared::read`] expects them.
const SELECT_COLUMNS: &str = "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, \
     CHARACTER_OCTET_LENGTH, NUMERIC_PRECISION, NUMERIC_SCALE, EXTRA, COLUMN_KEY FROM information_schema.COLUMNS";

/// Reads the columns of all tables of `rules`.
pub async fn load(connection: &mut MysqlConnection, rules: &Rules) -> Result<Catalogue, SourceError> {
    let mut catalogue = Catalogue::new();
    if rules.is_empty() {
        return Ok(catalogue);
    }
    let tables: Vec<String> = rules
        .iter()
        .map(|rule| {
            format!("(TABLE_SCHEMA = {} AND TABLE_NAME = {})", quote(&rule.table.schema), quote(&rule.table.name))
        })
        .collect();
    let sql =
        format!("{SELECT_COLUMNS} WHERE {} ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION", tables.join(" OR "));
    let rows = connection.query(&sql).await?;
    let charsets = load_charsets(connection).await?;
    for row in rows {
        let mut declared = Declared::read(&row);
        let charset = declared.charset.as_deref().or_else(|| declared.holds_bytes().then_some(BYTES));
        declared.collations = charset.and_then(|charset| charsets.get(charset)).cloned().unwrap_or_default();
        catalogue.entry(table_of(&row)).or_default().push(declared);
    }
    Ok(catalogue)
}

/// The name of the character set of bytes.
const BYTES: &str = "binary";

/// How long a query of the collations may take.
const COLLATIONS_WAIT_MAX: Duration = Duration::from_secs(10);

/// The numbers of the collations of each character set.
async fn load_charsets(connection: &mut MysqlConnection) -> Result<BTreeMap<String, Arc<BTreeSet<u64>>>, SourceError> {
    // MariaDB from 10.10 on has collations of several character sets, and their numbers here alone.
    let by_charset = "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY";
    let rows = match connection.try_query(by_charset, COLLATIONS_WAIT_MAX).await? {
        Ok(rows) => rows,
        // Others have no numbers there.
        Err(_) => connection.query("SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATIONS").await?,
    };
    let mut charsets = BTreeMap::<String, BTreeSet<u64>>::new();
    for row in rows {
        let number = text(&row, 0).and_then(|number| number.parse().ok());
        if let (Some(number), Some(charset)) = (number, text(&row, 1)) {
            charsets.entry(charset).or_default().insert(number);
        }
    }
    charsets.entry(BYTES.into()).or_default().insert(BINARY_COLLATION);
    Ok(charsets.into_iter().map(|(charset, numbers)| (charset, Arc::new(numbers))).collect())
}

/// Reads the first column of each table with one of `names`, in any schema.
pub async fn load_first_columns(
    connection: &mut MysqlConnection,
    names: &BTreeSet<String>,
) -> Result<Vec<(TableName, Declared)>, SourceError> {
    let mut columns = Vec::new();
    // Each by itself: with several MariaDB would open all tables.
    for name in names {
        let sql = format!("{SELECT_COLUMNS} WHERE TABLE_NAME = {} AND ORDINAL_POSITION = 1", quote(name));
        let rows = connection.query(&sql).await?;
        columns.extend(rows.iter().map(|row| (table_of(row), Declared::read(row))));
    }
    Ok(columns)
}

fn table_of(row: &Row) -> TableName {
    TableName { schema: text(row, 0).unwrap_or_default(), name: text(row, 1).unwrap_or_default() }
}

/// A string literal.
pub fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

impl Declared {
    fn read(row: &Row) -> Declared {
        let number = |at| text(row, at).and_then(|text| text.parse().ok()).unwrap_or(0);
        Declared {
            name: text(row, 2).unwrap_or_default(),
            data_type: text(row, 3).unwrap_or_default().to_ascii_lowercase(),
            column_type: text(row, 4).unwrap_or_default(),
            charset: text(row, 5),
            collations: Arc::default(),
            octets: number(6),
            precision: number(7),
            scale: number(8),
            is_virtual: text(row, 9).is_some_and(|extra| extra.to_ascii_uppercase().contains("VIRTUAL")),
            is_primary: text(row, 10).is_some_and(|key| key == "PRI"),
        }
    }

    /// Whether it is an integer without a sign.
    pub fn is_unsigned(&self) -> bool {
        self.column_type.to_ascii_lowercase().contains("unsigned")
    }

    /// Whether a log without blobs lacks it.
    pub fn is_blob(&self) -> bool {
        self.data_type.ends_with("blob") || self.data_type.ends_with("text")
    }

    /// The labels of an enum or set.
    pub fn labels(&self) -> Vec<String> {
        let inside = self.column_type.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')'));
        let mut labels = Vec::new();
        let mut rest = inside.map_or("", |(inside, _)| inside);
        while let Some(text) = rest.trim_start_matches([',', ' ']).strip_prefix('\'') {
            let (mut label, mut chars) = (String::new(), text.char_indices());
            rest = "";
            while let Some((at, char)) = chars.next() {
                if char == '\'' {
                    if !text[at + 1..].starts_with('\'') {
                        rest = &text[at + 1..];
                        break;
                    }
                    chars.next();
                }
                label.push(char);
            }
            labels.push(label);
        }
        labels
    }

    /// The character set of its text; `None` if it is not supported.
    pub fn charset(&self) -> Option<Charset> {
        Charset::from_name(self.charset.as_deref()?)
    }

    /// Whether it holds bytes.
    fn holds_bytes(&self) -> bool {
        self.data_type.ends_with("blob") || matches!(self.data_type.as_str(), "binary" | "varbinary")
    }

    /// Whether a table map's column with this collation can be this one, as far as is known.
    pub fn fits_collation(&self, logged: Option<u64>) -> bool {
        self.collations.is_empty() || logged.is_none_or(|logged| self.collations.contains(&logged))
    }

    /// Whether a table map's column of type `kind` with `metadata` can be this one.
    pub fn fits(&self, kind: u8, metadata: [u8; 2]) -> bool {
        let [low, high] = metadata;
        let length = u64::from(u16::from_le_bytes(metadata));
        // The byte of the type holds two bits of a long CHAR's length, inverted.
        let char_length = u64::from(high) | u64::from(!low & 0x30) << 4;
        match (self.data_type.as_str(), kind) {
            ("tinyint", 1) | ("smallint", 2) | ("mediumint", 9) | ("int", 3) | ("bigint", 8) => true,
            ("float", 4) | ("double", 5) | ("year", 13) | ("date", 10 | 14) | ("json", 245) => true,
            ("datetime", 12 | 18) | ("timestamp", 7 | 17) | ("time", 11 | 19) => true,
            ("decimal", 246) => (self.precision, self.scale) == (u64::from(low), u64::from(high)),
            ("bit", 16) => self.precision == u64::from(high) * 8 + u64::from(low),
            ("varchar" | "varbinary", 15 | 141) => self.octets == length,
            ("char" | "binary", 254) => low | 0x30 == 254 && self.octets == char_length,
            ("uuid" | "inet6", 254) => char_length == 16,
            ("inet4", 254) => char_length == 4,
            ("enum", 254 | 247) => low == 247 && high == if self.labels().len() > 255 { 2 } else { 1 },
            ("set", 254 | 248) => low == 248 && usize::from(high) == set_bytes(self.labels().len()),
            ("tinytext" | "tinyblob", 252 | 140) => low == 1,
            ("text" | "blob", 252 | 140) => low == 2,
            ("mediumtext" | "mediumblob", 252 | 140) => low == 3,
            ("longtext" | "longblob", 252 | 140) => low == 4,
            // Types that rules refuse need not fit.
            (_, 242 | 255) => true,
            _ => false,
        }
    }
}

fn set_bytes(labels: usize) -> usize {
    match labels.div_ceil(8) {
        bytes @ 0..=4 => bytes,
        _ => 8,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn declared(name: &str, data_type: &str, column_type: &str) -> Declared {
        Declared {
            name: name.into(),
            data_type: data_type.into(),
            column_type: column_type.into(),
            charset: Some("utf8mb4".into()),
            collations: Arc::default(),
            octets: 0,
            precision: 0,
            scale: 0,
            is_virtual: false,
            is_primary: false,
        }
    }

    #[test]
    fn labels_are_parsed() {
        let labels = |column_type| declared("c", "enum", column_type).labels();
        assert_eq!(labels("enum('a','it''s','b,c',')','')"), ["a", "it's", "b,c", ")", ""]);
        assert_eq!(labels("set('ä')"), ["ä"]);
        assert!(labels("int(11)").is_empty());
    }

    #[test]
    fn a_column_of_the_log_is_compared_with_the_declaration() {
        let varchar = Declared { octets: 400, ..declared("c", "varchar", "varchar(100)") };
        assert!(varchar.fits(15, 400_u16.to_le_bytes()) && !varchar.fits(15, 200_u16.to_le_bytes()));
        assert!(!varchar.fits(3, [0, 0]));
        let decimal = Declared { precision: 10, scale: 2, ..declared("c", "decimal", "decimal(10,2)") };
        assert!(decimal.fits(246, [10, 2]) && !decimal.fits(246, [10, 3]));
        let char_300 = Declared { octets: 300, ..declared("c", "binary", "binary(300)") };
        assert!(char_300.fits(254, [0xfe ^ 0x10, 44]), "long lengths use bits of the type");
        assert!(declared("c", "enum", "enum('a')").fits(254, [247, 1]));
        assert!(declared("c", "int", "int unsigned").is_unsigned());
    }
}
