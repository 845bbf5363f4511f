//! The protocol with one thing done otherwise: a rule notices, each time.

mod kit;

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Path};
use tower_inbox_model::properties::{
    ANSWERS_ARE_TRUE, CRASHES_ARE_BOUNDED, CURSOR, EFFECT_IFF_APPLIED, GIVEN_UP_FOR_GAP,
    NEVER_TWICE, NO_DEADLOCK, NO_LATE_LOSER, NOTHING_DUE_IS_LEFT, PARKED_BEHIND_GAP, TURN_TO_COME,
};
use tower_inbox_model::scenarios::{DUPLICATES, OPERATOR, POISON, RESTORE, SMALL_STREAM, Scenario};
use tower_inbox_model::state::State;
use tower_inbox_model::{Action, Mutation, Protocol};

/// Where it goes wrong, and by which rule that is seen.
fn caught_by(mutation: Mutation) -> (Scenario, &'static str) {
    match mutation {
        Mutation::CursorAtClaim => (SMALL_STREAM, CURSOR),
        Mutation::NoFencing => (SMALL_STREAM, NO_LATE_LOSER),
        Mutation::LeaseExcludes => (SMALL_STREAM, NEVER_TWICE),
        Mutation::CheckThenInsert => (DUPLICATES, NEVER_TWICE),
        Mutation::AppliedAlone => (DUPLICATES, EFFECT_IFF_APPLIED),
        Mutation::DuplicateBeforeCommit => (DUPLICATES, ANSWERS_ARE_TRUE),
        Mutation::AnswerBeforeCommit => (DUPLICATES, ANSWERS_ARE_TRUE),
        Mutation::UnknownIsSuccess => (DUPLICATES, ANSWERS_ARE_TRUE),
        Mutation::ParkWithoutLock => (SMALL_STREAM, PARKED_BEHIND_GAP),
        Mutation::SweepWithoutLook => (SMALL_STREAM, GIVEN_UP_FOR_GAP),
        Mutation::RejectWithoutLook => (DUPLICATES, EFFECT_IFF_APPLIED),
        Mutation::MemoryOutlivesRestore => (RESTORE, ANSWERS_ARE_TRUE),
        Mutation::CountedAfterwards => (POISON, CRASHES_ARE_BOUNDED),
        Mutation::NoPoll => (SMALL_STREAM, NOTHING_DUE_IS_LEFT),
        Mutation::CursorFirst => (SMALL_STREAM, NO_DEADLOCK),
        Mutation::LeaseForEver => (SMALL_STREAM, NOTHING_DUE_IS_LEFT),
        Mutation::OwnLeaseIsTaken => (POISON, NOTHING_DUE_IS_LEFT),
        Mutation::GapLettersStay => (SMALL_STREAM, NOTHING_DUE_IS_LEFT),
        Mutation::SkipLooksOnce => (OPERATOR, TURN_TO_COME),
    }
}

/// §4.1, §4.2, §5.1, §5.4, §5.7: what each part of the protocol is for.
#[test]
fn every_mutant_breaks_the_rule_that_is_there_for_it() {
    for mutation in Mutation::ALL {
        let (scenario, rule) = caught_by(mutation);
        let begun = Instant::now();
        let mut longest = usize::MAX;
        // The explorer stops some states after it has found a path: until there is none that is shorter.
        let shortest = std::iter::from_fn(|| {
            let found = counterexample(scenario, mutation, rule, longest)?;
            longest = found.clone().into_actions().len();
            Some(found)
        });
        let Some(shortest) = shortest.last() else {
            panic!("{mutation:?} is not noticed by: {rule}");
        };
        let (name, path) = (scenario.0, kit::short(shortest));
        eprintln!(
            "{mutation:?}, {name}, {:.1?}: not so: {rule}\n  {path}",
            begun.elapsed()
        );
    }
}

/// A path to a state in which a rule does not hold, of fewer steps than `shorter_than`.
fn counterexample(
    (_, bounds): Scenario,
    mutation: Mutation,
    rule: &'static str,
    shorter_than: usize,
) -> Option<Path<State, Action>> {
    let mut checker = Protocol::mutant(bounds, mutation)
        .checker()
        .finish_when(HasDiscoveries::AllOf([rule].into()));
    if shorter_than != usize::MAX {
        // In states: one more than steps.
        checker = checker.target_max_depth(shorter_than + 1);
    }
    let checker = checker.spawn_bfs().join();
    checker.discovery(rule)
}

/// §5.4, §5.7: these are second guards. Without one of them a rule of its own is broken, and no other: nothing is lost,
/// applied twice or out of order, since the row's lock and the cursor's stand behind them, and what is due is computed.
#[test]
fn behind_a_second_guard_stands_a_first() {
    for mutation in [
        Mutation::NoFencing,
        Mutation::ParkWithoutLock,
        Mutation::SweepWithoutLook,
    ] {
        let ((name, bounds), rule) = caught_by(mutation);
        let model = Protocol {
            fold: true,
            ..Protocol::mutant(bounds, mutation)
        };
        let begun = Instant::now();
        let checker = model.checker().threads(2).spawn_bfs().join();
        kit::report(&format!("{mutation:?}, {name}"), begun, &checker);
        let broken: Vec<_> = checker.discoveries().into_keys().collect();
        assert_eq!(broken, [rule], "{mutation:?}");
    }
}
