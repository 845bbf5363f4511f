//! What cannot be undone asks first: a page says what would happen, by what is stored now, and has the form that does it.

use maud::{Markup, html};

use super::asked::{Answer, Fault, Page};
use super::caller::Caller;
use super::show::{self, Look};
use super::stream;
use crate::operator::{
    AfterDiscard, Ahead, Letter, Reason, Seen, State, StreamEvent, StreamInfo, StreamView,
};
use crate::store::Backend;

/// Stored events that are read: what an operator's look has at most.
const READ: usize = 1_000;
/// Events that are named: the rest is a number.
pub(super) const NAMED: usize = 20;
/// Sequences beyond everything that has come: more than a producer is mostly ahead of its own deliveries.
const FAR: i128 = 100;

/// A stream as somebody saw it when he decided.
struct Decided<'a> {
    source: &'a str,
    id: &'a str,
    seen: Seen,
}

impl<'a> Decided<'a> {
    fn of<DB: Backend>(caller: &'a Caller<DB>) -> Result<Self, Fault> {
        Ok(Self {
            source: caller.demand("source")?,
            id: caller.demand("id")?,
            seen: Seen {
                next: caller.demand_number("seen_next")?,
                generation: caller.demand_number("seen_generation")?,
            },
        })
    }

    async fn view<DB: Backend>(
        &self,
        caller: &Caller<DB>,
        from: Option<i64>,
    ) -> Result<Option<StreamView>, Fault> {
        let view = caller.operator.stream(self.source, self.id, from, READ);
        Ok(view.await?)
    }

    /// Why it would be refused, if it would.
    fn objection(&self, info: &StreamInfo, first: i64) -> Option<String> {
        let now = info.seen();
        if now != self.seen {
            return Some(format!(
                "The stream has moved while you looked at it: it waits for {} in generation {} now. Look again, and decide again.",
                show::count(now.next),
                show::count(now.generation),
            ));
        }
        if info.next < 0 {
            return Some("The stream has not begun yet.".into());
        }
        (first < info.next).then(|| format!("Sequence {} is passed already.", show::count(first)))
    }

    /// The form that does it, with all that it was decided by.
    fn form<DB: Backend>(
        &self,
        caller: &Caller<DB>,
        path: &str,
        fields: &[(&str, i64)],
        button: &str,
    ) -> Markup {
        let numbers = [
            ("seen_next", self.seen.next),
            ("seen_generation", self.seen.generation),
        ];
        let numbers = numbers.iter().chain(fields);
        let numbers: Vec<_> = numbers.map(|(n, value)| (*n, value.to_string())).collect();
        let mut fixed = vec![("source", self.source), ("id", self.id)];
        fixed.extend(numbers.iter().map(|(name, value)| (*name, &**value)));
        caller.act(path, &fixed, &Markup::default(), button, true)
    }

    fn page<DB: Backend>(&self, caller: &Caller<DB>, title: &str, content: &Markup) -> Answer {
        let back = caller.link("/stream", &[("source", self.source), ("id", self.id)]);
        let content = html! {
            (content)
            p.more { a href=(back) { "← Back to the stream, and change nothing" } }
        };
        Page::new(title, content).about(self.id, self.source).into()
    }
}

fn refused(why: &str) -> Markup {
    html! { p.alert.bad role="alert" { (Look::Dead.icon()) (why) " Nothing was changed." } }
}

fn unknown() -> Markup {
    refused("Nothing is known of this stream, nor of where its source begins.")
}

const UNDONE: &str = "This cannot be undone.";

pub(super) async fn skip<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let decided = Decided::of(&caller)?;
    let (first, last) = (
        caller.demand_number("first")?,
        caller.demand_number("last")?,
    );
    if last < first || last == i64::MAX {
        return Err(Fault::Invalid(
            "The lower sequence comes first, and the last one is below 2^63-1.".into(),
        ));
    }
    let button = match first == last {
        true => format!("Skip {}", show::count(first)),
        false => format!("Skip {} to {}", show::count(first), show::count(last)),
    };
    let fields = [("first", first), ("last", last)];
    let content = range(
        &caller,
        &decided,
        (first, last),
        "/stream/skip",
        &fields,
        &button,
    );
    let content = content.await?;
    Ok(decided.page(&caller, "Skip sequences?", &content))
}

pub(super) async fn fast_forward<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let decided = Decided::of(&caller)?;
    let to = caller.demand_number("to")?;
    let (first, last) = (decided.seen.next, to.saturating_sub(1));
    let content = match last < first {
        true => refused("The stream is there already, or further on."),
        false => {
            let path = "/stream/fast-forward";
            let button = format!("Fast-forward to {}", show::count(to));
            range(
                &caller,
                &decided,
                (first, last),
                path,
                &[("to", to)],
                &button,
            )
            .await?
        }
    };
    Ok(decided.page(&caller, "Fast-forward?", &content))
}

