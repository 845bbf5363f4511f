//! All that is known of one event: what its producer did, what the inbox did, and what the database says.

use std::fmt::Display;

use super::network::Way;
use super::reply::Reply;
use super::schedule::Ending;
use crate::clock::Timestamp;
use crate::operator::{Letter, Reason, State};
use crate::probe::{Happened, Loss, Probe, Record};

/// One attempt to deliver an event.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Attempt {
    /// Which delivery of its event, from 1, whoever made it; a copy has the number of its first.
    pub number: u32,
    /// When it was made.
    pub at: Timestamp,
    /// Where it was sent.
    pub path: String,
    /// What became of it.
    pub way: Way,
    /// Whether it is the second one of two that were sent for one ([`Way::Twice`], [`Way::TwiceAtOnce`]).
    pub copy: bool,
    /// Whether it belongs to a [replay](super::Producer::replay).
    pub replay: bool,
    /// What came back; nothing if the receiver was not reached, or the connection was lost before it answered.
    pub reply: Option<Reply>,
    /// Whether the producer saw that.
    pub seen: bool,
}

/// The story of one event so far. It prints readably (`{}`), and so does every assertion that fails.
///
/// ```text
/// evt_1 of crm, seed 7
///     0.000 s  attempt 1, POST /webhooks/crm: answered 204 applied; its producer does not see that
///                verified by secret-1
///                waited 1 ms for its place
///                it is new
///                the handler is called
///                the handler answers 204
///                committed
///                settled: applied
///    31.204 s  attempt 2, POST /webhooks/crm: answered 200 duplicate
///                verified by secret-1
///                known from memory: applied before
/// by its producer: Delivered
/// in the database: Applied
/// ```
#[derive(Clone, Debug)]
pub struct Story {
    pub(super) name: String,
    pub(super) known_as: Option<(String, String)>,
    pub(super) seed: Option<u64>,
    pub(super) attempts: Vec<Attempt>,
    pub(super) ending: Option<Ending>,
    pub(super) journal: Vec<Record>,
    /// Knows what has come since.
    pub(super) probe: Option<Probe>,
    pub(super) not_sent: Option<NotSent>,
    /// Whether the receiver is in this process.
    pub(super) is_here: bool,
    pub(super) stored: Stored,
}

/// Why there is no attempt.
#[derive(Clone, Debug)]
pub(super) enum NotSent {
    /// A network left it out.
    LeftOut,
    /// Nobody has heard of it; these were sent.
    Never(Vec<String>),
}

/// What the database says.
#[derive(Clone, Debug)]
pub(super) enum Stored {
    /// Nothing.
    Unknown,
    As(Box<Letter>),
    /// Why it was not asked.
    NotAsked(String),
}

impl Story {
    /// The event's id, as the test has begun it.
    pub fn id(&self) -> &str {
        &self.name
    }

    /// The event's id as the inbox has it, once a delivery of it was verified.
    pub fn event_id(&self) -> Option<&str> {
        self.known_as.as_ref().map(|(_, id)| id.as_str())
    }

    /// The source that took it, once a delivery of it was verified.
    pub fn source(&self) -> Option<&str> {
        self.known_as.as_ref().map(|(source, _)| source.as_str())
    }

    /// Every attempt to deliver it.
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// The last answer, whether its producer saw it or not.
    ///
    /// # Panics
    /// If there was none.
    #[track_caller]
    pub fn reply(&self) -> &Reply {
        let last = self.attempts.iter().rev().find_map(|at| at.reply.as_ref());
        match last {
            Some(reply) => reply,
            None => self.fails("no answer"),
        }
    }

    /// The statuses of all answers, in order.
    pub fn statuses(&self) -> Vec<u16> {
        let replies = self.attempts.iter().filter_map(|at| at.reply.as_ref());
        replies.map(|reply| reply.status).collect()
    }

    /// How it ended for its producer, if it has.
    pub fn verdict(&self) -> Option<Ending> {
        self.ending
    }

