//! How often a delivery is tried, each time in a fresh transaction (§4.7).

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use tokio::time::{Instant, sleep_until};

use super::{BoxError, BoxFuture, Run};

/// The tries in which the handler ran: the first, and at most two again.
const RUNS: u32 = 3;
/// All tries. One that fails before the handler's turn costs little, and on MySQL several that wait for one row are
/// deadlocked again and again when it is given back.
const TRIES: u32 = 12;
/// The longest pause before another try, so that those that failed together do not come back together.
const PAUSE: Duration = Duration::from_millis(64);

/// The handler of one delivery, and how often it was tried.
pub(super) struct Tries<'a, R> {
    handler: &'a mut dyn Run<R>,
    ran: bool,
    runs: u32,
    all: u32,
}

impl<'a, R> Tries<'a, R> {
    pub(super) fn new(handler: &'a mut dyn Run<R>) -> Self {
        Self {
            handler,
            ran: false,
            runs: 0,
            all: 0,
        }
    }

    /// After a try that is worth another one: waits a moment, outside of any transaction. False if that was the last.
    pub(super) async fn again(&mut self, deadline: Instant) -> bool {
        self.all += 1;
        self.runs += u32::from(std::mem::take(&mut self.ran));
        if self.runs >= RUNS || self.all >= TRIES {
            return false;
        }
        let longest = Duration::from_millis(1 << self.all.min(16)).min(PAUSE);
        let until = Instant::now() + longest.mul_f64(fastrand::f64());
        sleep_until(until.min(deadline)).await;
        Instant::now() < deadline
    }
}

impl<R> Run<R> for Tries<'_, R> {
    fn run(&mut self, request: Request<Bytes>) -> BoxFuture<Result<Response<R>, BoxError>> {
        self.ran = true;
        self.handler.run(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Never;

    impl Run<Bytes> for Never {
        fn run(&mut self, _: Request<Bytes>) -> BoxFuture<Result<Response<Bytes>, BoxError>> {
            Box::pin(std::future::pending())
        }
    }

    /// §4.7
    #[tokio::test(start_paused = true)]
    async fn the_handler_runs_at_most_twice_again_and_tries_without_it_are_bounded_too() {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut never = Never;
        let mut tries = Tries::new(&mut never);
        for more in [true, true, false] {
            drop(tries.run(Request::default()));
            assert_eq!(tries.again(deadline).await, more);
        }
        let mut tries = Tries::new(&mut never);
        for _ in 1..TRIES {
            assert!(tries.again(deadline).await);
        }
        assert!(!tries.again(deadline).await);
    }

    /// §4.7
    #[tokio::test(start_paused = true)]
    async fn nothing_is_tried_again_beyond_the_deadline() {
        let mut never = Never;
        let mut tries = Tries::new(&mut never);
        assert!(!tries.again(Instant::now()).await);
    }
}
