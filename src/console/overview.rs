//! The first page: what must be known within a minute.

use axum::response::IntoResponse as _;
use http::header;
use maud::{Markup, html};
use serde::Serialize;

use super::asked::{Answer, Fault, Page};
use super::caller::Caller;
use super::letters::BECAUSE;
use super::show::{self, Look};
use super::urgent::Urgent;
use super::{spark, streams, when};
use crate::clock::Timestamp;
use crate::order::WorkerStatus;
use crate::stats::{Counts, SourceStats, Stats};
use crate::store::Backend;

/// Sources that are shown in full: each is a card of some kilobytes, and tenants may be thousands.
const CARDS: usize = 50;
/// Hours that say how it is now: the present one has perhaps just begun.
const NOW: usize = 2;
/// A worker looks at least every two minutes, whatever is set.
const TOO_LONG: std::time::Duration = std::time::Duration::from_secs(180);

/// Sources of one page of JSON, some 2 KiB each.
const PAGE: usize = 500;

/// A page of the statistics, as scripts want them.
#[derive(Serialize)]
struct Paged<'a> {
    at: Timestamp,
    sources: &'a [SourceStats],
    /// What the next page comes `after`; nothing on the last one.
    next: Option<&'a str>,
}

impl<'a> Paged<'a> {
    /// They are in the order of their names. `source`: that one alone.
    fn of(stats: &'a Stats, after: Option<&str>, source: Option<&str>) -> Self {
        let all = stats.sources.as_slice();
        let (first, last) = match source {
            Some(name) => {
                let first = all.partition_point(|one| one.source.as_str() < name);
                let is_there = all.get(first).is_some_and(|one| one.source == name);
                (first, first + usize::from(is_there))
            }
            None => {
                let is_past = |one: &SourceStats| Some(one.source.as_str()) <= after;
                let first = all.partition_point(is_past);
                (first, all.len().min(first + PAGE))
            }
        };
        let sources = &all[first..last];
        let more = source.is_none() && last < all.len();
        Self {
            at: stats.at,
            sources,
            next: sources.last().filter(|_| more).map(|one| &*one.source),
        }
    }
}

pub(super) async fn json<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let stats = caller.operator.stats().await?;
    let paged = Paged::of(&stats, caller.get("after"), caller.get("source"));
    let body = serde_json::to_vec(&paged).unwrap_or_default();
    let kind = [(header::CONTENT_TYPE, "application/json")];
    Ok(Answer::Raw((kind, body).into_response()))
}

pub(super) async fn page<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let stats = caller.operator.stats().await?;
    let urgent = Urgent::look(&caller).await?;
    let works = caller.inbox().worker_status();
    let named = caller.get("source");
    let cards = cards(&stats, named);
    let content = html! {
        (verdict(&caller, &stats, &urgent, is_at_work(caller.now, &works)))
        (worker(caller.now, &works))
        (urgent.first(&caller))
        @if named.is_some() || stats.sources.len() > CARDS { (choose(&caller, named, cards.len(), stats.sources.len())) }
        div.cards {
            @for source in &cards { (card(&caller, source)) }
        }
        p.quiet.foot {
            "Numbers are of the last 24 hours, over all processes, as of " (when::utc(stats.at)) " UTC. "
            a href=(caller.link("/api/stats", &[])) { "As JSON" }
        }
    };
    Ok(Page::new("Overview", content).live().into())
}

/// The one that is asked for; or all, those first with which something is the matter, and by name.
fn cards<'a>(stats: &'a Stats, named: Option<&str>) -> Vec<&'a SourceStats> {
    let mut sources: Vec<_> = stats.sources.iter().collect();
    if let Some(named) = named {
        sources.retain(|source| source.source == named);
    }
    // Of more than there is room for, those that get most.
    let many = sources.len() > CARDS;
    sources.sort_by_key(|source| {
        let matter = [failed(source), source.gaps, dead(source), source.parked];
        let least = u64::MAX - source.counts.total;
        (matter == [0; 4], if many { least } else { 0 })
    });
    sources.truncate(CARDS);
    sources
}

fn choose<DB: Backend>(
    caller: &Caller<DB>,
    named: Option<&str>,
    shown: usize,
    all: usize,
) -> Markup {
    html! {
        form.filter method="get" action=(caller.link("/", &[])) {
            (streams::source_field(&caller.sources(), named))
            button type="submit" { "Show" }
        }
        p.quiet #shown {
            (show::count(shown as u64)) " of " (show::counted(all as u64, "source", "sources"))
            @if named.is_none() { ", those first in which something failed, waits or is dead" }
            "."
        }
    }
}

