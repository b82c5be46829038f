//! What a value may name: parameters, names of objects, and inputs from outside of the configuration.

use crate::configuration::json::{Json, JsonValue, MacroCall};
use std::{collections::BTreeMap, fmt, rc::Rc};

/// What macros may use besides the text of the configuration.
#[derive(Clone, Copy)]
pub struct MacroInputs<'a> {
    /// Constants that always exist. A configuration may replace them.
    pub constants: &'a BTreeMap<String, MacroConstant>,
    /// The text of the file that `@import(path)` names. The error says why there is none.
    pub import: &'a dyn Fn(&str) -> Result<String, String>,
    /// Whether an IP address is one of this machine, for `@isLocalIp`.
    pub is_local_ip: &'a dyn Fn(&str) -> bool,
}

impl MacroInputs<'static> {
    /// No constants, files and addresses.
    pub const NONE: MacroInputs<'static> = MacroInputs {
        constants: &BTreeMap::new(),
        import: &|_| Err("there are no files here".to_owned()),
        is_local_ip: &|_| false,
    };
}

impl fmt::Debug for MacroInputs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MacroInputs").field("constants", self.constants).finish_non_exhaustive()
    }
}

/// A constant from outside of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MacroConstant {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
}

impl MacroConstant {
    pub(super) fn to_json(&self, at: &Json) -> Json {
        let value = match self {
            MacroConstant::Text(text) => JsonValue::String(text.clone()),
            MacroConstant::Number(number) => JsonValue::Number(number.to_string()),
        };
        at.with(value)
    }
}

/// The names that a value may use.
#[derive(Default)]
pub(super) struct Scope<'s> {
    pub(super) parameters: BTreeMap<String, Json>,
    /// As written: expanded in this scope where they are used.
    pub(super) vars: BTreeMap<String, Json>,
    /// The scope around it; `None` if it sees no other names than the constants.
    pub(super) outer: Option<&'s Scope<'s>>,
    pub(super) call: Option<Rc<MacroCall>>,
}

impl Scope<'_> {
    /// A scope inside this one.
    pub(super) fn inner(&self) -> Scope<'_> {
        Scope { outer: Some(self), call: self.call.clone(), ..Scope::default() }
    }

    /// From the innermost to the outermost.
    pub(super) fn chain(&self) -> impl Iterator<Item = &Scope<'_>> {
        std::iter::successors(Some(self), |scope| scope.outer)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.chain().flat_map(|scope| scope.parameters.keys().chain(scope.vars.keys())).map(|name| &**name)
    }
}
