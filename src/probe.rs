//! Probes: what the inbox did with one event, recorded by those who did it, for the test kit.
//!
//! They are there with the feature `testkit` only. A [`Probe`] comes in the extensions of a delivery's request, and is known
//! by the event from then on, so that what a worker does with it later is recorded too.

use std::time::Duration;

use crate::event::{Origin, Outcome};
use crate::queue::End;

/// What happened to an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "testkit"),
    allow(dead_code, reason = "nobody reads them without the feature")
)]
pub(crate) enum Happened {
    /// A producer of the kit made this attempt, of those that it has made, from 0.
    Attempted(usize),
    /// A delivery was refused before anything else was done.
    Refused(String),
    /// Its signature was verified, by the secret of this label, and its envelope was read.
    Verified(String),
    /// It was answered by what this process remembers.
    Remembered,
    /// It waited for another delivery of the same event, which went ahead.
    Followed,
    /// It had its place among those that may hold a connection, after this time.
    Queued(Duration),
    /// What its row and its cursor said in the transaction.
    Entered(&'static str),
    /// The handler was called.
    Began(Origin),
    /// What the handler did.
    Ended(String),
    /// The handler never took its transaction.
    Untaken,
    /// The handler answered with success, and its transaction was not what it was.
    Lost(Loss),
    /// COMMIT succeeded.
    Committed,
    /// COMMIT was sent, and nobody knows what came of it.
    InDoubt,
    /// A test had the transaction rolled back instead.
    CommitRefused,
    /// How one way through the transaction ended.
    Settled(End, Outcome),
    /// What is to become of it.
    Noted(String),
    /// The kit has restarted the app.
    Restarted,
}

/// What became of a transaction in a handler's hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It is kept beyond the answer.
    Kept,
    /// A statement of it failed, and it can only be rolled back.
    Aborted,
    /// Ended by a statement of the handler's, or rolled back by the server.
    Ended,
}

#[cfg(feature = "testkit")]
mod on {
    use std::collections::HashMap;
    use std::fmt;
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use std::time::{Duration, Instant};

    use http::Extensions;
    use tokio::sync::watch;

    use super::Happened;
    use crate::clock::{Clock, SystemClock, Timestamp};
    use crate::envelope::Envelope;
    use crate::source::SourceState;
    use crate::store::Key;
    use crate::verify::Verified;

    /// Goes with the deliveries of one event in the extensions of their requests: the inbox records in it what it does with
    /// that event, then and later. The kit puts one into each request that it sends. Clones are handles of the same one.
    #[derive(Clone)]
    pub struct Probe(Arc<State>);

    struct State {
        clock: Arc<dyn Clock>,
        inner: Mutex<Inner>,
        /// Told of each new line of the journal.
        grown: watch::Sender<()>,
    }

    #[derive(Default)]
    struct Inner {
        journal: Vec<Record>,
        known_as: Option<KnownAs>,
        commits_to_refuse: usize,
    }

    /// As an inbox knows an event: by source and event id.
    type KnownAs = (Arc<str>, Arc<str>);

    /// Since when something waits.
    #[derive(Clone, Copy)]
    pub(crate) struct Since(Instant);

    impl Since {
        pub(crate) fn now() -> Self {
            Self(Instant::now())
        }

        pub(crate) fn elapsed(self) -> Duration {
            self.0.elapsed()
        }
    }

    /// One line of a journal.
    #[derive(Clone, Debug)]
    pub(crate) struct Record {
        pub(crate) at: Timestamp,
        pub(crate) happened: Happened,
    }

    fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    impl Default for Probe {
        fn default() -> Self {
            Self::by(Arc::new(SystemClock))
        }
    }

