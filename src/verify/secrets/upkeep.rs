//! The task that looks after secrets whose truth is elsewhere: started by whoever has a runtime, ended with the last
//! handle.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::runtime::Handle;
use tokio::sync::watch;

use super::file::File;
use super::provider::Provider;
use super::{SecretError, Secrets, Shared};
use crate::verify::secret::Secret;

/// Who says which secrets are active.
pub(super) enum Truth {
    /// The handle.
    Here,
    File(Arc<File>),
    Provider(Arc<Provider>),
}

/// What a load from elsewhere gave: a set, or what was wrong.
pub(super) type Loaded = Result<Vec<Secret>, String>;

/// Something outside of the process, as the log names it.
pub(super) trait Origin: fmt::Display {
    /// What was wrong last time, so that it is not said again and again.
    fn problem(&self) -> &Mutex<Option<String>>;
}

/// Whether the task is running, and what tells it that the last handle is gone.
pub(super) struct Upkeep {
    running: AtomicBool,
    alive: watch::Sender<()>,
}

impl Default for Upkeep {
    fn default() -> Self {
        Self {
            running: AtomicBool::new(false),
            alive: watch::Sender::new(()),
        }
    }
}

/// Lets another runtime start the task anew if this one's is gone.
struct Running(Weak<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.upkeep.running.store(false, Ordering::Release);
        }
    }
}

impl Secrets {
    /// Starts the task, unless it is running, nothing needs it, or this thread is in no runtime.
    pub(super) fn keep_up(&self) {
        let upkeep = &self.shared.upkeep;
        if matches!(self.shared.truth, Truth::Here) || upkeep.running.load(Ordering::Acquire) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if upkeep.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = Arc::downgrade(&self.shared);
        let (running, mut alive) = (Running(shared.clone()), upkeep.alive.subscribe());
        let gone = async move { while alive.changed().await.is_ok() {} };
        match &self.shared.truth {
            Truth::Here => {}
            Truth::File(file) => {
                let work = Arc::clone(file).watch(shared);
                runtime.spawn(until(gone, work, running));
            }
            Truth::Provider(provider) => {
                let work = Arc::clone(provider).refresh(shared);
                runtime.spawn(until(gone, work, running));
            }
        }
    }
}

async fn until(gone: impl Future<Output = ()>, work: impl Future<Output = ()>, running: Running) {
    let _running = running;
    tokio::select! {
        () = gone => {}
        () = work => {}
    }
}

impl Shared {
    /// Takes over what was loaded; whether it could. What is wrong keeps the old set, and is logged once.
    pub(super) fn take_over(&self, from: &impl Origin, loaded: Loaded) -> bool {
        let before = self.current();
        let taken = loaded.and_then(|secrets| {
            let next = before
                .given(secrets)
                .map_err(|error: SecretError| error.to_string())?;
            // The same again, as nearly always: nothing to say.
            if !next.same_as(&before) {
                tracing::info!(%from, secrets = ?next, "secrets were taken over");
                // One task alone changes this set.
                *self.set.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
            }
            Ok(())
        });
        let mut problem = from
            .problem()
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match taken {
            Ok(()) => {
                *problem = None;
                true
            }
            Err(reason) => {
                if problem.as_ref() != Some(&reason) {
                    if before.is_empty() {
                        tracing::error!(
                            %from, reason,
                            "there are no secrets: deliveries get 503 until there are"
                        );
                    } else {
                        tracing::error!(
                            %from, reason, secrets = ?before,
                            "secrets cannot be taken over: the old ones stay"
                        );
                    }
                    *problem = Some(reason);
                }
                false
            }
        }
    }
}
