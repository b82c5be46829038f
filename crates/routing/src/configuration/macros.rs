//! Macros: parts of a configuration that are written once and used often, expanded before anything else is parsed.
//!
//! ```text
//!   "macros": {
//!     "servers_of": { "type": "macroDef", "params": ["host", {"name": "port", "default": "11211"}],
//!                     "result": ["%host%-1:%port%", "%host%-2:%port%"] },
//!     "timeout":    { "type": "constDef", "result": 250 } }
//!
//!   "@servers_of(cache,5000)"                      a call; arguments are text, or calls, or %names%
//!   {"type": "servers_of", "host": "cache"}        the same with arguments of any type, by name
//!   "%timeout%"                                    a constant, or inside a macro a parameter, of any type
//!   "%host%:%port%"                                inside more text: text, numbers, true and false
//!   "\\@x"  "50\\%"  "@f(a\\,b)"                   a backslash (in JSON two) escapes the next character
//! ```
//!
//! Built in are `@int(x)`, `@bool(x)` and `@str(x)`, which convert text to a value, and back.
//!
//! A macro sees its parameters and the constants, not those of its caller. An error in a macro's result is reported at
//! its place, with the calls that led there. Bounded by [`DEPTH_MAX`] and [`EXPANSION_BYTES_MAX`].
//!
//! Absent on purpose: mcrouter's other built-in macros, `vars`, and `@import`: a configuration is one file.

use super::{
    error::{ConfigurationError, line_and_column, suggestion},
    json::{Json, JsonValue, MacroCall, Property},
};
use std::{collections::BTreeMap, rc::Rc};

/// The maximum nesting of values and calls: expansion recurses.
const DEPTH_MAX: usize = 300;

/// The maximum expansion of all macros, in bytes of text; each value counts [`VALUE_BYTES`] more.
const EXPANSION_BYTES_MAX: usize = 4 << 20;

const VALUE_BYTES: usize = 16;

/// Built-in macros of mcrouter that are not supported.
const UNSUPPORTED: [&str; 34] = [
    "add", "and", "contains", "defined", "div", "empty", "equals", "fail", "failIf", "hash", "hasKey", "if", "import",
    "isArray", "isBool", "isInt", "isObject", "isString", "keys", "less", "merge", "mod", "mul", "not", "or",
    "process", "range", "select", "shuffle", "size", "slice", "sort", "split", "values",
];

const BUILT_IN: [&str; 3] = ["bool", "int", "str"];

/// Expands all calls and names in `top`, and removes its macros.
pub(crate) fn expand(text: &str, top: Json) -> Result<Json, ConfigurationError> {
    let mut expander = Expander { text, macros: BTreeMap::new(), path: Vec::new(), depth: 0, expanded_bytes: 0 };
    let Json { at, value: JsonValue::Object(mut properties), call } = top else { return Ok(top) };
    // Two "macros" both stay, so that the duplicate key is refused later.
    if properties.iter().filter(|property| property.name == "macros").count() == 1 {
        let macros = properties.iter().position(|property| property.name == "macros");
        expander.define_macros(properties.remove(macros.expect("one of them")).value)?;
    }
    expander.expand_value(&Json { at, value: JsonValue::Object(properties), call }, &Scope::default())
}

#[derive(Default)]
struct Scope {
    parameters: BTreeMap<String, Json>,
    call: Option<Rc<MacroCall>>,
}

/// A macro, or without `params` a constant.
struct Macro {
    params: Option<Vec<(String, Option<Json>)>>,
    result: Json,
}

type Expanded = Result<Json, ConfigurationError>;

struct Expander<'a> {
    text: &'a str,
    macros: BTreeMap<String, Rc<Macro>>,
    /// The current path: keys and, in brackets, indices.
    path: Vec<String>,
    depth: usize,
    expanded_bytes: usize,
}

