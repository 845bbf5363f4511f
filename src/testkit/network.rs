//! What becomes of a request and its answer on their way.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;

/// What a network does with the attempts of a producer: [`Network::perfect`], and faults that are added to it. For each
/// attempt the first fault that applies is taken, in the order in which they were added.
///
/// ```
/// use std::time::Duration;
/// use tower_inbox::testkit::{Network, Way};
///
/// let network = Network::perfect()
///     .down_for(Duration::from_secs(90))
///     .duplicates(0.2)
///     .each(|sending| (sending.attempt == 1).then_some(Way::AnswerLost));
/// # drop(network);
/// ```
#[must_use]
pub struct Network {
    faults: Vec<Fault>,
    pub(super) reorder: usize,
    pub(super) left_out: Vec<String>,
}

type Fault = Box<dyn FnMut(&Sending<'_>, &mut Rng) -> Option<Way> + Send>;

/// One attempt that is about to be made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Sending<'a> {
    /// The event's id, as the test has begun it.
    pub event_id: &'a str,
    /// Which attempt of it, from 1.
    pub attempt: u32,
    /// Since the first attempt of the first event of this run, in the producer's time.
    pub since_start: Duration,
    /// Attempts of this producer before this one, of all events.
    pub attempts_before: u64,
}

/// What becomes of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Way {
    /// There and back.
    Through,
    /// There and back twice, one after the other: the producer goes by the first answer.
    Twice,
    /// There and back twice at the same time: the producer goes by the first one's answer.
    TwiceAtOnce,
    /// The receiver cannot be reached.
    Down,
    /// It arrives, and its answer does not.
    AnswerLost,
    /// The answer that says that the event was applied does not arrive: the receiver has committed, and its producer does not
    /// know.
    AnswerLostIfApplied,
    /// The connection is lost here.
    Disconnect(Point),
    /// The receiver is restarted, orderly, and then it goes through. Only where the kit can make the app anew:
    /// [`Kit::restartable`](super::Kit::restartable).
    AfterRestart,
}

impl Way {
    /// Whether its producer sees this answer.
    pub(super) fn shows(self, applied: bool) -> bool {
        match self {
            Self::Through | Self::Twice | Self::TwiceAtOnce | Self::AfterRestart => true,
            Self::AnswerLostIfApplied => !applied,
            Self::Down | Self::AnswerLost | Self::Disconnect(_) => false,
        }
    }
}

/// Where a connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Point {
    /// Half of the body has been sent. To a service that is no router nothing arrives at all.
    WhileSending,
    /// The handler has been called, and has not answered; or, if it is not called at all, the answer is on its way. Of a
    /// receiver that is not in the test's process: the body has been sent.
    BeforeAnswer,
}

impl Network {
    /// All goes through, once, in order.
    pub fn perfect() -> Self {
        Self {
            faults: Vec::new(),
            reorder: 0,
            left_out: Vec::new(),
        }
    }

    /// This share of the attempts is sent twice, one after the other.
    pub fn duplicates(self, rate: f64) -> Self {
        self.fault(move |_, rng| (rng.f64() < rate).then_some(Way::Twice))
    }

    /// This share of the attempts is sent twice at the same time.
    pub fn duplicates_at_once(self, rate: f64) -> Self {
        self.fault(move |_, rng| (rng.f64() < rate).then_some(Way::TwiceAtOnce))
    }

    /// First attempts change places within groups of this many events.
    pub fn reorder(mut self, group: usize) -> Self {
        self.reorder = group;
        self
    }

    /// This share of the answers is lost, whatever they say.
    pub fn drop_answers(self, rate: f64) -> Self {
        self.fault(move |_, rng| (rng.f64() < rate).then_some(Way::AnswerLost))
    }

    /// Every answer that says that an event was applied is lost: the producer sends it again, and gets a duplicate's.
    pub fn drop_answer_after_commit(self) -> Self {
        self.fault(|_, _| Some(Way::AnswerLostIfApplied))
    }

    /// The receiver cannot be reached for this long from the start of a run.
    pub fn down_for(self, duration: Duration) -> Self {
        self.fault(move |sending, _| (sending.since_start < duration).then_some(Way::Down))
    }

    /// The receiver cannot be reached between these times, since the start of a run: an outage in the middle of it.
    pub fn down_between(self, from: Duration, to: Duration) -> Self {
        self.fault(move |sending, _| {
            (from..to)
                .contains(&sending.since_start)
                .then_some(Way::Down)
        })
    }

    /// The connection of every first attempt is lost at this point.
    pub fn disconnect_at(self, point: Point) -> Self {
        self.fault(move |sending, _| (sending.attempt == 1).then_some(Way::Disconnect(point)))
    }

    /// This event is never sent: it leaves a gap.
    pub fn leave_out(mut self, event_id: impl Into<String>) -> Self {
        self.left_out.push(event_id.into());
        self
    }

    /// Anything else: asked for each attempt that no fault before it applies to. Whatever else the test wants to happen just
    /// before an attempt, a rotation of secrets say, can be done here as well.
    pub fn each(self, mut way: impl FnMut(&Sending<'_>) -> Option<Way> + Send + 'static) -> Self {
        self.fault(move |sending, _| way(sending))
    }

    fn fault(
        mut self,
        fault: impl FnMut(&Sending<'_>, &mut Rng) -> Option<Way> + Send + 'static,
    ) -> Self {
        self.faults.push(Box::new(fault));
        self
    }

    pub(super) fn way(&mut self, sending: &Sending<'_>, rng: &mut Rng) -> Way {
        let mut ways = self.faults.iter_mut().map(|fault| fault(sending, rng));
        ways.find_map(|way| way).unwrap_or(Way::Through)
    }

    /// The order in which so many events are first sent.
    pub(super) fn order(&self, events: usize, rng: &mut Rng) -> Vec<usize> {
        let mut order: Vec<_> = (0..events).collect();
        order
            .chunks_mut(self.reorder.max(1))
            .for_each(|group| rng.shuffle(group));
        order
    }
}

impl Default for Network {
    fn default() -> Self {
        Self::perfect()
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network")
            .field("faults", &self.faults.len())
            .field("reorder", &self.reorder)
            .field("left_out", &self.left_out)
            .finish()
    }
}
