//! A stream as a strip: what is applied, what is missing, and what is stored behind it, in the order of the sequences.

use maud::{Markup, html};

use super::show::{self, Look};
use super::when;
use crate::clock::Timestamp;
use crate::operator::{Head, Range, StreamEvent, StreamInfo, WaitingStream};

/// Longer strips are cut: the table below them goes on.
const CELLS: usize = 40;

/// No sequence.
const NOWHERE: (i64, i64) = (-1, -1);

/// Neighbouring sequences of which the same is to be said.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cell {
    look: Look,
    /// First and last sequence.
    ends: (i64, i64),
    says: String,
}

impl Cell {
    fn new(look: Look, ends: (i64, i64), says: impl Into<String>) -> Self {
        let says = says.into();
        Self { look, ends, says }
    }

    fn numbers(&self) -> String {
        match self.ends {
            (first, last) if first == last => show::count(first),
            (first, last) => format!("{}–{}", show::count(first), show::count(last)),
        }
    }

    /// Longer ones are drawn longer, by their number of digits: a million is not a million times one.
    fn width(&self) -> &'static str {
        match self.ends.1.saturating_sub(self.ends.0) {
            0 => "w1",
            1..=9 => "w2",
            10..=99 => "w3",
            _ => "w4",
        }
    }
}

/// The strip of a stream of a list, of which only the ends are known.
pub(super) fn of_waiting(now: Timestamp, stream: &WaitingStream) -> Markup {
    draw(&cells_of_waiting(now, stream), false)
}

fn cells_of_waiting(now: Timestamp, stream: &WaitingStream) -> Vec<Cell> {
    let next = stream.next.unwrap_or(-1);
    let mut cells = match stream.next {
        Some(next) => begin(next),
        None => vec![Cell::new(Look::Quiet, NOWHERE, "no cursor known")],
    };
    if next >= 0 && stream.first > next {
        let ends = (next, stream.first - 1);
        // Of several some may be skipped: what the cursor stands at is not.
        let says = if ends.0 == ends.1 {
            "missing"
        } else {
            "missing, or skipped"
        };
        cells.push(Cell::new(Look::Gap, ends, says));
    }
    let (mut first, mut parked, mut dead) = (stream.first, stream.parked, stream.dead);
    // What it waits for is the first thing that one wants to know.
    if let Some(head) = stream.head.as_ref().filter(|_| stream.first == next) {
        let left = match head.reason {
            None => &mut parked,
            Some(_) => &mut dead,
        };
        *left = left.saturating_sub(1);
        cells.push(Cell::new(look_of(head), (next, next), standing(now, head)));
        first = first.saturating_add(1);
        if stream.last == next || parked + dead == 0 {
            return cells;
        }
    }
    let stored = (first, stream.last);
    let apart = i128::from(stream.last) - i128::from(first) + 1;
    let mut missing = apart - i128::from(parked) - i128::from(dead);
    if stream.first < next {
        // Something is replayed out of its order: between it and the rest nothing need be missing.
        missing = 0;
    }
    let mut says = Vec::new();
    for (number, word) in [
        (i128::from(parked), "parked"),
        (i128::from(dead), "dead"),
        (missing, "not stored"),
    ] {
        if number > 0 {
            says.push(format!("{} {word}", show::count(number)));
        }
    }
    let look = match dead {
        0 => Look::Parked,
        _ => Look::Dead,
    };
    cells.push(Cell::new(look, stored, says.join(", ")));
    cells
}

fn look_of(head: &Head) -> Look {
    match (head.reason, head.attempts) {
        (Some(_), _) => Look::Dead,
        (None, 1..) => Look::Failing,
        (None, _) => Look::Parked,
    }
}

