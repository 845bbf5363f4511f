//! The scenes of the walk: small, and each may be played again from its beginning on what a crash has left.

mod orders;
mod others;
mod plain;

use std::pin::Pin;
use std::sync::Arc;

use crate::db::TestDb;
use crate::kit::Setup;
use crate::walk::hook::Besides;
use crate::walk::play::{Expected, Play, Stage};

pub(crate) use self::orders::{adopting, batch, expiry, newer, operators, stream};
pub(crate) use self::others::{bursts, fenced, forgetting, group, reconciling};
pub(crate) use self::plain::{beats, deferred, handed_back, hot, live, shared};

/// Not to be sent to other threads: each run has a runtime of its own, in one.
pub(crate) type Playing = Pin<Box<dyn Future<Output = ()>>>;

/// A scene.
pub(crate) struct Scene<D: TestDb> {
    pub(crate) name: &'static str,
    pub(crate) setup: fn(Setup<D>, &Stage) -> Setup<D>,
    /// Statements on the clean database.
    pub(crate) before: &'static [&'static str],
    pub(crate) besides: Besides,
    pub(crate) play: fn(Arc<Play<D>>) -> Playing,
    pub(crate) expected: Expected,
    /// The points that it is walked for, all of which it comes by.
    pub(crate) points: &'static [&'static str],
    /// The same, on one database alone.
    pub(crate) on: &'static [(&'static str, &'static str)],
}

impl<D: TestDb> Scene<D> {
    pub(crate) fn points(&self) -> impl Iterator<Item = &'static str> {
        let own = self.on.iter().filter(|(database, _)| *database == D::NAME);
        self.points
            .iter()
            .copied()
            .chain(own.map(|(_, point)| *point))
    }
}

/// Points that no scene is walked for, and why not.
pub(crate) const NOT_WALKED: &[(&str, &str)] = &[
    (
        "store.bracket",
        "only where statements have no names, behind a pooler",
    ),
    (
        "store.next_due",
        "only the test kit asks for it, to move its clock",
    ),
    ("store.schema", "only health checks ask for it"),
    ("store.workers", "a look from outside: no event comes by"),
    ("store.reconciliations", "a look from outside, too"),
    ("store.count_stale", "a look from outside, too"),
    ("store.claim_flush", OF_STATISTICS),
    ("store.add_stats", OF_STATISTICS),
    ("store.stats", OF_STATISTICS),
    ("store.stale_stats", OF_STATISTICS),
    ("store.purge_stats", OF_STATISTICS),
    ("store.purge_notes", OF_STATISTICS),
    ("store.use_secret", OF_STATISTICS),
    ("store.secret_uses", OF_STATISTICS),
    ("store.stored_now", OF_STATISTICS),
    ("store.reconciled", OF_STATISTICS),
    ("store.take_row_count", OF_STATISTICS),
    ("store.count_rows", OF_STATISTICS),
    ("store.save_row_count", OF_STATISTICS),
    ("store.row_counts", OF_STATISTICS),
];

/// Their own tests have them fail.
const OF_STATISTICS: &str =
    "no event depends on the statistics, and they come by in their own time";
