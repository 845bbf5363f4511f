//! The built command `tower-inbox`, driven as an operator would: on each database, beside a receiver that is at work.
#![allow(
    clippy::print_stderr,
    reason = "a test says on stderr what it leaves out"
)]

mod cursors;
mod dry_runs;
mod hostile;
mod letters;
mod looking;
mod on_call;
mod plain;
mod races;
mod sending;
#[path = "../support/mod.rs"]
mod support;
mod tables;
mod waiting;
mod world;
