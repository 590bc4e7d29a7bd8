//! Stubs: what the sandbox is told of a tool, made from its schemas. Data, never source code.

use serde_json::Value;

use super::{
    name,
    schema::{Document, is_bounded, python_literal},
    text,
};
use crate::{
    runner::wire::{Parameter, Stub},
    turn::json_size,
};

/// More parameters than this, and the tool takes one dictionary instead.
const MAX_PARAMETERS: usize = 64;
/// Bytes of a default that is shown, as JSON.
const MAX_DEFAULT_BYTES: u64 = 200;
const MAX_DESCRIPTION_CHARS: usize = 4000;
const MAX_PARAMETER_CHARS: usize = 400;
const MAX_DOC_CHARS: usize = 12_000;
const MAX_SIGNATURE_CHARS: usize = 2000;
/// Keys of a result that the docstring lists.
const MAX_RESULT_KEYS: usize = 20;

/// A tool as an upstream describes it. UNTRUSTED.
#[derive(Debug, Clone, Copy)]
pub(super) struct Described<'a> {
    pub(super) description: &'a str,
    pub(super) input_schema: &'a Value,
    pub(super) output_schema: Option<&'a Value>,
}

/// A stub, and how calls through it become arguments of the tool.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shape {
    pub(super) stub: Stub,
    pub(super) signature: String,
    pub(super) passing: Passing,
    pub(super) unwrap: Option<String>,
}

/// How the arguments of a call travel.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Passing {
    /// One parameter a property. `None` for one of `drop_null` means "not given".
    Named { drop_null: Vec<String> },
    /// One parameter `arguments` that holds them all: the schema has no plain list of properties.
    Dictionary,
}

/// Makes the stub called `name`.
pub(super) fn build(name: &str, tool: Described<'_>) -> Shape {
    let document = Document::new(tool.input_schema);
    let properties = plain_properties(document.root());
    let (parameters, passing, lines) = match properties {
        Some(properties) => named(document, properties),
        None => dictionary(document.root()),
    };
    let unwrap = tool.output_schema.and_then(wrapped_key);
    let (returns, result_lines) = returned(tool.output_schema, unwrap.as_deref());
    let stub = Stub {
        name: name.to_owned(),
        doc: docstring(tool.description, &lines, &result_lines),
        parameters,
        returns,
    };
    Shape {
        signature: signature(&stub),
        stub,
        passing,
        unwrap,
    }
}

/// The properties, if they say all there is to say about the arguments.
fn plain_properties(schema: &Value) -> Option<Vec<(&str, &Value)>> {
    let schema = schema.as_object()?;
    if schema.get("type").is_some_and(|kind| kind != "object") || !is_bounded(schema) {
        return None;
    }
    let properties: Vec<(&str, &Value)> = match schema.get("properties") {
        Some(properties) => properties
            .as_object()?
            .iter()
            .map(|(key, value)| (key.as_str(), value))
            .collect(),
        None => Vec::new(),
    };
    let open = schema
        .get("additionalProperties")
        .is_some_and(|extra| *extra != Value::Bool(false));
    let combined = ["anyOf", "oneOf", "allOf"]
        .iter()
        .any(|key| schema.contains_key(*key));
    let no_list =
        properties.is_empty() && (open || combined || schema.contains_key("patternProperties"));
    (properties.len() <= MAX_PARAMETERS && !no_list).then_some(properties)
}

fn named(
    document: Document<'_>,
    properties: Vec<(&str, &Value)>,
) -> (Vec<Parameter>, Passing, Vec<String>) {
    let required: Vec<&str> = document
        .root()
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let keys: Vec<&str> = properties.iter().map(|(key, _)| *key).collect();
    let mut parameters = Vec::new();
    let mut drop_null = Vec::new();
    let mut lines = Vec::new();
    for (name, (key, schema)) in name::parameters(&keys).into_iter().zip(properties) {
        let schema = known(document, schema);
        let is_required = required.contains(&key);
        let default = schema
            .get("default")
            .filter(|default| json_size(default) <= MAX_DEFAULT_BYTES);
        let default = default.filter(|default| !default.is_null()).cloned();
        let mut annotation = document.annotation(schema);
        if !is_required && !document.takes_null(schema) {
            drop_null.push(key.to_owned());
            if default.is_none() {
                annotation.push_str(" | None");
            }
        }
        let parameter = Parameter {
            name,
            key: key.to_owned(),
            required: is_required,
            default,
            annotation,
        };
        lines.push((is_required, parameter_line(&parameter, schema)));
        parameters.push(parameter);
    }
    // A stable sort: required ones first, otherwise as the schema lists them.
    parameters.sort_by_key(|parameter| !parameter.required);
    lines.sort_by_key(|(is_required, _)| !is_required);
    let lines = lines.into_iter().map(|(_, line)| line).collect();
    (parameters, Passing::Named { drop_null }, lines)
}

