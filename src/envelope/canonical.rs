//! Fingerprints of content: of the raw body, or of a JSON value whatever way it is written.

use sha2::{Digest as _, Sha256};

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
            let mut canonical = Vec::with_capacity(json.len());
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

impl Reader<'_> {
    fn value(&mut self, out: &mut Vec<u8>, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match self.peek()? {
            b'{' => self.object(out, depth),
            b'[' => self.array(out, depth),
            b'"' => {
                let text = self.string()?;
                write(out, b'"', &text);
                Some(())
            }
            b't' => self.word(out, b"true"),
            b'f' => self.word(out, b"false"),
            b'n' => self.word(out, b"null"),
            _ => {
                let number = self.number()?;
                write(out, b'0', &number);
                Some(())
            }
        }
    }

    fn object(&mut self, out: &mut Vec<u8>, depth: usize) -> Option<()> {
        self.at += 1;
        let mut members: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        while !self.closes(b'}', members.is_empty())? {
            self.peek()?;
            let name = self.string()?;
            self.expect(b':')?;
            let mut value = Vec::new();
            self.value(&mut value, depth)?;
            members.push((name, value));
        }
        // Stable: members of one name keep their order, since readers differ in which one counts.
        members.sort_by(|a, b| a.0.cmp(&b.0));
        out.push(b'{');
        for (name, value) in &members {
            write(out, b'"', name);
            out.extend_from_slice(value);
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

    /// The bytes of a string without its escapes. A lone surrogate becomes the three bytes that UTF-8 does not allow.
    fn string(&mut self) -> Option<Vec<u8>> {
        self.expect(b'"')?;
        let mut bytes = Vec::new();
        loop {
            let rest = self.json.get(self.at..)?;
            let plain = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
            bytes.extend_from_slice(&rest[..plain]);
            self.at += plain + 1;
            if rest[plain] == b'"' {
                return Some(bytes);
            }
            match self.next()? {
                b'b' => bytes.push(8),
                b'f' => bytes.push(12),
                b'n' => bytes.push(b'\n'),
                b'r' => bytes.push(b'\r'),
                b't' => bytes.push(b'\t'),
                b'u' => self.escape(&mut bytes)?,
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

    /// A number in one spelling, whatever its size: `1`, `1.0` and `10e-1` are the same.
    fn number(&mut self) -> Option<Vec<u8>> {
        let negative = self.json.get(self.at) == Some(&b'-');
        self.at += usize::from(negative);
        let mut digits = Vec::new();
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
        if leading == digits.len() {
            return Some(b"0".to_vec());
        }
        let sign: &[u8] = if negative { b"-" } else { b"" };
        Some([sign, &digits[leading..], b"e", scale.to_string().as_bytes()].concat())
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

/// The length comes first, so that no text runs into what follows it.
fn write(out: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    out.push(kind);
    out.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
    out.extend_from_slice(bytes);
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
