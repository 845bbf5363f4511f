//! Where producers deliver to: an app in this process, or a receiver elsewhere.

use std::panic::Location;
use std::sync::{Arc, PoisonError};

use http::Request;

use super::clock::VirtualClock;
use super::database::TestBackend;
use super::kit::Inner;
use super::log::Log;
use super::receive::{Boxed, Sent};
use super::reply::Reply;
use super::story::{Stored, Story};
use crate::clock::{Clock, Timestamp};
use crate::order::due;
use crate::probe::Probe;

/// Where a producer delivers to, and who keeps its log.
pub(super) trait Ground: Send + Sync {
    fn log(&self) -> &Log;
    /// The receiver's clock, for probes.
    fn time(&self) -> Arc<dyn Clock>;
    /// The clock that is to be moved.
    fn movable(&self) -> Option<VirtualClock>;
    fn receive(&self, request: Request<Sent>) -> Boxed<'static, Option<Reply>>;
    /// Deliveries of this event will come without a probe.
    fn expect(&self, event_id: String, probe: &Probe);
    /// Where it is delivered to, unless somebody says otherwise.
    fn path(&self) -> Option<String>;
    /// Whether probes are told anything.
    fn is_here(&self) -> bool;
    fn story<'a>(&'a self, name: &'a str) -> Boxed<'a, Story>;
    fn settled(&self, caller: &'static Location<'static>) -> Boxed<'_, ()>;
    /// Lets virtual time pass until then, with all that is due before that.
    fn passed(&self, until: Timestamp, caller: &'static Location<'static>) -> Boxed<'_, ()>;
    fn restarted(&self) -> Boxed<'_, ()>;

    fn now(&self) -> Timestamp {
        self.time().now()
    }
}

impl<DB: TestBackend> Ground for Inner<DB> {
    fn log(&self) -> &Log {
        &self.log
    }

    fn time(&self) -> Arc<dyn Clock> {
        match self.movable() {
            Some(clock) => Arc::new(clock),
            None => Arc::clone(&self.inbox().shared.clock),
        }
    }

    fn movable(&self) -> Option<VirtualClock> {
        let clock = self.clock.read().unwrap_or_else(PoisonError::into_inner);
        clock.clone()
    }

    fn receive(&self, request: Request<Sent>) -> Boxed<'static, Option<Reply>> {
        let running = self.running.read().unwrap_or_else(PoisonError::into_inner);
        running.app.receive(request)
    }

    fn expect(&self, event_id: String, probe: &Probe) {
        self.inbox().shared.probes.expect(event_id, probe);
    }

    fn is_here(&self) -> bool {
        true
    }

    fn path(&self) -> Option<String> {
        let path = self.path.read().unwrap_or_else(PoisonError::into_inner);
        path.clone()
    }

    fn story<'a>(&'a self, name: &'a str) -> Boxed<'a, Story> {
        Box::pin(async move {
            let mut story = self.log.story(name);
            self.look_up(&mut story).await;
            story
        })
    }

    fn settled(&self, caller: &'static Location<'static>) -> Boxed<'_, ()> {
        Box::pin(self.settle(caller))
    }

    fn passed(&self, until: Timestamp, caller: &'static Location<'static>) -> Boxed<'_, ()> {
        Box::pin(async move {
            if let Some(clock) = self.movable() {
                self.pass(&clock, until, caller).await;
            }
        })
    }

    fn restarted(&self) -> Boxed<'_, ()> {
        Box::pin(self.restart_now())
    }
}

impl<DB: TestBackend> Inner<DB> {
    /// Asks the database for the event: as the inbox knows it; or, if no delivery of the kit's was taken, by its name in
    /// each source.
    async fn look_up(&self, story: &mut Story) {
        let inbox = self.inbox();
        let Ok(operator) = inbox.operator("test kit") else {
            return;
        };
        let candidates = match &story.known_as {
            Some(known_as) => vec![known_as.clone()],
            None => {
                let sources = due::every_source(&inbox.shared).into_iter();
                sources
                    .map(|source| (source.name().to_owned(), story.name.clone()))
                    .collect()
            }
        };
        story.stored = Stored::Unknown;
        for (source, id) in candidates {
            match operator.inspect(&source, &id).await {
                Ok(Some(found)) => {
                    story.stored = Stored::As(Box::new(found.letter));
                    story.known_as = Some((source, id));
                    return;
                }
                Ok(None) => {}
                Err(error) => {
                    story.stored =
                        Stored::NotAsked(format!("the database cannot be asked: {error}"));
                    return;
                }
            }
        }
    }
}
