//! Who decided what, and why.

use maud::{Markup, html};

use super::asked::{Answer, Fault, Page};
use super::caller::Caller;
use super::{show, streams, when};
use crate::operator::{AuditEntry, AuditFilter};
use crate::store::Backend;

/// Lines of a page.
const ROWS: usize = 100;

pub(super) async fn page<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let source = caller.get("source");
    let before = caller.get("before").and_then(|id| id.parse().ok());
    let mut filter = AuditFilter::new();
    if let Some(source) = source {
        filter = filter.source(source);
    }
    let page = caller.operator.audit(&filter, before, ROWS).await?;
    let chosen = source.unwrap_or_default();
    let first = before.map(|_: i64| caller.link("/audit", &[("source", chosen)]));
    let next = page.next.map(|id| {
        let id = id.to_string();
        caller.link("/audit", &[("source", chosen), ("before", &id)])
    });
    let content = html! {
        form.filter method="get" action=(caller.link("/audit", &[])) {
            (streams::source_field(&caller.sources(), source))
            button type="submit" { "Show" }
        }
        @if page.entries.is_empty() { (show::nothing("Nothing was decided or refused.")) }
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
                    span.quiet { (show::text(&entry.source)) }
                },
                show::text(&entry.detail),
            ]
        })
        .collect();
    show::table(caption, &["Time", "Who", "What", "Of", "Why"], &rows)
}
