//! The optional fields of a table map (`binlog_row_metadata`): signs, character sets, names, and the labels of enums
//! and sets.
//!
//! ```text
//! field           | type: 1 | length | value |
//! default charset | collation | column, collation | column, collation | ...     columns that have another one
//! column charset  | collation | collation | ...                                of each column
//! ```
//!
//! A character set is there as the number of one of its collations, 63 for bytes. Columns are counted among those that
//! have one: strings of either kind, blobs, MySQL's vectors, all columns of MariaDB that are stored as one of these,
//! and its geometries. Enums and sets have fields of their own.

use super::{
    cursor::{Cursor, Malformed},
    rows::LogColumn,
    settings::ServerKind,
};
use std::collections::BTreeMap;

/// The number of the collation of bytes.
pub const BINARY_COLLATION: u64 = 63;

/// The fields that are used; `None` if the log lacks them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableMetadata {
    /// For each column that is a number, in order, whether it has no sign.
    unsigned: Option<Vec<bool>>,
    /// Of each column with text or bytes.
    collations: Option<Collations>,
    /// Of each enum and set.
    label_collations: Option<Collations>,
    /// The names of all columns.
    pub names: Option<Vec<String>>,
    /// The labels of each enum, in its character set.
    enums: Option<Vec<Vec<Vec<u8>>>>,
    /// The labels of each set, in its character set.
    sets: Option<Vec<Vec<Vec<u8>>>>,
}

/// The numbers of the collations of columns.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Collations {
    /// Most have the first one; the others are there by their place.
    Default(u64, BTreeMap<usize, u64>),
    Each(Vec<u64>),
}

impl Collations {
    fn get(&self, at: usize) -> Option<u64> {
        match self {
            Collations::Default(default, others) => Some(others.get(&at).copied().unwrap_or(*default)),
            Collations::Each(all) => all.get(at).copied(),
        }
    }

    fn read_default(value: &[u8]) -> Result<Collations, Malformed> {
        let mut cursor = Cursor::new(value, COLLATION);
        let (default, mut others) = (cursor.length()? as u64, BTreeMap::new());
        while !cursor.rest().is_empty() {
            others.insert(cursor.length()?, cursor.length()? as u64);
        }
        Ok(Collations::Default(default, others))
    }

    fn read_each(value: &[u8]) -> Result<Collations, Malformed> {
        let (mut cursor, mut all) = (Cursor::new(value, COLLATION), Vec::new());
        while !cursor.rest().is_empty() {
            all.push(cursor.length()? as u64);
        }
        Ok(Collations::Each(all))
    }
}

const COLLATION: &str = "the character set of a column";

const SIGNEDNESS: u8 = 1;
const DEFAULT_CHARSET: u8 = 2;
const COLUMN_CHARSET: u8 = 3;
const COLUMN_NAME: u8 = 4;
const SET_LABELS: u8 = 5;
const ENUM_LABELS: u8 = 6;
const LABELS_DEFAULT_CHARSET: u8 = 10;
const LABELS_COLUMN_CHARSET: u8 = 11;

const ENUM: u8 = 247;
const SET: u8 = 248;

impl TableMetadata {
    /// Parses the fields.
    pub fn read(fields: &[u8]) -> Result<TableMetadata, Malformed> {
        let mut metadata = TableMetadata::default();
        let mut cursor = Cursor::new(fields, "the metadata of a table");
        while !cursor.rest().is_empty() {
            let kind = cursor.u8()?;
            let value = cursor.bytes()?;
            match kind {
                SIGNEDNESS => {
                    // The first column is the highest bit.
                    let bits = value.iter().flat_map(|byte| (0..8).map(move |bit| byte & 0x80 >> bit != 0));
                    metadata.unsigned = Some(bits.collect());
                }
                DEFAULT_CHARSET => metadata.collations = Some(Collations::read_default(value)?),
                COLUMN_CHARSET => metadata.collations = Some(Collations::read_each(value)?),
                LABELS_DEFAULT_CHARSET => metadata.label_collations = Some(Collations::read_default(value)?),
                LABELS_COLUMN_CHARSET => metadata.label_collations = Some(Collations::read_each(value)?),
                COLUMN_NAME => metadata.names = Some(read_texts(Cursor::new(value, "the names of columns"))?),
                SET_LABELS => metadata.sets = Some(read_label_lists(value)?),
                ENUM_LABELS => metadata.enums = Some(read_label_lists(value)?),
                _ => {}
            }
        }
        Ok(metadata)
    }

    /// Whether column `at` has no sign; `None` if the log does not say.
    pub fn is_unsigned(&self, columns: &[LogColumn], at: usize) -> Option<bool> {
        let has_sign = |column: &&LogColumn| is_number(column.kind);
        self.unsigned.as_ref()?.get(columns[..at].iter().filter(has_sign).count()).copied()
    }

