//! The small pieces of pages: ids, times, numbers, states.

use maud::{Markup, html};

use super::when;
use crate::clock::Timestamp;
use crate::operator::{RangeKind, Reason, State};

/// An id, or whatever else a producer wrote: as text, isolated from the direction of what is around it, blanks kept, and
/// what cannot be seen made visible.
pub(super) fn text(text: &str) -> Markup {
    html! { bdi.text { (visible(text, is_hidden)) } }
}

/// Its beginning, where many are listed: the whole of it is on a page of its own.
pub(super) fn brief(long: &str) -> Markup {
    const SHOWN: usize = 160;
    match long.char_indices().nth(SHOWN) {
        None => text(long),
        Some((end, _)) => html! { (text(&long[..end])) "…" },
    }
}

/// The same of lines, such as a body has.
pub(super) fn lines(text: &str) -> Markup {
    visible(text, |character| {
        !matches!(character, '\n' | '\r' | '\t') && is_hidden(character)
    })
}

fn visible(text: &str, is_hidden: impl Fn(char) -> bool) -> Markup {
    html! {
        @for (hidden, piece) in pieces(text, is_hidden) {
            @if hidden { span.hidden { (piece) } } @else { (piece) }
        }
    }
}

/// Pieces as they are, and between them characters that show nothing or change the order of others, as their numbers.
fn pieces(text: &str, is_hidden: impl Fn(char) -> bool) -> Vec<(bool, String)> {
    let mut pieces: Vec<(bool, String)> = Vec::new();
    for character in text.chars() {
        let hidden = is_hidden(character);
        let shown = match hidden {
            true => format!("U+{:04X}", u32::from(character)),
            false => character.to_string(),
        };
        match pieces.last_mut() {
            Some((false, piece)) if !hidden => piece.push_str(&shown),
            _ => pieces.push((hidden, shown)),
        }
    }
    pieces
}

/// Not the joiner and the selectors that emoji are made of.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200c}' | '\u{200e}'
                | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
                | '\u{3164}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// How long ago something happened, with the time itself. It may have been after the page was begun, or by a clock that is
/// ahead: it is not to come all the same.
pub(super) fn ago(now: Timestamp, at: Timestamp) -> Markup {
    html! {
        time datetime=(datetime(at)) title=(when::utc(at) + " UTC") data-ago="past" {
            (when::span(now.since(at))) " ago"
        }
    }
}

/// In how long something happens, with the time itself; or how long ago that was to be.
pub(super) fn due(now: Timestamp, at: Timestamp) -> Markup {
    html! {
        time datetime=(datetime(at)) title=(when::utc(at) + " UTC") data-ago {
            @if at > now { "in " (when::ahead(at.since(now))) }
            @else { (when::span(now.since(at))) " ago" }
        }
    }
}

fn datetime(at: Timestamp) -> String {
    when::utc(at).replacen(' ', "T", 1) + "Z"
}

/// The time itself, and how long ago.
pub(super) fn at(now: Timestamp, at: Timestamp) -> Markup {
    html! { (when::utc(at)) " UTC " span.quiet { "(" (ago(now, at)) ")" } }
}

/// The time itself, and in how long it is.
pub(super) fn due_at(now: Timestamp, at: Timestamp) -> Markup {
    html! { (when::utc(at)) " UTC " span.quiet { "(" (due(now, at)) ")" } }
}

/// `12,345`.
pub(super) fn count(number: impl Into<i128>) -> String {
    let digits = number.into().to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(super) fn seconds(seconds: Option<f64>) -> String {
    match seconds {
        None => "–".into(),
        Some(seconds) if seconds < 0.001 => "< 1 ms".into(),
        Some(seconds) if seconds < 1.0 => format!("{:.0} ms", seconds * 1_000.0),
        Some(seconds) if seconds < 60.0 => format!("{seconds:.1} s"),
        Some(seconds) => {
            when::span(std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default())
        }
    }
}

/// What a colour says, a drawing says too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Good,
    Gap,
    Parked,
    /// It has failed, and is tried again.
    Failing,
    Dead,
    Skipped,
    Quiet,
}

