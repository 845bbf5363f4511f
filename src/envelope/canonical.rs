//! Fingerprints of content: of the raw body, or of a JSON value whatever way it is written.

use std::io::Write as _;
use std::ops::Range;

use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;

/// Deeper values are hashed as they are written: a bound on the stack, not on what is accepted.
const DEPTH: usize = 128;

/// The fingerprint of a raw body.
pub(super) fn of_bytes(body: &[u8]) -> [u8; 16] {
    finish(Sha256::new().chain_update(b"raw").chain_update(body))
}

/// The fingerprint of an event type and of a JSON value that a parser has already accepted.
pub(super) fn of_type_and_data(event_type: Option<&str>, data: Option<&str>) -> [u8; 16] {
    let mut hash = Sha256::new().chain_update(b"type+data");
    // `Option` and length before the text: no type runs into its data.
    let text = event_type.unwrap_or_default();
    hash.update([u8::from(event_type.is_some())]);
    hash.update((text.len() as u64).to_be_bytes());
    hash.update(text);
    match data {
        None => hash.update([0]),
        Some(json) => {
            let mut reader = Reader {
                json: json.as_bytes(),
                at: 0,
            };
            // Lengths are longer than the marks that they stand for.
            let mut canonical = Vec::with_capacity(json.len() + 128);
            match reader.value(&mut canonical, DEPTH) {
                Some(()) => {
                    hash.update([1]);
                    hash.update(canonical);
                }
                None => {
                    hash.update([2]);
                    hash.update(json);
                }
            }
        }
    }
    finish(hash)
}

fn finish(hash: Sha256) -> [u8; 16] {
    let digest: [u8; 32] = hash.finalize().into();
    std::array::from_fn(|index| digest[index])
}

/// Writes a JSON value in one spelling, each part delimited, so that different values are different bytes. Returns
/// `None` for what is deeper than allowed, or no JSON after all.
struct Reader<'j> {
    json: &'j [u8],
    at: usize,
}

/// Where a member of an object is in what is written of that, and its name's own bytes.
struct Member {
    whole: Range<usize>,
    name: Range<usize>,
}