/// A schema with its reference followed, unless words beside the `$ref` would be lost.
fn known<'a>(document: Document<'a>, schema: &'a Value) -> &'a Value {
    let has_words = schema.get("description").is_some() || schema.get("default").is_some();
    if has_words {
        schema
    } else {
        document.resolve(schema)
    }
}

fn dictionary(schema: &Value) -> (Vec<Parameter>, Passing, Vec<String>) {
    let required = schema
        .get("required")
        .and_then(Value::as_array)
        .is_some_and(|required| !required.is_empty());
    let parameter = Parameter {
        name: "arguments".to_owned(),
        key: "arguments".to_owned(),
        required,
        default: None,
        annotation: if required {
            "dict[str, Any]"
        } else {
            "dict[str, Any] | None"
        }
        .to_owned(),
    };
    let keys = schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    let keys: Vec<String> = keys
        .take(MAX_PARAMETERS)
        .map(|(key, _)| text::one_line(key, 60))
        .collect();
    let mut line = "arguments: all arguments of the tool, by name".to_owned();
    if !keys.is_empty() {
        line = format!("{line}; among them: {}", keys.join(", "));
    }
    (vec![parameter], Passing::Dictionary, vec![line])
}

fn parameter_line(parameter: &Parameter, schema: &Value) -> String {
    let mut notes = vec![parameter.annotation.clone()];
    if !parameter.required && parameter.default.is_none() {
        notes.push("optional".to_owned());
    }
    notes.extend(
        parameter
            .default
            .as_ref()
            .map(|default| format!("default {}", python_literal(default))),
    );
    let number = |key: &str| schema.get(key).filter(|bound| bound.is_number());
    for (key, words) in [
        ("minimum", "at least"),
        ("maximum", "at most"),
        ("exclusiveMinimum", "more than"),
        ("exclusiveMaximum", "less than"),
        ("minLength", "length at least"),
        ("maxLength", "length at most"),
        ("minItems", "items at least"),
        ("maxItems", "items at most"),
    ] {
        notes.extend(number(key).map(|bound| format!("{words} {bound}")));
    }
    if let Some(format) = schema.get("format").and_then(Value::as_str) {
        notes.push(format!("format {}", text::one_line(format, 40)));
    }
    described(&parameter.name, &notes.join(", "), schema)
}

/// `name (notes): description`
fn described(name: &str, notes: &str, schema: &Value) -> String {
    let description = schema
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let description = text::one_line(description, MAX_PARAMETER_CHARS);
    let separator = if description.is_empty() { "" } else { ": " };
    format!("{name} ({notes}){separator}{description}")
}

/// The key of a result that is only a wrapper around the real value. Servers that may return
/// nothing but objects wrap so: `result` (Python's SDK and FastMCP, anything), `content` (text).
fn wrapped_key(output_schema: &Value) -> Option<String> {
    let document = Document::new(output_schema);
    let properties = document.root().get("properties")?.as_object()?;
    let (key, schema) = properties.iter().next().filter(|_| properties.len() == 1)?;
    let is_wrapper = match key.as_str() {
        "result" => true,
        "content" => document.annotation(schema) == "str",
        _ => false,
    };
    is_wrapper.then(|| key.clone())
}

fn returned(output_schema: Option<&Value>, unwrap: Option<&str>) -> (String, Vec<String>) {
    let bounded = output_schema.filter(|schema| schema.as_object().is_some_and(is_bounded));
    let Some(schema) = bounded else {
        return ("Any".to_owned(), Vec::new());
    };
    let document = Document::new(schema);
    let properties = document.root().get("properties").and_then(Value::as_object);
    if let Some(value) = unwrap.and_then(|key| properties?.get(key)) {
        return (document.annotation(value), Vec::new());
    }
    let lines = properties
        .into_iter()
        .flatten()
        .take(MAX_RESULT_KEYS)
        .map(|(key, schema)| {
            let key = python_literal(&Value::String(text::one_line(key, 60)));
            described(&key, &document.annotation(schema), known(document, schema))
        });
    (document.annotation(schema), lines.collect())
}

