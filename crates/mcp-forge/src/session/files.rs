//! A session's files on their way: in from volumes, and out to the host.

use std::time::Duration;

use tokio::{sync::oneshot, time::Instant};

use super::{
    SessionTurn,
    answer::broken,
    keep::{self, CopyError as FilesError},
    known::{self, Known},
    open::Live,
    task::Task,
};

/// How long a turn waits until files of the turn before, which it may cost, are on the host.
const PATIENCE: Duration = Duration::from_millis(20);

impl Task {
    /// Brings out what a turn left that has just ended, if that is quick. An interpreter that fails at
    /// it will fail at the next turn, too, and is told of then.
    pub(super) async fn bring_out(&self, live: &mut Live) {
        let Live { keep, resident, .. } = live;
        let Some(resident) = resident.as_mut().filter(|_| keep.is_behind()) else {
            return;
        };
        let begun = Instant::now();
        while keep.is_behind() && begun.elapsed() < PATIENCE {
            if keep.step(resident).await.is_err() {
                return;
            }
        }
        self.facts.set_not_kept(keep.refused().clone());
    }

    /// Brings out all files, then replies. Says why the interpreter was lost, if it was.
    pub(super) async fn flush(
        &self,
        live: &mut Live,
        reply: oneshot::Sender<()>,
    ) -> Option<String> {
        let Live { keep, resident, .. } = live;
        let resident = resident.as_mut()?;
        while keep.is_behind() {
            // Code that answers each piece at the last moment must not outlive what ends it.
            if self.stop.borrow().is_some() {
                return None;
            }
            if let Err(error) = keep.step(resident).await {
                return Some(broken(&error));
            }
        }
        self.facts.set_not_kept(keep.refused().clone());
        let _ = reply.send(());
        None
    }

    /// Copies the volumes that a turn wants and that are not there yet.
    pub(super) async fn copy_volumes(
        &self,
        live: &mut Live,
        turn: &SessionTurn,
    ) -> Result<(), FilesError> {
        let settings = &self.inner.settings;
        let new: Vec<_> = turn
            .volumes
            .iter()
            .filter(|volume| !live.copied.contains(volume))
            .cloned()
            .collect();
        let Some(resident) = live.resident.as_mut().filter(|_| !new.is_empty()) else {
            return Ok(());
        };
        let most = (settings.volumes.session_quota, settings.sessions.max_files);
        let whose = (settings.volumes.base_path.as_path(), &self.name.principal);
        keep::copy_volumes(resident, whose, &new, most).await?;
        live.copied.extend(new);
        // They are there before the turn: it has not changed them.
        let bounds = known::bounds(settings.sessions.max_files);
        let files = super::open::list_files(resident, &bounds).await?;
        let mut known = Known::clone(&self.facts.know());
        known.inspected.files = files;
        self.facts.learn(known);
        Ok(())
    }
}