/// In one sentence, whether somebody has to get up.
fn verdict<DB: Backend>(
    caller: &Caller<DB>,
    stats: &Stats,
    urgent: &Urgent,
    is_at_work: bool,
) -> Markup {
    let failing = stats.sources.iter().filter(|source| failed(source) > 0);
    let sum = |of: fn(&SourceStats) -> u64| stats.sources.iter().map(of).sum::<u64>();
    let (gaps, parked, dead) = (sum(|s| s.gaps), sum(|s| s.parked), sum(dead));
    let failed = sum(failed);
    let oldest = stats
        .sources
        .iter()
        .filter_map(|source| source.oldest_parked)
        .min();
    html! {
        ul.verdict {
            (urgent.verdict(caller))
            @if failed > 0 {
                li {
                    (Look::Dead.badge("failed")) " "
                    (show::counted(failed, "delivery or attempt", "deliveries or attempts"))
                    " failed in this hour and the one before it, of "
                    (show::counted(failing.count() as u64, "source", "sources")) "."
                }
            }
            @if gaps == 0 && parked == 0 && dead == 0 {
                li {
                    @match (failed, is_at_work) {
                        (0, true) => { (Look::Good.badge("all clear")) }
                        _ => { (Look::Quiet.badge("nothing waits")) }
                    }
                    " Nothing is parked, and there is no dead letter."
                }
            }
            @if gaps > 0 {
                li {
                    (Look::Gap.badge("waiting")) " "
                    a href=(caller.link("/streams", &[])) { (show::counted(gaps, "stream waits", "streams wait")) }
                    " for a sequence that has not come."
                }
            }
            @if parked > 0 {
                li {
                    (Look::Parked.badge("parked")) " "
                    a href=(caller.link("/waiting", &[])) { (show::counted(parked, "event is", "events are")) " parked" }
                    @if let Some(oldest) = oldest { ", the oldest of them stored " (show::ago(caller.now, oldest)) }
                    "."
                }
            }
            @if dead > 0 {
                li {
                    (Look::Dead.badge("dead")) " "
                    a href=(caller.link("/dead", &[])) { (show::counted(dead, "dead letter", "dead letters")) }
                    " to be decided about."
                    @if urgent.holds_nothing_up() { " None of them holds a stream up." }
                }
            }
        }
    }
}

fn dead(source: &SourceStats) -> u64 {
    source.dead_letters.values().sum()
}

/// Failed deliveries, and attempts of the worker, of late.
fn failed(source: &SourceStats) -> u64 {
    let late = source.slots.iter().rev().take(NOW);
    late.map(|slot| slot.failed).sum()
}

fn is_late(now: Timestamp, worker: &WorkerStatus) -> bool {
    worker.last_look.is_some_and(|at| now.since(at) > TOO_LONG)
}

fn is_at_work(now: Timestamp, worker: &WorkerStatus) -> bool {
    worker.running && !is_late(now, worker)
}

fn worker(now: Timestamp, worker: &WorkerStatus) -> Markup {
    html! {
        p.worker {
            @match (worker.running, is_late(now, worker)) {
                (false, _) => { (Look::Dead.badge("worker not running")) }
                (true, true) => { (Look::Gap.badge("worker late")) }
                (true, false) => { (Look::Good.badge("worker running")) }
            }
            " in this process"
            @if let Some(at) = worker.last_look { ", looked " (show::ago(now, at)) }
            @if let Some(at) = worker.last_applied { ", last applied something " (show::ago(now, at)) }
            @if !worker.mounted.is_empty() {
                ", for "
                @for (index, source) in worker.mounted.iter().enumerate() {
                    @if index > 0 { ", " } (show::text(source))
                }
            }
        }
    }
}

fn state(source: &SourceStats) -> Markup {
    let failed = failed(source);
    html! {
        @if source.gaps > 0 { (Look::Gap.badge(&show::counted(source.gaps, "gap", "gaps"))) " " }
        @if dead(source) > 0 { (Look::Dead.badge(&format!("{} dead", show::count(dead(source))))) " " }
        @if failed > 0 { (Look::Dead.badge(&format!("{} failed of late", show::count(failed)))) }
        @else if source.gaps == 0 && dead(source) == 0 { (Look::Good.badge("healthy")) }
    }
}

