//! Reading a body that nobody vouches for yet: capped, timed, and within a budget of memory that all such bodies
//! share (§2.1).

use crate::broken::{self, Variant};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

/// Bytes that bodies in the making may hold together.
pub(crate) struct ByteBudget {
    used: AtomicUsize,
    limit: usize,
}

impl ByteBudget {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            used: AtomicUsize::new(0),
            limit,
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    fn reserve(&self, held: &mut Reserved<'_>, bytes: usize) -> bool {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        held.bytes += bytes;
        before.saturating_add(bytes) <= self.limit
    }
}

/// Gives its bytes back when dropped.
pub(crate) struct Reserved<'a> {
    budget: &'a ByteBudget,
    bytes: usize,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Why a body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    TooBig,
    TooSlow,
    /// Cut off, or not what its framing said.
    Broken,
    /// The budget that all bodies share is spent.
    Busy,
}

/// Reads a body whole. Counted as read: a `Content-Length` is believed only where it is over the limit.
pub(crate) async fn read<'a, B: Body>(
    body: B,
    limit: usize,
    timeout: Duration,
    deadline: Instant,
    budget: &'a ByteBudget,
) -> Result<(Bytes, Reserved<'a>), BodyError> {
    let mut held = Reserved { budget, bytes: 0 };
    let until = deadline.min(Instant::now() + timeout);
    let mut body = pin!(body);
    // Most bodies are one frame, which then is not copied.
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    loop {
        let frame = match timeout_at(until, body.frame()).await {
            Err(_) => return Err(BodyError::TooSlow),
            Ok(Some(Err(_))) => return Err(BodyError::Broken),
            Ok(Some(Ok(frame))) => frame,
            Ok(None) => break,
        };
        // Trailers are not signed by any scheme, and nobody reads them.
        let Ok(mut data) = frame.into_data() else {
            continue;
        };
        let bytes = data.remaining();
        if held.bytes + bytes > limit && !broken::is(Variant::LengthBelieved) {
            return Err(BodyError::TooBig);
        }
        if !budget.reserve(&mut held, bytes) {
            return Err(BodyError::Busy);
        }
        let data = data.copy_to_bytes(bytes);
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                rest.extend_from_slice(&std::mem::take(&mut first));
            }
            rest.extend_from_slice(&data);
        }
    }
    let whole = if rest.is_empty() {
        first
    } else {
        rest.freeze()
    };
    Ok((whole, held))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http_body::Frame;
    use http_body_util::Full;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn chunks(chunks: &'static [&'static [u8]]) -> Chunks {
        Chunks(chunks)
    }

    struct Chunks(&'static [&'static [u8]]);

    impl Body for Chunks {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let Some((first, rest)) = self.0.split_first() else {
                return Poll::Ready(None);
            };
            self.0 = rest;
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(first)))))
        }
    }

    async fn outcome(
        body: impl Body,
        limit: usize,
        budget: &ByteBudget,
    ) -> Result<Bytes, BodyError> {
        let deadline = Instant::now() + SECOND;
        Ok(read(body, limit, SECOND, deadline, budget).await?.0)
    }

    /// §2.1
    #[tokio::test]
    async fn a_body_in_pieces_is_whole_and_the_limit_counts_what_was_read() {
        let budget = ByteBudget::new(100);
        assert_eq!(
            outcome(chunks(&[b"ab", b"", b"cd", b"e"]), 5, &budget).await,
            Ok("abcde".into())
        );
        assert_eq!(
            outcome(chunks(&[b"ab", b"cd", b"e"]), 4, &budget).await,
            Err(BodyError::TooBig)
        );
        assert_eq!(
            outcome(Full::new(Bytes::from("abcde")), 5, &budget).await,
            Ok("abcde".into())
        );
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }

    /// §2.1
    #[tokio::test]
    async fn bodies_share_a_budget_and_give_it_back() {
        let budget = ByteBudget::new(8);
        let deadline = Instant::now() + SECOND;
        let first = read(chunks(&[b"abcde"]), 100, SECOND, deadline, &budget)
            .await
            .expect("room");
        assert_eq!(
            outcome(chunks(&[b"abcde"]), 100, &budget).await,
            Err(BodyError::Busy)
        );
        drop(first);
        assert_eq!(
            outcome(chunks(&[b"abcde"]), 100, &budget).await,
            Ok("abcde".into())
        );
    }

    /// §2.1
    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_given_up() {
        let budget = ByteBudget::new(8);
        assert_eq!(outcome(Never, 100, &budget).await, Err(BodyError::TooSlow));
    }

    struct Never;

    impl Body for Never {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }
}
