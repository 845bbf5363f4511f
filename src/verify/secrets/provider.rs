//! Secrets from the user's own code.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::Shared;
use super::upkeep::{Loaded, Origin};
use crate::verify::secret::Secret;

/// What a provider's call gives: one or two secrets, newest first, or why it has none just now.
pub type ProvideFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<Secret>, Box<dyn Error + Send + Sync>>> + Send + 'a>>;

/// Where secrets come from: a vault, a key service, a table of your own. Closures that return such a future are one.
///
/// It is called in the background and never by a delivery. It may fail, hang and panic: what it gave last stays in
/// force. Its error's text is logged, so it should not contain a secret.
pub trait SecretsProvider: Send + Sync + 'static {
    /// The secrets that are active now, one or two, newest first.
    fn provide(&self) -> ProvideFuture<'_>;
}

impl<F, Fut> SecretsProvider for F
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Vec<Secret>, Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    fn provide(&self) -> ProvideFuture<'_> {
        Box::pin(self())
    }
}

/// How often a provider is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refresh {
    /// Between an answer and the next question. Default: 60 s, which is also how long a revoked secret goes on being
    /// accepted.
    pub every: Duration,
    /// Before the question after a failure; doubled with each further one, up to `every`, each ± at most 25 %.
    /// Default: 1 s.
    pub backoff: Duration,
    /// A call that takes longer is given up. Default: 10 s.
    pub timeout: Duration,
}

impl Default for Refresh {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(60),
            backoff: Duration::from_secs(1),
            timeout: Duration::from_secs(10),
        }
    }
}

impl Refresh {
    /// Asks again this long after an answer.
    #[must_use]
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// Asks again this long after a failure, the first time.
    #[must_use]
    pub fn backoff(mut self, backoff: Duration) -> Self {
        self.backoff = backoff;
        self
    }

    /// Gives up a call after this long.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    fn wait(&self, failed: u32) -> Duration {
        // Nothing shorter: a wait of zero would be a busy loop.
        let (every, backoff) = (self.every.max(SHORTEST), self.backoff.max(SHORTEST));
        match failed {
            0 => every,
            _ => {
                let doubled = backoff.saturating_mul(2_u32.saturating_pow(failed - 1));
                doubled.min(every).mul_f64(0.75 + fastrand::f64() / 2.0)
            }
        }
    }
}

const SHORTEST: Duration = Duration::from_millis(10);

pub(super) struct Provider {
    provider: Arc<dyn SecretsProvider>,
    refresh: Refresh,
    problem: Mutex<Option<String>>,
}

impl Provider {
    pub(super) fn new(provider: impl SecretsProvider, refresh: Refresh) -> Self {
        Self {
            provider: Arc::new(provider),
            refresh,
            problem: Mutex::default(),
        }
    }

    pub(super) async fn refresh(self: Arc<Self>, shared: Weak<Shared>) {
        let mut failed = 0_u32;
        loop {
            let loaded = self.load().await;
            let Some(handle) = shared.upgrade() else {
                return;
            };
            let taken = handle.take_over(&*self, loaded);
            drop(handle);
            failed = if taken { 0 } else { failed.saturating_add(1) };
            tokio::time::sleep(self.refresh.wait(failed)).await;
        }
    }

    async fn load(&self) -> Loaded {
        let provider = Arc::clone(&self.provider);
        // In a task of its own: one that panics is one that failed. Aborted with this future.
        let mut call = tokio::task::JoinSet::new();
        call.spawn(async move { provider.provide().await });
        match tokio::time::timeout(self.refresh.timeout, call.join_next()).await {
            Ok(Some(Ok(Ok(secrets)))) => Ok(secrets),
            Ok(Some(Ok(Err(error)))) => Err(error.to_string()),
            Ok(Some(Err(_)) | None) => Err("it panicked".to_owned()),
            Err(_) => Err(format!("no answer within {:?}", self.refresh.timeout)),
        }
    }
}

impl Origin for Provider {
    fn problem(&self) -> &Mutex<Option<String>> {
        &self.problem
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("provider")
    }
}
