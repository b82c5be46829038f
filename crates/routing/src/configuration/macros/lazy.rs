//! Functions that expand only some of their arguments, or some of them several times with other names; and `@import`.

use super::{
    expander::{Arguments, Expanded, Expander},
    numbers,
    scope::Scope,
    text::expansion_bytes,
};
use crate::configuration::{
    error::{ConfigurationError, line_and_column},
    json::{Json, JsonValue, MacroCall, Property, parse},
};
use std::{collections::BTreeMap, rc::Rc};

impl Expander<'_> {
    fn expand_required(&mut self, at: &Json, arguments: &Arguments, name: &str, scope: &Scope<'_>) -> Expanded {
        let written = arguments.get(name).expect("the caller has checked that it is given");
        self.expand_argument(at, written, scope)
    }

    fn expand_optional(
        &mut self,
        at: &Json,
        arguments: &Arguments,
        name: &str,
        scope: &Scope<'_>,
    ) -> Result<Option<Json>, ConfigurationError> {
        arguments.get(name).map(|written| self.expand_argument(at, written, scope)).transpose()
    }

    fn expand_truth(
        &mut self,
        at: &Json,
        arguments: &Arguments,
        name: &str,
        scope: &Scope<'_>,
    ) -> Result<bool, ConfigurationError> {
        let value = self.expand_required(at, arguments, name, scope)?;
        numbers::truth(&value).map_err(|why| self.error(at, format!("{name:?}: {why}")))
    }

    /// The text at `name`, or `default`.
    fn expand_name_of(
        &mut self,
        at: &Json,
        arguments: &Arguments,
        name: &str,
        default: &str,
        scope: &Scope<'_>,
    ) -> Result<String, ConfigurationError> {
        match self.expand_optional(at, arguments, name, scope)? {
            Some(value) => numbers::text(&value).map_err(|why| self.error(at, format!("{name:?}: {why}"))),
            None => Ok(default.to_owned()),
        }
    }

    /// The keys and items of an object, or the indices and items of a list.
    fn entries(&mut self, at: &Json, value: Json) -> Result<Vec<(Json, Json)>, ConfigurationError> {
        match value.value {
            JsonValue::Object(properties) => Ok(properties
                .into_iter()
                .map(|property| (at.with(JsonValue::String(property.name)), property.value))
                .collect()),
            JsonValue::List(items) => Ok(items
                .into_iter()
                .enumerate()
                .map(|(index, item)| (at.with(JsonValue::Number(index.to_string())), item))
                .collect()),
            _ => Err(self.error(at, format!("expected an object or a list, found {}", value.describe()))),
        }
    }
}

pub(super) fn choose(this: &mut Expander<'_>, at: &Json, arguments: &Arguments, scope: &Scope<'_>) -> Expanded {
    let branch = if this.expand_truth(at, arguments, "condition", scope)? { "is_true" } else { "is_false" };
    this.expand_required(at, arguments, branch, scope)
}

pub(super) fn and(this: &mut Expander<'_>, at: &Json, arguments: &Arguments, scope: &Scope<'_>) -> Expanded {
    let both = this.expand_truth(at, arguments, "A", scope)? && this.expand_truth(at, arguments, "B", scope)?;
    Ok(at.with(JsonValue::Boolean(both)))
}

pub(super) fn or(this: &mut Expander<'_>, at: &Json, arguments: &Arguments, scope: &Scope<'_>) -> Expanded {
    let either = this.expand_truth(at, arguments, "A", scope)? || this.expand_truth(at, arguments, "B", scope)?;
    Ok(at.with(JsonValue::Boolean(either)))
}

pub(super) fn define(this: &mut Expander<'_>, at: &Json, arguments: &Arguments, scope: &Scope<'_>) -> Expanded {
    this.expand_required(at, arguments, "result", scope)
}

pub(super) fn defined(this: &mut Expander<'_>, at: &Json, arguments: &Arguments, scope: &Scope<'_>) -> Expanded {
    let name = this.expand_name_of(at, arguments, "name", "", scope)?;
    Ok(at.with(JsonValue::Boolean(this.is_defined(&name, scope))))
}

pub(super) fn fail(this: &mut Expander<'_>, at: &Json, arguments: &Arguments, scope: &Scope<'_>) -> Expanded {
    let message = this.expand_name_of(at, arguments, "msg", "", scope)?;
    Err(this.error(at, message))
}

pub(super) fn is_local_ip(this: &mut Expander<'_>, at: &Json, arguments: &Arguments, scope: &Scope<'_>) -> Expanded {
    let ip = this.expand_name_of(at, arguments, "ip", "", scope)?;
    Ok(at.with(JsonValue::Boolean((this.inputs.is_local_ip)(&ip))))
}

