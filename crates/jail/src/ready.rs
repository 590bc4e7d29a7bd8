//! What a keeper of many sandboxes waits for: an epoll instance whose entries are named.

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::event::{
    Timespec,
    epoll::{self, CreateFlags, EventData, EventFlags},
};

/// Events taken at once. More wait for the next look.
const MOST_EVENTS: usize = 64;

/// The instance.
pub(crate) struct Ready(OwnedFd);

impl Ready {
    /// Waits for nothing yet.
    ///
    /// # Errors
    ///
    /// The kernel's answer.
    pub(crate) fn new() -> rustix::io::Result<Self> {
        epoll::create(CreateFlags::CLOEXEC).map(Self)
    }

    /// Waits for this descriptor to be readable or closed from now on, under this name.
    ///
    /// # Errors
    ///
    /// The kernel's answer.
    pub(crate) fn add(&self, descriptor: impl AsFd, name: u64) -> rustix::io::Result<()> {
        let flags = EventFlags::IN;
        epoll::add(&self.0, descriptor, EventData::new_u64(name), flags)
    }

    /// Stops waiting for a descriptor of which a copy may live on.
    pub(crate) fn remove(&self, descriptor: impl AsFd) {
        epoll::delete(&self.0, descriptor).ok();
    }

    /// The names of what is ready. Empty when the time is over.
    pub(crate) fn wait(&self, time: Option<Duration>) -> Vec<u64> {
        let time = time.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        let mut space = [MaybeUninit::uninit(); MOST_EVENTS];
        match epoll::wait(&self.0, &mut space[..], time.as_ref()) {
            Ok((events, _)) => events.iter().map(|event| event.data.u64()).collect(),
            Err(_) => Vec::new(),
        }
    }
}
