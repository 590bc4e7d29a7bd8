//! Checks the tree against the table of keys: no unknown key, no value of the wrong kind or range.

use std::time::Duration;

use super::{
    error::ConfigError,
    keys::{self, Key, Kind, Place},
    raw::{Content, Node, Origin},
    size::{duration_from_seconds, parse_bytes, parse_duration, show_size},
};

/// Keys of other programs' files that mean nothing here and do no harm.
const FOREIGN_KEYS: &[&str] = &["$schema", "inputs", "globalShortcut", "preferences"];

/// Checks a whole tree. Values from the environment become what their key wants.
///
/// # Errors
///
/// [`ConfigError::Key`] for the first key that is unknown or wrong.
pub(super) fn check(tree: &mut Node, errors: &Places<'_>) -> Result<Vec<String>, ConfigError> {
    let mut warnings = Vec::new();
    for key in FOREIGN_KEYS {
        if let Some(node) = tree.take(key) {
            let place = errors.place(&node.origin);
            warnings.push(format!(
                "{place}: {key}: this key belongs to another program and is ignored"
            ));
        }
    }
    check_at(tree, &mut Vec::new(), errors)?;
    Ok(warnings)
}

/// Turns origins into the places that people read.
#[derive(Debug)]
pub(super) struct Places<'a> {
    /// The file, as it was named.
    pub(super) file: &'a str,
}

impl Places<'_> {
    /// `file:line`, or the variable's name.
    pub(super) fn place(&self, origin: &Origin) -> String {
        match origin {
            Origin::Line(0) | Origin::Implied => self.file.to_owned(),
            Origin::Line(line) => format!("{}:{line}", self.file),
            Origin::Variable(name) => format!("environment variable {name}"),
        }
    }

    /// The error for one key.
    pub(super) fn error(
        &self,
        node: Option<&Node>,
        key: impl Into<String>,
        problem: impl Into<String>,
    ) -> ConfigError {
        let place = node.map_or_else(|| self.file.to_owned(), |node| self.place(&node.origin));
        ConfigError::Key {
            place,
            key: key.into(),
            problem: problem.into(),
        }
    }
}

fn check_at(
    node: &mut Node,
    path: &mut Vec<String>,
    errors: &Places<'_>,
) -> Result<(), ConfigError> {
    let known = match keys::place(path) {
        Place::Value(key) => return check_value(node, key, path, errors),
        Place::Section(known) => known,
        Place::Unknown => Vec::new(),
    };
    let origin = node.origin.clone();
    let shown = node.shown();
    let Content::Table(entries) = &mut node.content else {
        if matches!(node.content, Content::Nothing) {
            // `mcp_tools:` with everything under it commented out.
            node.content = Content::Table(Vec::new());
            return Ok(());
        }
        let problem = format!("{shown} stands where keys belong: {}", known.join(", "));
        let key = if path.is_empty() {
            "the file".to_owned()
        } else {
            show_path(path)
        };
        return Err(ConfigError::Key {
            place: errors.place(&origin),
            key,
            problem,
        });
    };
    for (name, value) in entries {
        path.push(name.clone());
        if matches!(keys::place(path), Place::Unknown) {
            return Err(errors.error(
                Some(value),
                show_path(path),
                unknown_key(name, path, &known),
            ));
        }
        check_at(value, path, errors)?;
        path.pop();
    }
    Ok(())
}

