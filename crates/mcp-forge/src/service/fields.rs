//! Reading a request's parameters from JSON, with refusals that name what is wrong and what is right.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::ServiceError;
use crate::{
    config::nearest,
    text::{clipped, quoted},
};

/// The members of `limits`.
const LIMITS: [&str; 4] = ["memory", "cpu_quota", "pids", "storage"];

/// The parameters not yet read, and the names of all that there are.
pub(super) struct Fields {
    prefix: &'static str,
    rest: Map<String, Value>,
    known: Vec<&'static str>,
}

impl Fields {
    pub(super) fn new(prefix: &'static str, rest: Map<String, Value>) -> Self {
        Self {
            prefix,
            rest,
            known: Vec::new(),
        }
    }

    /// Takes one parameter; absent and `null` are the same.
    pub(super) fn take<T: DeserializeOwned>(
        &mut self,
        name: &'static str,
        expected: &str,
    ) -> Result<Option<T>, ServiceError> {
        self.known.push(name);
        match self.rest.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(&value).map(Some).ok_or_else(|| {
                let path = format!("{}{name}", self.prefix);
                let message = format!("`{path}` is {}; pass {expected}.", describe(&value));
                rejected(&path, message)
            }),
        }
    }

    /// Refuses what is left.
    pub(super) fn finish(self, kind: &str) -> Result<(), ServiceError> {
        let Some(name) = self.rest.keys().next() else {
            return Ok(());
        };
        let nested = || {
            let is_limit = self.prefix.is_empty() && LIMITS.contains(&name.as_str());
            is_limit.then(|| format!("limits.{name}"))
        };
        let known = || self.known.iter().copied();
        let begun = || known().find(|known| known.starts_with(name.as_str()));
        let likely = nested()
            .or_else(|| {
                let near = nearest(name, known()).or_else(begun)?;
                Some(format!("{}{near}", self.prefix))
            })
            .map(|likely| format!(" Did you mean `{likely}`?"))
            .unwrap_or_default();
        let path = format!("{}{}", self.prefix, clipped(name));
        let message = format!(
            "Unknown {kind} `{path}`.{likely} Known: {}.",
            self.known.join(", ")
        );
        Err(rejected(&path, message))
    }
}

/// The value as what belongs there. To JSON Schema, and to clients that know no other numbers, 3.0 is an
/// integer.
fn read<T: DeserializeOwned>(value: &Value) -> Option<T> {
    let as_it_is = T::deserialize(value).ok();
    as_it_is.or_else(|| T::deserialize(whole(value.as_f64()?)?).ok())
}

/// A whole number that a float says exactly.
fn whole(number: f64) -> Option<Value> {
    /// 2^53: above it floats leave whole numbers out.
    const MOST: f64 = 9_007_199_254_740_992.0;
    if number.fract() != 0.0 || number.abs() > MOST {
        return None;
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "it is whole, and no larger than 2^53"
    )]
    Some(Value::from(number as i64))
}

/// What was found where something else belongs, without repeating a large value.
fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => format!("the boolean {flag}"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the string {}", quoted(text)),
        Value::Array(items) => match items.iter().find(|item| !item.is_string()) {
            Some(item) => format!("a list that holds {}", describe(item)),
            None => "a list".to_owned(),
        },
        Value::Object(_) => "an object".to_owned(),
    }
}

pub(super) fn rejected(field: &str, message: impl Into<String>) -> ServiceError {
    ServiceError::Rejected {
        field: field.to_owned(),
        message: message.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_whole_number_may_be_written_as_a_float_and_nothing_else_may() {
        let take = |value: Value| {
            let parameters = Map::from_iter([("pids".to_owned(), value)]);
            Fields::new("limits.", parameters)
                .take::<u64>("pids", "a number")
                .ok()
        };
        assert_eq!(take(json!(3)), Some(Some(3)));
        assert_eq!(take(json!(3.0)), Some(Some(3)));
        assert_eq!(take(json!(1e3)), Some(Some(1000)));
        assert_eq!(take(json!(u64::MAX)), Some(Some(u64::MAX)));
        assert_eq!(take(json!(null)), Some(None));
        for wrong in [
            json!(3.5),
            json!(-3.0),
            json!(1e300),
            json!("3"),
            json!(true),
            json!([3.0]),
        ] {
            assert_eq!(take(wrong.clone()), None, "{wrong}");
        }
    }
}
