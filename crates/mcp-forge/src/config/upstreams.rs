//! The MCP servers under `mcp_tools`, in the form that desktop clients' own files have.

use std::{collections::BTreeMap, path::Path};

use super::{
    Transport, Upstream,
    error::ConfigError,
    raw::Node,
    read::Reader,
    values::{Places, show_path},
};

/// How other programs' files call the section.
const SYNONYMS: &[&str] = &["mcpServers", "servers"];

/// Longest name of an upstream, in bytes.
const MAX_NAME: usize = 64;

/// Renames the section of a desktop client's file to ours.
///
/// # Errors
///
/// [`ConfigError::Key`] when two of the names are there: which one would count?
pub(super) fn adopt_synonyms(tree: &mut Node, errors: &Places<'_>) -> Result<(), ConfigError> {
    for synonym in SYNONYMS {
        let Some(section) = tree.take(synonym) else {
            continue;
        };
        if tree.at(&["mcp_tools"]).is_some() {
            let problem =
                "the MCP servers are written under two names: put them all under mcp_tools";
            return Err(errors.error(Some(&section), *synonym, problem));
        }
        tree.put(&["mcp_tools"], section);
    }
    Ok(())
}

/// Reads the upstreams; disabled ones are left out, and so, with a warning, is MCP-Forge itself: a
/// desktop client's file lists it among its servers, and it would start itself without end.
///
/// # Errors
///
/// [`ConfigError::Key`] for the first that cannot be reached as it is written.
pub(super) fn read(
    reader: &Reader<'_>,
) -> Result<(BTreeMap<String, Upstream>, Vec<String>), ConfigError> {
    let (mut upstreams, mut warnings) = (BTreeMap::new(), Vec::new());
    for (name, node) in reader.named("mcp_tools") {
        let path = show_path(&["mcp_tools".to_owned(), name.to_owned()]);
        if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
            let problem =
                format!("a server's name has 1 to {MAX_NAME} bytes and no control characters");
            return Err(reader.errors.error(Some(node), path, problem));
        }
        let inside = reader.inside(node);
        if inside.flag("disabled") {
            continue;
        }
        if inside
            .text("command")
            .is_some_and(|command| is_ourselves(&command))
        {
            let place = inside.errors.place(&node.origin);
            warnings.push(format!(
                "{place}: {path}: this starts MCP-Forge itself and is left out"
            ));
            continue;
        }
        let upstream = Upstream {
            transport: transport(&inside, &path)?,
            start_timeout: inside.duration("start_timeout")?,
            call_timeout: inside.duration("call_timeout")?,
        };
        upstreams.insert(name.to_owned(), upstream);
    }
    Ok((upstreams, warnings))
}

fn is_ourselves(command: &str) -> bool {
    Path::new(command)
        .file_name()
        .is_some_and(|name| name == env!("CARGO_PKG_NAME"))
}

fn transport(inside: &Reader<'_>, path: &str) -> Result<Transport, ConfigError> {
    let refuse = |key: &str, problem: &str| {
        let node = inside.tree.at(&[key]).unwrap_or(inside.tree);
        let path = if key.is_empty() {
            path.to_owned()
        } else {
            format!("{path}.{key}")
        };
        Err(inside.errors.error(Some(node), path, problem))
    };
    let (command, url) = (inside.text("command"), inside.text("url"));
    let kind = inside.text("type");
    match (command, url, kind.as_deref()) {
        (Some(_), Some(_), _) => refuse(
            "url",
            "command and url are both there: keep the one by which the server is reached",
        ),
        (None, None, _) => refuse(
            "",
            "there is neither command (to start a server) nor url (to reach one): write one of them",
        ),
        (Some(_), None, Some("http" | "streamable-http")) => refuse(
            "type",
            "this type needs url, and command is there: write stdio, or url instead of command",
        ),
        (None, Some(_), Some("stdio")) => refuse(
            "type",
            "this type needs command, and url is there: write http, or command instead of url",
        ),
        (Some(command), None, _) => match misplaced(inside, &["headers"]) {
            Some(key) => refuse(
                key,
                "a server that is started has no headers: put secrets under env",
            ),
            None => Ok(Transport::Stdio {
                command,
                args: inside.texts("args"),
                env: variables(inside, path)?,
                cwd: inside.path("cwd"),
            }),
        },
        (None, Some(url), _) => match misplaced(inside, &["args", "env", "cwd"]) {
            Some(key) => refuse(
                key,
                "a server that is reached by url is not started here: remove this key, and put secrets under headers",
            ),
            None if !is_http(&url) => refuse(
                "url",
                "the address starts with neither http:// nor https://, or has no host",
            ),
            None => Ok(Transport::Http {
                url,
                headers: headers(inside, path)?,
            }),
        },
    }
}

fn misplaced(inside: &Reader<'_>, keys: &[&'static str]) -> Option<&'static str> {
    keys.iter()
        .copied()
        .find(|key| inside.tree.at(&[key]).is_some())
}

fn is_http(url: &str) -> bool {
    let rest = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"));
    let sound = |rest: &str| !rest.is_empty() && !rest.starts_with('/');
    rest.is_some_and(sound)
        && !url
            .chars()
            .any(|letter| letter.is_whitespace() || letter.is_control())
}

fn variables(inside: &Reader<'_>, path: &str) -> Result<BTreeMap<String, String>, ConfigError> {
    let variables = inside.text_table("env");
    match variables
        .keys()
        .find(|name| name.is_empty() || name.contains(['=', '\0']))
    {
        Some(_) => Err(inside.errors.error(
            inside.tree.at(&["env"]),
            format!("{path}.env"),
            "a variable's name is empty or has = or NUL in it",
        )),
        None => Ok(variables),
    }
}

fn headers(inside: &Reader<'_>, path: &str) -> Result<BTreeMap<String, String>, ConfigError> {
    let headers = inside.text_table("headers");
    let token = |name: &str| {
        !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
    };
    for (name, value) in &headers {
        let problem = if !token(name) {
            "this is not the name of an HTTP header: letters, digits and - only"
        } else if value
            .chars()
            .any(|letter| letter.is_control() && letter != '\t')
        {
            "the value has a line break or another control character in it, which no header may have"
        } else {
            continue;
        };
        let full = show_path(&[path.to_owned(), "headers".to_owned(), name.clone()]);
        return Err(inside
            .errors
            .error(inside.tree.at(&["headers", name]), full, problem));
    }
    Ok(headers)
}
