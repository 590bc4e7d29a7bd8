//! Idempotency keys: a request that is sent again is not run again.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body_util::BodyExt;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::{Answer, Background};
use crate::names::Principal;

/// Answers that are remembered for one principal.
const MAX_KEYS: usize = 64;

/// The keys of all principals.
#[derive(Debug, Default)]
pub(super) struct Keys(Mutex<HashMap<Principal, Used>>);

/// The keys of one principal, the oldest first.
type Used = VecDeque<(String, Arc<Once>)>;

#[derive(Debug)]
struct Once {
    request: [u8; 32],
    answer: watch::Receiver<Option<Kept>>,
}

/// An answer as it was sent.
#[derive(Debug, Clone)]
struct Kept {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// What comes of a request with a key.
pub(super) enum Replay {
    /// The answer, of now or of then.
    Answer(Response),
    /// The key was used for another request.
    Other,
    /// Too many run at once.
    Full,
    /// The server ends.
    Ended,
}

impl Keys {
    /// Answers with what `work` comes to, or came to when the key was first used. It runs on, even
    /// if nobody waits for it any more.
    pub(super) async fn once(
        &self,
        (principal, key): (&Principal, &str),
        request: &[u8],
        (work, background): (impl Future<Output = Answer> + Send + 'static, &Background),
    ) -> Replay {
        let request: [u8; 32] = Sha256::digest(request).into();
        let (once, is_new) = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let used = all.entry(principal.clone()).or_default();
            match used.iter().find(|(known, _)| known == key) {
                Some((_, once)) if once.request != request => return Replay::Other,
                Some((_, once)) => (Arc::clone(once), false),
                None => {
                    if used.len() >= MAX_KEYS {
                        let done = used
                            .iter()
                            .position(|(_, once)| once.answer.borrow().is_some());
                        let Some(oldest) = done else {
                            return Replay::Full;
                        };
                        used.remove(oldest);
                    }
                    let (sender, answer) = watch::channel(None);
                    background.spawn(async move {
                        let answered = work.await.into_response();
                        sender.send_replace(Some(keep(answered).await));
                    });
                    let once = Arc::new(Once { request, answer });
                    used.push_back((key.to_owned(), Arc::clone(&once)));
                    (once, true)
                }
            }
        };
        let mut answer = once.answer.clone();
        let kept = answer.wait_for(Option::is_some).await;
        match kept.ok().and_then(|kept| kept.clone()) {
            Some(kept) => Replay::Answer(kept.response(is_new)),
            // The work was ended with the server.
            None => Replay::Ended,
        }
    }
}

async fn keep(response: Response) -> Kept {
    let (parts, body) = response.into_parts();
    // Our own bodies are whole and cannot fail.
    let body = body
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes);
    Kept {
        status: parts.status,
        headers: parts.headers,
        body: body.unwrap_or_default(),
    }
}

impl Kept {
    fn response(self, is_new: bool) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        if !is_new {
            let replayed = HeaderValue::from_static("true");
            response
                .headers_mut()
                .insert("idempotency-replayed", replayed);
        }
        response
    }
}
