//! Room for sandboxes: a bounded number runs, a bounded number waits, the rest is told so at once.
//!
//! Room that becomes free goes to whoever has least of it. Of a full queue whoever has most in it
//! gives up a place to one who has less, so that nobody fills it for the others.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::{sync::oneshot, time::timeout};

use super::ServiceError;
use crate::names::Principal;

/// Requests that may wait for each one that may run.
const WAITING_PER_SLOT: usize = 4;

/// How long a request waits for a slot before it is told to come back.
const WAIT_LIMIT: Duration = Duration::from_mins(1);

/// The slots and the queue before them.
#[derive(Debug, Clone)]
pub(super) struct Slots {
    queue: Arc<Mutex<Queue>>,
    count: usize,
    room: usize,
}

/// Room for one sandbox, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Slots,
    principal: Principal,
    /// How long it was waited for.
    pub(super) waited: Duration,
}

#[derive(Debug)]
struct Queue {
    free: usize,
    /// Who has something running or waiting.
    users: BTreeMap<Principal, User>,
    /// Numbers arrivals.
    arrivals: u64,
}

#[derive(Debug, Default)]
struct User {
    running: usize,
    /// The oldest first, each with the number of its arrival.
    waiting: VecDeque<(u64, oneshot::Sender<Slot>)>,
}

impl Slots {
    pub(super) fn new(count: usize) -> Self {
        Self {
            queue: Arc::new(Mutex::new(Queue {
                free: count,
                users: BTreeMap::new(),
                arrivals: 0,
            })),
            count,
            room: count.saturating_mul(WAITING_PER_SLOT),
        }
    }

    /// Waits for a slot. Dropping what it returns frees the slot; dropping the future leaves the
    /// queue.
    pub(super) async fn take(&self, principal: &Principal) -> Result<Slot, ServiceError> {
        let began = Instant::now();
        let mut slot = self.enter(principal)?;
        let waited = timeout(WAIT_LIMIT, &mut slot).await;
        match waited {
            Ok(Ok(mut slot)) => {
                slot.waited = began.elapsed();
                Ok(slot)
            }
            // Its place went to another.
            Ok(Err(_)) => Err(self.busy(format!("{} more wait already", self.room))),
            Err(_) => Err(self.busy(format!("none ended within {} s", WAIT_LIMIT.as_secs()))),
        }
    }

    /// How many run, and how many wait.
    pub(super) fn counts(&self) -> (usize, usize) {
        let queue = self.lock();
        let waiting = queue.users.values().map(|user| user.waiting.len()).sum();
        (self.count - queue.free, waiting)
    }

    /// Takes a place in the queue.
    fn enter(&self, principal: &Principal) -> Result<oneshot::Receiver<Slot>, ServiceError> {
        let (sender, receiver) = oneshot::channel();
        let mut queue = self.lock();
        queue.forget_gone();
        if queue.free == 0 && !queue.makes_room(principal, self.room) {
            return Err(self.busy(format!("{} more wait already", self.room)));
        }
        queue.arrivals += 1;
        let arrival = queue.arrivals;
        let user = queue.users.entry(principal.clone()).or_default();
        user.waiting.push_back((arrival, sender));
        drop(queue);
        self.grant();
        Ok(receiver)
    }

