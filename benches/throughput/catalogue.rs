//! What there is to be said about a measurement: sides that take turns, in groups, and the figures that come out of them.

use crate::fill::Fill;
use crate::groups::GROUPS;
use crate::place::Kind;
use crate::requests::Feed;

/// How a side is run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Run {
    /// By this binary.
    Serve(&'static str),
    Pgbench,
    Fastify,
    Fastapi,
}

#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) label: &'static str,
    pub(crate) run: Run,
    pub(crate) settings: &'static [&'static str],
    pub(crate) feed: Feed,
    /// The status of the answer to an event that was applied before.
    pub(crate) known: u16,
    /// What is in its database already.
    pub(crate) fill: Fill,
}

/// How the sides are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// By connections that each have one request under way.
    Closed,
    /// By half as many requests a second as the slowest of them answers then.
    Half,
}

/// What of the sides is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    Rate,
    /// The 99th percentile of the time to an answer: less is better.
    P99,
}

#[derive(Debug)]
pub(crate) struct Bar {
    pub(crate) name: &'static str,
    pub(crate) of: &'static str,
    pub(crate) over: &'static str,
    pub(crate) measure: Measure,
    pub(crate) goal: &'static str,
}

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) database: Kind,
    /// HTTP connections of the load.
    pub(crate) connections: usize,
    /// Connections of each side's pool.
    pub(crate) pool: usize,
    pub(crate) load: Load,
    /// A name for several groups together.
    pub(crate) topic: &'static str,
    pub(crate) sides: &'static [Side],
    pub(crate) bars: &'static [Bar],
}

/// The topic of what is measured with many rows.
pub(crate) const GROWTH: &str = "growth";
/// The topic of what is measured of memory, which has no sides.
pub(crate) const MEMORY: &str = "memory";
/// The topic of what an event's statements cost one by one, which has none either.
pub(crate) const APART: &str = "apart";

pub(crate) fn list() {
    for bar in GROUPS.iter().flat_map(|group| group.bars) {
        println!(
            "{:36} {:?} of {} over {}, goal {}",
            bar.name, bar.measure, bar.of, bar.over, bar.goal
        );
    }
    println!("{GROWTH}, {MEMORY}, {APART}: all that is about that");
}