fn unknown_key(name: &str, path: &[String], known: &[&'static str]) -> String {
    match (path.first().map(String::as_str), name) {
        (Some("mcp_tools"), "envFile") => {
            return "envFile is not read: put the variables under env, with ${NAME} for those of this process".to_owned();
        }
        (Some("mcp_tools"), "timeout") => {
            return "unknown key. Write start_timeout or call_timeout".to_owned();
        }
        _ => {}
    }
    if let Some(meant) = keys::nearest(name, known.iter().copied()) {
        return format!("unknown key. Did you mean {meant}?");
    }
    // A key of another section, written at the wrong level.
    let elsewhere = keys::KEYS
        .iter()
        .find(|key| !key.path.contains('*') && key.path.rsplit('.').next() == Some(name));
    match elsewhere {
        Some(key) => format!("unknown key. Did you mean {}?", key.path),
        None => format!("unknown key. Known here: {}", known.join(", ")),
    }
}

fn check_value(
    node: &mut Node,
    key: &Key,
    path: &[String],
    errors: &Places<'_>,
) -> Result<(), ConfigError> {
    if matches!(node.content, Content::Nothing) {
        // `key:` with nothing after it is the default, as if the line were not there.
        return Ok(());
    }
    if node.is_from_environment() {
        coerce(node, key.kind);
    }
    let refuse = |node: &Node, path: &[String], problem: String| {
        Err(errors.error(Some(node), show_path(path), problem))
    };
    match (&node.content, key.kind) {
        (Content::List(items), Kind::Texts | Kind::Secrets) => {
            for (index, item) in items.iter().enumerate() {
                if let Err(problem) = check_text(item, key.kind) {
                    let path = [path, &[index.to_string()]].concat();
                    return refuse(item, &path, problem);
                }
            }
            Ok(())
        }
        (Content::Table(entries), Kind::SecretTable) => {
            for (name, value) in entries {
                if let Err(problem) = check_text(value, key.kind) {
                    let path = [path, std::slice::from_ref(name)].concat();
                    return refuse(value, &path, problem);
                }
            }
            Ok(())
        }
        (_, kind) => match check_scalar(node, kind) {
            Ok(()) => Ok(()),
            Err(problem) => refuse(node, path, problem),
        },
    }
}

/// In the environment everything is text: gives it the shape that the key wants, if it has it.
fn coerce(node: &mut Node, kind: Kind) {
    let Content::Text(text) = &node.content else {
        return;
    };
    let text = text.trim();
    let content = match kind {
        Kind::Boolean => match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Some(Content::Boolean(true)),
            "false" | "0" | "no" | "off" => Some(Content::Boolean(false)),
            _ => None,
        },
        Kind::Integer(..) => text.parse().ok().map(Content::Integer),
        Kind::Texts => Some(Content::List(
            text.split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty())
                .map(|item| Node {
                    content: Content::Text(item.to_owned()),
                    ..node.clone()
                })
                .collect(),
        )),
        _ => None,
    };
    if let Some(content) = content {
        node.content = content;
    }
}

fn check_text(node: &Node, kind: Kind) -> Result<(), String> {
    match &node.content {
        Content::Text(text) if text.contains('\0') => {
            Err("the text has a NUL in it, which no program can take".to_owned())
        }
        Content::Text(_) => Ok(()),
        _ if kind.is_secret() => Err("this is not a text: put it in quotes".to_owned()),
        _ => Err(format!("{} is not a text: put it in quotes", node.shown())),
    }
}

fn check_scalar(node: &Node, kind: Kind) -> Result<(), String> {
    let shown = node.shown();
    match kind {
        Kind::Text | Kind::Secret | Kind::Path => {
            check_text(node, kind)?;
            match &node.content {
                Content::Text(text) if text.trim().is_empty() => {
                    Err("this is empty: write a text, or leave the key out".to_owned())
                }
                _ => Ok(()),
            }
        }
        Kind::Boolean => match node.content {
            Content::Boolean(_) => Ok(()),
            _ => Err(format!("{shown} is neither true nor false")),
        },
        Kind::Integer(least, most) => match node.content {
            Content::Integer(value) if (least..=most).contains(&value) => Ok(()),
            Content::Integer(_) => Err(format!(
                "{shown} is out of range: write a number from {least} to {most}"
            )),
            _ => Err(format!(
                "{shown} is not a whole number: write a number from {least} to {most}"
            )),
        },
        Kind::Size(least, most) => match size_of(node)? {
            bytes if (least..=most).contains(&bytes) => Ok(()),
            _ => Err(format!(
                "{shown} is out of range: write a size from {} to {}",
                show_size(least),
                show_size(most)
            )),
        },
        Kind::Duration(least, most) => match duration_of(node)?.as_secs_f64() {
            seconds if (least..=most).contains(&seconds) => Ok(()),
            _ => Err(format!(
                "{shown} is out of range: write a duration from {least} s to {most} s"
            )),
        },
        Kind::Choice(words) => check_choice(node, words),
        Kind::Texts | Kind::Secrets => Err(format!(
            "{} is not a list: write it as [a, b]",
            hidden(node, kind)
        )),
        Kind::SecretTable => Err(format!(
            "{} is not a table: write one NAME: text a line",
            hidden(node, kind)
        )),
    }
}

