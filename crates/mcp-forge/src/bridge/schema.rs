//! JSON Schemas of upstream tools: bounded, local references only, turned into Python annotations.
//!
//! Nothing here evaluates a regular expression or fetches anything.

use serde_json::{Map, Value};

use crate::turn::json_size;

/// Bytes of one schema as JSON.
const MAX_BYTES: u64 = 256 << 10;
/// Values in one schema, objects and arrays included.
const MAX_NODES: usize = 20_000;
/// Nesting of one schema.
const MAX_DEPTH: usize = 64;
/// `$ref`s followed in a row.
const MAX_HOPS: usize = 16;
/// Schemas looked at for one annotation.
const ANNOTATION_BUDGET: usize = 200;
/// Nesting of an annotation.
const ANNOTATION_DEPTH: usize = 6;
/// Characters of an annotation; a longer one becomes `Any`.
const ANNOTATION_CHARS: usize = 160;
/// Members of a union or a `Literal`.
const ANNOTATION_MEMBERS: usize = 24;

/// What every schema that cannot be used stands for: anything.
static ANYTHING: Value = Value::Bool(true);

/// Whether a schema is small enough to work with.
pub(super) fn is_bounded(schema: &Map<String, Value>) -> bool {
    let mut nodes = 0;
    let fits = schema.values().all(|value| count(value, 1, &mut nodes));
    fits && json_size(schema) <= MAX_BYTES
}

/// One schema with the document that its references point into.
#[derive(Clone, Copy)]
pub(super) struct Document<'a> {
    root: &'a Value,
}

impl<'a> Document<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        Self { root }
    }

    /// The root, its own reference followed.
    pub(super) fn root(self) -> &'a Value {
        self.resolve(self.root)
    }

    /// Follows local references. What points outside the document, nowhere, or in a circle is "anything".
    pub(super) fn resolve(self, schema: &'a Value) -> &'a Value {
        let mut current = schema;
        for _ in 0..MAX_HOPS {
            let Some(reference) = current.get("$ref") else {
                return current;
            };
            let target = reference
                .as_str()
                .and_then(|reference| reference.strip_prefix('#'));
            let Some(found) =
                target.and_then(|pointer| self.root.pointer(&percent_decoded(pointer)))
            else {
                return &ANYTHING;
            };
            current = found;
        }
        &ANYTHING
    }

    /// The annotation for a schema, as Python would write it.
    pub(super) fn annotation(self, schema: &'a Value) -> String {
        let mut budget = ANNOTATION_BUDGET;
        joined(self.alternatives(schema, 0, &mut budget))
    }

    /// Whether `null` fits. `Any` takes it too.
    pub(super) fn takes_null(self, schema: &'a Value) -> bool {
        let mut budget = ANNOTATION_BUDGET;
        self.alternatives(schema, 0, &mut budget)
            .iter()
            .any(|name| name == "None" || name == "Any")
    }

    fn alternatives(self, schema: &'a Value, depth: usize, budget: &mut usize) -> Vec<String> {
        if *budget == 0 || depth > ANNOTATION_DEPTH {
            return any();
        }
        *budget -= 1;
        let Value::Object(schema) = self.resolve(schema) else {
            return any();
        };
        if let Some(constant) = schema.get("const") {
            return literal(std::slice::from_ref(constant));
        }
        if let Some(Value::Array(values)) = schema.get("enum") {
            return literal(values);
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(members)) = schema.get(key) {
                let found = members.iter().take(ANNOTATION_MEMBERS + 1);
                return united(
                    found
                        .flat_map(|member| self.alternatives(member, depth + 1, budget))
                        .collect(),
                );
            }
        }
        match (schema.get("type"), schema.get("allOf")) {
            (Some(Value::String(name)), _) => self.named(name, schema, depth, budget),
            (Some(Value::Array(names)), _) => {
                let names = names.iter().filter_map(Value::as_str).take(8);
                united(
                    names
                        .flat_map(|name| self.named(name, schema, depth, budget))
                        .collect(),
                )
            }
            (_, Some(Value::Array(members))) => {
                let mut found = members
                    .iter()
                    .take(8)
                    .map(|member| self.alternatives(member, depth + 1, budget));
                found.find(|names| *names != any()).unwrap_or_else(any)
            }
            _ if schema.contains_key("properties") => self.named("object", schema, depth, budget),
            _ if schema.contains_key("items") => self.named("array", schema, depth, budget),
            _ => any(),
        }
    }

    fn named(
        self,
        name: &str,
        schema: &'a Map<String, Value>,
        depth: usize,
        budget: &mut usize,
    ) -> Vec<String> {
        let plain = match name {
            "string" => "str".to_owned(),
            "integer" => "int".to_owned(),
            "number" => "float".to_owned(),
            "boolean" => "bool".to_owned(),
            "null" => "None".to_owned(),
            "array" => match schema.get("items") {
                Some(items @ (Value::Object(_) | Value::Bool(_))) => {
                    format!(
                        "list[{}]",
                        joined(self.alternatives(items, depth + 1, budget))
                    )
                }
                _ => "list[Any]".to_owned(),
            },
            "object" => match schema.get("additionalProperties") {
                Some(values @ Value::Object(_)) if !schema.contains_key("properties") => {
                    format!(
                        "dict[str, {}]",
                        joined(self.alternatives(values, depth + 1, budget))
                    )
                }
                _ => "dict[str, Any]".to_owned(),
            },
            _ => return any(),
        };
        vec![plain]
    }
}

