//! Work that goes on when nobody waits for it any more.
//!
//! A delivery whose client leaves, and a COMMIT that takes too long, must not be dropped halfway. A task for each of them
//! from the start would do, and costs two changes of threads an event; so they become tasks only when they are dropped.
//! Whoever holds one and neither polls nor drops it holds a transaction up, until the database's own limits end that.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tracing::{Instrument as _, Span};

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// It panicked, and was dropped then.
#[derive(Debug)]
pub(crate) struct Panicked;

/// A future that becomes a task if it is dropped before its end.
pub(crate) struct Outlives<T: Send + 'static> {
    work: Option<Work<T>>,
    /// What is done with its result if nobody is there for it.
    left_over: fn(T),
    runtime: Option<Handle>,
}

impl<T: Send + 'static> Outlives<T> {
    /// Goes on on `runtime`; without one it is dropped as any other future.
    pub(crate) fn new(
        runtime: Option<Handle>,
        left_over: fn(T),
        work: impl Future<Output = T> + Send + 'static,
    ) -> Self {
        Self {
            work: Some(Box::pin(work)),
            left_over,
            runtime,
        }
    }
}

impl<T: Send + 'static> Future for Outlives<T> {
    type Output = Result<T, Panicked>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let work = self.work.as_mut().expect("nobody asks again after the end");
        // As a task's would be: what panics here is ours, since a handler's panic is caught nearer to it.
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        let ended = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(_) => Err(Panicked),
        };
        self.work = None;
        Poll::Ready(ended)
    }
}

impl<T: Send + 'static> Drop for Outlives<T> {
    fn drop(&mut self) {
        if let (Some(work), Some(runtime)) = (self.work.take(), &self.runtime) {
            let left_over = self.left_over;
            // What it logs from now on still belongs to the delivery that is dropped around it.
            let span = Span::current();
            runtime.spawn(async move { left_over(work.await) }.instrument(span));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use tokio::sync::Notify;
    use tokio::time::timeout;

    use super::*;

    /// §4.5
    #[tokio::test]
    async fn what_is_dropped_halfway_goes_on_to_its_end() {
        let (go, done) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (gone, told) = (Arc::clone(&go), Arc::clone(&done));
        let mut work = Outlives::new(
            Some(Handle::current()),
            |told: Arc<Notify>| told.notify_one(),
            async move {
                gone.notified().await;
                told
            },
        );
        assert!(timeout(Duration::from_millis(1), &mut work).await.is_err());
        drop(work);
        go.notify_one();
        timeout(Duration::from_secs(10), done.notified())
            .await
            .expect("it has ended");
    }

    /// §4.5
    #[tokio::test]
    async fn a_panic_is_an_answer_and_what_it_held_is_dropped() {
        struct Sets(Arc<AtomicBool>);
        impl Drop for Sets {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
            }
        }
        let dropped = Arc::new(AtomicBool::new(false));
        let held = Sets(Arc::clone(&dropped));
        let work = Outlives::new(None, drop, async move {
            let _held = held;
            tokio::task::yield_now().await;
            panic!("in a test")
        });
        let ended: Result<(), Panicked> = work.await;
        assert!(ended.is_err() && dropped.load(Ordering::Acquire));
    }
}
