//! The environment's two parts in a configuration: `MCP_FORGE_*` overrides, and `${NAME}` in texts.
//!
//! Replacement works on parsed texts, never on the file: a variable's value cannot add keys.

use std::collections::BTreeMap;

use super::{
    error::ConfigError,
    keys::{self, KEYS, OTHER_NAMES, OTHER_VARIABLES},
    raw::{Content, Node},
    values::{Places, show_path},
};
use crate::text::quoted;

/// Puts the values of `MCP_FORGE_*` variables into the tree; an empty one counts as not set.
/// Returns a warning for each variable that no key has.
///
/// # Errors
///
/// [`ConfigError::Key`] when both names of one key are set and differ.
pub(super) fn apply_overrides(
    tree: &mut Node,
    environment: &BTreeMap<String, String>,
    errors: &Places<'_>,
) -> Result<Vec<String>, ConfigError> {
    let regular = KEYS
        .iter()
        .filter_map(|key| Some((key.variable()?, key.path)));
    let others = OTHER_NAMES
        .iter()
        .map(|(name, path)| ((*name).to_owned(), *path));
    let names: BTreeMap<String, &'static str> = regular.chain(others).collect();
    let mut warnings = Vec::new();
    let mut seen: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for (name, value) in environment {
        if !name.starts_with("MCP_FORGE_")
            || value.is_empty()
            || OTHER_VARIABLES.contains(&name.as_str())
        {
            continue;
        }
        let Some(path) = names.get(name).copied() else {
            warnings.push(unknown_variable(name, names.keys().map(String::as_str)));
            continue;
        };
        let node = Node::variable(name, value);
        match seen.insert(path, (name, value)) {
            Some((other, other_value)) if other_value != value => {
                let problem =
                    format!("{other} is set as well, to another value: unset one of the two");
                return Err(errors.error(Some(&node), path, problem));
            }
            _ => {}
        }
        tree.put(&path.split('.').collect::<Vec<_>>(), node);
    }
    Ok(warnings)
}

/// Replaces `${NAME}`, `${env:NAME}` and `${NAME:-default}` in every text of the file. `$${` stays `${`.
/// Upstreams that are disabled keep theirs: their secrets need not be there.
///
/// # Errors
///
/// [`ConfigError::Key`] for a variable that is not set, naming it and the key, never any value.
pub(super) fn substitute(
    tree: &mut Node,
    environment: &BTreeMap<String, String>,
    errors: &Places<'_>,
) -> Result<(), ConfigError> {
    substitute_at(tree, &mut Vec::new(), environment, errors)
}

fn substitute_at(
    node: &mut Node,
    path: &mut Vec<String>,
    environment: &BTreeMap<String, String>,
    errors: &Places<'_>,
) -> Result<(), ConfigError> {
    if path.len() == 2 && path[0] == "mcp_tools" && is_disabled(node) {
        return Ok(());
    }
    let replaced = match &mut node.content {
        Content::List(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                path.push(index.to_string());
                substitute_at(item, path, environment, errors)?;
                path.pop();
            }
            return Ok(());
        }
        Content::Table(entries) => {
            for (name, value) in entries {
                path.push(name.clone());
                substitute_at(value, path, environment, errors)?;
                path.pop();
            }
            return Ok(());
        }
        Content::Text(text) if text.contains("${") => expand(text, environment),
        _ => return Ok(()),
    };
    let text = replaced.map_err(|problem| errors.error(Some(node), show_path(path), problem))?;
    if let Content::Text(written) = std::mem::replace(&mut node.content, Content::Text(text)) {
        node.written = Some(written);
    }
    Ok(())
}

fn is_disabled(upstream: &Node) -> bool {
    upstream
        .at(&["disabled"])
        .is_some_and(|node| matches!(node.content, Content::Boolean(true)))
}

fn expand(text: &str, environment: &BTreeMap<String, String>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let (before, after) = (&rest[..start], &rest[start + 2..]);
        if let Some(escaped) = before.strip_suffix('$') {
            out.push_str(escaped);
            out.push_str("${");
            rest = after;
            continue;
        }
        let Some(end) = after.find('}') else {
            return Err("a ${ has no closing }. Write $${ for a literal one".to_owned());
        };
        out.push_str(before);
        out.push_str(&look_up(&after[..end], environment)?);
        rest = &after[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

fn look_up(inside: &str, environment: &BTreeMap<String, String>) -> Result<String, String> {
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let name = name.strip_prefix("env:").unwrap_or(name);
    let starts_well =
        name.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_');
    if !starts_well
        || !name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    {
        return Err(format!(
            "{} is not the name of an environment variable: only ${{NAME}} and ${{NAME:-default}} are replaced. \
             Write $${{ for a literal ${{",
            quoted(name)
        ));
    }
    match (environment.get(name), default) {
        (Some(value), Some(default)) if value.is_empty() => Ok(default.to_owned()),
        (Some(value), _) => Ok(value.clone()),
        (None, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(format!(
            "the environment variable {name} is not set. Set it, or write ${{{name}:-default}}"
        )),
    }
}

fn unknown_variable<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let shown = quoted(name);
    match keys::nearest(name, known.chain(OTHER_VARIABLES.iter().copied())) {
        Some(meant) => format!(
            "environment variable {shown} names no key and is ignored. Did you mean {meant}?"
        ),
        None => format!(
            "environment variable {shown} names no key and is ignored. docs/configuration.md has them all"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn texts_are_expanded_once_and_only_where_asked() {
        let environment = environment(&[("A", "1"), ("EMPTY", ""), ("NESTED", "${A}")]);
        for (text, expanded) in [
            ("${A}", "1"),
            ("x${A}y${A}", "x1y1"),
            ("${env:A}", "1"),
            ("${B:-two}", "two"),
            ("${B:-}", ""),
            ("${EMPTY}", ""),
            ("${EMPTY:-three}", "three"),
            ("$${A}", "${A}"),
            ("$A $ {A}", "$A $ {A}"),
            // A value is never looked into: it may come from anywhere.
            ("${NESTED}", "${A}"),
        ] {
            assert_eq!(
                expand(text, &environment).as_deref(),
                Ok(expanded),
                "{text}"
            );
        }
        for text in [
            "${",
            "${A",
            "${}",
            "${A B}",
            "${input:token}",
            "${1A}",
            "${B}",
        ] {
            assert!(expand(text, &environment).is_err(), "{text}");
        }
    }
}
