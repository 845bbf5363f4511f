//! Why a command did not do what it was asked for, and the exit status that goes with it.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use tower_inbox::{BuildError, BuildErrorKind, OperatorError, OperatorErrorKind};

use crate::database;

/// What `--help` says about exit statuses.
pub(crate) const STATUSES: &str = "\
Exit status:
  0  done, or so already; nothing wrong was found
  1  refused, not found, only done in part, or something is not in order (check); the reason is on standard error
  2  the command line or a file is wrong, or what cannot be undone was not confirmed (--yes)
  3  the database, or the receiver (send), cannot be asked now
  4  the inbox's tables are missing or older than this command: tower-inbox migrate
  130  interrupted in a long work: what was done is told, and stays done

`explain` has its own: 0 it verifies, 1 it does not, 2 the command line or a file is wrong.";

/// Why it was not done.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Somebody said no, or there is no such thing.
    Refused(String),
    /// A wrong command line: what is wrong with it.
    Usage(String),
    /// Somebody does not answer.
    Away(String),
    /// The tables are not there.
    Schema(String),
}

impl Failure {
    pub(crate) fn usage(why: impl Into<String>) -> Self {
        Self::Usage(why.into())
    }

    pub(crate) fn refused(why: impl Into<String>) -> Self {
        Self::Refused(why.into())
    }

    /// All that is wrong with a command line, and not one thing after the other.
    pub(crate) fn all_of<const N: usize>(checks: [Result<(), Self>; N]) -> Result<(), Self> {
        let mut wrong = Vec::new();
        for check in checks {
            match check {
                Ok(()) => {}
                Err(Self::Usage(why)) => wrong.push(why),
                Err(other) => return Err(other),
            }
        }
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(Self::Usage(wrong.join("\n"))),
        }
    }

    /// Neither the tables nor the server are at fault.
    fn pooler(why: &str) -> Self {
        Self::Refused(format!(
            "{why} (behind PgBouncer in transaction mode DATABASE_URL must have the parameter statement-cache-capacity=0)"
        ))
    }

    pub(crate) fn status(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Refused(_) => 1,
            Self::Usage(_) => 2,
            Self::Away(_) => 3,
            Self::Schema(_) => 4,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Refused(why) | Self::Usage(why) | Self::Away(why) | Self::Schema(why)) = self;
        f.write_str(&database::without_passwords(why))?;
        match self {
            Self::Usage(_) => f.write_str("; see --help"),
            _ => Ok(()),
        }
    }
}

/// A prepared statement is not there, or there already: somebody between gives sessions other connections.
fn is_of_a_pooler(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let database = error.downcast_ref::<sqlx::Error>();
        let database = database.and_then(|error| error.as_database_error());
        if let Some(code) = database.and_then(|error| error.code())
            && matches!(&*code, "26000" | "42P05")
        {
            return true;
        }
        next = error.source();
    }
    false
}

impl From<OperatorError> for Failure {
    fn from(error: OperatorError) -> Self {
        let why = error.to_string();
        if is_of_a_pooler(&error) {
            return Self::pooler(&why);
        }
        match error.kind() {
            OperatorErrorKind::Busy | OperatorErrorKind::Database => Self::Away(why),
            OperatorErrorKind::Invalid => Self::Usage(why),
            // As the library's methods are called here.
            OperatorErrorKind::SetAside => Self::Refused(
                "its sequence is skipped or passed, so that its turn never comes: --out-of-order applies it all the same"
                    .into(),
            ),
            OperatorErrorKind::InTurn => Self::Refused(
                "its turn is still to come: leave --out-of-order away, or skip what it waits for".into(),
            ),
            OperatorErrorKind::Dead => Self::Refused(
                "it is a dead letter, which nobody tries by himself: tower-inbox dead replay".into(),
            ),
            OperatorErrorKind::Fenced => {
                Self::Refused("it is held by the fence: tower-inbox dead release".into())
            }
            _ => Self::Refused(why),
        }
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        let why = error.to_string();
        if is_of_a_pooler(&error) {
            return Self::pooler(&why);
        }
        match error.kind() {
            BuildErrorKind::Database => Self::Away(why),
            BuildErrorKind::Schema => Self::Schema(why),
            // What the library's check says is for programs.
            BuildErrorKind::UnsafeSetting if why.contains("statement_cache_capacity(0)") => {
                Self::pooler(&why)
            }
            BuildErrorKind::UnsafeSetting => Self::Refused(why),
            _ => Self::Usage(why),
        }
    }
}
