//! Everything that may come of some deliveries at the same time, with the worker in between.

use std::collections::BTreeSet;

use super::reference::{Answer, Id, Move, Reference};

/// A delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Delivery {
    pub(super) id: Id,
    pub(super) content: u8,
    pub(super) secret: u8,
}

/// How far it has come: what each delivery was answered, if it was.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Node {
    pub(super) reference: Reference,
    pub(super) answers: Vec<Option<Answer>>,
}

impl Node {
    /// Whether nothing is left to be done.
    pub(super) fn is_at_rest(&self) -> bool {
        self.answers.iter().all(Option::is_some) && self.reference.moves().is_empty()
    }

    /// Whether these answers could have been given on the way here. Who was told nothing says nothing.
    pub(super) fn allows(&self, got: &[Option<Answer>]) -> bool {
        let mut both = self.answers.iter().zip(got);
        both.all(|(said, got)| got.is_none() || said == got)
    }

    fn answered(&self, n: usize, answer: Answer) -> Self {
        let mut next = self.clone();
        next.answers[n] = Some(answer);
        next
    }

    /// What becomes of the `n`th delivery from here.
    fn deliver(&self, n: usize, delivery: Delivery) -> Vec<Self> {
        let Delivery {
            id,
            content,
            secret,
        } = delivery;
        let mut nodes = Vec::new();
        // It may have waited behind another one of the same event, live or drained, without a run of its own (§4.8).
        let before = &self.reference;
        if before.was_refused(id, true) {
            nodes.push(self.answered(n, Answer::SameVerdict));
        }
        if before.was_refused(id, true) || before.was_refused(id, false) {
            nodes.push(self.answered(n, Answer::Away));
        }
        for (answer, reference) in before.deliver(id, content, secret) {
            let mut next = self.answered(n, answer);
            next.reference = reference;
            nodes.push(next);
        }
        nodes
    }

    fn make(&self, step: Move) -> Self {
        let mut next = self.clone();
        next.reference.make(step);
        next
    }
}

/// Every state on every way from here, those at rest included.
pub(super) fn explore(reference: &Reference, deliveries: &[Delivery]) -> BTreeSet<Node> {
    let mut seen = BTreeSet::new();
    let mut open = vec![Node {
        reference: reference.clone(),
        answers: vec![None; deliveries.len()],
    }];
    while let Some(node) = open.pop() {
        if !seen.insert(node.clone()) {
            continue;
        }
        for (n, delivery) in deliveries.iter().enumerate() {
            if node.answers[n].is_none() {
                open.extend(node.deliver(n, *delivery));
            }
        }
        let steps = node.reference.moves();
        open.extend(steps.into_iter().map(|step| node.make(step)));
    }
    seen
}
