//! Calls of 2026-07-28 that are answered with a question, and called again with the answer.

use rmcp::{
    ErrorData,
    model::{CallToolResponse, ClientCapabilities, InputRequiredResult, InputResponses},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::tools::{read, text};

/// What the state of an unfinished call is signed with. Nobody else runs this.
const SECRET: &str = "of the fixture";

pub(super) fn form(message: &str, field: &str) -> Value {
    let kind = if field == "ok" { "boolean" } else { "string" };
    json!({"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}}})
}

pub(super) fn name_form(message: &str) -> Value {
    form(message, "name")
}

fn sampling(words: &str) -> Value {
    json!({"method": "sampling/createMessage", "params": {"messages": [{"role": "user", "content": {"type": "text", "text": words}}], "maxTokens": 100}})
}

fn roots() -> Value {
    json!({"method": "roots/list", "params": {}})
}

pub(super) fn question(requests: &[(&str, Value)], state: Option<&str>) -> Value {
    let requests: serde_json::Map<_, _> = requests
        .iter()
        .map(|(key, request)| ((*key).to_owned(), request.clone()))
        .collect();
    let mut question = json!({"resultType": "input_required", "inputRequests": requests});
    if let Some(state) = state {
        question["requestState"] = json!(signed(state));
    }
    question
}

pub(super) fn ask(requests: &[(&str, Value)], state: Option<&str>) -> CallToolResponse {
    read::<InputRequiredResult>(question(requests, state)).into()
}

/// The field of an accepted form, if that is what was answered.
pub(super) fn answered(answers: &InputResponses, key: &str, field: &str) -> Option<String> {
    let content = answers.get(key)?.get("content")?;
    match content.get(field)? {
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn signed(state: &str) -> String {
    format!(
        "{state}.{:x}",
        Sha256::digest(format!("{SECRET}{state}{SECRET}"))
    )
}

/// What was signed.
fn opened(state: Option<&str>) -> Result<Option<&str>, ErrorData> {
    let Some(text) = state else { return Ok(None) };
    let state = text.split_once('.').map(|(state, _)| state);
    match state {
        Some(state) if signed(state) == text => Ok(Some(state)),
        _ => Err(ErrorData::invalid_params("the state is not ours", None)),
    }
}

/// Calls that are answered with a question, and asked again with its answer.
pub(super) fn rounds(
    name: &str,
    answers: &InputResponses,
    state: Option<&str>,
    client: &ClientCapabilities,
) -> Result<CallToolResponse, ErrorData> {
    let state = opened(state)?;
    let sampled = |key: &str| {
        answers
            .get(key)
            .and_then(|answer| answer.pointer("/content/text"))
            .and_then(Value::as_str)
    };
    let listed = |key: &str| {
        answers
            .get(key)
            .and_then(|answer| answer.get("roots"))
            .filter(|roots| roots.is_array())
    };
    let greeted = answered(answers, "user_name", "name");
    Ok(match name {
        "elicitation" => match greeted {
            Some(name) => text(&format!("Hello, {name}!")),
            None => ask(&[("user_name", name_form("What is your name?"))], None),
        },
        "sampling" => match sampled("capital_question") {
            Some(said) => text(said),
            None => ask(
                &[(
                    "capital_question",
                    sampling("What is the capital of France?"),
                )],
                None,
            ),
        },
        "list_roots" => match listed("client_roots") {
            Some(roots) => text(&roots.to_string()),
            None => ask(&[("client_roots", roots())], None),
        },
        "request_state" | "tampered_state" => match (answered(answers, "confirm", "ok"), state) {
            (Some(_), Some("begun")) => text("state-ok"),
            _ => ask(&[("confirm", form("Please confirm", "ok"))], Some("begun")),
        },
        "multiple_inputs" => match (greeted, sampled("greeting"), listed("client_roots"), state) {
            (Some(name), Some(greeting), Some(roots), Some("begun")) => {
                text(&format!("{greeting} {name} {roots}"))
            }
            _ => ask(
                &[
                    ("user_name", name_form("What is your name?")),
                    ("greeting", sampling("Generate a greeting")),
                    ("client_roots", roots()),
                ],
                Some("begun"),
            ),
        },
        "multi_round" => match (
            answered(answers, "step1", "name"),
            answered(answers, "step2", "color"),
            state,
        ) {
            (_, Some(color), Some("second")) => text(&format!("{color} it is.")),
            (Some(_), _, Some("first")) => ask(
                &[(
                    "step2",
                    form("Step 2: What is your favorite color?", "color"),
                )],
                Some("second"),
            ),
            _ => ask(
                &[("step1", name_form("Step 1: What is your name?"))],
                Some("first"),
            ),
        },
        "capabilities" => {
            let mut asked = Vec::new();
            if client.elicitation.is_some() {
                asked.push(("user_name", name_form("What is your name?")));
            }
            if client.sampling.is_some() {
                asked.push(("greeting", sampling("Generate a greeting")));
            }
            ask(&asked, None)
        }
        name => {
            return Err(ErrorData::invalid_params(
                format!("there is no tool {name}"),
                None,
            ));
        }
    })
}