/// In a word or two, what a stream of a list waits for.
pub(super) fn badge(now: Timestamp, stream: &WaitingStream) -> Markup {
    let next = stream.next.unwrap_or(-1);
    let head = stream.head.as_ref().filter(|_| stream.first == next);
    match head {
        _ if next < 0 => Look::Quiet.badge("not begun"),
        Some(head) if head.reason.is_some() => Look::Dead.badge("held up by a dead letter"),
        Some(head) if head.attempts > 0 => Look::Failing.badge("failing"),
        Some(head) if head.not_before > now => Look::Parked.badge("put off"),
        Some(_) => Look::Parked.badge("due"),
        None if stream.first > next => Look::Gap.badge("gap"),
        None => Look::Parked.badge("replayed out of order"),
    }
}

/// What keeps a stream waiting.
fn standing(now: Timestamp, head: &Head) -> String {
    let status = head
        .last_status
        .map_or_else(String::new, |status| format!(" ({status})"));
    if let Some(reason) = head.reason {
        return format!("dead: {}{status}", show::word(reason));
    }
    let again = again(now, head.not_before);
    match (head.attempts, again) {
        (0, None) => "due".into(),
        (0, Some(again)) => format!("put off, {again}"),
        (attempts, again) => {
            let times = match attempts {
                1 => "once".into(),
                attempts => format!("{} times", show::count(attempts)),
            };
            let again = again.map_or_else(String::new, |again| format!(", {again}"));
            format!("failing: tried {times}{status}{again}")
        }
    }
}

/// When it is tried again, if that is not now.
fn again(now: Timestamp, not_before: Timestamp) -> Option<String> {
    (not_before > now).then(|| format!("again in {}", when::ahead(not_before.since(now))))
}

/// The strip of one stream, of which every stored event is known, or the first ones.
pub(super) fn of_view(
    now: Timestamp,
    info: &StreamInfo,
    events: &[StreamEvent],
    more: bool,
) -> Markup {
    let mut cells = cells_of_view(now, info, events);
    let cut = more || cells.len() > CELLS;
    cells.truncate(CELLS);
    draw(&cells, cut)
}

fn cells_of_view(now: Timestamp, info: &StreamInfo, events: &[StreamEvent]) -> Vec<Cell> {
    let mut cells = begin(info.next);
    // Before it has begun it waits for nothing: what is lower than all that came need not be missing.
    let lowest = events.first().map_or(0, |event| event.sequence);
    let mut at = if info.next < 0 { lowest } else { info.next };
    let from = at;
    let mut events = events
        .iter()
        .filter(|event| event.sequence >= from)
        .peekable();
    let mut ranges = info.ranges.iter().peekable();
    loop {
        while ranges.peek().is_some_and(|range| range.last < at) {
            ranges.next();
        }
        let range: Option<&Range> = ranges.peek().copied();
        let event = events.peek().map(|event| event.sequence);
        if event == Some(at) {
            let (mut look, mut says) = (Look::Parked, "parked".to_owned());
            // A sequence may have several: one that another id has taken the place of, and that one.
            while let Some(event) = events.next_if(|event| event.sequence == at) {
                (look, says) = match event.reason {
                    None if at == info.next && event.attempts > 0 && !event.leased => {
                        (Look::Failing, standing(now, &head_of(event)))
                    }
                    None => (Look::Parked, parked(now, event, at == info.next)),
                    Some(reason) => (Look::Dead, format!("dead: {}", show::word(reason))),
                };
            }
            push(&mut cells, Cell::new(look, (at, at), says));
            at += 1;
            continue;
        }
        let within = range.filter(|range| range.first <= at);
        let stop = match (within, event) {
            (Some(range), event) => event.unwrap_or(i64::MAX).min(range.last.saturating_add(1)),
            (None, None) => match range {
                Some(range) => range.first,
                None => break,
            },
            (None, Some(event)) => range.map_or(event, |range| event.min(range.first)),
        };
        let ends = (at, stop - 1);
        let cell = match within {
            Some(range) => Cell::new(Look::Skipped, ends, show::range(range.kind)),
            None => gap(ends),
        };
        push(&mut cells, cell);
        at = stop;
    }
    if at == info.next.max(0) && info.next >= 0 {
        cells.push(Cell::new(Look::Quiet, (at, at), "comes next"));
    }
    cells
}

