//! The launch socket: one message in with three descriptors, reports out, end of file means stop.
//!
//! A message is a big-endian `u32` length and that many bytes of JSON. The server's end of this
//! socket is the sandbox's life line: when it closes, however, the sandbox dies.

use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::de::DeserializeOwned;

use crate::{
    descriptors::Streams,
    error::JailError,
    spec::{JailSpec, Report},
};

/// Largest launch message, in bytes. The runner's source is the bulk of one.
pub const MAX_LAUNCH_BYTES: usize = 4 << 20;

/// Largest report, in bytes.
pub const MAX_REPORT_BYTES: usize = 256 << 10;

/// Frames a message for the launch socket.
///
/// # Errors
///
/// It cannot be written as JSON, or is larger than four gigabytes.
pub fn frame(message: &impl serde::Serialize) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(message)?;
    let length =
        u32::try_from(body.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok([&length.to_be_bytes()[..], &body].concat())
}

/// Receives the spec and the program's descriptors: control, stdout, stderr, in this order.
///
/// # Errors
///
/// The peer sent something else, or went away.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> Result<(JailSpec, Streams), JailError> {
    let (spec, descriptors) = receive_message(socket)?;
    let [control, stdout, stderr] = exactly(descriptors)?;
    let streams = Streams {
        control,
        stdout,
        stderr,
    };
    Ok((spec, streams))
}

/// Receives one message and the descriptors with it, at most four.
///
/// # Errors
///
/// The peer sent something else, or went away.
pub(crate) fn receive_message<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> Result<(T, Vec<OwnedFd>), JailError> {
    let broken = |message: &str| JailError::Launch(message.to_owned());
    let (mut bytes, descriptors) =
        receive_first(socket).map_err(|error| JailError::Launch(error.to_string()))?;
    let header = bytes
        .first_chunk::<4>()
        .ok_or_else(|| broken("it is shorter than its header"))?;
    let length = usize::try_from(u32::from_be_bytes(*header)).unwrap_or(usize::MAX);
    if length > MAX_LAUNCH_BYTES {
        return Err(broken("it is too long"));
    }
    bytes.drain(..4);
    if bytes.len() > length {
        return Err(broken("bytes follow it"));
    }
    let received = bytes.len();
    bytes.resize(length, 0);
    let mut stream = stream_of(socket).map_err(|error| JailError::Launch(error.to_string()))?;
    stream
        .read_exact(&mut bytes[received..])
        .map_err(|error| JailError::Launch(error.to_string()))?;
    let spec =
        serde_json::from_slice(&bytes).map_err(|error| JailError::Launch(error.to_string()))?;
    Ok((spec, descriptors))
}

/// The descriptors of a message that has so many.
///
/// # Errors
///
/// There are more, or fewer.
pub(crate) fn exactly<const N: usize>(
    descriptors: Vec<OwnedFd>,
) -> Result<[OwnedFd; N], JailError> {
    descriptors.try_into().map_err(|_| {
        JailError::Launch("it did not bring the descriptors that belong to it".to_owned())
    })
}

/// What the server says on a life line after the launch, if it says anything.
pub(crate) enum Word {
    /// Interrupt the program, as Ctrl-C would.
    Interrupt,
    /// Code is about to run in a sandbox that was made ahead.
    Used,
    /// End the sandbox: it asked, is gone, or broke the protocol.
    Stop,
}

/// The byte that asks for an interrupt.
pub const INTERRUPT: u8 = b'i';

/// The byte that says that a sandbox is used from now on.
pub const USED: u8 = b'u';

/// Reads one word of the server, which [`poll`](rustix::event::poll) has announced.
pub(crate) fn word(socket: BorrowedFd<'_>) -> Word {
    let mut byte = [0];
    match rustix::net::recv(socket, &mut byte, RecvFlags::DONTWAIT) {
        Ok((1, _)) if byte == [INTERRUPT] => Word::Interrupt,
        Ok((1, _)) if byte == [USED] => Word::Used,
        _ => Word::Stop,
    }
}

/// Sends one report. A server that is gone needs none.
pub(crate) fn report(socket: BorrowedFd<'_>, report: &Report) {
    if let (Ok(bytes), Ok(mut stream)) = (frame(report), stream_of(socket)) {
        stream.write_all(&bytes).ok();
    }
}

/// Sends one report and a descriptor with it, to a server that asked for one.
///
/// # Errors
///
/// It could not be sent: the server is gone, or will not get what it waits for.
pub(crate) fn report_with(
    socket: BorrowedFd<'_>,
    report: &Report,
    descriptor: BorrowedFd<'_>,
) -> io::Result<()> {
    let bytes = frame(report)?;
    // With the header: a reader that has asked for no descriptor reads past it, and it is closed.
    let (head, body) = bytes.split_at(4);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let flags = SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(head)], &mut control, flags)?;
    if sent != head.len() {
        return Err(io::Error::from(io::ErrorKind::WriteZero));
    }
    stream_of(socket)?.write_all(body)
}

fn receive_first(socket: BorrowedFd<'_>) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        flags,
    )?;
    bytes.truncate(received.bytes);
    let descriptors = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    Ok((bytes, descriptors))
}

fn stream_of(socket: BorrowedFd<'_>) -> io::Result<UnixStream> {
    Ok(UnixStream::from(socket.try_clone_to_owned()?))
}
