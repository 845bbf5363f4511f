//! What is parked, in a stream or in none: seen, and tried at once.

use maud::{Markup, html};

use super::asked::{Answer, Fault, Page};
use super::bulk::{self, Work};
use super::caller::Caller;
use super::confirm::NAMED;
use super::pairs::Pairs;
use super::show::Look;
use super::{letters, show, streams};
use crate::operator::{BulkOptions, Letter, PageKey, Unreadable, Waiting};
use crate::store::Backend;

/// Events of a page.
const ROWS: usize = 100;
/// What is in no stream is counted up to here.
const COUNTED: usize = 1_000;
/// The field that says: in no stream alone.
const APART: &str = "apart";

/// What was chosen, as it stands in links and forms.
struct Chosen<'a>(Vec<(&'static str, &'a str)>);

impl<'a> Chosen<'a> {
    fn of(pairs: &'a Pairs) -> Self {
        let fields = ["source", APART];
        let given = fields
            .iter()
            .filter_map(|name| Some((*name, pairs.get(name)?)));
        Self(given.collect())
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        let mut pairs = self.0.iter();
        pairs.find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    fn is_apart(&self) -> bool {
        self.get(APART).is_some()
    }

    fn waiting(&self) -> Waiting {
        let which = match self.get("source") {
            Some(name) => Waiting::new().source(name),
            None => Waiting::new(),
        };
        match self.is_apart() {
            true => which.in_no_stream(),
            false => which,
        }
    }

    /// In words, for whoever confirms.
    fn words(&self) -> Markup {
        html! {
            @match self.get("source") {
                Some(source) => { "of source " b { (show::text(source)) } }
                None => { "of every source" }
            }
            @if self.is_apart() { ", in no stream" }
        }
    }
}

pub(super) async fn page<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let chosen = Chosen::of(&caller.asked.query);
    let after = match (caller.get("after_source"), caller.get("after")) {
        (Some(source), Some(id)) => Some(PageKey::new(source, id)),
        _ => None,
    };
    let page = caller
        .operator
        .waiting(&chosen.waiting(), after.as_ref(), ROWS)
        .await?;
    let none = match (&after, chosen.get("source")) {
        (Some(_), _) => "There are no more.",
        (None, Some(_)) => "Nothing of this source is parked, or there is no such source.",
        (None, None) => "Nothing is parked.",
    };
    let first = after.map(|_| caller.link("/waiting", &chosen.0));
    let next = page.next.map(|key| {
        let mut query = chosen.0.clone();
        query.extend([("after_source", &*key.source), ("after", &*key.event_id)]);
        caller.link("/waiting", &query)
    });
    let content = html! {
        p.lead {
            "Parked events: each waits for its turn, for the time of its next attempt, or for the worker. "
            a href=(caller.link("/streams", &[])) { "Streams" }
            " has those that have a place in one, stream by stream."
        }
        (caller.bulk().said(caller.now))
        (filter_form(&caller, &chosen))
        @if page.letters.is_empty() { (show::nothing(none)) }
        @else {
            @if caller.may_act() { (together(&caller, &chosen)) }
            (list(&caller, &page.letters, "Parked events, by source and event id"))
        }
        (show::pager(first, next))
    };
    Ok(Page::new("Waiting", content).live().into())
}

fn filter_form<DB: Backend>(caller: &Caller<DB>, chosen: &Chosen<'_>) -> Markup {
    html! {
        form.filter method="get" action=(caller.link("/waiting", &[])) {
            (streams::source_field(&caller.sources(), chosen.get("source")))
            label.check {
                input type="checkbox" name=(APART) value="yes" checked[chosen.is_apart()];
                "in no stream"
            }
            button type="submit" { "Show" }
        }
    }
}

/// A dry run comes first, as of dead letters.
fn together<DB: Backend>(caller: &Caller<DB>, chosen: &Chosen<'_>) -> Markup {
    let buttons = html! {
        span { "All of these that wait for the time of their next attempt: " }
        button.plain type="submit" { "Try all now…" }
        span.quiet { " counted first, changed only when you confirm" }
    };
    html! { div.together { (caller.form("/waiting/dry-run", &chosen.0, &buttons)) } }
}

fn list<DB: Backend>(
    caller: &Caller<DB>,
    found: &[Result<Letter, Unreadable>],
    caption: &str,
) -> Markup {
    letters::table(caller, found, caption, "Next attempt", |letter| {
        html! {
            @match letter.not_before.filter(|at| *at > caller.now) {
                _ if letter.leased => { "now" }
                Some(at) => { (show::due(caller.now, at)) }
                None if letter.sequence.is_none() || letter.out_of_order => { "due" }
                None => { "in its turn" }
            }
        }
    })
}

/// On the page of streams: what is parked and in none of them.
pub(super) async fn apart<DB: Backend>(
    caller: &Caller<DB>,
    source: Option<&str>,
) -> Result<Markup, Fault> {
    let events = caller.operator.parked_in_no_stream(source, COUNTED).await?;
    let mut query = vec![(APART, "yes")];
    query.extend(source.map(|source| ("source", source)));
    Ok(html! {
        @if events > 0 {
            p #apart {
                (Look::Parked.badge("parked")) " "
                a href=(caller.link("/waiting", &query)) {
                    (show::counted(events, "event", "events"))
                    @if events == COUNTED as u64 { " or more" }
                }
                @if events == 1 { " is" } @else { " are" }
                " parked in no stream."
            }
        }
    })
}

async fn matched<DB: Backend>(caller: &Caller<DB>, which: &Waiting) -> Result<u64, Fault> {
    let options = BulkOptions::default().dry_run(true);
    let report = caller
        .operator
        .try_now_where(which, "a dry run", options)
        .await?;
    match report.stopped {
        None => Ok(report.matched),
        Some(error) => Err(error.into()),
    }
}

/// How many it would be. Nothing is changed.
pub(super) async fn dry_run<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let chosen = Chosen::of(&caller.asked.form);
    let which = chosen.waiting().tried_later();
    let count = matched(&caller, &which).await?;
    let named = caller.operator.waiting(&which, None, NAMED).await?.letters;
    let events = show::counted(count, "parked event", "parked events");
    let button = format!("Try {events} now");
    let content = html! {
        p.verdict {
            "This would have " b #matched { (show::count(count)) } @if count == 1 { " parked event " } @else { " parked events " }
            (chosen.words()) " tried at once, without waiting for the time of the next attempt. Nothing has been changed yet."
        }
        p { "Attempts stay counted. What waits for a lower sequence goes on waiting for it." }
        @if count > 0 {
            (caller.act("/waiting/bulk", &chosen.0, &Markup::default(), &button, false))
        }
        @if !named.is_empty() {
            (list(&caller, &named, "Parked events that would be tried, by source and event id"))
            @let left = count.saturating_sub(named.len() as u64);
            @if left > 0 { p.quiet #more { "and " (show::count(left)) " more" } }
        }
        p.more { a href=(caller.link("/waiting", &chosen.0)) { "← Back, and change nothing" } }
    };
    Ok(Page::new("Dry run", content).into())
}

/// Nothing is lost by trying: what has failed since the dry run is tried, too.
pub(super) async fn run<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let reason = caller.reason()?.to_owned();
    let chosen = Chosen::of(&caller.asked.form);
    let which = chosen.waiting();
    let count = matched(&caller, &which).await?;
    let operator = caller.operator.clone();
    let to = caller.link("/waiting", &chosen.0);
    bulk::begin(&caller, Work::TryNow, count, to, async move {
        let options = BulkOptions::default();
        operator.try_now_where(&which, &reason, options).await
    })
    .await
}