fn head_of(event: &StreamEvent) -> Head {
    Head {
        reason: event.reason,
        attempts: event.attempts,
        last_status: event.last_status,
        not_before: event.not_before,
    }
}

fn parked(now: Timestamp, event: &StreamEvent, is_next: bool) -> String {
    match (event.leased, is_next) {
        (true, _) => "a worker has it".into(),
        (false, true) => again(now, event.not_before).unwrap_or_else(|| "due".into()),
        (false, false) => "parked".into(),
    }
}

/// What lies before the cursor.
fn begin(next: i64) -> Vec<Cell> {
    match next {
        ..0 => vec![Cell::new(Look::Quiet, (0, 0), "settling")],
        // Where the stream begins at 1, nothing was applied yet.
        0 | 1 => Vec::new(),
        // Not all of it need be applied: streams are adopted, skipped and reset.
        next => vec![Cell::new(Look::Good, (0, next - 1), "dealt with")],
    }
}

fn gap(ends: (i64, i64)) -> Cell {
    Cell::new(Look::Gap, ends, "missing")
}

/// Onto the last one, if the same is to be said.
fn push(cells: &mut Vec<Cell>, cell: Cell) {
    match cells.last_mut() {
        Some(last) if last.look == cell.look && last.says == cell.says => last.ends.1 = cell.ends.1,
        _ => cells.push(cell),
    }
}

