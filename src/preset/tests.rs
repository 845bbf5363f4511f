//! The table's own rules.

use std::collections::HashSet;
use std::time::Duration;

use super::Preset;
use crate::verify::{Secret, Signer};

/// Every row builds, is found by its name, and can be signed for.
#[test]
fn every_row_works() {
    let mut names = HashSet::new();
    for preset in Preset::ALL {
        assert!(names.insert(preset.name), "{} is there twice", preset.name);
        assert_eq!(
            Preset::named(preset.name).map(|found| found.name),
            Some(preset.name)
        );
        assert_eq!(preset.scheme().name(), preset.name);
        assert!(
            Signer::new(&preset.scheme(), [Secret::text("s").unwrap()]).is_ok(),
            "{}",
            preset.name
        );
        assert!(preset.patience >= Duration::from_secs(3) && !preset.documented_at.is_empty());
        assert_eq!(preset.mapping().first_sequence(), 1);
    }
    assert!(Preset::named("Kudos").is_none());
}

/// §6.7: which ids the signature does not cover, computed from the rows.
#[test]
fn uncovered_ids() {
    let uncovered: Vec<_> = Preset::ALL
        .iter()
        .filter(|preset| !preset.id_is_covered())
        .map(|preset| preset.name)
        .collect();
    assert_eq!(uncovered, ["github", "shopify", "linear"]);
    assert_eq!(
        Preset::GITHUB.fence_exempt,
        ["ping", "workflow_dispatch", "repository_dispatch"]
    );
}

/// §4.12: only these producers promise that content never changes.
#[test]
fn content_policies() {
    let rejecting: Vec<_> = Preset::ALL
        .iter()
        .filter(|preset| preset.mapping().content_policy().rejects())
        .map(|preset| preset.name)
        .collect();
    assert_eq!(rejecting, ["kudos", "sequenced", "brief"]);
}

/// §7.1: `brief` keys are kept for 73 hours at least, skew included.
#[test]
fn retention_floor_of_brief() {
    let floor = Preset::BRIEF.retention_floor() + Duration::from_secs(600);
    assert!(floor >= Duration::from_secs(72 * 3_600) && floor <= Duration::from_secs(73 * 3_600));
}
