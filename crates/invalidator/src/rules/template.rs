//! Templates of keys: `user:{id}` is literal text and the values of columns. `{{` and `}}` stand for braces.

use lookaside_protocol::KEY_BYTES_MAX;
use std::fmt;

/// A template of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pub(super) parts: Vec<TemplatePart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TemplatePart {
    Literal(Vec<u8>),
    /// The name of a column, as the rule file has it.
    Column(String),
}

/// As a rule file has it.
impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.iter().try_for_each(|part| match part {
            TemplatePart::Literal(text) => {
                f.write_str(&String::from_utf8_lossy(text).replace('{', "{{").replace('}', "}}"))
            }
            TemplatePart::Column(name) => write!(f, "{{{name}}}"),
        })
    }
}

impl Template {
    /// Parses a template. The error says what was expected.
    pub fn parse(text: &str) -> Result<Template, String> {
        let mut parts = Vec::new();
        let mut literal = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            literal.extend_from_slice(&rest.as_bytes()[..at]);
            let (brace, after) = rest[at..].split_at(1);
            if after.starts_with(brace) {
                literal.extend_from_slice(brace.as_bytes());
                rest = &after[1..];
                continue;
            }
            let end = after.find('}').filter(|_| brace == "{").ok_or_else(|| {
                format!(
                    "the key {text:?} has a single '{brace}'; write {{column}}, or {brace}{brace} for the character"
                )
            })?;
            let column = &after[..end];
            if column.is_empty() || column.contains('{') {
                return Err(format!("the key {text:?} has a '{{' without the name of a column and a '}}' after it"));
            }
            if !literal.is_empty() {
                parts.push(TemplatePart::Literal(std::mem::take(&mut literal)));
            }
            parts.push(TemplatePart::Column(column.to_owned()));
            rest = &after[end + 1..];
        }
        literal.extend_from_slice(rest.as_bytes());
        if !literal.is_empty() {
            parts.push(TemplatePart::Literal(literal));
        }
        let template = Template { parts };
        template.check(text)?;
        Ok(template)
    }

    /// Its key if it has no columns: every change of the table deletes it.
    pub fn constant_key(&self) -> Option<String> {
        match self.parts.as_slice() {
            [TemplatePart::Literal(key)] => Some(String::from_utf8_lossy(key).into_owned()),
            _ => None,
        }
    }

    /// The names of its columns, with repetitions.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Column(name) => Some(name.as_str()),
            TemplatePart::Literal(_) => None,
        })
    }

    /// What all of its keys begin with; `None` if it has no columns, so that its one key is always known.
    pub(super) fn start(&self) -> Option<&[u8]> {
        self.columns().next()?;
        match self.parts.first() {
            Some(TemplatePart::Literal(start)) => Some(start),
            _ => Some(b""),
        }
    }

    /// A key is neither empty, nor longer than servers allow, nor does it have spaces or control characters: so the
    /// literal text of a template must not, either.
    fn check(&self, text: &str) -> Result<(), String> {
        let literals = || {
            self.parts.iter().filter_map(|part| match part {
                TemplatePart::Literal(bytes) => Some(bytes),
                TemplatePart::Column(_) => None,
            })
        };
        if self.parts.is_empty() {
            return Err("a key is empty".into());
        }
        if literals().map(Vec::len).sum::<usize>() > KEY_BYTES_MAX {
            return Err(format!("the key {text:?} is longer than {KEY_BYTES_MAX} bytes"));
        }
        match literals().flatten().any(|&byte| byte <= b' ' || byte == 0x7f) {
            true => Err(format!("the key {text:?} has a space or a control character, which no key may have")),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_parsed() {
        let column = |name: &str| TemplatePart::Column(name.into());
        let literal = |text: &str| TemplatePart::Literal(text.into());
        let cases = [
            ("user:{id}", vec![literal("user:"), column("id")]),
            ("{a}{b}:c", vec![column("a"), column("b"), literal(":c")]),
            ("list:users", vec![literal("list:users")]),
            ("{{{id}}}", vec![literal("{"), column("id"), literal("}")]),
            ("{{id}}", vec![literal("{id}")]),
            ("{column of two words}", vec![column("column of two words")]),
        ];
        for (text, parts) in cases {
            assert_eq!(Template::parse(text), Ok(Template { parts }), "{text}");
        }
    }

    #[test]
    fn invalid_templates_are_refused() {
        for text in ["", "user:{id", "user:id}", "user:{}", "user:{a{b}", "two words", "tab\t", &"k".repeat(251)] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
    }
}
