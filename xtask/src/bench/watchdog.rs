//! Ends contenders that hang, without standing between them and the clock.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::process::{command, succeeds};

/// How often it looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Knows which process groups must end by when. Clones are the same watchdog.
#[derive(Debug, Clone)]
pub(crate) struct Watchdog(Arc<Mutex<BTreeMap<u32, Instant>>>);

/// Until this is dropped, a process group has to end by itself.
#[derive(Debug)]
pub(crate) struct Watched<'a> {
    watchdog: &'a Watchdog,
    pid: u32,
}

impl Watchdog {
    /// Starts a thread that lives as long as the program.
    pub(crate) fn start() -> Self {
        let watchdog = Self(Arc::default());
        let looks = watchdog.clone();
        thread::spawn(move || {
            loop {
                thread::sleep(INTERVAL);
                looks.end_late();
            }
        });
        watchdog
    }

    /// Kills the process group of this leader if what is returned is not dropped within `limit`.
    pub(crate) fn watch(&self, pid: u32, limit: Duration) -> Watched<'_> {
        self.entries().insert(pid, Instant::now() + limit);
        Watched {
            watchdog: self,
            pid,
        }
    }

    fn end_late(&self) {
        let now = Instant::now();
        let late: Vec<u32> = self
            .entries()
            .iter()
            .filter(|(_, deadline)| **deadline < now)
            .map(|(pid, _)| *pid)
            .collect();
        for pid in late {
            self.entries().remove(&pid);
            end_group(pid);
        }
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.watchdog.entries().remove(&self.pid);
    }
}

/// Kills a process group whose leader is our unreaped child.
pub(crate) fn end_group(pid: u32) {
    succeeds(command("kill").args(["-KILL", "--", &format!("-{pid}")]));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;

    #[test]
    fn what_hangs_is_ended() {
        let watchdog = Watchdog::start();
        let mut child = command("sleep")
            .arg("1000")
            .process_group(0)
            .spawn()
            .unwrap();
        let _watched = watchdog.watch(child.id(), Duration::ZERO);
        assert!(!child.wait().unwrap().success());
    }
}
