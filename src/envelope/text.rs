//! The identifiers of an event: short texts, compared byte for byte.

use crate::broken::{self, Variant};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The longest identifier in bytes. It fits every database's index (§4.9).
pub const MAX_BYTES: usize = 255;

/// Why a text is no identifier (§4.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidText {
    /// Nothing in it.
    Empty,
    /// More than 255 bytes.
    TooLong,
    /// It has a control character.
    ControlCharacter,
}

impl fmt::Display for InvalidText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "is empty",
            Self::TooLong => "is longer than 255 bytes",
            Self::ControlCharacter => "contains a control character",
        })
    }
}

impl std::error::Error for InvalidText {}

fn check(text: &str) -> Result<(), InvalidText> {
    if text.is_empty() {
        return Err(InvalidText::Empty);
    }
    if text.len() > MAX_BYTES {
        return Err(InvalidText::TooLong);
    }
    if text.chars().any(char::is_control) {
        return Err(InvalidText::ControlCharacter);
    }
    Ok(())
}

macro_rules! text {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// 1 to 255 bytes of UTF-8 without control characters. Cheap to clone.
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes over a text.
            ///
            /// # Errors
            /// When it is empty, longer than 255 bytes, or contains a control character.
            pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidText> {
                check(text.as_ref())?;
                if broken::is(Variant::IdsFolded) {
                    return Ok(Self(Arc::from(text.as_ref().to_lowercase())));
                }
                Ok(Self(Arc::from(text.as_ref())))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            pub(crate) fn as_arc(&self) -> &Arc<str> {
                &self.0
            }
        }

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<&str> for $name {
            type Error = InvalidText;

            fn try_from(text: &str) -> Result<Self, InvalidText> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}

text! {
    /// Identifies an event within its source: what deliveries of one event have in common.
    EventId
}
text! {
    /// The entity whose events are in one order.
    CorrelationId
}
text! {
    /// What kind of thing happened, such as `payment.succeeded`.
    EventType
}

/// The position of an event among those of its correlation id: 0 to 2^63 − 2, so that its successor fits a BIGINT too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(i64);

impl Sequence {
    /// The greatest one.
    pub const MAX: Self = Self(i64::MAX - 1);

    /// A sequence; `None` below 0 and above [`Sequence::MAX`].
    pub const fn new(number: i64) -> Option<Self> {
        if number >= 0 && number < i64::MAX {
            Some(Self(number))
        } else {
            None
        }
    }

    /// Decimal digits, without sign, blanks or leading zeros (§4.9).
    pub fn parse(digits: &str) -> Option<Self> {
        let plain = digits == "0"
            || !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
        // An empty text and one of more digits than fit fail to parse.
        plain
            .then(|| digits.parse().ok())
            .flatten()
            .and_then(Self::new)
    }

    /// The number.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The number after it. Not a [`Sequence`], since the greatest one has no successor that is.
    pub const fn next(self) -> i64 {
        self.0 + 1
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §4.9: byte for byte, 1 to 255 bytes, no control characters.
    #[test]
    fn identifiers() {
        let ids = ["evt_A", "evt_a", "evt_A "].map(|text| EventId::new(text).unwrap());
        assert!(ids[0] != ids[1] && ids[0] != ids[2]);
        assert!(EventId::new("é".repeat(127)).is_ok());
        assert_eq!(EventId::new("é".repeat(128)), Err(InvalidText::TooLong));
        assert_eq!(EventId::new(""), Err(InvalidText::Empty));
        for control in ["\0", "a\n", "\u{7f}", "\u{85}"] {
            assert_eq!(EventId::new(control), Err(InvalidText::ControlCharacter));
        }
    }

    /// §4.9: 0 to 2^63 − 2, nothing but digits, no leading zero.
    #[test]
    fn sequences() {
        assert_eq!(Sequence::parse("0").map(Sequence::get), Some(0));
        assert_eq!(Sequence::parse("9223372036854775806"), Some(Sequence::MAX));
        for wrong in [
            "",
            "-1",
            "+1",
            "01",
            "00",
            "1.0",
            "1e3",
            " 1",
            "1 ",
            "9223372036854775807",
            "99999999999999999999",
            "١",
        ] {
            assert_eq!(Sequence::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Sequence::MAX.next(), i64::MAX);
    }
}