    /// Gives what is free to whoever has least.
    fn grant(&self) {
        let mut granted = Vec::new();
        let mut queue = self.lock();
        while let Some((principal, sender)) = queue.next() {
            let slots = self.clone();
            let slot = Slot {
                slots,
                principal,
                waited: Duration::ZERO,
            };
            granted.push((sender, slot));
        }
        drop(queue);
        for (sender, slot) in granted {
            // Whoever has left meanwhile gives it back: the slot is dropped.
            drop(sender.send(slot));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics while it holds the queue; if it did, the queue is whole all the same.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn busy(&self, why: String) -> ServiceError {
        ServiceError::Busy {
            running: self.count,
            why,
        }
    }
}

impl Queue {
    /// Takes a free slot for the one who has fewest, and of those the one who waits for longest.
    fn next(&mut self) -> Option<(Principal, oneshot::Sender<Slot>)> {
        if self.free == 0 {
            return None;
        }
        let waiting = self.users.iter_mut().filter_map(|(principal, user)| {
            let (arrival, _) = user.waiting.front()?;
            Some(((user.running, *arrival), principal, user))
        });
        let (_, principal, user) = waiting.min_by_key(|(order, ..)| *order)?;
        let (_, sender) = user.waiting.pop_front()?;
        user.running += 1;
        self.free -= 1;
        Some((principal.clone(), sender))
    }

    /// Whether one more of this principal's may wait; another's newest gives up its place if that is
    /// what fairness asks for.
    fn makes_room(&mut self, principal: &Principal, room: usize) -> bool {
        let waiting = |user: &User| user.waiting.len();
        if self.users.values().map(waiting).sum::<usize>() < room {
            return true;
        }
        let own = self.users.get(principal).map_or(0, waiting);
        let most = self
            .users
            .values_mut()
            .max_by_key(|user| user.waiting.len());
        match most {
            // With one more it must not have more than the other with one less.
            Some(most) if most.waiting.len() > own + 1 => most.waiting.pop_back().is_some(),
            _ => false,
        }
    }

    /// Drops the places of those who have left, and whoever has nothing here.
    fn forget_gone(&mut self) {
        for user in self.users.values_mut() {
            user.waiting.retain(|(_, sender)| !sender.is_closed());
        }
        self.users
            .retain(|_, user| user.running > 0 || !user.waiting.is_empty());
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut queue = self.slots.lock();
        queue.free += 1;
        if let Some(user) = queue.users.get_mut(&self.principal) {
            user.running -= 1;
        }
        queue.forget_gone();
        drop(queue);
        self.slots.grant();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use super::*;

    fn named(name: &str) -> Principal {
        Principal::named(name)
    }

    /// Those of these that have their slot now.
    async fn ready<F: Future<Output = Result<Slot, ServiceError>> + Unpin>(
        waiting: &mut Vec<(&'static str, F)>,
    ) -> Vec<(&'static str, Slot)> {
        let mut ready = Vec::new();
        let mut place = 0;
        while place < waiting.len() {
            let polled = timeout(Duration::from_millis(1), &mut waiting[place].1).await;
            match polled {
                Ok(slot) => ready.push((waiting.remove(place).0, slot.unwrap())),
                Err(_) => place += 1,
            }
        }
        ready
    }

    #[tokio::test]
    async fn room_goes_to_whoever_has_least_of_it() {
        let slots = Slots::new(2);
        let (ada, bob) = (named("ada"), named("bob"));
        let first = slots.take(&ada).await.unwrap();
        let second = slots.take(&ada).await.unwrap();
        let mut waiting = vec![
            ("ada", Box::pin(slots.take(&ada))),
            ("ada", Box::pin(slots.take(&ada))),
            ("bob", Box::pin(slots.take(&bob))),
        ];
        assert!(ready(&mut waiting).await.is_empty());
        assert_eq!(slots.counts(), (2, 3));
        // ada waits for longer, and has one running still.
        drop(first);
        let got = ready(&mut waiting).await;
        assert_eq!(got.iter().map(|(who, _)| *who).collect::<Vec<_>>(), ["bob"]);
        assert!(got[0].1.waited > Duration::ZERO);
        drop(second);
        let got = ready(&mut waiting).await;
        assert_eq!(got.iter().map(|(who, _)| *who).collect::<Vec<_>>(), ["ada"]);
    }

    #[tokio::test]
    async fn whoever_fills_the_queue_makes_room_for_another() {
        let slots = Slots::new(1);
        let (ada, bob) = (named("ada"), named("bob"));
        let running = slots.take(&ada).await.unwrap();
        let mut flood: Vec<_> = (0..4).map(|_| slots.enter(&ada).unwrap()).collect();
        assert!(slots.enter(&ada).is_err(), "the queue is full");
        let bobs = slots.enter(&bob).unwrap();
        assert!(
            flood.pop().unwrap().await.is_err(),
            "the newest gave up its place"
        );
        let _second = slots.enter(&bob).unwrap();
        assert!(slots.enter(&bob).is_err(), "both have two places now");
        drop(running);
        // Neither has anything running: ada came first. Then bob has less.
        let first = flood.remove(0).await.unwrap();
        let second = flood.remove(0);
        drop(first);
        assert_eq!(second.await.unwrap().principal, ada);
        assert_eq!(bobs.await.unwrap().principal, bob);
    }

    #[tokio::test]
    async fn whoever_left_takes_no_room() {
        let slots = Slots::new(1);
        let ada = named("ada");
        let running = slots.take(&ada).await.unwrap();
        for _ in 0..100 {
            let waiting = slots.enter(&ada).unwrap();
            drop(waiting);
        }
        let waiting = slots.enter(&ada).unwrap();
        drop(running);
        drop(waiting.await.unwrap());
        assert_eq!(slots.counts(), (0, 0));
        assert!(slots.lock().users.is_empty());
        drop(slots.take(&ada).await.unwrap());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn many_at_once_lose_and_double_nothing() {
        let slots = Slots::new(3);
        let tasks = (0..60).map(|number| {
            let slots = slots.clone();
            tokio::spawn(async move {
                for _ in 0..50 {
                    let taken = slots.take(&named(&format!("p{}", number % 5))).await;
                    assert!(slots.counts().0 <= 3);
                    tokio::task::yield_now().await;
                    drop(taken);
                }
            })
        });
        for task in futures_util::future::join_all(tasks).await {
            task.unwrap();
        }
        assert_eq!(slots.counts(), (0, 0));
    }
}
