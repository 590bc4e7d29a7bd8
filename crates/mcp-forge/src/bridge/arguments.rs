//! Checks a call's arguments against the tool's schema before anything is sent, within a budget.
//!
//! This is for a clear message, not for security: the upstream checks again. So what costs
//! unbounded time (regular expressions, `not`, conditionals) is left to the upstream, and when
//! the budget is used up the arguments pass.

use serde_json::{Map, Value};

use super::{schema::Document, text};

/// Steps of one check. A hostile schema can ask for exponentially many.
const BUDGET: u32 = 100_000;
const MAX_DEPTH: usize = 96;

/// Checks the arguments of a call.
///
/// # Errors
///
/// One sentence that names the argument; nothing was sent.
pub(super) fn check(schema: &Value, arguments: &Map<String, Value>) -> Result<(), String> {
    let document = Document::new(schema);
    let mut check = Check {
        document,
        budget: BUDGET,
    };
    match check.object(document.root(), arguments, &Place::Arguments, 0) {
        Ok(()) | Err(Stop::Exhausted) => Ok(()),
        Err(Stop::Invalid(message)) => Err(message),
    }
}

enum Stop {
    Invalid(String),
    Exhausted,
}

/// Where in the arguments a value is; written only for a message.
enum Place<'p> {
    Arguments,
    Key(&'p Self, &'p str),
    Index(&'p Self, usize),
}

impl Place<'_> {
    fn name(&self) -> String {
        match self {
            Place::Arguments => "the arguments".to_owned(),
            Place::Key(..) | Place::Index(..) => format!("argument `{}`", self.path()),
        }
    }

    fn path(&self) -> String {
        match self {
            Place::Arguments => String::new(),
            Place::Key(Place::Arguments, key) => text::one_line(key, 60),
            Place::Key(parent, key) => format!("{}.{}", parent.path(), text::one_line(key, 60)),
            Place::Index(parent, index) => format!("{}[{index}]", parent.path()),
        }
    }
}

struct Check<'a> {
    document: Document<'a>,
    budget: u32,
}

impl<'a> Check<'a> {
    fn value(
        &mut self,
        schema: &'a Value,
        value: &Value,
        place: &Place<'_>,
        depth: usize,
    ) -> Result<(), Stop> {
        self.spend(1, depth)?;
        let schema = self.document.resolve(schema);
        let Value::Object(rules) = schema else {
            return Ok(());
        };
        check_type(rules, value, place)?;
        self.check_choice(rules, value, place)?;
        match value {
            Value::Object(entries) => self.object(schema, entries, place, depth)?,
            Value::Array(items) => self.array(rules, items, place, depth)?,
            Value::String(text) => check_length(rules, text, place)?,
            Value::Number(_) => check_range(rules, value, place)?,
            Value::Null | Value::Bool(_) => {}
        }
        self.combinators(rules, value, place, depth)
    }

