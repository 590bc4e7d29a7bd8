//! The channel between keeper and init: whole messages, and an end when the other side dies.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    },
};

/// Largest message, in bytes.
pub(crate) const MAX_MESSAGE_BYTES: usize = 64 << 10;

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

    /// Sends one message with at most four descriptors.
    ///
    /// # Errors
    ///
    /// The peer is gone.
    pub(crate) fn send_with(
        &self,
        message: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(descriptors));
        rustix::net::sendmsg(
            &self.0,
            &[IoSlice::new(message)],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }

    /// Waits for one message of `most` bytes that may bring a descriptor; `None` when the other end is
    /// closed.
    pub(crate) fn receive_with(&self, most: usize) -> Option<(Vec<u8>, Option<OwnedFd>)> {
        let mut bytes = vec![0; most];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(
            &self.0,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            flags,
        )
        .ok()?;
        bytes.truncate(received.bytes);
        let descriptor = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .next();
        (received.bytes > 0).then_some((bytes, descriptor))
    }

    /// Ends it for the other side, whoever else holds this end.
    pub(crate) fn close(&self) {
        rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both).ok();
    }

    /// The end itself, to give away.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Whether [`Self::receive`] would not wait: a message is there, or the other end is closed.
    pub(crate) fn is_ready(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&Timespec::default())) == Ok(1)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_on_which_nothing_was_said_is_not_ready() {
        let (ours, theirs) = Channel::pair().unwrap();
        assert!(!ours.is_ready());
        theirs.send(b"word");
        assert!(ours.is_ready());
        assert_eq!(ours.receive().as_deref(), Some(&b"word"[..]));
        assert!(!ours.is_ready());
        drop(theirs);
        assert!(ours.is_ready() && ours.receive().is_none());
    }
}
