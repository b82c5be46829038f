//! How a value that a person writes, in JSON or as a literal of SQL, becomes the value that a column would have.
//!
//! A value in another form is refused and never guessed. Whether it is in the range of its column, the database knows.

use super::value::{Date, RowValue, TimeOfDay, read_hex};
use std::borrow::Cow;

/// How the text of a value becomes a value of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnForm {
    /// Digits, perhaps with a sign.
    Integer,
    /// A number, which SQL may write in other ways.
    Bits,
    /// Four digits, or 0.
    Year,
    /// `true` and `false`, which keys have as 1 and 0.
    Boolean,
    /// Digits, with this many after the point in keys.
    Decimal {
        /// How many.
        scale: usize,
    },
    /// Any text.
    Text {
        /// Whether the column loses the spaces at its end.
        is_padded: bool,
    },
    /// One of these.
    Label(Vec<String>),
    /// Some of these, with commas, in this order in keys.
    Labels(Vec<String>),
    /// Two hexadecimal digits a byte.
    Bytes {
        /// The width to which the column fills values up by zeros; 0 if it does not.
        width: usize,
    },
    /// `2026-11-22`.
    Date,
    /// `09:05:00.25`.
    Time {
        /// The most digits of a fraction of a second.
        fraction_digits: usize,
    },
    /// `2026-11-22T09:05:00`.
    DateTime {
        /// As of a time.
        fraction_digits: usize,
    },
    /// `2026-11-22T09:05:00Z`.
    Instant {
        /// As of a time.
        fraction_digits: usize,
    },
    /// `8d4b9a3e-0a51-4c0e-9d2f-0c7a52b1f0aa`.
    Uuid,
    /// Only the database knows.
    Other,
}

impl ColumnForm {
    /// The value of the column that is written as `text`. The error says what is expected.
    pub fn read(&self, text: &str) -> Result<RowValue<'static>, String> {
        self.try_read(text).ok_or_else(|| self.expected())
    }

    fn try_read(&self, text: &str) -> Option<RowValue<'static>> {
        Some(match self {
            ColumnForm::Integer => RowValue::Integer(text.parse().ok()?),
            ColumnForm::Bits => RowValue::Integer(text.parse::<u64>().ok()?.into()),
            ColumnForm::Year if text == "0" => RowValue::Integer(0),
            ColumnForm::Year => RowValue::Integer(numbers(text, '-', [4])?[0].into()),
            ColumnForm::Boolean => RowValue::Integer(match text {
                "true" => 1,
                "false" => 0,
                _ => return None,
            }),
            ColumnForm::Decimal { scale } => RowValue::Decimal(decimal(text, *scale)?.into()),
            ColumnForm::Text { is_padded: false } => RowValue::Text(Cow::Owned(text.into())),
            ColumnForm::Text { is_padded: true } => RowValue::Text(Cow::Owned(text.trim_end_matches(' ').into())),
            ColumnForm::Label(labels) => RowValue::Text(labels.iter().find(|label| *label == text)?.clone().into()),
            ColumnForm::Labels(labels) => {
                let named: Vec<&str> = text.split(',').filter(|_| !text.is_empty()).collect();
                let is_known = |name: &&str| labels.iter().any(|label| label == name);
                let in_order = labels.iter().map(String::as_str).filter(|label| named.contains(label));
                let set: Vec<&str> = named.iter().all(is_known).then(|| in_order.collect())?;
                RowValue::Text(set.join(",").into())
            }
            ColumnForm::Bytes { width } => {
                let mut bytes = read_hex(text)?;
                bytes.resize(bytes.len().max(*width), 0);
                RowValue::Bytes(bytes.into())
            }
            ColumnForm::Date => RowValue::Date(date(text)?),
            ColumnForm::Time { fraction_digits } => RowValue::Time(time(text, *fraction_digits)?),
            ColumnForm::DateTime { fraction_digits } => {
                let (day, clock) = text.split_once(['T', ' '])?;
                RowValue::DateTime(date(day)?, time_of_day(clock, *fraction_digits)?)
            }
            ColumnForm::Instant { fraction_digits } => {
                let (day, clock) = text.strip_suffix('Z')?.split_once(['T', ' '])?;
                RowValue::Instant(date(day)?, time_of_day(clock, *fraction_digits)?)
            }
            ColumnForm::Uuid => RowValue::Uuid(uuid(text)?),
            ColumnForm::Other => return None,
        })
    }

    /// Whether its values may be written as numbers.
    pub(super) fn is_numeric(&self) -> bool {
        matches!(self, ColumnForm::Integer | ColumnForm::Bits | ColumnForm::Year | ColumnForm::Decimal { .. })
    }

    /// What a value has to be.
    pub(super) fn expected(&self) -> String {
        let with_fraction = |what: &str, digits: usize| match digits {
            0 => format!("{what}, without a fraction of a second"),
            _ => format!("{what}, with {digits} digits of a fraction of a second at most"),
        };
        match self {
            ColumnForm::Integer => "an integer".into(),
            ColumnForm::Bits => "the number that the bits are".into(),
            ColumnForm::Year => "a year with four digits".into(),
            ColumnForm::Boolean => "true or false".into(),
            ColumnForm::Decimal { scale } => format!("a decimal with {scale} digits after the point at most"),
            ColumnForm::Text { .. } => "text".into(),
            ColumnForm::Label(labels) => format!("one of {}", labels.join(", ")),
            ColumnForm::Labels(labels) => format!("labels with commas, of {}", labels.join(", ")),
            ColumnForm::Bytes { .. } => "two hexadecimal digits for each byte".into(),
            ColumnForm::Date => "a date such as 2026-11-22".into(),
            ColumnForm::Time { fraction_digits } => with_fraction("a time such as 09:05:00", *fraction_digits),
            ColumnForm::DateTime { fraction_digits } => {
                with_fraction("a date and time such as 2026-11-22T09:05:00", *fraction_digits)
            }
            ColumnForm::Instant { fraction_digits } => {
                with_fraction("an instant in UTC such as 2026-11-22T09:05:00Z", *fraction_digits)
            }
            ColumnForm::Uuid => "a UUID".into(),
            ColumnForm::Other => "null: only the database can read other values of this column".into(),
        }
    }
}