    fn object(
        &mut self,
        schema: &'a Value,
        entries: &Map<String, Value>,
        place: &Place<'_>,
        depth: usize,
    ) -> Result<(), Stop> {
        let Value::Object(rules) = schema else {
            return Ok(());
        };
        let properties = rules.get("properties").and_then(Value::as_object);
        for key in rules
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            self.spend(1, depth)?;
            if !entries.contains_key(key) {
                let key = Place::Key(place, key);
                return Err(Stop::Invalid(format!("{} is missing", key.name())));
            }
        }
        let extra = rules
            .get("additionalProperties")
            .filter(|_| !rules.contains_key("patternProperties"));
        for (key, value) in entries {
            let here = Place::Key(place, key);
            match (properties.and_then(|properties| properties.get(key)), extra) {
                (Some(schema), _) => self.value(schema, value, &here, depth + 1)?,
                (None, Some(Value::Bool(false))) => return Err(unknown(&here, properties)),
                (None, Some(schema)) => self.value(schema, value, &here, depth + 1)?,
                (None, None) => self.spend(1, depth)?,
            }
        }
        let combined = ["allOf", "anyOf", "oneOf"]
            .iter()
            .any(|key| rules.contains_key(*key));
        if combined && matches!(place, Place::Arguments) {
            return self.combinators(rules, &Value::Object(entries.clone()), place, depth);
        }
        Ok(())
    }

    fn array(
        &mut self,
        rules: &'a Map<String, Value>,
        items: &[Value],
        place: &Place<'_>,
        depth: usize,
    ) -> Result<(), Stop> {
        let bound = |key: &str| rules.get(key).and_then(Value::as_u64);
        let length = items.len() as u64;
        if bound("minItems").is_some_and(|least| length < least)
            || bound("maxItems").is_some_and(|most| length > most)
        {
            let wanted = between(rules.get("minItems"), rules.get("maxItems"));
            return Err(Stop::Invalid(format!(
                "{} must have {wanted} items, not {length}",
                place.name()
            )));
        }
        let Some(schema) = rules
            .get("items")
            .filter(|_| !rules.contains_key("prefixItems"))
        else {
            return Ok(());
        };
        for (index, item) in items.iter().enumerate() {
            self.value(schema, item, &Place::Index(place, index), depth + 1)?;
        }
        Ok(())
    }

    fn combinators(
        &mut self,
        rules: &'a Map<String, Value>,
        value: &Value,
        place: &Place<'_>,
        depth: usize,
    ) -> Result<(), Stop> {
        for schema in rules
            .get("allOf")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            self.value(schema, value, place, depth + 1)?;
        }
        // `oneOf` as `anyOf`: that exactly one fits is for the upstream to insist on.
        for key in ["anyOf", "oneOf"] {
            let Some(Value::Array(members)) = rules.get(key) else {
                continue;
            };
            let mut fits = members.is_empty();
            for schema in members {
                match self.value(schema, value, place, depth + 1) {
                    Ok(()) => fits = true,
                    Err(Stop::Invalid(_)) => continue,
                    Err(Stop::Exhausted) => return Err(Stop::Exhausted),
                }
                break;
            }
            if !fits {
                let name = place.name();
                let forms = members.len();
                return Err(Stop::Invalid(format!(
                    "{name} is none of the {forms} forms that the tool takes"
                )));
            }
        }
        Ok(())
    }

    fn check_choice(
        &mut self,
        rules: &Map<String, Value>,
        value: &Value,
        place: &Place<'_>,
    ) -> Result<(), Stop> {
        let choices = match (rules.get("enum"), rules.get("const")) {
            (Some(Value::Array(choices)), _) => choices.as_slice(),
            (_, Some(constant)) => std::slice::from_ref(constant),
            _ => return Ok(()),
        };
        self.spend(u32::try_from(choices.len()).unwrap_or(u32::MAX), 0)?;
        if choices.iter().any(|choice| is_same(choice, value)) {
            return Ok(());
        }
        let allowed: Vec<String> = choices.iter().take(12).map(shown).collect();
        let more = if choices.len() > 12 { ", ..." } else { "" };
        let name = place.name();
        Err(Stop::Invalid(format!(
            "{name} must be one of {}{more}, not {}",
            allowed.join(", "),
            shown(value)
        )))
    }

    fn spend(&mut self, steps: u32, depth: usize) -> Result<(), Stop> {
        if depth > MAX_DEPTH {
            return Err(Stop::Exhausted);
        }
        self.budget = self.budget.checked_sub(steps).ok_or(Stop::Exhausted)?;
        Ok(())
    }
}

fn check_type(rules: &Map<String, Value>, value: &Value, place: &Place<'_>) -> Result<(), Stop> {
    let wanted: Vec<&str> = match rules.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().take(8).filter_map(Value::as_str).collect(),
        _ => return Ok(()),
    };
    let fits = |name: &&str| match *name {
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        // A type we do not know: not ours to refuse.
        _ => true,
    };
    if wanted.is_empty() || wanted.iter().any(fits) {
        return Ok(());
    }
    let wanted: Vec<&str> = wanted.iter().map(|name| python_name(name)).collect();
    Err(Stop::Invalid(format!(
        "{} must be {}, not {}",
        place.name(),
        wanted.join(" or "),
        python_type(value)
    )))
}

fn check_length(rules: &Map<String, Value>, text: &str, place: &Place<'_>) -> Result<(), Stop> {
    let bound = |key: &str| rules.get(key).and_then(Value::as_u64);
    let (least, most) = (bound("minLength"), bound("maxLength"));
    if least.is_none() && most.is_none() {
        return Ok(());
    }
    let length = text.chars().count() as u64;
    if least.is_some_and(|least| length < least) || most.is_some_and(|most| length > most) {
        let wanted = between(rules.get("minLength"), rules.get("maxLength"));
        return Err(Stop::Invalid(format!(
            "{} must have {wanted} characters, not {length}",
            place.name()
        )));
    }
    Ok(())
}

fn check_range(rules: &Map<String, Value>, value: &Value, place: &Place<'_>) -> Result<(), Stop> {
    let Some(number) = value.as_f64() else {
        return Ok(());
    };
    let bound = |key: &str| rules.get(key).and_then(Value::as_f64);
    let refuse = |what: &str, bound: f64| {
        Err(Stop::Invalid(format!(
            "{} must be {what} {bound}, not {}",
            place.name(),
            shown(value)
        )))
    };
    match (
        bound("minimum"),
        bound("maximum"),
        bound("exclusiveMinimum"),
        bound("exclusiveMaximum"),
    ) {
        (Some(least), ..) if number < least => refuse("at least", least),
        (_, Some(most), ..) if number > most => refuse("at most", most),
        (_, _, Some(below), _) if number <= below => refuse("more than", below),
        (.., Some(above)) if number >= above => refuse("less than", above),
        _ => Ok(()),
    }
}