/// Sequences that are never waited for.
async fn range<DB: Backend>(
    caller: &Caller<DB>,
    decided: &Decided<'_>,
    (first, last): (i64, i64),
    path: &str,
    fields: &[(&str, i64)],
    button: &str,
) -> Result<Markup, Fault> {
    let Some(view) = decided.view(caller, Some(first)).await? else {
        return Ok(unknown());
    };
    if let Some(why) = decided.objection(&view.info, first) {
        return Ok(refused(&why));
    }
    let within = view.events.iter().filter(|event| event.sequence <= last);
    let stored: Vec<_> = within.cloned().collect();
    // Beyond the page there may be more of them.
    let more = view.more && stored.len() == view.events.len();
    let beyond = decided.view(caller, Some(last)).await?;
    let all_came = beyond.is_some_and(|view| !view.events.is_empty());
    let highest = view.events.last().filter(|_| !view.more);
    let operator = &caller.operator;
    let ahead = operator.foresee_skip(decided.source, decided.id, &view.info, first..=last);
    let ahead = ahead.await?;
    let number = i128::from(last) - i128::from(first) + 1;
    let unsent = i128::from(last) - i128::from(highest.map_or(first - 1, |event| event.sequence));
    Ok(html! {
        div.verdict {
            p {
                b #sequences { (show::counted(number, "sequence", "sequences")) }
                " would be skipped: " b { (show::count(first)) }
                @if last > first {
                    " to " b { (show::count(last)) }
                    ". They are never waited for, and what comes for them later is set aside as a dead letter, answered 202."
                } @else {
                    ". It is never waited for, and what comes for it later is set aside as a dead letter, answered 202."
                }
            }
            (set_aside(caller, decided.source, &stored, more))
            (goes_on(&view.info, &ahead))
            p { (UNDONE) }
        }
        @if !all_came && !more && unsent > FAR {
            p.alert.bad role="alert" {
                (Look::Dead.icon())
                @match highest {
                    Some(event) => { "The highest sequence that has come is " b { (show::count(event.sequence)) } "." }
                    None => { "Nothing has come from " b { (show::count(first)) } " on." }
                }
                " So this skips " b { (show::count(unsent)) } " sequences that the producer may have yet to send. Is the number right?"
            }
        }
        (decided.form(caller, path, fields, button))
        @if !stored.is_empty() {
            (stream::events(caller, decided.source, &stored[..stored.len().min(NAMED)], "Events that would become dead letters"))
            (and_more(stored.len(), more))
        }
    })
}

fn and_more(known: usize, more: bool) -> Markup {
    let left = known.saturating_sub(NAMED) as u64;
    html! {
        @if left > 0 { p.quiet #more { "and " @if more { "at least " } (show::count(left)) " more" } }
    }
}

fn set_aside<DB: Backend>(
    caller: &Caller<DB>,
    source: &str,
    stored: &[StreamEvent],
    more: bool,
) -> Markup {
    let parked = stored.iter().filter(|event| event.reason.is_none()).count() as u64;
    html! {
        @match stored {
            [] => { p { "Nothing is stored there." } }
            [one] => {
                p {
                    "One event is stored there, "
                    a href=(caller.link("/event", &[("source", source), ("id", &one.event_id)])) { (show::text(&one.event_id)) }
                    ": it becomes a dead letter “skipped”, and is not applied."
                }
            }
            _ => {
                p {
                    @if more { "At least " }
                    b #stored { (show::count(stored.len() as u64)) } " events are stored there, "
                    (show::count(parked)) " of them parked: they become dead letters “skipped”, and are not applied."
                }
            }
        }
    }
}

/// What becomes due, or what it waits for then.
fn goes_on(info: &StreamInfo, ahead: &Ahead) -> Markup {
    html! {
        p #then {
            @if ahead.next == info.next {
                "The stream waits for " b { (show::count(info.next)) } " as before, and passes what is skipped when it comes there."
            } @else if let (Some(first), Some(last)) = (ahead.due.first(), ahead.due.last()) {
                "Then the stream goes on: " b { (show::count(ahead.due.len() as u64)) @if ahead.more { " and more" } }
                @if ahead.due.len() == 1 { " event, sequence " b { (show::count(first.sequence)) } }
                @else { " events, sequence " b { (show::count(first.sequence)) } " to " b { (show::count(last.sequence)) } }
                @if ahead.due.len() == 1 { ", is due at once." } @else { ", are due at once." }
            } @else if let Some(held) = &ahead.held {
                "Then the stream is held up at " b { (show::count(held.sequence)) } " by a dead letter, "
                @if let Some(reason) = held.reason { b { (show::word(reason)) } } "."
            } @else {
                "Then the stream waits for " b { (show::count(ahead.next)) } ", which has not come."
            }
        }
    }
}

