//! The log as one JSON object a line, for programs that collect logs.
//!
//! Names and answers of others are in it. Whatever they hold, a line is one line: what could break it, or
//! hide in it, is written as an escape.

use std::{
    fmt::{self, Write as _},
    io::{self, Write as _},
};

use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

/// Bytes of one text in a line.
const MAX_TEXT_BYTES: usize = 8 << 10;

/// What of a request's spans is in each of its lines, beside the event's own fields.
const OF_SPANS: [&str; 6] = [
    "principal",
    "request_id",
    "execution_id",
    "session_id",
    "trace_id",
    "environment",
];

/// Writes them to standard error.
pub(super) struct JsonLines;

/// The fields of one span.
struct Fields(Map<String, Value>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for JsonLines {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields(Map::new());
            attributes.record(&mut Visitor(&mut fields.0));
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(&mut Visitor(&mut fields.0));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Map::new();
        event.record(&mut Visitor(&mut fields));
        let message = fields.shift_remove("message").unwrap_or_default();
        let metadata = event.metadata();
        let mut line = head(metadata.level().as_str(), metadata.target(), message);
        let spans = context.event_scope(event).into_iter().flatten();
        // From the innermost on: that knows best.
        for span in spans {
            if let Some(Fields(known)) = span.extensions().get() {
                for name in OF_SPANS {
                    if let Some(value) = known.get(name) {
                        line.entry(name).or_insert_with(|| value.clone());
                    }
                }
            }
        }
        if !fields.is_empty() {
            line.insert("fields".to_owned(), Value::Object(fields));
        }
        // Whole lines at once: others write there, too. Who closed it wants no log.
        let _ = io::stderr().lock().write_all(rendered(line).as_bytes());
    }
}

/// One line without a request.
pub(super) fn line(level: &str, target: &str, message: &str) -> String {
    rendered(head(level, target, message.into()))
}

fn head(level: &str, target: &str, message: Value) -> Map<String, Value> {
    let time = jiff::Timestamp::now();
    Map::from_iter([
        ("time".to_owned(), format!("{time:.6}").into()),
        ("level".to_owned(), level.into()),
        ("target".to_owned(), target.into()),
        ("message".to_owned(), message),
    ])
}

fn bounded(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_TEXT_BYTES))
        .unwrap_or(text)
}

/// JSON lets separators of lines and letters that nobody sees stand as they are; many readers do not.
fn rendered(line: Map<String, Value>) -> String {
    let text = Value::Object(line).to_string();
    let mut rendered = String::with_capacity(text.len() + 1);
    for letter in text.chars() {
        // Outside of texts there are none.
        if is_unfit(letter) {
            let mut units = [0; 2];
            for unit in letter.encode_utf16(&mut units) {
                let _ = write!(rendered, "\\u{unit:04x}");
            }
        } else {
            rendered.push(letter);
        }
    }
    rendered.push('\n');
    rendered
}

const fn is_unfit(letter: char) -> bool {
    matches!(
        letter,
        '\u{0}'..='\u{1f}'
            | '\u{7f}'..='\u{9f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// Reads fields, and bounds their texts.
struct Visitor<'a>(&'a mut Map<String, Value>);

impl Visitor<'_> {
    fn put(&mut self, field: &Field, value: Value) {
        self.0.insert(field.name().to_owned(), value);
    }
}

impl Visit for Visitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        self.record_str(field, &text);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, bounded(value).into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_text_holds_its_line_is_one_line_and_visible() {
        let hostile = "a\nb\r\u{85}\u{2028}\u{2029}c\u{202e}d\u{e0041}\u{1b}[31m\"\\ é 🦀";
        let text = line("WARN", "here", hostile);
        assert_eq!(text.matches('\n').count(), 1);
        assert!(text.ends_with("}\n"));
        assert!(
            text.chars()
                .filter(|letter| *letter != '\n')
                .all(|letter| !is_unfit(letter))
        );
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["message"], hostile);
        assert_eq!(read["level"], "WARN");
        assert_eq!(read["target"], "here");
        read["time"]
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap();
    }
}
