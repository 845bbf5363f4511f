//! What a check of an app has found.

use std::fmt;

/// One thing that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Check {
    /// The inbox answers on the path.
    Inbox,
    /// The first delivery of an event is applied, with a 2xx.
    First,
    /// The handler takes at most half of the time that a delivery has.
    Slow,
    /// The handler gives its transaction back before it answers.
    Kept,
    /// The handler leaves its transaction open.
    Ended,
    /// The handler does not answer 2xx when a statement of it has failed.
    Swallowed,
    /// A redelivery is a duplicate, and changes nothing.
    Again,
    /// Starting the app again changes nothing, and a redelivery after that is a duplicate.
    Restart,
    /// Copies at the same time are applied once, and none is refused for good.
    AtOnce,
    /// A database that fails for a moment makes no dead letter.
    Fault,
    /// What the handler does is undone when its commit fails.
    Outside,
    /// After a failure, a redelivery has the effects of a run that nothing disturbed.
    Retry,
    /// A producer that goes away while the handler runs changes nothing about the effects.
    Disconnect,
    /// Deliveries are taken that are signed by the old secret, by the new one, and by both.
    Rotation,
    /// An event of a type that nobody has heard of is not tried again for ever.
    UnknownType,
    /// An event without the fields that the handler reads is not tried again for ever.
    MissingFields,
    /// What was parked has the effects of what came in order.
    Drained,
}

impl Check {
    /// Its name, as reports have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inbox => "inbox",
            Self::First => "first",
            Self::Slow => "slow",
            Self::Kept => "kept",
            Self::Ended => "ended",
            Self::Swallowed => "swallowed",
            Self::Again => "again",
            Self::Restart => "restart",
            Self::AtOnce => "at_once",
            Self::Fault => "fault",
            Self::Outside => "outside",
            Self::Retry => "retry",
            Self::Disconnect => "disconnect",
            Self::Rotation => "rotation",
            Self::UnknownType => "unknown_type",
            Self::MissingFields => "missing_fields",
            Self::Drained => "drained",
        }
    }

    /// How bad it is if it fails.
    pub const fn severity(self) -> Severity {
        match self {
            Self::UnknownType | Self::MissingFields => Severity::Warning,
            _ => Severity::Error,
        }
    }

    /// What is wrong then, in a few words about the event.
    pub const fn headline(self) -> &'static str {
        match self {
            Self::Inbox => "is not answered by the inbox",
            Self::First => "is not applied",
            Self::Slow => "takes too long",
            Self::Kept => "keeps its transaction",
            Self::Ended => "ends its transaction",
            Self::Swallowed => "swallows a failed statement",
            Self::Again => "has effects again when it is delivered again",
            Self::Restart => "does not survive a restart",
            Self::AtOnce => "does not stand copies at the same time",
            Self::Fault => "makes a verdict of a database's fault",
            Self::Outside => "writes outside its transaction",
            Self::Retry => "does not do the same when it is tried again",
            Self::Disconnect => "has other effects when its producer goes away",
            Self::Rotation => "is refused in a rotation",
            Self::UnknownType => "fails for ever with an unknown type",
            Self::MissingFields => "fails for ever without its fields",
            Self::Drained => "has other effects after it was parked",
        }
    }

    /// What to do about it, as a rule; a finding may know better.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Inbox => {
                "Put the route behind the inbox (`Inbox::mount`, `Inbox::layer`), and say the same path and secret here."
            }
            Self::First => "Look at the story: the sample must be one that the handler applies.",
            Self::Slow => {
                "Do less before the answer: write down what is to be done in the transaction, and do it afterwards."
            }
            Self::Kept => {
                "Do not move `Tx` into a task, and await what works with it before the answer."
            }
            Self::Ended => {
                "No COMMIT, no ROLLBACK and no DDL in a handler: the inbox ends the transaction. A part of it can be undone \
                 by a savepoint: `sqlx::Connection::begin(&mut *tx)`."
            }
            Self::Swallowed => {
                "Answer 500 when a statement fails, or undo it by a savepoint and do something else."
            }
            Self::Again => {
                "Do not write outside of the handler, in an outer layer say, for each delivery."
            }
            Self::Restart => {
                "Make what is written at the start so that it can be done again; and keep nothing but the database's own \
                 word about what is applied."
            }
            Self::AtOnce => {
                "Leave duplicates to the inbox: 429 and 503 are tried again, while a producer may take other codes for the \
                 end."
            }
            Self::Fault => {
                "Answer 500 or 503 when the database fails, and a 4xx only for what is wrong with the event itself."
            }
            Self::Outside => {
                "Write by the handler's `Tx` and by nothing else. What has no transaction, a mail say, goes into a table \
                 first, and out of it by a task of its own."
            }
            Self::Retry => {
                "Keep nothing in memory about events that are done: whether one is, only the commit decides, and the inbox \
                 asks it."
            }
            Self::Disconnect => {
                "Have effects in the handler and not behind its answer in an outer layer: a request may be dropped there."
            }
            Self::Rotation => "Give the source both secrets: `Source::secrets([new, old])`.",
            Self::UnknownType => {
                "Answer 2xx for types that mean nothing to you, or a 4xx to have them kept as dead letters."
            }
            Self::MissingFields => {
                "Answer 400 or 422 for what cannot be read: it is kept as a dead letter."
            }
            Self::Drained => {
                "Use nothing that only a live request has: extensions of outer layers, the peer's address, signature \
                 headers."
            }
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// An event may be lost, or applied more or less than once.
    Error,
    /// It costs attempts, and an operator's time.
    Warning,
}

