//! Why a delivery was refused: everything for the operator's log, nothing for the caller.

use std::borrow::Cow;
use std::fmt;

/// A delivery was refused (§6.6).
///
/// The caller gets a bare 401. [`Display`](fmt::Display) is for the operator's log: it says exactly what was wrong and
/// never contains a secret, a computed MAC or a received signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    kind: RefusalKind,
    detail: Cow<'static, str>,
}

/// The kinds of refusal, for metrics and decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalKind {
    /// No signature where the scheme has it.
    MissingSignature,
    /// A signature is there, but none in the scheme's form and encoding.
    MalformedSignature,
    /// The signed time is absent.
    MissingTimestamp,
    /// The signed time is not in the scheme's form and unit.
    MalformedTimestamp,
    /// The signed time is further in the past than the tolerance.
    TooOld,
    /// The signed time is further in the future than the tolerance.
    TooFarAhead,
    /// A signed identifier is absent or unusable.
    BadIdentifier,
    /// A header that must be single was sent more than once.
    RepeatedHeader,
    /// A header of the scheme has bytes that are not ASCII.
    NotAscii,
    /// The scheme reads the body, and the body cannot be read as it must be.
    UnreadableBody,
    /// The scheme signs the URL, and the source has none configured.
    NoUrl,
    /// No signature is by any active secret.
    NoMatch,
    /// A signature is by an active secret, and that does not count yet or does not count any more.
    OutsideWindow,
}

impl RefusalKind {
    /// A short stable name, fit for a metric's label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MissingSignature => "missing_signature",
            Self::MalformedSignature => "malformed_signature",
            Self::MissingTimestamp => "missing_timestamp",
            Self::MalformedTimestamp => "malformed_timestamp",
            Self::TooOld => "too_old",
            Self::TooFarAhead => "too_far_ahead",
            Self::BadIdentifier => "bad_identifier",
            Self::RepeatedHeader => "repeated_header",
            Self::NotAscii => "not_ascii",
            Self::UnreadableBody => "unreadable_body",
            Self::NoUrl => "no_url",
            Self::NoMatch => "no_match",
            Self::OutsideWindow => "outside_window",
        }
    }
}

impl Refusal {
    /// A refusal with a detail for the log. The detail must contain no secret and no MAC.
    pub fn new(kind: RefusalKind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            detail: detail.into(),
        }
    }

    /// What kind of refusal it is.
    pub fn kind(&self) -> RefusalKind {
        self.kind
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Refusal {}
