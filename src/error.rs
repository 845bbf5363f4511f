//! Errors that reach the user's code.

use std::fmt;

use crate::operator::Seen;

/// Why an inbox was not built. Its text says what to write instead.
#[derive(Debug)]
pub struct BuildError {
    kind: BuildErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The kinds of [`BuildError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildErrorKind {
    /// A setting that cannot keep the contract.
    UnsafeSetting,
    /// A source without a usable secret.
    Secret,
    /// A name that cannot be used, or is used twice.
    Name,
    /// The tables are missing or older than this crate.
    Schema,
    /// The database could not be asked.
    Database,
}

impl BuildError {
    pub(crate) fn new(kind: BuildErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn because(mut self, error: sqlx::Error) -> Self {
        self.source = Some(Box::new(error));
        self
    }

    pub(crate) fn unsafe_setting(message: impl Into<String>) -> Self {
        Self::new(BuildErrorKind::UnsafeSetting, message)
    }

    /// Which kind it is.
    pub fn kind(&self) -> BuildErrorKind {
        self.kind
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl From<sqlx::Error> for BuildError {
    fn from(error: sqlx::Error) -> Self {
        Self {
            kind: BuildErrorKind::Database,
            message: format!("the database could not be asked: {error}"),
            source: Some(Box::new(error)),
        }
    }
}

impl From<sqlx::migrate::MigrateError> for BuildError {
    fn from(error: sqlx::migrate::MigrateError) -> Self {
        let why = match &error {
            // A text of ours, which the driver's would precede with words about the files.
            sqlx::migrate::MigrateError::Source(why) => why.to_string(),
            error => error.to_string(),
        };
        Self {
            kind: BuildErrorKind::Schema,
            message: format!("the inbox tables could not be brought up to date: {why}"),
            source: Some(Box::new(error)),
        }
    }
}

/// Why a handler did not get its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TxError {
    /// The request did not come through an inbox of this database.
    NoInbox,
    /// The transaction is lent out already, or the delivery is over.
    Taken,
}

impl fmt::Display for TxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoInbox => {
                "no inbox transaction in this request: mount the route with `inbox.mount(…)`, over the same database"
            }
            Self::Taken => "the inbox transaction of this delivery is taken already",
        })
    }
}

impl std::error::Error for TxError {}

/// Why an operator's action was not carried out. Nothing of it was, unless the kind is [`OperatorErrorKind::Busy`] or
/// [`OperatorErrorKind::Database`] and the answer to a commit was lost; it is safe to repeat.
#[derive(Debug)]
pub struct OperatorError {
    kind: OperatorErrorKind,
    message: String,
    source: Option<sqlx::Error>,
}

/// The kinds of [`OperatorError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OperatorErrorKind {
    /// The database or its pool is busy, for ten seconds by now.
    Busy,
    /// The database failed.
    Database,
    /// A value that cannot be what was meant, such as an empty reason.
    Invalid,
    /// There is no such event, or nothing is known of such a stream.
    NotFound,
    /// The cursor is not where the operator saw it any more: look again, and decide again.
    CursorMoved {
        /// Where it is.
        now: Seen,
    },
    /// The event is applied, or the sequence is passed.
    Applied,
    /// The event's place is skipped, passed, or of an earlier generation, so that its turn never comes:
    /// [`Operator::replay_out_of_order`](crate::Operator::replay_out_of_order) applies it all the same.
    SetAside,
    /// The event's turn is still to come, so that it is not applied out of its order.
    InTurn,
    /// Another event id has taken the dead letter's place.
    Yielded,
    /// Over the bound on parking the body was not kept, so that there is nothing to hand over: have the producer send
    /// it again.
    BodyNotKept,
    /// The event is held by the fence: [`Inbox::release_fenced`](crate::Inbox::release_fenced).
    Fenced,
    /// The event is discarded or superseded, for good.
    Closed,
    /// The stream has not begun: it waits for its lowest sequence to settle.
    NotBegun,
    /// The event is a dead letter, and nobody tries it by himself:
    /// [`Operator::replay`](crate::Operator::replay) puts it back.
    Dead,
}

impl OperatorError {
    pub(crate) fn database(error: sqlx::Error) -> Self {
        Self {
            kind: OperatorErrorKind::Database,
            message: format!("the database failed: {error}"),
            source: Some(error),
        }
    }

    pub(crate) fn busy(why: &str) -> Self {
        Self::new(OperatorErrorKind::Busy, why)
    }

    pub(crate) fn invalid(why: &str) -> Self {
        Self::new(OperatorErrorKind::Invalid, why)
    }

    /// And what was done before it.
    pub(crate) fn after(mut self, done: &str) -> Self {
        self.message = format!("{}; {done}", self.message);
        self
    }

    fn new(kind: OperatorErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// With the text that goes with the kind.
    pub(crate) fn refused(kind: OperatorErrorKind) -> Self {
        use OperatorErrorKind as Kind;
        let message = match kind {
            Kind::CursorMoved { now } => {
                return Self::new(kind, format!("the cursor has moved: it is {now} now"));
            }
            Kind::Busy => "the database is busy",
            Kind::Database => "the database failed",
            Kind::Invalid => "a value that cannot be used",
            Kind::NotFound => "nothing is known of it",
            Kind::Applied => "it is applied already",
            Kind::SetAside => {
                "its sequence is skipped or passed, so that its turn never comes: `replay_out_of_order` applies it all \
                 the same"
            }
            Kind::InTurn => "its turn is still to come: `replay`, or skip what it waits for",
            Kind::Yielded => "another event id has taken its place",
            Kind::BodyNotKept => {
                "its request was not kept, since the source was over its bound on parking, or was erased: have it sent again"
            }
            Kind::Fenced => "it is held by the fence: `release_fenced`",
            Kind::Closed => "it is discarded or superseded",
            Kind::NotBegun => "its stream has not begun yet",
            Kind::Dead => "it is a dead letter: `replay` puts it back",
        };
        Self::new(kind, message)
    }

    /// Which kind it is.
    pub fn kind(&self) -> OperatorErrorKind {
        self.kind
    }
}

impl fmt::Display for OperatorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for OperatorError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