/// Something that breaks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// What was checked.
    pub check: Check,
    /// The sample: its event type, as the test has given it.
    pub event: String,
    /// What is wrong, in a sentence, and with the rows that show it.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
    /// The story of the event that shows it.
    pub story: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.check.severity() {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let (event, headline) = (&self.event, self.check.headline());
        writeln!(f, "{kind}: {event}: {headline} [{}]", self.check)?;
        writeln!(f, "  {}", self.what)?;
        writeln!(f, "  {}", self.remedy)?;
        for line in self.story.lines() {
            writeln!(f, "  | {line}")?;
        }
        Ok(())
    }
}

/// All findings of a [check](super::check_idempotent), printed readably by `{}`.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub(super) findings: Vec<Finding>,
    pub(super) not_run: Vec<(Check, &'static str)>,
}

impl Report {
    /// What breaks, in the order in which it was found.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// What could not be checked, and why.
    pub fn not_run(&self) -> &[(Check, &'static str)] {
        &self.not_run
    }

    /// Demands that there is no error; warnings are allowed.
    ///
    /// # Panics
    /// If there is one, with all findings.
    #[track_caller]
    pub fn assert_ok(&self) -> &Self {
        let is_error = |finding: &Finding| finding.check.severity() == Severity::Error;
        assert!(!self.findings.iter().any(is_error), "{self}");
        self
    }

    /// Demands that there is no finding at all.
    ///
    /// # Panics
    /// If there is one, with all of them.
    #[track_caller]
    pub fn assert_clean(&self) -> &Self {
        assert!(self.findings.is_empty(), "{self}");
        self
    }

    pub(super) fn found(&mut self, check: Check, event: &str, what: String, story: String) {
        self.findings.push(Finding {
            check,
            event: event.to_owned(),
            what,
            remedy: check.remedy().to_owned(),
            story,
        });
    }

    /// What to do about the last finding, if that is known better than as a rule.
    pub(super) fn mend(&mut self, remedy: Option<String>) {
        if let (Some(last), Some(remedy)) = (self.findings.last_mut(), remedy) {
            last.remedy = remedy;
        }
    }

    pub(super) fn has(&self, check: Check, event: &str) -> bool {
        let mut findings = self.findings.iter();
        findings.any(|finding| finding.check == check && finding.event == event)
    }

    pub(super) fn has_any(&self, check: Check) -> bool {
        self.findings.iter().any(|finding| finding.check == check)
    }

    pub(super) fn has_errors(&self) -> bool {
        let mut findings = self.findings.iter();
        findings.any(|finding| finding.check.severity() == Severity::Error)
    }

    /// Said once.
    pub(super) fn left_out(&mut self, check: Check, why: &'static str) {
        if !self.not_run.iter().any(|(left_out, _)| *left_out == check) {
            self.not_run.push((check, why));
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.findings.len() {
            0 => writeln!(f, "nothing found")?,
            1 => writeln!(f, "1 finding")?,
            many => writeln!(f, "{many} findings")?,
        }
        for finding in &self.findings {
            write!(f, "\n{finding}")?;
        }
        for (check, why) in &self.not_run {
            write!(f, "\nnot checked: {check}, since {why}")?;
        }
        Ok(())
    }
}
