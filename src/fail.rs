//! Fail points: named places on the path of an event, at which a test holds it up, breaks it off, or ends the process.
//!
//! They are there with the feature `failpoints` only, which is for tests of this crate.

/// In the order in which an event comes by.
pub(crate) mod at {
    /// A worker has claimed a pending event, in a statement of its own.
    pub(crate) const CLAIMED: &str = "claimed";
    /// BEGIN and our savepoint are done.
    pub(crate) const BEGUN: &str = "begun";
    /// The event's row and cursor are ours; the handler has not begun.
    pub(crate) const ENTERED: &str = "entered";
    /// The handler has answered; nothing is settled.
    pub(crate) const HANDLED: &str = "handled";
    /// What the handler did is taken back, and perhaps the locks with it; nothing else is written.
    pub(crate) const UNDONE: &str = "undone";
    /// The savepoint is released; COMMIT is next.
    pub(crate) const RELEASED: &str = "released";
    /// A stream that adopts its first sequence is about to begin: its cursor is locked, COMMIT is next.
    pub(crate) const ADOPTED: &str = "adopted";
    /// A transaction with no handler in it is about to begin.
    pub(crate) const OPENING: &str = "opening";
    /// A transaction with no handler in it has all its locks; COMMIT is next.
    pub(crate) const DECIDED: &str = "decided";
    /// COMMIT has succeeded; nobody has been told, and nothing is drained.
    pub(crate) const COMMITTED: &str = "committed";
}

#[cfg(feature = "failpoints")]
mod on {
    use std::fmt;
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::Arc;

    type Reached = Pin<Box<dyn Future<Output = Result<(), sqlx::Error>> + Send>>;

    /// What happens at the fail points of one inbox.
    #[derive(Clone)]
    pub struct FailPoints(Arc<dyn Fn(&'static str) -> Reached + Send + Sync>);

    impl FailPoints {
        /// `reached` is called with a point's name and awaited there; an error that it returns is the database's.
        pub fn new<F>(reached: impl Fn(&'static str) -> F + Send + Sync + 'static) -> Self
        where
            F: Future<Output = Result<(), sqlx::Error>> + Send + 'static,
        {
            Self(Arc::new(move |name| Box::pin(reached(name))))
        }

        pub(crate) async fn reached(&self, name: &'static str) -> Result<(), sqlx::Error> {
            (self.0)(name).await
        }
    }

    impl Default for FailPoints {
        /// Nothing happens.
        fn default() -> Self {
            Self::new(|_| async { Ok(()) })
        }
    }

    impl fmt::Debug for FailPoints {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("FailPoints")
        }
    }
}

#[cfg(not(feature = "failpoints"))]
mod off {
    /// Nothing, without the feature.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct FailPoints(());

    impl FailPoints {
        #[allow(clippy::unused_async, reason = "the feature's other half waits")]
        #[inline]
        pub(crate) async fn reached(&self, _: &'static str) -> Result<(), sqlx::Error> {
            Ok(())
        }
    }
}

#[cfg(not(feature = "failpoints"))]
pub(crate) use off::FailPoints;
#[cfg(feature = "failpoints")]
pub use on::FailPoints;