    /// What the database says of it, when the story was asked for; nothing if it does not know it (any more).
    pub fn letter(&self) -> Option<&Letter> {
        match &self.stored {
            Stored::As(letter) => Some(letter),
            _ => None,
        }
    }

    /// Its state in the database.
    pub fn state(&self) -> Option<State> {
        self.letter().map(|letter| letter.state)
    }

    /// How often the handler was called.
    ///
    /// # Panics
    /// If the receiver is elsewhere, so that nobody knows.
    #[track_caller]
    pub fn runs(&self) -> usize {
        self.demand_more_than_answers();
        let began = |record: &&Record| matches!(record.happened, Happened::Began(_));
        self.journal.iter().filter(began).count()
    }

    /// How often its handler's work was committed. If no commit of the inbox's was seen to succeed, and the database has it
    /// as applied all the same after a run of its handler, then that is once: nobody heard what came of the commit, or the
    /// handler made one of its own.
    ///
    /// # Panics
    /// If the receiver is elsewhere, so that nobody knows.
    #[track_caller]
    pub fn times_applied(&self) -> usize {
        self.demand_more_than_answers();
        match self.commits() {
            0 if self.runs() > 0 && self.state() == Some(State::Applied) => 1,
            commits => commits,
        }
    }

    fn commits(&self) -> usize {
        self.count(&Happened::Committed)
    }

    fn count(&self, what: &Happened) -> usize {
        let is_it = |record: &&Record| record.happened == *what;
        self.journal.iter().filter(is_it).count()
    }

    /// Whether its handler has had a transaction that was not there any more when the inbox came to it.
    fn escaped(&self) -> bool {
        self.count(&Happened::Lost(Loss::Ended)) > 0
    }

    /// Demands that its handler's work was committed exactly once, by the inbox, and that the database says so.
    ///
    /// # Panics
    /// If not, with the story.
    #[track_caller]
    pub fn assert_applied_once(&self) -> &Self {
        self.demand_more_than_answers();
        let in_doubt = self.count(&Happened::InDoubt) > 0;
        match (self.commits(), self.state()) {
            (1, Some(State::Applied)) => self,
            // The event's row is in the same transaction.
            (0, Some(State::Applied)) if in_doubt && !self.escaped() => self,
            (0, Some(State::Applied)) if self.runs() > 0 => {
                self.fails("committed, and not by the inbox: its handler ended the transaction")
            }
            (0, _) if self.escaped() => self.fails(
                "not applied by the inbox; but its transaction had ended: what it wrote may be committed",
            ),
            (1, _) => self.fails(format_args!("committed once, but {}", self.stored)),
            (times, _) => self.fails(format_args!("applied {times} times, instead of once")),
        }
    }

    /// Demands that nothing of its handler's work was committed.
    ///
    /// # Panics
    /// If not, or if nobody can say that, since the handler's transaction had ended before the inbox could roll it back;
    /// with the story.
    #[track_caller]
    pub fn assert_not_applied(&self) -> &Self {
        match (self.times_applied(), self.state()) {
            (0, state) if state != Some(State::Applied) => {
                if self.escaped() {
                    self.fails("its transaction had ended: what it wrote may be committed");
                }
                self
            }
            _ => self.fails("applied, and it should not be"),
        }
    }

    /// Demands this status and outcome (`applied`, `duplicate`, …) of the last answer.
    ///
    /// # Panics
    /// If not, with the story.
    #[track_caller]
    pub fn assert_answered(&self, status: u16, outcome: &str) -> &Self {
        let reply = self.reply();
        if (reply.status, reply.outcome()) != (status, outcome) {
            let is = format!("{} {}", reply.status, reply.outcome());
            self.fails(format_args!("answered {is}, instead of {status} {outcome}"));
        }
        self
    }

    /// Demands that the last answer says that it was applied before: `duplicate`, with 200 or, where the source stores
    /// answers, with the first answer again.
    ///
    /// # Panics
    /// If not, with the story.
    #[track_caller]
    pub fn assert_duplicate(&self) -> &Self {
        let reply = self.reply();
        if reply.outcome() != "duplicate" {
            let is = format!("{} {}", reply.status, reply.outcome());
            self.fails(format_args!(
                "answered {is}, instead of a duplicate's answer"
            ));
        }
        self
    }

