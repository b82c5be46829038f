//! Expands values: strings, calls and names in them, and objects that are calls.

use super::{
    functions::DIFFERENT,
    scope::{MacroInputs, Scope},
    text::{EXPANSION_BYTES_MAX, VALUE_BYTES, expansion_bytes, split_arguments},
};
use crate::configuration::{
    error::{ConfigurationError, ConfigurationWarning, line_and_column, suggestion},
    json::{Json, JsonValue, MacroCall, Property},
};
use std::{collections::BTreeMap, rc::Rc};

/// The maximum nesting of values and calls: expansion recurses.
const DEPTH_MAX: usize = 300;

/// A macro, or without `params` a constant.
pub(super) struct Macro {
    pub(super) params: Option<Vec<Param>>,
    pub(super) result: Json,
}

#[derive(Clone)]
pub(super) struct Param {
    pub(super) name: String,
    /// `None` if there is none.
    pub(super) default: Option<Json>,
    /// Whether a call may leave it out although it has no default. Its name is not defined then.
    pub(super) is_optional: bool,
}

/// A built-in function.
pub(super) struct Function {
    pub(super) name: &'static str,
    /// The names of its parameters. `?` behind a name: it may be left out. `...`: all arguments, as a list.
    pub(super) params: &'static [&'static str],
    pub(super) run: Run,
}

pub(super) enum Run {
    /// Of the expanded arguments, one for each parameter; `None` if it was left out.
    OfValues(OfValues),
    /// Of the arguments as written.
    AsWritten(AsWritten),
}

pub(super) type OfValues = fn(&[Option<Json>]) -> Result<JsonValue, String>;
pub(super) type AsWritten = fn(&mut Expander<'_>, &Json, &Arguments, &Scope<'_>) -> Expanded;

impl Function {
    /// The names of its parameters.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.params.iter().map(|param| param.trim_end_matches(['?', '.']))
    }
}

/// The arguments of a call, as written.
pub(super) struct Arguments(BTreeMap<String, Json>);

impl Arguments {
    pub(super) fn by_name(written: BTreeMap<String, Json>) -> Arguments {
        Arguments(written)
    }

    /// The error is the number of arguments, if there are too many.
    pub(super) fn in_order(function: &Function, written: Vec<Json>) -> Result<Arguments, usize> {
        if let ([all], Some(first)) = (function.params, written.first())
            && all.ends_with("...")
        {
            let name = function.names().next().expect("there is one").to_owned();
            let list = Json { at: first.at, call: first.call.clone(), value: JsonValue::List(written) };
            return Ok(Arguments(BTreeMap::from([(name, list)])));
        }
        match written.len() > function.params.len() {
            true => Err(written.len()),
            false => Ok(Arguments(function.names().map(str::to_owned).zip(written).collect())),
        }
    }

    /// `None` if it was left out.
    pub(super) fn get(&self, name: &str) -> Option<&Json> {
        self.0.get(name)
    }
}

pub(super) type Expanded = Result<Json, ConfigurationError>;

pub(super) struct Expander<'a> {
    pub(super) text: &'a str,
    pub(super) functions: &'static [Function],
    pub(super) inputs: &'a MacroInputs<'a>,
    pub(super) macros: BTreeMap<String, Rc<Macro>>,
    /// The current path: keys and, in brackets, indices.
    pub(super) path: Vec<String>,
    pub(super) depth: usize,
    pub(super) expanded_bytes: usize,
    pub(super) warnings: Vec<ConfigurationWarning>,
}

