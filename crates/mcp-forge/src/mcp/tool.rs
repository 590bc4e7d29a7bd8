//! How tools introduce themselves to a model that has never seen them: `execute_python` here, the
//! others with the same schemas.

use std::{fmt::Write as _, sync::Arc};

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::{
    bridge::ToolInfo,
    config::{Backend, Config, size::show_size},
    service::{ExecuteRequest, ExecuteResponse},
};

/// The tool's name.
pub(super) const EXECUTE_PYTHON: &str = "execute_python";

/// The fixed part of the description. Every client puts it into every conversation: each
/// sentence must earn its place.
const DESCRIPTION: &str = "\
Run Python in a sealed sandbox and get back only what you print or what the last expression evaluates to. \
Use it to call tools in loops, filter and join their results, compute, and plot, so that large data never passes through the conversation.

Tools: list the ones the code needs in `mcp_tools`; each is then an ordinary function under its own name, called with keyword arguments: \
`page = github_search_repos(query=\"mcp\")`. It returns plain Python data (dict, list, str, number), not an MCP envelope, and raises `ToolError` on failure. \
`await name.aio(...)` is the async form, for `asyncio.gather`. `help(name)` prints signature and documentation.

Result: the value of the last expression, as in a notebook; finish with a small summary, not the raw data. \
Matplotlib figures and other rich objects come back as images without `plt.show()`. Exceptions come back with a traceback.

Without `session_id` each call starts from nothing. With one (`new` makes one), variables, imports and files in /workspace stay \
for later calls. Should its interpreter be lost, the next call answers `session_lost` and does not run: repeat what built the state, then go on.

There is no network and no `pip install`: data comes through tools";

/// How its last sentence goes on.
const PACKAGES: &str =
    ", packages through `build_custom_environment`, whose environment `custom_image` then names.";
const NO_PACKAGES: &str = ".";

/// No parameters.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct NoParameters {}

/// Characters of tools listed in the description.
const MAX_LISTED_CHARS: usize = 3000;

/// The tool as a client lists it, with the tools that code can call as far as they are known.
pub(super) fn execute_python(config: &Config, tools: &[ToolInfo]) -> Tool {
    let description = describe(config.environments.enabled, tools);
    Tool::new(EXECUTE_PYTHON, description, input_schema(config))
        .with_title("Run Python in a sandbox")
        .with_raw_output_schema(Arc::new(schema_of::<ExecuteResponse>(Direction::Out)))
        // The sandbox itself can neither destroy nor reach anything; the tools it may be granted can.
        .with_annotations(
            ToolAnnotations::new()
                .read_only(false)
                .destructive(true)
                .idempotent(false)
                .open_world(true),
        )
}

/// Another tool, which reaches nothing outside.
pub(super) fn tool<In: JsonSchema, Out: JsonSchema>(
    name: &'static str,
    title: &str,
    description: &'static str,
    annotations: ToolAnnotations,
) -> Tool {
    let mut input: JsonObject = schema_of::<In>(Direction::In);
    // Clients expect it, also where there are none.
    input
        .entry("properties")
        .or_insert_with(|| Value::Object(Map::new()));
    Tool::new(name, description, input)
        .with_title(title)
        .with_raw_output_schema(Arc::new(schema_of::<Out>(Direction::Out)))
        .with_annotations(annotations.open_world(false))
}

fn describe(has_builds: bool, tools: &[ToolInfo]) -> String {
    let packages = if has_builds { PACKAGES } else { NO_PACKAGES };
    let mut text = format!("{DESCRIPTION}{packages}");
    if tools.is_empty() {
        text.push_str("\n\nThe tools that code can call are listed by the resource mcp://forge/tools/available.");
        return text;
    }
    text.push_str("\n\nTools that code can call:\n");
    let signatures: usize = tools
        .iter()
        .map(|tool| tool.signature.chars().count() + 1)
        .sum();
    let whole = signatures <= MAX_LISTED_CHARS;
    let mut listed = 0;
    for (index, tool) in tools.iter().enumerate() {
        let entry = if whole { &tool.signature } else { &tool.name };
        listed += entry.chars().count() + 1;
        if listed > MAX_LISTED_CHARS {
            let _ = writeln!(
                text,
                "and {} more, listed by mcp://forge/tools/available",
                tools.len() - index
            );
            break;
        }
        let _ = writeln!(text, "{entry}");
    }
    text.truncate(text.trim_end().len());
    text
}

