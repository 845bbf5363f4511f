//! What retention costs deliveries: the 99th percentile of live deliveries while old rows are removed beside them, over the
//! same without. `cargo bench --all-features --bench purge -- [--quick]`
//!
//! On SQLite, and where `TEST_POSTGRES_URL` and `TEST_MYSQL_URL` are set on those, in a database of its own each. The last
//! lines are `bar <name> <median> (<min>-<max>) goal <goal>`; each round compares two slices that ran in turns.

#![allow(clippy::print_stdout, reason = "its result is what it prints")]

#[path = "drain/place.rs"]
#[allow(dead_code, reason = "the other bench measures bytes as well")]
mod place;
#[path = "purge/run.rs"]
mod run;

fn main() {
    run::main();
}
