//! W3C Trace Context, as a request brings it and as calls of upstreams take it on.
//!
//! It is hostile input: what does not follow the grammar to the letter is dropped, and nothing of it is
//! ever shown to anybody but the upstreams and the collector.

use std::{fmt, sync::Arc};

use http::HeaderMap;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use serde_json::{Map, Value};

/// The names of headers, and of keys in MCP's `_meta` (SEP-414).
const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
const BAGGAGE: &str = "baggage";

/// Most of a `tracestate`, and of a `baggage`, that is passed on.
const MAX_STATE_BYTES: usize = 512;
const MAX_STATE_MEMBERS: usize = 32;
const MAX_BAGGAGE_BYTES: usize = 8192;
const MAX_BAGGAGE_MEMBERS: usize = 64;

/// Flags that are passed on: sampled, and that the id is random.
const KNOWN_FLAGS: u8 = 0b11;

/// Which trace a request belongs to. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct TraceContext(Arc<Parts>);

#[derive(Clone, PartialEq, Eq)]
struct Parts {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
    state: Option<String>,
    baggage: Option<String>,
}

impl TraceContext {
    /// Reads the three values. Without a valid `traceparent` there is nothing; each of the others is
    /// dropped alone.
    pub fn parse(traceparent: &str, state: Option<&str>, baggage: Option<&str>) -> Option<Self> {
        let (trace_id, span_id, flags) = parse_parent(traceparent)?;
        Some(Self(Arc::new(Parts {
            trace_id,
            span_id,
            flags,
            state: state.and_then(checked_state),
            baggage: baggage.and_then(checked_baggage),
        })))
    }

    /// As an HTTP request brings it.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut parents = headers.get_all(TRACEPARENT).iter();
        let parent = parents.next()?.to_str().ok()?;
        if parents.next().is_some() {
            return None;
        }
        let [state, baggage] = [(TRACESTATE, MAX_STATE_BYTES), (BAGGAGE, MAX_BAGGAGE_BYTES)]
            .map(|(name, most)| joined(headers, name, most));
        Self::parse(parent, state.as_deref(), baggage.as_deref())
    }

    /// As the `_meta` of an MCP request brings it.
    pub fn from_meta(meta: &Map<String, Value>) -> Option<Self> {
        let text = |name: &str| meta.get(name).and_then(Value::as_str);
        Self::parse(text(TRACEPARENT)?, text(TRACESTATE), text(BAGGAGE))
    }

    /// The headers, or the keys of `_meta`, that take it on.
    pub fn pairs(&self) -> impl Iterator<Item = (&'static str, String)> {
        let parts = &self.0;
        [
            (TRACEPARENT, Some(self.traceparent())),
            (TRACESTATE, parts.state.clone()),
            (BAGGAGE, parts.baggage.clone()),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }

    /// The trace's name in hex.
    pub fn trace_id(&self) -> String {
        self.as_parent().trace_id().to_string()
    }

    /// As the parent of a span of ours.
    pub(super) fn as_parent(&self) -> SpanContext {
        let parts = &self.0;
        let state = parts.state.as_deref().unwrap_or_default();
        SpanContext::new(
            TraceId::from_bytes(parts.trace_id),
            SpanId::from_bytes(parts.span_id),
            TraceFlags::new(parts.flags),
            true,
            // The library knows fewer keys than the grammar; one that it does not take is left out.
            state.parse::<TraceState>().unwrap_or_default(),
        )
    }

    /// Of a span of ours, with what came with its trace.
    pub(super) fn of_span(span: &SpanContext, came_with: Option<&Self>) -> Self {
        let state = span.trace_state().header();
        Self(Arc::new(Parts {
            trace_id: span.trace_id().to_bytes(),
            span_id: span.span_id().to_bytes(),
            flags: span.trace_flags().to_u8() & KNOWN_FLAGS,
            state: Some(state).filter(|state| !state.is_empty()),
            baggage: came_with.and_then(|context| context.0.baggage.clone()),
        }))
    }

    fn traceparent(&self) -> String {
        let parts = &self.0;
        format!(
            "00-{:032x}-{:016x}-{:02x}",
            u128::from_be_bytes(parts.trace_id),
            u64::from_be_bytes(parts.span_id),
            parts.flags
        )
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The rest is whatever its sender wanted.
        write!(f, "TraceContext({})", self.traceparent())
    }
}

