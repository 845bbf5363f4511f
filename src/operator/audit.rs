//! Looking at what was decided and refused, and at what somebody sent.

use bytes::Bytes;

use super::{MOST, Operator, Rows, check_reason};
use crate::clock::Timestamp;
use crate::dispatch::{ShowBody, own};
use crate::error::OperatorError;
use crate::store::{About, AuditRow, AuditRows, Backend, Key};

/// A line of the audit table: what an operator did, or what the inbox refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditEntry {
    /// Rises with time.
    pub id: i64,
    /// When it was.
    pub at: Timestamp,
    /// The name of the source.
    pub source: String,
    /// The event; nothing where it was about a stream or a source.
    pub event_id: Option<String>,
    /// The correlation id of the event, if it has one, or of the stream that it was about.
    pub correlation_id: Option<String>,
    /// What was done, such as `replay`, `skip` or `refused`.
    pub action: String,
    /// The operator's name, or `inbox`.
    pub actor: String,
    /// The reason, and for a stream where it stood.
    pub detail: String,
}

impl From<AuditRow> for AuditEntry {
    fn from(row: AuditRow) -> Self {
        Self {
            id: row.id,
            at: row.at,
            source: row.source,
            event_id: row.event_id,
            correlation_id: row.correlation_id,
            action: row.action,
            actor: row.actor,
            detail: row.detail,
        }
    }
}

/// Which lines of the audit table. Without anything: all.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct AuditFilter {
    source: Option<String>,
    event_id: Option<String>,
    correlation_id: Option<String>,
    actor: Option<String>,
}

impl AuditFilter {
    /// All lines.
    pub fn new() -> Self {
        Self::default()
    }

    /// About this source.
    pub fn source(mut self, name: impl Into<String>) -> Self {
        self.source = Some(name.into());
        self
    }

    /// About this event of this source. Takes the place of [`stream`](Self::stream).
    pub fn event(self, source: impl Into<String>, event_id: impl Into<String>) -> Self {
        Self {
            event_id: Some(event_id.into()),
            correlation_id: None,
            ..self.source(source)
        }
    }

    /// About this stream of this source, and about its events. Takes the place of [`event`](Self::event). Lines that an earlier
    /// version of this crate wrote are found by their event or their source alone.
    pub fn stream(self, source: impl Into<String>, correlation_id: impl Into<String>) -> Self {
        Self {
            correlation_id: Some(correlation_id.into()),
            event_id: None,
            ..self.source(source)
        }
    }

    /// What this operator did; `inbox` is what the inbox did by itself.
    pub fn actor(mut self, name: impl Into<String>) -> Self {
        self.actor = Some(name.into());
        self
    }

    fn for_database(&self) -> AuditRows<'_> {
        AuditRows {
            source: self.source.as_deref(),
            about: match (&self.event_id, &self.correlation_id) {
                (Some(id), _) => About::Event(id),
                (None, Some(id)) => About::Stream(id),
                (None, None) => About::All,
            },
            actor: self.actor.as_deref(),
        }
    }
}

/// Some lines of the audit table, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditPage {
    /// Newest first.
    pub entries: Vec<AuditEntry>,
    /// What the next page comes before; nothing if this is the last one.
    pub next: Option<i64>,
}

impl<DB: Backend> Operator<DB> {
    /// Lines of the audit table, newest first, up to `limit` (at most 1,000) before the one with the id `before`. They are
    /// kept for a year.
    ///
    /// # Errors
    /// If the database could not be asked.
    pub async fn audit(
        &self,
        filter: &AuditFilter,
        before: Option<i64>,
        limit: usize,
    ) -> Result<AuditPage, OperatorError> {
        let limit = limit.clamp(1, MOST);
        let which = filter.for_database();
        let before = before.unwrap_or(i64::MAX);
        let found = self
            .look(async |shared, conn| {
                DB::audit_lines(conn, &shared.sql, which, before, limit.rows()).await
            })
            .await?;
        let next = found.last().filter(|_| found.len() == limit);
        let next = next.map(|row| row.id);
        let entries = found.into_iter().map(AuditEntry::from).collect();
        Ok(AuditPage { entries, next })
    }

    /// The stored body of an event, for somebody to read: that he did, and why, goes into the audit table before he sees it.
    /// Nothing if the event never came, or none is kept, as of an applied one.
    ///
    /// # Errors
    /// As every action: `Busy`, `Database`, `Invalid` for a reason that is not 1 to 2,000 bytes.
    pub async fn body(
        &self,
        source: &str,
        event_id: &str,
        reason: &str,
    ) -> Result<Option<Bytes>, OperatorError> {
        check_reason(reason)?;
        let show = ShowBody {
            key: Key { source, event_id },
            actor: &self.actor,
            reason,
        };
        Ok(own(&self.shared, &show).await?)
    }
}
