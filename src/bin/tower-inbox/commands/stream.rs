//! One stream: where it stands, and a strip of what comes next.

use serde_json::{Value, json};
use tower_inbox::Backend;
use tower_inbox::clock::Timestamp;
use tower_inbox::operator::{
    Operator, Range, RangeKind, Reason, Seen, StreamEvent, StreamInfo, StreamView,
};

use super::known;
use super::letter::number;
use crate::failure::Failure;
use crate::show::{Column, Table, ago, rfc3339};

/// What the sequences from the cursor on are, without a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) first: i64,
    pub(super) last: i64,
    pub(super) is: Is,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Is {
    /// It has not come.
    Missing,
    Parked,
    Dead(Reason),
    /// It is never waited for.
    Never(RangeKind),
}

impl Is {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Parked => "parked",
            Self::Dead(reason) => reason.as_str(),
            Self::Never(kind) => range_kind(kind),
        }
    }
}

fn range_kind(kind: RangeKind) -> &'static str {
    match kind {
        RangeKind::Skipped => "skipped",
        RangeKind::FastForward => "fast_forward",
        RangeKind::BeforeStart => "before_start",
        _ => "never",
    }
}

/// The first hundred ranges are told of.
const RANGES: usize = 100;

/// From the cursor, or where the page begins, to the last thing that is known: what lies before the page or behind it is not
/// called missing.
pub(super) fn strip(view: &StreamView, from: Option<i64>) -> Vec<Stretch> {
    let (info, events) = (&view.info, &view.events);
    let begin = info.next.max(0).max(from.unwrap_or(0));
    let of_page = events.last().filter(|_| view.more);
    let of_page = of_page.map_or(i64::MAX, |event| event.sequence);
    let of_ranges = info.ranges.get(RANGES - 1);
    let end = of_ranges.map_or(of_page, |range| range.last.min(of_page));
    let mut known: Vec<Stretch> = info
        .ranges
        .iter()
        .map(|range| Stretch {
            first: range.first,
            last: range.last,
            is: Is::Never(range.kind),
        })
        .collect();
    let in_a_range = |sequence: i64| {
        let covers = |range: &Range| (range.first..=range.last).contains(&sequence);
        info.ranges.iter().any(covers)
    };
    known.extend(
        events
            .iter()
            .filter(|event| event.sequence >= info.next && !in_a_range(event.sequence))
            .map(|event| Stretch {
                first: event.sequence,
                last: event.sequence,
                is: event.reason.map_or(Is::Parked, Is::Dead),
            }),
    );
    known.sort_by_key(|stretch| stretch.first);
    let mut strip: Vec<Stretch> = Vec::new();
    let mut next = begin;
    for mut stretch in known {
        stretch.first = stretch.first.max(begin);
        stretch.last = stretch.last.min(end);
        if stretch.last < stretch.first {
            continue;
        }
        if stretch.first > next {
            strip.push(Stretch {
                first: next,
                last: stretch.first - 1,
                is: Is::Missing,
            });
        }
        next = stretch.last.saturating_add(1);
        match strip.last_mut() {
            Some(last) if last.is == stretch.is && last.last + 1 == stretch.first => {
                last.last = stretch.last;
            }
            _ => strip.push(stretch),
        }
    }
    strip
}

pub(super) fn strip_json(strip: &[Stretch]) -> Value {
    let stretches = strip.iter();
    stretches
        .map(|stretch| {
            json!({"first": stretch.first, "last": stretch.last, "state": stretch.is.as_str()})
        })
        .collect()
}

/// One line: `… 3 | 4 missing | 5-7 parked | 8 skipped | …`
pub(super) fn strip_text(info: &StreamInfo, from: Option<i64>, strip: &[Stretch]) -> String {
    let mut parts = Vec::new();
    if info.next > 0 {
        parts.push(format!("… {} passed", info.next - 1));
    }
    for (place, stretch) in strip.iter().enumerate() {
        let numbers = if stretch.first == stretch.last {
            stretch.first.to_string()
        } else {
            format!("{}-{}", stretch.first, stretch.last)
        };
        let what = stretch.is.as_str();
        if place == 0 && stretch.first > info.next.max(0) {
            // The page begins later.
            parts.push("…".into());
        }
        if stretch.first == info.next.max(0) {
            parts.push(format!("[{numbers} {what}]"));
        } else {
            parts.push(format!("{numbers} {what}"));
        }
    }
    if strip.is_empty() && from.unwrap_or(0) <= info.next {
        parts.push(format!("[{} …]", info.next.max(0)));
    } else {
        parts.push("…".into());
    }
    parts.join(" | ")
}

