//! One stream: where it stands, what waits in it, and what can be decided about it.

use http::StatusCode;
use maud::{Markup, html};

use super::asked::{Answer, Fault, Page};
use super::caller::Caller;
use super::show::{self, Look};
use super::strip;
use crate::operator::{AuditFilter, Range, StreamEvent, StreamInfo, StreamView};
use crate::store::Backend;

/// Stored events of a page.
const ROWS: usize = 100;

pub(super) async fn page<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let (source, id) = (caller.demand("source")?, caller.demand("id")?);
    let from = caller.get("from").and_then(|from| from.parse().ok());
    let view = caller.operator.stream(source, id, from, ROWS).await?;
    let ahead = match &view {
        Some(view) => Some(ahead(&caller, source, id, from, view).await?),
        None => None,
    };
    let state = caller.inbox().shared.find_source(source).await;
    let newer = state
        .as_ref()
        .is_some_and(|state| state.applies_newer().is_some());
    // Of a source that is not known here there may be dead letters, of which nobody can say where they stand.
    let missing = match (&view, &state) {
        (Some(_), _) => false,
        (None, Some(_)) => !was_decided(&caller, source, id).await?,
        (None, None) => {
            !caller.operator.knows(source).await? && !was_decided(&caller, source, id).await?
        }
    };
    let content = html! {
        @match (&view, &ahead) {
            (Some(_), Some(ahead)) if newer => { (by_version(&caller, source, id, ahead)) }
            (Some(view), Some(ahead)) => { (known(&caller, source, id, from, view, ahead)) }
            _ if missing => {
                (show::nothing("Nothing is known of it: none of its events came, all were forgotten after their retention, or there is no such source."))
            }
            _ => {
                (show::nothing("None of its events was applied yet: it has no cursor, and waits for its source's first sequence."))
            }
        }
        p.more {
            a href=(caller.link("/dead", &[("source", source), ("correlation", id)])) { "Its dead letters" } " · "
            a href=(caller.link("/audit", &[("source", source), ("stream", id)])) { "Its audit log" }
        }
    };
    let mut page = Page::new("Stream", content).about(id, source);
    if missing {
        page = page.status(StatusCode::NOT_FOUND);
    }
    // What somebody is filling in is not taken away from him, and the cursor that he sees is the one he decides by.
    if !caller.may_act() {
        page = page.live();
    }
    Ok(page.into())
}

async fn was_decided<DB: Backend>(
    caller: &Caller<DB>,
    source: &str,
    id: &str,
) -> Result<bool, Fault> {
    let filter = AuditFilter::new().stream(source, id);
    let lines = caller.operator.audit(&filter, None, 1).await?;
    Ok(!lines.entries.is_empty())
}

/// What is stored from the cursor on, whatever page of the stored events is looked at: what is the matter and what can be
/// decided goes by this. What was set aside below the cursor could fill the first page, and a later one begins elsewhere.
async fn ahead<DB: Backend>(
    caller: &Caller<DB>,
    source: &str,
    id: &str,
    from: Option<i64>,
    view: &StreamView,
) -> Result<StreamView, Fault> {
    let next = view.info.next.max(0);
    let begins = view
        .events
        .first()
        .is_none_or(|event| event.sequence >= next);
    if from.is_none() && begins {
        return Ok(view.clone());
    }
    let ahead = caller.operator.stream(source, id, Some(next), ROWS);
    Ok(ahead.await?.unwrap_or_else(|| StreamView {
        info: view.info.clone(),
        events: Vec::new(),
        more: false,
    }))
}

/// The events of a page, and where the next one begins: several of one sequence are not torn apart, since pages go by it.
fn paged(view: &StreamView) -> (&[StreamEvent], Option<i64>) {
    let events = view.events.as_slice();
    let (Some(first), Some(last)) = (events.first(), events.last()) else {
        return (events, None);
    };
    let last = last.sequence;
    match (view.more, first.sequence == last) {
        (false, _) => (events, None),
        (true, true) => (events, Some(last.saturating_add(1))),
        (true, false) => {
            let shown = events.partition_point(|event| event.sequence < last);
            (&events[..shown], Some(last))
        }
    }
}

fn known<DB: Backend>(
    caller: &Caller<DB>,
    source: &str,
    id: &str,
    from: Option<i64>,
    view: &StreamView,
    ahead: &StreamView,
) -> Markup {
    let info = &ahead.info;
    let first = from.map(|_| caller.link("/stream", &[("source", source), ("id", id)]));
    let (shown, next) = paged(view);
    let next = next.map(|from| {
        caller.link(
            "/stream",
            &[("source", source), ("id", id), ("from", &from.to_string())],
        )
    });
    html! {
        (summary(caller, ahead))
        @if from.is_none() { div.card { (strip::of_view(caller.now, info, &ahead.events, ahead.more)) } }
        (show::facts(&[
            ("Cursor (next sequence)", html! { (show::count(info.next)) }),
            ("Generation", html! { (show::count(info.generation)) }),
            ("Skipped ahead", ranges(&info.ranges)),
        ]))
        @if caller.may_act() { (actions(caller, source, id, ahead)) }
        @if !shown.is_empty() { (events(caller, source, shown, "What is stored of it")) }
        (show::pager(first, next))
    }
}

