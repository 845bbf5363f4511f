//! What tests are made of: an inbox at work, events, answers, and ways to look and to wait.

mod event;
mod probe;
mod replays;
mod reply;
mod setup;
mod wait;
pub(crate) mod watch;
mod world;

use std::future::Future;
use std::pin::Pin;

pub(crate) use self::event::{Event, Feed, numbered};
pub(crate) use self::probe::Gate;
pub(crate) use self::replays::{Replays, item};
pub(crate) use self::reply::Reply;
pub(crate) use self::setup::{Call, Setup};
pub(crate) use self::wait::{TestClock, eventually, seeded, within};
pub(crate) use self::world::{SOURCE, World, http, now};

/// A boxed future, for handlers in tables.
pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
