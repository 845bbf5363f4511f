//! The three seed documents, clause by clause, with both sides simulated in virtual time.
//!
//! `docs/brief.md`, `docs/consistency.md` and `docs/kudos.md` name the test of each clause; [`pages`] holds them to it.
//! The producers are the examples' own: their requests, their signatures, and their schedules.

mod brief;
mod consistency;
mod idempotency_key;
mod kudos;
mod kudos_handler;
mod pages;
mod producer;
mod reactions;
mod recovery;