impl Expander<'_> {
    fn error(&self, at: &Json, message: impl Into<String>) -> ConfigurationError {
        let (line, column) = line_and_column(self.text, at.at);
        let path = self.path.concat();
        let path = path.strip_prefix('.').unwrap_or(&path).to_owned();
        ConfigurationError { line, column, path, message: message.into() + &MacroCall::trace(&at.call) }
    }

    fn descend<T>(
        &mut self,
        at: &Json,
        step: String,
        inner: impl FnOnce(&mut Self) -> Result<T, ConfigurationError>,
    ) -> Result<T, ConfigurationError> {
        if self.depth == DEPTH_MAX {
            return Err(self.error(at, format!("more than {DEPTH_MAX} nested values and calls: expected fewer")));
        }
        self.depth += 1;
        self.path.push(step);
        let result = inner(self);
        if result.is_ok() {
            self.path.pop(); // After an error the path stays, for the message.
        }
        self.depth -= 1;
        result
    }

    fn count_bytes(&mut self, at: &Json, bytes: usize) -> Result<(), ConfigurationError> {
        self.expanded_bytes += bytes + VALUE_BYTES;
        match self.expanded_bytes > EXPANSION_BYTES_MAX {
            true => {
                Err(self.error(at, format!("macros expand to more than {EXPANSION_BYTES_MAX} bytes: expected less")))
            }
            false => Ok(()),
        }
    }

    fn define_macros(&mut self, macros: Json) -> Result<(), ConfigurationError> {
        self.path = vec![".macros".to_owned()];
        for Property { name, value, .. } in self.properties(&macros, "an object with a macro for each name")? {
            self.path.push(format!(".{name}"));
            if self.macros.contains_key(name) || BUILT_IN.contains(&&**name) {
                return Err(self.error(value, format!("there are two macros {name:?}: expected each name once")));
            }
            let read = self.parse_macro(value)?;
            self.macros.insert(name.clone(), Rc::new(read));
            self.path.pop();
        }
        self.path.clear();
        Ok(())
    }

    fn parse_macro(&self, at: &Json) -> Result<Macro, ConfigurationError> {
        let (mut kind, mut params, mut result) = (None, None, None);
        for Property { name, value, .. } in self.properties(at, "a macro: an object with \"type\" and \"result\"")? {
            match &**name {
                "type" => kind = Some(value),
                "params" => params = Some(value),
                "result" => result = Some(value),
                other => {
                    let known = suggestion(other, "keys", ["type", "params", "result"]);
                    return Err(self.error(value, format!("nothing is named {other:?} here{known}")));
                }
            }
        }
        let of = |node: Option<&Json>| match node.map(|node| &node.value) {
            Some(JsonValue::String(text)) => text.clone(),
            _ => String::new(),
        };
        let params = match (&*of(kind), params) {
            ("constDef", None) => None,
            ("constDef", Some(params)) => {
                return Err(self.error(params, "a constant has no \"params\": expected a \"macroDef\""));
            }
            ("macroDef", params) => Some(params.map_or(Ok(Vec::new()), |params| self.parse_params(params))?),
            _ => {
                let at = kind.unwrap_or(at);
                return Err(self.error(at, "expected \"type\": \"macroDef\" or \"constDef\""));
            }
        };
        let result = result.ok_or_else(|| self.error(at, "\"result\" is missing: expected the result of the macro"))?;
        Ok(Macro { params, result: result.clone() })
    }

    fn parse_params(&self, list: &Json) -> Result<Vec<(String, Option<Json>)>, ConfigurationError> {
        const A_PARAM: &str = "a parameter: its name, or an object with \"name\" and \"default\"";
        let JsonValue::List(list) = &list.value else { return Err(self.error(list, "expected a list of parameters")) };
        let mut params: Vec<(String, Option<Json>)> = Vec::new();
        for param in list {
            let (mut name, mut default) = (None, None);
            match &param.value {
                JsonValue::String(text) => name = Some(text),
                JsonValue::Object(properties) => {
                    for property in properties {
                        match (&*property.name, &property.value.value) {
                            ("name", JsonValue::String(text)) => name = Some(text),
                            ("default", _) => default = Some(property.value.clone()),
                            _ => return Err(self.error(&property.value, format!("expected {A_PARAM}"))),
                        }
                    }
                }
                _ => {}
            }
            let name =
                name.ok_or_else(|| self.error(param, format!("expected {A_PARAM}, found {}", param.describe())))?;
            if params.iter().any(|(other, _)| other == name) {
                return Err(self.error(param, format!("two parameters are named {name:?}: expected each name once")));
            }
            params.push((name.clone(), default));
        }
        Ok(params)
    }

    fn properties<'v>(&self, value: &'v Json, expected: &str) -> Result<&'v [Property], ConfigurationError> {
        match &value.value {
            JsonValue::Object(properties) => Ok(properties),
            _ => Err(self.error(value, format!("expected {expected}, found {}", value.describe()))),
        }
    }

    fn expand_value(&mut self, written: &Json, scope: &Scope) -> Expanded {
        let mut value = Json { at: written.at, value: JsonValue::Null, call: scope.call.clone() };
        value.value = match &written.value {
            JsonValue::String(text) => {
                return self.expand_string(&Json { value: JsonValue::Null, ..value }, text, scope);
            }
            JsonValue::List(list) => {
                let mut expanded = Vec::with_capacity(list.len());
                for (index, element) in list.iter().enumerate() {
                    expanded
                        .push(self.descend(&value, format!("[{index}]"), |this| this.expand_value(element, scope))?);
                }
                JsonValue::List(expanded)
            }
            JsonValue::Object(properties) => match self.macro_of_type(properties) {
                Some(name) => return self.expand_object_call(&value, &name, properties, scope),
                None => JsonValue::Object(self.expand_object(&value, properties, scope)?),
            },
            other => other.clone(),
        };
        if scope.call.is_some() {
            self.count_bytes(&value, 0)?;
        }
        Ok(value)
    }

    fn expand_object(
        &mut self,
        at: &Json,
        properties: &[Property],
        scope: &Scope,
    ) -> Result<Vec<Property>, ConfigurationError> {
        let mut expanded = Vec::with_capacity(properties.len());
        for Property { at: name_at, name, value } in properties {
            let written = Json { at: *name_at, value: JsonValue::Null, call: at.call.clone() };
            let name = match self.expand_string(&written, name, scope)?.value {
                JsonValue::String(name) => name,
                _ => return Err(self.error(&written, format!("{name:?} is not text: a key must be text"))),
            };
            let value = self.descend(at, format!(".{name}"), |this| this.expand_value(value, scope))?;
            expanded.push(Property { at: *name_at, name, value });
        }
        Ok(expanded)
    }

    /// The macro that an object calls by its `type`.
    fn macro_of_type(&self, properties: &[Property]) -> Option<String> {
        let of_type = properties.iter().find(|property| property.name == "type")?;
        match &of_type.value.value {
            JsonValue::String(name) if self.macros.get(name).is_some_and(|found| found.params.is_some()) => {
                Some(name.clone())
            }
            _ => None,
        }
    }

    fn expand_object_call(&mut self, at: &Json, name: &str, properties: &[Property], scope: &Scope) -> Expanded {
        let mut arguments = BTreeMap::new();
        for property in properties.iter().filter(|property| property.name != "type") {
            let value =
                self.descend(at, format!(".{}", property.name), |this| this.expand_value(&property.value, scope))?;
            if arguments.insert(property.name.clone(), value).is_some() {
                return Err(
                    self.error(&property.value, format!("{:?} is given twice: expected it once", property.name))
                );
            }
        }
        let found = self.macros[name].clone();
        let params = found.params.as_deref().unwrap_or_default();
        if let Some(unknown) = arguments.keys().find(|name| !params.iter().any(|(param, _)| param == *name)) {
            let known = suggestion(unknown, "parameters", params.iter().map(|(name, _)| &**name));
            return Err(self.error(at, format!("the macro {name:?} has no parameter {unknown:?}{known}")));
        }
        self.expand_macro(at, name, &found, arguments, scope)
    }

    /// Expands the result of a macro; parameters without an argument have their default.
    fn expand_macro(
        &mut self,
        at: &Json,
        name: &str,
        found: &Rc<Macro>,
        mut parameters: BTreeMap<String, Json>,
        outer: &Scope,
    ) -> Expanded {
        let (line, _) = line_and_column(self.text, at.at);
        let call = Some(Rc::new(MacroCall { name: name.to_owned(), line, outer: outer.call.clone() }));
        for (param, default) in found.params.iter().flatten() {
            if !parameters.contains_key(param) {
                let Some(default) = default else {
                    return Err(self.error(at, format!("the macro {name:?} is called without its {param:?}")));
                };
                let scope = Scope { call: call.clone(), ..Scope::default() };
                let value = self.descend(at, String::new(), |this| this.expand_value(default, &scope))?;
                parameters.insert(param.clone(), value);
            }
        }
        let scope = Scope { parameters, call };
        self.descend(at, String::new(), |this| this.expand_value(&found.result, &scope))
    }

    /// Expands a string: a call, a name, or text with names in it.
    fn expand_string(&mut self, at: &Json, text: &str, scope: &Scope) -> Expanded {
        if scope.call.is_some() {
            self.count_bytes(at, text.len())?;
        }
        if let Some(call) = text.strip_prefix('@') {
            return self.expand_call(at, call, scope);
        }
        let mut plain = String::with_capacity(text.len());
        let mut characters = text.char_indices();
        while let Some((index, character)) = characters.next() {
            match character {
                '\\' => match characters.next() {
                    Some((_, escaped)) => plain.push(escaped),
                    None => return Err(self.error(at, format!("{text:?} ends in a backslash: expected a character"))),
                },
                '%' => {
                    let Some(length) = text[index + 1..].find('%') else {
                        let message = format!(
                            "{text:?} has a \"%\" without a second one: expected %name%, or \\\\% for a literal one"
                        );
                        return Err(self.error(at, message));
                    };
                    let name = &text[index + 1..index + 1 + length];
                    let value = self.expand_name(at, name, scope)?;
                    if length + 2 == text.len() {
                        return Ok(value);
                    }
                    match value.value {
                        JsonValue::String(text) | JsonValue::Number(text) => plain.push_str(&text),
                        JsonValue::Boolean(boolean) => plain.push_str(&boolean.to_string()),
                        _ => {
                            let found = value.describe();
                            return Err(
                                self.error(at, format!("%{name}% is used inside text and is {found}: expected text"))
                            );
                        }
                    }
                    self.count_bytes(at, plain.len())?;
                    characters = text.char_indices();
                    let past = index + length + 2;
                    while characters.offset() < past {
                        characters.next();
                    }
                }
                other => plain.push(other),
            }
        }
        Ok(Json { at: at.at, value: JsonValue::String(plain), call: at.call.clone() })
    }

    fn expand_name(&mut self, at: &Json, name: &str, scope: &Scope) -> Expanded {
        if let Some(value) = scope.parameters.get(name) {
            let value = value.clone();
            self.count_bytes(at, expansion_bytes(&value))?;
            return Ok(value);
        }
        if let Some(found) = self.macros.get(name).filter(|found| found.params.is_none()).cloned() {
            return self.expand_macro(at, name, &found, BTreeMap::new(), scope);
        }
        let constants = self.macros.iter().filter(|(_, found)| found.params.is_none()).map(|(name, _)| &**name);
        let known = suggestion(name, "names", scope.parameters.keys().map(|name| &**name).chain(constants));
        Err(self.error(at, format!("%{name}% is not defined{known}; a literal \"%\" is written \\\\%")))
    }

    /// Expands `name(argument,argument)`, given without the `@`.
    fn expand_call(&mut self, at: &Json, call: &str, scope: &Scope) -> Expanded {
        let Some((name, arguments)) = call.strip_suffix(')').and_then(|call| call.split_once('(')) else {
            let message = format!("\"@{call}\" is not a call: expected @name(arguments), or \\\\@ for a literal \"@\"");
            return Err(self.error(at, message));
        };
        let Some(arguments) = split_arguments(arguments) else {
            return Err(
                self.error(at, format!("\"@{call}\" has unbalanced brackets: expected \\\\( for a literal bracket"))
            );
        };
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            values.push(self.descend(at, String::new(), |this| this.expand_string(at, argument, scope))?);
        }
        match self.macros.get(name).cloned() {
            Some(found) if found.params.is_some() => {
                let params = found.params.as_deref().unwrap_or_default();
                if values.len() > params.len() {
                    let names: Vec<&str> = params.iter().map(|(name, _)| &**name).collect();
                    let (found, known) = (values.len(), names.join(", "));
                    let message =
                        format!("@{name} is given {found} arguments: expected at most {} ({known})", params.len());
                    return Err(self.error(at, message));
                }
                let named = params.iter().map(|(name, _)| name.clone()).zip(values).collect();
                self.expand_macro(at, name, &found, named, scope)
            }
            Some(_) => Err(self.error(at, format!("{name:?} is a constant: expected %{name}%"))),
            None if BUILT_IN.contains(&name) => self.convert(at, name, &values),
            None if UNSUPPORTED.contains(&name) => Err(self.error(at, format!("mcrouter's @{name} is not supported"))),
            None => {
                let macros = self.macros.iter().filter(|(_, found)| found.params.is_some()).map(|(name, _)| &**name);
                let known = suggestion(name, "macros", macros.chain(BUILT_IN));
                Err(self.error(at, format!("no macro is named {name:?}{known}")))
            }
        }
    }

    /// `@int(x)`, `@bool(x)`, `@str(x)`.
    fn convert(&self, at: &Json, name: &str, arguments: &[Json]) -> Expanded {
        let text = match arguments {
            [Json { value: JsonValue::String(text) | JsonValue::Number(text), .. }] => text.clone(),
            [Json { value: JsonValue::Boolean(boolean), .. }] => boolean.to_string(),
            _ => return Err(self.error(at, format!("@{name} needs text: expected one text or number"))),
        };
        let value = match name {
            "int" => text.parse::<i64>().ok().map(|number| JsonValue::Number(number.to_string())),
            "bool" => text.parse().ok().map(JsonValue::Boolean),
            _ => Some(JsonValue::String(text.clone())),
        };
        let what = if name == "int" { "a whole number" } else { "true or false" };
        let value = value.ok_or_else(|| self.error(at, format!("@{name}({text}) is not valid: expected {what}")))?;
        Ok(Json { at: at.at, value, call: at.call.clone() })
    }
}

/// The arguments of a call: split at commas outside of brackets, without the spaces around them. `None` if brackets are
/// not balanced.
fn split_arguments(text: &str) -> Option<Vec<&str>> {
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

fn expansion_bytes(value: &Json) -> usize {
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