fn draw(cells: &[Cell], more: bool) -> Markup {
    html! {
        ol.strip aria-label="The stream, by sequence" {
            @for cell in cells {
                li.{ "cell " (cell.look.class()) " " (cell.width()) } {
                    b {
                        @match (cell.look, cell.ends) {
                            (Look::Good, (_, last)) => { "… " (show::count(last)) }
                            (Look::Quiet, (0, 0)) => { "not begun" }
                            (Look::Quiet, NOWHERE) => { "…" }
                            _ => { (cell.numbers()) }
                        }
                    }
                    span { (cell.look.icon()) (cell.says) }
                }
            }
            @if more { li.cell.quiet.w1 { b { "…" } span { "more below" } } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::{RangeKind, Reason};

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn range(first: i64, last: i64) -> Range {
        let kind = RangeKind::Skipped;
        Range { first, last, kind }
    }

    fn told(next: i64, ranges: Vec<Range>, events: &[StreamEvent]) -> Vec<String> {
        let generation = 0;
        let info = StreamInfo {
            next,
            generation,
            ranges,
        };
        let cells = cells_of_view(NOW, &info, events);
        cells
            .iter()
            .map(|cell| format!("{} {}", cell.numbers(), cell.says))
            .collect()
    }

    #[test]
    fn a_gap_is_drawn_between_what_is_applied_and_what_waits() {
        let events = [
            StreamEvent::stored(5, None),
            StreamEvent::stored(6, None),
            StreamEvent::stored(8, Some(Reason::Rejected)),
            StreamEvent::stored(9, None),
        ];
        assert_eq!(
            told(3, vec![], &events),
            [
                "0–2 dealt with",
                "3–4 missing",
                "5–6 parked",
                "7 missing",
                "8 dead: rejected",
                "9 parked"
            ]
        );
    }

    #[test]
    fn skipped_ranges_are_drawn_around_what_lies_in_them() {
        let events = [
            StreamEvent::stored(2, Some(Reason::Skipped)),
            StreamEvent::stored(4, Some(Reason::Skipped)),
            StreamEvent::stored(9, None),
        ];
        assert_eq!(
            told(3, vec![range(3, 6)], &events),
            [
                "0–2 dealt with",
                "3 skipped",
                "4 dead: skipped",
                "5–6 skipped",
                "7–8 missing",
                "9 parked"
            ]
        );
        assert_eq!(
            told(3, vec![range(5, i64::MAX - 1)], &[]),
            [
                "0–2 dealt with",
                "3–4 missing",
                "5–9,223,372,036,854,775,806 skipped"
            ]
        );
    }

    #[test]
    fn a_stream_in_which_nothing_waits_has_its_cursor_alone() {
        assert_eq!(told(3, vec![], &[]), ["0–2 dealt with", "3 comes next"]);
        assert_eq!(told(0, vec![], &[]), ["0 comes next"]);
        assert_eq!(told(-1, vec![], &[]), ["0 settling"]);
        assert_eq!(
            told(3, vec![], &[StreamEvent::stored(3, None)]),
            ["0–2 dealt with", "3 due"]
        );
    }

    #[test]
    fn before_a_stream_has_begun_nothing_below_what_came_is_missing() {
        let events = [
            StreamEvent::stored(500, None),
            StreamEvent::stored(502, None),
        ];
        assert_eq!(
            told(-1, vec![], &events),
            ["0 settling", "500 parked", "501 missing", "502 parked"]
        );
    }

    #[test]
    fn the_end_of_all_sequences_is_drawn_too() {
        assert_eq!(
            told(i64::MAX, vec![], &[]),
            [
                "0–9,223,372,036,854,775,806 dealt with",
                "9,223,372,036,854,775,807 comes next"
            ]
        );
    }

    #[test]
    fn what_is_replayed_out_of_its_order_leaves_no_gap_behind() {
        let mut stream = WaitingStream {
            source: "crm".into(),
            correlation_id: "acct_1".into(),
            generation: 0,
            next: Some(42),
            first: 3,
            last: 50,
            parked: 2,
            dead: 0,
            oldest: Timestamp::default(),
            head: None,
        };
        let told = |stream: &WaitingStream| {
            let last = cells_of_waiting(NOW, stream).pop();
            last.map(|cell| cell.says)
        };
        assert_eq!(told(&stream).as_deref(), Some("2 parked"));
        stream.next = None;
        let first = &cells_of_waiting(NOW, &stream)[0];
        assert_eq!(first.says, "no cursor known");
    }

    #[test]
    fn a_stream_of_a_list_is_drawn_by_its_ends() {
        let stream = WaitingStream {
            source: "crm".into(),
            correlation_id: "acct_1".into(),
            generation: 0,
            next: Some(42),
            first: 44,
            last: 50,
            parked: 4,
            dead: 2,
            oldest: Timestamp::default(),
            head: None,
        };
        let cells = cells_of_waiting(NOW, &stream);
        let told: Vec<_> = cells
            .iter()
            .map(|cell| format!("{} {}", cell.numbers(), cell.says))
            .collect();
        assert_eq!(
            told,
            [
                "0–41 dealt with",
                "42–43 missing, or skipped",
                "44–50 4 parked, 2 dead, 1 not stored"
            ]
        );
    }

    #[test]
    fn a_stream_of_a_list_says_what_holds_it_up() {
        let told = |reason: Option<Reason>, attempts, last| {
            let stream = WaitingStream {
                source: "crm".into(),
                correlation_id: "acct_1".into(),
                generation: 0,
                next: Some(1),
                first: 1,
                last,
                parked: if reason.is_none() { 3 } else { 2 },
                dead: u64::from(reason.is_some()),
                oldest: Timestamp::default(),
                head: Some(Head {
                    reason,
                    attempts,
                    last_status: (attempts > 0).then_some(500),
                    not_before: Timestamp::default(),
                }),
            };
            let cells = cells_of_waiting(NOW, &stream);
            let told = cells
                .iter()
                .map(|cell| format!("{} {}", cell.numbers(), cell.says));
            told.collect::<Vec<_>>()
        };
        assert_eq!(told(None, 0, 3), ["1 due", "2–3 2 parked"]);
        assert_eq!(
            told(None, 8, 3),
            ["1 failing: tried 8 times (500)", "2–3 2 parked"]
        );
        let rejected = Some(Reason::Rejected);
        assert_eq!(
            told(rejected, 1, 3),
            ["1 dead: rejected (500)", "2–3 2 parked"]
        );
    }
}
