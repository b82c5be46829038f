//! How the text that the log has for a value becomes a value of a key.
//!
//! The log has the id of each column's type. Ids of built-in types never change; what an id of an enum or a domain
//! means is in the catalogue ([`DeclaredType`]), and stays the same for as long as the type exists. A column of a
//! domain is one of the domain's base type.
//!
//! The session of the log has `DateStyle=ISO`, `TimeZone=UTC` and `bytea_output=hex`, so that each type has one text.

use crate::rules::{Column, Date, RowValue, TimeOfDay, read_hex};
use std::{borrow::Cow, collections::BTreeMap};

/// The longest BIT(n) that is a number in the other databases.
const BITS_MAX: i32 = 64;
/// A modifier of `numeric` holds the precision and the scale, and this.
const NUMERIC_MODIFIER_BASE: i32 = 4;

/// Types that the catalogue has explained, by id.
pub(super) type DeclaredTypes = BTreeMap<u32, DeclaredType>;

/// A type that is not among those known by their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeclaredType {
    /// Its name, for messages; of a domain that of the base type.
    pub name: String,
    /// Whether it, or the base type of the domain, is an enum or `citext`: its text is the value.
    pub is_text: bool,
    /// The base type of a domain, which is none itself, with the modifier that the domain gives it; `None` for other
    /// types.
    pub base: Option<(u32, i32)>,
}

/// How the values of a column are decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ColumnType {
    Boolean,
    Integer,
    Decimal,
    /// Text; `char(n)` loses the spaces at its end.
    Text {
        is_padded: bool,
    },
    Bytes,
    Bits,
    Date,
    Time,
    DateTime,
    Instant,
    Uuid,
    /// Values cannot be written into keys, as it is this.
    Refused(String),
}

impl ColumnType {
    /// The type of a column; `None` if the catalogue must explain its id first.
    pub fn new(type_id: u32, modifier: i32, declared: &DeclaredTypes) -> Option<ColumnType> {
        if let Some(known) = ColumnType::built_in(type_id, modifier) {
            return Some(known);
        }
        let declared_type = declared.get(&type_id)?;
        let of_base = declared_type.base.and_then(|(base, modifier)| ColumnType::built_in(base, modifier));
        Some(of_base.unwrap_or_else(|| declared_type.column_type()))
    }

    fn built_in(type_id: u32, modifier: i32) -> Option<ColumnType> {
        Some(match type_id {
            16 => ColumnType::Boolean,
            17 => ColumnType::Bytes,
            20 | 21 | 23 | 26 => ColumnType::Integer,
            19 | 25 | 1043 => ColumnType::Text { is_padded: false },
            1042 => ColumnType::Text { is_padded: true },
            1082 => ColumnType::Date,
            1083 => ColumnType::Time,
            1114 => ColumnType::DateTime,
            1184 => ColumnType::Instant,
            1560 if modifier <= BITS_MAX => ColumnType::Bits,
            1560 => ColumnType::Refused(format!("of type bit({modifier}), and a number has {BITS_MAX} bits at most")),
            1700 if modifier >= NUMERIC_MODIFIER_BASE => ColumnType::Decimal,
            1700 => ColumnType::Refused(
                "of type numeric without a precision, so the same number has several texts; declare it as \
                 numeric(PRECISION, SCALE)"
                    .into(),
            ),
            2950 => ColumnType::Uuid,
            _ => return None,
        })
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
    pub fn decode<'a>(&self, bytes: &'a [u8]) -> RowValue<'a> {
        let text = std::str::from_utf8(bytes).ok();
        text.and_then(|text| self.try_decode(text)).unwrap_or(RowValue::Raw(bytes.into()))
    }

    fn try_decode<'a>(&self, text: &'a str) -> Option<RowValue<'a>> {
        Some(match self {
            ColumnType::Boolean => RowValue::Integer(match text {
                "t" => 1,
                "f" => 0,
                _ => return None,
            }),
            ColumnType::Integer => RowValue::Integer(text.parse().ok()?),
            ColumnType::Decimal => RowValue::Decimal(decimal(text)?),
            ColumnType::Text { is_padded: false } => RowValue::Text(text.into()),
            ColumnType::Text { is_padded: true } => RowValue::Text(text.trim_end_matches(' ').into()),
            ColumnType::Bytes => RowValue::Bytes(read_hex(text.strip_prefix("\\x")?)?.into()),
            ColumnType::Bits => RowValue::Integer(u64::from_str_radix(text, 2).ok()?.into()),
            ColumnType::Date => RowValue::Date(date(text)?),
            ColumnType::Time => RowValue::Time(time(text)?),
            ColumnType::DateTime => {
                let (day, clock) = text.split_once(' ')?;
                RowValue::DateTime(date(day)?, time(clock)?)
            }
            ColumnType::Instant => {
                let (day, clock) = text.strip_suffix("+00")?.split_once(' ')?;
                RowValue::Instant(date(day)?, time(clock)?)
            }
            ColumnType::Uuid => {
                let digits: String = text.split('-').collect();
                RowValue::Uuid(read_hex(&digits)?.try_into().ok()?)
            }
            ColumnType::Refused(_) => return None,
        })
    }
}

