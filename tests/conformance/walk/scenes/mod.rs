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

pub(crate) use self::orders::{adopting, expiry, newer, operators, stream};
pub(crate) use self::others::{bursts, fenced, forgetting, group, reconciling};
pub(crate) use self::plain::{beats, deferred, handed_back, live};

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
];
