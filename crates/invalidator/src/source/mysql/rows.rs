//! Table maps and rows: splits a rows event into the bytes of each column of each row.
//!
//! Serves the delete path, for the outbox table and for tables with a rule. The widths of all columns are needed to
//! find the next row. Not here: the meaning of the bytes (`column_type.rs`).
//!
//! ```text
//! table map  | table: 6 | flags: 2 | length, schema, 0 | length, name, 0 | columns | types | length, metadata |
//!            | nullable: bits | optional fields (`table_metadata.rs`) ...
//! rows       | table: 6 | flags: 2 | (version 2: length: 2, extra) | columns | present: bits |
//!            | (update: present in the new image: bits) | rows ...
//! row        | an image, or for an update the old and the new image |
//! image      | null: bits, one for each present column | values of the present columns that are not null |
//! ```
//!
//! Before the new image, a partial update (MySQL's PARTIAL_JSON) has options and, if they say so, one bit for each JSON
//! column. A JSON column then holds a difference instead of a document, with its length in front as well.

use super::cursor::{Cursor, Malformed};

/// The most columns of a table, for either kind of server.
const COLUMNS_MAX: usize = 4096;

/// MySQL's JSON.
const JSON: u8 = 245;

/// Flag: this is the last rows event of a statement.
pub const STATEMENT_END: u16 = 1;

/// The description of a table, which precedes its rows in the log.
#[derive(Clone, Debug)]
pub struct TableMap<'a> {
    /// The id by which rows refer to it.
    pub table_id: u64,
    /// Its schema.
    pub schema: &'a [u8],
    /// Its name, without the schema's.
    pub name: &'a [u8],
    rest: Cursor<'a>,
}

impl<'a> TableMap<'a> {
    /// Parses the body of a table map up to the name. Most tables are not watched.
    pub fn read(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(body, "a table map");
        let table_id = cursor.uint(6)?;
        cursor.read_slice(2)?;
        let schema_bytes = usize::from(cursor.u8()?);
        let schema = cursor.read_slice(schema_bytes)?;
        cursor.read_slice(1)?;
        let name_bytes = usize::from(cursor.u8()?);
        let name = cursor.read_slice(name_bytes)?;
        cursor.read_slice(1)?;
        Ok(TableMap { table_id, schema, name, rest: cursor })
    }

    /// What follows the name: equal bytes describe equal columns.
    pub fn description(&self) -> &'a [u8] {
        self.rest.rest()
    }

    /// Parses the columns.
    pub fn into_columns(self) -> Result<Columns, Malformed> {
        Ok(self.into_columns_and_fields()?.0)
    }

    /// Parses the columns; the result has the optional fields, too.
    pub fn into_columns_and_fields(mut self) -> Result<(Columns, &'a [u8]), Malformed> {
        let count = self.rest.length()?;
        if count > COLUMNS_MAX {
            return Err(Malformed("a count of columns"));
        }
        let kinds = self.rest.read_slice(count)?;
        let mut metadata = Cursor::new(self.rest.bytes()?, "the metadata of columns");
        let columns = kinds.iter().map(|&kind| LogColumn::read(kind, &mut metadata));
        let columns = Columns(columns.collect::<Result<_, _>>()?);
        self.rest.read_slice(count.div_ceil(8))?;
        Ok((columns, self.rest.rest()))
    }
}

/// The columns of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns(pub Vec<LogColumn>);

/// A column's type in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogColumn {
    /// The type's number.
    pub kind: u8,
    /// Lengths, precision, or the real type, depending on `kind`.
    pub metadata: [u8; 2],
}

/// The header of a rows event.
#[derive(Clone, Copy, Debug)]
pub struct RowsHeader {
    /// The id of the table.
    pub table_id: u64,
    /// [`STATEMENT_END`] among others.
    pub flags: u16,
}

/// Parses the header of a rows event. Returns a cursor to what follows it.
pub fn read_rows_header(body: &[u8]) -> Result<(RowsHeader, Cursor<'_>), Malformed> {
    let mut cursor = Cursor::new(body, "rows");
    let table_id = cursor.uint(6)?;
    let flags = cursor.u16()?;
    Ok((RowsHeader { table_id, flags }, cursor))
}

/// Which columns the rows of an event have.
#[derive(Clone, Copy, Debug)]
pub struct PresentColumns<'a> {
    bits: &'a [u8],
    count: usize,
}

impl<'a> PresentColumns<'a> {
    /// Parses which columns are present. `has_extra` means version 2 of the event.
    pub fn read(cursor: &mut Cursor<'a>, has_extra: bool) -> Result<Self, Malformed> {
        if has_extra {
            let extra_bytes = usize::from(cursor.u16()?);
            cursor.read_slice(extra_bytes.saturating_sub(2))?;
        }
        let count = cursor.length()?;
        if count > COLUMNS_MAX {
            return Err(Malformed("a count of columns"));
        }
        Ok(PresentColumns { bits: cursor.read_slice(count.div_ceil(8))?, count })
    }

    /// Parses which columns the new image of an update has. The old one's were parsed before.
    pub fn read_new(&self, cursor: &mut Cursor<'a>) -> Result<Self, Malformed> {
        Ok(PresentColumns { bits: cursor.read_slice(self.count.div_ceil(8))?, count: self.count })
    }
}

impl Columns {
    /// Whether the first column holds text or bytes.
    pub fn is_first_bytes(&self) -> bool {
        self.0.first().is_some_and(|column| column.length_bytes().is_some())
    }

