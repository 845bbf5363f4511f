//! An event's whole story.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request, StatusCode};
use maud::{Markup, html};

use super::asked::{Answer, Fault, Page};
use super::caller::Caller;
use super::show::Look;
use super::{audit, show};
use crate::clock::Timestamp;
use crate::operator::{AuditEntry, AuditFilter, Letter, Reason, State, Story};
use crate::store::Backend;

/// Lines of the audit table that are shown with it, newest first.
const LINES: usize = 50;
/// Of a body, in bytes: a browser shows more slowly than anybody reads.
const SHOWN: usize = 256 * 1024;
/// Of a body that is no text: each byte is three characters.
const SHOWN_AS_BYTES: usize = 16 * 1024;

pub(super) async fn page<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let (source, id) = (caller.demand("source")?, caller.demand("id")?);
    let filter = AuditFilter::new().event(source, id);
    let lines = caller.operator.audit(&filter, None, LINES).await?.entries;
    let story = caller.operator.inspect(source, id).await?;
    let of = caller.inbox().shared.find_source(source).await;
    let most = of.map(|source| source.max_attempts());
    let content = html! {
        @match &story {
            None => { (show::nothing("Nothing is known of it: it never came, was forgotten after its retention, or there is no such source.")) }
            Some(story) => { (known(&caller, story, most)) }
        }
        (history(&caller, &lines))
        p.more { a href=(caller.link("/audit", &[("source", source), ("event", id)])) { "Its audit log" } }
    };
    let part = story.as_ref().map_or("", |story| part(&story.letter));
    let mut page = Page::new("Event", content).about(id, source);
    if story.is_none() && lines.is_empty() {
        page = page.status(StatusCode::NOT_FOUND);
    }
    Ok(page.part(Some(part)).into())
}

/// Of the console, the one that has it in its list.
fn part(letter: &Letter) -> &'static str {
    match letter.state {
        State::Dead | State::Fenced => "/dead",
        State::Parked if letter.sequence.is_some() && !letter.out_of_order => "/streams",
        State::Parked => "/waiting",
        _ => "",
    }
}

/// The body, for somebody who said why: it is in the audit table before he sees it.
pub(super) async fn body<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let (source, id) = (caller.field("source")?, caller.field("id")?);
    let body = caller.operator.body(source, id, caller.reason()?).await?;
    let content = html! {
        @match body {
            None => { (show::nothing("No body is stored of it.")) }
            Some(body) => { (shown(&body)) }
        }
        p.more { a href=(caller.link("/event", &[("source", source), ("id", id)])) { "← Back to the event" } }
    };
    Ok(Page::new("Stored body", content).about(id, source).into())
}

fn shown(body: &Bytes) -> Markup {
    let size = show::count(body.len() as u64);
    match std::str::from_utf8(body) {
        Ok(text) => {
            let cut = &text[..text.floor_char_boundary(SHOWN)];
            html! {
                p { (size) " bytes, audited." }
                @if cut.len() < text.len() { p { "Only the beginning is shown." } }
                pre.body tabindex="0" aria-label="Body" { (show::lines(cut)) }
            }
        }
        Err(_) => {
            let cut = &body[..body.len().min(SHOWN_AS_BYTES)];
            let lines = cut.chunks(32).map(|line| {
                let bytes: Vec<_> = line.iter().map(|byte| format!("{byte:02x}")).collect();
                bytes.join(" ")
            });
            let lines = lines.collect::<Vec<_>>().join("\n");
            html! {
                p { (size) " bytes that are no text, audited." }
                @if cut.len() < body.len() { p { "Only the beginning is shown." } }
                pre.body tabindex="0" aria-label="Body, byte by byte" { (lines) }
            }
        }
    }
}

fn known<DB: Backend>(caller: &Caller<DB>, story: &Story, most: Option<u32>) -> Markup {
    let letter = &story.letter;
    html! {
        p.verdict {
            @if is_being_tried(letter) { (Look::Parked.badge("being tried now")) }
            @else if letter.state == State::Parked && letter.attempts > 0 { (Look::Failing.badge("parked: failing")) }
            @else { (show::state(letter.state, letter.reason)) }
            @if let Some(reason) = letter.reason { " " (show::advice(reason)) }
            @if letter.last_status.is_some() || letter.last_error.is_some() {
                span.answer {
                    "Last answer: "
                    @if let Some(status) = letter.last_status { b { (status) } " " }
                    @if let Some(error) = &letter.last_error { (show::text(error)) }
                }
            }
        }
        @if caller.may_act() { (actions(caller, letter)) }
        (facts(caller, story, most))
        @if let Some(request) = &story.request { (request_of(caller, letter, request)) }
        @if !story.neighbours.is_empty() { (neighbours(caller, story)) }
    }
}

/// What a worker has claimed may have failed before, or not; how it ends nobody knows yet.
fn is_being_tried(letter: &Letter) -> bool {
    letter.state == State::Parked && letter.leased
}

