//! Who decided what, and why.

use maud::{Markup, html};

use super::asked::{Answer, Fault, Page};
use super::caller::Caller;
use super::{show, streams, when};
use crate::operator::{AuditEntry, AuditFilter};
use crate::store::Backend;

/// Lines of a page.
const ROWS: usize = 100;

/// What is chosen, by the names in links: of a source, of a stream or an event of it, by whom.
const CHOICES: [&str; 4] = ["source", "stream", "event", "actor"];

pub(super) async fn page<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let [source, stream, event, actor] = CHOICES.map(|name| caller.get(name));
    let before = caller.get("before").and_then(|id| id.parse().ok());
    let invalid = |why: &str| Err(Fault::Invalid(why.into()));
    let mut filter = match (source, stream, event) {
        (_, Some(_), Some(_)) => return invalid("Choose a stream or an event, and not both."),
        (Some(source), Some(stream), None) => AuditFilter::new().stream(source, stream),
        (Some(source), None, Some(event)) => AuditFilter::new().event(source, event),
        (Some(source), None, None) => AuditFilter::new().source(source),
        (None, Some(_), None) => {
            return invalid("A stream is one of a source: say of which one, too.");
        }
        (None, None, Some(_)) => {
            return invalid("An event is one of a source: say of which one, too.");
        }
        (None, None, None) => AuditFilter::new(),
    };
    if let Some(actor) = actor {
        filter = filter.actor(actor);
    }
    let page = caller.operator.audit(&filter, before, ROWS).await?;
    let chosen: Vec<_> = CHOICES
        .iter()
        .filter_map(|name| Some((*name, caller.get(name)?)))
        .collect();
    let first = before.map(|_: i64| caller.link("/audit", &chosen));
    let next = page.next.map(|id| {
        let id = id.to_string();
        caller.link("/audit", &[&chosen[..], &[("before", &id)]].concat())
    });
    let field = |name: &str, label: &str, value: Option<&str>| {
        html! {
            div {
                label for=(name) { (label) }
                input id=(name) name=(name) type="text" value=[value] placeholder="all" autocomplete="off";
            }
        }
    };
    let none = match (source, &*chosen) {
        (_, []) => "Nothing was decided or refused.",
        (Some(_), _) => "Nothing of that was decided or refused, or there is no such source.",
        (None, _) => "Nothing of that was decided or refused.",
    };
    let content = html! {
        form.filter method="get" action=(caller.link("/audit", &[])) {
            (streams::source_field(&caller.sources(), source))
            (field("stream", "Correlation id", stream))
            (field("event", "Event id", event))
            (field("actor", "Who", actor))
            button type="submit" { "Show" }
        }
        @if page.entries.is_empty() {
            (show::nothing(none))
        }
        @else { (lines(&caller, "Decisions and refusals, newest first, in UTC", &page.entries)) }
        (show::pager(first, next))
    };
    Ok(Page::new("Audit log", content).into())
}

pub(super) fn lines<DB: Backend>(
    caller: &Caller<DB>,
    caption: &str,
    entries: &[AuditEntry],
) -> Markup {
    let rows: Vec<_> = entries
        .iter()
        .map(|entry| {
            vec![
                html! { span.whole { (when::utc(entry.at)) } },
                show::text(&entry.actor),
                html! { code { (entry.action) } },
                html! {
                    @if let Some(id) = &entry.event_id {
                        a href=(caller.link("/event", &[("source", &entry.source), ("id", id)])) { (show::text(id)) }
                        " "
                    }
                    @if let Some(id) = &entry.correlation_id {
                        @if entry.event_id.is_some() { span.quiet { "in " } } @else { span.quiet { "stream " } }
                        a href=(caller.link("/stream", &[("source", &entry.source), ("id", id)])) { (show::text(id)) }
                        " "
                    }
                    span.quiet { "of " (show::text(&entry.source)) }
                },
                show::text(&entry.detail),
            ]
        })
        .collect();
    show::table(caption, &["Time", "Who", "What", "Of", "Why"], &rows)
}
