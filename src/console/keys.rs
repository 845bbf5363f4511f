//! Random numbers, and MACs over several parts.

use std::fmt::Write as _;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

fn mac_of(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::new_from_slice(key).expect("HMAC takes a key of any length");
    for part in parts {
        // Prefixed with their lengths, so that no two lists of parts are the same bytes.
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac
}

pub(super) fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    mac_of(key, parts).finalize().into_bytes().into()
}

/// Whether `tag` is the MAC, in constant time.
pub(super) fn is_mac(key: &[u8], parts: &[&[u8]], tag: &[u8]) -> bool {
    mac_of(key, parts).verify_slice(tag).is_ok()
}

/// The same, in hexadecimal.
pub(super) fn is_mac_hex(key: &[u8], parts: &[&[u8]], tag: &str) -> bool {
    hex::decode(tag).is_ok_and(|tag| is_mac(key, parts, &tag))
}

/// 128 bits, or nothing if the system has none.
pub(super) fn nonce() -> Option<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}
