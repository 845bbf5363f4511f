//! Streams in which something waits.

use maud::{Markup, html};

use super::asked::{Answer, Fault, Page};
use super::caller::Caller;
use super::{show, strip, waiting};
use crate::operator::{StreamKey, WaitingStream};
use crate::store::Backend;

/// Streams of a page: more than fit on a screen, few enough to be read.
const ROWS: usize = 50;

pub(super) async fn page<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let source = caller.get("source");
    let after = match (caller.get("after_source"), caller.get("after")) {
        (Some(source), Some(id)) => Some(StreamKey::new(source, id)),
        _ => None,
    };
    let page = caller
        .operator
        .streams(source, after.as_ref(), ROWS)
        .await?;
    let filter = source.unwrap_or_default();
    let none = match (&after, source) {
        (Some(_), _) => "No further stream waits for anything.",
        (None, Some(_)) => {
            "No stream of this source waits for anything, or there is no such source."
        }
        (None, None) => "No stream waits for anything.",
    };
    let first = after.map(|_| caller.link("/streams", &[("source", filter)]));
    let next = page.next.map(|key| {
        let after = [
            ("source", filter),
            ("after_source", &key.source),
            ("after", &key.correlation_id),
        ];
        caller.link("/streams", &after)
    });
    let apart = waiting::apart(&caller, source).await?;
    let content = html! {
        p.lead {
            "Each of these waits for its next sequence: that has not come, or its handler fails and it is tried again, or it is put off, or a dead "
            "letter stands in its place until somebody replays or skips it. Nothing else of the source waits for it. By source and name; "
            a href=(caller.link("/", &[])) { "the overview" } " has those first that need somebody most."
        }
        (choose(&caller, source))
        @if page.streams.is_empty() { (show::nothing(none)) }
        (list(&caller, &page.streams))
        (apart)
        (find(&caller))
        (show::pager(first, next))
    };
    Ok(Page::new("Streams", content).live().into())
}

pub(super) fn list<DB: Backend>(caller: &Caller<DB>, streams: &[WaitingStream]) -> Markup {
    html! {
        ul.streams {
            @for stream in streams { li.card { (row(caller, stream)) } }
        }
    }
}

fn row<DB: Backend>(caller: &Caller<DB>, stream: &WaitingStream) -> Markup {
    let key = [("source", &*stream.source), ("id", &*stream.correlation_id)];
    html! {
        div.row {
            a.name href=(caller.link("/stream", &key)) { (show::text(&stream.correlation_id)) }
            span.quiet { "of " (show::text(&stream.source)) }
            (strip::badge(caller.now, stream))
            span.end { "oldest event stored " (show::ago(caller.now, stream.oldest)) }
        }
        (strip::of_waiting(caller.now, stream))
    }
}

/// One of the sources that this process has. Those of others, and tenants, can be written.
pub(super) fn source_field(sources: &[String], chosen: Option<&str>) -> Markup {
    html! {
        div {
            label for="source" { "Source" }
            input #source name="source" type="text" list="sources" value=[chosen] placeholder="all" autocomplete="off";
            datalist #sources { @for source in sources { option value=(source) {} } }
        }
    }
}

fn choose<DB: Backend>(caller: &Caller<DB>, source: Option<&str>) -> Markup {
    html! {
        form.filter method="get" action=(caller.link("/streams", &[])) {
            (source_field(&caller.sources(), source))
            button type="submit" { "Show" }
        }
    }
}

/// One that waits for nothing is found by its name.
fn find<DB: Backend>(caller: &Caller<DB>) -> Markup {
    html! {
        details #find {
            summary { "Find a stream by its correlation id" }
            form.filter method="get" action=(caller.link("/stream", &[])) {
                div {
                    label for="find-source" { "Source" }
                    input #find-source name="source" type="text" list="sources" required;
                }
                div {
                    label for="find-id" { "Correlation id" }
                    input #find-id name="id" type="text" required;
                }
                button type="submit" { "Show the stream" }
            }
        }
    }
}
