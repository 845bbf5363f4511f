//! What was answered and what is there, held against what the reference says.

use std::time::{Duration, Instant};

use super::explore::{Node, explore};
use super::reference::{Answer, Picture, Reference};
use super::run::{Case, Checked};
use crate::db::TestDb;

impl<D: TestDb> Case<'_, D> {
    pub(super) fn note(&mut self, what: String, got: &[Option<Answer>]) {
        let told: Vec<_> = got
            .iter()
            .map(|answer| match answer {
                Some(answer) => {
                    self.tally.answer(answer);
                    format!("{answer:?}")
                }
                None => "nothing".to_owned(),
            })
            .collect();
        self.history.push(format!("{what}: {}", told.join(", ")));
    }

    /// Somebody was told this, and the reference says that.
    pub(super) async fn told(&mut self, what: String, got: Answer, said: Answer) -> Checked {
        self.note(what, &[Some(got.clone())]);
        if got != said {
            return Err(format!("the answer is {got:?}, and should be {said:?}"));
        }
        self.comes_to_rest().await
    }

    pub(super) async fn at_rest(&mut self, what: String) -> Checked {
        self.history.push(what);
        self.comes_to_rest().await
    }

    pub(super) async fn comes_to_rest(&mut self) -> Checked {
        let nodes = explore(&self.reference, &[]).into_iter();
        let rest = nodes.filter(Node::is_at_rest).map(|node| node.reference);
        self.becomes(rest.collect()).await
    }

    /// Waits until the inbox is where one of these references is, which is the one that counts from here on.
    pub(super) async fn becomes(&mut self, candidates: Vec<Reference>) -> Checked {
        let pictures: Vec<_> = candidates.iter().map(Reference::picture).collect();
        let start = Instant::now();
        let found = loop {
            let picture = self.site.picture().await;
            if let Some(found) = pictures.iter().position(|said| *said == picture) {
                break found;
            }
            if start.elapsed() > self.patience {
                return Err(differs(&picture, &pictures));
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        };
        self.reference = candidates.into_iter().nth(found).expect("it was found");
        self.reference.settle();
        self.hand_plans_on();
        self.tally.states(&self.reference);
        Ok(())
    }
}

/// Where these answers may have led to.
pub(super) fn allowed(
    nodes: impl Iterator<Item = Node>,
    got: &[Option<Answer>],
) -> Checked<Vec<Reference>> {
    let mut said = Vec::new();
    let mut allowed = Vec::new();
    for node in nodes {
        if node.allows(got) {
            allowed.push(node.reference);
        } else {
            said.push(node.answers.into_iter().flatten().collect::<Vec<_>>());
        }
    }
    said.sort();
    said.dedup();
    if allowed.is_empty() {
        let got: Vec<_> = got.iter().flatten().collect();
        return Err(format!("the answer is {got:?}, and should be {said:?}"));
    }
    Ok(allowed)
}

/// How what is there differs from what comes closest to it.
pub(super) fn differs(picture: &Picture, said: &[Picture]) -> String {
    let apart = |said: &&Picture| {
        let missing = said
            .lines
            .iter()
            .filter(|line| !picture.lines.contains(line));
        let more = picture
            .lines
            .iter()
            .filter(|line| !said.lines.contains(line));
        missing.count() + more.count() + usize::from(said.ledger != picture.ledger)
    };
    let Some(closest) = said.iter().min_by_key(apart) else {
        return "no state is possible".to_owned();
    };
    let only = |these: &Picture, those: &Picture| -> Vec<_> {
        let rows = these.lines.iter();
        rows.filter(|line| !those.lines.contains(line))
            .cloned()
            .collect()
    };
    format!(
        "there is {:?}, and should be {:?} (of {} possible states)\nledger {:?}, and should be {:?}",
        only(picture, closest),
        only(closest, picture),
        said.len(),
        picture.ledger,
        closest.ledger
    )
}
