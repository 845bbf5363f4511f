//! A producer's lists, in the hand of a test.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::Request;
use tower_inbox::clock::Timestamp;
use tower_inbox::reconcile::{Item, List, Page, Query, ReplayFuture, ReplaySource};

use super::{Event, Gate};

/// The lists; clones are handles of the same ones.
#[derive(Clone, Default)]
pub(crate) struct Replays {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    lists: HashMap<List, Vec<Item>>,
    by_sequence: HashMap<(String, i64), Item>,
    page_size: usize,
    asked: Vec<(List, Option<Timestamp>, Option<String>)>,
    sent_again: Vec<String>,
    /// Whoever asks for a page after the first waits here.
    gate: Option<Gate>,
}

/// An event as a list has it.
pub(crate) fn item(event: &Event, at: Timestamp) -> Item {
    let request = Request::post("/hooks/acme").header("content-type", "application/json");
    Item {
        event_id: event.id().to_owned(),
        at,
        request: Some(request.body(event.body()).expect("a request")),
        reference: format!("del_{}", event.id()),
    }
}

impl Replays {
    pub(crate) fn new() -> Self {
        let new = Self::default();
        new.state().page_size = 100;
        new
    }

    pub(crate) fn pages_of(self, events: usize) -> Self {
        self.state().page_size = events;
        self
    }

    pub(crate) fn held_by(self, gate: &Gate) -> Self {
        self.state().gate = Some(gate.clone());
        self
    }

    pub(crate) fn list(&self, list: List, item: Item) {
        self.state().lists.entry(list).or_default().push(item);
    }

    pub(crate) fn exhausted(&self, event: &Event, at: Timestamp) {
        self.list(List::Exhausted, item(event, at));
    }

    pub(crate) fn delivered(&self, event: &Event, at: Timestamp) {
        self.list(List::Delivered, item(event, at));
    }

    pub(crate) fn knows(&self, account: &str, sequence: i64, item: Item) {
        let key = (account.to_owned(), sequence);
        self.state().by_sequence.insert(key, item);
    }

    /// What was asked for since the last time.
    pub(crate) fn asked(&self) -> Vec<(List, Option<Timestamp>, Option<String>)> {
        std::mem::take(&mut self.state().asked)
    }

    pub(crate) fn sent_again(&self) -> Vec<String> {
        self.state().sent_again.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReplaySource for Replays {
    fn page<'a>(&'a self, query: Query<'a>) -> ReplayFuture<'a, Page> {
        Box::pin(async move {
            let gate = {
                let mut state = self.state();
                let page = query.page.map(str::to_owned);
                state.asked.push((query.list, query.since, page));
                state.gate.clone().filter(|_| query.page.is_some())
            };
            if let Some(gate) = gate {
                gate.pass().await;
            }
            let state = self.state();
            let all: Vec<_> = state
                .lists
                .get(&query.list)
                .into_iter()
                .flatten()
                .filter(|item| query.since.is_none_or(|since| item.at >= since))
                .cloned()
                .collect();
            let from: usize = query.page.map_or(0, |page| page.parse().expect("ours"));
            let to = (from + state.page_size).min(all.len());
            Ok(Page {
                announced: Some(all.len() as u64),
                next: (to < all.len()).then(|| to.to_string()),
                items: all[from..to].to_vec(),
                unreadable: Vec::new(),
            })
        })
    }

    fn knows_sequences(&self) -> bool {
        !self.state().by_sequence.is_empty()
    }

    fn by_sequence<'a>(
        &'a self,
        correlation_id: &'a str,
        sequence: i64,
    ) -> ReplayFuture<'a, Option<Item>> {
        let key = (correlation_id.to_owned(), sequence);
        let item = self.state().by_sequence.get(&key).cloned();
        Box::pin(async { Ok(item) })
    }

    fn send_again<'a>(&'a self, item: &'a Item) -> ReplayFuture<'a, ()> {
        self.state().sent_again.push(item.reference.clone());
        Box::pin(async { Ok(()) })
    }
}
