//! The type of a column in the log, and how its values are decoded for keys.

use super::{catalogue::Declared, charset::Charset, rows::LogColumn};
use crate::rules::{Column, Date, RowValue, TimeOfDay};

/// How the values of a column are decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnType {
    Integer {
        is_unsigned: bool,
    },
    Year,
    Bits,
    Decimal {
        precision: usize,
        scale: usize,
    },
    Text(Charset),
    /// With the width to which the server fills values up by zeros, which the log leaves out; 0 if it does not.
    Bytes {
        width: usize,
    },
    Enum(Vec<String>),
    Set(Vec<String>),
    Date,
    /// With the kind of the log's encoding.
    Time {
        kind: u8,
    },
    DateTime {
        kind: u8,
    },
    Timestamp {
        kind: u8,
    },
    /// MariaDB's type.
    Uuid,
    /// Values cannot be written into keys.
    Refused(String),
}

impl ColumnType {
    /// The type of a declared column that the log has as `column`. `is_unsigned` and `labels`, in the column's
    /// character set, are the log's, if it has them.
    pub fn new(
        declared: &Declared,
        column: LogColumn,
        is_unsigned: Option<bool>,
        labels: Option<Vec<Vec<u8>>>,
    ) -> ColumnType {
        if declared.is_virtual {
            return ColumnType::Refused("a virtual column, which is not in the log; make it stored".into());
        }
        let decode = |label: &Vec<u8>| Some(declared.charset()?.decode(label)?.into_owned());
        let logged = || labels.and_then(|labels| labels.iter().map(decode).collect());
        let labels = || logged().unwrap_or_else(|| declared.labels());
        let [low, high] = column.metadata;
        match declared.data_type.as_str() {
            _ if declared.column_type.contains(" COMPRESSED") => ColumnType::Refused("a compressed column".into()),
            "tinyint" | "smallint" | "mediumint" | "int" | "bigint" => {
                ColumnType::Integer { is_unsigned: is_unsigned.unwrap_or_else(|| declared.is_unsigned()) }
            }
            "year" => ColumnType::Year,
            "bit" => ColumnType::Bits,
            "decimal" => ColumnType::Decimal { precision: usize::from(low), scale: usize::from(high) },
            "char" | "varchar" | "tinytext" | "text" | "mediumtext" | "longtext" => match declared.charset() {
                Some(charset) => ColumnType::Text(charset),
                None => ColumnType::Refused(format!(
                    "text in the character set {}; supported are utf8mb4, utf8mb3, ascii, latin1, ucs2, utf16, utf16le \
                     and utf32",
                    declared.charset.as_deref().unwrap_or("(none)")
                )),
            },
            "binary" => ColumnType::Bytes { width: declared.octets as usize },
            "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob" => ColumnType::Bytes { width: 0 },
            "enum" => ColumnType::Enum(labels()),
            "set" => ColumnType::Set(labels()),
            "date" => ColumnType::Date,
            "time" => ColumnType::Time { kind: column.kind },
            "datetime" => ColumnType::DateTime { kind: column.kind },
            "timestamp" => ColumnType::Timestamp { kind: column.kind },
            "uuid" => ColumnType::Uuid,
            other => ColumnType::Refused(format!("of type {other}")),
        }
    }

    /// The column as rules see it.
    pub fn column(&self, name: &str) -> Column {
        let refusal = match self {
            ColumnType::Refused(why) => Some(why.clone()),
            _ => None,
        };
        Column { name: name.into(), refusal }
    }

