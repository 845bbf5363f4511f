//! What becomes of a stream when somebody has decided, in words and for scripts; and what is refused, found out by a rehearsal.

use serde_json::{Value, json};
use tower_inbox::operator::{Ahead, Operator, Reason};
use tower_inbox::{Backend, OperatorError};

use super::count;
use crate::failure::Failure;
use crate::show::safe;

/// Why a rehearsal's decision is none.
pub(super) const REHEARSED: &str = "a dry run";

/// What a decision comes to: nothing, and why, if it would be refused.
pub(super) fn would<T>(
    rehearsed: Result<T, OperatorError>,
) -> Result<(Option<T>, Option<String>), Failure> {
    match rehearsed.map_err(Failure::from) {
        Ok(done) => Ok((Some(done), None)),
        Err(Failure::Refused(why)) => Ok((None, Some(why))),
        Err(other) => Err(other),
    }
}

/// What a stream comes to if these are skipped. Nothing if nothing is known of it.
pub(super) async fn of_a_skip<DB: Backend>(
    operator: &Operator<DB>,
    source: &str,
    id: &str,
    (first, last): (i64, i64),
) -> Result<Option<(i64, Ahead)>, Failure> {
    let Some(view) = operator.stream(source, id, None, 1).await? else {
        return Ok(None);
    };
    let ahead = operator.foresee_skip(source, id, &view.info, first..=last);
    Ok(Some((view.info.next, ahead.await?)))
}

/// `then 3 events are due, sequence 5 to 7`. `stands` is where the cursor is now.
pub(super) fn words(stands: i64, ahead: &Ahead) -> String {
    if ahead.next == stands {
        return format!(
            "it waits for {stands} as before, and passes what is skipped when it comes there"
        );
    }
    let held = ahead.held.as_ref().map(|event| {
        let reason = event.reason.map_or("dead", Reason::as_str);
        let id = safe(&event.event_id);
        format!(
            "it is held up at {} by dead letter {id} ({reason})",
            event.sequence
        )
    });
    let due = match ahead.due.as_slice() {
        [] => None,
        [one] if !ahead.more => Some(format!("1 event is due, sequence {}", one.sequence)),
        [first, ..] => {
            let last = ahead.due.last().unwrap_or(first);
            let more = if ahead.more { " and more" } else { "" };
            let number = count(ahead.due.len() as u64, "event");
            let (first, last) = (first.sequence, last.sequence);
            Some(format!(
                "{number}{more} are due, sequence {first} to {last}"
            ))
        }
    };
    match (due, held) {
        (Some(due), Some(held)) => format!("then {due}, and {held} behind that"),
        (Some(due), None) => format!("then {due}"),
        (None, Some(held)) => format!("then {held}"),
        (None, None) => format!("then it waits for {}, which has not come", ahead.next),
    }
}

pub(super) fn json(ahead: &Ahead) -> Value {
    json!({
        "next": ahead.next,
        "due": ahead.due.len(),
        "last_due": ahead.due.last().map(|event| event.sequence),
        "more": ahead.more,
        "held_by": ahead.held.as_ref().map(|event| json!({
            "event_id": event.event_id,
            "sequence": event.sequence,
            "reason": event.reason.map(Reason::as_str),
        })),
    })
}
