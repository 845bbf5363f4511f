//! Streams that are held up, by what.

use std::collections::BTreeMap;
use std::time::Duration;

use tower_inbox::Backend;
use tower_inbox::clock::Timestamp;
use tower_inbox::operator::{Operator, WaitingStream};

use super::count;
use crate::failure::Failure;
use crate::show::quoted;

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
        let numbers = [&held.by_dead_letters, &held.by_gaps, &held.by_new_gaps];
        numbers.iter().any(|named| named.number > 0)
    });
    Ok(all)
}

/// What is tried again by itself is held up by nothing; nor is a stream that has not begun.
fn by<'a>(stream: &WaitingStream, now: Timestamp, held: &'a mut Held) -> Option<&'a mut Named> {
    match &stream.head {
        Some(head) => head.reason.map(|_| &mut held.by_dead_letters),
        None if stream.next.is_some_and(|next| next < 0) => None,
        // What was given up for the gap waited for its whole window.
        None if stream.dead > 0 || now.since(stream.oldest) >= STANDING => Some(&mut held.by_gaps),
        None => Some(&mut held.by_new_gaps),
    }
}
