//! A cursor over the JSON of a configuration that knows the path and the place of each value, for error messages.
//!
//! A [`Node`] is a value with its path from the top. An error of typed access names what was expected and what was
//! found.

use super::{
    error::{ConfigurationError, ConfigurationErrors, ConfigurationWarning, line_and_column, nearest_name, suggestion},
    json::{Json, JsonValue, MacroCall, Property},
};
use std::{cell::RefCell, collections::BTreeMap};

/// The text of a configuration, and the errors and warnings about it so far.
pub(crate) struct Document<'a> {
    text: &'a str,
    errors: RefCell<ConfigurationErrors>,
    warnings: RefCell<Vec<ConfigurationWarning>>,
}

impl<'a> Document<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Document { text, errors: RefCell::default(), warnings: RefCell::default() }
    }

    pub(crate) fn top(&'a self, value: &'a Json) -> Node<'a> {
        Node { document: self, value, path: String::new() }
    }

    /// The warnings, or the errors if there are any. `parsed` is the last of them if it is one.
    pub(crate) fn finish_parsing<T>(
        self,
        parsed: Result<T, ConfigurationError>,
    ) -> Result<(T, Vec<ConfigurationWarning>), ConfigurationErrors> {
        let mut errors = self.errors.into_inner();
        match (parsed, errors.clone().into_sorted()) {
            (Ok(parsed), None) => Ok((parsed, self.warnings.into_inner())),
            (Ok(_), Some(errors)) => Err(errors),
            (Err(error), _) => {
                errors.add(error);
                Err(errors.into_sorted().expect("one was added"))
            }
        }
    }
}

/// The errors and warnings before a part of the configuration that may be left out.
pub(crate) struct Trial {
    errors_before: ConfigurationErrors,
    warnings_before: usize,
}

#[derive(Clone)]
pub(crate) struct Node<'a> {
    document: &'a Document<'a>,
    value: &'a Json,
    path: String,
}

impl<'a> Node<'a> {
    pub(crate) fn error(&self, message: impl Into<String>) -> ConfigurationError {
        self.error_at(self.value.at, &self.path, message.into())
    }

    fn error_at(&self, at: usize, path: &str, message: String) -> ConfigurationError {
        let (line, column) = line_and_column(self.document.text, at);
        let message = message + &MacroCall::trace(&self.value.call);
        ConfigurationError { line, column, path: path.to_owned(), message }
    }

    /// Records an error, so that parsing can go on and find others.
    pub(crate) fn report(&self, error: &ConfigurationError) {
        self.document.errors.borrow_mut().add(error.clone());
    }

    /// Begins to keep the errors that are reported from here on apart from those before.
    pub(crate) fn begin_trial(&self) -> Trial {
        Trial { errors_before: self.document.errors.take(), warnings_before: self.document.warnings.borrow().len() }
    }

    /// Ends the trial of this node. `Err` is the first error, if there are some and all lie in this node: then they and
    /// the warnings since are forgotten. Otherwise all stay.
    pub(crate) fn end_trial(&self, trial: Trial) -> Result<(), ConfigurationError> {
        let found = self.document.errors.replace(trial.errors_before);
        let is_inside = |error: &ConfigurationError| {
            let below = error.path.strip_prefix(&self.path);
            below.is_some_and(|below| below.is_empty() || below.starts_with(['.', '[']))
        };
        let sorted = found.clone().into_sorted();
        match sorted.as_ref().and_then(|errors| errors.iter().next()) {
            Some(first) if found.iter().all(is_inside) && !found.has_more() => {
                self.document.warnings.borrow_mut().truncate(trial.warnings_before);
                Err(first.clone())
            }
            _ => {
                found.iter().for_each(|error| self.report(error));
                Ok(())
            }
        }
    }

    pub(crate) fn warn(&self, message: impl Into<String>) {
        self.add_warning(self.error(message));
    }