/// Of newer-than order: there is no sequence that it could wait for.
fn by_version<DB: Backend>(
    caller: &Caller<DB>,
    source: &str,
    id: &str,
    view: &StreamView,
) -> Markup {
    let info = &view.info;
    html! {
        p.verdict {
            (Look::Quiet.icon()) "Its source applies whatever is newer than what was applied: this stream waits for no sequence."
        }
        (show::facts(&[("Generation", html! { (show::count(info.generation)) })]))
        @if caller.may_act() && info.next >= 0 {
            section.actions aria-labelledby="actions" {
                h2 #actions { "Decide" }
                @let next = info.next.to_string();
                @let generation = info.generation.to_string();
                @let fixed = [
                    ("source", source), ("id", id), ("seen_next", &*next), ("seen_generation", &*generation), ("first", &*next),
                ];
                details #reset {
                    summary { "Reset: the producer's versions begin again" }
                    p { "The next event is newer, whatever its version is. What is stored of it becomes dead letters “skipped”." }
                    (caller.ask("/stream/reset", &fixed, &Markup::default(), "Reset…"))
                }
            }
        }
    }
}

/// In one sentence, what is the matter.
fn summary<DB: Backend>(caller: &Caller<DB>, view: &StreamView) -> Markup {
    let next = view.info.next;
    let ahead: Vec<_> = view
        .events
        .iter()
        .filter(|event| event.sequence >= next)
        .collect();
    let behind = ahead.iter().filter(|event| event.sequence > next).count() as u64;
    let at = ahead.iter().find(|event| event.sequence == next);
    let oldest = ahead.iter().map(|event| event.parked_at).min();
    html! {
        p.verdict {
            @if next < 0 {
                (Look::Quiet.icon()) "It has not begun: it waits until its lowest sequence has settled."
            } @else if let Some(event) = at {
                @match event.reason {
                    None if event.leased => {
                        (Look::Parked.icon()) "Sequence " b { (show::count(next)) } " is here, and a worker is trying it now."
                    }
                    None if event.not_before > caller.now => {
                        @if event.attempts > 0 { (Look::Failing.icon()) } @else { (Look::Parked.icon()) }
                        "Sequence " b { (show::count(next)) } " is here, and "
                        @if event.attempts > 0 {
                            "was tried " b { (show::counted(event.attempts, "time", "times")) } " in vain"
                            @if let Some(status) = event.last_status { " (last answer " b { (status) } ")" }
                        } @else { "was put off by its handler" }
                        ": the worker tries it again " b { (show::due(caller.now, event.not_before)) } "."
                    }
                    None => { (Look::Parked.icon()) "Sequence " b { (show::count(next)) } " is here and due: the worker applies it." }
                    Some(reason) => {
                        (Look::Dead.icon()) "Held up by a dead letter: sequence " b { (show::count(next)) } " is "
                        b { (show::word(reason)) } ". Replay it, or skip it."
                    }
                }
            } @else if ahead.is_empty() {
                (Look::Good.icon()) "Nothing waits in it. Sequence " b { (show::count(next)) } " comes next."
            } @else {
                (Look::Gap.icon()) "It waits for sequence " b { (show::count(next)) } ", which has not come."
            }
            @if behind > 0 {
                " " b { (show::count(behind)) @if view.more { " and more" } } " stored behind it"
                @if let Some(oldest) = oldest { ", the oldest event stored " (show::ago(caller.now, oldest)) } "."
            }
        }
    }
}

fn ranges(ranges: &[Range]) -> Markup {
    html! {
        @if ranges.is_empty() { "none" }
        @for (index, range) in ranges.iter().enumerate() {
            @if index > 0 { ", " }
            (show::count(range.first))
            @if range.last > range.first { "–" (show::count(range.last)) }
            " (" (show::range(range.kind)) ")"
        }
    }
}