    /// Calls `each` with the first column of each row; `None` if it is NULL or not present.
    pub fn for_each_first(
        &self,
        present: &PresentColumns<'_>,
        rows: &[u8],
        mut each: impl FnMut(Option<&[u8]>),
    ) -> Result<(), Malformed> {
        if present.count != self.0.len() {
            return Err(Malformed("rows that do not match their table map"));
        }
        let mut cursor = Cursor::new(rows, "a row");
        while !cursor.rest().is_empty() {
            let mut first = None;
            self.read_image(present, &mut cursor, |at, value| {
                if at == 0 {
                    first = value;
                }
            })?;
            each(first);
        }
        Ok(())
    }

    /// Reads one image of a row and calls `each` with the index and the bytes of each present column; `None` if it is
    /// NULL.
    pub fn read_image<'a>(
        &self,
        present: &PresentColumns<'_>,
        cursor: &mut Cursor<'a>,
        mut each: impl FnMut(usize, Option<&'a [u8]>),
    ) -> Result<(), Malformed> {
        if present.count != self.0.len() {
            return Err(Malformed("rows that do not match their table map"));
        }
        let present_count = (0..present.count).filter(|&at| bit(present.bits, at)).count();
        let nulls = cursor.read_slice(present_count.div_ceil(8))?;
        if nulls.is_empty() {
            return Err(Malformed("a row without columns"));
        }
        let present_columns = self.0.iter().enumerate().filter(|(at, _)| bit(present.bits, *at));
        for (present_at, (at, column)) in present_columns.enumerate() {
            let value = match bit(nulls, present_at) {
                true => None,
                false => Some(column.read_value(cursor)?),
            };
            each(at, value);
        }
        Ok(())
    }

    /// Skips the options of a partial update, which precede the new image.
    pub fn skip_partial_options(&self, cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
        const PARTIAL_JSON: usize = 1;
        if cursor.length()? & PARTIAL_JSON != 0 {
            let json_columns = self.0.iter().filter(|column| column.kind == JSON).count();
            cursor.read_slice(json_columns.div_ceil(8))?;
        }
        Ok(())
    }
}

impl LogColumn {
    fn read(kind: u8, metadata: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let metadata = match kind {
            // float, double, timestamp2, datetime2, time2, vector, json, blobs, geometry
            4 | 5 | 17..=19 | 140 | 242 | 245 | 249..=252 | 255 => [metadata.u8()?, 0],
            // varchar, bit, decimal, enum, set, var_string, string
            15 | 16 | 141 | 246 | 247 | 248 | 253 | 254 => metadata.array()?,
            _ => [0, 0],
        };
        Ok(LogColumn { kind, metadata })
    }

    /// The width of the length of a value; `None` unless the column holds text or bytes.
    fn length_bytes(self) -> Option<usize> {
        let [low, high] = self.metadata;
        match self.kind {
            15 | 253 => Some(if u16::from_le_bytes(self.metadata) < 256 { 1 } else { 2 }),
            249..=252 => Some(usize::from(low)),
            254 => match string_kind(low) {
                247 | 248 => None,
                // The byte of the type holds two bits of a long CHAR's length, inverted.
                _ => Some(if u16::from(high) | u16::from(!low & 0x30) << 4 < 256 { 1 } else { 2 }),
            },
            _ => None,
        }
    }

    fn read_value<'a>(self, cursor: &mut Cursor<'a>) -> Result<&'a [u8], Malformed> {
        if let Some(length_bytes) = self.length_bytes() {
            let length = cursor.uint(length_bytes)?;
            return cursor.read_slice(usize::try_from(length).unwrap_or(usize::MAX));
        }
        let [low, high] = self.metadata;
        let (low, high) = (usize::from(low), usize::from(high));
        let width = match self.kind {
            6 => 0,
            1 | 13 => 1,
            2 => 2,
            9 | 10 | 11 | 14 => 3,
            3 | 4 | 7 => 4,
            5 | 8 | 12 => 8,
            16 => high + usize::from(low > 0),
            17 => 4 + low.div_ceil(2),
            18 => 5 + low.div_ceil(2),
            19 => 3 + low.div_ceil(2),
            246 => decimal_bytes(low, high).ok_or(Malformed("a decimal's metadata"))?,
            // The metadata holds the width of an enum or set.
            247 | 248 | 254 => high,
            140 | 242 | 245 | 255 => {
                let length = cursor.uint(low)?;
                usize::try_from(length).unwrap_or(usize::MAX)
            }
            141 => {
                let length = cursor.uint(if u16::from_le_bytes(self.metadata) < 256 { 1 } else { 2 })?;
                usize::try_from(length).unwrap_or(usize::MAX)
            }
            _ => return Err(Malformed("a column of an unknown type")),
        };
        cursor.read_slice(width)
    }
}

fn string_kind(low: u8) -> u8 {
    low | 0x30
}

/// The width of a group of up to nine digits of a decimal.
pub fn bytes_of_digits(digits: usize) -> usize {
    [0, 1, 1, 2, 2, 3, 3, 4, 4, 4][digits.min(9)]
}

fn decimal_bytes(precision: usize, scale: usize) -> Option<usize> {
    let whole = precision.checked_sub(scale)?;
    Some(whole / 9 * 4 + bytes_of_digits(whole % 9) + scale / 9 * 4 + bytes_of_digits(scale % 9))
}

fn bit(bits: &[u8], at: usize) -> bool {
    bits.get(at / 8).is_some_and(|byte| byte & 1 << (at % 8) != 0)
}
