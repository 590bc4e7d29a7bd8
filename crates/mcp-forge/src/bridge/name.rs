//! Names: any server, tool and parameter name becomes a Python identifier, without collisions.
//!
//! A name depends only on the configuration and on its own upstream's list, never on which
//! other upstreams are up or on the order they came up in.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};

/// Characters kept of a server's, a tool's or a parameter's name.
const MAX_PART: usize = 64;

/// Functions and classes that the runner puts into the namespace itself.
const RESERVED: [&str; 3] = ["mcp_forge", "display", "ToolError"];

/// Python's keywords, hard and soft, and names with a meaning of their own in a signature.
const KEYWORDS: [&str; 42] = [
    "False",
    "None",
    "True",
    "and",
    "as",
    "assert",
    "async",
    "await",
    "break",
    "case",
    "class",
    "continue",
    "def",
    "del",
    "elif",
    "else",
    "except",
    "finally",
    "for",
    "from",
    "global",
    "if",
    "import",
    "in",
    "is",
    "lambda",
    "match",
    "nonlocal",
    "not",
    "or",
    "pass",
    "raise",
    "return",
    "self",
    "cls",
    "try",
    "type",
    "while",
    "with",
    "yield",
    "_",
    "__debug__",
];

/// Soft keywords that are good parameter names all the same.
const ALLOWED_AS_PARAMETER: [&str; 3] = ["case", "match", "type"];

/// The prefixes of all configured servers, by server name: distinct identifiers.
pub(super) fn prefixes<'a>(servers: impl Iterator<Item = &'a str>) -> BTreeMap<String, String> {
    let servers: BTreeSet<&str> = servers.collect();
    let parts: Vec<(&str, String)> = servers
        .iter()
        .map(|server| (*server, server_part(server)))
        .collect();
    let chosen = distinct(&parts, |server| short_hash(&[server]));
    servers
        .iter()
        .map(|server| (*server).to_owned())
        .zip(chosen)
        .collect()
}

/// The function names of one server's tools, in the order given.
///
/// `prefix` is the server's own, `all_prefixes` those of every configured server: where a longer
/// one starts with this one, a tool that could be mistaken for one of that server gets a suffix.
pub(super) fn functions(
    server: &str,
    prefix: &str,
    all_prefixes: &[String],
    tools: &[&str],
) -> Vec<String> {
    let rivals: Vec<String> = all_prefixes
        .iter()
        .filter_map(|other| other.strip_prefix(prefix)?.strip_prefix('_'))
        .map(|rest| format!("{rest}_"))
        .collect();
    let parts: Vec<(&str, String)> = tools
        .iter()
        .map(|tool| {
            let mut part = sanitised(tool);
            let lossy =
                part.len() < tool.len() || !part.bytes().any(|byte| byte.is_ascii_alphanumeric());
            if !part.bytes().any(|byte| byte.is_ascii_alphanumeric()) {
                "tool".clone_into(&mut part);
            }
            let name = format!("{prefix}_{part}");
            let unclear = lossy
                || RESERVED.contains(&name.as_str())
                || rivals.iter().any(|r| part.starts_with(r));
            (
                *tool,
                if unclear {
                    format!("{part}_{}", short_hash(&[server, tool]))
                } else {
                    part
                },
            )
        })
        .collect();
    let chosen = distinct(&parts, |tool| short_hash(&[server, tool]));
    chosen
        .into_iter()
        .map(|part| format!("{prefix}_{part}"))
        .collect()
}

/// The parameter names of one tool, in the order of its properties.
pub(super) fn parameters(keys: &[&str]) -> Vec<String> {
    let parts: Vec<(&str, String)> = keys.iter().map(|key| (*key, parameter(key))).collect();
    distinct(&parts, |key| short_hash(&[key]))
}

/// Gives each original one name. Where several want the same one, the original that *is* the
/// name keeps it and the others get a suffix from their hash.
fn distinct(parts: &[(&str, String)], hash: impl Fn(&str) -> String) -> Vec<String> {
    let mut wanted = BTreeMap::<&str, usize>::new();
    for (_, part) in parts {
        *wanted.entry(part).or_default() += 1;
    }
    let keeps = |original: &str, part: &str| wanted.get(part) == Some(&1) || original == part;
    let mut taken: BTreeSet<String> = parts
        .iter()
        .filter(|(original, part)| keeps(original, part))
        .map(|(_, part)| part.clone())
        .collect();
    // Suffixes in sorted order: the result does not depend on the order of the list.
    let mut rest: Vec<usize> = (0..parts.len())
        .filter(|&at| !keeps(parts[at].0, &parts[at].1))
        .collect();
    rest.sort_by_key(|&at| parts[at].0);
    let mut chosen: Vec<String> = parts.iter().map(|(_, part)| part.clone()).collect();
    for at in rest {
        let mut name = format!("{}_{}", parts[at].1, hash(parts[at].0));
        while !taken.insert(name.clone()) {
            name.push('_');
        }
        chosen[at] = name;
    }
    chosen
}