impl DeclaredType {
    fn column_type(&self) -> ColumnType {
        match self.is_text {
            true => ColumnType::Text { is_padded: false },
            false => ColumnType::Refused(format!("of type {}", self.name)),
        }
    }
}

/// The modifier of a column: its own, or that of its domain.
pub(super) fn modifier_of(type_id: u32, modifier: i32, declared: &DeclaredTypes) -> i32 {
    let of_domain = declared.get(&type_id).and_then(|declared| declared.base);
    of_domain.map_or(modifier, |(_, modifier)| modifier)
}

/// The digits after the point that a modifier of `numeric` has in its lowest eleven bits, with a sign.
pub(super) fn scale_of(modifier: i32) -> i32 {
    (((modifier - NUMERIC_MODIFIER_BASE) & 0x7ff) ^ 0x400) - 0x400
}

/// The digits of a number; `None` for NaN and the infinities.
fn decimal(text: &str) -> Option<Cow<'_, str>> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    is_number.then_some(text.into())
}

/// `2026-11-22`; `None` for the infinities and dates before Christ, which end with ` BC`.
fn date(text: &str) -> Option<Date> {
    let mut parts = text.split('-');
    let date = Date { year: number(parts.next()?)?, month: number(parts.next()?)?, day: number(parts.next()?)? };
    parts.next().is_none().then_some(date)
}

/// `09:05:00.25`.
fn time(text: &str) -> Option<TimeOfDay> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut parts = whole.split(':');
    let time = TimeOfDay {
        is_negative: false,
        hours: number(parts.next()?)?,
        minutes: number(parts.next()?)?,
        seconds: number(parts.next()?)?,
        micros: if fraction.is_empty() { 0 } else { number(&format!("{fraction:0<6}"))? },
    };
    (parts.next().is_none() && fraction.len() <= 6).then_some(time)
}