/// How often its handler has run in vain, of how often it may, where this process knows its source.
fn attempts(letter: &Letter, most: Option<u32>) -> Markup {
    html! {
        (show::count(letter.attempts))
        @if let Some(most) = most && letter.state == State::Parked { span.quiet { " of " (show::count(most)) } }
        @if is_being_tried(letter) { span.quiet { ", not counting the one under way" } }
    }
}

/// When it is tried, by whom, or what must happen first.
fn next_attempt(now: Timestamp, story: &Story) -> Option<Markup> {
    let letter = &story.letter;
    let turn = letter.sequence.filter(|_| !letter.out_of_order);
    let stream = story.stream.as_ref();
    let waits_for = stream.filter(|stream| turn.is_some_and(|turn| turn > stream.next));
    Some(match (letter.state, letter.reason) {
        (State::Parked, _) if letter.leased => html! { "now: a worker has it" },
        (State::Parked, _) => html! {
            @match (letter.not_before.filter(|at| *at > now), waits_for) {
                (Some(at), _) => { (show::due_at(now, at)) }
                (None, Some(stream)) if stream.next >= 0 => {
                    "when its turn is there: the stream waits for " (show::count(stream.next))
                }
                (None, Some(_)) => { "when its stream has begun" }
                (None, None) => { "as soon as a worker takes it up" }
            }
        },
        (State::Dead, Some(Reason::Gap)) => html! { "when the gap before it is filled or skipped" },
        (State::Dead, _) => html! { "none: somebody has to decide" },
        _ => return None,
    })
}

fn facts<DB: Backend>(caller: &Caller<DB>, story: &Story, most: Option<u32>) -> Markup {
    let letter = &story.letter;
    let now = caller.now;
    let mut facts = vec![(
        "Type",
        html! { (show::text(letter.event_type.as_deref().unwrap_or("–"))) },
    )];
    if let Some(id) = &letter.correlation_id {
        let link = caller.link("/stream", &[("source", &letter.source), ("id", id)]);
        facts.push(("Stream", html! { a href=(link) { (show::text(id)) } }));
    }
    if let Some(sequence) = letter.sequence {
        let stream = story.stream.as_ref();
        let stream = stream.filter(|stream| stream.generation == letter.generation);
        facts.push((
            "Sequence",
            html! {
                (show::count(sequence))
                @match stream {
                    Some(stream) => { span.quiet { " – the stream waits for " (show::count(stream.next)) } }
                    None => { span.quiet { " in generation " (show::count(letter.generation)) } }
                }
            },
        ));
    }
    facts.push(("Received", show::at(now, letter.received_at)));
    facts.push(("In this state since", show::at(now, letter.decided_at)));
    if let Some(at) = letter.tried_at {
        facts.push(("Last attempt by a worker", show::at(now, at)));
    }
    facts.push(("Attempts so far", attempts(letter, most)));
    if let Some(next) = next_attempt(now, story) {
        facts.push(("Next attempt", next));
    }
    if let Some(id) = &letter.yielded_to {
        let link = caller.link("/event", &[("source", &letter.source), ("id", id)]);
        facts.push((
            "Its place was taken by",
            html! { a href=(link) { (show::text(id)) } },
        ));
    }
    if letter.out_of_order {
        facts.push(("Replayed out of order", html! { "yes" }));
    }
    show::facts(&facts)
}

/// Whatever may be a credential is kept back, also where a source keeps such headers for its handler.
fn is_shown(name: &HeaderName) -> bool {
    const WORDS: [&str; 16] = [
        "assertion",
        "auth",
        "bearer",
        "cert",
        "cookie",
        "credential",
        "hmac",
        "jwt",
        "key",
        "oidc",
        "passw",
        "principal",
        "secret",
        "session",
        "sig",
        "token",
    ];
    // A key by its name that is an event's id.
    name == "idempotency-key" || !WORDS.iter().any(|word| name.as_str().contains(word))
}

fn request_of<DB: Backend>(
    caller: &Caller<DB>,
    letter: &Letter,
    request: &Request<Bytes>,
) -> Markup {
    let fixed = [("source", &*letter.source), ("id", &*letter.event_id)];
    let reason = html! {
        (show::reason_field("reason-body"))
        button.plain type="submit" { "Show the body" }
    };
    html! {
        section aria-labelledby="request" {
            h2 #request { "Stored request" }
            p { code { (request.method().as_str()) " " (show::text(&path_of(request))) } }
            (headers(request.headers()))
            @match letter.body_bytes {
                Some(bytes) => {
                    details #body {
                        summary { "Body, " (show::count(bytes)) " bytes: shown on demand, and audited" }
                        (caller.form("/event/body", &fixed, &reason))
                    }
                }
                None => { p.quiet { "Its body is empty, or was not kept." } }
            }
        }
    }
}

/// A query may have a token in it.
fn path_of(request: &Request<Bytes>) -> String {
    match request.uri().query() {
        None => request.uri().path().to_owned(),
        Some(_) => format!("{}?… (query not shown)", request.uri().path()),
    }
}

