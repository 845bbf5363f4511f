//! W3C Trace Context: the header `traceparent`, as strictly as its specification has it.

use std::fmt;

use http::HeaderMap;
use http::header::HeaderName;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Of stored requests alone: the span of the delivery that stored them, in the form of a `traceparent`. No handler sees it, and
/// one that a producer sends is dropped.
pub(crate) const STORED_BY: HeaderName = HeaderName::from_static("inbox-stored-by");

/// Version, trace, parent and flags, in hexadecimal, with dashes between them.
const LENGTH: usize = 55;

/// Which span of which trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TraceParent {
    pub(super) trace: u128,
    pub(super) span: u64,
    /// Bit 0: sampled. Others are not known, and are dropped.
    pub(super) flags: u8,
}

/// The delivery that stored a request, in its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredBy(pub(super) TraceParent);

impl TraceParent {
    /// As a producer sends it. Nothing if it is malformed, or there are two.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let value = values.next()?;
        values
            .next()
            .is_none()
            .then(|| Self::parse(value.as_bytes()))?
    }

    fn parse(value: &[u8]) -> Option<Self> {
        let (known, rest) = value.split_at_checked(LENGTH)?;
        let version = u8::try_from(hex(&known[..2])?).ok()?;
        // Later versions may have more behind a dash; 255 is none.
        let ends = match version {
            0 => rest.is_empty(),
            255 => false,
            _ => rest.is_empty() || rest.starts_with(b"-"),
        };
        let dashes = [2, 35, 52].iter().all(|at| known[*at] == b'-');
        let found = Self {
            trace: hex(&known[3..35])?,
            span: u64::try_from(hex(&known[36..52])?).ok()?,
            flags: u8::try_from(hex(&known[53..])?).ok()? & 1,
        };
        (ends && dashes && found.trace != 0 && found.span != 0).then_some(found)
    }

    pub(super) fn trace_id(self) -> impl fmt::Display {
        format!("{:032x}", self.trace)
    }

    pub(super) fn span_id(self) -> impl fmt::Display {
        format!("{:016x}", self.span)
    }
}

impl StoredBy {
    /// Takes it out of the headers of a stored request.
    pub(crate) fn take(headers: &mut HeaderMap) -> Option<Self> {
        let value = headers.remove(STORED_BY)?;
        TraceParent::parse(value.as_bytes()).map(Self)
    }

    pub(crate) fn value(self) -> String {
        let TraceParent { trace, span, flags } = self.0;
        format!("00-{trace:032x}-{span:016x}-{flags:02x}")
    }
}

/// Lower case alone, at most 32 digits.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    /// (traces)
    #[test]
    fn a_traceparent_is_read_whatever_later_versions_append() {
        let expected = TraceParent {
            trace: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
            span: 0x00f0_67aa_0ba9_02b7,
            flags: 1,
        };
        assert_eq!(TraceParent::parse(GOOD.as_bytes()), Some(expected));
        assert_eq!(StoredBy(expected).value(), GOOD);
        for later in ["", "-", "-anything"] {
            let later = format!("cc{}{later}", &GOOD[2..]);
            assert_eq!(TraceParent::parse(later.as_bytes()), Some(expected));
        }
        let unsampled = TraceParent::parse(format!("{}fe", &GOOD[..53]).as_bytes());
        assert_eq!(unsampled.map(|parent| parent.flags), Some(0));
    }

    /// (traces)
    #[test]
    fn what_is_no_traceparent_is_none_rather_than_half_of_one() {
        let with = |at: usize, text: &str| {
            let mut bad = GOOD.as_bytes().to_vec();
            bad[at..at + text.len()].copy_from_slice(text.as_bytes());
            bad
        };
        let bad = [
            with(0, "ff"),
            with(0, "0A"),
            with(2, "_"),
            with(35, "_"),
            with(52, "_"),
            with(3, "4BF9"),
            with(3, "g"),
            with(3, &"0".repeat(32)),
            with(36, &"0".repeat(16)),
            with(53, "0x"),
            GOOD.as_bytes()[..54].to_vec(),
            format!("{GOOD}-").into(),
            format!("cc{}0", &GOOD[2..]).into(),
            format!(" {GOOD}").into(),
            Vec::new(),
            vec![0xff; LENGTH],
        ];
        for bad in bad {
            let text = String::from_utf8_lossy(&bad).into_owned();
            assert_eq!(TraceParent::parse(&bad), None, "{text:?}");
        }
    }

    /// (traces)
    #[test]
    fn two_traceparents_are_none() {
        let mut headers = HeaderMap::new();
        assert_eq!(TraceParent::of(&headers), None);
        headers.append(TRACEPARENT, HeaderValue::from_static(GOOD));
        assert!(TraceParent::of(&headers).is_some());
        headers.append(TRACEPARENT, HeaderValue::from_static(GOOD));
        assert_eq!(TraceParent::of(&headers), None);
    }
}
