//! The protocol as it is: every rule in every state, and states worth the name.

mod kit;

use std::collections::HashSet;
use std::time::Instant;

use stateright::{Checker, Model};
use tower_inbox_model::scenarios::{SHORT, SMALL_STREAM};
use tower_inbox_model::{Protocol, Situations};

/// §4.1, §4.2, §4.4, §4.13, §5.1, §5.3, §5.4, §5.7, §5.9
#[test]
fn every_rule_holds_in_every_state_that_can_be_reached() {
    for (name, bounds) in kit::scenarios() {
        let begun = Instant::now();
        let checker = Protocol::new(bounds)
            .checker()
            .threads(2)
            .spawn_bfs()
            .join();
        kit::report(name, begun, &checker);
        let broken = checker.discoveries().into_iter().map(|(rule, path)| {
            let path = kit::short(path);
            format!("not so: {rule}\n{path}\n")
        });
        let broken: String = broken.collect();
        assert!(broken.is_empty(), "{name}: {broken}");
    }
}

/// What is folded is what there is without folding, and nothing else.
#[test]
fn folding_makes_one_state_of_those_that_differ_only_in_names() {
    let (name, bounds) = SMALL_STREAM;
    let whole = Protocol {
        fold: false,
        ..Protocol::new(bounds)
    };
    let whole = kit::reachable(&whole);
    let mirrored: HashSet<_> = whole.keys().map(|state| state.folded()).collect();
    let begun = Instant::now();
    let checker = Protocol::new(bounds)
        .checker()
        .threads(2)
        .spawn_bfs()
        .join();
    kit::report(name, begun, &checker);
    assert_eq!(mirrored.len(), checker.unique_state_count());
    assert!(mirrored.len() < whole.len());
}

/// A model in which nothing happens keeps every rule.
#[test]
fn what_must_be_possible_is_reached() {
    for scenario in SHORT {
        let begun = Instant::now();
        let model = Situations::of(scenario);
        let checker = model.checker().threads(2).spawn_bfs().join();
        kit::report(scenario.0, begun, &checker);
        assert!(!model.properties().is_empty());
        for situation in model.properties() {
            let path = checker.discovery(situation.name);
            assert!(path.is_some(), "{}: never: {}", scenario.0, situation.name);
        }
    }
}
