//! A go-between that changes one text in what a service says.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{UnixListener, UnixStream},
};

use super::*;

/// A service that does something else than it was asked for, by its own account.
pub(super) struct Liar {
    directory: TempDir,
    pub(super) told: Arc<AtomicUsize>,
    pub(super) started: Arc<AtomicUsize>,
}

impl Liar {
    /// Says `lie` wherever the real service says `truth`. Both are of one length: what stands around
    /// them stays true.
    pub(super) fn start(truth: &'static [u8], lie: &'static [u8]) -> Self {
        assert_eq!(truth.len(), lie.len());
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("s.sock")).unwrap();
        let (told, started) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let counts = (Arc::clone(&told), Arc::clone(&started));
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let service = UnixStream::connect(socket()).await.unwrap();
                let (from_client, to_client) = client.into_split();
                let (from_service, to_service) = service.into_split();
                let (told, started) = counts.clone();
                // Nothing is changed in what is asked.
                tokio::spawn(carry(
                    from_client,
                    to_service,
                    (b"/start ", b"/start "),
                    started,
                ));
                tokio::spawn(carry(from_service, to_client, (truth, lie), told));
            }
        });
        Self {
            directory,
            told,
            started,
        }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.directory.path().join("s.sock")
    }
}

/// Carries a stream with one text for another, and counts how often. Holds back no more than the
/// beginning of such a text.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    (text, other): (&[u8], &[u8]),
    count: Arc<AtomicUsize>,
) {
    let (mut held, mut piece) = (Vec::new(), vec![0; 1 << 16]);
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        held.extend_from_slice(&piece[..length]);
        let mut at = 0;
        while at + text.len() <= held.len() {
            if held[at..].starts_with(text) {
                held[at..at + text.len()].copy_from_slice(other);
                count.fetch_add(1, Ordering::Relaxed);
                at += text.len();
            } else {
                at += 1;
            }
        }
        let longest = (text.len() - 1).min(held.len() - at);
        let kept = (1..=longest)
            .rev()
            .find(|&kept| held.ends_with(&text[..kept]));
        let rest = held.split_off(held.len() - kept.unwrap_or(0));
        if to.write_all(&held).await.is_err() {
            return;
        }
        held = rest;
    }
    to.write_all(&held).await.ok();
    to.shutdown().await.ok();
}