/// A number of digits only.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(column_type: &ColumnType, text: &str) -> RowValue<'static> {
        match column_type.decode(text.as_bytes()) {
            RowValue::Raw(_) => RowValue::Raw(b"".as_slice().into()),
            RowValue::Text(text) => RowValue::Text(text.into_owned().into()),
            RowValue::Decimal(text) => RowValue::Decimal(text.into_owned().into()),
            RowValue::Bytes(bytes) => RowValue::Bytes(bytes.into_owned().into()),
            RowValue::Integer(number) => RowValue::Integer(number),
            RowValue::Date(date) => RowValue::Date(date),
            RowValue::Time(time) => RowValue::Time(time),
            RowValue::DateTime(date, time) => RowValue::DateTime(date, time),
            RowValue::Instant(date, time) => RowValue::Instant(date, time),
            RowValue::Uuid(bytes) => RowValue::Uuid(bytes),
            RowValue::Null | RowValue::NotInLog => panic!("{text} is neither"),
        }
    }

    #[test]
    fn texts_become_values() {
        let date = Date { year: 2026, month: 11, day: 22 };
        let time = TimeOfDay { hours: 9, minutes: 5, seconds: 0, micros: 250_000, ..TimeOfDay::default() };
        for (column_type, text, expected) in [
            (ColumnType::Boolean, "t", RowValue::Integer(1)),
            (ColumnType::Integer, "-9223372036854775808", RowValue::Integer(i64::MIN.into())),
            (ColumnType::Decimal, "-12.50", RowValue::Decimal("-12.50".into())),
            (ColumnType::Text { is_padded: false }, "Zoë  ", RowValue::Text("Zoë  ".into())),
            (ColumnType::Text { is_padded: true }, "Zoë  ", RowValue::Text("Zoë".into())),
            (ColumnType::Bytes, "\\x00ff", RowValue::Bytes([0, 0xff].as_slice().into())),
            (ColumnType::Bytes, "\\x", RowValue::Bytes([].as_slice().into())),
            (ColumnType::Bits, "0101", RowValue::Integer(5)),
            (ColumnType::Date, "2026-11-22", RowValue::Date(date)),
            (ColumnType::Time, "09:05:00.25", RowValue::Time(time)),
            (ColumnType::DateTime, "2026-11-22 09:05:00.25", RowValue::DateTime(date, time)),
            (ColumnType::Instant, "2026-11-22 09:05:00.25+00", RowValue::Instant(date, time)),
            (
                ColumnType::Uuid,
                "00000000-0000-0000-0000-0000000000ff",
                RowValue::Uuid({
                    let mut bytes = [0; 16];
                    bytes[15] = 0xff;
                    bytes
                }),
            ),
        ] {
            assert_eq!(decoded(&column_type, text), expected, "{text}");
        }
    }

    #[test]
    fn what_other_databases_do_not_have_is_only_compared() {
        for (column_type, text) in [
            (ColumnType::Decimal, "NaN"),
            (ColumnType::Decimal, "-Infinity"),
            (ColumnType::Date, "infinity"),
            (ColumnType::Date, "0044-03-15 BC"),
            (ColumnType::DateTime, "-infinity"),
            (ColumnType::Instant, "2026-11-22 09:05:00+01"),
            (ColumnType::Instant, "0044-03-15 12:00:00+00 BC"),
            (ColumnType::Bytes, "\\x0"),
            (ColumnType::Bytes, "raw"),
            (ColumnType::Uuid, "00"),
            (ColumnType::Time, "1:2"),
            (ColumnType::Refused("a reason".into()), "1.5"),
        ] {
            assert_eq!(decoded(&column_type, text), RowValue::Raw(b"".as_slice().into()), "{text}");
        }
        let text = ColumnType::Text { is_padded: false };
        assert_eq!(text.decode(b"\xff"), RowValue::Raw([0xff].as_slice().into()), "of a database without an encoding");
    }

    #[test]
    fn types_are_known_by_id_or_from_the_catalogue() {
        let mut declared = DeclaredTypes::new();
        assert_eq!(ColumnType::new(23, -1, &declared), Some(ColumnType::Integer));
        assert_eq!(ColumnType::new(16_400, -1, &declared), None, "the catalogue is needed");
        let of = |name: &str, is_text, base| DeclaredType { name: name.into(), is_text, base };
        declared.insert(16_400, of("state", true, None));
        declared.insert(16_401, of("price", false, Some((1700, (10 << 16 | 2) + 4))));
        declared.insert(16_402, of("state", true, Some((16_400, -1))));
        declared.insert(701, of("double precision", false, None));
        assert_eq!(ColumnType::new(16_400, -1, &declared), Some(ColumnType::Text { is_padded: false }));
        assert_eq!(ColumnType::new(16_401, -1, &declared), Some(ColumnType::Decimal));
        assert_eq!(ColumnType::new(16_402, -1, &declared), Some(ColumnType::Text { is_padded: false }));
        assert_eq!(modifier_of(16_401, -1, &declared), (10 << 16 | 2) + 4);
        assert_eq!(
            [(10 << 16 | 2) + 4, (3 << 16 | 0x7fe) + 4].map(scale_of),
            [2, -2],
            "numeric(10, 2), numeric(3, -2)"
        );
        for (type_id, modifier) in [(701, -1), (1700, -1), (1560, 65)] {
            let refused = ColumnType::new(type_id, modifier, &declared);
            assert!(matches!(refused, Some(ColumnType::Refused(_))), "{type_id}: {refused:?}");
        }
    }
}