pub(super) fn events<DB: Backend>(
    caller: &Caller<DB>,
    source: &str,
    events: &[StreamEvent],
    caption: &str,
) -> Markup {
    let rows: Vec<_> = events
        .iter()
        .map(|event| {
            let link = caller.link("/event", &[("source", source), ("id", &event.event_id)]);
            vec![
                html! { (show::count(event.sequence)) },
                html! { a href=(link) { (show::text(&event.event_id)) } },
                html! {
                    @if event.reason.is_none() && event.attempts > 0 && !event.leased { (Look::Failing.badge("failing")) }
                    @else { (show::stored(event.reason)) }
                    @if event.leased { " " span.quiet { "claimed by a worker" } }
                },
                show::ago(caller.now, event.parked_at),
                html! { (show::count(event.attempts)) },
                html! {
                    @if let Some(status) = event.last_status { (status) " " }
                    @if let Some(error) = &event.last_error { (show::brief(error)) }
                },
                html! {
                    @if event.leased { "now" }
                    @else if event.reason.is_none() && event.not_before > caller.now { (show::due(caller.now, event.not_before)) }
                    @else { "–" }
                },
            ]
        })
        .collect();
    let heads = [
        "Sequence",
        "Event",
        "State",
        "Stored",
        "Attempts",
        "Last answer",
        "Next attempt",
    ];
    show::table(caption, &heads, &rows)
}

fn actions<DB: Backend>(caller: &Caller<DB>, source: &str, id: &str, view: &StreamView) -> Markup {
    let StreamInfo {
        next, generation, ..
    } = &view.info;
    if *next < 0 {
        return Markup::default();
    }
    let (seen_next, seen_generation) = (next.to_string(), generation.to_string());
    let fixed = [
        ("source", source),
        ("id", id),
        ("seen_next", &*seen_next),
        ("seen_generation", &*seen_generation),
    ];
    // Up to what is stored first, which is what one mostly wants to get to.
    let stored = view.events.iter().map(|event| event.sequence);
    let stored = stored
        .filter(|sequence| sequence > next)
        .min()
        .unwrap_or(next.saturating_add(1));
    let is_here = view.events.iter().any(|event| event.sequence == *next);
    let last = if is_here { *next } else { stored - 1 };
    let number = |id: &str, name: &str, label: &str, value: i64| {
        html! {
            div {
                label for=(id) { (label) }
                input id=(id) name=(name) type="number" inputmode="numeric" min="0" required value=(value);
            }
        }
    };
    let skip = html! {
        div.pair {
            (number("skip-first", "first", "From sequence", *next))
            (number("skip-last", "last", "to sequence", last))
        }
    };
    let forward = number("forward-to", "to", "New cursor", stored);
    let reset = number(
        "reset-first",
        "first",
        "First sequence of the new generation",
        1,
    );
    html! {
        section.actions aria-labelledby="actions" {
            h2 #actions { "Decide" }
            (try_now(caller, source, view))
            p.quiet {
                "Each of these says first what it would do, and is done only if the cursor is still " b { (show::count(*next)) }
                ", as you see it here. What is skipped is never applied by itself: what is stored in its place becomes a dead letter, and so does what comes for it later."
            }
            details #skip open {
                summary { "Skip sequences that will never come, or never be applied" }
                (caller.ask("/stream/skip", &fixed, &skip, "Skip…"))
            }
            details #forward {
                summary { "Fast-forward: skip everything below a sequence" }
                (caller.ask("/stream/fast-forward", &fixed, &forward, "Fast-forward…"))
            }
            details #reset {
                summary { "Reset: the producer begins again" }
                p { "What is parked or dead becomes dead letters “skipped”, and the sequences are others from now on." }
                (caller.ask("/stream/reset", &fixed, &reset, "Reset…"))
            }
        }
    }
}

/// What the stream waits for, if that is tried again later.
fn try_now<DB: Backend>(caller: &Caller<DB>, source: &str, view: &StreamView) -> Markup {
    let next = view.info.next;
    let head = view.events.iter().find(|event| {
        let waits = event.reason.is_none() && !event.leased && event.not_before > caller.now;
        event.sequence == next && waits
    });
    html! {
        @if let Some(head) = head {
            details #try-now open {
                summary { "Try " (show::text(&head.event_id)) " now, and not " (show::due(caller.now, head.not_before)) }
                (caller.act("/event/try-now", &[("source", source), ("id", &head.event_id)], &Markup::default(), "Try now", false))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(sequences: &[i64], more: bool) -> StreamView {
        let event = |sequence: &i64| StreamEvent::stored(*sequence, None);
        StreamView {
            info: StreamInfo {
                next: 1,
                generation: 0,
                ranges: Vec::new(),
            },
            events: sequences.iter().map(event).collect(),
            more,
        }
    }

    /// Two ids may have one sequence, where one has taken the other's place.
    #[test]
    fn pages_lose_nothing_and_show_nothing_twice() {
        for (sequences, more, shown, next) in [
            (&[][..], false, 0, None),
            (&[2, 3, 3], false, 3, None),
            (&[2, 3, 3], true, 1, Some(3)),
            (&[2, 3, 4], true, 2, Some(4)),
            (&[3, 3], true, 2, Some(4)),
            (&[i64::MAX], true, 1, Some(i64::MAX)),
        ] {
            let view = view(sequences, more);
            let (events, from) = paged(&view);
            assert_eq!((events.len(), from), (shown, next), "{sequences:?}");
        }
    }
}
