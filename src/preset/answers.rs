//! What a producer does after an answer.

use std::ops::RangeInclusive;

/// A set of status codes.
pub type Codes = &'static [RangeInclusive<u16>];

/// What a producer does after each status code, as far as its page says so: `None` is what it does not say, and a code
/// in no set is one that it does not mention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answers {
    /// Delivered: it does not send this event again.
    pub success: Option<Codes>,
    /// Not delivered, and it does not send this event again by itself.
    pub stop: Option<Codes>,
    /// Not delivered, and it sends this event again as its schedule has it.
    pub retry: Option<Codes>,
}

/// What a producer does after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reaction {
    /// It takes the event as delivered.
    Delivered,
    /// It gives this event up.
    Stops,
    /// It sends this event again later.
    Retries,
}

impl Answers {
    /// Only what its page says of success.
    pub(super) const fn success(codes: Codes) -> Self {
        Self {
            success: Some(codes),
            stop: None,
            retry: None,
        }
    }

    pub(super) const fn stop(mut self, codes: Codes) -> Self {
        self.stop = Some(codes);
        self
    }

    pub(super) const fn retry(mut self, codes: Codes) -> Self {
        self.retry = Some(codes);
        self
    }

    /// What it does after this status code; `None` if its page does not say.
    pub fn reaction(&self, status: u16) -> Option<Reaction> {
        let has = |codes: Option<Codes>| {
            codes.is_some_and(|codes| codes.iter().any(|range| range.contains(&status)))
        };
        if has(self.success) {
            Some(Reaction::Delivered)
        } else if has(self.stop) {
            Some(Reaction::Stops)
        } else if has(self.retry) {
            Some(Reaction::Retries)
        } else {
            None
        }
    }
}
