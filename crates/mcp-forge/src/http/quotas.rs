//! What one principal may take of the server, so that something is left for the others.
//!
//! Who is over a quota is told so at once and when to come back; nothing of theirs waits in a queue.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use tokio::time::Instant;

use super::{Caller, Problem};
use crate::{config::ServerConfig, names::Principal};

/// Streams without an end that one principal may have open.
const MAX_STREAMS: usize = 200;

/// Seconds of quota that may be used in one go.
const BURST: f64 = 10.0;

/// After so long every rate is whole again, however slow.
const WHOLE_AGAIN: Duration = Duration::from_mins(1);

/// So many accounts are kept whether they are used or not.
const KEPT_ACCOUNTS: usize = 1_000;

/// The accounts of all principals. Issuers of tokens may name any number of them, so those go that
/// nobody has used for a while: they would begin as they are.
#[derive(Debug)]
pub(super) struct Quotas {
    per_minute: u32,
    in_flight: usize,
    accounts: Mutex<HashMap<Principal, Arc<Account>>>,
}

#[derive(Debug)]
struct Account {
    bucket: Mutex<Bucket>,
    in_flight: Arc<AtomicUsize>,
    streams: Arc<AtomicUsize>,
}

/// Requests that may come now, and since when they were not counted.
#[derive(Debug)]
struct Bucket {
    left: f64,
    counted: Instant,
}

/// Something that is counted until it is dropped.
#[derive(Debug)]
pub(super) struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Quotas {
    pub(super) fn new(config: &ServerConfig) -> Self {
        Self {
            per_minute: config.requests_per_minute,
            in_flight: config.requests_in_flight,
            accounts: Mutex::default(),
        }
    }

    /// Lets a request in, which counts until the value is dropped.
    pub(super) fn admit(&self, caller: &Caller) -> Result<Counted, Problem> {
        let per_minute = caller.quotas.requests_per_minute.unwrap_or(self.per_minute);
        let in_flight = caller.quotas.requests_in_flight.unwrap_or(self.in_flight);
        let account = self.account(&caller.principal);
        if let Err(seconds) = account.take(f64::from(per_minute) / 60.0) {
            let detail = format!(
                "You have sent more than {per_minute} requests a minute; the next one may come in {seconds} s."
            );
            return Err(too_many(detail, seconds));
        }
        count(&account.in_flight, in_flight).ok_or_else(|| {
            let detail = format!(
                "{in_flight} of your requests run already, as many as may; wait for an answer first."
            );
            too_many(detail, 1)
        })
    }

    /// Lets a stream be open that has no end, until the value is dropped.
    pub(super) fn open_stream(&self, caller: &Caller) -> Result<Counted, Problem> {
        let account = self.account(&caller.principal);
        count(&account.streams, MAX_STREAMS).ok_or_else(|| {
            let detail = format!("{MAX_STREAMS} of your streams are open already; close some.");
            too_many(detail, 1)
        })
    }

    fn account(&self, principal: &Principal) -> Arc<Account> {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        // Only before it would grow, which is when there are twice as many: to look at all is work.
        if accounts.len() >= KEPT_ACCOUNTS && accounts.len() == accounts.capacity() {
            accounts.retain(|_, account| Arc::strong_count(account) > 1 || account.is_used());
        }
        let account = accounts.entry(principal.clone()).or_insert_with(|| {
            Arc::new(Account {
                bucket: Mutex::new(Bucket {
                    left: f64::INFINITY,
                    counted: Instant::now(),
                }),
                in_flight: Arc::default(),
                streams: Arc::default(),
            })
        });
        Arc::clone(account)
    }
}

impl Account {
    /// Takes one request of so many a second, or says after how many seconds there is one.
    fn take(&self, a_second: f64) -> Result<(), u64> {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let grown = (now - bucket.counted).as_secs_f64() * a_second;
        bucket.counted = now;
        // One at least, however few they are a minute.
        bucket.left = (bucket.left + grown).min((BURST * a_second).max(1.0));
        if bucket.left >= 1.0 {
            bucket.left -= 1.0;
            return Ok(());
        }
        let seconds = ((1.0 - bucket.left) / a_second).ceil();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 1 to 60"
        )]
        Err(seconds.clamp(1.0, 60.0) as u64)
    }

    /// Whether it is another than a new one: something runs, or its rate is not whole again.
    fn is_used(&self) -> bool {
        let bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.counted.elapsed() < WHOLE_AGAIN
            || self.in_flight.load(Ordering::Relaxed) > 0
            || self.streams.load(Ordering::Relaxed) > 0
    }
}

fn count(counter: &Arc<AtomicUsize>, most: usize) -> Option<Counted> {
    counter
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |running| {
            (running < most).then_some(running + 1)
        })
        .ok()?;
    Some(Counted(Arc::clone(counter)))
}

fn too_many(detail: String, seconds: u64) -> Problem {
    Problem::new(StatusCode::TOO_MANY_REQUESTS, detail).again_in(seconds)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::response::IntoResponse;

    use super::*;

    fn caller(name: &str, requests_per_minute: Option<u32>) -> Caller {
        Caller {
            principal: Principal::named(name),
            scopes: BTreeSet::new(),
            quotas: crate::config::OwnQuotas {
                requests_per_minute,
                ..Default::default()
            },
            credential: crate::identity::Credential::Listed,
        }
    }

    fn quotas() -> Quotas {
        Quotas {
            per_minute: 60,
            in_flight: 2,
            accounts: Mutex::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_principal_gets_its_rate_and_no_more() {
        let quotas = quotas();
        let (ada, bob) = (caller("ada", None), caller("bob", None));
        let used = |who: &Caller| (0..1000).take_while(|_| quotas.admit(who).is_ok()).count();
        assert_eq!(used(&ada), 10);
        assert_eq!(used(&bob), 10, "another's use costs nothing");
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(used(&ada), 3);
        tokio::time::advance(Duration::from_hours(1)).await;
        assert_eq!(used(&ada), 10);
        let slow = caller("slow", Some(1));
        assert_eq!(used(&slow), 1);
        let refused = quotas.admit(&slow).unwrap_err().into_response();
        assert_eq!(refused.headers()["retry-after"], "60");
        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(used(&slow), 1);
    }

    #[tokio::test]
    async fn what_runs_is_counted_until_it_ends() {
        let quotas = quotas();
        let ada = caller("ada", None);
        let (first, _second) = (quotas.admit(&ada).unwrap(), quotas.admit(&ada).unwrap());
        assert!(quotas.admit(&ada).is_err());
        assert!(quotas.admit(&caller("bob", None)).is_ok());
        drop(first);
        assert!(quotas.admit(&ada).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn accounts_that_nobody_uses_are_forgotten_and_others_never() {
        let quotas = quotas();
        let busy = caller("busy", None);
        let _running = quotas.admit(&busy).unwrap();
        let size = || quotas.accounts.lock().unwrap().len();
        let mut most = 0;
        for number in 0..50_000 {
            // A hundred a second, one request each.
            drop(quotas.admit(&caller(&number.to_string(), None)).unwrap());
            tokio::time::advance(Duration::from_millis(10)).await;
            most = most.max(size());
        }
        // Those of a minute and as many more, twice for the room that a map takes.
        assert!(most < 4 * 6_000, "{most}");
        let accounts = quotas.accounts.lock().unwrap();
        assert_eq!(
            accounts[&busy.principal].in_flight.load(Ordering::Relaxed),
            1
        );
    }
}
