//! How many events a second, beside what a team would write by hand, on the same machine in the same run.
//! `cargo bench --all-features --bench throughput -- [--list] [--only NAME]... [--quick] [--write FILE]`
//!
//! Each side is a process of its own, and so is the database: their CPU time is told apart. The sides take turns (A B A B),
//! so that what disturbs the machine disturbs both. The last lines are `bar <name> <median> (<min>-<max>) goal <goal>`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "its result is what it prints"
)]

mod apart;
mod arguments;
mod catalogue;
mod fill;
mod gate;
mod groups;
mod install;
mod load;
mod machine;
mod memory;
mod pace;
#[path = "../peers/axum/mod.rs"]
mod peer;
mod pgbench;
mod place;
mod process;
mod report;
mod requests;
mod rounds;
mod serve;
mod servers;
mod sides;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, rest @ ..] = &arguments[..]
        && first == "serve"
    {
        return serve::main(rest);
    }
    let arguments = arguments::read(&arguments);
    if arguments.list {
        return catalogue::list();
    }
    // One thread makes the load: what it costs is seen as the share of one core.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(rounds::all(&arguments));
}
