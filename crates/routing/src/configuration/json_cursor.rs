//! The JSON of a configuration, with the place of everything in it, so that whatever is wrong can be pointed at.
//! No request passes here.
//!
//! A [`Node`] is a value with the path from the top. Typed access fails with what was expected and what was found.

use super::{
    error::{ConfigurationError, ConfigurationWarning, place, suggestion},
    json::{Call, Json, Property, Value},
};
use std::{cell::RefCell, collections::BTreeMap};

/// The text and what was said about it so far.
pub(super) struct Document<'a> {
    text: &'a str,
    warnings: RefCell<Vec<ConfigurationWarning>>,
}

impl<'a> Document<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Document { text, warnings: RefCell::default() }
    }

    pub(super) fn top(&'a self, value: &'a Json) -> Node<'a> {
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
    value: &'a Json,
    path: String,
}

impl<'a> Node<'a> {
    /// An error at this place.
    pub(super) fn error(&self, message: impl Into<String>) -> ConfigurationError {
        self.error_at(self.value.at, &self.path, message.into())
    }

    fn error_at(&self, at: usize, path: &str, message: String) -> ConfigurationError {
        let (line, column) = place(self.document.text, at);
        let message = message + &Call::trace(&self.value.call);
        ConfigurationError { line, column, path: path.to_owned(), message }
    }

    /// Notes that something at this place is ignored.
    pub(super) fn warn(&self, message: impl Into<String>) {
        let ConfigurationError { line, column, path, message } = self.error(message);
        self.document.warnings.borrow_mut().push(ConfigurationWarning { line, column, path, message });
    }

    fn unexpected(&self, expected: &str) -> ConfigurationError {
        self.error(format!("expected {expected}, found {}", self.value.found()))
    }

    pub(super) fn is_object(&self) -> bool {
        matches!(self.value.value, Value::Object(_))
    }

    pub(super) fn is_array(&self) -> bool {
        matches!(self.value.value, Value::List(_))
    }

    /// The text, if this is a string.
    pub(super) fn as_string(&self) -> Option<&'a str> {
        match &self.value.value {
            Value::String(string) => Some(string),
            _ => None,
        }
    }

    pub(super) fn string(&self, expected: &str) -> Result<&'a str, ConfigurationError> {
        self.as_string().ok_or_else(|| self.unexpected(expected))
    }

    pub(super) fn boolean(&self) -> Result<bool, ConfigurationError> {
        match self.value.value {
            Value::Boolean(boolean) => Ok(boolean),
            _ => Err(self.unexpected("true or false")),
        }
    }

    /// A whole number in `min..=max`; `what` says of what.
    pub(super) fn integer(&self, what: &str, min: i64, max: i64) -> Result<i64, ConfigurationError> {
        self.parsed()
            .filter(|number| (min..=max).contains(number))
            .ok_or_else(|| self.unexpected(&format!("{what} from {min} to {max}")))
    }

    /// A number in `min..=max`; `what` says of what.
    pub(super) fn number(&self, what: &str, min: f64, max: f64) -> Result<f64, ConfigurationError> {
        self.parsed()
            .filter(|number| (min..=max).contains(number))
            .ok_or_else(|| self.unexpected(&format!("{what} from {min} to {max}")))
    }

    fn parsed<T: std::str::FromStr>(&self) -> Option<T> {
        match &self.value.value {
            Value::Number(number) => number.parse().ok(),
            _ => None,
        }
    }

    /// The elements of a list.
    pub(super) fn array(&self, expected: &str) -> Result<Vec<Node<'a>>, ConfigurationError> {
        let Value::List(list) = &self.value.value else { return Err(self.unexpected(expected)) };
        let element = |(at, value)| Node { document: self.document, value, path: format!("{}[{at}]", self.path) };
        Ok(list.iter().enumerate().map(element).collect())
    }

    /// The object; a key that stands twice is an error, since one of them would be lost.
    pub(super) fn object(&self, expected: &str) -> Result<Object<'a>, ConfigurationError> {
        let Value::Object(properties) = &self.value.value else { return Err(self.unexpected(expected)) };
        let mut first_by_name = BTreeMap::new();
        for Property { at, name, .. } in properties {
            if let Some(first) = first_by_name.insert(name, *at) {
                let (line, _) = place(self.document.text, first);
                let message = format!("{name:?} stands twice; the first time on line {line}");
                return Err(self.error_at(*at, &self.child_path(name), message));
            }
        }
        Ok(Object { node: self.clone(), properties })
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
    properties: &'a [Property],
}

impl<'a> Object<'a> {
    /// Refuses keys that nobody knows, or that ask for what is not there; warns of those that are ignored.
    pub(super) fn check(&self, keys: &Keys) -> Result<(), ConfigurationError> {
        for property in self.properties {
            let name = &*property.name;
            let error = |message| self.node.error_at(property.at, &self.node.child_path(name), message);
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
        self.properties.iter().find(|property| property.name == name).map(|property| self.child(property))
    }

    pub(super) fn require(&self, name: &str, expected: &str) -> Result<Node<'a>, ConfigurationError> {
        self.get(name).ok_or_else(|| self.node.error(format!("{name:?} is missing: expected {expected}")))
    }

    /// Every key with its value, in the order of the text.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a str, Node<'a>)> {
        self.properties.iter().map(|property| (&*property.name, self.child(property)))
    }

    fn child(&self, property: &'a Property) -> Node<'a> {
        let path = self.node.child_path(&property.name);
        Node { document: self.node.document, value: &property.value, path }
    }
}
