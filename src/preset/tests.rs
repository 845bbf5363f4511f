//! The table's own rules.

use std::collections::HashSet;
use std::time::Duration;

use super::{Preset, Reaction};
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

/// Each code is in one set at most, a 200 is a success everywhere, and no inbox answers a producer with a code that it
/// takes for something else: 200 delivered, 401 final where the page says so, 429 and 503 tried again.
#[test]
fn answers() {
    for preset in Preset::ALL {
        let (name, answers) = (preset.name, &preset.answers);
        for status in 100..=599 {
            let sets = [answers.success, answers.stop, answers.retry];
            let within = sets
                .into_iter()
                .flatten()
                .filter(|codes| codes.iter().any(|range| range.contains(&status)));
            assert!(within.count() <= 1, "{name}: {status}");
        }
        assert_eq!(answers.reaction(200), Some(Reaction::Delivered), "{name}");
        for (status, wrong) in [
            (401, Reaction::Delivered),
            (429, Reaction::Delivered),
            (503, Reaction::Delivered),
        ] {
            assert_ne!(answers.reaction(status), Some(wrong), "{name}: {status}");
        }
        // GitHub alone sends nothing again by itself.
        let stops = [429, 503].map(|status| answers.reaction(status) == Some(Reaction::Stops));
        assert_eq!(stops, [name == "github"; 2], "{name}");
    }
    let kudos = |status| Preset::KUDOS.answers.reaction(status);
    assert_eq!(kudos(204), Some(Reaction::Delivered));
    assert_eq!(kudos(302), Some(Reaction::Stops));
    assert_eq!(kudos(408), Some(Reaction::Retries));
    assert_eq!(kudos(409), Some(Reaction::Stops));
    assert_eq!(Preset::BRIEF.answers.reaction(409), Some(Reaction::Stops));
    assert_eq!(
        Preset::BRIEF.answers.reaction(501),
        None,
        "not in its lists"
    );
    assert_eq!(Preset::ZOOM.answers.reaction(500), None, "not said");
    assert_eq!(
        Preset::LINEAR.answers.reaction(202),
        Some(Reaction::Retries)
    );
}