/// The value in another file, whose own calls and names are expanded. Its places are that of the call.
pub(super) fn import(this: &mut Expander<'_>, at: &Json, arguments: &Arguments, scope: &Scope<'_>) -> Expanded {
    let path = this.expand_name_of(at, arguments, "path", "", scope)?;
    let path = path.strip_prefix("file:").unwrap_or(&path);
    let text = match ((this.inputs.import)(path), arguments.get("default")) {
        (Ok(text), _) => text,
        (Err(why), Some(default)) => {
            this.warn_once(at, format!("@import({path}): {why}; the default is used"));
            return this.expand_argument(at, default, scope);
        }
        (Err(why), None) => return Err(this.error(at, format!("@import({path}): {why}"))),
    };
    let mut imported = parse(&text).map_err(|error| this.error(at, format!("@import({path}): {error}")))?;
    place_at(&mut imported, at.at);
    this.count_bytes(at, expansion_bytes(&imported))?;
    let (line, _) = line_and_column(this.text, at.at);
    let call = Some(Rc::new(MacroCall { name: format!("import({path})"), line, outer: scope.call.clone() }));
    this.expand_argument(at, &imported, &Scope { call, ..Scope::default() })
}

fn place_at(value: &mut Json, at: usize) {
    value.at = at;
    match &mut value.value {
        JsonValue::List(items) => items.iter_mut().for_each(|item| place_at(item, at)),
        JsonValue::Object(properties) => properties.iter_mut().for_each(|property| {
            property.at = at;
            place_at(&mut property.value, at);
        }),
        _ => {}
    }
}

/// A scope in which these names are those values.
fn with_names<'s>(scope: &'s Scope<'_>, names: impl IntoIterator<Item = (String, Json)>) -> Scope<'s> {
    Scope { parameters: BTreeMap::from_iter(names), ..scope.inner() }
}

/// An object of transformed keys and items, or without `keyTransform`, or from a list, a list of transformed items.
pub(super) fn transform(this: &mut Expander<'_>, at: &Json, arguments: &Arguments, scope: &Scope<'_>) -> Expanded {
    let dictionary = this.expand_required(at, arguments, "dictionary", scope)?;
    let item_name = this.expand_name_of(at, arguments, "itemName", "item", scope)?;
    let key_name = this.expand_name_of(at, arguments, "keyName", "key", scope)?;
    let is_object = matches!(dictionary.value, JsonValue::Object(_)) && arguments.get("keyTransform").is_some();
    let (mut items, mut properties) = (Vec::new(), Vec::new());
    for (key, item) in this.entries(at, dictionary)? {
        let inner = with_names(scope, [(key_name.clone(), key), (item_name.clone(), item.clone())]);
        let value = this.expand_optional(at, arguments, "itemTransform", &inner)?.unwrap_or(item);
        if !is_object {
            items.push(value);
            continue;
        }
        let name = this.expand_name_of(at, arguments, "keyTransform", "", &inner)?;
        properties.retain(|known: &Property| known.name != name);
        properties.push(Property { at: at.at, name, value });
    }
    Ok(at.with(if is_object { JsonValue::Object(properties) } else { JsonValue::List(items) }))
}

/// Folds an object or a list: each item is combined with the value so far.
pub(super) fn process(this: &mut Expander<'_>, at: &Json, arguments: &Arguments, scope: &Scope<'_>) -> Expanded {
    let dictionary = this.expand_required(at, arguments, "dictionary", scope)?;
    let item_name = this.expand_name_of(at, arguments, "itemName", "item", scope)?;
    let key_name = this.expand_name_of(at, arguments, "keyName", "key", scope)?;
    let value_name = this.expand_name_of(at, arguments, "valueName", "value", scope)?;
    let mut value = this.expand_required(at, arguments, "initialValue", scope)?;
    for (key, item) in this.entries(at, dictionary)? {
        let names = [(key_name.clone(), key), (item_name.clone(), item), (value_name.clone(), value)];
        value = this.expand_required(at, arguments, "transform", &with_names(scope, names))?;
    }
    Ok(value)
}

/// Of the first `top` items for which `where` holds, what `use` makes of each: an object has the same keys, a list
/// stays a list. `noMatchResult` if there are none.
pub(super) fn foreach(this: &mut Expander<'_>, at: &Json, arguments: &Arguments, scope: &Scope<'_>) -> Expanded {
    let from = this.expand_required(at, arguments, "from", scope)?;
    let key_name = this.expand_name_of(at, arguments, "key", "key", scope)?;
    let item_name = this.expand_name_of(at, arguments, "item", "item", scope)?;
    let top = match this.expand_optional(at, arguments, "top", scope)? {
        Some(top) => numbers::integer(&top).map_err(|why| this.error(at, format!("\"top\": {why}")))?,
        None => i64::MAX,
    };
    let is_object = matches!(from.value, JsonValue::Object(_));
    let (mut items, mut properties) = (Vec::new(), Vec::new());
    for (key, item) in this.entries(at, from)? {
        if (items.len() + properties.len()) as i64 >= top {
            break;
        }
        let inner = with_names(scope, [(key_name.clone(), key.clone()), (item_name.clone(), item.clone())]);
        if arguments.get("where").is_some() && !this.expand_truth(at, arguments, "where", &inner)? {
            continue;
        }
        let value = this.expand_optional(at, arguments, "use", &inner)?.unwrap_or(item);
        match key.value {
            JsonValue::String(name) if is_object => properties.push(Property { at: at.at, name, value }),
            _ => items.push(value),
        }
    }
    if items.is_empty()
        && properties.is_empty()
        && let Some(written) = arguments.get("noMatchResult")
    {
        return this.expand_argument(at, written, scope);
    }
    Ok(at.with(if is_object { JsonValue::Object(properties) } else { JsonValue::List(items) }))
}