    fn add_warning(&self, place: ConfigurationError) {
        let ConfigurationError { line, column, path, message } = place;
        self.document.warnings.borrow_mut().push(ConfigurationWarning { line, column, path, message });
    }

    fn unexpected(&self, expected: &str) -> ConfigurationError {
        self.error(format!("expected {expected}, found {}", self.value.describe()))
    }

    pub(crate) fn is_object(&self) -> bool {
        matches!(self.value.value, JsonValue::Object(_))
    }

    pub(crate) fn is_array(&self) -> bool {
        matches!(self.value.value, JsonValue::List(_))
    }

    pub(crate) fn as_string(&self) -> Option<&'a str> {
        match &self.value.value {
            JsonValue::String(string) => Some(string),
            _ => None,
        }
    }

    pub(crate) fn string(&self, expected: &str) -> Result<&'a str, ConfigurationError> {
        self.as_string().ok_or_else(|| self.unexpected(expected))
    }

    pub(crate) fn boolean(&self) -> Result<bool, ConfigurationError> {
        match self.value.value {
            JsonValue::Boolean(boolean) => Ok(boolean),
            _ => Err(self.unexpected("true or false")),
        }
    }

    /// A whole number in `min..=max`; `what` names it in the error.
    pub(crate) fn integer(&self, what: &str, min: i64, max: i64) -> Result<i64, ConfigurationError> {
        self.parse_number()
            .filter(|number| (min..=max).contains(number))
            .ok_or_else(|| self.unexpected(&format!("{what} from {min} to {max}")))
    }

    /// A number in `min..=max`; `what` names it in the error.
    pub(crate) fn number(&self, what: &str, min: f64, max: f64) -> Result<f64, ConfigurationError> {
        self.parse_number()
            .filter(|number| (min..=max).contains(number))
            .ok_or_else(|| self.unexpected(&format!("{what} from {min} to {max}")))
    }

    fn parse_number<T: std::str::FromStr>(&self) -> Option<T> {
        match &self.value.value {
            JsonValue::Number(number) => number.parse().ok(),
            _ => None,
        }
    }

    pub(crate) fn array(&self, expected: &str) -> Result<Vec<Node<'a>>, ConfigurationError> {
        let JsonValue::List(list) = &self.value.value else { return Err(self.unexpected(expected)) };
        let element = |(at, value)| Node { document: self.document, value, path: format!("{}[{at}]", self.path) };
        Ok(list.iter().enumerate().map(element).collect())
    }

    /// What `parse` makes of each element of the array. All errors are reported; one is returned.
    pub(crate) fn parse_elements<T>(
        &self,
        expected: &str,
        mut parse: impl FnMut(&Node<'a>) -> Result<T, ConfigurationError>,
    ) -> Result<Vec<T>, ConfigurationError> {
        let elements = self.array(expected)?;
        let parsed: Vec<_> =
            elements.iter().map(|element| parse(element).inspect_err(|error| self.report(error))).collect();
        parsed.into_iter().collect()
    }

    /// The object. A duplicate key is an error, since one of the two would be lost.
    pub(crate) fn object(&self, expected: &str) -> Result<Object<'a>, ConfigurationError> {
        let JsonValue::Object(properties) = &self.value.value else { return Err(self.unexpected(expected)) };
        let mut first_by_name = BTreeMap::new();
        for Property { at, name, .. } in properties {
            if let Some(first) = first_by_name.insert(name, *at) {
                let (line, _) = line_and_column(self.document.text, first);
                let message = format!("{name:?} is given twice, first on line {line}");
                return Err(self.error_at(*at, &self.child_path(name), message));
            }
        }
        Ok(Object { node: self.clone(), properties })
    }

    /// An object without keys, in the place of a short form.
    pub(crate) fn as_empty_object(&self) -> Object<'a> {
        Object { node: self.clone(), properties: &[] }
    }

    fn child_path(&self, name: &str) -> String {
        match &*self.path {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        }
    }
}

