//! Reconciliation: pulling what was never delivered, and what a database lost after it had acknowledged it (§7.5).
//!
//! Retries end, and an event that all of them lost is on its producer's list of *exhausted* events, for a while. A
//! [`ReplaySource`] is such a list; [`Inbox::reconcile`] puts each event on it through the same path as a delivery, the
//! signature step aside, compared by its id alone: events are applied once, in their order, parked, or refused by the handler
//! as ever, and twice in a row changes nothing. [`Delivery::origin`](crate::Delivery::origin) is then
//! [`Origin::Reconciled`](crate::Origin::Reconciled).
//!
//! ```no_run
//! # #[cfg(all(feature = "reconcile", feature = "sqlite"))]
//! # async fn example(inbox: tower_inbox::Inbox<sqlx::Sqlite>) -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use tower_inbox::reconcile::HttpReplays;
//!
//! let key = std::env::var("PRODUCER_KEY")?;
//! let replays = HttpReplays::new("https://producer.example/replays", &key)?.path("/webhooks/crm")?;
//! let report = inbox.reconcile("crm", &replays).await?; // once
//! println!("{} of {} applied now", report.applied, report.found);
//! inbox.reconciliation("crm").every(Duration::from_secs(600), replays); // and every ten minutes
//! # Ok(()) }
//! ```
//!
//! **Where it goes on.** For each source and list the database remembers the producer's time up to which everything was dealt
//! with, and the page of a run that was broken off; both move only when a whole page has been dealt with, and not past an
//! event that failed. A run begins an hour before that time. One process at a time reconciles a source: a row with an expiry of
//! five minutes sees to it, and two at the same time would be wasteful, not wrong.
//!
//! **Delivered events** are asked for when the database has become another one, or an older copy of itself (§4.1a): by signs of
//! life in the database it is known when the copy was taken. [`Reconciliation::delivered_since`] asks by hand.
//!
//! **Gaps** are asked for by their sequence where the producer knows them ([`ReplaySource::by_sequence`]).
//!
//! **Dead letters** (a handler's own verdict, too many failures) are counted and not tried again: that is an operator's
//! decision, and a schedule must not repeat it. An event that fails for another reason is met again by the next run.
//!
//! Not for sources that split their requests ([`Source::elements`](crate::Source::elements)): a list names deliveries there, not events.

pub(crate) mod alive;
#[cfg(feature = "reconcile")]
mod http;
mod put;
mod report;
mod run;
mod schedule;
mod source;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

#[cfg(feature = "reconcile")]
pub use self::http::{HttpReplays, KudosReplays};
pub use self::report::{Gap, Missing, Problem, Report};
pub use self::schedule::Reconciler;
pub use self::source::{
    Item, List, Page, Query, ReplayError, ReplayErrorKind, ReplayFuture, ReplaySource, Unreadable,
};
use crate::clock::Timestamp;
use crate::error::OperatorError;
use crate::inbox::Inbox;
use crate::shared::Shared;
use crate::store::Backend;

/// Pages and events of one run: a list that never ends, ends here.
const MAX_PAGES: u32 = 1_000;
const MAX_EVENTS: u64 = 100_000;

/// What the handles of an inbox share about it.
pub(crate) struct Keeping {
    pub(crate) alive: tokio::sync::Mutex<alive::Seen>,
    pub(crate) stop: watch::Sender<bool>,
    /// Sources that this process is reconciling.
    running: Mutex<HashSet<Arc<str>>>,
}

impl Default for Keeping {
    fn default() -> Self {
        Self {
            alive: tokio::sync::Mutex::default(),
            stop: watch::Sender::new(false),
            running: Mutex::default(),
        }
    }
}

impl Keeping {
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    fn enter(&self, source: &Arc<str>) -> Option<Running<'_>> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running
            .insert(Arc::clone(source))
            .then(|| Running(self, Arc::clone(source)))
    }
}

/// Reconciles a source until dropped.
struct Running<'a>(&'a Keeping, Arc<str>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let running = self.0.running.lock();
        running
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.1);
    }
}

#[derive(Clone, Debug)]
struct Options {
    delivered_since: Option<Timestamp>,
    event_type: Option<String>,
    max_pages: u32,
    max_events: u64,
}

