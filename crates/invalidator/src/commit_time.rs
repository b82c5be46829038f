//! Times of commits, as `replay --since` takes them and logs show them: `2026-11-22T19:00:00Z`,
//! `2026-11-22T20:00:00+01:00`, or how long ago: `90s`, `15m`, `2h`, `1d`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY_S: u64 = 86_400;
const DAYS_OF_MONTHS: [u64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/// Parses a time; the error says what was expected.
pub fn parse(text: &str, now: SystemTime) -> Result<SystemTime, String> {
    let ago = parse_duration(text).and_then(|ago| now.checked_sub(ago)).filter(|at| *at >= UNIX_EPOCH);
    ago.or_else(|| parse_date(text)).ok_or_else(|| {
        format!(
            "{text:?} is not a time; expected one such as 2026-11-22T19:00:00Z, or how long ago, such as 90s, 15m or 2h"
        )
    })
}

/// The second that the time is in, such as `2026-11-22T19:00:00Z`.
pub fn format(at: SystemTime) -> String {
    let since_s = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (mut days, of_day_s) = (since_s / DAY_S, since_s % DAY_S);
    let (mut year, mut month) = (1970, 1);
    let days_of_year = |year| if is_leap(year) { 366 } else { 365 };
    while days >= days_of_year(year) {
        days -= days_of_year(year);
        year += 1;
    }
    while days >= days_of(year, month) {
        days -= days_of(year, month);
        month += 1;
    }
    let (hour, minute, second) = (of_day_s / 3_600, of_day_s / 60 % 60, of_day_s % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

fn parse_duration(text: &str) -> Option<Duration> {
    let unit_s = match text.as_bytes().last()? {
        b's' => 1,
        b'm' => 60,
        b'h' => 3_600,
        b'd' => DAY_S,
        _ => return None,
    };
    parse_number(&text[..text.len() - 1]).and_then(|number| number.checked_mul(unit_s)).map(Duration::from_secs)
}

fn parse_date(text: &str) -> Option<SystemTime> {
    let (date, time) = text.split_once('T')?;
    let [year, month, day] = parse_numbers(date, '-')?;
    let (time, offset_s) = split_offset(time)?;
    let [hour, minute, second] = parse_numbers(time, ':')?;
    if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    if day < 1 || day > days_of(year, month) {
        return None;
    }
    let days_before = (1970..year).map(|year| if is_leap(year) { 366 } else { 365 }).sum::<u64>()
        + (1..month).map(|month| days_of(year, month)).sum::<u64>();
    let local_s = (days_before + day - 1) * DAY_S + hour * 3_600 + minute * 60 + second;
    UNIX_EPOCH.checked_add(Duration::from_secs(local_s.checked_add_signed(-offset_s)?))
}

/// The time of day, and the seconds by which its zone is ahead of UTC.
fn split_offset(time: &str) -> Option<(&str, i64)> {
    if let Some(time) = time.strip_suffix('Z') {
        return Some((time, 0));
    }
    let at = time.rfind(['+', '-'])?;
    let [hours, minutes] = parse_numbers(&time[at + 1..], ':')?;
    let offset_s = i64::try_from(hours * 3_600 + minutes * 60).ok().filter(|offset_s| *offset_s <= 86_400)?;
    Some((&time[..at], if time[at..].starts_with('+') { offset_s } else { -offset_s }))
}

fn parse_numbers<const COUNT: usize>(text: &str, separator: char) -> Option<[u64; COUNT]> {
    let numbers: Vec<u64> = text.split(separator).map(parse_number).collect::<Option<_>>()?;
    numbers.try_into().ok()
}

/// A number of at most nine digits.
fn parse_number(text: &str) -> Option<u64> {
    let is_number = (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

fn days_of(year: u64, month: u64) -> u64 {
    DAYS_OF_MONTHS[month as usize - 1] + u64::from(month == 2 && is_leap(year))
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unix_s(text: &str) -> Option<u64> {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        parse(text, now).ok().map(|at| at.duration_since(UNIX_EPOCH).expect("after 1970").as_secs())
    }

    #[test]
    fn dates_and_ages_are_parsed() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:34:56Z", 951_827_696),
            ("2026-11-22T20:00:00+01:00", 1_795_374_000),
            ("2026-11-22T14:00:00-05:00", 1_795_374_000),
            ("90s", 999_910),
            ("15m", 999_100),
            ("2h", 992_800),
            ("1d", 913_600),
        ] {
            assert_eq!(unix_s(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn times_are_written_as_they_are_parsed() {
        for text in ["1970-01-01T00:00:00Z", "2000-02-29T12:34:56Z", "2026-11-22T19:00:00Z", "2027-12-31T23:59:59Z"] {
            let at = parse(text, UNIX_EPOCH).expect("a time");
            assert_eq!(format(at), text);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "s",
            "12",
            "-5m",
            "1w",
            "999999999d",
            "2026-11-22",
            "2026-11-22T19:00:00",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-11-22T24:00:00Z",
            "1969-12-31T23:59:59Z",
            "2026-11-22T19:00Z",
            "1970-01-01T00:00:00+01:00",
            "2026-11-22T19:00:00+x",
            "\u{e9}s",
            "\u{e9}",
        ] {
            assert_eq!(unix_s(text), None, "{text}");
        }
    }
}
