//! The table of the built-in functions.

use super::{
    collections,
    expander::{AsWritten, Function, OfValues, Run},
    lazy, numbers,
};

const fn of_values(name: &'static str, params: &'static [&'static str], run: OfValues) -> Function {
    Function { name, params, run: Run::OfValues(run) }
}

const fn as_written(name: &'static str, params: &'static [&'static str], run: AsWritten) -> Function {
    Function { name, params, run: Run::AsWritten(run) }
}

/// Functions that give other results than mcrouter's of these names.
pub(super) const DIFFERENT: [&str; 3] = ["hash", "shuffle", "weightedHash"];

pub(super) static FUNCTIONS: &[Function] = &[
    of_values("add", &["A", "B"], numbers::add),
    as_written("and", &["A", "B"], lazy::and),
    of_values("bitwiseAnd", &["A", "B"], numbers::bitwise_and),
    of_values("bitwiseLeftShift", &["A", "B"], numbers::shift_left),
    of_values("bitwiseNot", &["A"], numbers::bitwise_not),
    of_values("bitwiseOr", &["A", "B"], numbers::bitwise_or),
    of_values("bitwiseRightShift", &["A", "B"], numbers::shift_right),
    of_values("bitwiseXor", &["A", "B"], numbers::bitwise_xor),
    of_values("bool", &["value"], numbers::to_bool),
    of_values("contains", &["dictionary", "key"], collections::contains),
    as_written("define", &["result"], lazy::define),
    as_written("defined", &["name"], lazy::defined),
    of_values("div", &["A", "B"], numbers::div),
    of_values("double", &["value"], numbers::to_double),
    of_values("empty", &["dictionary"], collections::empty),
    of_values("equals", &["A", "B"], numbers::equals),
    as_written("fail", &["msg"], lazy::fail),
    as_written("foreach", &["from", "where?", "use?", "top?", "key?", "item?", "noMatchResult?"], lazy::foreach),
    of_values("hash", &["value"], collections::hash),
    as_written("if", &["condition", "is_true", "is_false"], lazy::choose),
    as_written("import", &["path", "default?"], lazy::import),
    of_values("int", &["value"], numbers::to_int),
    of_values("isArray", &["value"], numbers::is_array),
    of_values("isBool", &["value"], numbers::is_bool),
    of_values("isDouble", &["value"], numbers::is_double),
    of_values("isInt", &["value"], numbers::is_int),
    as_written("isLocalIp", &["ip"], lazy::is_local_ip),
    of_values("isObject", &["value"], numbers::is_object),
    of_values("isString", &["value"], numbers::is_string),
    of_values("keys", &["dictionary"], collections::keys),
    of_values("less", &["A", "B"], numbers::less),
    of_values("merge", &["params..."], collections::merge),
    of_values("mod", &["A", "B"], numbers::modulo),
    of_values("mul", &["A", "B"], numbers::mul),
    of_values("not", &["A"], numbers::not),
    as_written("or", &["A", "B"], lazy::or),
    as_written(
        "process",
        &["initialValue", "transform", "dictionary", "itemName?", "keyName?", "valueName?"],
        lazy::process,
    ),
    of_values("range", &["from", "to"], collections::range),
    of_values("select", &["dictionary", "key", "default?"], collections::select),
    of_values("set", &["dictionary", "key", "value"], collections::set),
    of_values("shuffle", &["dictionary", "seed?"], collections::shuffle),
    of_values("size", &["dictionary"], collections::size),
    of_values("slice", &["dictionary", "from", "to"], collections::slice),
    of_values("sort", &["dictionary"], collections::sort),
    of_values("split", &["dictionary", "delim"], collections::split),
    of_values("str", &["value"], numbers::to_text),
    of_values("sub", &["A", "B"], numbers::sub),
    as_written(
        "transform",
        &["dictionary", "itemTransform?", "keyTransform?", "itemName?", "keyName?"],
        lazy::transform,
    ),
    of_values("values", &["dictionary"], collections::values),
    of_values("weightedHash", &["dictionary", "key"], collections::weighted_hash),
];
