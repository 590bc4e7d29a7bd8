//! How a response looks to a model: a short text, images as images, the rest as structured content.
//!
//! Pure. `isError` is set when the code did not complete: a model then reads the error and repairs
//! its code, as it does for any tool that failed.

use std::fmt::Write as _;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rmcp::model::{CallToolResult, ContentBlock, Resource};
use serde_json::Value;

use super::resources::mime_type;
use crate::{service::ExecuteResponse, session::FileView, text::clipped, turn::Display};

/// Images that a model can see; every other binary display stays in the structured content.
const IMAGE_TYPES: [&str; 4] = ["image/png", "image/jpeg", "image/webp", "image/gif"];

/// Most images in one result.
const MAX_IMAGES: usize = 8;

/// Most links to files in one result; the structured content has all of them.
const MAX_LINKS: usize = 20;

/// Most base64 of all images in one result, in bytes.
const MAX_IMAGE_BYTES: usize = 6 << 20;

/// Bytes of each part of the text. Their sum, with headings, bounds the text to about 20 KB.
const MAX_ERROR: usize = 5 << 10;
const MAX_RESULT: usize = 5 << 10;
const MAX_STDOUT: usize = 5 << 10;
const MAX_STDERR: usize = 2 << 10;
const MAX_SHOWN: usize = 2 << 10;
const MAX_BETWEEN: usize = 2 << 10;
const MAX_NOTE: usize = 512;

/// Renders a response as the answer to a tool call.
pub(crate) fn render(mut response: ExecuteResponse) -> CallToolResult {
    let images = take_images(&mut response.displays);
    let mut content = vec![ContentBlock::text(text_of(&response))];
    content.extend(images);
    content.extend(response.files.iter().take(MAX_LINKS).map(link));
    let mut result = CallToolResult::success(content);
    result.is_error = Some(!response.success);
    result.structured_content = serde_json::to_value(response).ok();
    result
}

/// A file that the code made or changed, to be read when it is wanted.
fn link(file: &FileView) -> ContentBlock {
    let name = file
        .path
        .rsplit_once('/')
        .map_or(&*file.path, |(_, name)| name);
    let resource = Resource::new(file.uri.clone(), clipped(name))
        .with_mime_type(mime_type(&file.path))
        .with_size(file.size);
    ContentBlock::resource_link(resource)
}

/// A refusal: nothing ran, and the text says what to change.
pub(super) fn refuse(error: &impl std::fmt::Display) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(sentence(&error.to_string()))])
}

/// First letter large, full stop at the end: errors are written for chaining, read as sentences.
/// A first word that is no word, such as a parameter's name, stays as it is.
pub(super) fn sentence(text: &str) -> String {
    let mut whole = text.to_owned();
    let first = text.split(' ').next().unwrap_or_default();
    if first.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        whole[..first.len().min(1)].make_ascii_uppercase();
    }
    if !whole.ends_with(['.', '!', '?']) {
        whole.push('.');
    }
    whole
}

/// Moves images out of the displays, leaving a note of where each went.
fn take_images(displays: &mut [Display]) -> Vec<ContentBlock> {
    let mut images = Vec::new();
    let mut room = MAX_IMAGE_BYTES;
    for (kind, value) in displays
        .iter_mut()
        .flat_map(|display| display.data.iter_mut())
    {
        if !IMAGE_TYPES.contains(&kind.as_str()) {
            continue;
        }
        let note = match image_data(value) {
            None => "[left out: not base64]".to_owned(),
            Some(data) if images.len() == MAX_IMAGES || data.len() > room => {
                format!(
                    "[left out: at most {MAX_IMAGES} images and {} MiB of them]",
                    MAX_IMAGE_BYTES >> 20
                )
            }
            Some(data) => {
                room -= data.len();
                images.push(ContentBlock::image(data, kind.clone()));
                format!("[image content {}]", images.len())
            }
        };
        *value = Value::String(note);
    }
    images
}

/// An image's base64, without the line breaks that Python puts into it. Untrusted: a client's
/// decoder is not where a lie should be found.
fn image_data(value: &Value) -> Option<String> {
    let data: String = value.as_str()?.split_ascii_whitespace().collect();
    STANDARD
        .decode(&data)
        .ok()
        .filter(|bytes| !bytes.is_empty())?;
    Some(data)
}

fn text_of(response: &ExecuteResponse) -> String {
    let mut parts = Vec::new();
    if let Some(error) = &response.error {
        let traceback = error.traceback.trim_end();
        let text = match (traceback.is_empty(), response.outcome.as_str()) {
            (true, _) => format!("{}: {}", error.kind, error.message),
            // The traceback ends with the message.
            (false, "raised") => traceback.to_owned(),
            (false, _) => format!("{}: {}\n{traceback}", error.kind, error.message),
        };
        parts.push(format!(
            "Error ({}):\n{}",
            response.outcome,
            ends(&text, MAX_ERROR)
        ));
    }
    if let Some(result) = &response.result_repr {
        parts.push(format!("Result:\n{}", ends(result, MAX_RESULT)));
    }
    for (name, text, most) in [
        ("Stdout", &response.stdout, MAX_STDOUT),
        ("Stderr", &response.stderr, MAX_STDERR),
    ] {
        if !text.trim().is_empty() {
            parts.push(format!("{name}:\n{}", ends(text.trim_end(), most)));
        }
    }
    parts.extend(shown(response));
    if !response.truncated.is_empty() {
        let cut: Vec<String> = response
            .truncated
            .iter()
            .map(|(field, bytes)| format!("{field} by {bytes} bytes"))
            .collect();
        parts.push(format!(
            "Cut: {}. Return a summary instead of the whole.",
            cut.join(", ")
        ));
    }
    let is_silent = parts.is_empty();
    parts.extend(session_notes(response));
    if is_silent {
        parts.insert(
            0,
            format!(
                "Completed in {:.2} s: no result and no output.",
                response.execution_time
            ),
        );
    }
    parts.join("\n\n")
}

