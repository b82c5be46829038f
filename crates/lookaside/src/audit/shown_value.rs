//! Values as the report has them, so that a mistaken query can be distinguished from a wrong value. Bounded: a value
//! may have a mebibyte.

use super::{cached_value::CachedValue, comparison::Column, queries::ValueFormat};
use serde_json::{Map, Value};

/// The most bytes of a value that are shown.
const SHOWN_BYTES_MAX: usize = 1_000;

/// The cached value; `None` if it is the mark of an absent row, or cannot be decoded.
pub fn show_cached(value: &CachedValue) -> Option<String> {
    match value {
        CachedValue::Text(bytes) => Some(match std::str::from_utf8(bytes) {
            Ok(text) => shorten(text),
            Err(_) => shorten(&bytes.escape_ascii().to_string()),
        }),
        CachedValue::Document(document) => Some(shorten(&document.to_string())),
        CachedValue::Absent | CachedValue::Unreadable => None,
    }
}

/// The value that the row has; `None` if there is no row, or the only column of a text is NULL.
pub fn show_expected(format: ValueFormat, row: Option<&[Column]>) -> Option<String> {
    match (format, row?) {
        (ValueFormat::Text, [(_, text)]) => text.as_deref().map(shorten),
        (ValueFormat::Json, [(_, Some(text))]) if text.trim_start().starts_with(['{', '[']) => Some(shorten(text)),
        (_, columns) => {
            let field = |(name, text): &Column| (name.clone(), Value::from(text.clone()));
            Some(shorten(&Value::Object(columns.iter().map(field).collect::<Map<_, _>>()).to_string()))
        }
    }
}

/// The value in quotes and escaped, for a line of text.
pub fn quote(value: Option<&str>) -> String {
    value.map_or("none".to_owned(), |value| format!("{value:?}"))
}

fn shorten(text: &str) -> String {
    if text.len() <= SHOWN_BYTES_MAX {
        return text.to_owned();
    }
    let end = (0..=SHOWN_BYTES_MAX).rev().find(|&at| text.is_char_boundary(at)).unwrap_or_default();
    format!("{}... ({} bytes)", &text[..end], text.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::slice::from_ref;

    #[test]
    fn values_are_shown_as_text() {
        let text = |bytes: &'static [u8]| show_cached(&CachedValue::Text(bytes.into()));
        assert_eq!(text(b"ada\n").as_deref(), Some("ada\n"));
        assert_eq!(text(b"\xff\0").as_deref(), Some("\\xff\\x00"));
        assert_eq!(show_cached(&CachedValue::Document(json!({ "a": 1 }))).as_deref(), Some("{\"a\":1}"));
        assert_eq!(show_cached(&CachedValue::Absent), None);
        assert_eq!((quote(Some("a\"\n\u{1b}")), quote(None)), (r#""a\"\n\u{1b}""#.to_owned(), "none".to_owned()));
    }

    #[test]
    fn a_row_is_shown_as_the_value_that_it_has() {
        let column = |name: &str, text: Option<&str>| (name.to_owned(), text.map(ToOwned::to_owned));
        let (name, none) = (column("name", Some("ada")), column("email", None));
        let (text, json) = (ValueFormat::Text, ValueFormat::Json);
        assert_eq!(show_expected(text, None), None);
        assert_eq!(show_expected(text, Some(from_ref(&name))).as_deref(), Some("ada"));
        assert_eq!(show_expected(text, Some(from_ref(&none))), None);
        let both = show_expected(json, Some(&[name.clone(), none])).expect("a row");
        assert_eq!(serde_json::from_str::<Value>(&both).expect("JSON"), json!({ "name": "ada", "email": null }));
        assert_eq!(show_expected(json, Some(&[name])).as_deref(), Some("{\"name\":\"ada\"}"));
        assert_eq!(show_expected(json, Some(&[column("doc", Some("[1]"))])).as_deref(), Some("[1]"));
    }

    #[test]
    fn a_long_value_is_shortened_between_two_characters() {
        let long = "a".to_owned() + &"\u{20ac}".repeat(SHOWN_BYTES_MAX);
        let shown = shorten(&long);
        assert!(shown.len() < SHOWN_BYTES_MAX + 30 && shown.ends_with("... (3001 bytes)"), "{shown}");
        assert!(shown.starts_with("a\u{20ac}"));
        assert_eq!(shorten(&long[..1_000]), long[..1_000]);
    }
}
