//! Values of columns, and how each is written into a key.
//!
//! | value | written as | example |
//! |---|---|---|
//! | integer, boolean, bits | decimal digits; a boolean is 1 or 0 | `-7` |
//! | decimal | all digits after the point that the column has | `12.50` |
//! | text, label of an enum | the characters in UTF-8, unchanged: no case is folded | `Ada@example.org` |
//! | set | its labels in the order of the column's type, with commas | `read,write` |
//! | bytes | two hexadecimal digits each, in lower case | `00ff` |
//! | date | year, month, day | `2026-11-22` |
//! | time | hours, minutes, seconds; a fraction without its trailing zeros | `09:05:00.25` |
//! | date and time without a time zone | with a `T` between them | `2026-11-22T09:05:00` |
//! | instant | the same in UTC, with a `Z` | `2026-11-22T09:05:00Z` |
//! | UUID | lower case, with hyphens | `8d4b9a3e-0a51-4c0e-9d2f-0c7a52b1f0aa` |
//!
//! NULL names no key.
//!
//! So that the same row gives the same key in PostgreSQL, whose log has text: `char(n)` loses the spaces at its end,
//! `timestamptz` becomes an instant ([`RowValue::from_unix_micros`]), `bytea` becomes bytes and `bit(n)` a number.
//! NaN, infinity and dates before Christ are [`RowValue::Raw`].

use std::{borrow::Cow, io::Write};

/// A column's value in a row's image. Sources convert to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowValue<'a> {
    /// NULL. A template with it gives no key.
    Null,
    /// The image lacks the column: an unchanged TOAST value, a minimal row image, a key-only identity.
    NotInLog,
    /// An integer of any width and sign, a boolean (1 or 0), a year, or bits as an unsigned number.
    Integer(i128),
    /// The digits of an exact number: no exponent, no sign for zero, and as many digits after the point as the column
    /// has.
    Decimal(Cow<'a, str>),
    /// Text, or the label of an enum or labels of a set.
    Text(Cow<'a, str>),
    /// Bytes.
    Bytes(Cow<'a, [u8]>),
    /// A calendar date.
    Date(Date),
    /// A time of day, or a duration as MySQL's TIME.
    Time(TimeOfDay),
    /// A date and time without a time zone.
    DateTime(Date, TimeOfDay),
    /// An instant, in UTC.
    Instant(Date, TimeOfDay),
    /// A UUID.
    Uuid([u8; 16]),
    /// A value that cannot be written into a key: of a type that rules refuse, or one that the other databases do not
    /// have (NaN, infinity, a date before Christ). It is only compared, so any bytes that differ if the value does.
    Raw(Cow<'a, [u8]>),
}

/// A date as the database has it, including MySQL's zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Date {
    /// From 0.
    pub year: u32,
    /// From 1; 0 in MySQL's zero dates.
    pub month: u8,
    /// From 1; 0 in MySQL's zero dates.
    pub day: u8,
}

/// A time of day. MySQL's TIME has negative ones and up to 838 hours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeOfDay {
    /// Whether it is below zero.
    pub is_negative: bool,
    /// From 0; 24 at PostgreSQL's end of the day.
    pub hours: u16,
    /// 0 to 59.
    pub minutes: u8,
    /// 0 to 59.
    pub seconds: u8,
    /// 0 to 999,999.
    pub micros: u32,
}

const DAY_S: i64 = 86_400;

impl RowValue<'_> {
    /// The instant `micros` microseconds after 1970 began; [`RowValue::Raw`] before the year 0.
    pub fn from_unix_micros(micros: i64) -> RowValue<'static> {
        let seconds = micros.div_euclid(1_000_000);
        let Some(date) = date_of_day(seconds.div_euclid(DAY_S)) else {
            return RowValue::Raw(Cow::Owned(micros.to_be_bytes().to_vec()));
        };
        let second_of_day = seconds.rem_euclid(DAY_S) as u32;
        let time = TimeOfDay {
            is_negative: false,
            hours: (second_of_day / 3600) as u16,
            minutes: (second_of_day / 60 % 60) as u8,
            seconds: (second_of_day % 60) as u8,
            micros: micros.rem_euclid(1_000_000) as u32,
        };
        RowValue::Instant(date, time)
    }

    /// The same without what it borrows.
    pub fn into_owned(self) -> RowValue<'static> {
        match self {
            RowValue::Decimal(text) => RowValue::Decimal(Cow::Owned(text.into_owned())),
            RowValue::Text(text) => RowValue::Text(Cow::Owned(text.into_owned())),
            RowValue::Bytes(bytes) => RowValue::Bytes(Cow::Owned(bytes.into_owned())),
            RowValue::Raw(bytes) => RowValue::Raw(Cow::Owned(bytes.into_owned())),
            RowValue::Null => RowValue::Null,
            RowValue::NotInLog => RowValue::NotInLog,
            RowValue::Integer(number) => RowValue::Integer(number),
            RowValue::Date(date) => RowValue::Date(date),
            RowValue::Time(time) => RowValue::Time(time),
            RowValue::DateTime(date, time) => RowValue::DateTime(date, time),
            RowValue::Instant(date, time) => RowValue::Instant(date, time),
            RowValue::Uuid(bytes) => RowValue::Uuid(bytes),
        }
    }

    /// Appends the value as it is written into a key; false for those that are not: NULL, [`RowValue::NotInLog`] and
    /// [`RowValue::Raw`].
    pub(super) fn write_to(&self, out: &mut Vec<u8>) -> bool {
        match self {
            RowValue::Null | RowValue::NotInLog | RowValue::Raw(_) => return false,
            RowValue::Integer(number) => write_text(out, format_args!("{number}")),
            RowValue::Decimal(text) | RowValue::Text(text) => out.extend_from_slice(text.as_bytes()),
            RowValue::Bytes(bytes) => write_hex(out, bytes),
            RowValue::Date(date) => date.write_to(out),
            RowValue::Time(time) => time.write_to(out),
            RowValue::DateTime(date, time) | RowValue::Instant(date, time) => {
                date.write_to(out);
                out.push(b'T');
                time.write_to(out);
                if matches!(self, RowValue::Instant(..)) {
                    out.push(b'Z');
                }
            }
            RowValue::Uuid(bytes) => {
                for (index, part) in
                    [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]].iter().enumerate()
                {
                    if index > 0 {
                        out.push(b'-');
                    }
                    write_hex(out, part);
                }
            }
        }
        true
    }
}