/// A sentence about the cursor.
pub(super) fn stands(info: &StreamInfo) -> String {
    if info.next < 0 {
        return format!(
            "has not begun: it waits for its lowest sequence to settle (generation {})",
            info.generation
        );
    }
    format!("waits for {} in generation {}", info.next, info.generation)
}

pub(super) fn info_json(info: &StreamInfo) -> Value {
    let ranges = info.ranges.iter().map(
        |range| json!({"first": range.first, "last": range.last, "kind": range_kind(range.kind)}),
    );
    json!({
        "next": info.next,
        "generation": info.generation,
        "ranges": ranges.collect::<Value>(),
    })
}

pub(super) fn seen_json(seen: Seen) -> Value {
    json!({"next": seen.next, "generation": seen.generation})
}

pub(super) fn event_json(event: &StreamEvent) -> Value {
    json!({
        "event_id": event.event_id,
        "sequence": event.sequence,
        "reason": event.reason.map(Reason::as_str),
        "parked_at": rfc3339(event.parked_at),
        "not_before": rfc3339(event.not_before),
        "attempts": event.attempts,
        "last_status": event.last_status,
        "last_error": event.last_error,
        "leased": event.leased,
    })
}

/// Nothing where it waits for its turn alone, or for nobody.
fn next_try(event: &StreamEvent, now: Timestamp) -> String {
    if event.reason.is_none() && event.not_before > now {
        format!("in {}", ago(now, event.not_before))
    } else {
        String::new()
    }
}

pub(super) fn events_table(view: &StreamView) -> String {
    let now = Timestamp::now();
    let mut table = Table::new(&[
        Column::number("SEQ"),
        Column::text("EVENT"),
        Column::new("STATE"),
        Column::number("SINCE"),
        Column::number("TRIES"),
        Column::number("NEXT TRY"),
        Column::number("STATUS"),
        Column::new("LEASED").optional(),
        Column::text("LAST ERROR").optional(),
    ]);
    for event in &view.events {
        table.row([
            event.sequence.to_string(),
            event.event_id.clone(),
            event.reason.map_or("parked", Reason::as_str).to_owned(),
            ago(event.parked_at, now),
            event.attempts.to_string(),
            next_try(event, now),
            number(event.last_status),
            if event.leased { "yes" } else { "" }.to_owned(),
            event.last_error.clone().unwrap_or_default(),
        ]);
    }
    table.render(crate::show::width())
}

/// What an action on a stream is decided by: where it stands, or where somebody has seen it.
pub(super) async fn seen<DB: Backend>(
    operator: &Operator<DB>,
    source: &str,
    correlation_id: &str,
    asked: Option<Seen>,
    begins: Option<i64>,
) -> Result<Seen, Failure> {
    if let Some(asked) = asked {
        return Ok(asked);
    }
    let cursor = operator.cursor(source, correlation_id).await?;
    if cursor.is_none() {
        // And perhaps of no source of this name.
        known::source(operator, Some(source)).await?;
    }
    match cursor {
        Some(info) => Ok(info.seen()),
        None => match begins {
            Some(next) => Ok(Seen {
                generation: 0,
                next,
            }),
            None => Err(Failure::refused(format!(
                "nothing of stream {correlation_id} of source {source} was applied or parked yet; if that is right, say \
                 where its streams begin: --first-sequence"
            ))),
        },
    }
}

/// `7`, or `7@2` for generation 2.
pub(super) fn parse_seen(text: &str) -> Result<Seen, String> {
    let (next, generation) = text.split_once('@').unwrap_or((text, "0"));
    let number = |text: &str| {
        let number: i64 = text.parse().ok()?;
        (number >= -1).then_some(number)
    };
    match (number(next), number(generation)) {
        (Some(next), Some(generation)) => Ok(Seen { generation, next }),
        _ => Err("the next sequence, or NEXT@GENERATION".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_that_was_seen() {
        let seen = |generation, next| Ok(Seen { generation, next });
        assert_eq!(parse_seen("7"), seen(0, 7));
        assert_eq!(parse_seen("7@2"), seen(2, 7));
        assert_eq!(parse_seen("-1"), seen(0, -1));
        for wrong in ["", "x", "7@", "@1", "-2", "7@1@2"] {
            assert!(parse_seen(wrong).is_err(), "{wrong}");
        }
    }
}
