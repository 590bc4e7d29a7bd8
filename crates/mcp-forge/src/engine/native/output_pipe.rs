//! The server's end of a sandbox's output: a pipe that is asked first and waited for second.
//!
//! The reactor hears of bytes some time after they are there. Who reads "what has been written by
//! now" must not depend on that: a read that would wait means that the pipe is empty.
//!
//! A pipe that was found full has a writer that waits. It is made larger then, once: the fewer times
//! two processes wait for each other, the faster much output comes.

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
pub(super) struct OutputPipe {
    pipe: pipe::Receiver,
    is_large: bool,
}

/// Bytes that a pipe holds at first.
const USUAL_BYTES: usize = 64 << 10;

/// Bytes that it holds once it was found full: of both streams half of what is taken at a turn's end.
const LARGE_BYTES: usize = 256 << 10;

/// A pipe whose write end is for the sandbox: blocking, as programs expect.
pub(super) fn output_pipe() -> io::Result<(OwnedFd, OutputPipe)> {
    let (sender, receiver) = pipe::pipe()?;
    let pipe = OutputPipe {
        pipe: receiver,
        is_large: false,
    };
    Ok((sender.into_blocking_fd()?, pipe))
}

impl AsyncRead for OutputPipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Ok(length) = rustix::io::read(&self.pipe, buffer.initialize_unfilled()) {
            buffer.advance(length);
            if length >= USUAL_BYTES && !self.is_large {
                self.is_large = true;
                // An ordinary user may have only so much of it: then it stays as it is.
                let _ = rustix::pipe::fcntl_setpipe_size(&self.pipe, LARGE_BYTES);
            }
            return Poll::Ready(Ok(()));
        }
        // Empty, or broken: waits, or fails, as any other pipe.
        Pin::new(&mut self.pipe).poll_read(context, buffer)
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

    #[tokio::test]
    async fn a_pipe_that_was_full_is_larger_from_then_on() {
        let (theirs, mut ours) = output_pipe().unwrap();
        let mut buffer = vec![0; USUAL_BYTES];
        rustix::io::write(&theirs, b"little").unwrap();
        assert_eq!(ours.read(&mut buffer).await.unwrap(), 6);
        let size = || rustix::pipe::fcntl_getpipe_size(&theirs).unwrap();
        assert_eq!(size(), USUAL_BYTES);
        rustix::io::write(&theirs, &vec![b'x'; USUAL_BYTES]).unwrap();
        assert_eq!(ours.read(&mut buffer).await.unwrap(), USUAL_BYTES);
        assert_eq!(size(), LARGE_BYTES);
    }
}