fn headers(headers: &HeaderMap) -> Markup {
    let rows: Vec<_> = headers
        .iter()
        .map(|(name, value)| {
            let value = match is_shown(name) {
                true => show::text(&String::from_utf8_lossy(value.as_bytes())),
                false => html! { span.quiet { "not shown" } },
            };
            vec![html! { (name.as_str()) }, value]
        })
        .collect();
    show::table(
        "Headers, without signatures and credentials",
        &["Header", "Value"],
        &rows,
    )
}

fn neighbours<DB: Backend>(caller: &Caller<DB>, story: &Story) -> Markup {
    let source = &story.letter.source;
    let rows: Vec<_> = story
        .neighbours
        .iter()
        .map(|near| {
            let link = caller.link("/event", &[("source", source), ("id", &near.event_id)]);
            let itself = near.event_id == story.letter.event_id;
            vec![
                html! { (show::count(near.sequence)) },
                html! {
                    @if itself { b { (show::text(&near.event_id)) } " " span.quiet { "this one" } }
                    @else { a href=(link) { (show::text(&near.event_id)) } }
                },
                show::stored(near.reason),
            ]
        })
        .collect();
    show::table(
        "Stored around it in its stream",
        &["Sequence", "Event", "State"],
        &rows,
    )
}

fn history<DB: Backend>(caller: &Caller<DB>, lines: &[AuditEntry]) -> Markup {
    html! {
        @if lines.is_empty() { p.quiet { "No operator has decided anything about it." } }
        @else { (audit::lines(caller, "What was decided about it", lines)) }
    }
}

/// What may be decided about it in its state.
fn actions<DB: Backend>(caller: &Caller<DB>, letter: &Letter) -> Markup {
    let fixed = [("source", &*letter.source), ("id", &*letter.event_id)];
    let is_put_off = letter.not_before.is_some_and(|at| at > caller.now);
    let offers: &[(&str, &str, &str, bool)] = match (letter.state, letter.reason) {
        (State::Dead, Some(Reason::Skipped | Reason::BeforeStart)) => &[OUT_OF_ORDER],
        (State::Dead, _) => &[REPLAY],
        (State::Parked, _) if is_put_off && !letter.leased => &[TRY_NOW],
        (State::Parked, _) => &[],
        (State::Fenced, _) => &[RELEASE],
        _ => return Markup::default(),
    };
    html! {
        section.actions aria-labelledby="actions" {
            h2 #actions { "Decide" }
            @for (path, what, button, grave) in offers {
                details {
                    summary { (what) }
                    (caller.act(path, &fixed, &Markup::default(), button, *grave))
                }
            }
            details {
                summary { "Discard: it is never applied, its sequence is skipped if it has one, and its request is removed" }
                (caller.ask("/event/discard", &fixed, &Markup::default(), "Discard…"))
            }
        }
    }
}

const REPLAY: (&str, &str, &str, bool) = (
    "/event/replay",
    "Replay: back into its turn, as new",
    "Replay",
    false,
);
const TRY_NOW: (&str, &str, &str, bool) = (
    "/event/try-now",
    "Try now: without waiting for the time of its next attempt",
    "Try now",
    false,
);
const OUT_OF_ORDER: (&str, &str, &str, bool) = (
    "/event/replay-out-of-order",
    "Replay out of order: after events that should have come after it",
    "Replay out of order",
    true,
);
const RELEASE: (&str, &str, &str, bool) = (
    "/event/release",
    "Release: it was honest, hand it to the handler",
    "Release",
    false,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_a_credential_is_not_shown() {
        for name in [
            "authorization",
            "x-api-key",
            "x-hub-signature-256",
            "x-auth",
            "cookie",
            "x-csrf-token",
            "x-goog-iap-jwt-assertion",
            "x-amzn-oidc-data",
            "x-forwarded-client-cert",
            "x-sig",
            "x-passwd",
            "x-session-id",
        ] {
            assert!(!is_shown(&HeaderName::from_static(name)), "{name}");
        }
        for name in [
            "content-type",
            "x-kudos-event-id",
            "idempotency-key",
            "traceparent",
        ] {
            assert!(is_shown(&HeaderName::from_static(name)), "{name}");
        }
    }

    #[test]
    fn a_body_is_text_where_it_is_text_and_bytes_where_not() {
        let text = shown(&Bytes::from_static(b"{\"a\":\"<b>\"}")).into_string();
        assert!(
            text.contains("{&quot;a&quot;:&quot;&lt;b&gt;&quot;}"),
            "{text}"
        );
        let turned = shown(&Bytes::from("{\n\t\"a\": \"\u{202e}1\u{0}\"}")).into_string();
        assert!(turned.contains("{\n\t&quot;a&quot;"), "{turned}");
        assert!(
            turned.contains("U+202E") && turned.contains("U+0000"),
            "{turned}"
        );
        let bytes = shown(&Bytes::from_static(&[0xff, 0x00, 0x7f])).into_string();
        assert!(bytes.contains("ff 00 7f"), "{bytes}");
        let long = shown(&Bytes::from("é".repeat(SHOWN))).into_string();
        assert!(long.contains("Only the beginning is shown"));
    }
}