impl Reader<'_> {
    fn value(&mut self, out: &mut Vec<u8>, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match self.peek()? {
            b'{' => self.object(out, depth),
            b'[' => self.array(out, depth),
            b'"' => self.string(out),
            b't' => self.word(out, b"true"),
            b'f' => self.word(out, b"false"),
            b'n' => self.word(out, b"null"),
            _ => self.number(out),
        }
    }

    fn object(&mut self, out: &mut Vec<u8>, depth: usize) -> Option<()> {
        self.at += 1;
        out.push(b'{');
        let start = out.len();
        let mut members: SmallVec<[Member; 8]> = SmallVec::new();
        while !self.closes(b'}', members.is_empty())? {
            self.peek()?;
            let from = out.len() - start;
            self.string(out)?;
            let name = from + PREFIX..out.len() - start;
            self.expect(b':')?;
            self.value(out, depth)?;
            let whole = from..out.len() - start;
            members.push(Member { whole, name });
        }
        let name = |member: &Member| &out[start..][member.name.clone()];
        // As most producers write them: nothing is copied then.
        if !members.is_sorted_by(|a, b| name(a) <= name(b)) {
            // Stable: members of one name keep their order, since readers differ in which one counts.
            members.sort_by(|a, b| name(a).cmp(name(b)));
            let written = out.split_off(start);
            for member in members {
                out.extend_from_slice(&written[member.whole]);
            }
        }
        out.push(b'}');
        Some(())
    }

    fn array(&mut self, out: &mut Vec<u8>, depth: usize) -> Option<()> {
        self.at += 1;
        out.push(b'[');
        let mut first = true;
        while !self.closes(b']', first)? {
            self.value(out, depth)?;
            first = false;
        }
        out.push(b']');
        Some(())
    }

    /// Steps over the end, or over the comma before the next element.
    fn closes(&mut self, end: u8, first: bool) -> Option<bool> {
        if self.peek()? == end {
            self.at += 1;
            return Some(true);
        }
        if !first {
            self.expect(b',')?;
        }
        Some(false)
    }

    /// Writes the bytes of a string without its escapes. A lone surrogate becomes the three bytes that UTF-8 does not allow.
    fn string(&mut self, bytes: &mut Vec<u8>) -> Option<()> {
        self.expect(b'"')?;
        let from = begin(bytes, b'"');
        loop {
            let rest = self.json.get(self.at..)?;
            let plain = plain(rest)?;
            bytes.extend_from_slice(&rest[..plain]);
            self.at += plain + 1;
            if rest[plain] == b'"' {
                end(bytes, from);
                return Some(());
            }
            match self.next()? {
                b'b' => bytes.push(8),
                b'f' => bytes.push(12),
                b'n' => bytes.push(b'\n'),
                b'r' => bytes.push(b'\r'),
                b't' => bytes.push(b'\t'),
                b'u' => self.escape(bytes)?,
                other => bytes.push(other),
            }
        }
    }

    fn escape(&mut self, bytes: &mut Vec<u8>) -> Option<()> {
        let mut code = self.hex()?;
        if (0xd800..0xdc00).contains(&code) && self.json.get(self.at..self.at + 2) == Some(b"\\u") {
            let before = self.at;
            self.at += 2;
            match self.hex()? {
                low @ 0xdc00..0xe000 => code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00),
                _ => self.at = before,
            }
        }
        match char::from_u32(code) {
            Some(char) => bytes.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
            None => bytes.extend([
                0xe0 | (code >> 12) as u8,
                0x80 | (code >> 6 & 0x3f) as u8,
                0x80 | (code & 0x3f) as u8,
            ]),
        }
        Some(())
    }

    fn hex(&mut self) -> Option<u32> {
        (0..4).try_fold(0, |code, _| {
            Some(code * 16 + char::from(self.next()?).to_digit(16)?)
        })
    }

    /// Writes a number in one spelling, whatever its size: `1`, `1.0` and `10e-1` are the same.
    fn number(&mut self, out: &mut Vec<u8>) -> Option<()> {
        let negative = self.json.get(self.at) == Some(&b'-');
        self.at += usize::from(negative);
        let mut digits: SmallVec<[u8; 32]> = SmallVec::new();
        let mut scale = 0_i64;
        let mut after_point = false;
        while let Some(&byte) = self.json.get(self.at) {
            match byte {
                b'0'..=b'9' => {
                    digits.push(byte);
                    scale -= i64::from(after_point);
                }
                b'.' if !after_point => after_point = true,
                _ => break,
            }
            self.at += 1;
        }
        if digits.is_empty() {
            return None;
        }
        if matches!(self.json.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            let start = self.at;
            while matches!(self.json.get(self.at), Some(b'0'..=b'9' | b'+' | b'-')) {
                self.at += 1;
            }
            let exponent = std::str::from_utf8(&self.json[start..self.at]).ok()?;
            // An exponent beyond 64 bits is hashed as it is written, with the whole value.
            scale = scale.checked_add(exponent.parse().ok()?)?;
        }
        while digits.last() == Some(&b'0') {
            digits.pop();
            scale = scale.checked_add(1)?;
        }
        let leading = digits.iter().take_while(|&&digit| digit == b'0').count();
        let from = begin(out, b'0');
        if leading == digits.len() {
            out.push(b'0');
        } else {
            out.extend(negative.then_some(b'-'));
            out.extend_from_slice(&digits[leading..]);
            // Writing to memory does not fail.
            let _ = write!(out, "e{scale}");
        }
        end(out, from);
        Some(())
    }

    fn word(&mut self, out: &mut Vec<u8>, word: &'static [u8]) -> Option<()> {
        self.json
            .get(self.at..)?
            .starts_with(word)
            .then(|| self.at += word.len())?;
        out.push(word[0]);
        Some(())
    }

    /// The next byte that is no blank, without stepping over it.
    fn peek(&mut self) -> Option<u8> {
        while matches!(self.json.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        self.json.get(self.at).copied()
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn next(&mut self) -> Option<u8> {
        let byte = *self.json.get(self.at)?;
        self.at += 1;
        Some(byte)
    }
}

/// How many bytes of a string come before its end or its next escape.
fn plain(rest: &[u8]) -> Option<usize> {
    let ends = |byte: &u8| matches!(byte, b'"' | b'\\');
    let mut at = 0;
    // A block at a time, as a whole: the processor compares its bytes at once.
    for block in rest.as_chunks::<32>().0 {
        if block.iter().fold(false, |found, byte| found | ends(byte)) {
            break;
        }
        at += block.len();
    }
    Some(at + rest[at..].iter().position(ends)?)
}

/// What stands before the bytes of a text: its kind and its length.
const PREFIX: usize = 1 + size_of::<u64>();

/// The length comes first, so that no text runs into what follows it. Says where the text begins; [`end`] writes the length.
fn begin(out: &mut Vec<u8>, kind: u8) -> usize {
    out.push(kind);
    out.extend_from_slice(&0_u64.to_be_bytes());
    out.len()
}

fn end(out: &mut [u8], from: usize) {
    let length = ((out.len() - from) as u64).to_be_bytes();
    out[from - length.len()..from].copy_from_slice(&length);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> [u8; 16] {
        of_type_and_data(Some("t"), Some(json))
    }

    /// §4.12: JSON that was written anew is equal.
    #[test]
    fn spelling_does_not_matter() {
        for (a, b) in [
            (
                r#"{"a":1,"b":[true,null]}"#,
                "{ \"b\" : [ true , null ] ,\n\"a\" : 1 }",
            ),
            (r#""\u00e9\ud83d\ude00\/""#, r#""é😀/""#),
            (r#"{"\u0061":{}}"#, r#"{"a":{}}"#),
            ("[1.0,-0,100,0.50]", "[1,0,1e2,5E-1]"),
            (
                "123456789012345678901234567890",
                "1.2345678901234567890123456789e29",
            ),
        ] {
            assert_eq!(of(a), of(b), "{a} {b}");
        }
    }

    /// §4.12: they are stored, and compared with what a later version of the crate makes of a delivery.
    #[test]
    fn they_are_the_same_in_every_version() {
        for (json, print) in [
            (
                r#"{"b":[1.50,-0,{"z":"\u00e9","a":null}],"a":"x"}"#,
                "5272f3f595773f85c3196ef93a5fe1d9",
            ),
            ("[]", "667123d485dcbff3590566512cf652b1"),
            (r#""\ud800""#, "7898f5aaab6572d90814f2e6f7cc1520"),
        ] {
            let made = of_type_and_data(Some("payment.succeeded"), Some(json));
            assert_eq!(hex::encode(made), print, "{json}");
        }
    }

    /// §4.12: wherever in a long string the escape stands.
    #[test]
    fn an_escape_is_the_same_as_what_it_stands_for() {
        let ends = "y".repeat(40);
        for before in (0..70).map(|n| "x".repeat(n)) {
            let escaped = of(&format!(r#""{before}\u0061{ends}""#));
            assert_eq!(escaped, of(&format!(r#""{before}a{ends}""#)));
            assert_ne!(escaped, of(&format!(r#""{before}b{ends}""#)));
        }
    }

    /// §4.12: members of one name keep their order, and every object is sorted by itself.
    #[test]
    fn members_are_sorted_at_every_depth() {
        let sorted = r#"{"a":{"c":1,"d":[{"x":1,"y":2}]},"a":3,"b":0}"#;
        assert_eq!(
            of(r#"{"b":0,"a":{"d":[{"y":2,"x":1}],"c":1},"a":3}"#),
            of(sorted)
        );
        assert_ne!(
            of(r#"{"b":0,"a":3,"a":{"d":[{"y":2,"x":1}],"c":1}}"#),
            of(sorted)
        );
    }

    /// §4.12: other content is other content.
    #[test]
    fn content_matters() {
        let all = [
            "1",
            "-1",
            "10",
            "0",
            "1e1000",
            "\"1\"",
            "true",
            "false",
            "null",
            "[]",
            "{}",
            "[[]]",
            "[1,2]",
            "[2,1]",
            "[12]",
            r#"{"a":1}"#,
            r#"{"a":2}"#,
            r#"{"b":1}"#,
            r#"{"a":{"b":1}}"#,
            r#"{"a":1,"a":2}"#,
            r#"{"a":2,"a":1}"#,
            r#""\ud800""#,
            r#""\udfff""#,
            r#""\ud800\ud800""#,
            r#""""#,
            r#""\u0000""#,
            "12345678901234567890",
            "12345678901234567891",
            "1e99999999999999999999",
        ];
        for (i, a) in all.iter().enumerate() {
            for b in &all[i + 1..] {
                assert_ne!(of(a), of(b), "{a} {b}");
            }
        }
        assert_ne!(
            of_type_and_data(Some("t"), None),
            of_type_and_data(Some("t"), Some("null"))
        );
        assert_ne!(
            of_type_and_data(None, None),
            of_type_and_data(Some(""), None)
        );
        assert_ne!(
            of_type_and_data(Some("a"), None),
            of_type_and_data(Some("b"), None)
        );
    }

    /// §4.12. Depth costs no stack and refuses nothing; what is no JSON does not panic.
    #[test]
    fn deep_or_broken() {
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert_eq!(of(&deep(100_000)), of(&deep(100_000)));
        assert_ne!(of(&deep(100_000)), of(&deep(100_001)));
        for broken in [
            "",
            "{",
            "[",
            "\"",
            "{\"a\"",
            "{\"a\":",
            "[1",
            "\"\\u12",
            "-",
            "1e",
            "tru",
            "{1:2}",
            "\"\\ud800\\u",
        ] {
            of(broken);
        }
    }
}