/// Several headers of one name are one list.
fn joined(headers: &HeaderMap, name: &str, most: usize) -> Option<String> {
    let mut joined = String::new();
    for value in headers.get_all(name) {
        if !joined.is_empty() {
            joined.push(',');
        }
        joined.push_str(value.to_str().ok()?);
        if joined.len() > most {
            return None;
        }
    }
    (!joined.is_empty()).then_some(joined)
}

/// `00-` 32 digits `-` 16 digits `-` 2 digits. A later version's may be longer, and is dropped: what it
/// says is not known yet.
fn parse_parent(text: &str) -> Option<([u8; 16], [u8; 8], u8)> {
    let bytes = text.as_bytes();
    let dashes = [2, 35, 52];
    let is_well_formed = bytes.len() == 55
        && bytes.iter().enumerate().all(|(place, byte)| {
            if dashes.contains(&place) {
                *byte == b'-'
            } else {
                matches!(byte, b'0'..=b'9' | b'a'..=b'f')
            }
        });
    if !is_well_formed || text.starts_with("ff") {
        return None;
    }
    let trace_id = u128::from_str_radix(text.get(3..35)?, 16).ok()?;
    let span_id = u64::from_str_radix(text.get(36..52)?, 16).ok()?;
    let flags = u8::from_str_radix(text.get(53..55)?, 16).ok()?;
    if trace_id == 0 || span_id == 0 {
        return None;
    }
    Some((
        trace_id.to_be_bytes(),
        span_id.to_be_bytes(),
        flags & KNOWN_FLAGS,
    ))
}

fn checked_state(text: &str) -> Option<String> {
    if text.len() > MAX_STATE_BYTES {
        return None;
    }
    let members = text
        .split(',')
        .map(|member| member.trim_matches([' ', '\t']));
    let members: Vec<&str> = members.filter(|member| !member.is_empty()).collect();
    let mut keys: Vec<&str> = Vec::with_capacity(members.len());
    for member in &members {
        let (key, value) = member.split_once('=')?;
        if !is_state_key(key) || !is_state_value(value) || keys.contains(&key) {
            return None;
        }
        keys.push(key);
    }
    let is_bounded = (1..=MAX_STATE_MEMBERS).contains(&members.len());
    is_bounded.then(|| members.join(","))
}

fn is_state_key(key: &str) -> bool {
    let is_part = |part: &str, most: usize| {
        (1..=most).contains(&part.len())
            && part.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
            && part
                .bytes()
                .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/'))
    };
    match key.split_once('@') {
        Some((tenant, system)) => is_part(tenant, 241) && is_part(system, 14),
        None => is_part(key, 256),
    }
}

fn is_state_value(value: &str) -> bool {
    (1..=256).contains(&value.len())
        && !value.ends_with(' ')
        && value
            .bytes()
            .all(|byte| matches!(byte, b' '..=b'~') && byte != b',' && byte != b'=')
}

/// A list of `key=value`, each with properties after `;`.
fn checked_baggage(text: &str) -> Option<String> {
    if text.len() > MAX_BAGGAGE_BYTES || text.split(',').count() > MAX_BAGGAGE_MEMBERS {
        return None;
    }
    let is_member = |member: &str| {
        member.split(';').enumerate().all(|(place, part)| {
            let part = part.trim_matches([' ', '\t']);
            match part.split_once('=') {
                Some((key, value)) => {
                    is_token(key.trim_end_matches([' ', '\t']))
                        && value
                            .trim_start_matches([' ', '\t'])
                            .bytes()
                            .all(is_baggage)
                }
                // A property may be a key alone.
                None => place > 0 && is_token(part),
            }
        })
    };
    text.split(',').all(is_member).then(|| text.to_owned())
}

fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