impl Look {
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Gap => "gap",
            Self::Parked => "parked",
            Self::Failing => "failing",
            Self::Dead => "dead",
            Self::Skipped => "skipped",
            Self::Quiet => "quiet",
        }
    }

    /// On a field of 16 by 16.
    fn path(self) -> &'static str {
        match self {
            Self::Good => "M3 8.5l3.2 3.2L13 5",
            Self::Gap => "M8 2.6L14.2 13.4H1.8zM8 6.8v2.8M8 11.6v.1",
            Self::Parked => "M6 4v8M10 4v8",
            Self::Failing => "M12.8 6.2A5.2 5.2 0 1 0 13 9.5M13.4 2.6v3.8H9.6",
            Self::Dead => "M4 4l8 8M12 4l-8 8",
            Self::Skipped => "M3 4l5 4-5 4M8 4l5 4-5 4",
            Self::Quiet => "M4 8h8",
        }
    }

    pub(super) fn icon(self) -> Markup {
        html! {
            svg.icon viewBox="0 0 16 16" aria-hidden="true" focusable="false" { path d=(self.path()) {} }
        }
    }

    pub(super) fn badge(self, text: &str) -> Markup {
        html! { span.badge.(self.class()) { (self.icon()) (text) } }
    }
}

pub(super) fn state(state: State, reason: Option<Reason>) -> Markup {
    match state {
        State::Applied => Look::Good.badge("applied"),
        State::Parked => Look::Parked.badge("parked"),
        State::Dead => Look::Dead.badge(&format!("dead letter: {}", reason.map_or("?", word))),
        State::Fenced => Look::Gap.badge("held by the fence"),
        State::Superseded => Look::Skipped.badge("superseded"),
        State::Discarded => Look::Skipped.badge("discarded"),
    }
}

/// A stored event, by why it is dead.
pub(super) fn stored(reason: Option<Reason>) -> Markup {
    match reason {
        None => Look::Parked.badge("parked"),
        Some(reason) => Look::Dead.badge(word(reason)),
    }
}

pub(super) const REASONS: [Reason; 7] = [
    Reason::Gap,
    Reason::Handler,
    Reason::Rejected,
    Reason::Crash,
    Reason::Skipped,
    Reason::BeforeStart,
    Reason::Fenced,
];

pub(super) fn word(reason: Reason) -> &'static str {
    match reason {
        Reason::BeforeStart => "before start",
        reason => reason.as_str(),
    }
}

/// Why it lies there, and what one does about it.
pub(super) fn advice(reason: Reason) -> &'static str {
    match reason {
        Reason::Gap => {
            "A lower sequence did not come within the recovery window. When it comes after all, or is skipped, this event \
             comes back by itself."
        }
        Reason::Handler => {
            "Its handler failed as often as the source allows. Replay it once the cause is mended; a redelivery is tried too."
        }
        Reason::Rejected => {
            "Its handler refused it for good. Replay it if the handler was wrong, or discard it."
        }
        Reason::Crash => {
            "Its attempts ended together with their process. Find out why before you replay it."
        }
        Reason::Skipped => "Its sequence is skipped, so that its turn never comes.",
        Reason::BeforeStart => "Its sequence is lower than the one with which its stream began.",
        Reason::Fenced => {
            "What it carries was signed under another id before. Release it if it was honest after all."
        }
    }
}

pub(super) fn range(kind: RangeKind) -> &'static str {
    match kind {
        RangeKind::Skipped => "skipped",
        RangeKind::FastForward => "fast-forwarded",
        RangeKind::BeforeStart => "before the start",
    }
}

