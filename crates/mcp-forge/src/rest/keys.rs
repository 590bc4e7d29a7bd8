//! Idempotency keys: a request that is sent again is not run again.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
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

/// Bytes of answers that are remembered for one principal, beside the newest.
const MAX_BYTES: usize = 32 << 20;

/// Principals whose answers are remembered: issuers of tokens may name any number of them.
const MAX_PRINCIPALS: usize = 1_000;

/// The keys of all principals.
#[derive(Debug, Default)]
pub(super) struct Keys(Mutex<HashMap<Principal, Used>>);

/// The keys of one principal.
#[derive(Debug)]
struct Used {
    /// The oldest first.
    keys: VecDeque<(String, Arc<Once>)>,
    last: Instant,
}

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
            if !all.contains_key(principal) && !has_room(&mut all) {
                return Replay::Full;
            }
            let used = all.entry(principal.clone()).or_insert_with(|| Used {
                keys: VecDeque::new(),
                last: Instant::now(),
            });
            used.last = Instant::now();
            let used = &mut used.keys;
            forget_few(used, key, &request);
            match used.iter().find(|(known, _)| known == key) {
                Some((_, once)) if once.request != request => return Replay::Other,
                Some((_, once)) => (Arc::clone(once), false),
                None => {
                    if used.len() >= MAX_KEYS {
                        let done = used.iter().position(|(_, once)| once.is_done());
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

/// Drops what says to come back later, which it did, and the oldest answers where they take too much.
fn forget_few(keys: &mut VecDeque<(String, Arc<Once>)>, key: &str, request: &[u8; 32]) {
    let is_later = |once: &Once| {
        let answer = once.answer.borrow();
        let later = answer.as_ref().map(|kept| kept.status) == Some(StatusCode::TOO_MANY_REQUESTS);
        later && once.request == *request
    };
    keys.retain(|(known, once)| known != key || !is_later(once));
    let mut bytes: usize = keys.iter().map(|(_, once)| once.bytes()).sum();
    while bytes > MAX_BYTES
        && let Some(oldest) = keys.iter().position(|(_, once)| once.is_done())
        && let Some((_, once)) = keys.remove(oldest)
    {
        bytes -= once.bytes();
    }
}

/// Forgets who has used no key for longest, if there are too many. False if all of them wait for answers.
fn has_room(all: &mut HashMap<Principal, Used>) -> bool {
    if all.len() < MAX_PRINCIPALS {
        return true;
    }
    let idle = all
        .iter()
        .filter(|(_, used)| used.keys.iter().all(|(_, once)| once.is_done()));
    let oldest = idle.min_by_key(|(_, used)| used.last);
    let oldest = oldest.map(|(principal, _)| principal.clone());
    oldest.is_some_and(|oldest| all.remove(&oldest).is_some())
}

impl Once {
    fn is_done(&self) -> bool {
        self.answer.borrow().is_some()
    }

    fn bytes(&self) -> usize {
        self.answer
            .borrow()
            .as_ref()
            .map_or(0, |kept| kept.body.len())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn once(answer: Option<(StatusCode, usize)>) -> Arc<Once> {
        let kept = answer.map(|(status, bytes)| Kept {
            status,
            headers: HeaderMap::new(),
            body: Bytes::from(vec![0; bytes]),
        });
        let (_, answer) = watch::channel(kept);
        let request = [0; 32];
        Arc::new(Once { request, answer })
    }

    fn used(is_done: bool) -> Used {
        let once = once(is_done.then_some((StatusCode::OK, 0)));
        Used {
            keys: VecDeque::from([("k".to_owned(), once)]),
            last: Instant::now(),
        }
    }

    #[test]
    fn what_said_later_is_asked_again_and_large_answers_go_first() {
        let third = Some((StatusCode::OK, MAX_BYTES / 3 + 1));
        let mut keys = VecDeque::from([
            ("waits".to_owned(), once(None)),
            ("old".to_owned(), once(third)),
            (
                "k".to_owned(),
                once(Some((StatusCode::TOO_MANY_REQUESTS, 1))),
            ),
            ("middle".to_owned(), once(third)),
            ("new".to_owned(), once(third)),
        ]);
        forget_few(&mut keys, "k", &[1; 32]);
        let names = |keys: &VecDeque<(String, Arc<Once>)>| {
            keys.iter()
                .map(|(key, _)| key.clone())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(names(&keys), "waits k middle new", "it is another request");
        forget_few(&mut keys, "k", &[0; 32]);
        assert_eq!(names(&keys), "waits middle new");
    }

    #[test]
    fn whoever_waits_is_remembered_and_the_longest_idle_is_not() {
        let mut all = HashMap::from([(Principal::named("waits"), used(false))]);
        all.insert(Principal::named("idle"), used(true));
        for number in all.len()..MAX_PRINCIPALS {
            all.insert(Principal::named(format!("p{number}")), used(true));
        }
        assert!(has_room(&mut all));
        assert_eq!(all.len(), MAX_PRINCIPALS - 1);
        assert!(!all.contains_key(&Principal::named("idle")));
        assert!(all.contains_key(&Principal::named("waits")));
        let mut waiting: HashMap<_, _> = (0..MAX_PRINCIPALS)
            .map(|number| (Principal::named(format!("p{number}")), used(false)))
            .collect();
        assert!(!has_room(&mut waiting));
    }
}
