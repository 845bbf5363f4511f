//! The table's own rules.

use std::collections::HashSet;
use std::time::Duration;

use http::{HeaderMap, Method, Uri};

use super::{Preset, Reaction};
use crate::clock::Timestamp;
use crate::envelope::Reading;
use crate::verify::{RequestView, Secret, Secrets, Signer, Tolerance};

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

/// The table at the top of the module's page has every row, with the header that the scheme reads and what is computed
/// of its id and order.
#[test]
fn the_table_of_the_page() {
    let mut rows = include_str!("mod.rs")
        .lines()
        .filter(|line| line.starts_with("//! | [`"));
    for preset in Preset::ALL {
        let row = rows.next().unwrap_or_default();
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, name, header, _, covered, order, _] = cells.as_slice() else {
            panic!("{}: {row}", preset.name);
        };
        let link = format!(
            "[`{}`](Preset::{})",
            preset.name,
            preset.name.to_uppercase()
        );
        assert_eq!(*name, link);
        let header = header.trim_matches('`').parse().unwrap();
        assert!(preset.scheme().is_signature_header(&header), "{row}");
        assert_eq!(*covered == "yes", preset.id_is_covered(), "{row}");
        assert_eq!(*order != "—", preset.mapping().has_sequence(), "{row}");
    }
    assert_eq!(rows.next(), None);
}

/// The example bodies of the page are what the preset takes, with an order.
#[test]
fn the_examples_of_the_page() {
    let examples = include_str!("table.rs")
        .split("    /// ```json\n    /// ")
        .skip(1);
    let bodies: Vec<_> = examples.filter_map(|rest| rest.lines().next()).collect();
    let presets = [Preset::KUDOS, Preset::SEQUENCED];
    assert_eq!(bodies.len(), presets.len());
    for (preset, body) in presets.iter().zip(bodies) {
        let (scheme, secret) = (preset.scheme(), Secret::text("s").unwrap());
        let now = Timestamp::from_secs(1_700_000_000);
        let signer = Signer::new(&scheme, [secret.clone()]).unwrap();
        let signed = signer.sign(now, None, body.as_bytes()).unwrap();
        let headers: HeaderMap = signed.into_iter().collect();
        let uri = Uri::from_static("/");
        let request = RequestView::new(&Method::POST, &uri, &headers, body.as_bytes());
        let secrets = Secrets::new([secret]).unwrap().snapshot().unwrap();
        let verified = scheme.verify(&request, &secrets, now, &Tolerance::default());
        let reading = preset
            .mapping()
            .read(&verified.unwrap(), &headers, body.as_bytes());
        let Ok(Reading::Event(event)) = reading else {
            panic!("{}: {reading:?}", preset.name);
        };
        assert!(event.correlation_id.is_some() && event.sequence.is_some());
    }
}