/// Every action wants one; it goes into the audit table.
pub(super) fn reason_field(id: &str) -> Markup {
    html! {
        label for=(id) { "Reason " span.quiet { "(audited with your name)" } }
        input id=(id) name="reason" type="text" required maxlength="2000" autocomplete="off"
            placeholder="why, and the ticket";
    }
}

/// Names and values, in two columns.
pub(super) fn facts(facts: &[(&str, Markup)]) -> Markup {
    html! {
        dl.facts {
            @for (name, value) in facts {
                div { dt { (name) } dd { (value) } }
            }
        }
    }
}

/// Columns that a phone has room for.
const NARROW: usize = 3;

/// A table. Where the screen is narrow, one of a few columns scrolls by itself; of more, each row is a block of names and
/// values, so that none is out of sight. The roles are written out, since browsers take them from what is drawn as a block.
pub(super) fn table(caption: &str, heads: &[&str], rows: &[Vec<Markup>]) -> Markup {
    let stacks = heads.len() > NARROW;
    html! {
        div.scroll.stack[stacks] role="region" aria-label=(caption) tabindex="0" {
            table role="table" {
                caption { (caption) }
                thead role="rowgroup" {
                    tr role="row" { @for head in heads { th scope="col" role="columnheader" { (head) } } }
                }
                tbody role="rowgroup" {
                    @for row in rows {
                        tr role="row" {
                            @for (cell, head) in row.iter().zip(heads).take(1) {
                                th scope="row" role="rowheader" data-head=(head) { (cell) }
                            }
                            @for (cell, head) in row.iter().zip(heads).skip(1) {
                                td role="cell" data-head=(head) { (cell) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// To the next page, if there is one, and back to the first.
pub(super) fn pager(first: Option<String>, next: Option<String>) -> Markup {
    html! {
        @if first.is_some() || next.is_some() {
            nav.pager aria-label="Pages" {
                @if let Some(first) = first { a href=(first) { "← First page" } }
                @if let Some(next) = next { a href=(next) rel="next" { "Next page →" } }
            }
        }
    }
}

/// `1 attempt`, `2 attempts`.
pub(super) fn counted(number: impl Into<i128>, one: &str, more: &str) -> String {
    let number = number.into();
    format!("{} {}", count(number), if number == 1 { one } else { more })
}

/// There is nothing of it, which is good or not.
pub(super) fn nothing(text: &str) -> Markup {
    html! { p.nothing { (text) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_producer_wrote_is_text_whatever_it_is() {
        let shown = text("<script>alert(1)</script>\"'&").into_string();
        assert!(
            shown.contains("&lt;script&gt;alert(1)&lt;/script&gt;&quot;"),
            "{shown}"
        );
        assert!(!shown.contains("<script"), "{shown}");
    }

    #[test]
    fn what_cannot_be_seen_is_shown_and_emoji_stay_whole() {
        let shown = text("evt\u{202e}1\u{200b}").into_string();
        assert!(
            shown.contains("U+202E") && shown.contains("U+200B"),
            "{shown}"
        );
        let family = "👩\u{200d}👩\u{200d}👧 ❤\u{fe0f}";
        assert!(text(family).into_string().contains(family));
    }

    /// The clock may be another process's, or later than the page's.
    #[test]
    fn what_has_happened_is_not_to_come() {
        let now = Timestamp::from_secs(1_000);
        for (at, happened, happens) in [
            (999_400, "0 s ago", "0 s ago"),
            (1_000_400, "0 s ago", "in 1 s"),
            (1_007_000, "0 s ago", "in 7 s"),
        ] {
            let at = Timestamp::from_micros(at * 1_000);
            let told = [ago(now, at), due(now, at)].map(Markup::into_string);
            assert!(told[0].contains(happened), "{}", told[0]);
            assert!(told[1].contains(happens), "{}", told[1]);
        }
    }

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (-1_234_567, "-1,234,567"),
            (-123, "-123"),
        ] {
            assert_eq!(count(number), text);
        }
    }
}
