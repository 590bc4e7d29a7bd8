//! A tool's answer, taken out of its MCP envelope.
//!
//! The rules, in order: structured content, with a mere wrapper taken off; a single text that is a
//! JSON object or array as that value; a single text as it is; anything else as blocks, in the
//! upstream's order, several texts included. A text `123` stays a text: it may be a file's content.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::Value;

use super::text;
use crate::runner::wire::{Block, ToolFailure, ToolFailureKind, ToolValue};

/// Characters kept of a tool's own error message.
const MAX_ERROR_CHARS: usize = 4000;

/// The value of an answer; `unwrap` is the key of a wrapper, as the output schema has it.
///
/// # Errors
///
/// The tool ran and said that it failed.
pub(super) fn unwrapped(
    answer: CallToolResult,
    unwrap: Option<&str>,
) -> Result<ToolValue, ToolFailure> {
    if answer.is_error == Some(true) {
        return Err(ToolFailure {
            kind: ToolFailureKind::Tool,
            message: error_message(&answer),
        });
    }
    let has_media = answer
        .content
        .iter()
        .any(|block| !matches!(block, ContentBlock::Text(_)));
    match answer.structured_content {
        // Media said twice: as blocks it shows itself in Python, as a dictionary it does not.
        Some(structured) if !(has_media && repeats_blocks(&structured)) => Ok(ToolValue::Json {
            value: without_wrapper(structured, unwrap),
        }),
        _ => Ok(from_content(answer.content)),
    }
}

fn repeats_blocks(structured: &Value) -> bool {
    let entries = structured.as_object().filter(|entries| entries.len() == 1);
    entries
        .and_then(|entries| entries.get("content"))
        .is_some_and(Value::is_array)
}

fn without_wrapper(structured: Value, unwrap: Option<&str>) -> Value {
    match (structured, unwrap) {
        (Value::Object(mut entries), Some(key))
            if entries.len() == 1 && entries.contains_key(key) =>
        {
            entries.remove(key).unwrap_or_default()
        }
        (structured, _) => structured,
    }
}

fn from_content(content: Vec<ContentBlock>) -> ToolValue {
    match <[ContentBlock; 1]>::try_from(content) {
        Ok([ContentBlock::Text(text)]) => ToolValue::Json {
            value: from_text(text.text),
        },
        Ok([block]) => ToolValue::Blocks {
            blocks: vec![converted(block)],
        },
        Err(none) if none.is_empty() => ToolValue::Json { value: Value::Null },
        Err(several) => ToolValue::Blocks {
            blocks: several.into_iter().map(converted).collect(),
        },
    }
}

fn from_text(text: String) -> Value {
    let is_structure = text.trim_start().starts_with(['{', '[']);
    let parsed = if is_structure {
        serde_json::from_str(&text).ok()
    } else {
        None
    };
    parsed.unwrap_or(Value::String(text))
}

fn converted(block: ContentBlock) -> Block {
    match block {
        ContentBlock::Text(text) => Block::Text { text: text.text },
        ContentBlock::Image(image) => Block::Image {
            data: image.data,
            mime_type: image.mime_type,
        },
        ContentBlock::Audio(audio) => Block::Audio {
            data: audio.data,
            mime_type: audio.mime_type,
        },
        ContentBlock::Resource(embedded) => match embedded.resource {
            ResourceContents::TextResourceContents {
                uri,
                mime_type,
                text,
                ..
            } => Block::Resource {
                uri,
                mime_type,
                text: Some(text),
                data: None,
            },
            ResourceContents::BlobResourceContents {
                uri,
                mime_type,
                blob,
                ..
            } => Block::Resource {
                uri,
                mime_type,
                text: None,
                data: Some(blob),
            },
            _ => unknown_block(),
        },
        ContentBlock::ResourceLink(link) => Block::Resource {
            uri: link.uri,
            mime_type: link.mime_type,
            text: None,
            data: None,
        },
        _ => unknown_block(),
    }
}

/// The library's types may grow; a block we do not know must not be lost in silence.
fn unknown_block() -> Block {
    Block::Text {
        text: "[a content block of an unknown type]".to_owned(),
    }
}

fn error_message(answer: &CallToolResult) -> String {
    let texts: Vec<&str> = answer
        .content
        .iter()
        .filter_map(|block| block.as_text().map(|text| text.text.as_str()))
        .collect();
    let message = match (texts.as_slice(), &answer.structured_content) {
        ([], Some(structured)) => structured.to_string(),
        ([], None) => "the tool failed and gave no reason".to_owned(),
        (texts, _) => texts.join("\n"),
    };
    text::clean(message.trim(), MAX_ERROR_CHARS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(answer: Value, unwrap: Option<&str>) -> Result<ToolValue, ToolFailure> {
        unwrapped(serde_json::from_value(answer).unwrap(), unwrap)
    }

    #[test]
    fn structured_content_wins_and_loses_its_wrapper() {
        let answer = json!({"content": [{"type": "text", "text": "[1]"}], "structuredContent": {"result": [1]}});
        assert_eq!(
            value(answer.clone(), Some("result")),
            Ok(ToolValue::Json { value: json!([1]) })
        );
        assert_eq!(
            value(answer, None),
            Ok(ToolValue::Json {
                value: json!({"result": [1]})
            })
        );
    }

    #[test]
    fn a_text_is_json_only_if_it_is_an_object_or_a_list() {
        for (text, expected) in [
            (r#" {"a": 1}"#, json!({"a": 1})),
            ("[1, 2]", json!([1, 2])),
            ("123", json!("123")),
            ("true", json!("true")),
            ("\"x\"", json!("\"x\"")),
            ("[FILE] a.txt", json!("[FILE] a.txt")),
            ("", json!("")),
        ] {
            assert_eq!(
                value(json!({"content": [{"type": "text", "text": text}]}), None),
                Ok(ToolValue::Json { value: expected })
            );
        }
        assert_eq!(
            value(json!({"content": []}), None),
            Ok(ToolValue::Json { value: Value::Null })
        );
    }

    #[test]
    fn media_and_several_texts_are_blocks() {
        let image = json!({"type": "image", "data": "aGk=", "mimeType": "image/png"});
        let link = json!({"type": "resource_link", "uri": "file:///etc/passwd", "name": "x"});
        let blob = json!({"type": "resource", "resource": {"uri": "a:b", "blob": "aGk="}});
        let text = json!({"type": "text", "text": "hi"});
        let answer =
            json!({"content": [image, link, blob, text], "structuredContent": {"content": [1]}});
        let Ok(ToolValue::Blocks { blocks }) = value(answer, None) else {
            panic!("not blocks")
        };
        assert_eq!(
            serde_json::to_value(blocks).unwrap(),
            json!([
                {"type": "image", "data": "aGk=", "mime_type": "image/png"},
                {"type": "resource", "uri": "file:///etc/passwd"},
                {"type": "resource", "uri": "a:b", "data": "aGk="},
                {"type": "text", "text": "hi"},
            ])
        );
    }

    #[test]
    fn an_error_is_a_failure_with_the_tools_words() {
        let answer =
            json!({"isError": true, "content": [{"type": "text", "text": "no such\u{202e} file"}]});
        let failure = ToolFailure {
            kind: ToolFailureKind::Tool,
            message: "no such file".to_owned(),
        };
        assert_eq!(value(answer, None), Err(failure));
    }
}
