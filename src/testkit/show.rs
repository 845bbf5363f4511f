//! A story for people.

use std::fmt;

use super::network::{Point, Way};
use super::story::{Attempt, NotSent, Stored, Story};
use crate::event::Origin;
use crate::probe::{Happened, Loss, Record};
use crate::queue::End;

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if let Some((source, id)) = &self.known_as {
            write!(f, " of {source}")?;
            if *id != self.name {
                write!(f, ", there {id}")?;
            }
        }
        if let Some(seed) = self.seed {
            write!(f, ", seed {seed}")?;
        }
        writeln!(f)?;
        let start = self
            .journal
            .first()
            .map_or_else(Default::default, |first| first.at);
        let (mut last, mut doubt) = (None, None);
        for Record { at, happened } in &self.journal {
            let since = at.since(start);
            let is_attempt = matches!(happened, Happened::Attempted(_));
            if last == Some(since) && !is_attempt {
                write!(f, "{:13}", "")?;
            } else {
                write!(f, "{:>9.3} s  ", since.as_secs_f64())?;
            }
            last = Some(since);
            match happened {
                Happened::Attempted(index) => write_attempt(f, &self.attempts[*index])?,
                Happened::Settled(End::Failed, outcome) if let Some(doubt) = doubt.take() => {
                    write!(f, "  {doubt}: {}", outcome.as_str())?;
                }
                happened => write_happened(f, happened)?,
            }
            doubt = doubt_after(happened).or(doubt);
            writeln!(f)?;
        }
        if let Some(ending) = self.ending {
            writeln!(f, "by its producer: {ending:?}")?;
        }
        match &self.not_sent {
            Some(NotSent::LeftOut) => return f.write_str("left out by the network: never sent"),
            Some(NotSent::Never(known)) if !matches!(self.stored, Stored::As(_)) => {
                let known = match known.as_slice() {
                    [] => "no event".to_owned(),
                    known => known.join(", "),
                };
                return write!(f, "never sent through this kit; it knows: {known}");
            }
            Some(NotSent::Never(_)) => f.write_str("never sent through this kit; ")?,
            None => {}
        }
        write!(f, "{}", self.stored)
    }
}

/// What nobody can say of the handler's work from there on.
fn doubt_after(happened: &Happened) -> Option<&'static str> {
    match happened {
        Happened::Lost(Loss::Ended) => {
            Some("the transaction had ended: what it wrote may be committed")
        }
        Happened::InDoubt => Some("nobody knows whether it is committed"),
        _ => None,
    }
}

fn write_attempt(f: &mut fmt::Formatter<'_>, attempt: &Attempt) -> fmt::Result {
    write!(f, "attempt {}", attempt.number)?;
    if attempt.replay {
        f.write_str(", replay")?;
    }
    if attempt.copy {
        f.write_str(", copy")?;
    }
    write!(f, ", POST {}", attempt.path)?;
    match attempt.way {
        Way::Through => {}
        Way::Twice => f.write_str(", sent twice")?,
        Way::TwiceAtOnce => f.write_str(", sent twice at once")?,
        Way::Down => f.write_str(", the receiver is away")?,
        Way::Disconnect(Point::WhileSending) => f.write_str(", cut off while it was sent")?,
        Way::Disconnect(Point::BeforeAnswer) => f.write_str(", cut off before its answer")?,
        Way::AfterRestart => f.write_str(", after a restart")?,
        Way::AnswerLost | Way::AnswerLostIfApplied => {}
    }
    let Some(reply) = &attempt.reply else {
        return Ok(());
    };
    write!(f, ": answered {} {}", reply.status, reply.outcome())?;
    if let Some(waiting_for) = reply.waiting_for() {
        write!(f, ", waiting for {waiting_for}")?;
    }
    if let Some(after) = reply.retry_after() {
        write!(f, ", to come again after {} s", after.as_secs())?;
    }
    if !attempt.seen {
        f.write_str("; its producer does not see that")?;
    }
    if reply.outcome().is_empty() {
        f.write_str("; no inbox answered: is the route mounted on it?")?;
    }
    if !(200..300).contains(&reply.status) && !reply.body.is_empty() {
        write!(f, "\n{:15}its body: {}", "", beginning(&reply.body))?;
    }
    Ok(())
}

/// What is read of a body that says what is wrong.
const BODY_SHOWN: usize = 200;

/// The beginning of a body, in one line.
fn beginning(body: &[u8]) -> String {
    let shown = String::from_utf8_lossy(&body[..body.len().min(BODY_SHOWN)]);
    let mut shown = shown.replace(char::is_control, " ");
    if body.len() > BODY_SHOWN {
        shown.push('…');
    }
    shown
}

fn write_happened(f: &mut fmt::Formatter<'_>, happened: &Happened) -> fmt::Result {
    f.write_str("  ")?;
    match happened {
        // It has a line of its own.
        Happened::Attempted(_) => Ok(()),
        Happened::Refused(why) => write!(f, "refused: {why}"),
        Happened::Verified(label) => write!(f, "verified by {label}"),
        Happened::Remembered => f.write_str("known from memory: applied before"),
        Happened::Followed => f.write_str("waits for another delivery of it"),
        Happened::Queued(waited) => write!(f, "waited {} ms for its place", waited.as_millis()),
        Happened::Entered(what) => f.write_str(what),
        Happened::Began(Origin::Live) => f.write_str("the handler is called"),
        Happened::Began(Origin::Drained) => f.write_str("the handler is called by the worker"),
        Happened::Began(Origin::Reconciled) => {
            f.write_str("the handler is called in a reconciliation")
        }
        Happened::Ended(how) => write!(f, "the handler {how}"),
        Happened::Untaken => f.write_str("and never took its transaction"),
        Happened::Lost(Loss::Kept) => f.write_str("and keeps its transaction"),
        Happened::Lost(Loss::Aborted) => {
            f.write_str("a statement of its transaction had failed: it cannot be committed")
        }
        Happened::Lost(Loss::Ended) => {
            f.write_str("its transaction was ended, or rolled back by the server, before that")
        }
        Happened::Committed => f.write_str("committed"),
        Happened::InDoubt => f.write_str("nobody knows what came of the commit"),
        Happened::CommitRefused => f.write_str("rolled back: the test refuses this commit"),
        Happened::Settled(end, outcome) => {
            let word = outcome.as_str();
            match end {
                End::Failed => write!(f, "nothing is committed: {word}"),
                End::Rejected(status) => {
                    write!(f, "nothing is committed: {word} with {}", status.as_u16())
                }
                _ => write!(f, "settled: {word}"),
            }
        }
        Happened::Noted(what) => f.write_str(what),
        Happened::Restarted => f.write_str("the app is restarted"),
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self {
            Self::Unknown => return f.write_str("the database does not know it"),
            Self::NotAsked(why) => return f.write_str(why),
            Self::As(letter) => letter,
        };
        write!(f, "in the database: {:?}", letter.state)?;
        if let Some(reason) = letter.reason {
            write!(f, " ({})", reason.as_str())?;
        }
        if let (Some(id), Some(sequence)) = (&letter.correlation_id, letter.sequence) {
            write!(f, ", {sequence} of {id}")?;
        }
        match letter.attempts {
            ..=0 => {}
            1 => f.write_str(", 1 attempt in vain")?,
            many => write!(f, ", {many} attempts in vain")?,
        }
        if let Some(status) = letter.last_status {
            write!(f, ", the last one with {status}")?;
        }
        if let Some(error) = &letter.last_error {
            write!(f, ": {error}")?;
        }
        Ok(())
    }
}
