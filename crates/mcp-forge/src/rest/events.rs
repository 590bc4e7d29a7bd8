//! What an execution writes, while it writes it: server-sent events.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Extension,
    extract::{Path, State, rejection::PathRejection},
    response::{
        IntoResponse,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::{Stream, StreamExt, stream};
use http::HeaderMap;
use serde_json::json;

use super::{Answer, Api, execute, views::ExecutionView};
use crate::{
    identity::Caller,
    service::{Execution, Next},
    turn,
};

/// How often a silent stream says that it is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// `GET /api/v1/executions/{id}/events`
pub(super) async fn events(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    id: Result<Path<String>, PathRejection>,
) -> Answer {
    let execution = execute::find(&api, &caller, id)?;
    // A client that was cut off goes on where it was.
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let seen = last.and_then(|id| id.parse().ok()).unwrap_or(0);
    let alive = KeepAlive::new().interval(KEEP_ALIVE);
    Ok(Sse::new(told(execution, seen))
        .keep_alive(alive)
        .into_response())
}

fn told(
    execution: Arc<Execution>,
    seen: usize,
) -> impl Stream<Item = Result<Event, Infallible>> + Send {
    let batches = stream::unfold(Some((execution, seen)), |state| async move {
        let (execution, seen) = state?;
        Some(match execution.after(seen).await {
            Next::Pieces(pieces, now) => {
                let events: Vec<Event> = pieces
                    .iter()
                    .zip(seen + 1..)
                    .map(|(piece, number)| {
                        let stream = match piece.stream {
                            turn::Stream::Stdout => "stdout",
                            turn::Stream::Stderr => "stderr",
                        };
                        let data = json!({"stream": stream, "text": piece.text});
                        let event = Event::default().event("output").id(number.to_string());
                        event.data(data.to_string())
                    })
                    .collect();
                (events, Some((execution, now)))
            }
            Next::End => {
                let data = ExecutionView::of(&execution, |view| json!(view).to_string());
                (vec![Event::default().event("end").data(data)], None)
            }
        })
    });
    batches.flat_map(|events| stream::iter(events.into_iter().map(Ok)))
}
