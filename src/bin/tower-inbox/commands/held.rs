//! Streams that are held up, by what.

use std::collections::BTreeMap;
use std::time::Duration;

use tower_inbox::Backend;
use tower_inbox::clock::Timestamp;
use tower_inbox::operator::{Head, Operator, WaitingStream};

use super::count;
use crate::failure::Failure;
use crate::show::quoted;

/// A handler that fails is tried again by itself, and may be mended by then.
const FAILING: Duration = Duration::from_secs(600);
/// What comes early is mostly followed by what is missing within seconds. `sequenced` gives a gap up after as long.
const STANDING: Duration = Duration::from_secs(300);
/// Streams of one page, and the most that are looked at: a source may park 10,000 events.
const PAGE: usize = 1_000;
const PAGES: usize = 20;

/// Of one source.
#[derive(Default)]
pub(super) struct Held {
    pub(super) by_dead_letters: Named,
    pub(super) by_gaps: Named,
    pub(super) by_new_gaps: Named,
    /// Their next event fails, and is tried again by itself: for long, or not yet.
    pub(super) by_failures: Named,
    pub(super) by_new_failures: Named,
}

impl Held {
    /// What waits there may wait for a person.
    pub(super) fn is_held_up(&self) -> bool {
        let numbers = [&self.by_dead_letters, &self.by_gaps, &self.by_new_gaps];
        numbers.iter().any(|named| named.number > 0)
    }
}

/// How many, and the first one of them.
#[derive(Default)]
pub(super) struct Named {
    number: u64,
    first: String,
}

impl Named {
    fn add(&mut self, stream: &WaitingStream) {
        if self.number == 0 {
            let at = stream
                .next
                .map_or_else(String::new, |at| format!(" at {at}"));
            self.first = format!("{}{at}", quoted(&stream.correlation_id));
        }
        self.number += 1;
    }

    /// `1 stream (acct-7 at 4)`. Nothing if there is none.
    pub(super) fn words(&self) -> Option<String> {
        let first = match self.number {
            0 => return None,
            1 => self.first.clone(),
            _ => format!("{} first", self.first),
        };
        Some(format!("{} ({first})", count(self.number, "stream")))
    }
}

pub(super) async fn look<DB: Backend>(
    operator: &Operator<DB>,
) -> Result<BTreeMap<String, Held>, Failure> {
    let now = operator.clocks().await?.process;
    let (mut all, mut after) = (BTreeMap::<String, Held>::new(), None);
    for _ in 0..PAGES {
        let page = operator.streams(None, after.as_ref(), PAGE).await?;
        for stream in &page.streams {
            let held = all.entry(stream.source.clone()).or_default();
            if let Some(named) = by(stream, now, held) {
                named.add(stream);
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    all.retain(|_, held| {
        held.is_held_up() || held.by_failures.number + held.by_new_failures.number > 0
    });
    Ok(all)
}

/// What is put off, or due, is held up by nothing; nor is a stream that has not begun.
fn by<'a>(stream: &WaitingStream, now: Timestamp, held: &'a mut Held) -> Option<&'a mut Named> {
    match &stream.head {
        Some(Head {
            reason: Some(_), ..
        }) => Some(&mut held.by_dead_letters),
        Some(Head { attempts: 0, .. }) => None,
        Some(_) if now.since(stream.oldest) >= FAILING => Some(&mut held.by_failures),
        Some(_) => Some(&mut held.by_new_failures),
        None if stream.next.is_some_and(|next| next < 0) => None,
        // What was given up for the gap waited for its whole window.
        None if stream.dead > 0 || now.since(stream.oldest) >= STANDING => Some(&mut held.by_gaps),
        None => Some(&mut held.by_new_gaps),
    }
}
