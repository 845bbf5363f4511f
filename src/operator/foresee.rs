//! What a decision would come to, by what is stored now.

use std::ops::RangeInclusive;

use super::{MOST, Operator, Story, StreamEvent, StreamInfo};
use crate::error::OperatorError;
use crate::store::{Backend, Reason};

/// A stream after some of its sequences are skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ahead {
    /// Where its cursor is then.
    pub next: i64,
    /// What is stored from there on without a hole, and is due then, lowest first.
    pub due: Vec<StreamEvent>,
    /// There may be more of these.
    pub more: bool,
    /// The dead letter that holds it up behind them.
    pub held: Option<StreamEvent>,
}

/// What becomes of a stream when an event of it is discarded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AfterDiscard {
    /// Nothing: it has no place in a stream, or has lost it to another event.
    NoPlace,
    /// Nothing: its place is passed, or of an earlier generation.
    Passed,
    /// Its sequence is skipped. Where the stream stands is not known: nothing of it was applied or parked yet.
    NotBegun,
    /// Its sequence is skipped.
    Skips(Ahead),
}

impl<DB: Backend> Operator<DB> {
    /// What would become of its stream if an event were discarded that is parked or dead.
    ///
    /// # Errors
    /// If the database could not be asked.
    pub async fn foresee_discard(&self, story: &Story) -> Result<AfterDiscard, OperatorError> {
        let letter = &story.letter;
        let (Some(stream), Some(sequence), None) =
            (&letter.correlation_id, letter.sequence, &letter.yielded_to)
        else {
            return Ok(AfterDiscard::NoPlace);
        };
        let Some(info) = &story.stream else {
            return Ok(AfterDiscard::NotBegun);
        };
        if info.generation != letter.generation || sequence < info.next {
            return Ok(AfterDiscard::Passed);
        }
        let ahead = self.foresee_skip(&letter.source, stream, info, sequence..=sequence);
        Ok(AfterDiscard::Skips(ahead.await?))
    }

    /// What would become of a stream if these sequences of it were skipped, or it were fast-forwarded behind them: by what is
    /// stored now, of which the first thousand events are looked at. `info` is where it stands.
    ///
    /// That a gap that fills brings back what was given up for it is taken for granted where its source is not known here.
    ///
    /// # Errors
    /// If the database could not be asked.
    pub async fn foresee_skip(
        &self,
        source: &str,
        correlation_id: &str,
        info: &StreamInfo,
        sequences: RangeInclusive<i64>,
    ) -> Result<Ahead, OperatorError> {
        let next = cursor_after(info, (*sequences.start(), *sequences.end()));
        let view = match next == info.next {
            true => None,
            false => {
                self.stream(source, correlation_id, Some(next), MOST)
                    .await?
            }
        };
        let Some(view) = view else {
            return Ok(ahead(info, next, &[], false, true));
        };
        let state = self.shared.find_source(source).await;
        let revives = state.is_none_or(|state| state.revives_gaps());
        Ok(ahead(info, next, &view.events, view.more, revives))
    }
}

/// It passes what is skipped already, as it passes these.
fn cursor_after(info: &StreamInfo, (first, last): (i64, i64)) -> i64 {
    match first <= info.next {
        true => past_ranges(info, info.next.max(last.saturating_add(1))),
        false => info.next,
    }
}

fn past_ranges(info: &StreamInfo, mut next: i64) -> i64 {
    for range in &info.ranges {
        if (range.first..=range.last).contains(&next) {
            next = range.last.saturating_add(1);
        }
    }
    next
}

/// What was given up for a gap comes back by itself, unless its source does not want that.
fn ahead(info: &StreamInfo, next: i64, stored: &[StreamEvent], more: bool, revives: bool) -> Ahead {
    let (mut due, mut held, mut at) = (Vec::new(), None, next);
    let mut to_the_end = true;
    for event in stored {
        // Two ids may have one sequence, of which one has lost its place.
        if event.sequence < at {
            continue;
        }
        if event.sequence > at {
            to_the_end = false;
            break;
        }
        let is_due = match event.reason {
            None => true,
            Some(Reason::Gap) => revives,
            Some(_) => false,
        };
        if !is_due {
            held = Some(event.clone());
            to_the_end = false;
            break;
        }
        due.push(event.clone());
        at = past_ranges(info, at.saturating_add(1));
    }
    Ahead {
        next,
        due,
        more: more && to_the_end,
        held,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Range, RangeKind};

    fn info(next: i64, ranges: &[(i64, i64)]) -> StreamInfo {
        let range = |(first, last): &(i64, i64)| Range {
            first: *first,
            last: *last,
            kind: RangeKind::Skipped,
        };
        StreamInfo {
            next,
            generation: 0,
            ranges: ranges.iter().map(range).collect(),
        }
    }

    #[test]
    fn the_cursor_passes_what_is_skipped_already() {
        for (next, ranges, ends, then) in [
            (3, &[][..], (3, 5), 6),
            (3, &[], (4, 5), 3),
            (3, &[(6, 8)], (3, 5), 9),
            (3, &[(6, 8), (9, 9), (11, 12)], (3, 5), 10),
            (3, &[], (3, i64::MAX - 1), i64::MAX),
        ] {
            assert_eq!(cursor_after(&info(next, ranges), ends), then, "{ends:?}");
        }
    }

    #[test]
    fn what_is_due_ends_at_a_hole_or_at_a_dead_letter() {
        let stored = [
            StreamEvent::stored(6, None),
            StreamEvent::stored(7, Some(Reason::Gap)),
            StreamEvent::stored(9, None),
            StreamEvent::stored(10, Some(Reason::Rejected)),
            StreamEvent::stored(11, None),
        ];
        let numbers = |ahead: &Ahead| ahead.due.iter().map(|e| e.sequence).collect::<Vec<_>>();
        let with_a_hole = ahead(&info(3, &[]), 6, &stored, true, true);
        assert_eq!(numbers(&with_a_hole), [6, 7]);
        assert!(with_a_hole.held.is_none() && !with_a_hole.more);
        let passed = ahead(&info(3, &[(8, 8)]), 6, &stored, false, true);
        assert_eq!(numbers(&passed), [6, 7, 9]);
        assert_eq!(passed.held.map(|event| event.sequence), Some(10));
        let cut = ahead(&info(3, &[]), 6, &stored[..2], true, true);
        assert!(cut.more && cut.due.len() == 2);
        let given_up = ahead(&info(3, &[]), 6, &stored, false, false);
        assert_eq!(numbers(&given_up), [6]);
        assert_eq!(given_up.held.map(|event| event.sequence), Some(7));
    }
}