/// The keys that an object may have.
pub(crate) struct Keys {
    /// Keys that are read.
    known: &'static [&'static str],
    /// Keys that are read, in a list that several objects share.
    shared: &'static [&'static str],
    /// Keys of mcrouter without an effect here: a warning.
    ignored: &'static [&'static str],
    /// Keys of mcrouter that would change where requests go, or how: an error.
    refused: &'static [&'static str],
}

impl Keys {
    pub(crate) const fn known(known: &'static [&'static str]) -> Keys {
        Keys { known, shared: &[], ignored: &[], refused: &[] }
    }

    pub(crate) const fn and(self, shared: &'static [&'static str]) -> Keys {
        Keys { shared, ..self }
    }

    pub(crate) const fn ignoring(self, ignored: &'static [&'static str]) -> Keys {
        Keys { ignored, ..self }
    }

    pub(crate) const fn refusing(self, refused: &'static [&'static str]) -> Keys {
        Keys { refused, ..self }
    }
}

/// An object whose keys are all different.
#[derive(Clone)]
pub(crate) struct Object<'a> {
    pub(crate) node: Node<'a>,
    properties: &'a [Property],
}

impl<'a> Object<'a> {
    /// Refuses unsupported keys, and warns about ignored and unknown ones, which mcrouter ignores, too. All errors are
    /// reported; the last is returned.
    pub(crate) fn check(&self, keys: &Keys) -> Result<(), ConfigurationError> {
        let mut checked = Ok(());
        for property in self.properties {
            let name = &*property.name;
            let place = |message| self.node.error_at(property.at, &self.node.child_path(name), message);
            if keys.refused.contains(&name) {
                let error = place(format!("mcrouter's {name:?} is not supported"));
                self.node.report(&error);
                checked = Err(error);
            } else if keys.ignored.contains(&name) {
                self.child(property).warn(format!("{name:?} is ignored"));
            } else if !keys.known.contains(&name) && !keys.shared.contains(&name) {
                let known = keys.known.iter().chain(keys.shared).copied();
                let known = suggestion(name, "keys", known);
                self.node.add_warning(place(format!("{name:?} is unknown here, and ignored{known}")));
            }
        }
        checked
    }

    pub(crate) fn get(&self, name: &str) -> Option<Node<'a>> {
        self.properties.iter().find(|property| property.name == name).map(|property| self.child(property))
    }

    /// The value at `name`; an error names `expected` if there is none.
    pub(crate) fn require(&self, name: &str, expected: &str) -> Result<Node<'a>, ConfigurationError> {
        self.get(name).ok_or_else(|| self.missing(name, expected))
    }

    /// The error that there is no `name`. A key that may have been meant for it is named.
    pub(crate) fn missing(&self, name: &str, expected: &str) -> ConfigurationError {
        let meant = nearest_name(name, self.properties.iter().map(|property| &*property.name));
        let meant = meant.map(|other| format!("; is it {other:?}?")).unwrap_or_default();
        self.node.error(format!("{name:?} is missing: expected {expected}{meant}"))
    }

    /// The boolean at `name`; false by default.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, ConfigurationError> {
        self.get(name).map_or(Ok(false), |node| node.boolean())
    }

    /// The whole number in `0..=max` at `name`, or `default`; `what` names it in the error.
    pub(crate) fn integer_or(&self, name: &str, what: &str, max: i64, default: i64) -> Result<i64, ConfigurationError> {
        self.get(name).map_or(Ok(default), |node| node.integer(what, 0, max))
    }

    /// Every key with its value, in the order of the text.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'a str, Node<'a>)> {
        self.properties.iter().map(|property| (&*property.name, self.child(property)))
    }

    fn child(&self, property: &'a Property) -> Node<'a> {
        let path = self.node.child_path(&property.name);
        Node { document: self.node.document, value: &property.value, path }
    }
}
