//! `iomill attr`: the attributes that users give to files.

use std::collections::BTreeMap;

use serde_json::json;

use crate::arguments::Attr;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::human;

pub fn run(context: &Context<'_>, arguments: &Attr) -> Result<Answer> {
    if let Some(key) = &arguments.remove {
        return change(context, &arguments.name, key, None);
    }
    match arguments.item.as_deref().map(|item| item.split_once('=').ok_or(item)) {
        None => list(context, &arguments.name),
        Some(Err(key)) => show(context, &arguments.name, key),
        Some(Ok((key, value))) => change(context, &arguments.name, key, Some(value)),
    }
}

fn list(context: &Context<'_>, name: &str) -> Result<Answer> {
    let attributes = attributes(context, name)?;
    let text = attributes.iter().map(|(key, value)| format!("{}\n", human::printable(&format!("{key}={value}"))));
    Ok(Answer::new(text.collect::<String>(), json!({ "name": name, "attributes": attributes })))
}

fn show(context: &Context<'_>, name: &str, key: &str) -> Result<Answer> {
    let attributes = attributes(context, name)?;
    let value = attributes.get(key).ok_or_else(|| no_such(name, key))?;
    Ok(Answer::new(format!("{value}\n"), json!({ "name": name, "attributes": { key: value } })))
}

fn attributes(context: &Context<'_>, name: &str) -> Result<BTreeMap<String, String>> {
    let peek = context.peek()?;
    context.note(peek.notices());
    Ok(peek.stat(name)?.attributes)
}

fn change(context: &Context<'_>, name: &str, key: &str, value: Option<&str>) -> Result<Answer> {
    context.with_writer(|array| {
        if value.is_none() && !array.stat(name)?.attributes.contains_key(key) {
            return Err(no_such(name, key));
        }
        array.set_attribute(name, key, value)?;
        let attributes = array.stat(name)?.attributes;
        Ok(Answer::new("", json!({ "name": name, "attributes": attributes })))
    })
}

fn no_such(name: &str, key: &str) -> Failure {
    let what = format!("file {name:?} has no attribute {key:?}; `iomill attr` with only the name lists its attributes");
    Failure::NoAttribute(what)
}
