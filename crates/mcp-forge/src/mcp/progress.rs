//! Progress of a running turn or build: clients give up after a minute of silence, so there is none.

use std::time::Duration;

use rmcp::{
    RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
    service::Peer,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use crate::text::printable;

/// Longest silence. Clients time out after 60 s.
const EVERY: Duration = Duration::from_secs(8);

/// Shortest time between two notifications.
const AT_MOST_EVERY: Duration = Duration::from_millis(500);

/// How long the last notification may hold up the answer, for a client that reads slowly.
const LAST_SEND: Duration = Duration::from_secs(1);

/// Runs work while telling the client how it goes: at once, then on output, at least every few
/// seconds. Never after the work has ended, since then its answer is on the way.
pub(super) async fn report<T>(
    peer: &Peer<RoleServer>,
    token: ProgressToken,
    mut newest: watch::Receiver<String>,
    work: impl Future<Output = T>,
) -> T {
    let started = Instant::now();
    let mut work = std::pin::pin!(work);
    let first = newest.borrow_and_update().clone();
    let mut sending = Some(Box::pin(notify(peer, token.clone(), Duration::ZERO, first)));
    let mut last = started;
    let mut output_ended = false;
    let ended = loop {
        // The send is polled beside the work, never instead of it: a client that does not read
        // must not stop the turn's clock.
        tokio::select! {
            ended = &mut work => break ended,
            () = async { match &mut sending { Some(send) => send.await, None => std::future::pending().await } } => {
                sending = None;
            }
            () = due(&mut newest, &mut output_ended, last), if sending.is_none() => {
                last = Instant::now();
                let line = newest.borrow_and_update().clone();
                sending = Some(Box::pin(notify(peer, token.clone(), last - started, line)));
            }
        }
    };
    if let Some(send) = sending {
        let _ = timeout(LAST_SEND, send).await;
    }
    ended
}

/// Waits until the next notification is due: on output, but not too often; without, not too late.
async fn due(newest: &mut watch::Receiver<String>, output_ended: &mut bool, last: Instant) {
    tokio::select! {
        () = sleep_until(last + EVERY) => {}
        changed = newest.changed(), if !*output_ended => {
            *output_ended = changed.is_err();
            let next = if changed.is_ok() { last + AT_MOST_EVERY } else { last + EVERY };
            sleep_until(next).await;
        }
    }
}

async fn notify(peer: &Peer<RoleServer>, token: ProgressToken, elapsed: Duration, line: String) {
    let seconds = elapsed.as_secs_f64();
    let message = if line.is_empty() {
        format!("{seconds:.0} s, no output yet")
    } else {
        format!("{seconds:.0} s: {}", printable(&line))
    };
    // A client that is gone is noticed where its requests are read.
    let _ = peer
        .notify_progress(ProgressNotificationParam::new(token, seconds).with_message(message))
        .await;
}
