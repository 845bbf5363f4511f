//! Dead letters: found, and dealt with one by one or together.

use maud::{Markup, html};

use super::asked::{Answer, Fault, Page};
use super::caller::Caller;
use super::pairs::Pairs;
use super::{show, streams, when};
use crate::clock::Timestamp;
use crate::operator::{Filter, Letter, PageKey, Reason, Unreadable};
use crate::store::Backend;

/// Letters of a page.
const ROWS: usize = 100;

/// What was chosen, as it stands in links and forms.
pub(super) struct Chosen {
    pub(super) pairs: Vec<(&'static str, String)>,
}

/// The fields of one value.
const FIELDS: [&str; 5] = ["source", "type", "correlation", "since", "until"];
/// Why they are dead, as often as one likes. `reason` is why somebody does something about it.
pub(super) const BECAUSE: &str = "because";
/// When a dry run was made, in microseconds: what became a dead letter after it was not seen.
pub(super) const SEEN_AT: &str = "seen_at";

impl Chosen {
    pub(super) fn of(pairs: &Pairs) -> Self {
        let one = FIELDS
            .iter()
            .filter_map(|name| Some((*name, pairs.get(name)?.to_owned())));
        let mut chosen = Self {
            pairs: one.collect(),
        };
        for reason in pairs.all(BECAUSE) {
            if !chosen.has_reason(reason) {
                chosen.pairs.push((BECAUSE, reason.to_owned()));
            }
        }
        chosen
    }

    /// As a dry run saw it. Not of a link: what came later would be hidden from whoever follows it.
    pub(super) fn seen_at(mut self, at: Option<&str>) -> Self {
        self.pairs.extend(at.map(|at| (SEEN_AT, at.to_owned())));
        self
    }

    /// Of the reasons that were chosen, or of all, these alone. None of them: nothing can match.
    pub(super) fn only(&mut self, reasons: &[Reason]) -> bool {
        let chose = self.pairs.iter().any(|(name, _)| *name == BECAUSE);
        let kept: Vec<_> = reasons
            .iter()
            .map(|reason| reason.as_str())
            .filter(|reason| !chose || self.has_reason(reason))
            .map(|reason| (BECAUSE, reason.to_owned()))
            .collect();
        self.pairs.retain(|(name, _)| *name != BECAUSE);
        let any = !kept.is_empty();
        self.pairs.extend(kept);
        any
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let mut pairs = self.pairs.iter();
        pairs
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.as_str())
    }

    fn has_reason(&self, reason: &str) -> bool {
        self.pairs
            .iter()
            .any(|(name, value)| *name == BECAUSE && value == reason)
    }

    pub(super) fn fixed(&self) -> Vec<(&str, &str)> {
        self.pairs
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect()
    }

    pub(super) fn filter(&self) -> Result<Filter, Fault> {
        let mut filter = Filter::new();
        if let Some(source) = self.get("source") {
            filter = filter.source(source);
        }
        if let Some(kind) = self.get("type") {
            filter = filter.event_type(kind);
        }
        if let Some(id) = self.get("correlation") {
            filter = filter.correlation_id(id);
        }
        if let Some(since) = self.get("since") {
            filter = filter.since(time(since)?);
        }
        let until = self.get("until").map(time).transpose()?;
        let seen_at = self.get(SEEN_AT).map(micros).transpose()?;
        if let Some(until) = until.into_iter().chain(seen_at).min() {
            filter = filter.until(until);
        }
        for (_, word) in self.pairs.iter().filter(|(name, _)| *name == BECAUSE) {
            let known = show::REASONS
                .into_iter()
                .find(|reason| reason.as_str() == word);
            let unknown = || {
                Fault::Invalid(match word.as_str() {
                    "parked" => {
                        "A parked event is no dead letter: the page “Waiting” has those.".into()
                    }
                    word => format!("There is no reason {word:?}."),
                })
            };
            filter = filter.reason(known.ok_or_else(unknown)?);
        }
        Ok(filter)
    }

    /// In words, for whoever confirms.
    pub(super) fn words(&self) -> Markup {
        let named = |name| self.get(name);
        let reasons: Vec<_> = self
            .pairs
            .iter()
            .filter(|(name, _)| *name == BECAUSE)
            .collect();
        html! {
            @if let Some(source) = named("source") { "of source " b { (show::text(source)) } } @else { "of every source" }
            @if let Some(kind) = named("type") { ", of type " b { (show::text(kind)) } }
            @if let Some(id) = named("correlation") { ", of stream " b { (show::text(id)) } }
            @if !reasons.is_empty() {
                ", because of "
                @for (index, (_, reason)) in reasons.iter().enumerate() {
                    @if index > 0 { " or " }
                    b { (reason.replace('_', " ")) }
                }
            }
            @if let Some(since) = named("since") { ", since " (since.replace('T', " ")) " UTC" }
            @if let Some(until) = named("until") { ", until " (until.replace('T', " ")) " UTC" }
        }
    }
}

fn micros(text: &str) -> Result<Timestamp, Fault> {
    let wrong = || Fault::Invalid(format!("{text:?} is not the time of a dry run."));
    let micros = text.parse().ok().ok_or_else(wrong)?;
    Ok(Timestamp::from_micros(micros))
}

fn time(text: &str) -> Result<Timestamp, Fault> {
    let wrong = || {
        Fault::Invalid(format!(
            "{text:?} is not a time such as 2026-11-30T13:05, in UTC."
        ))
    };
    when::parse(text).ok_or_else(wrong)
}

