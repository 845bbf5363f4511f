//! Once faults stop, what is due is applied: from every state that can be reached.

mod kit;

use std::collections::HashMap;
use std::time::Instant;

use tower_inbox_model::scenarios::{SHORT, STREAM};
use tower_inbox_model::state::State;
use tower_inbox_model::{Mutation, Protocol};

/// The states from which no way leads, by what happens by itself alone, to one in which all is quiet, no transaction is
/// open, and nothing is due.
///
/// Every state, and the steps that happen by themselves, are a graph; it is walked backwards from the states that are
/// wanted. If a way leads there from everywhere, no run stays away for ever unless somebody who could always do his next
/// step never does it.
fn stuck(model: &Protocol, states: &HashMap<State, u32>) -> usize {
    let mut before = vec![Vec::new(); states.len()];
    let mut wanted = Vec::new();
    let mut actions = Vec::new();
    for (state, number) in states {
        actions.clear();
        model.progress(state, &mut actions);
        let mut quiet = true;
        for after in actions.iter().filter_map(|it| model.after(state, *it)) {
            quiet = false;
            before[states[&after] as usize].push(*number);
        }
        let open = state.transactions().next().is_some() || state.sweep.is_some();
        if quiet && !open && model.due(state).is_none() {
            wanted.push(*number);
        }
    }
    let mut leads = vec![false; states.len()];
    while let Some(number) = wanted.pop() {
        if !std::mem::replace(&mut leads[number as usize], true) {
            wanted.append(&mut before[number as usize]);
        }
    }
    leads.iter().filter(|leads| !**leads).count()
}

/// §5.9, §5.14
#[test]
fn from_every_state_a_way_leads_to_one_in_which_nothing_is_due() {
    let all = std::env::var_os("TOWER_INBOX_TEST_ALL").is_some();
    for (name, mut bounds) in SHORT {
        // Whole states are kept here, which takes longer than the rules do.
        if !all && bounds.skips > 0 {
            bounds.copies = [1, 1, 0];
        } else if !all && bounds.copies == [2, 2, 0] {
            bounds.copies = [1, 2, 0];
        }
        let begun = Instant::now();
        let model = Protocol::new(bounds);
        let states = kit::reachable(&model);
        let stuck = stuck(&model, &states);
        eprintln!(
            "{name}: {} states, {stuck} stuck, {:.1?}",
            states.len(),
            begun.elapsed()
        );
        assert_eq!(stuck, 0, "{name}");
    }
}

/// The same, where it is not so.
#[test]
fn a_worker_that_never_looks_by_itself_gets_stuck() {
    let mut bounds = STREAM.1;
    bounds.copies = [1, 1, 0];
    let model = Protocol {
        fold: true,
        ..Protocol::mutant(bounds, Mutation::NoPoll)
    };
    assert!(stuck(&model, &kit::reachable(&model)) > 0);
}
