//! What the inbox promises, rule by rule, on every database that it supports.
//!
//! Each test is written once, over a [`db::TestDb`], and becomes one test for each database, in a module that names
//! the database: `order::sqlite::…`. Each gets a database of its own. What a test shows is in its name; the rules of the
//! contract that it shows stand in its doc comment.
//!
//! `TOWER_INBOX_TEST_DATABASES` (comma-separated) lists what must be tested: another database is left out then, and a
//! listed one that cannot be reached fails. `TOWER_INBOX_TEST_SEED` repeats a random test: each prints its seed.

#![allow(
    clippy::print_stderr,
    reason = "a test says on stderr what it leaves out, and its seed"
)]

#[macro_use]
mod db;
mod kit;
#[cfg(all(unix, any(feature = "postgres", feature = "mysql")))]
#[path = "../support/stopped.rs"]
mod stopped;

mod adopt;
#[cfg(feature = "failpoints")]
mod adopt_races;
mod answers;
#[cfg(feature = "failpoints")]
mod batch;
#[cfg(feature = "failpoints")]
mod batch_members;
#[cfg(feature = "failpoints")]
mod batch_races;
#[cfg(feature = "failpoints")]
mod broken;
mod bursts;
mod cancellation;
mod concurrency;
mod content;
mod dead_letters;
mod deferred;
mod door;
mod drain;
mod elements;
mod erasure;
mod exactly_once;
#[cfg(feature = "failpoints")]
mod expiry;
mod failure_answers;
mod faults;
mod fence;
#[cfg(feature = "failpoints")]
mod follower_races;
mod followers;
mod generations;
#[cfg(feature = "failpoints")]
mod group_commit;
#[cfg(feature = "failpoints")]
mod group_commit_members;
#[cfg(feature = "failpoints")]
mod group_commit_races;
#[cfg(feature = "failpoints")]
mod group_commit_stream_members;
#[cfg(feature = "failpoints")]
mod group_commit_stream_races;
#[cfg(feature = "failpoints")]
mod group_commit_streams;
mod guard;
mod health;
#[cfg(feature = "failpoints")]
mod health_races;
#[cfg(feature = "failpoints")]
mod held_up;
mod identifiers;
mod isolation;
mod keeping;
mod layers;
#[cfg(feature = "failpoints")]
mod lease_races;
mod leases;
#[cfg(feature = "failpoints")]
mod letter_races;
mod letters;
mod limits;
mod memory;
mod metrics;
mod metrics_of_tenants;
mod migrations;
mod newer;
mod not_yet;
mod operator_races;
mod operators;
mod order;
#[cfg(all(unix, any(feature = "postgres", feature = "mysql")))]
mod outage;
mod parking;
#[cfg(feature = "failpoints")]
mod points;
mod progress;
mod reconcile;
#[cfg(feature = "failpoints")]
mod reconcile_races;
mod rehearsal;
mod restore;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod round_trips;
#[cfg(feature = "failpoints")]
mod schedules;
mod schema;
#[cfg(feature = "failpoints")]
mod seams;
mod secrets;
mod seeds;
mod sessions;
mod settings;
/// The producers of the examples: the seeds' own schedules.
#[path = "../../examples/shared/mod.rs"]
mod shared;
mod skips;
mod statements;
mod stats;
#[cfg(feature = "failpoints")]
mod stats_faults;
mod stored_answers;
mod tenants;
mod try_now;
mod verdicts;
mod views;
mod waiting;
mod wake;
#[cfg(feature = "failpoints")]
mod walk;
