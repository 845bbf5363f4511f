//! A database that is lost under a delivery, and a process that ends in the middle of something.

use std::time::{Duration, Instant};

use super::check::{allowed, differs};
use super::command::{Pick, Signer};
use super::explore::{Delivery, Node, explore};
use super::process::Trap;
use super::reference::{Answer, LEASE};
use super::run::{Case, Checked, shown};
use crate::db::TestDb;
use crate::kit::eventually;

impl<D: TestDb> Case<'_, D> {
    /// The database is lost under a delivery: what was not committed is as before, and what was is not known.
    pub(super) async fn fault(&mut self, event: Pick, at: &'static str) -> Checked {
        let Some(id) = event.of(&self.reference) else {
            return Ok(());
        };
        let secret = self.secret(Signer::Newest);
        let delivery = Delivery {
            id,
            content: 1,
            secret,
        };
        self.process().set(Trap::Fault(at));
        let got = self.process().deliver(&self.site, delivery).await;
        let got = got.map_err(|error| error.to_string())?;
        // Where it was answered as if nothing had happened, the worker may have come by, at the very end of what it did before.
        let sprung = self.process().sprung() && got == Answer::Away;
        self.process().set(Trap::None);
        self.note(
            format!("{}, fault at {at}: {sprung}", shown(&[delivery])),
            &[Some(got.clone())],
        );
        if !sprung {
            let nodes = explore(&self.reference, &[delivery]);
            let nodes = nodes.into_iter().filter(Node::is_at_rest);
            return self.becomes(allowed(nodes, &[Some(got)])?).await;
        }
        self.tally.seen("fault");
        let mut after = vec![self.reference.clone()];
        if at == "committed" {
            let outcomes = self.reference.deliver(id, 1, secret).into_iter();
            let applied: Vec<_> = outcomes
                .filter(|(answer, _)| *answer == Answer::Applied)
                .map(|(_, reference)| reference)
                .collect();
            // There is none where the worker has just applied it, and is the one that came to the trap behind its commit: the delivery
            // waited for it, and was told what it knew (§4.8). Then all is as it was.
            if !applied.is_empty() {
                after = applied;
            }
        }
        for reference in &mut after {
            reference.plans.remove(&id);
        }
        let nodes = after.iter().flat_map(|after| explore(after, &[]));
        let nodes = nodes.filter(Node::is_at_rest).map(|node| node.reference);
        self.becomes(nodes.collect()).await
    }

    /// "A crash at any instant leaves the state before it or the state behind it": one of those on the way.
    pub(super) async fn crash(&mut self, event: Pick, after: u8, mut again: u8) -> Checked {
        let Some(id) = event.of(&self.reference) else {
            return Ok(());
        };
        let secret = self.secret(Signer::Newest);
        let delivery = Delivery {
            id,
            content: 1,
            secret,
        };
        let nodes: Vec<_> = explore(&self.reference, &[delivery]).into_iter().collect();
        self.process().set(Trap::After(after));
        let mut under_way = self.process().deliver(&self.site, delivery);
        self.comes_to_the_trap_or_to_rest(&nodes).await?;
        // Whoever stands in the trap has not answered, and never will.
        let told = tokio::time::timeout(Duration::from_millis(50), &mut under_way).await;
        let told = told.ok().and_then(Result::ok);
        let sprung = self.process().sprung();
        self.note(
            format!("{}, crash after {after}: {sprung}", shown(&[delivery])),
            std::slice::from_ref(&told),
        );
        let nodes = nodes
            .into_iter()
            .filter(|node| node.allows(std::slice::from_ref(&told)));
        self.ends_at_any_of(nodes.collect()).await?;
        loop {
            let left_behind = self.reference.has_leases();
            self.reference.crash();
            self.hand_plans_on();
            if left_behind {
                self.tally.seen("crash of the worker");
                self.advance(LEASE);
            }
            if again == 0 || !left_behind {
                break;
            }
            again -= 1;
            let nodes: Vec<_> = explore(&self.reference, &[]).into_iter().collect();
            self.start(Trap::At("claimed")).await;
            self.comes_to_the_trap_or_to_rest(&nodes).await?;
            let sprung = self.process().sprung();
            self.history
                .push(format!("another process, which crashes too: {sprung}"));
            self.ends_at_any_of(nodes).await?;
        }
        self.start(Trap::None).await;
        self.at_rest("the next process".to_owned()).await
    }

    async fn comes_to_the_trap_or_to_rest(&self, nodes: &[Node]) -> Checked {
        let rest: Vec<_> = nodes
            .iter()
            .filter(|node| node.is_at_rest())
            .map(|node| node.reference.picture())
            .collect();
        let start = Instant::now();
        loop {
            if self.process().sprung() {
                self.tally.seen("crash on the way");
                return Ok(());
            }
            let picture = self.site.picture().await;
            if rest.contains(&picture) {
                return Ok(());
            }
            if start.elapsed() > self.patience {
                return Err(differs(&picture, &rest));
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    /// Ends the process, and finds out which of these states it leaves.
    async fn ends_at_any_of(&mut self, nodes: Vec<Node>) -> Checked {
        self.process.take().expect("one is at work").kill();
        let eyes = &self.site.eyes;
        eventually("the server has noticed", async || {
            D::open_transactions(eyes).await == 0
        })
        .await;
        // What was on its way to the server may still arrive.
        let mut picture = self.site.picture().await;
        loop {
            tokio::time::sleep(Duration::from_millis(15)).await;
            let now = self.site.picture().await;
            if now == picture {
                break;
            }
            picture = now;
        }
        let found = nodes
            .iter()
            .find(|node| node.reference.picture() == picture);
        let Some(found) = found else {
            let pictures = nodes.iter().map(|node| node.reference.picture());
            return Err(format!(
                "a crash left another state than any on the way: {}",
                differs(&picture, &pictures.collect::<Vec<_>>())
            ));
        };
        self.reference = found.reference.clone();
        Ok(())
    }
}