fn unknown(place: &Place<'_>, properties: Option<&Map<String, Value>>) -> Stop {
    let known: Vec<String> = properties
        .into_iter()
        .flatten()
        .take(20)
        .map(|(key, _)| format!("`{}`", text::one_line(key, 60)))
        .collect();
    let takes = if known.is_empty() {
        "it takes none".to_owned()
    } else {
        format!("it takes {}", known.join(", "))
    };
    Stop::Invalid(format!(
        "{} is not one that the tool has; {takes}",
        place.name()
    ))
}

fn between(least: Option<&Value>, most: Option<&Value>) -> String {
    match (least, most) {
        (Some(least), Some(most)) => format!("{least} to {most}"),
        (Some(least), None) => format!("at least {least}"),
        (None, Some(most)) => format!("at most {most}"),
        (None, None) => "other".to_owned(),
    }
}

/// Equal as JSON Schema means it: `1` and `1.0` are the same number.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        _ => a == b,
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => python_type(value).to_owned(),
        simple => text::one_line(&super::schema::python_literal(simple), 60),
    }
}

fn python_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "None",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "int",
        Value::String(_) => "str",
        Value::Array(_) => "list",
        Value::Object(_) => "dict",
    }
}

fn python_name(name: &str) -> &str {
    match name {
        "string" => "str",
        "number" => "a number",
        "integer" => "int",
        "boolean" => "bool",
        "null" => "None",
        "array" => "list",
        "object" => "dict",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(schema: &Value, arguments: &Value) -> Result<(), String> {
        check(schema, arguments.as_object().unwrap())
    }

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1},
                "head": {"type": "number", "minimum": 1, "maximum": 10},
                "mode": {"enum": ["r", "w"]},
                "edits": {"type": "array", "items": {"$ref": "#/$defs/edit"}},
                "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
            "required": ["path"],
            "additionalProperties": false,
            "$defs": {"edit": {"type": "object", "properties": {"old": {"type": "string"}}, "required": ["old"]}},
        })
    }

    #[test]
    fn what_fits_passes() {
        let arguments = json!({"path": "/a", "head": 3, "mode": "r", "edits": [{"old": "x", "new": 1}], "either": null});
        assert_eq!(checked(&schema(), &arguments), Ok(()));
        assert_eq!(
            checked(
                &json!({"properties": {"n": {"type": "integer"}}}),
                &json!({"n": 2.0})
            ),
            Ok(())
        );
    }

    #[test]
    fn what_does_not_fit_is_named() {
        for (arguments, expected) in [
            (json!({}), "argument `path` is missing"),
            (json!({"path": 3}), "argument `path` must be str, not int"),
            (
                json!({"path": ""}),
                "argument `path` must have at least 1 characters, not 0",
            ),
            (
                json!({"path": "a", "head": 11}),
                "argument `head` must be at most 10, not 11",
            ),
            (
                json!({"path": "a", "mode": "x"}),
                "argument `mode` must be one of 'r', 'w', not 'x'",
            ),
            (
                json!({"path": "a", "edits": [{"old": "a"}, {}]}),
                "argument `edits[1].old` is missing",
            ),
            (
                json!({"path": "a", "either": 1}),
                "argument `either` is none of the 2 forms that the tool takes",
            ),
            (
                json!({"path": "a", "wat": 1}),
                "argument `wat` is not one that the tool has; it takes `path`, `head`, `mode`, `edits`, `either`",
            ),
        ] {
            assert_eq!(checked(&schema(), &arguments), Err(expected.to_owned()));
        }
    }

    #[test]
    fn circular_and_exponential_schemas_end_and_pass() {
        let circular = json!({"properties": {"x": {"allOf": [{"$ref": "#/properties/x"}]}}});
        assert_eq!(checked(&circular, &json!({"x": 1})), Ok(()));
        let mut definitions = json!({"d0": {"type": "integer"}});
        for n in 1..40 {
            let below = json!({"$ref": format!("#/$defs/d{}", n - 1)});
            definitions[format!("d{n}")] = json!({"allOf": [below, below]});
        }
        let exponential =
            json!({"$defs": definitions, "properties": {"x": {"$ref": "#/$defs/d39"}}});
        assert_eq!(checked(&exponential, &json!({"x": 1})), Ok(()));
        let catastrophic = json!({"properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}});
        assert_eq!(
            checked(&catastrophic, &json!({"x": "a".repeat(50) + "!"})),
            Ok(())
        );
    }
}
