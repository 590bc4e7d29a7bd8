//! How much CPU time each principal has used in the last hour, and how much it may use.
//!
//! A turn begins while less than the quota is used, and is not cut when it goes over: what it took too
//! much is waited for afterwards, since it stays in the hour that is looked at.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;

use super::{ExecuteResponse, Service, ServiceError, ledger::Ledger};
use crate::names::Principal;

/// Principals that are counted. Of more, those are forgotten that used least.
const MAX_ACCOUNTS: usize = 10_000;

/// Minutes that are looked at: the one that runs, and the hour before it.
const MINUTES: usize = 61;

/// A principal has used its quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overdrawn {
    /// CPU seconds that it may use in an hour.
    pub(super) per_hour: u32,
    /// Seconds until there is some again.
    pub(super) wait_s: u64,
}

/// The accounts of the principals that have a quota.
#[derive(Debug)]
pub(super) struct Accounts {
    began: Instant,
    accounts: Mutex<HashMap<Principal, Account>>,
}

#[derive(Debug)]
struct Account {
    per_hour: u32,
    /// The newest minute that is written to.
    minute: u64,
    /// Milliseconds used in each minute; one's place is its number modulo [`MINUTES`].
    used_ms: Box<[u64; MINUTES]>,
}

impl Service {
    /// Lets a principal use so many CPU seconds in an hour from now on, or as many as it likes.
    pub fn limit_cpu(&self, principal: &Principal, seconds: Option<u32>) {
        self.ledger.limit(principal, seconds);
    }

    /// Whether a principal has CPU time left to begin something.
    pub(super) fn may_use_cpu(&self, principal: &Principal) -> Result<(), ServiceError> {
        self.ledger
            .check(principal)
            .map_err(|overdrawn| ServiceError::CpuQuota {
                per_hour: overdrawn.per_hour,
                wait_s: overdrawn.wait_s,
            })
    }

    /// Charges a turn that nobody waits for any more with the most that it can have used, if the engine
    /// cannot tell what it did use. Ended otherwise, it is [answered](Abandoned::answered).
    pub(super) fn abandoned<'a>(
        &'a self,
        principal: &'a Principal,
        cpu_quota: u64,
    ) -> Abandoned<'a> {
        Abandoned {
            ledger: &self.ledger,
            principal,
            cpu_quota,
            began: Instant::now(),
            is_answered: false,
        }
    }

    /// Charges a turn whose use the engine cannot tell with the most that it can have used.
    pub(super) fn charge_unmeasured(&self, principal: &Principal, response: &ExecuteResponse) {
        if response.usage.cpu_ms.is_none() {
            let quota = response.limits.cpu_quota;
            self.ledger.charge(
                principal,
                response.usage.wall_ms.saturating_mul(quota) / 100_000,
            );
        }
    }
}

/// A turn, until somebody has its answer.
pub(super) struct Abandoned<'a> {
    ledger: &'a Ledger,
    principal: &'a Principal,
    cpu_quota: u64,
    began: Instant,
    is_answered: bool,
}

impl Abandoned<'_> {
    pub(super) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        if !self.is_answered && self.ledger.is_blind() {
            let wall_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
            let cpu_ms = wall_ms.saturating_mul(self.cpu_quota) / 100_000;
            self.ledger.charge(self.principal, cpu_ms);
        }
    }
}

impl Default for Accounts {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            accounts: Mutex::default(),
        }
    }
}

impl Accounts {
    /// Opens an account, or sets its quota anew. Without one, what was used is remembered all the
    /// same: another token of the principal may have one.
    pub(super) fn limit(&self, principal: &Principal, per_hour: Option<u32>) {
        let minute = self.seconds() / 60;
        let mut accounts = self.lock();
        let Some(per_hour) = per_hour else {
            if let Some(account) = accounts.get_mut(principal) {
                account.per_hour = u32::MAX;
            }
            return;
        };
        if let Some(account) = accounts.get_mut(principal) {
            account.per_hour = per_hour;
            return;
        }
        if accounts.len() >= MAX_ACCOUNTS {
            make_room(&mut accounts, minute);
        }
        let account = Account {
            per_hour,
            minute,
            used_ms: Box::new([0; MINUTES]),
        };
        accounts.insert(principal.clone(), account);
    }

