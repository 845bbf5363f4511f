//! MAC algorithms, decoded tags, and the comparison in constant time.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::Mac;
use hmac::digest::{CtOutput, Output};

use super::secret::Secret;
use crate::broken::{self, Variant};

/// A MAC algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// HMAC with SHA-256: 32 bytes.
    HmacSha256,
    /// HMAC with SHA-512: 64 bytes.
    HmacSha512,
    /// HMAC with SHA-1: 20 bytes. Not broken as a MAC, but nothing to choose anew; some producers offer nothing else.
    HmacSha1Legacy,
}

impl Algorithm {
    /// The length of a MAC in bytes.
    pub const fn len(self) -> usize {
        match self {
            Self::HmacSha256 => 32,
            Self::HmacSha512 => 64,
            Self::HmacSha1Legacy => 20,
        }
    }

    /// Never: MACs have bytes.
    pub const fn is_empty(self) -> bool {
        false
    }
}

/// How a signature is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Encoding {
    /// Hexadecimal of either case.
    Hex,
    /// Base64 in its canonical form: standard alphabet, padded, unused bits zero.
    Base64,
}

impl Encoding {
    /// Writes a MAC.
    pub fn encode(self, mac: &[u8]) -> String {
        match self {
            Self::Hex => hex::encode(mac),
            Self::Base64 => STANDARD.encode(mac),
        }
    }

    /// Reads a candidate, in place; `None`, and anything in `tag`, unless it decodes to exactly the MAC's length.
    pub(super) fn decode(self, text: &str, tag: &mut Tag) -> Option<()> {
        let len = tag.len;
        match self {
            Self::Hex => decode_hex(text.as_bytes(), &mut tag.bytes[..len]),
            Self::Base64 => {
                // Checked first: nothing longer than a MAC is decoded.
                if text.len() != len.div_ceil(3) * 4 {
                    return None;
                }
                // 64 bytes need 88 characters, and those may decode to 66 bytes.
                let mut buffer = [0; 66];
                let written = STANDARD.decode_slice(text, &mut buffer).ok()?;
                (written == len).then(|| tag.bytes[..len].copy_from_slice(&buffer[..len]))
            }
        }
    }
}

/// Half of the time of the general decoder: this runs for every candidate of every delivery.
fn decode_hex(text: &[u8], into: &mut [u8]) -> Option<()> {
    const NONE: u8 = 0xff;
    const DIGITS: [u8; 256] = {
        let mut digits = [NONE; 256];
        let mut value = 0;
        while value < 16 {
            digits[b"0123456789abcdef"[value] as usize] = value as u8;
            digits[b"0123456789ABCDEF"[value] as usize] = value as u8;
            value += 1;
        }
        digits
    };
    if text.len() != into.len() * 2 {
        return None;
    }
    let mut wrong = 0;
    for (byte, pair) in into.iter_mut().zip(text.chunks_exact(2)) {
        let (high, low) = (DIGITS[usize::from(pair[0])], DIGITS[usize::from(pair[1])]);
        // A digit's upper half is empty, and that of no digit is not.
        wrong |= (high | low) & 0xf0;
        *byte = high << 4 | low;
    }
    (wrong == 0).then_some(())
}

/// A received MAC of exactly the algorithm's length.
#[derive(Clone)]
pub(super) struct Tag {
    bytes: [u8; 64],
    len: usize,
}

impl Tag {
    /// Of this algorithm's length, to be decoded into.
    pub(super) fn empty(algorithm: Algorithm) -> Self {
        Self {
            bytes: [0; 64],
            len: algorithm.len(),
        }
    }

    pub(super) fn new(algorithm: Algorithm, mac: &[u8]) -> Option<Self> {
        let mut tag = Self::empty(algorithm);
        (mac.len() == tag.len).then(|| tag.bytes[..mac.len()].copy_from_slice(mac))?;
        Some(tag)
    }
}

/// Takes a message in its parts.
pub(super) type Sink<'s> = dyn FnMut(&[u8]) + 's;

/// Whether any tag is the MAC, under this secret, of the message that `feed` gives in its parts. The MAC is computed
/// once and every tag is compared.
pub(super) fn any_matches<E>(
    secret: &Secret,
    algorithm: Algorithm,
    feed: impl FnOnce(&mut Sink<'_>) -> Result<(), E>,
    tags: &[Tag],
) -> Result<bool, E> {
    match algorithm {
        Algorithm::HmacSha256 => compare(secret.sha256(), feed, tags),
        Algorithm::HmacSha512 => compare(secret.sha512(), feed, tags),
        Algorithm::HmacSha1Legacy => compare(secret.sha1(), feed, tags),
    }
}

fn compare<M: Mac + Clone, E>(
    key: &M,
    feed: impl FnOnce(&mut Sink<'_>) -> Result<(), E>,
    tags: &[Tag],
) -> Result<bool, E> {
    let mut mac = key.clone();
    feed(&mut |part| mac.update(part))?;
    let computed = mac.finalize();
    Ok(tags.iter().fold(false, |found, tag| {
        let mut equal = <&Output<M>>::try_from(&tag.bytes[..tag.len])
            .is_ok_and(|received| computed == CtOutput::<M>::from(received));
        if broken::is(Variant::PrefixSignature) {
            let whole = computed.as_bytes();
            equal = whole[..4] == tag.bytes[..4];
        }
        found | equal
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §2.2
    #[test]
    fn base64_must_be_canonical_and_of_the_exact_length() {
        let mac = [7u8; 32];
        let text = Encoding::Base64.encode(&mac);
        let decode =
            |text: &str| Encoding::Base64.decode(text, &mut Tag::empty(Algorithm::HmacSha256));
        assert!(decode(&text).is_some());
        assert!(decode(text.trim_end_matches('=')).is_none(), "no padding");
        let mut loose = text.clone().into_bytes();
        loose[42] += 1; // the unused bits of the last character
        assert!(
            decode(std::str::from_utf8(&loose).unwrap()).is_none(),
            "unused bits set"
        );
        assert!(decode(&"A".repeat(44)).is_none(), "33 bytes");
        assert!(decode("").is_none());
    }

    /// §6.3. Every byte, in either place of a pair, decodes as the `hex` crate has it.
    #[test]
    fn hex_digits() {
        for byte in 0..=u8::MAX {
            for place in 0..2 {
                let mut text = [b'0'; 64];
                text[31 + place] = byte;
                let mut decoded = [0; 32];
                let ours = decode_hex(&text, &mut decoded).map(|()| decoded.to_vec());
                assert_eq!(ours, hex::decode(text).ok(), "{byte} at {place}");
            }
        }
    }

    /// §2.2
    #[test]
    fn hex_of_either_case_and_of_the_exact_length() {
        let decode =
            |text: &str| Encoding::Hex.decode(text, &mut Tag::empty(Algorithm::HmacSha1Legacy));
        assert!(decode(&"aB".repeat(20)).is_some());
        for wrong in [
            "",
            "a",
            &"ab".repeat(19),
            &"ab".repeat(21),
            &"zz".repeat(20),
            &"é".repeat(20),
        ] {
            assert!(decode(wrong).is_none(), "{wrong}");
        }
    }
}
