//! A receiver in another process: nothing is known of it but its answers.

use std::panic::Location;
use std::sync::Arc;

use http::Request;

use super::clock::VirtualClock;
use super::ground::Ground;
use super::log::Log;
use super::receive::{Boxed, Sent};
use super::reply::Reply;
use super::story::{Stored, Story};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::probe::Probe;

#[derive(Default)]
pub(super) struct Elsewhere(Log);

impl Ground for Elsewhere {
    fn log(&self) -> &Log {
        &self.0
    }

    fn time(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    fn movable(&self) -> Option<VirtualClock> {
        None
    }

    fn receive(&self, _: Request<Sent>) -> Boxed<'static, Option<Reply>> {
        panic!("where to? Producer::over says it, or Kit::producer makes one that has an app");
    }

    fn expect(&self, _: String, _: &Probe) {}

    fn path(&self) -> Option<String> {
        None
    }

    fn is_here(&self) -> bool {
        false
    }

    fn story<'a>(&'a self, name: &'a str) -> Boxed<'a, Story> {
        Box::pin(async move {
            let mut story = self.0.story(name);
            story.is_here = false;
            story.stored = Stored::NotAsked("not asked: the receiver is elsewhere".into());
            story
        })
    }

    fn settled(&self, _: &'static Location<'static>) -> Boxed<'_, ()> {
        Box::pin(async {})
    }

    fn passed(&self, _: Timestamp, _: &'static Location<'static>) -> Boxed<'_, ()> {
        Box::pin(async {})
    }

    fn restarted(&self) -> Boxed<'_, ()> {
        panic!("only Kit::restartable makes an app that can be restarted");
    }
}