    pub(super) fn has(&self, principal: &Principal) -> bool {
        self.lock().contains_key(principal)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Charges whoever has an account.
    pub(super) fn charge(&self, principal: &Principal, cpu_ms: u64) {
        let minute = self.seconds() / 60;
        if let Some(account) = self.lock().get_mut(principal) {
            account.advance(minute);
            let used = &mut account.used_ms[place(minute)];
            *used = used.saturating_add(cpu_ms);
        }
    }

    /// Whether something is left.
    pub(super) fn check(&self, principal: &Principal) -> Result<(), Overdrawn> {
        let now = self.seconds();
        let mut accounts = self.lock();
        let Some(account) = accounts.get_mut(principal) else {
            return Ok(());
        };
        account.advance(now / 60);
        match account.wait(now) {
            0 => Ok(()),
            wait_s => Err(Overdrawn {
                per_hour: account.per_hour,
                wait_s,
            }),
        }
    }

    fn seconds(&self) -> u64 {
        self.began.elapsed().as_secs()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Principal, Account>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Account {
    /// Forgets what is too old at that minute.
    fn advance(&mut self, minute: u64) {
        let passed = minute.saturating_sub(self.minute);
        for newer in 0..passed.min(MINUTES as u64) {
            self.used_ms[place(minute - newer)] = 0;
        }
        self.minute = self.minute.max(minute);
    }

    fn used(&self) -> u64 {
        self.used_ms
            .iter()
            .fold(0, |sum, used| sum.saturating_add(*used))
    }

    /// Seconds until less than the quota was used in the last hour.
    fn wait(&self, now: u64) -> u64 {
        let quota = u64::from(self.per_hour) * 1000;
        let mut left = self.used();
        if left < quota {
            return 0;
        }
        for age in (0..MINUTES as u64).rev() {
            let Some(minute) = self.minute.checked_sub(age) else {
                continue;
            };
            left = left.saturating_sub(self.used_ms[place(minute)]);
            if left < quota {
                let free_at = (minute + MINUTES as u64) * 60;
                return free_at.saturating_sub(now).max(1);
            }
        }
        // Without all of it there is some: the loop has ended before.
        60 * MINUTES as u64
    }
}

/// Forgets whoever has used nothing for an hour, or else whoever has used least.
fn make_room(accounts: &mut HashMap<Principal, Account>, minute: u64) {
    accounts.retain(|_, account| {
        account.advance(minute);
        account.used() > 0
    });
    if accounts.len() < MAX_ACCOUNTS {
        return;
    }
    let least = accounts.iter().min_by_key(|(_, account)| account.used());
    let least = least.map(|(principal, _)| principal.clone());
    if let Some(least) = least {
        accounts.remove(&least);
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a remainder below the number of minutes"
)]
const fn place(minute: u64) -> usize {
    (minute % MINUTES as u64) as usize
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn named(name: &str) -> Principal {
        Principal::named(name)
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_used_counts_for_an_hour_and_for_nobody_else() {
        let accounts = Accounts::default();
        let (ada, bob, eve) = (named("ada"), named("bob"), named("eve"));
        accounts.limit(&ada, Some(10));
        accounts.limit(&bob, Some(10));
        accounts.charge(&ada, 9_999);
        assert_eq!(accounts.check(&ada), Ok(()));
        tokio::time::advance(Duration::from_mins(30)).await;
        accounts.charge(&ada, 5_000);
        let refused = accounts.check(&ada).unwrap_err();
        // Half an hour later what was used first is forgotten, and there is some.
        assert_eq!((refused.per_hour, refused.wait_s), (10, 31 * 60));
        assert_eq!(accounts.check(&bob), Ok(()));
        accounts.charge(&eve, 1 << 40);
        assert_eq!(accounts.check(&eve), Ok(()), "nobody counts it");
        tokio::time::advance(Duration::from_secs(refused.wait_s - 1)).await;
        assert_eq!(accounts.check(&ada).unwrap_err().wait_s, 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(accounts.check(&ada), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn one_turn_over_the_quota_is_waited_for_and_a_larger_quota_helps_at_once() {
        let accounts = Accounts::default();
        let ada = named("ada");
        accounts.limit(&ada, Some(10));
        accounts.charge(&ada, 25_000);
        assert_eq!(accounts.check(&ada).unwrap_err().wait_s, 61 * 60);
        accounts.limit(&ada, Some(26));
        assert_eq!(accounts.check(&ada), Ok(()));
        accounts.limit(&ada, Some(10));
        assert!(accounts.check(&ada).is_err());
        accounts.limit(&ada, None);
        assert_eq!(accounts.check(&ada), Ok(()), "its quota was taken away");
        let eve = named("eve");
        accounts.limit(&eve, None);
        assert!(!accounts.has(&eve), "nobody limits it");
        tokio::time::advance(Duration::from_hours(200)).await;
        accounts.limit(&ada, Some(1));
        assert_eq!(accounts.check(&ada), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn principals_without_end_take_no_memory_without_end() {
        let accounts = Accounts::default();
        let ada = named("ada");
        accounts.limit(&ada, Some(1));
        accounts.charge(&ada, 5_000);
        for number in 0..2 * MAX_ACCOUNTS {
            let one = named(&format!("p{number}"));
            accounts.limit(&one, Some(1));
            if number % 2 == 0 {
                accounts.charge(&one, 10);
            }
        }
        assert!(accounts.lock().len() <= MAX_ACCOUNTS);
        assert!(accounts.check(&ada).is_err(), "whoever is over stays known");
    }

    proptest! {
        /// The ring against a list of all charges.
        #[test]
        fn the_window_is_the_last_hour_and_the_minute_that_runs(
            steps in prop::collection::vec((0_u64..5000, 0_u64..20_000), 1..60)
        ) {
            let mut account = Account { per_hour: 30, minute: 0, used_ms: Box::new([0; MINUTES]) };
            let (mut now, mut charges) = (0, Vec::new());
            for (passed, used) in steps {
                now += passed;
                account.advance(now / 60);
                account.used_ms[place(now / 60)] += used;
                charges.push((now / 60, used));
                let at = |second: u64| charges.iter()
                    .filter(|(minute, _)| minute + MINUTES as u64 > second / 60)
                    .map(|(_, used)| used).sum::<u64>();
                prop_assert_eq!(account.used(), at(now));
                let wait = account.wait(now);
                prop_assert_eq!(wait == 0, at(now) < 30_000);
                if wait > 0 {
                    prop_assert!(at(now + wait) < 30_000);
                    prop_assert!(at(now + wait - 1) >= 30_000);
                }
            }
        }
    }
}
