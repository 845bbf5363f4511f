//! What an action on many events would deal with, by a look before it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tower_inbox::clock::Timestamp;
use tower_inbox::operator::{Letter, Unreadable};

use super::act::Verb;
use super::count;
use super::letter::{self, Letters};
use crate::show::{Shown, quoted, safe};

/// Events that are named, and of which a dry run finds out whether they would be refused.
pub(super) const NAMED: usize = 20;

pub(super) struct Found {
    verb: Verb,
    pub(super) matched: u64,
    pub(super) sources: BTreeSet<String>,
    /// By reason; parked ones, too.
    kinds: BTreeMap<String, u64>,
    /// When the last of them became one.
    pub(super) latest: Option<Timestamp>,
    /// Those that are named, by source and event id.
    pub(super) named: Vec<(String, String)>,
    table: Letters,
    json: Vec<Value>,
    /// Of those that are named: which, and why not.
    pub(super) refused: Vec<(String, String)>,
}

impl Found {
    pub(super) fn new(verb: Verb) -> Self {
        Self {
            verb,
            matched: 0,
            sources: BTreeSet::new(),
            kinds: BTreeMap::new(),
            latest: None,
            named: Vec::new(),
            table: match verb {
                Verb::Replay | Verb::Discard => Letters::dead(),
                Verb::TryNow => Letters::waiting(),
            },
            json: Vec::new(),
            refused: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, letter: &Result<Letter, Unreadable>, now: Timestamp) {
        self.matched += 1;
        if let Ok(letter) = letter {
            self.latest = self.latest.max(Some(letter.decided_at));
            *self.kinds.entry(letter::kind(letter)).or_default() += 1;
            if !self.sources.contains(&letter.source) {
                self.sources.insert(letter.source.clone());
            }
        }
        self.name(letter, now);
    }

    pub(super) fn name(&mut self, letter: &Result<Letter, Unreadable>, now: Timestamp) {
        if self.json.len() == NAMED {
            return;
        }
        self.table.add(letter, now);
        self.json.push(letter::any_json(letter));
        if let Ok(letter) = letter {
            let key = (letter.source.clone(), letter.event_id.clone());
            self.named.push(key);
        }
    }

    /// How many, of what kind, of whom: not all that can be discarded is dead.
    pub(super) fn what(&self) -> String {
        let dead = self.verb != Verb::TryNow && !self.kinds.keys().any(|kind| kind == "parked");
        let number = count(self.matched, if dead { "dead letter" } else { "event" });
        if self.kinds.is_empty() {
            return number;
        }
        let kinds = self.kinds.iter();
        let kinds: Vec<_> = kinds.map(|(kind, n)| format!("{n} {kind}")).collect();
        let sources = match self.sources.first() {
            Some(only) if self.sources.len() == 1 => quoted(only),
            _ => count(self.sources.len() as u64, "source"),
        };
        format!("{number} of {sources} ({})", kinds.join(", "))
    }

    /// What a dry run shows of many.
    pub(super) fn shown(&self) -> Shown {
        let mut text = match self.matched {
            0 => String::new(),
            _ => self.table.render(),
        };
        let more = self.matched.saturating_sub(self.json.len() as u64);
        if more > 0 {
            text.push_str(&format!("and {more} more\n"));
        }
        text.push_str(&format!("{} would be {}\n", self.what(), self.verb.done()));
        for (id, why) in &self.refused {
            text.push_str(&format!("but not {}: {}\n", safe(id), safe(why)));
        }
        let refusals = self.refused.iter();
        let refusals: Value = refusals
            .map(|(id, why)| json!({"event_id": id, "why": why}))
            .collect();
        Shown {
            json: json!({
                "dry_run": true, "matched": self.matched, "letters": self.json, "refusals": refusals,
            }),
            text,
        }
    }

    /// What a dry run shows of one: what would be done, or why not.
    pub(super) fn shown_of_one(&self, changes: bool, objection: Option<&str>, then: &str) -> Shown {
        let says = match (objection, changes) {
            (Some(why), _) => format!("refused: {}", safe(why)),
            (None, true) => format!("it would be {}", self.verb.done()),
            (None, false) => "so already: nothing would be done".into(),
        };
        Shown {
            json: json!({
                "dry_run": true, "matched": u64::from(changes), "letters": self.json, "objection": objection,
            }),
            text: format!("{}{says}{then}\n", self.table.render()),
        }
    }
}
