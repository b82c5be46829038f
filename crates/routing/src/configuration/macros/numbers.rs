//! Functions of numbers, truth values and types. A text that is a number is taken for one, since arguments in brackets
//! are text.

use crate::configuration::json::{Json, JsonValue};

type Values<'v> = &'v [Option<Json>];
type Result = std::result::Result<JsonValue, String>;

/// The argument at `index`, which is not optional.
pub(super) fn argument(values: Values<'_>, index: usize) -> &Json {
    values[index].as_ref().expect("the caller has checked that it is given")
}

pub(super) fn integer(value: &Json) -> std::result::Result<i64, String> {
    let number = match &value.value {
        JsonValue::Number(text) | JsonValue::String(text) => text.trim().parse().ok(),
        JsonValue::Boolean(truth) => Some(i64::from(*truth)),
        _ => None,
    };
    number.ok_or_else(|| format!("expected a whole number, found {}", value.describe()))
}

fn float(value: &Json) -> std::result::Result<f64, String> {
    let number = match &value.value {
        JsonValue::Number(text) | JsonValue::String(text) => {
            text.trim().parse().ok().filter(|number: &f64| number.is_finite())
        }
        _ => None,
    };
    number.ok_or_else(|| format!("expected a number, found {}", value.describe()))
}

pub(super) fn truth(value: &Json) -> std::result::Result<bool, String> {
    match &value.value {
        JsonValue::Boolean(truth) => Ok(*truth),
        JsonValue::String(text) if text == "true" => Ok(true),
        JsonValue::String(text) if text == "false" => Ok(false),
        JsonValue::Number(_) => Ok(float(value)? != 0.0),
        _ => Err(format!("expected true or false, found {}", value.describe())),
    }
}

pub(super) fn text(value: &Json) -> std::result::Result<String, String> {
    match &value.value {
        JsonValue::String(text) | JsonValue::Number(text) => Ok(text.clone()),
        JsonValue::Boolean(truth) => Ok(truth.to_string()),
        _ => Err(format!("expected text, found {}", value.describe())),
    }
}

fn whole(number: i64) -> JsonValue {
    JsonValue::Number(number.to_string())
}

/// A number with a point, so that it is not taken for a whole one.
fn fraction(number: f64) -> Result {
    match number.is_finite() {
        true => Ok(JsonValue::Number(format!("{number:?}"))),
        false => Err("the result is not a number".to_owned()),
    }
}

/// Of two whole numbers, or of two others.
fn arithmetic(values: Values<'_>, of_whole: fn(i64, i64) -> Option<i64>, of_others: fn(f64, f64) -> f64) -> Result {
    let (one, other) = (argument(values, 0), argument(values, 1));
    match (integer(one), integer(other)) {
        (Ok(one), Ok(other)) => {
            of_whole(one, other).map(whole).ok_or_else(|| format!("{one} and {other} have no such result"))
        }
        _ => fraction(of_others(float(one)?, float(other)?)),
    }
}

fn of_bits(values: Values<'_>, run: fn(i64, i64) -> Option<i64>) -> Result {
    let (one, other) = (integer(argument(values, 0))?, integer(argument(values, 1))?);
    run(one, other).map(whole).ok_or_else(|| format!("{one} and {other} have no such result"))
}

pub(super) fn add(values: Values<'_>) -> Result {
    arithmetic(values, i64::checked_add, |one, other| one + other)
}

pub(super) fn sub(values: Values<'_>) -> Result {
    arithmetic(values, i64::checked_sub, |one, other| one - other)
}

pub(super) fn mul(values: Values<'_>) -> Result {
    arithmetic(values, i64::checked_mul, |one, other| one * other)
}

pub(super) fn div(values: Values<'_>) -> Result {
    arithmetic(values, i64::checked_div, |one, other| one / other)
}

pub(super) fn modulo(values: Values<'_>) -> Result {
    of_bits(values, i64::checked_rem)
}

pub(super) fn bitwise_and(values: Values<'_>) -> Result {
    of_bits(values, |one, other| Some(one & other))
}

pub(super) fn bitwise_or(values: Values<'_>) -> Result {
    of_bits(values, |one, other| Some(one | other))
}

pub(super) fn bitwise_xor(values: Values<'_>) -> Result {
    of_bits(values, |one, other| Some(one ^ other))
}

pub(super) fn bitwise_not(values: Values<'_>) -> Result {
    Ok(whole(!integer(argument(values, 0))?))
}

pub(super) fn shift_left(values: Values<'_>) -> Result {
    of_bits(values, |one, by| one.checked_shl(by.try_into().ok()?))
}

pub(super) fn shift_right(values: Values<'_>) -> Result {
    of_bits(values, |one, by| one.checked_shr(by.try_into().ok()?))
}

pub(super) fn to_int(values: Values<'_>) -> Result {
    let value = argument(values, 0);
    match integer(value) {
        Ok(number) => Ok(whole(number)),
        // A fraction is cut off.
        Err(why) => float(value).map(|number| whole(number as i64)).map_err(|_| why),
    }
}

pub(super) fn to_double(values: Values<'_>) -> Result {
    fraction(float(argument(values, 0))?)
}

pub(super) fn to_bool(values: Values<'_>) -> Result {
    Ok(JsonValue::Boolean(truth(argument(values, 0))?))
}

pub(super) fn to_text(values: Values<'_>) -> Result {
    Ok(JsonValue::String(text(argument(values, 0))?))
}

pub(super) fn not(values: Values<'_>) -> Result {
    Ok(JsonValue::Boolean(!truth(argument(values, 0))?))
}

pub(super) fn equals(values: Values<'_>) -> Result {
    Ok(JsonValue::Boolean(are_equal(argument(values, 0), argument(values, 1))))
}

fn are_equal(one: &Json, other: &Json) -> bool {
    match (float(one), float(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => one.to_string() == other.to_string(),
    }
}

/// Numbers by size, everything else as text.
pub(super) fn is_less(one: &Json, other: &Json) -> bool {
    match (float(one), float(other)) {
        (Ok(one), Ok(other)) => one < other,
        _ => one.to_string() < other.to_string(),
    }
}

pub(super) fn less(values: Values<'_>) -> Result {
    Ok(JsonValue::Boolean(is_less(argument(values, 0), argument(values, 1))))
}

fn is_number(value: &Json, is_whole: bool) -> bool {
    matches!(&value.value, JsonValue::Number(text) if text.parse::<i64>().is_ok() == is_whole)
}

pub(super) fn is_int(values: Values<'_>) -> Result {
    Ok(JsonValue::Boolean(is_number(argument(values, 0), true)))
}

pub(super) fn is_double(values: Values<'_>) -> Result {
    Ok(JsonValue::Boolean(is_number(argument(values, 0), false)))
}

pub(super) fn is_array(values: Values<'_>) -> Result {
    Ok(JsonValue::Boolean(matches!(argument(values, 0).value, JsonValue::List(_))))
}

pub(super) fn is_bool(values: Values<'_>) -> Result {
    Ok(JsonValue::Boolean(matches!(argument(values, 0).value, JsonValue::Boolean(_))))
}

pub(super) fn is_object(values: Values<'_>) -> Result {
    Ok(JsonValue::Boolean(matches!(argument(values, 0).value, JsonValue::Object(_))))
}

pub(super) fn is_string(values: Values<'_>) -> Result {
    Ok(JsonValue::Boolean(matches!(argument(values, 0).value, JsonValue::String(_))))
}