fn docstring(description: &str, parameters: &[String], result: &[String]) -> String {
    let mut doc = text::clean(description.trim(), MAX_DESCRIPTION_CHARS);
    for (title, lines) in [
        ("Parameters:", parameters),
        ("Returns a dict with:", result),
    ] {
        if lines.is_empty() {
            continue;
        }
        if !doc.is_empty() {
            doc.push_str("\n\n");
        }
        doc.push_str(title);
        for line in lines {
            doc.push_str("\n    ");
            doc.push_str(line);
        }
    }
    text::clean(&doc, MAX_DOC_CHARS)
}

fn signature(stub: &Stub) -> String {
    let parameters = stub.parameters.iter().map(|parameter| {
        let default = parameter
            .default
            .as_ref()
            .map_or_else(|| "None".to_owned(), python_literal);
        let default = if parameter.required {
            String::new()
        } else {
            format!(" = {default}")
        };
        format!("{}: {}{default}", parameter.name, parameter.annotation)
    });
    let parameters = parameters.collect::<Vec<_>>().join(", ");
    text::one_line(
        &format!("{}({parameters}) -> {}", stub.name, stub.returns),
        MAX_SIGNATURE_CHARS,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shape(input_schema: &Value, output_schema: Option<&Value>) -> Shape {
        build(
            "s_t",
            Described {
                description: "Does it.",
                input_schema,
                output_schema,
            },
        )
    }

    #[test]
    fn a_signature_lists_required_parameters_first() {
        let schema = json!({"type": "object", "required": ["path"], "properties": {
            "head": {"type": "integer", "minimum": 1}, "dry-run": {"type": "boolean", "default": false},
            "path": {"type": "string", "description": "Where\nto read"}, "maybe": {"type": ["string", "null"]}}});
        let shape = shape(&schema, None);
        assert_eq!(
            shape.signature,
            "s_t(path: str, head: int | None = None, dry_run: bool = False, maybe: str | None = None) -> Any"
        );
        assert_eq!(
            shape.passing,
            Passing::Named {
                drop_null: vec!["head".to_owned(), "dry-run".to_owned()]
            }
        );
        assert_eq!(
            shape.stub.doc,
            "Does it.\n\nParameters:\n    path (str): Where to read\n    head (int | None, optional, at least 1)\n    \
             dry_run (bool, default False)\n    maybe (str | None, optional)"
        );
    }

    #[test]
    fn schemas_without_a_plain_list_take_a_dictionary() {
        let mut many = json!({"type": "object", "properties": {}});
        for n in 0..500 {
            many["properties"][format!("p{n}")] = json!({"type": "string"});
        }
        for schema in [
            many,
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            json!({"anyOf": [{"type": "object", "properties": {"a": {}}}]}),
            json!({"type": "array"}),
            json!({"$ref": "http://example.test/schema"}),
        ] {
            let shape = shape(&schema, None);
            assert_eq!(shape.passing, Passing::Dictionary, "{schema}");
            assert_eq!(
                shape.signature,
                "s_t(arguments: dict[str, Any] | None = None) -> Any"
            );
        }
        assert_eq!(
            shape(&json!({"type": "object"}), None).signature,
            "s_t() -> Any"
        );
    }

    #[test]
    fn results_that_are_only_wrapped_are_unwrapped() {
        let wrapped = json!({"type": "object", "properties": {"result": {"type": "array", "items": {"type": "integer"}}}});
        let shape_wrapped = shape(&json!({}), Some(&wrapped));
        assert_eq!(
            (
                shape_wrapped.unwrap.as_deref(),
                shape_wrapped.stub.returns.as_str()
            ),
            (Some("result"), "list[int]")
        );
        let text = json!({"type": "object", "properties": {"content": {"type": "string"}}});
        assert_eq!(shape(&json!({}), Some(&text)).stub.returns, "str");
        let blocks = json!({"type": "object", "properties": {"content": {"type": "array"}}});
        assert_eq!(shape(&json!({}), Some(&blocks)).unwrap, None);
    }
}
