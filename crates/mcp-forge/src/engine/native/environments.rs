//! What environments need of this engine: a root around each tree, and sandboxes made ahead in it.
//!
//! Both are kept while an environment is in use and some time longer, and each keeps a share in its
//! tree: an environment that is let go of here can be removed as soon as no sandbox has it.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::{Mutex as AsyncMutex, OnceCell};

use super::{
    interpreter,
    render::{Base, Host},
    warm::Warm,
};
use crate::engine::{Environment, LaunchError};

/// Environments that are kept, at most.
const MOST: usize = 16;

/// Sandboxes that wait in a pool of one, at most.
pub(super) const MOST_READY: usize = 4;

/// Time after its last use that one is kept.
const IDLE: Duration = Duration::from_mins(10);

/// How often it is looked for those.
const LOOK: Duration = Duration::from_secs(30);

/// What is kept, and the interpreters that it was made for.
#[derive(Debug, Default)]
pub(super) struct Environments {
    /// The one that was used last is last.
    kept: Arc<Mutex<Vec<Arc<Kept>>>>,
    bases: AsyncMutex<Vec<Base>>,
    /// Whether somebody looks for those that are idle.
    is_watched: AtomicBool,
}

/// One environment that was used.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) environment: Arc<Environment>,
    pub(super) host: OnceCell<Arc<Host>>,
    pub(super) warm: OnceCell<Warm>,
    used: Mutex<Instant>,
}

impl Environments {
    /// How many sandboxes wait for code in environments.
    pub(super) fn ready(&self) -> usize {
        let kept = lock(&self.kept);
        let warm = kept.iter().filter_map(|kept| kept.warm.get());
        warm.map(Warm::ready).sum()
    }

    /// What is kept of this environment, from now on if nothing is yet. Called where a runtime is.
    pub(super) fn get(&self, environment: &Arc<Environment>) -> Arc<Kept> {
        if !self.is_watched.swap(true, Ordering::Relaxed) {
            tokio::spawn(forget_idle(Arc::downgrade(&self.kept)));
        }
        let mut kept = lock(&self.kept);
        let place = kept
            .iter()
            .position(|kept| kept.environment == *environment);
        let one = if let Some(place) = place {
            let one = kept.remove(place);
            *lock(&one.used) = Instant::now();
            one
        } else {
            Arc::new(Kept {
                environment: Arc::clone(environment),
                host: OnceCell::new(),
                warm: OnceCell::new(),
                used: Mutex::new(Instant::now()),
            })
        };
        kept.push(Arc::clone(&one));
        if kept.len() > MOST {
            kept.remove(0);
        }
        one
    }

    /// Forgets the environment of this id, wherever its tree is.
    pub(super) fn release(&self, id: &str) {
        lock(&self.kept).retain(|kept| kept.environment.id != id);
    }

    /// Makes an interpreter known that was asked before.
    pub(super) async fn know(&self, base: &Base) {
        self.bases.lock().await.push(base.plain());
    }

    /// The interpreter that an environment was built for.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Python`]: it is gone, or is another version now.
    pub(super) async fn base(&self, environment: &Environment) -> Result<Base, LaunchError> {
        let path = &environment.interpreter;
        let mut bases = self.bases.lock().await;
        let known = bases
            .iter()
            .find(|base| base.interpreter.executable == *path);
        let base = if let Some(base) = known {
            base.clone()
        } else {
            let base = ask(path).await.map_err(|reason| {
                LaunchError::Python(format!(
                    "this environment was built for {}, but {reason}. Build it again",
                    path.display()
                ))
            })?;
            bases.push(base.clone());
            base
        };
        let (major, minor, _) = base.interpreter.version;
        let (built_major, built_minor) = environment.python;
        if (major, minor) == (built_major.into(), built_minor.into()) {
            return Ok(base);
        }
        // The program at this path may have been replaced once more since it was asked.
        bases.retain(|known| known.interpreter != base.interpreter);
        Err(LaunchError::Python(format!(
            "this environment was built for Python {built_major}.{built_minor}, and {} is Python {major}.{minor} now. Build it again",
            path.display()
        )))
    }
}

async fn ask(path: &Path) -> Result<Base, String> {
    let interpreter = interpreter::ask(path).await?;
    Ok(Base::new(interpreter).plain())
}

/// Lets go of those that nobody has used for a while, for as long as the engine lives.
async fn forget_idle(kept: Weak<Mutex<Vec<Arc<Kept>>>>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(kept) = kept.upgrade() else {
            return;
        };
        lock(&kept).retain(|one| lock(&one.used).elapsed() < IDLE);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one; if it did, what is in it is whole all the same.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
