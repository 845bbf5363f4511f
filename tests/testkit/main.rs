//! The test kit, as a team that tests its own handlers uses it.
#![allow(clippy::print_stderr, reason = "what is left out is said there")]

mod check;
mod databases;
mod doubts;
mod effects;
mod lines;
mod networks;
mod passing;
mod presets;
mod producers;
mod stories;
mod support;