impl Date {
    fn write_to(self, out: &mut Vec<u8>) {
        write_text(out, format_args!("{:04}-{:02}-{:02}", self.year, self.month, self.day));
    }
}

impl TimeOfDay {
    fn write_to(self, out: &mut Vec<u8>) {
        let sign = if self.is_negative { "-" } else { "" };
        write_text(out, format_args!("{sign}{:02}:{:02}:{:02}", self.hours, self.minutes, self.seconds));
        if self.micros > 0 {
            write_text(out, format_args!(".{:06}", self.micros));
            while out.last() == Some(&b'0') {
                out.pop();
            }
        }
    }
}

fn write_text(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to memory cannot fail");
}

fn write_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend(bytes.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]));
}

/// The bytes of which `text` has two hexadecimal digits each.
pub(crate) fn read_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
    if rest.is_empty() { bytes } else { None }
}

/// The date of a day, counted from 1970-01-01, in the proleptic Gregorian calendar; `None` before the year 0.
fn date_of_day(day: i64) -> Option<Date> {
    const ERA_DAYS: i64 = 146_097;
    // Eras of 400 years that begin in March of the year 0, so that a leap day is the last day of its year.
    let since_era_0 = day + 719_468;
    let era = since_era_0.div_euclid(ERA_DAYS);
    let day_of_era = since_era_0.rem_euclid(ERA_DAYS);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    Some(Date {
        year: u32::try_from(year).ok()?,
        month: month as u8,
        day: (day_of_year - (153 * month_from_march + 2) / 5 + 1) as u8,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(value: &RowValue<'_>) -> Option<String> {
        let mut out = Vec::new();
        value.write_to(&mut out).then(|| String::from_utf8(out).expect("text"))
    }

    fn time(hours: u16, minutes: u8, seconds: u8, micros: u32) -> TimeOfDay {
        TimeOfDay { is_negative: false, hours, minutes, seconds, micros }
    }

    #[test]
    fn each_kind_of_value_has_one_form() {
        let date = Date { year: 2026, month: 1, day: 2 };
        let cases = [
            (RowValue::Integer(0), "0"),
            (RowValue::Integer(i128::from(i64::MIN)), "-9223372036854775808"),
            (RowValue::Integer(i128::from(u64::MAX)), "18446744073709551615"),
            (RowValue::Decimal("-12.50".into()), "-12.50"),
            (RowValue::Text("Ada".into()), "Ada"),
            (RowValue::Text("".into()), ""),
            (RowValue::Text("Zoë".into()), "Zoë"),
            (RowValue::Bytes([0, 0xff, 0x0a].as_slice().into()), "00ff0a"),
            (RowValue::Date(date), "2026-01-02"),
            (RowValue::Date(Date::default()), "0000-00-00"),
            (RowValue::Time(time(9, 5, 0, 0)), "09:05:00"),
            (RowValue::Time(TimeOfDay { is_negative: true, ..time(838, 59, 59, 250_000) }), "-838:59:59.25"),
            (RowValue::DateTime(date, time(10, 0, 0, 1)), "2026-01-02T10:00:00.000001"),
            (RowValue::Instant(date, time(10, 0, 0, 500_000)), "2026-01-02T10:00:00.5Z"),
            (
                RowValue::Uuid(*b"\x8d\x4b\x9a\x3e\x0a\x51\x4c\x0e\x9d\x2f\x0c\x7a\x52\xb1\xf0\xaa"),
                "8d4b9a3e-0a51-4c0e-9d2f-0c7a52b1f0aa",
            ),
        ];
        for (value, expected) in cases {
            assert_eq!(written(&value).as_deref(), Some(expected), "{value:?}");
        }
        for value in [RowValue::Null, RowValue::NotInLog, RowValue::Raw(b"NaN".as_slice().into())] {
            assert_eq!(written(&value), None, "{value:?}");
        }
    }

    #[test]
    fn instants_are_written_in_utc() {
        for (micros, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00Z"),
            (951_868_800_000_000, "2000-03-01T00:00:00Z"),
            (1_796_860_799_120_000, "2026-12-09T23:59:59.12Z"),
            (253_402_300_799_000_000, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(written(&RowValue::from_unix_micros(micros)).as_deref(), Some(expected));
        }
        assert_eq!(written(&RowValue::from_unix_micros(i64::MIN)), None);
    }
}
