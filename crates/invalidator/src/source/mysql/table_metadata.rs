//! The optional fields of a table map (`binlog_row_metadata`): signs, names, and the labels of enums and sets.
//!
//! ```text
//! field   | type: 1 | length | value |
//! ```
//!
//! The character sets that the log may have are not used: the catalogue's are, by the column's name.

use super::{
    cursor::{Cursor, Malformed},
    rows::LogColumn,
};

/// The fields that are used; `None` if the log lacks them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableMetadata {
    /// For each column that is a number, in order, whether it has no sign.
    unsigned: Option<Vec<bool>>,
    /// The names of all columns.
    pub names: Option<Vec<String>>,
    /// The labels of each enum, in its character set.
    enums: Option<Vec<Vec<Vec<u8>>>>,
    /// The labels of each set, in its character set.
    sets: Option<Vec<Vec<Vec<u8>>>>,
}

const SIGNEDNESS: u8 = 1;
const COLUMN_NAME: u8 = 4;
const SET_LABELS: u8 = 5;
const ENUM_LABELS: u8 = 6;

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

    /// The labels of column `at`, an enum or a set; `None` if the log does not have them.
    pub fn labels(&self, columns: &[LogColumn], at: usize) -> Option<Vec<Vec<u8>>> {
        const ENUM: u8 = 247;
        const SET: u8 = 248;
        let real = |column: &LogColumn| if column.kind == 254 { column.metadata[0] } else { column.kind };
        let kind = real(&columns[at]);
        let lists = match kind {
            ENUM => self.enums.as_ref()?,
            SET => self.sets.as_ref()?,
            _ => return None,
        };
        lists.get(columns[..at].iter().filter(|column| real(column) == kind).count()).cloned()
    }
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
        assert_eq!(TableMetadata::read(b""), Ok(TableMetadata::default()));
        assert!(TableMetadata::read(b"\x04\x09\x01").is_err());
    }
}