/// What a session has to say beside the result.
fn session_notes(response: &ExecuteResponse) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(between) = &response.between_turns {
        let both = format!("{}{}", between.stdout, between.stderr);
        notes.push(format!(
            "Written by earlier calls before this one ({} displays):\n{}",
            between.displays.len(),
            ends(both.trim_end(), MAX_BETWEEN)
        ));
    }
    if let (Some(id), Some(session)) = (&response.session_id, &response.session) {
        if session.is_fresh && response.outcome != "session_lost" {
            notes.push(format!("Session: {id}"));
        }
        notes.extend(
            session
                .warnings
                .iter()
                .map(|warning| ends(warning, MAX_NOTE)),
        );
    }
    notes.extend(response.notices.iter().cloned());
    notes
}

/// The displays by name, and as text where that says more than the result does.
fn shown(response: &ExecuteResponse) -> Option<String> {
    let mut lines = String::new();
    for (index, display) in response.displays.iter().enumerate() {
        let kinds: Vec<String> = display
            .data
            .iter()
            .map(|(kind, value)| match value.as_str() {
                Some(note) if IMAGE_TYPES.contains(&kind.as_str()) => format!("{kind} {note}"),
                _ => kind.clone(),
            })
            .collect();
        let _ = writeln!(lines, "{}. {}", index + 1, kinds.join(", "));
        let has_image = display.data.keys().any(|kind| kind.starts_with("image/"));
        match display.data.get("text/plain").and_then(Value::as_str) {
            Some(text) if !has_image && Some(text) != response.result_repr.as_deref() => {
                let _ = writeln!(lines, "{text}");
            }
            _ => {}
        }
    }
    (!lines.is_empty()).then(|| format!("Displays:\n{}", ends(lines.trim_end(), MAX_SHOWN)))
}

/// Text with its middle left out where it is too long: the beginning says what it is, the end
/// what came of it.
fn ends(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let head = text.floor_char_boundary(most / 3);
    let tail = text.ceil_char_boundary(text.len() - (most - most / 3));
    let (head, tail) = (&text[..head], &text[tail..]);
    format!(
        "{head}\n[... {} bytes not shown ...]\n{tail}",
        text.len() - head.len() - tail.len()
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn display(data: Value) -> Display {
        let Value::Object(data) = data else {
            panic!("not an object")
        };
        Display {
            data,
            metadata: serde_json::Map::new(),
        }
    }

    #[test]
    fn images_leave_the_displays_and_a_note_stays() {
        let mut displays = vec![
            display(json!({"image/png": "aGVs\nbG8=\n", "text/plain": "<Figure>"})),
            display(json!({"image/png": "*** no base64 ***"})),
            display(json!({"text/html": "<b>x</b>", "image/svg+xml": "<svg/>"})),
        ];
        let images = take_images(&mut displays);
        assert_eq!(images, vec![ContentBlock::image("aGVsbG8=", "image/png")]);
        assert_eq!(
            displays,
            vec![
                display(json!({"image/png": "[image content 1]", "text/plain": "<Figure>"})),
                display(json!({"image/png": "[left out: not base64]"})),
                display(json!({"text/html": "<b>x</b>", "image/svg+xml": "<svg/>"})),
            ]
        );
    }

    #[test]
    fn errors_become_sentences_and_names_stay_names() {
        assert_eq!(sentence("the server is busy"), "The server is busy.");
        assert_eq!(
            sentence("mcp_tools: there is none"),
            "mcp_tools: there is none."
        );
        assert_eq!(sentence("`code` is missing."), "`code` is missing.");
        assert_eq!(sentence(""), ".");
    }

    #[test]
    fn images_are_bounded_in_number_and_size() {
        let mut many: Vec<Display> = (0..20)
            .map(|_| display(json!({"image/png": "aGVsbG8="})))
            .collect();
        assert_eq!(take_images(&mut many).len(), MAX_IMAGES);
        let large = "A".repeat(4 << 20);
        let mut two = vec![
            display(json!({"image/png": large})),
            display(json!({"image/png": large})),
        ];
        assert_eq!(take_images(&mut two).len(), 1);
        assert_eq!(
            two[1].data["image/png"],
            "[left out: at most 8 images and 6 MiB of them]"
        );
    }

    #[test]
    fn long_text_keeps_both_ends_and_counts_the_rest() {
        let text = format!("start{}end", "é".repeat(10_000));
        let short = ends(&text, 1000);
        assert!(short.starts_with("start") && short.ends_with("end") && short.len() < 1050);
        let shown: usize = short.chars().filter(|char| *char == 'é').count();
        assert!(short.contains(&format!(
            "[... {} bytes not shown ...]",
            2 * (10_000 - shown)
        )));
    }
}
