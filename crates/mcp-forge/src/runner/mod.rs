//! The connection to a runner: framed, bounded, untrusted on the way in.

use std::{future::poll_fn, io};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::io::{ReadHalf, WriteHalf};
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};

use crate::engine::Duplex;

pub mod source;
pub mod wire;

use wire::{Event, MAX_EVENT_BYTES, MAX_REQUEST_BYTES, Request};

/// The runner broke the protocol, or is gone. Whatever the variant, the sandbox must be discarded.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The stream ended in the middle of a turn.
    #[error("the runner closed its connection")]
    Closed,
    /// The transport failed, or a frame was too long.
    #[error("the runner's connection failed: {0}")]
    Io(#[from] io::Error),
    /// More tool calls than a turn may make, long after the first refusal.
    #[error("the code went on calling tools after its {0} calls were used up")]
    TooManyCalls(u64),
    /// A frame holds more values than anything sensible: each costs far more memory than its bytes.
    #[error("the runner sent a message with more than {MAX_VALUES} values")]
    TooManyValues,
    /// More output than is read while no turn runs.
    #[error("it wrote more than {0} bytes while no turn was running")]
    Flooded(u64),
    /// A message that nobody asked for.
    #[error("the runner sent a message that does not belong here")]
    Unexpected,
    /// A frame was not a message.
    #[error("the runner sent something that is not a message: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// Values that one message may hold. The runner's own cap on a result allows a third of it.
const MAX_VALUES: usize = 1_000_000;

/// Splits a runner's connection into its two directions.
pub fn connect(connection: Box<dyn Duplex>) -> (Events, Requests) {
    let (read, write) = tokio::io::split(connection);
    (
        Events(FramedRead::new(read, codec(MAX_EVENT_BYTES))),
        Requests(FramedWrite::new(write, codec(MAX_REQUEST_BYTES))),
    )
}

/// A request as it is sent, its length included: for those that travel with descriptors.
///
/// # Errors
///
/// [`ProtocolError::Malformed`], never for a request of ours.
pub fn frame(request: &Request) -> Result<Vec<u8>, ProtocolError> {
    let body = serde_json::to_vec(request)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    Ok([&length.to_be_bytes()[..], &body].concat())
}

fn codec(most: usize) -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder()
        .max_frame_length(most)
        .new_codec()
}

/// What the runner sends. UNTRUSTED: the length is checked before a byte is stored.
#[derive(Debug)]
pub struct Events(FramedRead<ReadHalf<Box<dyn Duplex>>, LengthDelimitedCodec>);

impl Events {
    /// Waits for the next event.
    ///
    /// # Errors
    ///
    /// See [`ProtocolError`].
    ///
    /// # Cancel safety
    ///
    /// A dropped call loses nothing: what was read stays buffered.
    pub async fn next(&mut self) -> Result<Event, ProtocolError> {
        let frame = self.0.next().await.ok_or(ProtocolError::Closed)??;
        // Before they become a tree: a byte and a comma can cost seventy bytes.
        if frame
            .iter()
            .filter(|byte| matches!(byte, b',' | b'[' | b'{'))
            .count()
            > MAX_VALUES
        {
            return Err(ProtocolError::TooManyValues);
        }
        Ok(serde_json::from_slice(&frame)?)
    }
}

/// What we send to the runner.
#[derive(Debug)]
pub struct Requests(FramedWrite<WriteHalf<Box<dyn Duplex>>, LengthDelimitedCodec>);

impl Requests {
    /// Sends one request.
    ///
    /// # Errors
    ///
    /// [`ProtocolError::Io`] when the runner is gone or the request is over [`MAX_REQUEST_BYTES`].
    pub async fn send(&mut self, request: &Request) -> Result<(), ProtocolError> {
        self.ready().await?;
        self.put(request)?;
        self.flush().await
    }

    /// Waits until there is room for a request.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    pub(crate) async fn ready(&mut self) -> Result<(), ProtocolError> {
        let room = poll_fn(|context| SinkExt::<Bytes>::poll_ready_unpin(&mut self.0, context));
        Ok(room.await?)
    }

    /// Puts a request into the room that there is: from here on it is sent, whoever stops waiting.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    pub(crate) fn put(&mut self, request: &Request) -> Result<(), ProtocolError> {
        let frame = serde_json::to_vec(request)?;
        Ok(self.0.start_send_unpin(Bytes::from(frame))?)
    }

    /// Waits until all that was put is on its way.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    pub(crate) async fn flush(&mut self) -> Result<(), ProtocolError> {
        Ok(SinkExt::<Bytes>::flush(&mut self.0).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn receive(bytes: &[u8]) -> Result<Event, ProtocolError> {
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        tokio::io::AsyncWriteExt::write_all(&mut theirs, bytes)
            .await
            .unwrap();
        drop(theirs);
        connect(Box::new(ours)).0.next().await
    }

    fn framed(body: &str) -> Vec<u8> {
        [
            &u32::try_from(body.len()).unwrap().to_be_bytes()[..],
            body.as_bytes(),
        ]
        .concat()
    }

    #[tokio::test]
    async fn a_length_over_the_cap_is_refused_before_it_is_stored() {
        let error = receive(&[0xFF; 8]).await.unwrap_err();
        assert!(matches!(error, ProtocolError::Io(_)), "{error}");
    }

    #[tokio::test]
    async fn garbage_half_frames_and_unknown_fields_are_errors() {
        for body in [
            "",
            "{",
            "null",
            "[1]",
            r#"{"type":"done","result":1,"extra":2}"#,
            r#"{"type":"nothing"}"#,
            r#"{"type":"done","result":NaN}"#,
        ] {
            let error = receive(&framed(body)).await.unwrap_err();
            assert!(
                matches!(error, ProtocolError::Malformed(_)),
                "{body}: {error}"
            );
        }
        let half = &framed(r#"{"type":"ready","python":"3.11.7"}"#)[..10];
        assert!(receive(half).await.is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _ = runtime.block_on(receive(&bytes));
        }
    }

    #[test]
    fn the_fixtures_of_the_runner_are_our_messages() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runner/fixtures");
        let mut seen = 0;
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            let name = path.file_name().unwrap().to_str().unwrap();
            let again = if name.starts_with("request_") {
                serde_json::to_value(serde_json::from_value::<Request>(value.clone()).expect(name))
            } else {
                serde_json::to_value(serde_json::from_value::<Event>(value.clone()).expect(name))
            };
            assert_eq!(again.unwrap(), value, "{name}");
            seen += 1;
        }
        assert!(seen >= 6, "only {seen} fixtures");
    }
}