    /// The number of the collation of column `at` in the log of a server of this kind; `None` if the log does not say.
    pub fn collation(&self, columns: &[LogColumn], at: usize, server: ServerKind) -> Option<u64> {
        let is_label = |column: &LogColumn| matches!(real(column), ENUM | SET);
        let has_collation = |column: &LogColumn| match column.kind {
            // VARCHAR, CHAR and their likes, blobs, those that are compressed, vectors.
            15 | 253 | 254 | 249..=252 | 140 | 141 | 242 => !is_label(column),
            255 => server == ServerKind::Mariadb,
            _ => false,
        };
        let place = |counts: &dyn Fn(&LogColumn) -> bool| columns[..at].iter().filter(|column| counts(column)).count();
        match &columns[at] {
            column if is_label(column) => self.label_collations.as_ref()?.get(place(&is_label)),
            column if has_collation(column) => self.collations.as_ref()?.get(place(&has_collation)),
            _ => None,
        }
    }

    /// The labels of column `at`, an enum or a set; `None` if the log does not have them.
    pub fn labels(&self, columns: &[LogColumn], at: usize) -> Option<Vec<Vec<u8>>> {
        let kind = real(&columns[at]);
        let lists = match kind {
            ENUM => self.enums.as_ref()?,
            SET => self.sets.as_ref()?,
            _ => return None,
        };
        lists.get(columns[..at].iter().filter(|column| real(column) == kind).count()).cloned()
    }
}

/// The type of a column, also of an enum or a set that the log has as a string.
fn real(column: &LogColumn) -> u8 {
    if column.kind == 254 && matches!(column.metadata[0], ENUM | SET) { column.metadata[0] } else { column.kind }
}

/// The types that have a bit among the signs: integers, floats, YEAR, decimals.
fn is_number(kind: u8) -> bool {
    matches!(kind, 1..=5 | 8 | 9 | 13 | 246)
}

fn read_texts(mut cursor: Cursor<'_>) -> Result<Vec<String>, Malformed> {
    let mut texts = Vec::new();
    while !cursor.rest().is_empty() {
        texts.push(String::from_utf8_lossy(cursor.bytes()?).into_owned());
    }
    Ok(texts)
}

fn read_label_lists(value: &[u8]) -> Result<Vec<Vec<Vec<u8>>>, Malformed> {
    let mut cursor = Cursor::new(value, "the labels of a column");
    let mut lists = Vec::new();
    while !cursor.rest().is_empty() {
        let mut labels = Vec::new();
        for _ in 0..cursor.length()? {
            labels.push(cursor.bytes()?.to_vec());
        }
        lists.push(labels);
    }
    Ok(lists)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_parsed() {
        let columns =
            [3, 15, 1, 254, 254].map(|kind| LogColumn { kind, metadata: if kind == 254 { [247, 1] } else { [0, 0] } });
        let fields = b"\x01\x01\x40\x04\x09\x01a\x01b\x01c\x02de\x06\x08\x02\x01x\x01y\x01\x01z\x63\x01\x00";
        let metadata = TableMetadata::read(fields).expect("valid");
        assert_eq!(metadata.names, Some(["a", "b", "c", "de"].map(String::from).to_vec()));
        assert_eq!(metadata.is_unsigned(&columns, 0), Some(false));
        assert_eq!(metadata.is_unsigned(&columns, 2), Some(true));
        assert_eq!(metadata.labels(&columns, 3), Some(vec![b"x".to_vec(), b"y".to_vec()]));
        assert_eq!(metadata.labels(&columns, 4), Some(vec![b"z".to_vec()]));
        assert_eq!(metadata.labels(&columns, 0), None);
        assert_eq!(metadata.collation(&columns, 0, ServerKind::Mysql), None, "the log does not say");
        assert_eq!(TableMetadata::read(b""), Ok(TableMetadata::default()));
        assert!(TableMetadata::read(b"\x04\x09\x01").is_err());
    }

    #[test]
    fn collations_are_those_of_the_columns_that_have_one() {
        // INT, VARCHAR, GEOMETRY, ENUM, BLOB, JSON, CHAR.
        let columns = [3, 15, 255, 254, 252, 245, 254]
            .map(|kind| LogColumn { kind, metadata: if kind == 254 { [254, 1] } else { [0, 0] } });
        let mut columns = columns.to_vec();
        columns[3].metadata = [247, 1];
        let all = |fields: &[u8], server| {
            let metadata = TableMetadata::read(fields).expect("valid");
            (0..columns.len()).map(|at| metadata.collation(&columns, at, server)).collect::<Vec<_>>()
        };
        let mysql = all(b"\x03\x03\x08\x3f\x2d\x0b\x01\x09", ServerKind::Mysql);
        assert_eq!(mysql, [None, Some(8), None, Some(9), Some(63), None, Some(45)]);
        let mariadb = all(b"\x02\x07\x3f\x00\x08\x03\xfc\x00\x09\x0a\x01\x09", ServerKind::Mariadb);
        assert_eq!(mariadb, [None, Some(8), Some(63), Some(9), Some(63), None, Some(0x900)]);
        for truncated in [&b"\x02\x02\x3f\x00"[..], b"\x03\x01\xfc", b"\x0a\x00", b"\x0b\x01\xfe"] {
            assert!(TableMetadata::read(truncated).is_err(), "{truncated:?}");
        }
    }
}
