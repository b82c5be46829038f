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
//!   {"vars": {"a": 1}, "x": "%a%"}                 names of one object, expanded where they are used
//!   "\\@x"  "50\\%"  "@f(a\\,b)"                   a backslash (in JSON two) escapes the next character
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `scope` | what a value may name |
//! | `expander` | the expansion of values, and how macros and functions are called |
//! | `definitions` | the macros of a configuration |
//! | `functions` | the table of built-in functions |
//! | `numbers`, `collections` | functions of values |
//! | `lazy` | functions that expand only some of their arguments, or some of them several times; `@import` |
//!
//! A macro sees its parameters and the constants, not those of its caller. An error in a macro's result is reported at
//! its place, with the calls that led there. Bounded by `DEPTH_MAX` and `EXPANSION_BYTES_MAX`.
//!
//! Absent on purpose: files and the addresses of this machine. [`MacroInputs`] has them.

mod collections;
mod definitions;
mod expander;
mod functions;
mod lazy;
mod numbers;
mod scope;
mod text;

pub use scope::{MacroConstant, MacroInputs};

use super::{
    error::{ConfigurationError, ConfigurationWarning},
    json::{Json, JsonValue},
};
use expander::Expander;
use functions::FUNCTIONS;
use scope::Scope;
use std::collections::BTreeMap;

/// Expands all calls and names in `top`, and removes its macros.
pub(crate) fn expand(
    text: &str,
    top: Json,
    inputs: &MacroInputs<'_>,
) -> Result<(Json, Vec<ConfigurationWarning>), ConfigurationError> {
    let mut expander = Expander {
        text,
        functions: FUNCTIONS,
        inputs,
        macros: BTreeMap::new(),
        path: Vec::new(),
        depth: 0,
        expanded_bytes: 0,
        warnings: Vec::new(),
    };
    let Json { at, value: JsonValue::Object(mut properties), call } = top else { return Ok((top, Vec::new())) };
    // Two "macros" both stay, so that the duplicate key is refused later.
    if properties.iter().filter(|property| property.name == "macros").count() == 1 {
        let macros = properties.iter().position(|property| property.name == "macros");
        expander.define_all(properties.remove(macros.expect("one of them")).value)?;
    }
    let expanded =
        expander.expand_value(&Json { at, value: JsonValue::Object(properties), call }, &Scope::default())?;
    Ok((expanded, expander.warnings))
}