fn card<DB: Backend>(caller: &Caller<DB>, source: &SourceStats) -> Markup {
    let now = caller.now;
    let counts = &source.counts;
    let name = [("source", &*source.source)];
    html! {
        section.card aria-label={ "Source " (source.source) } {
            div.row {
                h2 { (show::text(&source.source)) }
                span.end { (state(source)) }
            }
            (spark::bars(&source.slots))
            (show::facts(&[
                ("Deliveries, 24 h", html! { b { (show::count(counts.total)) } }),
                ("Succeeded", html! { b { (counts.success_percent().unwrap_or_else(|| "–".into())) } }),
                ("Failed", html! { (show::count(counts.failed)) }),
                ("Rejected", html! { (show::count(counts.discarded)) }),
                ("Last 5xx", maybe(now, counts.last_5xx)),
                ("Handler p95 / p99", html! { (show::seconds(counts.p95)) " / " (show::seconds(counts.p99)) }),
                ("Duplicates", html! { (show::count(counts.duplicates)) }),
                ("Parked now", html! {
                    a href=(caller.link("/waiting", &name)) { (show::count(source.parked)) }
                    @if let Some(at) = source.oldest_parked { span.quiet { ", the oldest stored " (show::ago(now, at)) } }
                }),
                ("Gaps", html! { (show::count(source.gaps)) }),
                ("Leases", html! { (show::count(source.leases)) }),
                ("Drain lag", html! { (show::seconds(source.drain_lag)) }),
                ("Rows in the inbox", html! {
                    (source.rows.map_or("–".into(), show::count))
                    @if let Some(at) = source.rows_at { span.quiet { ", counted " (show::ago(now, at)) } }
                }),
                ("Refused at the door", html! { (show::count(source.refused)) }),
                ("Held by the fence", html! {
                    @if source.fenced == 0 { "0" }
                    @else {
                        a href=(caller.link("/dead", &[name[0], (BECAUSE, "fenced")])) { (show::count(source.fenced)) }
                    }
                }),
            ]))
            (letters(caller, source))
            (more(now, source))
        }
    }
}

fn maybe(now: Timestamp, at: Option<Timestamp>) -> Markup {
    html! { @match at { Some(at) => { (show::ago(now, at)) } None => { "never" } } }
}

fn letters<DB: Backend>(caller: &Caller<DB>, source: &SourceStats) -> Markup {
    let there = source
        .dead_letters
        .iter()
        .filter(|(_, number)| **number > 0);
    html! {
        @if dead(source) > 0 {
            p.letters {
                "Dead letters: "
                @for (index, (reason, number)) in there.enumerate() {
                    @if index > 0 { ", " }
                    a href=(caller.link("/dead", &[("source", &source.source), (BECAUSE, reason)])) {
                        (show::count(*number)) " " (reason.replace('_', " "))
                    }
                }
            }
        }
    }
}

fn more(now: Timestamp, source: &SourceStats) -> Markup {
    html! {
        details #{ "more-" (source.source) } {
            summary { "Event types, secrets, reconciliation" }
            @if !source.types.is_empty() { (types(now, source)) }
            @if source.secrets.is_empty() { (show::nothing("No secret has verified a delivery yet.")) }
            @else {
                (show::table(
                    "Secrets, by label",
                    &["Secret", "Last verified a delivery"],
                    &source.secrets.iter().map(|secret| {
                        vec![show::text(&secret.label), show::ago(now, secret.last_verified)]
                    }).collect::<Vec<_>>(),
                ))
            }
            p { "Last reconciliation: " (maybe(now, source.reconciled_at)) "." }
        }
    }
}

fn types(now: Timestamp, source: &SourceStats) -> Markup {
    let rows: Vec<_> = source
        .types
        .iter()
        .map(|kind| {
            let counts: &Counts = &kind.counts;
            vec![
                show::text(kind.event_type.as_deref().unwrap_or("–")),
                html! { (show::count(counts.total)) },
                html! { (counts.success_percent().unwrap_or_else(|| "–".into())) },
                html! { (show::count(counts.failed)) },
                html! { (show::count(counts.discarded)) },
                html! { (show::seconds(counts.p95)) " / " (show::seconds(counts.p99)) },
                maybe(now, counts.last_5xx),
            ]
        })
        .collect();
    let heads = [
        "Type",
        "Deliveries",
        "Succeeded",
        "Failed",
        "Rejected",
        "p95 / p99",
        "Last 5xx",
    ];
    show::table("By event type, 24 hours", &heads, &rows)
}