/// How to reconcile a source: made by [`Inbox::reconciliation`].
#[must_use = "nothing is reconciled until `run` or `every`"]
pub struct Reconciliation<DB: Backend> {
    shared: Arc<Shared<DB>>,
    source: String,
    options: Options,
}

impl<DB: Backend> std::fmt::Debug for Reconciliation<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reconciliation")
            .field("source", &self.source)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<DB: Backend> Inbox<DB> {
    /// Goes through a producer's list of exhausted events, and through that of delivered ones if the database has become
    /// another one since; and fills gaps, where the producer knows them. See [`reconcile`](crate::reconcile).
    ///
    /// Dropping the future breaks off between two events, and loses nothing.
    ///
    /// # Errors
    /// If the source is not mounted in this process, splits its requests, or is being reconciled already; or if the
    /// database failed. What goes wrong at the producer's end is in the report, with what was done until then.
    pub async fn reconcile(
        &self,
        source: &str,
        from: &dyn ReplaySource,
    ) -> Result<Report, OperatorError> {
        self.reconciliation(source).run(from).await
    }

    /// The same with settings, or from time to time.
    pub fn reconciliation(&self, source: impl Into<String>) -> Reconciliation<DB> {
        Reconciliation {
            shared: Arc::clone(&self.shared),
            source: source.into(),
            options: Options {
                delivered_since: None,
                event_type: None,
                max_pages: MAX_PAGES,
                max_events: MAX_EVENTS,
            },
        }
    }
}

impl<DB: Backend> Reconciliation<DB> {
    /// Goes through the delivered events since this time of the producer's instead, whatever is remembered; and remembers
    /// nothing.
    pub fn delivered_since(mut self, since: Timestamp) -> Self {
        self.options.delivered_since = Some(since);
        self
    }

    /// Events of this type only; such a run remembers nothing.
    pub fn event_type(mut self, event_type: impl Into<String>) -> Self {
        self.options.event_type = Some(event_type.into());
        self
    }

    /// Pages of one list that one run reads; the next run goes on there. Default: 1,000.
    pub fn max_pages(mut self, pages: u32) -> Self {
        self.options.max_pages = pages.max(1);
        self
    }

    /// Events of one list after which a run ends with their page; the next run goes on there. Default: 100,000.
    pub fn max_events(mut self, events: u64) -> Self {
        self.options.max_events = events.max(1);
        self
    }

    /// Once, now: see [`Inbox::reconcile`].
    ///
    /// # Errors
    /// As there.
    pub async fn run(&self, from: &dyn ReplaySource) -> Result<Report, OperatorError> {
        once(&self.shared, &self.source, from, &self.options).await
    }

    /// At once, and then this often, ± a quarter, later if the producer asks for it (`Retry-After`, an hour at most), until
    /// the inbox is shut down. Several processes may: one at a time does it.
    pub fn every(self, interval: Duration, from: impl ReplaySource) -> Reconciler {
        let interval = interval.max(Duration::from_millis(100));
        Reconciler::spawn(&self.shared, &self.source, interval, self.options, from)
    }
}

async fn once<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    source: &str,
    from: &dyn ReplaySource,
    options: &Options,
) -> Result<Report, OperatorError> {
    let Some(state) = shared.find_source(source).await else {
        return Err(OperatorError::invalid("there is no such source here"));
    };
    if state.elements().is_some() {
        let why = "a source that splits its requests cannot be reconciled by event id";
        return Err(OperatorError::invalid(why));
    }
    let Some(target) = shared.worker.target(source) else {
        let why = "the source is not mounted in this process: nothing could be handed over";
        return Err(OperatorError::invalid(why));
    };
    // A shutdown waits for the run, which ends when it sees that there is one.
    let Some(_tracked) = shared.tracker.enter() else {
        return Err(OperatorError::busy("the inbox is shutting down"));
    };
    let Some(_running) = shared.keeping.enter(&state.name_arc()) else {
        return Err(OperatorError::busy(
            "this process is reconciling this source already",
        ));
    };
    run::Run {
        shared,
        source: &state,
        target,
        from,
        options,
        report: Report::new(source),
        parked: Vec::new(),
    }
    .run()
    .await
}
