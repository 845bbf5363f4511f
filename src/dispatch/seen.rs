//! What a probe is told of an event's way through the transaction.

use http::Response;

use super::{BoxError, Entered, Job, Settled, Stop};
use crate::error::TxError;
use crate::probe::{Happened, Loss};
use crate::store::{Backend, Fault};

impl<DB: Backend> Job<'_, DB> {
    /// Tells the event's probe, if it has one. Nothing without the feature `testkit`.
    #[inline]
    pub(super) fn saw(&self, happened: impl FnOnce() -> Happened) {
        self.shared.probes.saw(self.key(), happened);
    }

    /// Of a COMMIT that has failed: only a transaction that is to be tried again is known to be undone.
    pub(super) fn doubts(&self, failed: &Stop) {
        let is_undone = match failed {
            Stop::Database(error) => DB::fault(error) == Fault::Transient,
            _ => false,
        };
        if !is_undone {
            self.saw(|| Happened::InDoubt);
        }
    }
}

impl<R> Settled<R> {
    pub(super) fn seen(&self) -> Happened {
        Happened::Settled(self.end, self.reply.outcome())
    }
}

impl Entered {
    pub(super) fn seen(&self) -> Happened {
        Happened::Entered(match self {
            Self::Run { from: None } => "it is new",
            Self::Run { from: Some(_) } => "it is stored, and its turn has come",
            Self::Duplicate {
                other_content: false,
            } => "it was applied before",
            Self::Duplicate {
                other_content: true,
            } => "it is known with other content",
            Self::Park { .. } => "lower sequences have not come yet: it is to be parked",
            Self::Parked { .. } => "it is parked already",
            Self::Fence { .. } => "what it carries was signed under another id before",
            Self::Fenced => "the fence holds it already",
            Self::Store => "it is new, and to be stored for a worker",
            Self::Requeue => "it is a dead letter, and to be stored for a worker again",
            Self::Stored => "it is stored for a worker already",
            Self::Supersede { .. } => "a later version was applied before it",
            Self::Superseded => "it is superseded already",
            Self::SetAside => "its place is never waited for, and it is set aside already",
            Self::Aside { .. } => "its place is never waited for: it is to be set aside",
            Self::Discarded => "an operator has discarded it",
            Self::PlaceTaken => "another id holds its sequence",
            Self::Gone => "there is nothing for a worker to do about it any more",
        })
    }
}

/// What came of a handler that was called: nothing if its time was spent, an error if it panicked.
pub(super) fn ended<R>(
    answered: Result<&Result<Result<Response<R>, BoxError>, ()>, ()>,
) -> Happened {
    Happened::Ended(match answered {
        Err(()) => "took longer than it may".into(),
        Ok(Err(())) => "panicked".into(),
        Ok(Ok(Err(error))) => format!("failed: {error}"),
        Ok(Ok(Ok(response))) => {
            let status = response.status().as_u16();
            match response.extensions().get::<TxError>() {
                Some(error) => format!("answers {status}: {error}"),
                None => format!("answers {status}"),
            }
        }
    })
}

/// PostgreSQL's word for a transaction that can only be rolled back.
const ABORTED: &str = "25P02";

/// What RELEASE said of a transaction whose handler had answered with success.
pub(super) fn lost(released: &Result<(), Stop>) -> Happened {
    let aborted = match released {
        Err(Stop::Database(sqlx::Error::Database(error))) => {
            error.code().as_deref() == Some(ABORTED)
        }
        _ => false,
    };
    Happened::Lost(if aborted { Loss::Aborted } else { Loss::Ended })
}