    /// Demands that the last answer says that it waits for this sequence, the lowest one that is missing.
    ///
    /// # Panics
    /// If not, with the story.
    #[track_caller]
    pub fn assert_parked_behind(&self, sequence: i64) -> &Self {
        self.assert_answered(202, "parked");
        let waits_for = self.reply().waiting_for();
        if waits_for != Some(sequence) {
            match waits_for {
                Some(other) => {
                    self.fails(format_args!("it waits for {other}, instead of {sequence}"))
                }
                None => self.fails(format_args!(
                    "its answer does not say that it waits for {sequence}"
                )),
            }
        }
        self
    }

    /// Demands that it is a dead letter, for this reason.
    ///
    /// # Panics
    /// If not, with the story.
    #[track_caller]
    pub fn assert_dead(&self, reason: Reason) -> &Self {
        self.demand_more_than_answers();
        let is = self.letter().map(|at| (at.state, at.reason));
        if is != Some((State::Dead, Some(reason))) {
            self.fails(format_args!(
                "no dead letter of the reason {}",
                reason.as_str()
            ));
        }
        self
    }

    /// Demands that the last answer is a 401 of the inbox's own, and that the database was told nothing of that delivery:
    /// its signature was not verified, and nothing else comes before that. Of a receiver elsewhere only the answer is known.
    ///
    /// # Panics
    /// If not, with the story.
    #[track_caller]
    pub fn assert_unauthorized(&self) -> &Self {
        self.assert_answered(401, "rejected");
        let is_attempt = |record: &Record| matches!(record.happened, Happened::Attempted(_));
        let from = self.journal.iter().rposition(is_attempt).unwrap_or(0);
        let verified = |record: &Record| matches!(record.happened, Happened::Verified(_));
        if self.journal[from..].iter().any(verified) {
            self.fails("answered 401, but behind the inbox: its signature was verified");
        }
        self
    }

    /// Demands that it ended like this for its producer.
    ///
    /// # Panics
    /// If not, with the story.
    #[track_caller]
    pub fn assert_ended(&self, ending: Ending) -> &Self {
        match self.ending {
            Some(is) if is == ending => self,
            Some(is) => self.fails(format_args!(
                "ended as {is:?} for its producer, instead of {ending:?}"
            )),
            None => self.fails(format_args!(
                "it has not ended for a producer, instead of {ending:?}"
            )),
        }
    }

    /// Demands so many attempts; copies count.
    ///
    /// # Panics
    /// If not, with the story.
    #[track_caller]
    pub fn assert_attempts(&self, attempts: usize) -> &Self {
        let are = self.attempts.len();
        if are != attempts {
            self.fails(format_args!("{are} attempts, instead of {attempts}"));
        }
        self
    }

    /// Demands that the handler was called so many times.
    ///
    /// # Panics
    /// If not, with the story.
    #[track_caller]
    pub fn assert_runs(&self, runs: usize) -> &Self {
        let are = self.runs();
        if are != runs {
            self.fails(format_args!("{are} runs of the handler, instead of {runs}"));
        }
        self
    }

    #[track_caller]
    fn demand_more_than_answers(&self) {
        if !self.is_here {
            self.fails(
                "only answers are known of a receiver elsewhere: use assert_answered or assert_ended",
            );
        }
    }

    #[track_caller]
    fn fails(&self, why: impl Display) -> ! {
        let name = &self.name;
        let grown = |probe: &Probe| probe.journal().len() > self.journal.len();
        if let (Some(first), Some(last)) = (self.journal.first(), self.journal.last())
            && self.probe.as_ref().is_some_and(grown)
        {
            let since = last.at.since(first.at).as_secs_f64();
            panic!(
                "{name}: {why} (as of {since:.3} s; kit.story({name:?}) has what came later)\n\n{self}"
            );
        }
        panic!("{name}: {why}\n\n{self}")
    }
}