    /// Decodes a value. A value that no key can have is [`RowValue::Raw`].
    pub fn decode<'a>(&self, column: LogColumn, bytes: &'a [u8]) -> RowValue<'a> {
        self.try_decode(column, bytes).unwrap_or(RowValue::Raw(bytes.into()))
    }

    fn try_decode<'a>(&self, column: LogColumn, bytes: &'a [u8]) -> Option<RowValue<'a>> {
        let fraction_digits = column.metadata[0];
        Some(match self {
            ColumnType::Integer { is_unsigned } => RowValue::Integer(integer(bytes, *is_unsigned)),
            ColumnType::Year => RowValue::Integer(match bytes.first()? {
                0 => 0,
                year => i128::from(*year) + 1900,
            }),
            ColumnType::Bits => RowValue::Integer(big_endian(bytes).into()),
            ColumnType::Decimal { precision, scale } => RowValue::Decimal(decimal(*precision, *scale, bytes)?.into()),
            ColumnType::Text(charset) => RowValue::Text(charset.decode(bytes)?),
            ColumnType::Bytes { width } if bytes.len() < *width => {
                let mut filled = bytes.to_vec();
                filled.resize(*width, 0);
                RowValue::Bytes(filled.into())
            }
            ColumnType::Bytes { .. } => RowValue::Bytes(bytes.into()),
            ColumnType::Enum(labels) => RowValue::Text(match usize::try_from(little_endian(bytes)).ok()? {
                // The value of an invalid assignment.
                0 => String::new().into(),
                number => labels.get(number - 1)?.clone().into(),
            }),
            ColumnType::Set(labels) => {
                let bits = little_endian(bytes);
                if bits.checked_shr(labels.len() as u32).unwrap_or(0) != 0 {
                    return None;
                }
                let set: Vec<&str> =
                    (0..labels.len()).filter(|at| bits >> at & 1 == 1).map(|at| labels[at].as_str()).collect();
                RowValue::Text(set.join(",").into())
            }
            ColumnType::Date => {
                let packed = little_endian(bytes) as u32;
                RowValue::Date(Date { year: packed >> 9, month: (packed >> 5 & 15) as u8, day: (packed & 31) as u8 })
            }
            ColumnType::Time { kind: 19 } => RowValue::Time(time2(bytes, fraction_digits)?),
            ColumnType::Time { .. } => RowValue::Time(old_time(bytes)),
            ColumnType::DateTime { kind: 18 } => {
                let (date, time) = datetime2(bytes, fraction_digits)?;
                RowValue::DateTime(date, time)
            }
            ColumnType::DateTime { .. } => {
                let (date, time) = old_datetime(little_endian(bytes));
                RowValue::DateTime(date, time)
            }
            ColumnType::Timestamp { kind } => {
                let (seconds, fraction) = bytes.split_at_checked(4)?;
                let (seconds, micros) = match kind {
                    17 => (big_endian(seconds), micros(fraction)),
                    _ => (little_endian(seconds), 0),
                };
                match (seconds, micros) {
                    // The zero timestamp, which is no instant.
                    (0, 0) => RowValue::Instant(Date::default(), TimeOfDay::default()),
                    _ => RowValue::from_unix_micros(i64::try_from(seconds).ok()? * 1_000_000 + i64::from(micros)),
                }
            }
            ColumnType::Uuid => RowValue::Uuid(uuid(bytes)?),
            ColumnType::Refused(_) => return None,
        })
    }
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().take(8).fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn big_endian(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn integer(bytes: &[u8], is_unsigned: bool) -> i128 {
    let value = i128::from(little_endian(bytes));
    let is_negative = !is_unsigned && bytes.last().is_some_and(|high| high & 0x80 != 0);
    if is_negative { value - (1_i128 << (8 * bytes.len().min(8))) } else { value }
}

/// The digits of a packed decimal: groups of nine in four bytes, from the point outwards, the rest in as few bytes as
/// it needs. All bits of a negative number are inverted, and the first bit of a positive one.
fn decimal(precision: usize, scale: usize, bytes: &[u8]) -> Option<String> {
    let whole = precision.checked_sub(scale)?;
    let is_negative = bytes.first()? & 0x80 == 0;
    let mut plain: Vec<u8> = bytes.iter().map(|byte| if is_negative { !byte } else { *byte }).collect();
    plain[0] ^= 0x80;
    let mut rest = plain.as_slice();
    let mut read_group = |digits: usize| -> Option<String> {
        let (group, after) = rest.split_at_checked(super::rows::bytes_of_digits(digits))?;
        rest = after;
        Some(format!("{:0digits$}", big_endian(group)))
    };
    let mut text = String::new();
    for digits in [whole % 9].into_iter().filter(|digits| *digits > 0).chain(std::iter::repeat_n(9, whole / 9)) {
        text.push_str(&read_group(digits)?);
    }
    let trimmed = text.trim_start_matches('0').len();
    text.drain(..text.len() - trimmed);
    if text.is_empty() {
        text.push('0');
    }
    if scale > 0 {
        text.push('.');
    }
    for digits in std::iter::repeat_n(9, scale / 9).chain([scale % 9].into_iter().filter(|digits| *digits > 0)) {
        text.push_str(&read_group(digits)?);
    }
    if is_negative && text.bytes().any(|byte| matches!(byte, b'1'..=b'9')) {
        text.insert(0, '-');
    }
    Some(text)
}

/// A fraction of a second of 1 to 3 bytes, in hundredths, ten-thousandths or millionths.
fn micros(fraction: &[u8]) -> u32 {
    let unit = [1_000_000, 10_000, 100, 1][fraction.len().min(3)];
    (big_endian(fraction) as u32).saturating_mul(if fraction.is_empty() { 0 } else { unit })
}

/// `| 1 bit: 1 unless negative, 1 bit: unused | hours: 10 bits | minutes: 6 | seconds: 6 | fraction |`, in all a number
/// to which 2^23 and the bits of the fraction are added.
fn time2(bytes: &[u8], fraction_digits: u8) -> Option<TimeOfDay> {
    let fraction_bytes = usize::from(fraction_digits.div_ceil(2));
    let bits = 8 * fraction_bytes as u32;
    if fraction_digits > 6 || bytes.len() != 3 + fraction_bytes {
        return None;
    }
    let value = i64::try_from(big_endian(bytes)).ok()? - (0x80_0000_i64 << bits);
    let absolute = value.unsigned_abs();
    let (packed, fraction) = ((absolute >> bits) as u32, absolute & ((1 << bits) - 1));
    Some(TimeOfDay {
        is_negative: value < 0,
        hours: (packed >> 12 & 0x3ff) as u16,
        minutes: (packed >> 6 & 0x3f) as u8,
        seconds: (packed & 0x3f) as u8,
        micros: micros(&fraction.to_be_bytes()[8 - fraction_bytes..]),
    })
}

/// `| 1 bit | year * 13 + month: 17 bits | day: 5 | hour: 5 | minute: 6 | second: 6 | fraction |`
fn datetime2(bytes: &[u8], fraction_digits: u8) -> Option<(Date, TimeOfDay)> {
    let (packed, fraction) = bytes.split_at_checked(5)?;
    if fraction.len() != usize::from(fraction_digits.div_ceil(2)) {
        return None;
    }
    let packed = big_endian(packed).checked_sub(1 << 39)?;
    let year_month = (packed >> 22) as u32;
    let date = Date { year: year_month / 13, month: (year_month % 13) as u8, day: (packed >> 17 & 31) as u8 };
    let time = TimeOfDay {
        is_negative: false,
        hours: (packed >> 12 & 31) as u16,
        minutes: (packed >> 6 & 63) as u8,
        seconds: (packed & 63) as u8,
        micros: micros(fraction),
    };
    Some((date, time))
}

/// The decimal number YYYYMMDDhhmmss.
fn old_datetime(value: u64) -> (Date, TimeOfDay) {
    let two_digits = |unit: u64| (value / unit % 100) as u8;
    let date =
        Date { year: (value / 10_000_000_000) as u32, month: two_digits(100_000_000), day: two_digits(1_000_000) };
    let hours = two_digits(10_000).into();
    let time = TimeOfDay { is_negative: false, hours, minutes: two_digits(100), seconds: two_digits(1), micros: 0 };
    (date, time)
}

/// The signed decimal number hhhmmss.
fn old_time(bytes: &[u8]) -> TimeOfDay {
    let value = integer(bytes, false);
    let absolute = value.unsigned_abs();
    TimeOfDay {
        is_negative: value < 0,
        hours: (absolute / 10_000) as u16,
        minutes: (absolute / 100 % 100) as u8,
        seconds: (absolute % 100) as u8,
        micros: 0,
    }
}

/// The sixteen bytes of a UUID, in the order of its text, without the zeros at their end.
fn uuid(bytes: &[u8]) -> Option<[u8; 16]> {
    let mut stored = [0; 16];
    stored.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_have_all_digits_after_the_point() {
        assert_eq!(decimal(10, 2, &[0x80, 0, 0, 12, 50]).as_deref(), Some("12.50"));
        assert_eq!(decimal(10, 2, &[0x7f, 0xff, 0xff, !12, !50]).as_deref(), Some("-12.50"));
        assert_eq!(decimal(10, 2, &[0x80, 0, 0, 0, 0]).as_deref(), Some("0.00"));
        assert_eq!(decimal(2, 2, &[0x80 | 7]).as_deref(), Some("0.07"));
        assert_eq!(decimal(3, 0, &[0x80, 100]).as_deref(), Some("100"));
        assert_eq!(
            decimal(20, 10, &[0x81, 0x0d, 0xfb, 0x38, 0xd2, 0x00, 0xbc, 0x61, 0x4e, 9]).as_deref(),
            Some("1234567890.0123456789")
        );
        assert_eq!(decimal(3, 0, &[]), None);
    }

    #[test]
    fn integers_have_a_sign() {
        assert_eq!(integer(&[0xff], false), -1);
        assert_eq!(integer(&[0xff], true), 255);
        assert_eq!(integer(&[0xff, 0xff, 0x7f], false), 8_388_607);
        assert_eq!(integer(&[0, 0, 0x80], false), -8_388_608);
        assert_eq!(integer(&[0xff; 8], true), i128::from(u64::MAX));
        assert_eq!(integer(&[0, 0, 0, 0, 0, 0, 0, 0x80], false), i128::from(i64::MIN));
    }

    #[test]
    fn old_temporal_types_are_decimal_numbers() {
        let (date, time) = old_datetime(20_261_122_090_501);
        assert_eq!((date.year, date.month, date.day), (2026, 11, 22));
        assert_eq!((time.hours, time.minutes, time.seconds), (9, 5, 1));
        let time = old_time(&[0xa8, 0x03, 0xff]);
        assert_eq!((time.is_negative, time.hours, time.minutes, time.seconds), (true, 6, 46, 0));
    }

    #[test]
    fn damaged_values_do_not_panic() {
        let types = [
            ColumnType::Integer { is_unsigned: false },
            ColumnType::Year,
            ColumnType::Bits,
            ColumnType::Decimal { precision: 5, scale: 9 },
            ColumnType::Decimal { precision: 255, scale: 30 },
            ColumnType::Bytes { width: 3 },
            ColumnType::Enum(vec![]),
            ColumnType::Set(vec!["a".into(); 64]),
            ColumnType::Date,
            ColumnType::Time { kind: 19 },
            ColumnType::Time { kind: 11 },
            ColumnType::DateTime { kind: 18 },
            ColumnType::DateTime { kind: 12 },
            ColumnType::Timestamp { kind: 17 },
            ColumnType::Timestamp { kind: 7 },
            ColumnType::Uuid,
        ];
        for column_type in types {
            for length in 0..40 {
                for byte in [0, 1, 0x7f, 0x80, 0xff] {
                    for digits in [0, 3, 6, 255] {
                        let column = LogColumn { kind: 0, metadata: [digits, 0] };
                        let _ = column_type.decode(column, &vec![byte; length]);
                    }
                }
            }
        }
    }
}
