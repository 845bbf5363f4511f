//! What the examples have in common. Each example takes the whole of it by
//! `#[path = "../shared/mod.rs"] mod shared;`.
//!
//! | module | what it is |
//! |---|---|
//! | [`args`], [`values`] | settings from flags and environment variables: one table of options makes parser and help |
//! | [`plan`] | the traffic: a pure function of its settings and a seed |
//! | [`schedule`] | when each of the three producers tries again, and when it gives up: the test kit's own text |
//! | [`preset`], [`sign`] | how a producer's request looks and is signed |
//! | [`client`], [`engine`], [`report`] | sends a plan over real HTTP and says what came back |
//! | [`ledger`] | what the receiver's ledger must say afterwards |
#![allow(
    dead_code,
    reason = "no example uses all of it, and each compiles it for itself"
)]

pub(crate) mod args;
pub(crate) mod client;
pub(crate) mod engine;
pub(crate) mod ledger;
pub(crate) mod plan;
pub(crate) mod preset;
pub(crate) mod report;
#[path = "../../src/testkit/schedule.rs"]
#[allow(unreachable_pub, reason = "the test kit's text, which is public there")]
pub(crate) mod schedule;
pub(crate) mod sign;
pub(crate) mod values;
