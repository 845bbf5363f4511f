//! Errors that reach the user's code.

use std::fmt;

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
        Self {
            kind: BuildErrorKind::Schema,
            message: format!("the inbox tables could not be brought up to date: {error}"),
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

/// Why an operator's action was not carried out. It is safe to repeat.
#[derive(Debug)]
pub struct OperatorError {
    message: String,
    source: Option<sqlx::Error>,
}

impl OperatorError {
    pub(crate) fn database(error: sqlx::Error) -> Self {
        Self {
            message: format!("the database failed: {error}"),
            source: Some(error),
        }
    }

    pub(crate) fn busy(why: &str) -> Self {
        Self {
            message: why.to_owned(),
            source: None,
        }
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