fn check_choice(node: &Node, words: &'static [&'static str]) -> Result<(), String> {
    let shown = node.shown();
    let Content::Text(text) = &node.content else {
        return Err(format!("{shown} is not one of {}", words.join(", ")));
    };
    if words.contains(&text.as_str()) {
        return Ok(());
    }
    if text == "sse" {
        let problem = "the transport sse was replaced in the protocol and is not supported";
        return Err(format!(
            "{problem}: write http and the server's Streamable HTTP address"
        ));
    }
    match keys::nearest(text, words.iter().copied()) {
        Some(meant) => Err(format!(
            "{shown} is not one of {}. Did you mean {meant}?",
            words.join(", ")
        )),
        None => Err(format!("{shown} is not one of {}", words.join(", "))),
    }
}

/// A default of the table as a value.
pub(super) fn default_node(default: &str, kind: Kind) -> Node {
    let mut node = Node {
        content: Content::Text(default.to_owned()),
        origin: Origin::Implied,
        written: None,
    };
    coerce(&mut node, kind);
    node
}

/// The size that a node writes.
pub(super) fn size_of(node: &Node) -> Result<u64, String> {
    let size = match &node.content {
        Content::Integer(value) => u64::try_from(*value).map_err(|_| "less than nothing"),
        Content::Text(text) => parse_bytes(text),
        _ => Err("not a size"),
    };
    size.map_err(|problem| {
        format!(
            "{} is {problem}: write bytes (1048576) or a text such as 512m or 2g",
            node.shown()
        )
    })
}

/// The duration that a node writes.
pub(super) fn duration_of(node: &Node) -> Result<Duration, String> {
    let duration = match &node.content {
        #[expect(
            clippy::cast_precision_loss,
            reason = "beyond 2^52 seconds it is refused anyway"
        )]
        Content::Integer(value) => duration_from_seconds(*value as f64).ok_or("out of any range"),
        Content::Number(value) => duration_from_seconds(*value).ok_or("out of any range"),
        Content::Text(text) => parse_duration(text),
        _ => Err("not a duration"),
    };
    duration.map_err(|problem| {
        format!(
            "{} is {problem}: write seconds (300) or a text such as 90s or 5m",
            node.shown()
        )
    })
}

/// A sentence about a text, unless the text came of a `${...}`: that may be secret, and is shown as
/// it was written.
pub(super) fn told(node: Option<&Node>, wanted: &str, sentence: String) -> String {
    match node {
        Some(node) if node.written.is_some() => {
            format!("{} does not become {wanted}", node.shown())
        }
        _ => sentence,
    }
}

fn hidden(node: &Node, kind: Kind) -> String {
    if kind.is_secret() {
        "this".to_owned()
    } else {
        node.shown()
    }
}

/// A path of keys as it is read; names of the operator's choice are cut and escaped.
pub(super) fn show_path(path: &[String]) -> String {
    const MOST: usize = 80;
    let parts = path.iter().map(|part| {
        part.chars()
            .take(MOST)
            .flat_map(char::escape_debug)
            .collect::<String>()
    });
    parts.collect::<Vec<_>>().join(".")
}
