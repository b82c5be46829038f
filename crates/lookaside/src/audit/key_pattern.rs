//! Keys with placeholders: `user:{id}`.

use lookaside_protocol::percent;
use std::fmt;

/// A pattern of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPattern {
    parts: Vec<KeyPart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum KeyPart {
    Literal(String),
    Placeholder(String),
}

impl KeyPattern {
    /// Parses a pattern. The error says what is wrong with it.
    pub fn parse(text: &str) -> Result<KeyPattern, String> {
        let parts: Vec<KeyPart> = split_placeholders(text)
            .map_err(|why| format!("the key {text:?} {why}"))?
            .into_iter()
            .map(|part| match part {
                TemplatePart::Literal(text) => KeyPart::Literal(text.to_owned()),
                TemplatePart::Placeholder(name) => KeyPart::Placeholder(name.to_owned()),
            })
            .collect();
        let are_adjacent = |pair: &[KeyPart]| matches!(pair, [KeyPart::Placeholder(_), KeyPart::Placeholder(_)]);
        if parts.windows(2).any(are_adjacent) {
            return Err(format!("the key {text:?} has nothing between two placeholders, so they cannot be separated"));
        }
        let pattern = KeyPattern { parts };
        let names: Vec<&str> = pattern.placeholders().collect();
        if names.is_empty() {
            return Err(format!("the key {text:?} has no placeholder, as in user:{{id}}"));
        }
        match names.iter().enumerate().find(|(index, name)| names[..*index].contains(name)) {
            Some((_, name)) => Err(format!("the key {text:?} has the placeholder {{{name}}} twice")),
            None => Ok(pattern),
        }
    }

    /// The names of its placeholders, in order.
    pub fn placeholders(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            KeyPart::Placeholder(name) => Some(name.as_str()),
            KeyPart::Literal(_) => None,
        })
    }

    /// The values of the placeholders in `key`, each not empty, and each up to the first place where the text behind it
    /// follows; `None` if the key is none of the pattern, or not UTF-8.
    pub fn values_of(&self, key: &[u8]) -> Option<Vec<String>> {
        let mut rest = std::str::from_utf8(key).ok()?;
        let mut values = Vec::new();
        for (index, part) in self.parts.iter().enumerate() {
            match part {
                KeyPart::Literal(text) => rest = rest.strip_prefix(text.as_str())?,
                KeyPart::Placeholder(_) => {
                    let end = match self.parts.get(index + 1) {
                        Some(KeyPart::Literal(text)) => rest.find(text.as_str())?,
                        _ => rest.len(),
                    };
                    let (value, after) = rest.split_at(end);
                    if value.is_empty() {
                        return None;
                    }
                    values.push(value.to_owned());
                    rest = after;
                }
            }
        }
        rest.is_empty().then_some(values)
    }

    /// The key with these values, one for each placeholder.
    pub fn fill(&self, values: &[String]) -> Vec<u8> {
        let mut values = values.iter();
        let parts = self.parts.iter().map(|part| match part {
            KeyPart::Literal(text) => text.as_str(),
            KeyPart::Placeholder(_) => values.next().map_or("", String::as_str),
        });
        parts.collect::<String>().into_bytes()
    }
}

/// A key as it is printed: bytes that a terminal may not show are percent-encoded.
pub fn printable_key(key: &[u8]) -> String {
    percent::encode_except(key, |byte| byte.is_ascii_graphic() && byte != b'%').to_string()
}

impl fmt::Display for KeyPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.iter().try_for_each(|part| match part {
            KeyPart::Literal(text) => f.write_str(text),
            KeyPart::Placeholder(name) => write!(f, "{{{name}}}"),
        })
    }
}

/// A piece of a text with placeholders.
pub(super) enum TemplatePart<'a> {
    Literal(&'a str),
    Placeholder(&'a str),
}

/// Splits `text` at its placeholders, `{name}`. The error is the rest of a sentence about the text.
pub(super) fn split_placeholders(text: &str) -> Result<Vec<TemplatePart<'_>>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(begin) = rest.find('{') {
        let (literal, after) = rest.split_at(begin);
        if !literal.is_empty() {
            parts.push(TemplatePart::Literal(literal));
        }
        let end = after.find('}').ok_or_else(|| format!("has no }} behind {after:?}"))?;
        let name = &after[1..end];
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Err(format!("has the placeholder {{{name}}}, which is not of letters, digits and _"));
        }
        parts.push(TemplatePart::Placeholder(name));
        rest = &after[end + 1..];
    }
    if !rest.is_empty() {
        parts.push(TemplatePart::Literal(rest));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_patterns_are_refused() {
        for bad in ["", "user", "user:{id", "user:{}", "user:{a b}", "{a}{b}", "{a}:{a}"] {
            assert!(KeyPattern::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_key_is_filled_from_the_values_that_it_has() {
        let pattern = KeyPattern::parse("cart:{shop}:{user}").expect("valid");
        assert_eq!(pattern.placeholders().collect::<Vec<_>>(), ["shop", "user"]);
        let values = vec!["7".to_owned(), "ada".to_owned()];
        assert_eq!(pattern.values_of(b"cart:7:ada").as_ref(), Some(&values));
        assert_eq!(pattern.fill(&values), b"cart:7:ada");
    }

    #[test]
    fn a_key_is_one_of_a_pattern_or_not() {
        let pattern = KeyPattern::parse("u:{a}:x:{b}").expect("valid");
        assert_eq!(pattern.to_string(), "u:{a}:x:{b}");
        for key in ["u:1", "u::x:2", "u:1:x:", "v:1:x:2", "u:1:y:2"] {
            assert_eq!(pattern.values_of(key.as_bytes()), None, "{key}");
        }
        assert_eq!(pattern.values_of(b"u:1:x:2:x:3"), Some(vec!["1".into(), "2:x:3".into()]));
        assert_eq!(pattern.values_of(b"u:\xff:x:2"), None);
    }
}
