//! Whether there is room to store one more event (§5.8).

use super::{Job, Stop};
use crate::source::Reserved;
use crate::store::{Backend, Size, StoredRequest, Stream};

/// What is over its bound.
pub(super) enum Full {
    Source,
    Stream,
}

impl Full {
    /// What there is too much of.
    pub(super) fn of_what(&self) -> &'static str {
        match self {
            Self::Source => "parked events of this source",
            Self::Stream => "parked events of this correlation id",
        }
    }
}

impl<DB: Backend> Job<'_, DB> {
    /// Room for one more event of this size, or why there is none.
    pub(super) async fn room(
        &self,
        conn: &mut DB::Connection,
        bytes: i64,
    ) -> Result<Result<Reserved<'_>, Full>, Stop> {
        let Some(reserved) = self.source.room().reserve(bytes) else {
            return Ok(Err(Full::Source));
        };
        if !self.stream_holds(conn, bytes).await? {
            return Ok(Err(Full::Stream));
        }
        Ok(Ok(reserved))
    }

    /// A stream that is unknown here is counted by one statement, and then kept up to date for some seconds. Who parks
    /// has the cursor locked, so that nothing is parked in this stream while it is counted.
    async fn stream_holds(&self, conn: &mut DB::Connection, bytes: i64) -> Result<bool, Stop> {
        let Some(id) = &self.envelope.correlation_id else {
            return Ok(true);
        };
        let room = self.source.room();
        if let Some(holds) = room.stream_holds(id.as_str(), bytes) {
            return Ok(holds);
        }
        let stream = Stream {
            source: self.source.name(),
            correlation_id: id.as_str(),
        };
        let size = DB::pending_of_stream(conn, &self.shared.sql, stream).await?;
        room.stream_counted(id.as_arc(), size);
        Ok(room.stream_holds(id.as_str(), bytes).unwrap_or(true))
    }

    /// The request of a dead letter: over a bound it is kept without its body.
    pub(super) async fn kept(&self, conn: &mut DB::Connection) -> Result<StoredRequest, Stop> {
        let mut request = StoredRequest::clone(&self.stored);
        if self.room(conn, request.bytes()).await?.is_err() {
            request.body = bytes::Bytes::new();
        }
        Ok(request)
    }

    fn correlation(&self) -> Option<&str> {
        self.envelope.correlation_id.as_ref().map(|id| id.as_str())
    }

    /// One more is stored, in so many bytes.
    pub(super) fn stored_one(&self, bytes: i64) {
        self.source.room().add(self.correlation(), Size::one(bytes));
    }

    /// What was reserved is stored.
    pub(super) fn stored_reserved(&self, reserved: Reserved<'_>) {
        reserved.keep(self.correlation());
    }

    /// One is applied that was stored. A redelivery may be of another size than what was stored of the first delivery;
    /// the next count puts that right.
    pub(super) fn applied_one(&self) {
        let size = Size::one(self.stored.bytes());
        self.source.room().remove(self.correlation(), size);
    }
}
