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

/// Processes to be moved, and what is to be done then.
pub(crate) struct Move {
    /// Each process, and the `cgroup.procs` of each hierarchy that it is to enter.
    pub(crate) moves: Vec<(i32, Arc<[File]>)>,
    /// Is told whether all are where they belong.
    pub(crate) then: Box<dyn FnOnce(bool) + Send>,
}

impl Move {
    fn make(self) {
        let enter = |(pid, entrances): &(i32, Arc<[File]>)| {
            let number = pid.to_string();
            entrances
                .iter()
                .try_for_each(|mut entrance| entrance.write_all(number.as_bytes()))
        };
        let moved = self.moves.iter().try_for_each(enter);
        (self.then)(moved.is_ok());
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
        thread.spawn(move || receiver.into_iter().for_each(Move::make))?;
        Ok(Self(sender))
    }

    /// Moves them, soon.
    pub(crate) fn request(&self, request: Move) {
        if let Err(refused) = self.0.send(request) {
            // The thread is gone: slow is better than never.
            refused.0.make();
        }
    }
}
