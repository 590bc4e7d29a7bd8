//! The server's end of a fork's connection: an answer that comes soon is looked for, not waited for.
//!
//! To be woken costs a tenth of a short turn. So for a moment after a request its reader comes back
//! at once, behind whatever else the runtime has to do, and looks again. It does so only while it is
//! the only one: where several wait, their sandboxes need the processors more.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
};

/// How long an answer is looked for: what most short turns take.
const SOON: Duration = Duration::from_micros(600);

/// How many requests are being answered, of all forks of an engine.
pub(super) type Answering = Arc<AtomicUsize>;

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    socket: UnixStream,
    awaited: Option<Awaited>,
    answering: Answering,
}

/// An answer that may come soon.
#[derive(Debug)]
struct Awaited {
    until: Instant,
    answering: Answering,
}

impl Awaited {
    fn new(answering: &Answering) -> Self {
        answering.fetch_add(1, Ordering::Relaxed);
        Self {
            until: Instant::now() + SOON,
            answering: Arc::clone(answering),
        }
    }

    fn is_worth_looking(&self) -> bool {
        self.answering.load(Ordering::Relaxed) == 1 && Instant::now() < self.until
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.answering.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection {
    pub(super) fn new(socket: UnixStream, answering: Answering) -> Self {
        Self {
            socket,
            awaited: None,
            answering,
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(awaited) = &self.awaited {
            if let Ok(length) = rustix::io::read(&self.socket, buffer.initialize_unfilled()) {
                buffer.advance(length);
                self.awaited = None;
                return Poll::Ready(Ok(()));
            }
            if awaited.is_worth_looking() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.awaited = None;
        }
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, buffer);
        if matches!(written, Poll::Ready(Ok(_))) {
            // The old one first: a request is counted once.
            self.awaited = None;
            self.awaited = Some(Awaited::new(&self.answering));
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn an_answer_is_found_whether_it_comes_soon_or_late_and_whoever_else_waits() {
        for others in [0, 3] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let answering = Arc::new(AtomicUsize::new(others));
            let mut ours = Connection::new(ours, Arc::clone(&answering));
            for late in [false, true] {
                ours.write_all(b"ask").await.unwrap();
                assert_eq!(answering.load(Ordering::Relaxed), others + 1);
                let answer = async {
                    let mut asked = [0; 3];
                    theirs.read_exact(&mut asked).await.unwrap();
                    if late {
                        tokio::time::sleep(2 * SOON).await;
                    }
                    theirs.write_all(b"yes").await.unwrap();
                };
                let mut answered = [0; 3];
                let (read, ()) = tokio::join!(ours.read_exact(&mut answered), answer);
                assert_eq!((read.unwrap(), &answered), (3, b"yes"));
                assert_eq!(answering.load(Ordering::Relaxed), others);
            }
            drop(theirs);
            assert_eq!(ours.read(&mut [0; 3]).await.unwrap(), 0);
        }
    }

    #[tokio::test]
    async fn one_that_is_dropped_is_no_longer_counted() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let answering = Answering::default();
        let mut ours = Connection::new(ours, Arc::clone(&answering));
        ours.write_all(b"ask").await.unwrap();
        drop(ours);
        assert_eq!(answering.load(Ordering::Relaxed), 0);
    }
}
