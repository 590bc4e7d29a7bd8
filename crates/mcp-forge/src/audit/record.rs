//! One record: a line of JSON that ends with the SHA-256 of itself.

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// The hash before a chain's first record.
pub(super) const NO_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Longest line that is written, in bytes. Readers take twice that.
pub(super) const MAX_LINE_BYTES: usize = 64 << 10;

/// The names that every record has.
pub(super) const RESERVED: &[&str] = &[
    "sequence",
    "timestamp",
    "monotonic_ms",
    "event",
    "previous",
    "hash",
];

const MAX_TEXT_BYTES: usize = 2 << 10;
const MAX_ENTRIES: usize = 256;
const MAX_DEPTH: usize = 8;
const HASH_START: &str = ",\"hash\":\"";
const HASH_END: &str = "\"}";

/// A record's own part, before it is sealed.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    pub(super) sequence: u64,
    pub(super) monotonic_ms: u64,
    pub(super) event: &'a str,
    pub(super) fields: Map<String, Value>,
    pub(super) previous: &'a str,
}

/// Makes the line, newline included, and its hash.
pub(super) fn seal(draft: Draft<'_>) -> (String, String) {
    let mut own = fields(bound(Value::Object(draft.fields), 0));
    if text_of(&own).len() > MAX_LINE_BYTES / 2 {
        own = fields(json!({ "oversized": digest_of(text_of(&own).as_bytes()) }));
    }
    let mut record = Map::new();
    record.insert("sequence".to_owned(), draft.sequence.into());
    record.insert("timestamp".to_owned(), show_time(Timestamp::now()).into());
    record.insert("monotonic_ms".to_owned(), draft.monotonic_ms.into());
    record.insert("event".to_owned(), draft.event.into());
    record.extend(own);
    record.insert("previous".to_owned(), draft.previous.into());
    let body = text_of(&record);
    let hash = format!("{:x}", Sha256::digest(&body));
    let open = body.strip_suffix('}').unwrap_or(&body);
    (format!("{open}{HASH_START}{hash}{HASH_END}\n"), hash)
}

/// A record as it was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) sequence: u64,
    pub(super) event: String,
    pub(super) previous: String,
    pub(super) hash: String,
}

/// Checks a line (without its newline) against its own hash.
///
/// # Errors
///
/// A sentence about what does not fit.
pub(super) fn open(line: &[u8]) -> Result<Found, &'static str> {
    let line = std::str::from_utf8(line).map_err(|_| "the line is not UTF-8")?;
    let sealed = line
        .strip_suffix(HASH_END)
        .and_then(|line| line.rsplit_once(HASH_START));
    let (open, hash) = sealed.ok_or("the line does not end with a hash")?;
    let computed = Sha256::new()
        .chain_update(open)
        .chain_update("}")
        .finalize();
    if format!("{computed:x}") != hash {
        return Err("the line does not have the hash that it ends with: it was changed");
    }
    let record: Value = serde_json::from_str(line).map_err(|_| "the line is not JSON")?;
    let text = |name: &str| record[name].as_str().map(str::to_owned);
    Ok(Found {
        sequence: record["sequence"]
            .as_u64()
            .ok_or("the record has no sequence number")?,
        event: text("event").ok_or("the record has no event")?,
        previous: text("previous").ok_or("the record has no previous hash")?,
        hash: hash.to_owned(),
    })
}

/// The members of a JSON object that was written as one.
pub(crate) fn fields(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// RFC 3339 in UTC with milliseconds: as text, it sorts as the times do.
pub(super) fn show_time(time: Timestamp) -> String {
    format!("{time:.3}")
}

/// Untrusted text may be of any size: what is cut is named by its size and hash.
fn bound(value: Value, depth: usize) -> Value {
    match value {
        Value::String(text) => Value::String(cut(text)),
        Value::Array(_) | Value::Object(_) if depth >= MAX_DEPTH => {
            digest_of(value.to_string().as_bytes())
        }
        Value::Array(items) => {
            let left_out = items.len().saturating_sub(MAX_ENTRIES);
            let mut kept: Vec<Value> = items
                .into_iter()
                .take(MAX_ENTRIES)
                .map(|item| bound(item, depth + 1))
                .collect();
            if left_out > 0 {
                kept.push(format!("… {left_out} more").into());
            }
            Value::Array(kept)
        }
        Value::Object(entries) => {
            let left_out = entries.len().saturating_sub(MAX_ENTRIES);
            let kept = entries.into_iter().take(MAX_ENTRIES);
            let mut kept: Map<_, _> = kept
                .map(|(name, value)| (cut(name), bound(value, depth + 1)))
                .collect();
            if left_out > 0 {
                kept.insert("…".to_owned(), format!("{left_out} more").into());
            }
            Value::Object(kept)
        }
        other => other,
    }
}

fn cut(text: String) -> String {
    if text.len() <= MAX_TEXT_BYTES {
        return text;
    }
    let kept = &text[..text.floor_char_boundary(MAX_TEXT_BYTES)];
    format!(
        "{kept}… ({} bytes, sha256 {:x})",
        text.len(),
        Sha256::digest(&text)
    )
}

fn digest_of(bytes: &[u8]) -> Value {
    json!({ "bytes": bytes.len(), "sha256": format!("{:x}", Sha256::digest(bytes)) })
}

fn text_of(map: &Map<String, Value>) -> String {
    // A map of JSON values always serialises.
    serde_json::to_string(map).unwrap_or_default()
}
