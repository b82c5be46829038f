//! Parses the file of runtime variables.
//!
//! ```json
//! {"key_fraction_range_images": [0, 0.25], "key_fractions": {"texts": 0.5}}
//! ```
//!
//! A name has a range of keys. `key_fractions` has upper ends: `texts` there is `key_fraction_range_texts` from 0.

use super::{
    error::{ConfigurationError, ConfigurationErrors},
    json,
    json_cursor::{Document, Node},
};
use crate::KeyFraction;
use std::collections::BTreeMap;

const KEY_FRACTIONS: &str = "key_fractions";
const NAME_START: &str = "key_fraction_range_";

/// The variables of a JSON object, by name. Those of another form are for others, and are skipped.
///
/// # Errors
/// The text is not a JSON object, or its `key_fractions` are not numbers from 0 to 1.
pub fn parse_runtime_variables(text: &str) -> Result<BTreeMap<String, KeyFraction>, ConfigurationErrors> {
    let json = json::parse(text)?;
    let document = Document::new(text);
    let parsed = parse_object(&document.top(&json));
    document.finish_parsing(parsed).map(|(variables, _)| variables)
}

fn parse_object(top: &Node<'_>) -> Result<BTreeMap<String, KeyFraction>, ConfigurationError> {
    let mut variables = BTreeMap::new();
    for (name, node) in top.object("an object with a range of keys for each name")?.entries() {
        if name == KEY_FRACTIONS {
            for (name, node) in node.object("an object with a part of all keys for each name")?.entries() {
                let end = node.number("a part of all keys", 0.0, 1.0)?;
                variables.insert(format!("{NAME_START}{name}"), KeyFraction::new(0.0, end));
            }
        } else if let Ok(range) = parse_key_fraction(&node) {
            variables.insert(name.to_owned(), range);
        }
    }
    Ok(variables)
}

const A_FRACTION_RANGE: &str = "the start and the end of the keys, as parts of 1, such as [0, 0.25]";

/// Parses a range of keys.
pub(crate) fn parse_key_fraction(node: &Node<'_>) -> Result<KeyFraction, ConfigurationError> {
    let part = |node: &Node<'_>| node.number("a part of all keys", 0.0, 1.0);
    match &*node.array(A_FRACTION_RANGE)? {
        [start, end] => {
            let (start, end) = (part(start)?, part(end)?);
            match start <= end {
                true => Ok(KeyFraction::new(start, end)),
                false => Err(node.error(format!("the range is backwards: expected {A_FRACTION_RANGE}"))),
            }
        }
        other => Err(node.error(format!("{} numbers: expected {A_FRACTION_RANGE}", other.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_a_range_or_an_upper_end() {
        let text = r#"{"images": [0.25, 0.5], "key_fractions": {"texts": 0.5}, "other": "word", "backwards": [1, 0]}"#;
        let expected = [
            ("images".to_owned(), KeyFraction::new(0.25, 0.5)),
            ("key_fraction_range_texts".to_owned(), KeyFraction::new(0.0, 0.5)),
        ];
        assert_eq!(parse_runtime_variables(text), Ok(expected.into()));
    }

    #[test]
    fn a_bad_file_is_refused() {
        for bad in ["", "[]", "{", r#"{"key_fractions": 1}"#, r#"{"key_fractions": {"texts": 2}}"#] {
            assert!(parse_runtime_variables(bad).is_err(), "{bad}");
        }
    }
}