impl Expander<'_> {
    pub(super) fn find_function(&self, name: &str) -> Option<&'static Function> {
        self.functions.iter().find(|function| function.name == name)
    }

    pub(super) fn error(&self, at: &Json, message: impl Into<String>) -> ConfigurationError {
        let (line, column) = line_and_column(self.text, at.at);
        let path = self.path.concat();
        let path = path.strip_prefix('.').unwrap_or(&path).to_owned();
        ConfigurationError { line, column, path, message: message.into() + &MacroCall::trace(&at.call) }
    }

    pub(super) fn descend<T>(
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

    pub(super) fn count_bytes(&mut self, at: &Json, bytes: usize) -> Result<(), ConfigurationError> {
        self.expanded_bytes += bytes + VALUE_BYTES;
        match self.expanded_bytes > EXPANSION_BYTES_MAX {
            true => {
                Err(self.error(at, format!("macros expand to more than {EXPANSION_BYTES_MAX} bytes: expected less")))
            }
            false => Ok(()),
        }
    }

    pub(super) fn properties<'v>(&self, value: &'v Json, expected: &str) -> Result<&'v [Property], ConfigurationError> {
        match &value.value {
            JsonValue::Object(properties) => Ok(properties),
            _ => Err(self.error(value, format!("expected {expected}, found {}", value.describe()))),
        }
    }

    pub(super) fn expand_value(&mut self, written: &Json, scope: &Scope<'_>) -> Expanded {
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
            JsonValue::Object(properties) => {
                let vars = properties.iter().find(|property| property.name == "vars");
                if let Some(Json { value: JsonValue::Object(vars), .. }) = vars.map(|property| &property.value) {
                    let vars = vars.iter().map(|var| (var.name.clone(), var.value.clone())).collect();
                    let properties = properties.iter().filter(|property| property.name != "vars").cloned().collect();
                    let written = Json { value: JsonValue::Object(properties), ..written.clone() };
                    return self.expand_value(&written, &Scope { vars, ..scope.inner() });
                }
                match self.callee_of_type(properties) {
                    Some(name) => return self.expand_object_call(&value, &name, properties, scope),
                    None => JsonValue::Object(self.expand_object(&value, properties, scope)?),
                }
            }
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
        scope: &Scope<'_>,
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

    /// The macro or function that an object calls by its `type`.
    fn callee_of_type(&self, properties: &[Property]) -> Option<String> {
        let of_type = properties.iter().find(|property| property.name == "type")?;
        let JsonValue::String(name) = &of_type.value.value else { return None };
        let is_macro = self.macros.get(name).is_some_and(|found| found.params.is_some());
        (is_macro || self.find_function(name).is_some()).then(|| name.clone())
    }

    fn expand_object_call(&mut self, at: &Json, name: &str, properties: &[Property], scope: &Scope<'_>) -> Expanded {
        let mut written: BTreeMap<String, Json> = BTreeMap::new();
        for property in properties.iter().filter(|property| property.name != "type") {
            if written.insert(property.name.clone(), property.value.clone()).is_some() {
                let message = format!("{:?} is given twice: expected it once", property.name);
                return Err(self.error(&property.value, message));
            }
        }
        let found = self.macros.get(name).cloned();
        let function = self.find_function(name);
        let params: Vec<&str> = match (&found, function) {
            (Some(found), _) => found.params.iter().flatten().map(|param| &*param.name).collect(),
            (None, function) => function.iter().flat_map(|function| function.names()).collect(),
        };
        if let Some(unknown) = written.keys().find(|name| !params.contains(&&***name)) {
            let known = suggestion(unknown, "parameters", params);
            return Err(self.error(at, format!("the macro {name:?} has no parameter {unknown:?}{known}")));
        }
        match (found, function) {
            (Some(found), _) => {
                let mut arguments = BTreeMap::new();
                for (param, value) in &written {
                    let value = self.descend(at, format!(".{param}"), |this| this.expand_value(value, scope))?;
                    arguments.insert(param.clone(), value);
                }
                self.expand_macro(at, name, &found, arguments, scope)
            }
            (None, Some(function)) => self.call_function(at, function, &Arguments::by_name(written), scope),
            (None, None) => unreachable!("the caller has found one of them"),
        }
    }

    /// Expands the result of a macro; parameters without an argument have their default.
    fn expand_macro(
        &mut self,
        at: &Json,
        name: &str,
        found: &Rc<Macro>,
        mut parameters: BTreeMap<String, Json>,
        outer: &Scope<'_>,
    ) -> Expanded {
        let (line, _) = line_and_column(self.text, at.at);
        let call = Some(Rc::new(MacroCall { name: name.to_owned(), line, outer: outer.call.clone() }));
        for param in found.params.iter().flatten() {
            if parameters.contains_key(&param.name) {
                continue;
            }
            match &param.default {
                Some(default) => {
                    let scope = Scope { call: call.clone(), ..Scope::default() };
                    let value = self.descend(at, String::new(), |this| this.expand_value(default, &scope))?;
                    parameters.insert(param.name.clone(), value);
                }
                None if param.is_optional => {}
                None => {
                    return Err(self.error(at, format!("the macro {name:?} is called without its {:?}", param.name)));
                }
            }
        }
        let scope = Scope { parameters, call, ..Scope::default() };
        self.descend(at, String::new(), |this| this.expand_value(&found.result, &scope))
    }

    /// Expands a string: a call, a name, or text with names in it.
    pub(super) fn expand_string(&mut self, at: &Json, text: &str, scope: &Scope<'_>) -> Expanded {
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
        Ok(at.with(JsonValue::String(plain)))
    }

    fn expand_name(&mut self, at: &Json, name: &str, scope: &Scope<'_>) -> Expanded {
        for scope in scope.chain() {
            if let Some(value) = scope.parameters.get(name) {
                let value = value.clone();
                self.count_bytes(at, expansion_bytes(&value))?;
                return Ok(value);
            }
            if let Some(written) = scope.vars.get(name) {
                return self.descend(at, String::new(), |this| this.expand_value(written, scope));
            }
        }
        if let Some(found) = self.macros.get(name).filter(|found| found.params.is_none()).cloned() {
            return self.expand_macro(at, name, &found, BTreeMap::new(), scope);
        }
        if let Some(constant) = self.inputs.constants.get(name) {
            return Ok(constant.to_json(at));
        }
        let constants = self.macros.iter().filter(|(_, found)| found.params.is_none()).map(|(name, _)| &**name);
        let known = suggestion(name, "names", scope.names().chain(constants));
        Err(self.error(at, format!("%{name}% is not defined{known}; a literal \"%\" is written \\\\%")))
    }

    pub(super) fn is_defined(&self, name: &str, scope: &Scope<'_>) -> bool {
        self.macros.get(name).is_some_and(|found| found.params.is_none())
            || self.inputs.constants.contains_key(name)
            || scope.names().any(|known| known == name)
    }

    /// Expands `name(argument,argument)`, given without the `@`.
    fn expand_call(&mut self, at: &Json, call: &str, scope: &Scope<'_>) -> Expanded {
        let Some((name, arguments)) = call.strip_suffix(')').and_then(|call| call.split_once('(')) else {
            let message = format!("\"@{call}\" is not a call: expected @name(arguments), or \\\\@ for a literal \"@\"");
            return Err(self.error(at, message));
        };
        let Some(arguments) = split_arguments(arguments) else {
            return Err(
                self.error(at, format!("\"@{call}\" has unbalanced brackets: expected \\\\( for a literal bracket"))
            );
        };
        match (self.macros.get(name).cloned(), self.find_function(name)) {
            (Some(found), _) if found.params.is_some() => {
                let params = found.params.as_deref().unwrap_or_default();
                let names: Vec<&str> = params.iter().map(|param| &*param.name).collect();
                self.check_count(at, name, arguments.len(), &names)?;
                let mut named = BTreeMap::new();
                for (param, argument) in names.iter().zip(arguments) {
                    let value = self.descend(at, String::new(), |this| this.expand_string(at, argument, scope))?;
                    named.insert((*param).to_owned(), value);
                }
                self.expand_macro(at, name, &found, named, scope)
            }
            (Some(_), _) => Err(self.error(at, format!("{name:?} is a constant: expected %{name}%"))),
            (None, Some(function)) => {
                let written = arguments.iter().map(|text| at.with(JsonValue::String((*text).to_owned()))).collect();
                let arguments = match Arguments::in_order(function, written) {
                    Ok(arguments) => arguments,
                    Err(given) => {
                        let names: Vec<&str> = function.names().collect();
                        return Err(self.check_count(at, name, given, &names).expect_err("there are too many"));
                    }
                };
                self.call_function(at, function, &arguments, scope)
            }
            (None, None) => {
                let macros = self.macros.iter().filter(|(_, found)| found.params.is_some()).map(|(name, _)| &**name);
                let known =
                    suggestion(name, "macros", macros.chain(self.functions.iter().map(|function| function.name)));
                Err(self.error(at, format!("no macro is named {name:?}{known}")))
            }
        }
    }

    fn check_count(&self, at: &Json, name: &str, given: usize, params: &[&str]) -> Result<(), ConfigurationError> {
        match given > params.len() {
            true => {
                let (most, names) = (params.len(), params.join(", "));
                Err(self.error(at, format!("@{name} is given {given} arguments: expected at most {most} ({names})")))
            }
            false => Ok(()),
        }
    }

    pub(super) fn call_function(
        &mut self,
        at: &Json,
        function: &'static Function,
        arguments: &Arguments,
        scope: &Scope<'_>,
    ) -> Expanded {
        for (param, name) in function.params.iter().zip(function.names()) {
            if !param.ends_with('?') && arguments.get(name).is_none() {
                return Err(self.error(at, format!("@{} is called without its {name:?}", function.name)));
            }
        }
        if DIFFERENT.contains(&function.name) {
            self.warn_of_difference(at, function.name);
        }
        match function.run {
            Run::AsWritten(run) => self.descend(at, String::new(), |this| run(this, at, arguments, scope)),
            Run::OfValues(run) => {
                let mut values = Vec::with_capacity(function.params.len());
                for name in function.names() {
                    values.push(match arguments.get(name) {
                        Some(written) => Some(self.expand_argument(at, written, scope)?),
                        None => None,
                    });
                }
                let value = run(&values).map_err(|why| self.error(at, format!("@{}: {why}", function.name)))?;
                let value = at.with(value);
                self.count_bytes(at, expansion_bytes(&value))?;
                Ok(value)
            }
        }
    }

    /// Warns, once for each function.
    fn warn_of_difference(&mut self, at: &Json, function: &str) {
        let start = format!("@{function} gives other results than mcrouter's");
        self.warn_once(at, start + ": values that depend on it, such as servers, change when mcrouter is replaced");
    }

    /// Warns, once for each message: a value may be expanded many times.
    pub(super) fn warn_once(&mut self, at: &Json, message: String) {
        if self.warnings.iter().any(|warning| warning.message.starts_with(&message)) {
            return;
        }
        let ConfigurationError { line, column, path, message } = self.error(at, message);
        self.warnings.push(ConfigurationWarning { line, column, path, message });
    }

    pub(super) fn expand_argument(&mut self, at: &Json, written: &Json, scope: &Scope<'_>) -> Expanded {
        self.descend(at, String::new(), |this| this.expand_value(written, scope))
    }
}
