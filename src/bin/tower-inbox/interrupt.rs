//! Ctrl-C and SIGTERM while something long is done: it ends after the step that it is at, and tells what was done.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use crate::show;

/// As a shell has it of a program that SIGINT ended.
const STATUS: u8 = 130;

/// Whether somebody wants it to end.
#[derive(Clone, Default)]
pub(crate) struct Interrupt {
    asked: Arc<AtomicBool>,
    told: Arc<Notify>,
}

impl Interrupt {
    /// From now on. Before that, and at the second time, the process just ends.
    pub(crate) fn listen() -> Self {
        let interrupt = Self::default();
        let there = interrupt.clone();
        tokio::spawn(async move {
            if !signal().await {
                return;
            }
            there.asked.store(true, Ordering::Relaxed);
            there.told.notify_one();
            show::say(
                "interrupted: it ends after the step that it is at; once more ends it at once",
            );
            if signal().await {
                std::process::exit(STATUS.into());
            }
        });
        interrupt
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Once somebody does. For one who waits, once.
    pub(crate) async fn asked(&self) {
        self.told.notified().await;
    }

    /// The exit status of what was interrupted.
    pub(crate) fn status() -> ExitCode {
        ExitCode::from(STATUS)
    }
}

/// False if there is no such thing.
async fn signal() -> bool {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminated) = signal(SignalKind::terminate()) {
            return tokio::select! {
                interrupted = tokio::signal::ctrl_c() => interrupted.is_ok(),
                heard = terminated.recv() => heard.is_some(),
            };
        }
    }
    tokio::signal::ctrl_c().await.is_ok()
}
