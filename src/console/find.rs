//! An event is found by its id, of whatever source it is.

use http::StatusCode;
use maud::{Markup, html};

use super::asked::{Answer, Asked, Fault, Page, see};
use super::caller::Caller;
use super::{show, streams};
use crate::operator::AuditFilter;
use crate::store::Backend;

/// Sources that are looked through for one id: each is a look of its own. Of more, one has to say which.
const SOURCES: usize = 100;
/// So many are not named in a sentence.
const NAMED: usize = 10;
/// More to choose from is nothing to choose from; one can be written on the page that has found nothing.
const CHOICES: usize = 30;

/// On every page.
pub(super) fn form(asked: &Asked, sources: &[String]) -> Markup {
    html! {
        form.find role="search" method="get" action=(asked.link("/find", &[])) {
            input name="id" type="search" required aria-label="Find an event by its id" placeholder="Event id"
                autocomplete="off" autocapitalize="off" spellcheck="false";
            @if (2..=CHOICES).contains(&sources.len()) {
                select name="source" aria-label="Source of the event" {
                    option value="" { "any source" }
                    @for source in sources { option value=(source) { (source) } }
                }
            }
            button.plain type="submit" { "Find" }
        }
    }
}

/// Leads to the event. Where several sources have the id, or none has it, says so.
pub(super) async fn page<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let named = caller.get("source");
    let own = caller.sources();
    let Some(whole) = caller.get("id") else {
        let content = html! {
            p.lead { "By the id that its producer gave it." }
            (again(&caller, &own, named, None))
        };
        return Ok(Page::new("Find an event", content).into());
    };
    // An id may have blanks around it, which somebody who copies it does not mean as a rule.
    let mut ids = vec![whole, whole.trim()];
    ids.dedup();
    let looked: Vec<&str> = match named {
        Some(source) => vec![source],
        None => own.iter().take(SOURCES).map(String::as_str).collect(),
    };
    let mut found = Vec::new();
    for id in ids {
        for source in &looked {
            if is_known(&caller, source, id).await? {
                found.push((*source, id));
            }
        }
    }
    let to = |(source, id): (&str, &str)| caller.link("/event", &[("source", source), ("id", id)]);
    if let [only] = found[..] {
        return Ok(Answer::Raw(see(&to(only))));
    }
    if !found.is_empty() {
        let content = html! {
            p.lead { "Several sources have an event of this id." }
            ul { @for (source, id) in found { li { a href=(to((source, id))) { (show::text(id)) } " of " (show::text(source)) } } }
        };
        return Ok(Page::new("Which event?", content).into());
    }
    let content = html! {
        div.verdict {
            p {
                (show::Look::Quiet.icon()) "No event " b { (show::text(whole)) } " is known of "
                @match looked.len() {
                    0 => { "any source (this process has none)" }
                    number @ NAMED.. => { "any of " (show::count(number as u64)) " sources" }
                    number => {
                        @for (index, source) in looked.iter().enumerate() {
                            @if index > 0 { @if index + 1 == number { " or " } @else { ", " } }
                            b { (show::text(source)) }
                        }
                    }
                }
                ": it never came, was refused at the door, or was forgotten after its retention."
            }
            @if named.is_none() {
                p {
                    "That is all that was looked through"
                    @if own.len() > looked.len() { ", of " (show::count(own.len() as u64)) " sources of this process" }
                    ": a tenant's source, or one that only other processes have, has to be named."
                }
            }
        }
        (again(&caller, &own, named, Some(whole)))
    };
    let page = Page::new("Not found here", content);
    Ok(page.status(StatusCode::NOT_FOUND).into())
}

/// With whatever source somebody writes.
fn again<DB: Backend>(
    caller: &Caller<DB>,
    sources: &[String],
    named: Option<&str>,
    id: Option<&str>,
) -> Markup {
    html! {
        form.filter method="get" action=(caller.link("/find", &[])) {
            (streams::source_field(sources, named))
            div {
                label for="find-again" { "Event id" }
                input #find-again name="id" type="text" required value=[id] autocomplete="off";
            }
            button type="submit" { "Find" }
        }
    }
}

/// It is there, or something was decided about it before it was forgotten.
async fn is_known<DB: Backend>(caller: &Caller<DB>, source: &str, id: &str) -> Result<bool, Fault> {
    if caller.operator.inspect(source, id).await?.is_some() {
        return Ok(true);
    }
    let filter = AuditFilter::new().event(source, id);
    let lines = caller.operator.audit(&filter, None, 1).await?;
    Ok(!lines.entries.is_empty())
}