/// Whether a minus sign is in front of `text`, and the rest.
fn split_sign(text: &str) -> (bool, &str) {
    text.strip_prefix('-').map_or((false, text), |rest| (true, rest))
}

/// The number as a column with `scale` digits after the point has it.
fn decimal(text: &str, scale: usize) -> Option<String> {
    let (is_negative, digits) = split_sign(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let fraction = fraction.trim_end_matches('0');
    let is_number = !whole.is_empty() && whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit());
    if !is_number || fraction.len() > scale {
        return None;
    }
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        whole => whole,
    };
    let sign = if is_negative && (whole != "0" || !fraction.is_empty()) { "-" } else { "" };
    let point = if scale > 0 { "." } else { "" };
    Some(format!("{sign}{whole}{point}{fraction:0<scale$}"))
}

fn date(text: &str) -> Option<Date> {
    let [year, month, day] = numbers(text, '-', [4, 2, 2])?;
    (month <= 12 && day <= 31).then_some(Date { year, month: month as u8, day: day as u8 })
}

/// A time, also one below zero or over a day, as MySQL's TIME.
fn time(text: &str, fraction_digits: usize) -> Option<TimeOfDay> {
    let (is_negative, text) = split_sign(text);
    let (clock, fraction) = text.split_once('.').unwrap_or((text, ""));
    let fraction = fraction.trim_end_matches('0');
    let hours_width = clock.find(':')?.clamp(2, 3);
    let [hours, minutes, seconds] = numbers(clock, ':', [hours_width, 2, 2])?;
    let micros = numbers(&format!("{fraction:0<6}"), ':', [6])?[0];
    let is_time = minutes < 60 && seconds < 60 && fraction.len() <= fraction_digits;
    let is_zero = (hours, minutes, seconds, micros) == (0, 0, 0, 0);
    is_time.then_some(TimeOfDay {
        is_negative: is_negative && !is_zero,
        hours: hours as u16,
        minutes: minutes as u8,
        seconds: seconds as u8,
        micros,
    })
}

fn time_of_day(text: &str, fraction_digits: usize) -> Option<TimeOfDay> {
    time(text, fraction_digits).filter(|time| !time.is_negative && time.hours < 24)
}

