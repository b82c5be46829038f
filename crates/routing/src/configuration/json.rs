//! The values of a configuration, each with its place in the text, and the macro calls that produced it.

use super::error::{ConfigurationError, line_and_column};
use jsonc_parser::{CollectOptions, ParseOptions, ast, common::Ranged, parse_to_ast};
use std::fmt::{self, Write as _};
use std::rc::Rc;

/// JSON with C and C++ comments and trailing commas. Other extensions are off, since mcrouter refuses them, too.
const JSON_SYNTAX: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_loose_object_property_names: false,
    allow_trailing_commas: true,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// A value and its place.
#[derive(Clone, Debug)]
pub(crate) struct Json {
    /// The index of its first byte in the text.
    pub(crate) at: usize,
    pub(crate) value: JsonValue,
    /// The call of the macro that contains the value; `None` outside of macros.
    pub(crate) call: Option<Rc<MacroCall>>,
}

/// As JSON without white space.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            JsonValue::String(text) => write_quoted(text, f),
            JsonValue::Number(digits) => f.write_str(digits),
            JsonValue::Boolean(truth) => write!(f, "{truth}"),
            JsonValue::Null => f.write_str("null"),
            JsonValue::List(items) => {
                f.write_char('[')?;
                for (at, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if at == 0 { "" } else { "," })?;
                }
                f.write_char(']')
            }
            JsonValue::Object(properties) => {
                f.write_char('{')?;
                for (at, property) in properties.iter().enumerate() {
                    f.write_str(if at == 0 { "" } else { "," })?;
                    write_quoted(&property.name, f)?;
                    write!(f, ":{}", property.value)?;
                }
                f.write_char('}')
            }
        }
    }
}

fn write_quoted(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_char('"')?;
    for character in text.chars() {
        match character {
            '"' | '\\' => write!(f, "\\{character}")?,
            character if character.is_control() => write!(f, "\\u{:04x}", u32::from(character))?,
            character => f.write_char(character)?,
        }
    }
    f.write_char('"')
}

#[derive(Clone, Debug)]
pub(crate) enum JsonValue {
    String(String),
    /// As written.
    Number(String),
    Boolean(bool),
    Null,
    List(Vec<Json>),
    Object(Vec<Property>),
}

#[derive(Clone, Debug)]
pub(crate) struct Property {
    /// The index of the first byte of its name.
    pub(crate) at: usize,
    pub(crate) name: String,
    pub(crate) value: Json,
}

#[derive(Debug)]
pub(crate) struct MacroCall {
    pub(crate) name: String,
    pub(crate) line: usize,
    /// The call of the macro that contains this call.
    pub(crate) outer: Option<Rc<MacroCall>>,
}

/// The maximum number of calls in a message, from the innermost on.
const CALLS_REPORTED_MAX: usize = 5;

impl MacroCall {
    /// The suffix of a message about a value that `call` produced.
    pub(crate) fn trace(call: &Option<Rc<MacroCall>>) -> String {
        let mut trace = String::new();
        let mut calls = std::iter::successors(call.as_deref(), |call| call.outer.as_deref());
        for call in calls.by_ref().take(CALLS_REPORTED_MAX) {
            trace += &format!("; in the macro {:?}, called on line {}", call.name, call.line);
        }
        match calls.count() {
            0 => trace,
            more => format!("{trace}; in {more} calls more"),
        }
    }
}

pub(crate) fn parse(text: &str) -> Result<Json, ConfigurationError> {
    let refuse = |at: usize, message: String| {
        let (line, column) = line_and_column(text, at);
        ConfigurationError { line, column, path: String::new(), message }
    };
    match parse_to_ast(text, &CollectOptions::default(), &JSON_SYNTAX) {
        Ok(result) => {
            let value = result.value.ok_or_else(|| refuse(0, "the configuration is empty".to_owned()))?;
            Ok(Json::from(&value))
        }
        Err(error) => Err(refuse(error.range().start, format!("invalid JSON: {}", error.kind()))),
    }
}

impl From<&ast::Value<'_>> for Json {
    fn from(parsed: &ast::Value<'_>) -> Json {
        let value = match parsed {
            ast::Value::StringLit(string) => JsonValue::String(string.value.clone().into_owned()),
            ast::Value::NumberLit(number) => JsonValue::Number(number.value.to_owned()),
            ast::Value::BooleanLit(boolean) => JsonValue::Boolean(boolean.value),
            ast::Value::NullKeyword(_) => JsonValue::Null,
            ast::Value::Array(array) => JsonValue::List(array.elements.iter().map(Json::from).collect()),
            ast::Value::Object(object) => JsonValue::Object(object.properties.iter().map(Property::from).collect()),
        };
        Json { at: parsed.range().start, value, call: None }
    }
}

impl From<&ast::ObjectProp<'_>> for Property {
    fn from(parsed: &ast::ObjectProp<'_>) -> Property {
        let (at, name) = (parsed.range.start, parsed.name.as_str().to_owned());
        Property { at, name, value: Json::from(&parsed.value) }
    }
}

impl Json {
    /// Another value in the same place.
    pub(crate) fn with(&self, value: JsonValue) -> Json {
        Json { at: self.at, value, call: self.call.clone() }
    }

    pub(crate) fn describe(&self) -> String {
        match &self.value {
            JsonValue::String(string) => format!("the string {string:?}"),
            JsonValue::Number(number) => format!("the number {number}"),
            JsonValue::Boolean(boolean) => boolean.to_string(),
            JsonValue::Object(_) => "an object".to_owned(),
            JsonValue::List(_) => "a list".to_owned(),
            JsonValue::Null => "null".to_owned(),
        }
    }
}
