//! Bodies and JSON from clients: bounded, and checked before anything looks at them.

use std::{collections::HashSet, fmt, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::Problem;

/// How long a client may take to send a body.
const BODY_TIME: Duration = Duration::from_mins(1);

/// How long a client may take for a file, and for a piece of it.
const LONG_BODY_TIME: Duration = Duration::from_mins(10);
const PIECE_TIME: Duration = Duration::from_secs(30);

/// A body that was not read to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// It is too large. The rest was not read.
    #[error("the body is larger than {0} bytes; send less, or raise server.max_body")]
    TooLarge(usize),
    /// It came too slowly.
    #[error("the body did not arrive within {} s", BODY_TIME.as_secs())]
    TooSlow,
    /// It is a file, and came too slowly.
    #[error(
        "nothing of the body arrived for {} s, or not all of it within {} minutes",
        PIECE_TIME.as_secs(), LONG_BODY_TIME.as_secs() / 60
    )]
    Stalled,
    /// It is not what HTTP calls a body, or the client went away.
    #[error("the body could not be read")]
    Broken,
}

impl BodyError {
    /// The answer to whoever sent it. What is left of the body is not read: the gate ends the connection.
    pub(crate) fn problem(&self) -> Problem {
        let status = match self {
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow | Self::Stalled => StatusCode::REQUEST_TIMEOUT,
            Self::Broken => StatusCode::BAD_REQUEST,
        };
        Problem::new(status, self.to_string())
    }
}

/// Reads a body, never more than so many bytes of it and never for long.
pub(crate) async fn read_body(body: Body, most: usize) -> Result<Bytes, BodyError> {
    let collected = tokio::time::timeout(BODY_TIME, Limited::new(body, most).collect()).await;
    match collected {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge(most)),
        Ok(Err(_)) => Err(BodyError::Broken),
        Err(_) => Err(BodyError::TooSlow),
    }
}

/// A body that is read piece by piece, however long it is.
#[derive(Debug)]
pub(crate) struct Pieces {
    body: Body,
    until: tokio::time::Instant,
}

impl Pieces {
    /// Nothing is read yet.
    pub(crate) fn new(body: Body) -> Self {
        let until = tokio::time::Instant::now() + LONG_BODY_TIME;
        Self { body, until }
    }

    /// The next piece; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        let most = tokio::time::Instant::now() + PIECE_TIME;
        loop {
            let frame = tokio::time::timeout_at(most.min(self.until), self.body.frame()).await;
            match frame {
                Err(_) => return Err(BodyError::Stalled),
                Ok(None) => return Ok(None),
                Ok(Some(Err(_))) => return Err(BodyError::Broken),
                // Trailers say nothing that is wanted.
                Ok(Some(Ok(frame))) => {
                    if let Ok(piece) = frame.into_data() {
                        return Ok(Some(piece));
                    }
                }
            }
        }
    }
}

/// Whether a body says that it is JSON.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let essence = kind.and_then(|kind| kind.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}

/// A text that not every reader of JSON would read alike.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum JsonError {
    /// It is no JSON, or is too deep.
    #[error("the body is not valid JSON: {0}")]
    Syntax(String),
    /// A key stands twice in one object: readers differ in which one they take.
    #[error("{0}; send each key once")]
    DuplicateKey(String),
}

/// What an error about a duplicate key begins with.
const DUPLICATE: &str = "the key ";

/// Checks that a body is one JSON text, no deeper than 128, in which no object has a key twice.
pub(crate) fn check_json(bytes: &[u8]) -> Result<(), JsonError> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    Strict
        .deserialize(&mut deserializer)
        .and_then(|()| deserializer.end())
        .map_err(|error| {
            let text = error.to_string();
            if text.starts_with(DUPLICATE) {
                JsonError::DuplicateKey(text)
            } else {
                JsonError::Syntax(text)
            }
        })
}

/// Reads any value and keeps nothing of it but the keys of the objects that it is in.
struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            if keys.contains(&key) {
                let shown = crate::text::quoted(&key);
                return Err(A::Error::custom(format_args!(
                    "{DUPLICATE}{shown} is there twice"
                )));
            }
            keys.insert(key);
            entries.next_value_seed(Self)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_keys_are_seen_at_every_depth_and_however_they_are_written() {
        for text in [
            r#"{"a": 1, "a": 1}"#,
            r#"{"x": [{"y": {"method": 1, "b": 2, "method": 3}}]}"#,
            r#"{"a": 1, "\u0061": 2}"#,
        ] {
            let error = check_json(text.as_bytes()).unwrap_err();
            assert!(
                matches!(error, JsonError::DuplicateKey(_)),
                "{text}: {error}"
            );
        }
        // Another case is another key, and so is the same key in another object.
        check_json(br#"{"a": {"a": [{"a": 1}, {"a": 2}]}, "A": null}"#).unwrap();
    }

    #[test]
    fn what_is_not_one_json_text_is_refused() {
        let deep = "[".repeat(100_000);
        let digits = "9".repeat(1_000_000);
        for text in [
            "",
            "{",
            "{} {}",
            "{}x",
            "\u{feff}{}",
            "1e400",
            "{'a': 1}",
            "[1,]",
            "nul",
            "NaN",
            &deep,
            &digits,
        ] {
            let error = check_json(text.as_bytes()).unwrap_err();
            assert!(
                matches!(error, JsonError::Syntax(_)),
                "{}",
                &text[..text.len().min(10)]
            );
        }
        for bytes in [&b"\"\xff\""[..], b"\xff\xfe{\0}\0", b"\"\\ud800\""] {
            check_json(bytes).unwrap_err();
        }
        for good in ["0", "null", "\"\\u0000\"", "[[[]]]", "{\"\": {}}", " {} "] {
            check_json(good.as_bytes()).unwrap();
        }
    }

    #[tokio::test]
    async fn a_body_is_read_up_to_its_bound() {
        assert_eq!(read_body(Body::from("1234"), 4).await.unwrap(), "1234");
        let error = read_body(Body::from("12345"), 4).await.unwrap_err();
        assert!(matches!(error, BodyError::TooLarge(4)));
    }
}