const fn is_baggage(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~') && !matches!(byte, b'"' | b',' | b';' | b'\\')
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn passed_on(
        parent: &str,
        state: Option<&str>,
        baggage: Option<&str>,
    ) -> Vec<(&'static str, String)> {
        let context = TraceContext::parse(parent, state, baggage);
        context.iter().flat_map(TraceContext::pairs).collect()
    }

    #[test]
    fn what_follows_the_grammar_is_passed_on_as_it_came() {
        let state = "rojo=00f067aa0ba902b7,t9@congo=a b~";
        let baggage = "user=anna%20b; kind=test;flag,size = 3";
        assert_eq!(
            passed_on(PARENT, Some(state), Some(baggage)),
            [
                ("traceparent", PARENT.to_owned()),
                ("tracestate", state.to_owned()),
                ("baggage", baggage.to_owned()),
            ]
        );
        // Of flags that nobody knows yet nothing is passed on, nor of a version's number.
        let later = PARENT.replacen("00-", "cc-", 1).replace("-01", "-ff");
        let known = PARENT.replace("-01", "-03");
        assert_eq!(passed_on(&later, None, None), [("traceparent", known)]);
    }

    #[test]
    fn what_does_not_is_dropped() {
        for wrong in [
            "",
            "00",
            &PARENT[..54],
            &format!("{PARENT}-"),
            &format!("{PARENT} "),
            &format!("cc{}-extra", &PARENT[2..]),
            &PARENT.to_uppercase(),
            &PARENT.replacen("00-", "ff-", 1),
            &PARENT.replacen('-', "_", 1),
            &PARENT.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &PARENT.replace("b7ad6b7169203331", &"0".repeat(16)),
            &PARENT.replace('a', "é"),
            &PARENT.replace("0af7", "+af7"),
        ] {
            assert_eq!(passed_on(wrong, None, None), [], "{wrong}");
        }
        let many = (0..33)
            .map(|n| format!("k{n}=1"))
            .collect::<Vec<_>>()
            .join(",");
        for wrong in [
            "",
            ",",
            "a",
            "a=",
            "=1",
            "A=1",
            "a=1,a=2",
            "a=é",
            "a=1\n",
            "a=1\r\nx: y",
            "a@b@c=1",
            "_a=1",
            "a==",
            &many,
            &format!("a={}", "1".repeat(257)),
            &"a=1, ".repeat(200),
        ] {
            let kept = passed_on(PARENT, Some(wrong), None);
            assert_eq!(kept, [("traceparent", PARENT.to_owned())], "{wrong:?}");
        }
        let many = vec!["a=1"; 65].join(",");
        for wrong in [
            "",
            "a",
            "a b=1",
            "a=\"1\"",
            "a=1,,b=2",
            "a=b c",
            "a=1\r\nX: y",
            "é=1",
            "a=1;",
            &many,
            &format!("a={}", "1".repeat(8192)),
        ] {
            let kept = passed_on(PARENT, None, Some(wrong));
            assert_eq!(kept, [("traceparent", PARENT.to_owned())], "{wrong:?}");
        }
    }

    #[test]
    fn it_comes_in_headers_and_in_meta() {
        let mut headers = HeaderMap::new();
        headers.append(TRACEPARENT, HeaderValue::from_static(PARENT));
        headers.append(TRACESTATE, HeaderValue::from_static("a=1"));
        headers.append(TRACESTATE, HeaderValue::from_static("b=2"));
        let context = TraceContext::from_headers(&headers).unwrap();
        assert_eq!(
            context,
            TraceContext::parse(PARENT, Some("a=1,b=2"), None).unwrap()
        );
        assert_eq!(context.trace_id(), "0af7651916cd43dd8448eb211c80319c");
        headers.append(TRACEPARENT, HeaderValue::from_static(PARENT));
        assert_eq!(TraceContext::from_headers(&headers), None, "twice is never");
        let read = |meta: Value| TraceContext::from_meta(meta.as_object().unwrap());
        let meta = json!({"traceparent": PARENT, "tracestate": "a=1,b=2", "baggage": 7});
        assert_eq!(read(meta), Some(context));
        assert_eq!(read(json!({"traceparent": [PARENT]})), None);
        assert_eq!(read(json!({"tracestate": "a=1"})), None);
    }

    #[test]
    fn nothing_but_ids_is_shown() {
        let context = TraceContext::parse(PARENT, Some("a=secret"), Some("b=secret")).unwrap();
        assert!(!format!("{context:?}").contains("secret"));
    }

    proptest! {
        #[test]
        fn whatever_comes_what_is_passed_on_is_a_header(
            parent in "(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}|.{0,60})",
            state in ".{0,80}",
            baggage in ".{0,80}",
        ) {
            for (name, value) in passed_on(&parent, Some(&state), Some(&baggage)) {
                prop_assert!(HeaderValue::from_str(&value).is_ok(), "{name}: {value:?}");
                prop_assert!(value.bytes().all(|byte| (0x20..0x7f).contains(&byte) || byte == b'\t'));
            }
        }
    }
}
