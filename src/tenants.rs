//! Sources that come and go: tenants, each with its own secrets, looked up when a delivery arrives.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use http::request::Parts;

use crate::error::{BuildError, BuildErrorKind};
use crate::inbox::Inbox;
use crate::shared::Shared;
use crate::source::{Source, SourceState};
use crate::store::Backend;

/// A source that was checked by [`Inbox::tenant`]. Cheap to clone: keep it in a bounded cache of your own, since its
/// limits are counted in it.
#[derive(Clone)]
pub struct Tenant(pub(crate) Arc<SourceState>);

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tenant").field(&self.0.name()).finish()
    }
}

/// What a look-up returns: a tenant, nobody, or that it cannot be said now.
pub type TenantFuture<'a> = Pin<
    Box<
        dyn Future<Output = Result<Option<Tenant>, Box<dyn std::error::Error + Send + Sync>>>
            + Send
            + 'a,
    >,
>;

/// Finds the tenant that a delivery is for, and the one that a stored event belongs to.
///
/// A delivery asks before its signature is verified, so that anybody can make it ask: answer from memory, or from a
/// cache that is bounded and remembers unknown names too. Nobody is 401; an error is 503.
pub trait Tenants: Send + Sync + 'static {
    /// By a request's path, headers or extensions.
    fn by_request<'a>(&'a self, request: &'a Parts) -> TenantFuture<'a>;

    /// By the source's name, as it was given to [`Source::new`]: for events that are stored.
    fn by_name<'a>(&'a self, name: &'a str) -> TenantFuture<'a>;
}

/// A look-up that hangs must not stop the drain of all the others.
const LOOK_UP: Duration = Duration::from_secs(2);

/// The tenants that an inbox was mounted with, and those that are alive in this process.
#[derive(Default)]
pub(crate) struct Registry {
    tenants: Mutex<Option<Arc<dyn Tenants>>>,
    alive: Mutex<HashMap<Arc<str>, Weak<SourceState>>>,
    gone: Mutex<Gone>,
}

#[derive(Default)]
struct Gone {
    /// The names of all sources that are deregistered: a tenant that is made anew is so too.
    names: HashSet<String>,
    /// How often this process has deregistered a source, or armed one again.
    changes: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    pub(crate) fn set(&self, tenants: Arc<dyn Tenants>) {
        *lock(&self.tenants) = Some(tenants);
    }

    /// For [`Registry::learn_gone`], before the table is read.
    pub(crate) fn gone_changes(&self) -> u64 {
        lock(&self.gone).changes
    }

    /// As the table had them; nothing if this process has changed one meanwhile: what was read may be from before that.
    pub(crate) fn learn_gone(
        &self,
        changes: u64,
        names: impl IntoIterator<Item = String>,
        sources: &[Arc<SourceState>],
    ) {
        let mut gone = lock(&self.gone);
        if gone.changes != changes {
            return;
        }
        gone.names = names.into_iter().collect();
        for source in sources {
            source.set_gone(gone.names.contains(source.name()));
        }
    }

    /// As it was committed by this process.
    pub(crate) fn set_gone(&self, source: &SourceState, is_gone: bool) {
        let mut gone = lock(&self.gone);
        gone.changes += 1;
        if is_gone {
            gone.names.insert(source.name().to_owned());
        } else {
            gone.names.remove(source.name());
        }
        source.set_gone(is_gone);
    }

    /// Those that somebody still holds.
    pub(crate) fn alive(&self) -> Vec<Arc<SourceState>> {
        let mut alive = lock(&self.alive);
        alive.retain(|_, state| state.strong_count() > 0);
        alive.values().filter_map(Weak::upgrade).collect()
    }
}

impl<DB: Backend> Shared<DB> {
    /// The source of this name: one of the inbox's own, or a tenant.
    pub(crate) async fn find_source(&self, name: &str) -> Option<Arc<SourceState>> {
        if let Some(source) = self.source(name) {
            return Some(Arc::clone(source));
        }
        let tenants = lock(&self.tenants.tenants).clone()?;
        let found = tokio::time::timeout(LOOK_UP, tenants.by_name(name)).await;
        match found.unwrap_or_else(|_| Err("the look-up takes too long".into())) {
            Ok(tenant) => tenant
                .map(|tenant| tenant.0)
                .filter(|state| state.name() == name),
            Err(error) => {
                tracing::warn!(source = name, %error, "could not look a tenant up");
                None
            }
        }
    }
}

impl<DB: Backend> Inbox<DB> {
    /// Checks a source that is not known when the inbox is built. No database statement.
    ///
    /// # Errors
    /// As [`InboxBuilder::build`](crate::InboxBuilder::build), for the settings of a source; or if one of the inbox's own
    /// sources has this name.
    pub fn tenant(&self, source: Source) -> Result<Tenant, BuildError> {
        let state = Arc::new(SourceState::new(source, self.shared.bodies.limit())?);
        if self.shared.source(state.name()).is_some() {
            let message = format!("a source of the inbox is named {:?} too", state.name());
            return Err(BuildError::new(BuildErrorKind::Name, message));
        }
        crate::inbox::check_lease(self.shared.lease, state.longest_budget())?;
        self.shared.stats.register(state.counted());
        let tenants = &self.shared.tenants;
        lock(&tenants.alive).insert(state.name_arc(), Arc::downgrade(&state));
        state.set_gone(lock(&tenants.gone).names.contains(state.name()));
        Ok(Tenant(state))
    }
}
