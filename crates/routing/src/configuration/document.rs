//! The JSON of a configuration, with the place of everything in it, so that whatever is wrong can be pointed at.
//! No request passes here.
//!
//! The parser keeps ranges; a [`Node`] adds the path from the top. Typed access fails with what was expected and what
//! was found.

use super::error::{ConfigurationError, ConfigurationWarning, place, suggestion};
use jsonc_parser::{
    CollectOptions, ParseOptions,
    ast::{ObjectProp, Value},
    common::Ranged,
    parse_to_ast,
};
use std::{cell::RefCell, collections::BTreeMap};

/// JSON, and comments of C and C++; nothing else of what the parser could allow, since mcrouter refuses it too.
const DIALECT: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_loose_object_property_names: false,
    allow_trailing_commas: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// The value in `text`.
pub(super) fn parse(text: &str) -> Result<Value<'_>, ConfigurationError> {
    let refuse = |at: usize, message: String| {
        let (line, column) = place(text, at);
        ConfigurationError { line, column, path: String::new(), message }
    };
    match parse_to_ast(text, &CollectOptions::default(), &DIALECT) {
        Ok(result) => result.value.ok_or_else(|| refuse(0, "the configuration is empty".to_owned())),
        Err(error) => Err(refuse(error.range().start, format!("this is no JSON: {}", error.kind()))),
    }
}

/// The text and what was said about it so far.
pub(super) struct Document<'a> {
    text: &'a str,
    warnings: RefCell<Vec<ConfigurationWarning>>,
}

impl<'a> Document<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Document { text, warnings: RefCell::default() }
    }

    pub(super) fn top(&'a self, value: &'a Value<'a>) -> Node<'a> {
        Node { document: self, value, path: String::new() }
    }

    pub(super) fn into_warnings(self) -> Vec<ConfigurationWarning> {
        self.warnings.into_inner()
    }
}

/// A value and the way to it.
#[derive(Clone)]
pub(super) struct Node<'a> {
    document: &'a Document<'a>,
    value: &'a Value<'a>,
    path: String,
}

impl<'a> Node<'a> {
    /// An error at this place.
    pub(super) fn error(&self, message: impl Into<String>) -> ConfigurationError {
        self.error_at(self.value.range().start, &self.path, message.into())
    }

    fn error_at(&self, at: usize, path: &str, message: String) -> ConfigurationError {
        let (line, column) = place(self.document.text, at);
        ConfigurationError { line, column, path: path.to_owned(), message }
    }

    /// Notes that something at this place is ignored.
    pub(super) fn warn(&self, message: impl Into<String>) {
        let ConfigurationError { line, column, path, message } = self.error(message);
        self.document.warnings.borrow_mut().push(ConfigurationWarning { line, column, path, message });
    }

    fn unexpected(&self, expected: &str) -> ConfigurationError {
        self.error(format!("expected {expected}, found {}", found(self.value)))
    }

    pub(super) fn is_object(&self) -> bool {
        self.value.as_object().is_some()
    }

    pub(super) fn is_array(&self) -> bool {
        self.value.as_array().is_some()
    }

