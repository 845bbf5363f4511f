//! What the tests share.
#![allow(dead_code, reason = "each test takes its part")]

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::time::Instant;

use stateright::{Checker, Model, Path};
use tower_inbox_model::scenarios::{FULL, SHORT, Scenario};
use tower_inbox_model::state::State;
use tower_inbox_model::{Action, Protocol};

/// The short forms, and with `TOWER_INBOX_TEST_ALL` the full ones too.
pub(crate) fn scenarios() -> Vec<Scenario> {
    let all = std::env::var_os("TOWER_INBOX_TEST_ALL").is_some();
    let full: &[Scenario] = if all { &FULL } else { &[] };
    SHORT.iter().chain(full).copied().collect()
}

/// Says on standard error how much was explored.
pub(crate) fn report<M: Model>(what: &str, begun: Instant, checker: &impl Checker<M>) {
    eprintln!(
        "{what}: {} states, {} steps, depth {}, {:.1?}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        begun.elapsed()
    );
}

/// Every state that can be reached, whole and numbered, by a second explorer.
pub(crate) fn reachable(model: &Protocol) -> HashMap<State, u32> {
    let mut seen = HashMap::new();
    let mut queue = VecDeque::from(model.init_states());
    for state in &queue {
        seen.insert(*state, 0);
    }
    let mut actions = Vec::new();
    while let Some(state) = queue.pop_front() {
        actions.clear();
        model.actions(&state, &mut actions);
        for action in &actions {
            let Some(after) = model.after(&state, *action) else {
                continue;
            };
            let number = seen.len() as u32;
            if let Entry::Vacant(new) = seen.entry(after) {
                new.insert(number);
                queue.push_back(after);
            }
        }
    }
    seen
}

/// A path, in one line: `commit A1` is the delivery of the first event in process A, `commit Aw` is A's worker.
pub(crate) fn short(path: Path<State, Action>) -> String {
    let mut line = String::new();
    for action in path.into_actions() {
        let separator = if line.is_empty() { "" } else { " · " };
        write!(line, "{separator}{action}").expect("a string takes everything");
    }
    line
}
