//! The macros of a configuration: `"macros"` is an object with a macro for each name, a list of such objects, or a call
//! that gives one.

use super::{
    expander::{Expanded, Expander, Macro, Param},
    scope::Scope,
};
use crate::configuration::{
    error::{ConfigurationError, suggestion},
    json::{Json, JsonValue, Property},
};
use std::rc::Rc;

impl Expander<'_> {
    pub(super) fn define_all(&mut self, macros: Json) -> Result<(), ConfigurationError> {
        self.path = vec![".macros".to_owned()];
        let macros = match &macros.value {
            JsonValue::String(_) => self.expand_call_of_macros(&macros)?,
            _ => macros,
        };
        match &macros.value {
            JsonValue::List(parts) => parts.iter().try_for_each(|part| {
                let part = match &part.value {
                    JsonValue::String(_) => self.expand_call_of_macros(part)?,
                    _ => part.clone(),
                };
                self.define_each(&part)
            })?,
            _ => self.define_each(&macros)?,
        }
        self.path.clear();
        Ok(())
    }

    /// The macros that a call gives: it may use those before it, and its result is not expanded.
    fn expand_call_of_macros(&mut self, call: &Json) -> Expanded {
        self.expand_value(call, &Scope::default())
    }

    fn define_each(&mut self, macros: &Json) -> Result<(), ConfigurationError> {
        for Property { name, value, .. } in self.properties(macros, "an object with a macro for each name")? {
            self.path.push(format!(".{name}"));
            if self.macros.contains_key(name) || self.find_function(name).is_some() {
                return Err(self.error(value, format!("there are two macros {name:?}: expected each name once")));
            }
            let read = self.parse_macro(value)?;
            self.macros.insert(name.clone(), Rc::new(read));
            self.path.pop();
        }
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

    fn parse_params(&self, list: &Json) -> Result<Vec<Param>, ConfigurationError> {
        const A_PARAM: &str = "a parameter: its name, or an object with \"name\" and \"default\"";
        let JsonValue::List(list) = &list.value else { return Err(self.error(list, "expected a list of parameters")) };
        let mut params: Vec<Param> = Vec::new();
        for param in list {
            let (mut name, mut default, mut is_optional) = (None, None, false);
            match &param.value {
                JsonValue::String(text) => name = Some(text),
                JsonValue::Object(properties) => {
                    for property in properties {
                        match (&*property.name, &property.value.value) {
                            ("name", JsonValue::String(text)) => name = Some(text),
                            ("default", _) => default = Some(property.value.clone()),
                            ("optional", JsonValue::Boolean(optional)) => is_optional = *optional,
                            _ => return Err(self.error(&property.value, format!("expected {A_PARAM}"))),
                        }
                    }
                }
                _ => {}
            }
            let name =
                name.ok_or_else(|| self.error(param, format!("expected {A_PARAM}, found {}", param.describe())))?;
            if params.iter().any(|other| other.name == *name) {
                return Err(self.error(param, format!("two parameters are named {name:?}: expected each name once")));
            }
            params.push(Param { name: name.clone(), default, is_optional });
        }
        Ok(params)
    }
}
