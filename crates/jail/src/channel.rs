//! The channel between keeper and init: whole messages, and an end when the other side dies.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Largest message, in bytes.
const MAX_MESSAGE_BYTES: usize = 64 << 10;

/// One end.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

impl Channel {
    /// Two connected ends.
    ///
    /// # Errors
    ///
    /// The kernel's answer.
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Self(one), Self(other)))
    }

    /// Sends one message. A peer that is gone needs none.
    pub(crate) fn send(&self, message: &[u8]) {
        rustix::net::send(&self.0, message, SendFlags::NOSIGNAL).ok();
    }

    /// Waits for one message; `None` when the other end is closed.
    pub(crate) fn receive(&self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; MAX_MESSAGE_BYTES];
        loop {
            match rustix::net::recv(&self.0, &mut buffer[..], RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                Ok((0, _)) | Err(_) => return None,
                Ok((length, _)) => {
                    buffer.truncate(length);
                    return Some(buffer);
                }
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
