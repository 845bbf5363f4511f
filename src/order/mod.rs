//! Parked events: drained in order, given up after their window, counted.
//!
//! *Due* is computed, never stored: an event is due when it is parked (or dead for a gap) and its sequence equals the
//! cursor. A worker therefore only needs to look; a wake that is lost costs a poll, and nothing else.

mod drain;
mod upkeep;
pub(crate) mod worker;

pub(crate) use worker::Worker;
