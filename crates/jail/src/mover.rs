//! Moves forks into their cgroups, on a thread of its own.
//!
//! A migration waits for every processor to pass through the scheduler, 8 to 30 ms on an idle
//! host, unless another has just been done. The keeper has others to look after meanwhile.

use std::{
    fs::File,
    io::{self, Write},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use crate::channel::Channel;

/// One fork, and what it is to enter.
pub(crate) struct Move {
    /// The `cgroup.procs` of each hierarchy.
    pub(crate) entrances: Arc<[File]>,
    pub(crate) pid: i32,
    /// To its init, which does nothing before it has a byte from here.
    pub(crate) report: Arc<Channel>,
}

impl Move {
    /// Lets the fork go on if it is where it belongs. One that is not ends.
    fn make(&self) {
        let number = self.pid.to_string();
        let enter = |mut entrance: &File| entrance.write_all(number.as_bytes());
        if self.entrances.iter().try_for_each(enter).is_ok() {
            self.report.send(&[1]);
        } else {
            self.report.close();
        }
    }
}

/// The thread, and the way to it. It ends with the last handle.
pub(crate) struct Mover(Sender<Move>);

impl Mover {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The kernel gives no thread.
    pub(crate) fn start() -> io::Result<Self> {
        let (sender, receiver): (Sender<Move>, Receiver<Move>) = channel();
        let thread = thread::Builder::new().name("mover".to_owned());
        thread.spawn(move || receiver.iter().for_each(|request| request.make()))?;
        Ok(Self(sender))
    }

    /// Moves one fork, soon.
    pub(crate) fn request(&self, request: Move) {
        if let Err(refused) = self.0.send(request) {
            // The thread is gone: slow is better than never.
            refused.0.make();
        }
    }
}