/// The schema of the request, with the numbers of this server.
fn input_schema(config: &Config) -> JsonObject {
    let mut schema = Value::Object(schema_of::<ExecuteRequest>(Direction::In));
    let (default, max) = (&config.default_limits, &config.max_limits);
    let backend = match config.default_backend {
        Backend::Simple => "simple",
        Backend::Jupyter => "jupyter",
    };
    add(
        &mut schema,
        "/properties/timeout",
        json!({
            "default": default.timeout.as_secs_f64(),
            "maximum": max.timeout.as_secs_f64(),
            "exclusiveMinimum": 0,
        }),
    );
    add(&mut schema, "/properties/mcp_tools", json!({"default": []}));
    add(
        &mut schema,
        "/properties/backend",
        json!({"default": backend, "enum": ["simple", "jupyter"]}),
    );
    let limits = "/properties/limits/properties";
    for (name, default, max) in [
        ("memory", default.memory_bytes, max.memory_bytes),
        ("storage", default.storage_bytes, max.storage_bytes),
    ] {
        let pointer = format!("{limits}/{name}");
        let told = schema
            .pointer(&format!("{pointer}/description"))
            .and_then(Value::as_str)
            .unwrap_or_default();
        let description = format!("{told} At most {}.", show_size(max));
        add(
            &mut schema,
            &pointer,
            json!({"default": show_size(default), "description": description}),
        );
    }
    for (name, default, max) in [
        ("cpu_quota", default.cpu_quota_us, max.cpu_quota_us),
        ("pids", default.pids, max.pids),
    ] {
        add(
            &mut schema,
            &format!("{limits}/{name}"),
            json!({"default": default, "minimum": 1, "maximum": max}),
        );
    }
    match schema {
        Value::Object(schema) => schema,
        _ => JsonObject::new(),
    }
}

/// Adds to what a schema says at a place, if it has that place.
pub(super) fn add(schema: &mut Value, pointer: &str, more: Value) {
    if let (Some(Value::Object(property)), Value::Object(more)) =
        (schema.pointer_mut(pointer), more)
    {
        property.extend(more);
    }
}

/// A type's schema, flat and without what only a generator cares for.
fn schema_of<T: JsonSchema>(direction: Direction) -> JsonObject {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value();
    tidy(&mut schema, direction == Direction::In);
    let Value::Object(mut schema) = schema else {
        return JsonObject::new();
    };
    // The type's own comment is for the people who write it; the tool's description is for models.
    schema.remove("description");
    schema
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

/// Drops generated noise. In what comes in also the alternative `null`: leaving a parameter out says
/// the same, and some clients do not know types that are lists.
fn tidy(schema: &mut Value, comes_in: bool) {
    match schema {
        Value::Object(map) => {
            for noise in ["$schema", "title", "format"] {
                if map.get(noise).is_some_and(Value::is_string) {
                    map.remove(noise);
                }
            }
            if comes_in {
                drop_null(map);
            }
            if let Some(Value::String(description)) = map.get_mut("description") {
                *description = description.split_whitespace().collect::<Vec<_>>().join(" ");
            }
            map.values_mut().for_each(|value| tidy(value, comes_in));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| tidy(item, comes_in)),
        _ => {}
    }
}

fn drop_null(map: &mut JsonObject) {
    if map.get("default").is_some_and(Value::is_null) {
        map.remove("default");
    }
    if let Some(Value::Array(types)) = map.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            map.insert("type".to_owned(), only);
        }
    }
    let Some(Value::Array(choices)) = map.get_mut("anyOf") else {
        return;
    };
    choices.retain(|choice| choice.get("type").is_none_or(|name| name != "null"));
    if choices.len() != 1 {
        return;
    }
    if let (Some(Value::Object(choice)), Some(_)) = (choices.pop(), map.remove("anyOf")) {
        for (key, value) in choice {
            map.entry(key).or_insert(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixed_description_is_short_enough_to_be_read() {
        let whole = describe(true, &[])
            .split("\n\nThe tools that code")
            .next()
            .unwrap()
            .len();
        assert!(whole < 1500, "{whole} bytes");
    }
}
