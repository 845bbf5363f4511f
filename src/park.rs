//! "Not yet": a handler's answer that an event is to be kept and tried again later.

use std::time::Duration;

use crate::clock::Timestamp;

/// A shorter pause is made this long: an event that is put off is not counted as failed, and would otherwise be tried
/// without a pause.
const SHORTEST: Duration = Duration::from_millis(250);

/// A handler's answer that its event must not be applied yet: nothing of its work is committed, and the event is kept and
/// handed to the handler again then, without counting as a failed attempt.
///
/// An event of a stream keeps its turn: its successors wait behind it. The producer gets 202
/// `{"status":"parked"}`, with `waiting_for` where the event has a sequence. A redelivery runs the handler again,
/// whenever it comes. An event can be put off for as long as [`Source::longest_park`](crate::Source::longest_park) says;
/// after that, "not yet" is a failure like another.
///
/// It is a whole answer for axum, and a part of one; with any tower service, put it into the response's extensions.
/// It beats the status, and [`Verdict`](crate::Verdict) too.
///
/// ```
/// # #[cfg(feature = "axum")] mod example {
/// use std::time::Duration;
/// use axum::http::StatusCode;
/// use axum::response::{IntoResponse, Response};
/// use tower_inbox::Park;
///
/// async fn on_event(/* … */) -> Response {
///     let account_is_open = false;
///     if !account_is_open {
///         return Park::after(Duration::from_secs(60)).into_response();
///     }
///     StatusCode::NO_CONTENT.into_response()
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it does nothing unless it is in the answer"]
pub struct Park(When);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Until(Timestamp),
    After(Duration),
}

impl Park {
    /// Not before this time, a [`SystemTime`](std::time::SystemTime) or a [`Timestamp`].
    pub fn until(time: impl Into<Timestamp>) -> Self {
        Self(When::Until(time.into()))
    }

    /// Not before this much time has passed.
    pub fn after(wait: Duration) -> Self {
        Self(When::After(wait))
    }

    pub(crate) fn not_before(self, now: Timestamp) -> Timestamp {
        let asked = match self.0 {
            When::Until(time) => time,
            When::After(wait) => now.plus(wait),
        };
        asked.max(now.plus(SHORTEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (not-yet)
    #[test]
    fn a_time_that_has_passed_is_a_short_pause() {
        let now = Timestamp::from_secs(100);
        for park in [
            Park::until(Timestamp::from_secs(5)),
            Park::until(now),
            Park::after(Duration::ZERO),
        ] {
            assert_eq!(park.not_before(now), now.plus(SHORTEST));
        }
        let later = Timestamp::from_secs(160);
        assert_eq!(Park::until(later).not_before(now), later);
        assert_eq!(Park::after(Duration::from_secs(60)).not_before(now), later);
        assert_eq!(
            Park::after(Duration::MAX).not_before(now),
            Timestamp::from_micros(i64::MAX)
        );
    }
}
