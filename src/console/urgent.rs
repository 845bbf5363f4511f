//! Which of the streams that wait need somebody most.

use std::time::Duration;

use maud::{Markup, html};

use super::asked::Fault;
use super::caller::Caller;
use super::show::{self, Look};
use super::streams;
use crate::clock::Timestamp;
use crate::operator::WaitingStream;
use crate::store::Backend;

/// Of those that wait, the most urgent ones: each is a line.
const STREAMS: usize = 3;
/// Streams that are named in a sentence.
const NAMED: usize = 3;
/// What is older was looked up for somebody else, and says so.
const OLD: Duration = Duration::from_secs(5);

/// What is known of the streams that wait.
pub(super) struct Urgent {
    /// Those first that need somebody most; the first ones by name, where nothing is counted.
    streams: Vec<WaitingStream>,
    counted: Option<Counted>,
}

struct Counted {
    at: Timestamp,
    all: u64,
    held_up: u64,
    failing: u64,
}

impl Urgent {
    pub(super) async fn look<DB: Backend>(caller: &Caller<DB>) -> Result<Self, Fault> {
        match caller.operator.urgent_streams().await {
            Ok(found) => Ok(Self {
                streams: found.streams,
                counted: Some(Counted {
                    at: found.at,
                    all: found.all,
                    held_up: found.held_up,
                    failing: found.failing,
                }),
            }),
            // All that is stored is read for it. A page by name is had where that takes too long.
            Err(error) => {
                tracing::warn!(%error, "could not look which streams are the most urgent");
                let page = caller.operator.streams(None, None, STREAMS).await?;
                Ok(Self {
                    streams: page.streams,
                    counted: None,
                })
            }
        }
    }

    /// As far as that is known.
    pub(super) fn holds_nothing_up(&self) -> bool {
        let counted = self.counted.as_ref();
        counted.is_some_and(|counted| counted.held_up == 0)
    }

    /// What goes on by nobody's doing, in sentences of a list.
    pub(super) fn verdict<DB: Backend>(&self, caller: &Caller<DB>) -> Markup {
        let Some(counted) = &self.counted else {
            return Markup::default();
        };
        let (held_up, failing) = (counted.held_up, counted.failing);
        html! {
            @if held_up > 0 {
                li {
                    (Look::Dead.badge("held up")) " "
                    (show::counted(held_up, "stream is held up by a dead letter", "streams are held up by dead letters"))
                    (self.named(caller, held_up, |dead, _| dead))
                    ". What is behind it waits until somebody replays or skips it."
                }
            }
            @if failing > 0 {
                li {
                    (Look::Failing.badge("failing")) " "
                    (show::counted(failing, "stream waits for an event that fails", "streams wait for an event that fails"))
                    " and is tried again"
                    (self.named(caller, failing, |dead, attempts| !dead && attempts > 0))
                    "."
                }
            }
        }
    }

    /// Those of which this is true of what they wait for, whether it is dead and how often it was tried: the first ones by
    /// name, and how many more there are.
    fn named<DB: Backend>(
        &self,
        caller: &Caller<DB>,
        number: u64,
        is_one: fn(bool, i64) -> bool,
    ) -> Markup {
        let streams = self.streams.iter().filter(|stream| {
            let head = stream.head.as_ref();
            head.is_some_and(|head| is_one(head.reason.is_some(), head.attempts))
        });
        let streams: Vec<_> = streams.take(NAMED).collect();
        let more = number.saturating_sub(streams.len() as u64);
        html! {
            @for (index, stream) in streams.iter().enumerate() {
                @if index == 0 { ": " } @else { ", " }
                a href=(caller.link("/stream", &[("source", &stream.source), ("id", &stream.correlation_id)])) {
                    (show::text(&stream.correlation_id))
                }
                " of " (show::text(&stream.source))
            }
            @if more > 0 && !streams.is_empty() { " and " (show::count(more)) " more" }
        }
    }

    /// What waits, and behind what, without a further step.
    pub(super) fn first<DB: Backend>(&self, caller: &Caller<DB>) -> Markup {
        let shown = self.streams.len().min(STREAMS);
        let all = self.counted.as_ref().map(|counted| counted.all);
        if shown == 0 {
            return Markup::default();
        }
        html! {
            section aria-labelledby="waiting" {
                h2 #waiting { "Streams that wait" }
                p.quiet {
                    @match &self.counted {
                        Some(counted) => {
                            "Those first that need somebody most: held up by a dead letter, failing, behind a gap; the oldest first of each."
                            @if caller.now.since(counted.at) > OLD {
                                " Looked up " (show::ago(caller.now, counted.at)) ", since it takes long."
                            }
                        }
                        None => { "By source and name: to find those that need somebody most took too long." }
                    }
                }
                (streams::list(caller, &self.streams[..shown]))
                @if all.is_none_or(|all| all > shown as u64) {
                    p.more {
                        a href=(caller.link("/streams", &[])) {
                            @match all { Some(all) => { "All " (show::count(all)) " that wait" } None => { "All that wait" } }
                        }
                    }
                }
            }
        }
    }
}
