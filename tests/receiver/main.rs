//! The built receiver, driven as a black box over real HTTP: every answer of §3 that it can give, every demo fault.
#![allow(
    clippy::print_stderr,
    reason = "a seed must be told, so that a failure can be repeated"
)]

mod adopt;
mod answers;
mod brief;
mod door;
mod faults;
mod metrics;
mod order;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod outage;
#[cfg(feature = "postgres")]
mod pgbouncer;
mod pool;
mod process;
mod settings;
#[path = "../support/mod.rs"]
mod support;
