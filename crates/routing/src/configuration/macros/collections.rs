//! Functions of objects, lists and texts.

use super::{
    numbers::{argument, integer, is_less, text},
    text::{EXPANSION_BYTES_MAX, VALUE_BYTES},
};
use crate::{
    configuration::json::{Json, JsonValue, Property},
    hash::{Rendezvous, murmur64a},
};
use std::cmp::Ordering;

type Values<'v> = &'v [Option<Json>];
type Result = std::result::Result<JsonValue, String>;

fn string(like: &Json, text: &str) -> Json {
    like.with(JsonValue::String(text.to_owned()))
}

fn wrong(value: &Json, expected: &str) -> String {
    format!("expected {expected}, found {}", value.describe())
}

fn list(value: &Json) -> std::result::Result<&[Json], String> {
    match &value.value {
        JsonValue::List(items) => Ok(items),
        _ => Err(wrong(value, "a list")),
    }
}

fn object(value: &Json) -> std::result::Result<&[Property], String> {
    match &value.value {
        JsonValue::Object(properties) => Ok(properties),
        _ => Err(wrong(value, "an object")),
    }
}

pub(super) fn keys(values: Values<'_>) -> Result {
    let value = argument(values, 0);
    Ok(JsonValue::List(object(value)?.iter().map(|property| string(value, &property.name)).collect()))
}

pub(super) fn values(values: Values<'_>) -> Result {
    Ok(JsonValue::List(object(argument(values, 0))?.iter().map(|property| property.value.clone()).collect()))
}

fn size_of(value: &Json) -> std::result::Result<usize, String> {
    match &value.value {
        JsonValue::Object(properties) => Ok(properties.len()),
        JsonValue::List(items) => Ok(items.len()),
        JsonValue::String(text) => Ok(text.len()),
        _ => Err(wrong(value, "an object, a list or text")),
    }
}

pub(super) fn size(values: Values<'_>) -> Result {
    Ok(JsonValue::Number(size_of(argument(values, 0))?.to_string()))
}

pub(super) fn empty(values: Values<'_>) -> Result {
    Ok(JsonValue::Boolean(size_of(argument(values, 0))? == 0))
}

/// Whether an object has the key, a list the value, or a text the part.
pub(super) fn contains(values: Values<'_>) -> Result {
    let (value, key) = (argument(values, 0), argument(values, 1));
    let is_found = match &value.value {
        JsonValue::Object(properties) => {
            let key = text(key)?;
            properties.iter().any(|property| property.name == key)
        }
        JsonValue::List(items) => items.iter().any(|item| item.to_string() == key.to_string()),
        JsonValue::String(whole) => whole.contains(&text(key)?),
        _ => return Err(wrong(value, "an object, a list or text")),
    };
    Ok(JsonValue::Boolean(is_found))
}

/// The index `at` of `size` items, from the end if it is negative.
fn index_of(at: i64, size: usize) -> Option<usize> {
    let index = if at < 0 { at.checked_add(size as i64)? } else { at };
    usize::try_from(index).ok().filter(|index| *index < size)
}

pub(super) fn select(values: Values<'_>) -> Result {
    let (value, key) = (argument(values, 0), argument(values, 1));
    let found = match &value.value {
        JsonValue::Object(properties) => {
            let key = text(key)?;
            properties.iter().find(|property| property.name == key).map(|property| property.value.clone())
        }
        JsonValue::List(items) => index_of(integer(key)?, items.len()).map(|index| items[index].clone()),
        _ => return Err(wrong(value, "an object or a list")),
    };
    let found = found.or_else(|| values[2].clone());
    found.map(|found| found.value).ok_or_else(|| format!("there is no {key}, and no default"))
}

pub(super) fn set(values: Values<'_>) -> Result {
    let (value, key, new) = (argument(values, 0), argument(values, 1), argument(values, 2));
    match &value.value {
        JsonValue::Object(properties) => {
            let (key, mut properties) = (text(key)?, properties.clone());
            match properties.iter_mut().find(|property| property.name == key) {
                Some(property) => property.value = new.clone(),
                None => properties.push(Property { at: value.at, name: key, value: new.clone() }),
            }
            Ok(JsonValue::Object(properties))
        }
        JsonValue::List(items) => {
            let at = integer(key)?;
            let index = index_of(at, items.len()).ok_or_else(|| format!("there is no item {at}"))?;
            let mut items = items.clone();
            items[index] = new.clone();
            Ok(JsonValue::List(items))
        }
        _ => Err(wrong(value, "an object or a list")),
    }
}

