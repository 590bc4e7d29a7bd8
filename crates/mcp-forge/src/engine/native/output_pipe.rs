//! The server's end of a sandbox's output: a pipe that is asked first and waited for second.
//!
//! The reactor hears of bytes some time after they are there. Who reads "what has been written by
//! now" must not depend on that: a read that would wait means that the pipe is empty.

use std::{
    io,
    os::fd::OwnedFd,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, ReadBuf},
    net::unix::pipe,
};

/// The end to read from.
#[derive(Debug)]
pub(super) struct OutputPipe(pipe::Receiver);

/// A pipe whose write end is for the sandbox: blocking, as programs expect.
pub(super) fn output_pipe() -> io::Result<(OwnedFd, OutputPipe)> {
    let (sender, receiver) = pipe::pipe()?;
    Ok((sender.into_blocking_fd()?, OutputPipe(receiver)))
}

impl AsyncRead for OutputPipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Ok(length) = rustix::io::read(&self.0, buffer.initialize_unfilled()) {
            buffer.advance(length);
            return Poll::Ready(Ok(()));
        }
        // Empty, or broken: waits, or fails, as any other pipe.
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn what_was_written_is_there_before_the_reactor_has_heard_of_it() {
        let (theirs, mut ours) = output_pipe().unwrap();
        let mut buffer = [0; 8];
        assert!(ours.read(&mut buffer).now_or_never().is_none());
        rustix::io::write(&theirs, b"late").unwrap();
        // No await lies between: the reactor has not run.
        assert_eq!(ours.read(&mut buffer).now_or_never().unwrap().unwrap(), 4);
        drop(theirs);
        assert_eq!(ours.read(&mut buffer).await.unwrap(), 0);
    }
}