    /// The text, if this is a string.
    pub(super) fn as_string(&self) -> Option<&'a str> {
        self.value.as_string_lit().map(|string| &*string.value)
    }

    /// Whether this is an object or a list with nothing in it.
    pub(super) fn is_empty(&self) -> bool {
        match self.value {
            Value::Object(object) => object.properties.is_empty(),
            Value::Array(array) => array.elements.is_empty(),
            _ => false,
        }
    }

    pub(super) fn string(&self, expected: &str) -> Result<&'a str, ConfigurationError> {
        self.as_string().ok_or_else(|| self.unexpected(expected))
    }

    pub(super) fn boolean(&self) -> Result<bool, ConfigurationError> {
        self.value.as_boolean_lit().map(|literal| literal.value).ok_or_else(|| self.unexpected("true or false"))
    }

    /// A whole number in `min..=max`; `what` says of what.
    pub(super) fn integer(&self, what: &str, min: i64, max: i64) -> Result<i64, ConfigurationError> {
        let number = self.value.as_number_lit().and_then(|literal| literal.value.parse().ok());
        number
            .filter(|number| (min..=max).contains(number))
            .ok_or_else(|| self.unexpected(&format!("{what} from {min} to {max}")))
    }

    /// A number in `min..=max`; `what` says of what.
    pub(super) fn number(&self, what: &str, min: f64, max: f64) -> Result<f64, ConfigurationError> {
        let number = self.value.as_number_lit().and_then(|literal| literal.value.parse().ok());
        number
            .filter(|number| (min..=max).contains(number))
            .ok_or_else(|| self.unexpected(&format!("{what} from {min} to {max}")))
    }

    /// The elements of a list.
    pub(super) fn array(&self, expected: &str) -> Result<Vec<Node<'a>>, ConfigurationError> {
        let array = self.value.as_array().ok_or_else(|| self.unexpected(expected))?;
        let element = |(at, value)| Node { document: self.document, value, path: format!("{}[{at}]", self.path) };
        Ok(array.elements.iter().enumerate().map(element).collect())
    }

    /// The object; a key that stands twice is an error, since one of them would be lost.
    pub(super) fn object(&self, expected: &str) -> Result<Object<'a>, ConfigurationError> {
        let object = self.value.as_object().ok_or_else(|| self.unexpected(expected))?;
        let mut first_by_name = BTreeMap::new();
        for property in &object.properties {
            let name = property.name.as_str();
            if let Some(first) = first_by_name.insert(name, property.range.start) {
                let (line, _) = place(self.document.text, first);
                let message = format!("{name:?} stands twice; the first time on line {line}");
                return Err(self.error_at(property.range.start, &self.child_path(name), message));
            }
        }
        Ok(Object { node: self.clone(), properties: &object.properties })
    }

    fn child_path(&self, name: &str) -> String {
        match &*self.path {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        }
    }
}

/// Which keys an object may have.
pub(super) struct Keys {
    /// Those that are read.
    pub(super) known: &'static [&'static str],
    /// mcrouter's that change nothing here: a warning.
    pub(super) ignored: &'static [&'static str],
    /// mcrouter's that would change where requests go, or how: an error.
    pub(super) refused: &'static [&'static str],
}

/// An object whose keys are all different.
pub(super) struct Object<'a> {
    pub(super) node: Node<'a>,
    properties: &'a [ObjectProp<'a>],
}

impl<'a> Object<'a> {
    /// Refuses keys that nobody knows, or that ask for what is not there; warns of those that are ignored.
    pub(super) fn check(&self, keys: &Keys) -> Result<(), ConfigurationError> {
        for property in self.properties {
            let name = property.name.as_str();
            let error = |message| self.node.error_at(property.range.start, &self.node.child_path(name), message);
            if keys.refused.contains(&name) {
                return Err(error(format!("mcrouter's {name:?} is not supported")));
            }
            if keys.ignored.contains(&name) {
                self.child(property).warn(format!("{name:?} is ignored"));
            } else if !keys.known.contains(&name) {
                let known = keys.known.iter().copied();
                return Err(error(format!("nothing is named {name:?} here{}", suggestion(name, "keys", known))));
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, name: &str) -> Option<Node<'a>> {
        self.properties.iter().find(|property| property.name.as_str() == name).map(|property| self.child(property))
    }

    pub(super) fn require(&self, name: &str, expected: &str) -> Result<Node<'a>, ConfigurationError> {
        self.get(name).ok_or_else(|| self.node.error(format!("{name:?} is missing: expected {expected}")))
    }

    /// Every key with its value, in the order of the text.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a str, Node<'a>)> {
        self.properties.iter().map(|property| (property.name.as_str(), self.child(property)))
    }

    fn child(&self, property: &'a ObjectProp<'a>) -> Node<'a> {
        let path = self.node.child_path(property.name.as_str());
        Node { document: self.node.document, value: &property.value, path }
    }
}

fn found(value: &Value<'_>) -> String {
    match value {
        Value::StringLit(string) => format!("the string {:?}", string.value),
        Value::NumberLit(number) => format!("the number {}", number.value),
        Value::BooleanLit(boolean) => boolean.value.to_string(),
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::NullKeyword(_) => "null".to_owned(),
    }
}
