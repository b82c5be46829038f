//! The text of calls, and how much an expansion is.

use crate::configuration::json::{Json, JsonValue};

/// The maximum expansion of all macros, in bytes of text; each value counts [`VALUE_BYTES`] more.
pub(super) const EXPANSION_BYTES_MAX: usize = 4 << 20;

pub(super) const VALUE_BYTES: usize = 16;

/// The arguments of a call: split at commas outside of brackets, without the spaces around them. `None` if brackets are
/// not balanced.
pub(super) fn split_arguments(text: &str) -> Option<Vec<&str>> {
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    let (mut arguments, mut start, mut open, mut escaped) = (Vec::new(), 0, 0_usize, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'(' => open += 1,
            b')' => open = open.checked_sub(1)?,
            b',' if open == 0 => {
                arguments.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    arguments.push(text[start..].trim());
    (open == 0).then_some(arguments)
}

pub(super) fn expansion_bytes(value: &Json) -> usize {
    VALUE_BYTES
        + match &value.value {
            JsonValue::String(text) | JsonValue::Number(text) => text.len(),
            JsonValue::List(list) => list.iter().map(expansion_bytes).sum(),
            JsonValue::Object(properties) => {
                properties.iter().map(|property| property.name.len() + expansion_bytes(&property.value)).sum()
            }
            JsonValue::Boolean(_) | JsonValue::Null => 0,
        }
}