fn server_part(server: &str) -> String {
    let part = sanitised(server);
    let part = part.trim_matches('_');
    if part.is_empty() || part.starts_with(|first: char| first.is_ascii_digit()) {
        return format!("server_{part}").trim_end_matches('_').to_owned();
    }
    part.to_owned()
}

fn parameter(key: &str) -> String {
    let mut part = sanitised(key);
    if part.is_empty() || part.starts_with(|first: char| first.is_ascii_digit()) {
        part.insert(0, '_');
    }
    if part.bytes().all(|byte| byte == b'_') {
        "parameter".clone_into(&mut part);
    }
    // Python mangles or reserves names like `__init__`.
    if part.starts_with("__") {
        part = format!("parameter{}", part.trim_end_matches('_'));
    }
    if is_keyword(&part) {
        part.push('_');
    }
    part
}

fn sanitised(name: &str) -> String {
    name.chars()
        .take(MAX_PART)
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect()
}

fn is_keyword(name: &str) -> bool {
    KEYWORDS.contains(&name) && !ALLOWED_AS_PARAMETER.contains(&name)
}

/// Six hexadecimal digits of the parts' hash, each part with its length so that none runs into the next.
fn short_hash(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.len().to_be_bytes());
        hasher.update(part.as_bytes());
    }
    let digest = hasher.finalize();
    format!("{:02x}{:02x}{:02x}", digest[0], digest[1], digest[2])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Whether Python takes it as a name, ASCII only.
    fn is_identifier(name: &str) -> bool {
        let starts_well = name
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        starts_well
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !is_keyword(name)
    }

    fn functions_of(server: &str, servers: &[&str], tools: &[&str]) -> Vec<String> {
        let prefixes = prefixes(servers.iter().copied());
        let all: Vec<String> = prefixes.values().cloned().collect();
        functions(server, &prefixes[server], &all, tools)
    }

    #[test]
    fn ordinary_names_stay_plain() {
        let names = functions_of(
            "filesystem",
            &["filesystem"],
            &["read_file", "list-dir", "get.Thing"],
        );
        assert_eq!(
            names,
            [
                "filesystem_read_file",
                "filesystem_list_dir",
                "filesystem_get_Thing"
            ]
        );
    }

    #[test]
    fn names_that_sanitise_alike_differ_and_the_exact_one_is_plain() {
        let names = functions_of("s", &["s"], &["a-b", "a_b", "a.b"]);
        assert_eq!(names[1], "s_a_b");
        assert!(
            names[0].starts_with("s_a_b_")
                && names[2].starts_with("s_a_b_")
                && names[0] != names[2],
            "{names:?}"
        );
        let reversed = functions_of("s", &["s"], &["a.b", "a_b", "a-b"]);
        assert_eq!(names, reversed.into_iter().rev().collect::<Vec<_>>());
    }

    #[test]
    fn servers_whose_names_run_into_each_other_do_not_shadow() {
        let servers = ["google", "google_maps"];
        let of_google = functions_of("google", &servers, &["maps_search", "search"]);
        let of_maps = functions_of("google_maps", &servers, &["search"]);
        assert_eq!(of_google[1], "google_search");
        assert_eq!(of_maps, ["google_maps_search"]);
        assert!(
            of_google[0].starts_with("google_maps_search_"),
            "{of_google:?}"
        );
    }

    #[test]
    fn our_own_names_and_odd_servers_are_avoided() {
        assert_ne!(functions_of("mcp", &["mcp"], &["forge"]), ["mcp_forge"]);
        assert_eq!(
            functions_of("1password", &["1password"], &["get"]),
            ["server_1password_get"]
        );
        let prefixes = prefixes(["my server", "my_server", "my-server"].into_iter());
        assert_eq!(prefixes["my_server"], "my_server");
        assert_eq!(prefixes.values().collect::<BTreeSet<_>>().len(), 3);
    }

    #[test]
    fn hostile_parameter_names_are_mapped() {
        let names = parameters(&[
            "self", "class", "__init__", "*", "a b", "a_b", "1", "", "type", "é",
        ]);
        assert_eq!(names[0], "self_");
        assert_eq!(names[1], "class_");
        assert_eq!(names[5], "a_b");
        assert_eq!(names[8], "type");
        assert!(names.iter().all(|name| is_identifier(name)), "{names:?}");
        assert_eq!(
            names.iter().collect::<BTreeSet<_>>().len(),
            names.len(),
            "{names:?}"
        );
    }

    proptest! {
        #[test]
        fn any_names_become_distinct_identifiers(
            servers in proptest::collection::btree_set(".{0,20}", 1..5),
            tools in proptest::collection::btree_set("(?s:.{0,90})|[a-z_.-]{0,3}", 1..30),
        ) {
            let servers: Vec<&str> = servers.iter().map(String::as_str).collect();
            let tools: Vec<&str> = tools.iter().map(String::as_str).collect();
            for server in &servers {
                let names = functions_of(server, &servers, &tools);
                prop_assert!(names.iter().all(|name| is_identifier(name)), "{names:?}");
                prop_assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), tools.len());
            }
            let names = parameters(&tools);
            prop_assert!(names.iter().all(|name| is_identifier(name)), "{names:?}");
            prop_assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), tools.len());
        }
    }
}
