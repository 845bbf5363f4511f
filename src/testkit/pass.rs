//! Virtual time passes as real time would: whatever becomes due in a pause is done when it is due.

use std::future::Future;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use super::clock::VirtualClock;
use super::database::TestBackend;
use super::ground::Ground as _;
use super::kit::{Inner, Kit};
use crate::clock::{Clock as _, Timestamp};
use crate::order::due;

impl<DB: TestBackend> Kit<DB> {
    /// Lets so much virtual time pass, from one instant at which the worker has something to do to the next: a run that
    /// fails is tried again after each of its backoffs, and a gap is given up at the end of its window. Nothing that is due
    /// is left then. [`VirtualClock::advance`] alone jumps: what became due on the way is all done at the end.
    ///
    /// # Panics
    /// If the kit has no [clock](Kit::clock) to move, or as [`Kit::settled`], which waits at each of these instants.
    #[track_caller]
    pub fn advance(&self, by: Duration) -> impl Future<Output = ()> + Send + use<DB> {
        let (inner, caller) = (Arc::clone(&self.inner), Location::caller());
        async move {
            let Some(clock) = inner.movable() else {
                panic!("there is no clock to move ({caller}): Kit::clock says which one");
            };
            inner.pass(&clock, clock.now().plus(by), caller).await;
            inner.settle(caller).await;
        }
    }
}

impl<DB: TestBackend> Inner<DB> {
    /// Does all that is due before this time, each at its own, and moves the clock there: what is due just then is not
    /// done yet.
    pub(super) async fn pass(
        &self,
        clock: &VirtualClock,
        until: Timestamp,
        caller: &'static Location<'static>,
    ) {
        loop {
            self.settle(caller).await;
            // By the clock that is moved: should the inbox have another one, this comes to an end all the same.
            match due::next(&self.inbox().shared, clock.now()).await {
                Ok(Some(next)) if next < until => clock.advance_to(next),
                Ok(_) => break,
                Err(error) => {
                    panic!("the database cannot be asked what is due ({caller}): {error}")
                }
            }
        }
        clock.advance_to(until);
    }
}