/// Numbers with this many digits each, with `separator` between them.
fn numbers<const COUNT: usize>(text: &str, separator: char, digits: [usize; COUNT]) -> Option<[u32; COUNT]> {
    let parts: Vec<&str> = text.split(separator).collect();
    let is_number = |part: &str, digits: usize| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_good = parts.len() == COUNT && parts.iter().zip(digits).all(|(part, digits)| is_number(part, digits));
    let numbers: Vec<u32> = is_good.then(|| parts.iter().filter_map(|part| part.parse().ok()).collect())?;
    numbers.try_into().ok()
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    let widths: Vec<usize> = text.split('-').map(str::len).collect();
    let has_hyphens = matches!(widths.as_slice(), [8, 4, 4, 4, 12] | [32]);
    read_hex(&text.replace('-', "")).filter(|_| has_hyphens)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of a key, or the error.
    fn in_key(form: &ColumnForm, text: &str) -> Result<String, String> {
        let mut out = Vec::new();
        assert!(form.read(text)?.write_to(&mut out), "{form:?} {text}");
        Ok(String::from_utf8(out).expect("text"))
    }

    fn labels() -> Vec<String> {
        ["read", "write"].map(String::from).into()
    }

    #[test]
    fn values_get_the_form_of_their_column() {
        for (form, text, expected) in [
            (ColumnForm::Integer, "-007", "-7"),
            (ColumnForm::Bits, "5", "5"),
            (ColumnForm::Year, "2026", "2026"),
            (ColumnForm::Year, "0000", "0"),
            (ColumnForm::Boolean, "true", "1"),
            (ColumnForm::Decimal { scale: 2 }, "12.5", "12.50"),
            (ColumnForm::Decimal { scale: 2 }, "-012.500", "-12.50"),
            (ColumnForm::Decimal { scale: 2 }, "-0", "0.00"),
            (ColumnForm::Decimal { scale: 0 }, "7.0", "7"),
            (ColumnForm::Text { is_padded: false }, "Ada ", "Ada "),
            (ColumnForm::Text { is_padded: true }, "Ada ", "Ada"),
            (ColumnForm::Label(labels()), "write", "write"),
            (ColumnForm::Labels(labels()), "write,read", "read,write"),
            (ColumnForm::Labels(labels()), "", ""),
            (ColumnForm::Bytes { width: 0 }, "00FF", "00ff"),
            (ColumnForm::Bytes { width: 3 }, "ff", "ff0000"),
            (ColumnForm::Date, "2026-11-22", "2026-11-22"),
            (ColumnForm::Time { fraction_digits: 2 }, "-838:59:59.250", "-838:59:59.25"),
            (ColumnForm::Time { fraction_digits: 2 }, "-00:00:00", "00:00:00"),
            (ColumnForm::DateTime { fraction_digits: 0 }, "2026-11-22 09:05:00.0", "2026-11-22T09:05:00"),
            (ColumnForm::Instant { fraction_digits: 6 }, "2026-11-22T09:05:00.000001Z", "2026-11-22T09:05:00.000001Z"),
            (ColumnForm::Uuid, "8D4B9A3E0A514C0E9D2F0C7A52B1F0AA", "8d4b9a3e-0a51-4c0e-9d2f-0c7a52b1f0aa"),
        ] {
            assert_eq!(in_key(&form, text).as_deref(), Ok(expected), "{form:?} {text}");
        }
    }

    #[test]
    fn what_a_column_cannot_have_is_refused() {
        for (form, texts) in [
            (ColumnForm::Integer, &["", "1.5", "one"][..]),
            (ColumnForm::Bits, &["-1", "b'1'"]),
            (ColumnForm::Year, &["26", "02026"]),
            (ColumnForm::Boolean, &["1", "TRUE"]),
            (ColumnForm::Decimal { scale: 2 }, &["12.345", "1e3", ".5", "NaN", "--1", ""]),
            (ColumnForm::Label(labels()), &["Write", ""]),
            (ColumnForm::Labels(labels()), &["read,other", "read,", ","]),
            (ColumnForm::Bytes { width: 0 }, &["f", "0g", "é"]),
            (ColumnForm::Date, &["2026-13-01", "26-11-22", "2026-11-22T00:00:00", "infinity"]),
            (
                ColumnForm::Time { fraction_digits: 2 },
                &["9:05:00", "09:05", "09:60:00", "09:05:00.123", "1000:00:00", ":"],
            ),
            (
                ColumnForm::DateTime { fraction_digits: 0 },
                &["2026-11-22", "2026-11-22T24:00:00", "2026-11-22T-1:00:00"],
            ),
            (ColumnForm::Instant { fraction_digits: 0 }, &["2026-11-22T09:05:00", "2026-11-22T09:05:00.5Z"]),
            (ColumnForm::Uuid, &["8d4b9a3e", "8d4b9a3e-0a514c0e-9d2f-0c7a-52b1f0aa", ""]),
            (ColumnForm::Other, &["1"]),
        ] {
            for text in texts {
                assert!(in_key(&form, text).is_err(), "{form:?} {text}");
            }
        }
    }
}