/// Lists one behind the other, texts one behind the other, or objects, of whose keys the last counts.
pub(super) fn merge(values: Values<'_>) -> Result {
    let parts = list(argument(values, 0))?;
    let Some(first) = parts.first() else { return Err("expected at least one value".to_owned()) };
    match &first.value {
        JsonValue::List(_) => {
            let mut all = Vec::new();
            for part in parts {
                all.extend(list(part)?.iter().cloned());
            }
            Ok(JsonValue::List(all))
        }
        JsonValue::Object(_) => {
            let mut all: Vec<Property> = Vec::new();
            for property in parts.iter().map(object).collect::<std::result::Result<Vec<_>, _>>()?.concat() {
                all.retain(|known| known.name != property.name);
                all.push(property);
            }
            Ok(JsonValue::Object(all))
        }
        _ => Ok(JsonValue::String(parts.iter().map(text).collect::<std::result::Result<Vec<_>, _>>()?.concat())),
    }
}

/// A part of a list or text by indices, or of an object by keys. Both ends are included.
pub(super) fn slice(values: Values<'_>) -> Result {
    let (value, from, to) = (argument(values, 0), argument(values, 1), argument(values, 2));
    if let JsonValue::Object(properties) = &value.value {
        let (from, to) = (text(from)?, text(to)?);
        let is_inside = |property: &&Property| (&*from..=&*to).contains(&&*property.name);
        return Ok(JsonValue::Object(properties.iter().filter(is_inside).cloned().collect()));
    }
    let size = size_of(value)? as i64;
    let end = |at: i64| if at < 0 { at.saturating_add(size) } else { at };
    let (from, to) = (end(integer(from)?).max(0), end(integer(to)?).min(size - 1));
    let indices = if from > to { 0..0 } else { from as usize..to as usize + 1 };
    match &value.value {
        JsonValue::List(items) => Ok(JsonValue::List(items[indices].to_vec())),
        JsonValue::String(whole) => {
            let part = whole.get(indices).ok_or("the part begins or ends inside of a character")?;
            Ok(JsonValue::String(part.to_owned()))
        }
        _ => Err(wrong(value, "an object, a list or text")),
    }
}

pub(super) fn split(values: Values<'_>) -> Result {
    let (whole, delimiter) = (text(argument(values, 0))?, text(argument(values, 1))?);
    if delimiter.is_empty() {
        return Err("the delimiter is empty".to_owned());
    }
    Ok(JsonValue::List(whole.split(&*delimiter).map(|part| string(argument(values, 0), part)).collect()))
}

/// The whole numbers from one to another, both included.
pub(super) fn range(values: Values<'_>) -> Result {
    let (from, to) = (integer(argument(values, 0))?, integer(argument(values, 1))?);
    if to.saturating_sub(from) > (EXPANSION_BYTES_MAX / VALUE_BYTES) as i64 {
        return Err(format!("from {from} to {to} are too many numbers"));
    }
    let number = |number: i64| argument(values, 0).with(JsonValue::Number(number.to_string()));
    Ok(JsonValue::List((from..=to).map(number).collect()))
}

pub(super) fn sort(values: Values<'_>) -> Result {
    let mut items = list(argument(values, 0))?.to_vec();
    items.sort_by(|one, other| match (is_less(one, other), is_less(other, one)) {
        (true, _) => Ordering::Less,
        (_, true) => Ordering::Greater,
        _ => Ordering::Equal,
    });
    Ok(JsonValue::List(items))
}

/// The items of a list in an order that the seed (0 by default) determines.
pub(super) fn shuffle(values: Values<'_>) -> Result {
    let seed = values[1].as_ref().map_or(Ok(0), integer)?;
    let mut items = list(argument(values, 0))?.to_vec();
    let rank = |index: usize| murmur64a(format!("{seed} {index}").as_bytes());
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|index| rank(*index));
    items = order.into_iter().map(|index| items[index].clone()).collect();
    Ok(JsonValue::List(items))
}

/// A whole number from 0 that depends on the value.
pub(super) fn hash(values: Values<'_>) -> Result {
    let digest = murmur64a(argument(values, 0).to_string().as_bytes());
    Ok(JsonValue::Number((digest >> 33).to_string()))
}

/// The key of an object of weights from 0 to 1 that a value chooses.
pub(super) fn weighted_hash(values: Values<'_>) -> Result {
    let weights = object(argument(values, 0))?;
    let names: Vec<String> = weights.iter().map(|property| property.name.clone()).collect();
    let weight = |property: &Property| match &property.value.value {
        JsonValue::Number(number) => number.parse().ok().filter(|weight| (0.0..=1.0).contains(weight)),
        _ => None,
    };
    let weights: Option<Vec<f64>> = weights.iter().map(weight).collect();
    match weights {
        Some(weights) if !names.is_empty() => {
            let chosen = Rendezvous::new(&names, &weights).pick(text(argument(values, 1))?.as_bytes());
            Ok(JsonValue::String(names[chosen as usize].clone()))
        }
        _ => Err("expected an object with weights from 0 to 1".to_owned()),
    }
}