pub(super) async fn reset<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let decided = Decided::of(&caller)?;
    let first = caller.demand_number("first")?;
    let title = "Reset the stream?";
    let Some(view) = decided.view(&caller, None).await? else {
        return Ok(decided.page(&caller, title, &unknown()));
    };
    if let Some(why) = decided.objection(&view.info, view.info.next) {
        return Ok(decided.page(&caller, title, &refused(&why)));
    }
    let state = caller.inbox().shared.find_source(decided.source).await;
    let newer = state.is_some_and(|state| state.applies_newer().is_some());
    let is_kept =
        |event: &&StreamEvent| !matches!(event.reason, Some(Reason::Skipped | Reason::BeforeStart));
    let stored: Vec<_> = view.events.iter().filter(is_kept).cloned().collect();
    let content = html! {
        div.verdict {
            @if newer {
                p { "The next event of it would be applied whatever its version is. What is stored of it becomes dead letters “skipped”." }
            } @else {
                p {
                    "A new generation would begin, number " b { (show::count(view.info.generation + 1)) }
                    ", and wait for sequence " b { (show::count(first)) }
                    ". Sequences up to " b { (show::count(view.info.next)) } " that the producer sends under new ids are new then."
                }
                @match stored.len() {
                    0 => { p { "Nothing is stored of it." } }
                    number => {
                        p {
                            @if view.more { "At least " }
                            b #stored { (show::counted(number as u64, "stored event becomes a dead letter", "stored events become dead letters")) }
                            " “skipped”, and will not be applied by themselves."
                        }
                    }
                }
            }
            p { "Known event ids stay known. " (UNDONE) }
        }
        (decided.form(&caller, "/stream/reset", &[("first", first)], "Reset the stream"))
        @if !stored.is_empty() {
            (stream::events(&caller, decided.source, &stored[..stored.len().min(NAMED)], "Events that would become dead letters"))
            (and_more(stored.len(), view.more))
        }
    };
    Ok(decided.page(&caller, title, &content))
}

pub(super) async fn discard<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let (source, id) = (caller.demand("source")?, caller.demand("id")?);
    let story = caller.operator.inspect(source, id).await?;
    let content = match &story {
        None => refused("Nothing is known of it: it never came, or was forgotten."),
        Some(story) => match story.letter.state {
            State::Parked | State::Dead | State::Fenced => {
                let after = caller.operator.foresee_discard(story).await?;
                let skipped = skipped_with(&story.letter, story.stream.as_ref(), &after);
                discardable(&caller, &story.letter, &skipped)
            }
            State::Applied => refused("It is applied: what its handler did stays done."),
            State::Superseded | State::Discarded => refused("It is decided already."),
        },
    };
    let back = caller.link("/event", &[("source", source), ("id", id)]);
    let content = html! {
        (content)
        p.more { a href=(back) { "← Back to the event, and change nothing" } }
    };
    Ok(Page::new("Discard the event?", content)
        .about(id, source)
        .into())
}

/// What becomes of its stream.
fn skipped_with(letter: &Letter, info: Option<&StreamInfo>, after: &AfterDiscard) -> Markup {
    let skips = html! {
        @if let Some(sequence) = letter.sequence {
            p { "Its sequence " b { (show::count(sequence)) } " is skipped with it." }
        }
    };
    match (after, info) {
        (AfterDiscard::Skips(ahead), Some(info)) => html! { (skips) (goes_on(info, ahead)) },
        (AfterDiscard::Skips(_) | AfterDiscard::NotBegun, _) => skips,
        (AfterDiscard::Passed, _) => {
            html! { p { "Its place in its stream is passed: nothing else changes." } }
        }
        (AfterDiscard::NoPlace, _) => {
            html! { p { "It holds no place in a stream: nothing else changes." } }
        }
    }
}

fn discardable<DB: Backend>(caller: &Caller<DB>, letter: &Letter, skipped: &Markup) -> Markup {
    let fixed = [("source", &*letter.source), ("id", &*letter.event_id)];
    html! {
        div.verdict {
            p {
                (show::state(letter.state, letter.reason)) " It would never be applied, and its redeliveries are answered 200 “discarded”."
            }
            p {
                "Its stored request "
                @if let Some(bytes) = letter.body_bytes { "(" (show::counted(bytes, "byte", "bytes")) ") " }
                "is removed: nobody can read or replay it afterwards."
            }
            (skipped)
            p { (UNDONE) }
        }
        (caller.act("/event/discard", &fixed, &Markup::default(), "Discard for good", true))
    }
}