    impl fmt::Debug for Probe {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Probe").finish_non_exhaustive()
        }
    }

    impl Probe {
        /// With an empty journal.
        pub fn new() -> Self {
            Self::default()
        }

        /// That takes its times from this clock.
        pub(crate) fn by(clock: Arc<dyn Clock>) -> Self {
            Self(Arc::new(State {
                clock,
                inner: Mutex::default(),
                grown: watch::Sender::default(),
            }))
        }

        /// Refuses the next commit of this event: when its handler has answered 2xx, its transaction is rolled back all the
        /// same, and the delivery is answered 503. What the handler did outside of its transaction has then happened, and its
        /// next run does it again. Twice: the next two.
        pub fn fail_commit(&self) {
            lock(&self.0.inner).commits_to_refuse += 1;
        }

        pub(crate) fn record(&self, happened: Happened) {
            let record = Record {
                at: self.0.clock.now(),
                happened,
            };
            lock(&self.0.inner).journal.push(record);
            self.0.grown.send_replace(());
        }

        /// Waits until the handler has been called, after so many lines of the journal.
        pub(crate) async fn began_after(&self, lines: usize) {
            let mut grown = self.0.grown.subscribe();
            let began = |record: &Record| matches!(record.happened, Happened::Began(_));
            while !self.journal().iter().skip(lines).any(began) {
                // The sender is this very handle's.
                let _ = grown.changed().await;
            }
        }

        pub(crate) fn journal(&self) -> Vec<Record> {
            lock(&self.0.inner).journal.clone()
        }

        pub(crate) fn known_as(&self) -> Option<KnownAs> {
            lock(&self.0.inner).known_as.clone()
        }

        fn refuses_commit(&self) -> bool {
            let mut inner = lock(&self.0.inner);
            let refuses = inner.commits_to_refuse > 0;
            inner.commits_to_refuse = inner.commits_to_refuse.saturating_sub(1);
            refuses
        }
    }

    /// The probes of one inbox, by source and event id.
    #[derive(Default)]
    pub(crate) struct Probes {
        known: Mutex<HashMap<KnownAs, Probe>>,
        /// Of events whose requests come over a socket, where extensions do not: by event id.
        expected: Mutex<HashMap<String, Probe>>,
    }

    impl Probes {
        /// A delivery has been verified and read: from here on its event has the probe that came with it.
        pub(crate) fn admitted(
            &self,
            extensions: &Extensions,
            source: &SourceState,
            envelope: &Envelope,
            verified: &Verified,
        ) {
            let id = envelope.event_id.as_arc();
            let expected = || lock(&self.expected).get(&**id).cloned();
            if let Some(probe) = extensions.get::<Probe>().cloned().or_else(expected) {
                self.know((source.name_arc(), Arc::clone(id)), &probe);
                probe.record(Happened::Verified(verified.label().to_owned()));
            }
        }

        /// As if a delivery had come with it.
        pub(crate) fn know(&self, known_as: KnownAs, probe: &Probe) {
            lock(&probe.0.inner).known_as = Some(known_as.clone());
            lock(&self.known).insert(known_as, probe.clone());
        }

        /// Of an event whose deliveries cannot bring it.
        pub(crate) fn expect(&self, event_id: String, probe: &Probe) {
            lock(&self.expected).insert(event_id, probe.clone());
        }

        pub(crate) fn saw(&self, key: Key<'_>, happened: impl FnOnce() -> Happened) {
            if let Some(probe) = self.find(key) {
                probe.record(happened());
            }
        }

        pub(crate) fn refuses_commit(&self, key: Key<'_>) -> bool {
            let refuses = self.find(key).is_some_and(|probe| probe.refuses_commit());
            if refuses {
                self.saw(key, || Happened::CommitRefused);
            }
            refuses
        }

        fn find(&self, key: Key<'_>) -> Option<Probe> {
            let known = lock(&self.known);
            if known.is_empty() {
                return None;
            }
            known
                .get(&(Arc::from(key.source), Arc::from(key.event_id)))
                .cloned()
        }
    }

    /// A request was refused before it was known which event it carries.
    pub(crate) fn refused(extensions: &Extensions, reason: &dyn fmt::Display) {
        if let Some(probe) = extensions.get::<Probe>() {
            probe.record(Happened::Refused(reason.to_string()));
        }
    }
}

#[cfg(not(feature = "testkit"))]
mod off {
    use std::time::Duration;

    use http::Extensions;

    use super::Happened;
    use crate::envelope::Envelope;
    use crate::source::SourceState;
    use crate::store::Key;
    use crate::verify::Verified;

    /// Nothing, without the feature.
    #[derive(Default)]
    pub(crate) struct Probes(());

    /// Nothing: no clock is asked.
    #[derive(Clone, Copy)]
    pub(crate) struct Since(());

    impl Since {
        #[inline]
        pub(crate) fn now() -> Self {
            Self(())
        }

        #[inline]
        pub(crate) fn elapsed(self) -> Duration {
            Duration::ZERO
        }
    }

    impl Probes {
        #[inline]
        pub(crate) fn admitted(&self, _: &Extensions, _: &SourceState, _: &Envelope, _: &Verified) {
        }

        #[inline]
        pub(crate) fn saw(&self, _: Key<'_>, _: impl FnOnce() -> Happened) {}

        #[inline]
        pub(crate) fn refuses_commit(&self, _: Key<'_>) -> bool {
            false
        }
    }

    #[inline]
    pub(crate) fn refused(_: &Extensions, _: &dyn std::fmt::Display) {}
}

#[cfg(not(feature = "testkit"))]
pub(crate) use off::{Probes, Since, refused};
#[cfg(feature = "testkit")]
pub use on::Probe;
#[cfg(feature = "testkit")]
pub(crate) use on::{Probes, Record, Since, refused};
