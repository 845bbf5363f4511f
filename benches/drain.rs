//! How fast parked events are drained, and what a stream that is stuck costs the others; and the storage that a parked
//! event takes. `cargo bench --all-features --bench drain -- [--quick]`
//!
//! On SQLite, and where `TEST_POSTGRES_URL` and `TEST_MYSQL_URL` are set on those, in a database of its own each. The last
//! lines are `bar <name> <median> (<min>-<max>) goal <goal>`; each round compares two things that ran in turns.

#![allow(clippy::print_stdout, reason = "its result is what it prints")]

#[path = "drain/place.rs"]
mod place;
#[path = "drain/run.rs"]
mod run;

fn main() {
    run::main();
}