/// A JSON value as a Python literal, printable ASCII only.
pub(super) fn python_literal(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => python_string(text),
        Value::Array(items) => format!(
            "[{}]",
            items
                .iter()
                .map(python_literal)
                .collect::<Vec<_>>()
                .join(", ")
        ),
        Value::Object(entries) => {
            let entries = entries
                .iter()
                .map(|(key, value)| format!("{}: {}", python_string(key), python_literal(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
    }
}

fn python_string(text: &str) -> String {
    let mut quoted = String::from("'");
    for character in text.chars() {
        let code = u32::from(character);
        match character {
            '\\' | '\'' => quoted.extend(['\\', character]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            ' '..='~' => quoted.push(character),
            _ if code < 0x100 => quoted.extend(format!("\\x{code:02x}").chars()),
            _ if code < 0x1_0000 => quoted.extend(format!("\\u{code:04x}").chars()),
            _ => quoted.extend(format!("\\U{code:08x}").chars()),
        }
    }
    quoted.push('\'');
    quoted
}

fn any() -> Vec<String> {
    vec!["Any".to_owned()]
}

fn literal(values: &[Value]) -> Vec<String> {
    let mut written: Vec<String> = Vec::new();
    let mut types: Vec<String> = Vec::new();
    let mut simple = values.len() <= ANNOTATION_MEMBERS;
    for value in values.iter().take(1000) {
        let (kind, is_simple) = match value {
            Value::String(_) => ("str", true),
            Value::Bool(_) => ("bool", true),
            Value::Number(number) if number.is_f64() => ("float", false),
            Value::Number(_) => ("int", true),
            Value::Null => ("None", true),
            Value::Array(_) => ("list[Any]", false),
            Value::Object(_) => ("dict[str, Any]", false),
        };
        simple &= is_simple;
        types.push(kind.to_owned());
        if simple && !value.is_null() {
            written.push(python_literal(value));
        }
    }
    let text = format!("Literal[{}]", written.join(", "));
    if !simple || written.is_empty() || text.len() > ANNOTATION_CHARS {
        return united(types);
    }
    let null = types
        .iter()
        .any(|kind| kind == "None")
        .then(|| "None".to_owned());
    std::iter::once(text).chain(null).collect()
}

/// Without duplicates, `None` last; `Any` swallows the rest.
fn united(names: Vec<String>) -> Vec<String> {
    let mut distinct: Vec<String> = Vec::new();
    for name in names {
        if !distinct.contains(&name) {
            distinct.push(name);
        }
        if distinct.len() > ANNOTATION_MEMBERS {
            return any();
        }
    }
    if distinct.is_empty() || distinct.iter().any(|name| name == "Any") {
        return any();
    }
    distinct.sort_by_key(|name| name == "None");
    distinct
}

fn joined(names: Vec<String>) -> String {
    let text = united(names).join(" | ");
    if text.len() > ANNOTATION_CHARS {
        "Any".to_owned()
    } else {
        text
    }
}

fn count(value: &Value, depth: usize, nodes: &mut usize) -> bool {
    *nodes += 1;
    if *nodes > MAX_NODES || depth > MAX_DEPTH {
        return false;
    }
    match value {
        Value::Array(items) => items.iter().all(|item| count(item, depth + 1, nodes)),
        Value::Object(entries) => entries.values().all(|entry| count(entry, depth + 1, nodes)),
        _ => true,
    }
}

fn percent_decoded(pointer: &str) -> String {
    let mut decoded = Vec::with_capacity(pointer.len());
    let bytes = pointer.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let code = bytes.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        let code = code
            .and_then(|code| std::str::from_utf8(code).ok())
            .and_then(|code| u8::from_str_radix(code, 16).ok());
        decoded.push(code.unwrap_or(bytes[at]));
        at += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn annotation(schema: &Value) -> String {
        let root = json!({
            "$defs": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "loop": {"$ref": "#/$defs/loop"},
                      "tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}, "a b": {"type": "integer"}},
            "x": schema,
        });
        Document::new(&root).annotation(&root["x"])
    }

    #[test]
    fn annotations_are_what_python_would_write() {
        for (schema, expected) in [
            (json!({"type": "string"}), "str"),
            (json!({"type": ["integer", "null"]}), "int | None"),
            (
                json!({"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "string"}}]}),
                "list[str] | None",
            ),
            (
                json!({"enum": ["a", "it's", "\u{202e}"]}),
                r"Literal['a', 'it\'s', '\u202e']",
            ),
            (json!({"enum": [1, true, null]}), "Literal[1, True] | None"),
            (json!({"enum": [1.5, "a"]}), "float | str"),
            (json!({"const": "x"}), "Literal['x']"),
            (
                json!({"type": "object", "additionalProperties": {"type": "number"}}),
                "dict[str, float]",
            ),
            (
                json!({"type": "object", "properties": {"a": {}}}),
                "dict[str, Any]",
            ),
            (json!({"$ref": "#/$defs/city"}), "Literal['Paris', 'Rome']"),
            (json!({"$ref": "#/$defs/a%20b"}), "int"),
            (
                json!({"allOf": [{"description": "x"}, {"type": "boolean"}]}),
                "bool",
            ),
            (json!(true), "Any"),
            (json!({}), "Any"),
            (json!({"type": "wibble"}), "Any"),
        ] {
            assert_eq!(annotation(&schema), expected, "{schema}");
        }
    }

    #[test]
    fn references_outside_or_in_circles_are_anything() {
        for reference in [
            "http://example.test/s.json",
            "file:///etc/passwd",
            "#/nowhere",
            "#/$defs/loop",
            "other#/x",
        ] {
            assert_eq!(
                annotation(&json!({"$ref": reference})),
                "Any",
                "{reference}"
            );
        }
        assert!(annotation(&json!({"$ref": "#/$defs/tree"})).starts_with("list[list["));
    }

    #[test]
    fn a_huge_union_is_any_and_a_huge_schema_is_refused() {
        let branches: Vec<Value> = (0..100_000).map(|n| json!({"const": n})).collect();
        let schema = json!({"oneOf": branches});
        assert_eq!(annotation(&schema), "Any");
        assert!(!is_bounded(schema.as_object().unwrap()));
        let mut deep = json!({});
        for _ in 0..100 {
            deep = json!({"items": deep});
        }
        assert!(!is_bounded(deep.as_object().unwrap()));
        assert!(is_bounded(json!({"type": "object"}).as_object().unwrap()));
    }
}