pub(super) async fn page<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let chosen = Chosen::of(&caller.asked.query);
    let after = match (caller.get("after_source"), caller.get("after")) {
        (Some(source), Some(id)) => Some(PageKey::new(source, id)),
        _ => None,
    };
    let page = caller
        .operator
        .dead_letters(&chosen.filter()?, after.as_ref(), ROWS)
        .await?;
    let none = match (&after, chosen.get("source")) {
        (Some(_), _) => "There are no more.",
        (None, Some(_)) => "There is none of this source, or there is no such source.",
        (None, None) => "There is none.",
    };
    let first = after.map(|_| caller.link("/dead", &chosen.fixed()));
    let next = page.next.map(|key| {
        let mut query = chosen.fixed();
        query.extend([("after_source", &*key.source), ("after", &*key.event_id)]);
        caller.link("/dead", &query)
    });
    let content = html! {
        p.lead {
            "Stored events that are not tried again by themselves, but for a gap that fills. By source and event id: “Since” of the "
            "filter has the latest ones."
        }
        (caller.bulk().said(caller.now))
        (filter_form(&caller, &chosen))
        @if page.letters.is_empty() { (show::nothing(none)) }
        @else {
            @if caller.may_act() { (together(&caller, &chosen)) }
            (list(&caller, &page.letters, "Dead letters, by source and event id"))
        }
        (show::pager(first, next))
    };
    Ok(Page::new("Dead letters", content).into())
}

fn filter_form<DB: Backend>(caller: &Caller<DB>, chosen: &Chosen) -> Markup {
    let field = |name: &str, kind: &str, label: &str| {
        html! {
            div {
                label for=(name) { (label) }
                input id=(name) name=(name) type=(kind) value=[chosen.get(name)] autocomplete="off";
            }
        }
    };
    html! {
        details #filter open[!chosen.pairs.is_empty()] {
            summary { "Filter: " (chosen.words()) }
            form.filter method="get" action=(caller.link("/dead", &[])) {
                (streams::source_field(&caller.sources(), chosen.get("source")))
                (field("correlation", "text", "Correlation id"))
                (field("type", "text", "Event type"))
                (field("since", "datetime-local", "Since (UTC)"))
                (field("until", "datetime-local", "Until (UTC)"))
                fieldset {
                    legend { "Reason" }
                    @for reason in show::REASONS {
                        label.check {
                            input type="checkbox" name=(BECAUSE) value=(reason.as_str()) checked[chosen.has_reason(reason.as_str())];
                            (show::word(reason))
                        }
                    }
                }
                button type="submit" { "Filter" }
            }
        }
    }
}

/// A dry run comes first: what would be done is counted, and nothing is changed.
fn together<DB: Backend>(caller: &Caller<DB>, chosen: &Chosen) -> Markup {
    let buttons = html! {
        span { "All that match the filter: " }
        button.plain type="submit" name="verb" value="replay" { "Replay all…" }
        button.plain type="submit" name="verb" value="discard" { "Discard all…" }
        span.quiet { " counted first, changed only when you confirm" }
    };
    html! { div.together { (caller.form("/dead/dry-run", &chosen.fixed(), &buttons)) } }
}

pub(super) fn list<DB: Backend>(
    caller: &Caller<DB>,
    letters: &[Result<Letter, Unreadable>],
    caption: &str,
) -> Markup {
    table(caller, letters, caption, "Why", |letter| {
        show::stored(letter.reason)
    })
}

/// Stored events with what there is to say of each, and a column of their own.
pub(super) fn table<DB: Backend>(
    caller: &Caller<DB>,
    letters: &[Result<Letter, Unreadable>],
    caption: &str,
    head: &'static str,
    cell: impl Fn(&Letter) -> Markup,
) -> Markup {
    let rows: Vec<_> = letters
        .iter()
        .map(|letter| match letter {
            Ok(letter) => row(caller, letter, cell(letter)),
            Err(unreadable) => {
                let id = unreadable.key.as_ref().map_or("?", |key| &key.event_id);
                vec![
                    show::text(id),
                    html! { "cannot be read" },
                    Markup::default(),
                    Markup::default(),
                    Markup::default(),
                    show::text(&unreadable.why),
                ]
            }
        })
        .collect();
    let heads = [
        "Event",
        head,
        "Source and type",
        "Stream",
        "Since",
        "Last answer",
    ];
    show::table(caption, &heads, &rows)
}

fn row<DB: Backend>(caller: &Caller<DB>, letter: &Letter, cell: Markup) -> Vec<Markup> {
    let event = caller.link(
        "/event",
        &[("source", &letter.source), ("id", &letter.event_id)],
    );
    vec![
        html! { a href=(event) { (show::text(&letter.event_id)) } },
        cell,
        html! {
            (show::text(&letter.source))
            @if let Some(kind) = &letter.event_type { br; span.quiet { (show::text(kind)) } }
        },
        html! {
            @match (&letter.correlation_id, letter.sequence) {
                (Some(id), Some(sequence)) => {
                    a href=(caller.link("/stream", &[("source", &letter.source), ("id", id)])) { (show::text(id)) }
                    " " span.quiet { "#" (show::count(sequence)) }
                }
                // It has no place in a stream.
                (Some(id), None) => { (show::text(id)) }
                (None, _) => { "–" }
            }
        },
        show::ago(caller.now, letter.decided_at),
        html! {
            @if let Some(status) = letter.last_status { (status) " " }
            @if let Some(error) = &letter.last_error { (show::brief(error)) }
            @if letter.attempts > 0 { " " span.quiet { (show::counted(letter.attempts, "attempt", "attempts")) } }
        },
    ]
}
