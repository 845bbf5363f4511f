//! A few statements of our own in a transaction, with nobody's handler in it.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::open::Open;
use super::{Stop, within};
use crate::error::OperatorError;
use crate::fail::at;
use crate::shared::Shared;
use crate::store::{Backend, Fault};

/// From the first try to the last answer.
const BUDGET: Duration = Duration::from_secs(10);
/// The longest pause before another try, so that those that failed together do not come back together.
const PAUSE: Duration = Duration::from_millis(64);

/// How a transaction of ours ends.
pub(crate) enum Ended<T> {
    Commit(T),
    RollBack(T),
}

/// What is done in one. It may be begun again.
pub(crate) trait Own<DB: Backend>: Sync {
    type Done: Send;
    /// It is about events, and passes the fail points of what is decided about them.
    const OF_AN_EVENT: bool = true;

    fn once(
        &self,
        shared: &Shared<DB>,
        conn: &mut DB::Connection,
    ) -> impl Future<Output = Result<Ended<Self::Done>, Stop>> + Send;
}

/// The same, with nothing left of it: what it comes to is known by then.
pub(crate) struct Rehearsed<'a, W>(pub(crate) &'a W);

impl<DB: Backend, W: Own<DB>> Own<DB> for Rehearsed<'_, W> {
    type Done = W::Done;
    const OF_AN_EVENT: bool = W::OF_AN_EVENT;

    async fn once(
        &self,
        shared: &Shared<DB>,
        conn: &mut DB::Connection,
    ) -> Result<Ended<W::Done>, Stop> {
        let (Ended::Commit(done) | Ended::RollBack(done)) = self.0.once(shared, conn).await?;
        Ok(Ended::RollBack(done))
    }
}

/// Does it, and again in a fresh transaction after a transient fault, for at most ten seconds in all.
pub(crate) async fn own<DB: Backend, W: Own<DB>>(
    shared: &Shared<DB>,
    work: &W,
) -> Result<W::Done, Stop> {
    let deadline = Instant::now() + BUDGET;
    let mut tries = 0;
    loop {
        let stop = match once(shared, work, deadline).await {
            Ok(done) => return Ok(done),
            Err(stop) => stop,
        };
        let transient = match &stop {
            Stop::Again => true,
            Stop::Database(error) => DB::fault(error) == Fault::Transient,
            Stop::Budget | Stop::Answer(_) => false,
        };
        tries += 1;
        let longest = Duration::from_millis(1 << tries.min(16)).min(PAUSE);
        let until = Instant::now() + longest.mul_f64(fastrand::f64());
        if Instant::now() >= deadline {
            return Err(Stop::Budget);
        }
        if !transient {
            return Err(stop);
        }
        sleep_until(until.min(deadline)).await;
    }
}

async fn once<DB: Backend, W: Own<DB>>(
    shared: &Shared<DB>,
    work: &W,
    deadline: Instant,
) -> Result<W::Done, Stop> {
    if W::OF_AN_EVENT {
        shared.fail.reached(at::OPENING).await?;
    }
    let mut open = Open::begin(shared, deadline).await?;
    let ended = within(deadline, work.once(shared, open.conn())).await?;
    if W::OF_AN_EVENT {
        shared.fail.reached(at::DECIDED).await?;
    }
    match ended {
        Ended::Commit(done) => {
            open.commit(deadline).await?;
            Ok(done)
        }
        Ended::RollBack(done) => {
            open.roll_back(deadline).await?;
            Ok(done)
        }
    }
}

impl From<Stop> for OperatorError {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Database(error) => Self::database(error),
            Stop::Answer(answer) => Self::busy(answer.reason()),
            Stop::Budget | Stop::Again => Self::busy("the database is busy"),
        }
    }
}
