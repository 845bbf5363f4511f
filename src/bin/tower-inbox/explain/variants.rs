//! What may have been signed instead: the body before somebody changed it, and keys as somebody else decodes them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tower_inbox::verify::{KeyEncoding, Secret};

/// Bodies that this one may have been, each with what happened to it then.
pub(super) fn bodies(body: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let mut all: Vec<(&'static str, Vec<u8>)> = Vec::new();
    let mut add = |what, variant: Vec<u8>| {
        if variant != body && !all.iter().any(|(_, other)| *other == variant) {
            all.push((what, variant));
        }
    };
    let added = "a trailing newline was added";
    if let Some(shorter) = body.strip_suffix(b"\r\n") {
        add(added, shorter.to_vec());
    }
    if let Some(shorter) = body.strip_suffix(b"\n") {
        add(added, shorter.to_vec());
    }
    add("a trailing newline was removed", [body, b"\n"].concat());
    add("a trailing newline was removed", [body, b"\r\n"].concat());
    add(
        "blanks around the body were added",
        body.trim_ascii().to_vec(),
    );
    let text = String::from_utf8_lossy(body);
    let unix = text.replace("\r\n", "\n");
    add(
        "line ends were changed from CRLF to LF",
        unix.replace('\n', "\r\n").into_bytes(),
    );
    add("line ends were changed from LF to CRLF", unix.into_bytes());
    add(
        "a byte order mark was added",
        body.strip_prefix("\u{feff}".as_bytes())
            .unwrap_or(body)
            .to_vec(),
    );
    add(
        "a byte order mark was removed",
        ["\u{feff}".as_bytes(), body].concat(),
    );
    if let Ok(value) = serde_json::from_slice::<Value>(body) {
        const AGAIN: &str = "the JSON was parsed and written again";
        let layouts = [
            ("", ",", ":"),
            ("", ", ", ": "),
            ("  ", ",", ": "),
            ("    ", ",", ": "),
            ("\t", ",", ": "),
        ];
        for (indent, comma, colon) in layouts {
            let written = relaid(&text, indent, comma, colon);
            // As it was, with other escapes, and with sorted members.
            for (from, to) in [("", ""), ("\\/", "/"), ("/", "\\/")] {
                let written = if from.is_empty() {
                    written.clone()
                } else {
                    written.replace(from, to)
                };
                add(AGAIN, format!("{written}\n").into_bytes());
                add(AGAIN, escaped(&written).into_bytes());
                add(AGAIN, unescaped(&written).into_bytes());
                add(AGAIN, written.into_bytes());
            }
            // Text without escapes, and sorted members, as this library's own parser has them.
            let sorted = relaid(&value.to_string(), indent, comma, colon);
            add(AGAIN, escaped(&sorted).into_bytes());
            add(AGAIN, sorted.into_bytes());
        }
    }
    add(
        "the body had been read before and was empty then",
        Vec::new(),
    );
    all
}

/// JSON with other blanks between its parts, and everything else as it was.
fn relaid(json: &str, indent: &str, comma: &str, colon: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let (mut depth, mut quoted, mut skip) = (0_usize, false, false);
    let newline = |out: &mut String, depth: usize| {
        if !indent.is_empty() {
            out.push('\n');
            out.extend(std::iter::repeat_n(indent, depth));
        }
    };
    let mut chars = json.chars().peekable();
    while let Some(char) = chars.next() {
        if quoted {
            out.push(char);
            quoted = skip || char != '"';
            skip = !skip && char == '\\';
            continue;
        }
        match char {
            ' ' | '\t' | '\r' | '\n' => {}
            '{' | '[' => {
                out.push(char);
                while chars.next_if(char::is_ascii_whitespace).is_some() {}
                if chars.peek().is_some_and(|next| !matches!(next, '}' | ']')) {
                    depth += 1;
                    newline(&mut out, depth);
                } else {
                    out.extend(chars.next());
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                newline(&mut out, depth);
                out.push(char);
            }
            ',' => {
                out.push_str(comma);
                newline(&mut out, depth);
            }
            ':' => out.push_str(colon),
            _ => {
                quoted = char == '"';
                out.push(char);
            }
        }
    }
    out
}

/// What is not ASCII as `\uXXXX`, as some writers of JSON have it.
fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for char in json.chars() {
        if char.is_ascii() {
            out.push(char);
        } else {
            for unit in char.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

/// JSON with `\uXXXX` as the character that it stands for, where that may stand in a string as it is.
fn unescaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let (char, len) = match (unit(rest), rest.get(6..).and_then(unit)) {
            (Some(high @ 0xd800..=0xdbff), Some(low @ 0xdc00..=0xdfff)) => {
                let pair = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                (char::from_u32(pair), 12)
            }
            (Some(unit), _) => (char::from_u32(unit), 6),
            // With the character that it escapes, which may be another backslash.
            (None, _) => (None, 2),
        };
        // A lone surrogate is no character.
        match char.filter(|char| !matches!(char, '\0'..='\x1f' | '"' | '\\')) {
            Some(char) => {
                out.push(char);
                rest = &rest[len..];
            }
            None => {
                let (escape, behind) = rest.split_at_checked(2).unwrap_or((rest, ""));
                out.push_str(escape);
                rest = behind;
            }
        }
    }
    out.push_str(rest);
    out
}

/// The UTF-16 unit of a `\uXXXX` at the start.
fn unit(json: &str) -> Option<u32> {
    let digits = json.strip_prefix("\\u")?.get(..4)?;
    let are_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    are_hex.then(|| u32::from_str_radix(digits, 16).ok())?
}

/// The same secret as another decoding would have it, each with what its text then is.
pub(super) fn keys(key: KeyEncoding, secret: &Secret) -> Vec<(&'static str, Secret)> {
    let texts: Vec<Vec<u8>> = match key {
        KeyEncoding::Text => vec![secret.expose().to_vec()],
        KeyEncoding::Hex => vec![
            hex::encode(secret.expose()).into_bytes(),
            hex::encode_upper(secret.expose()).into_bytes(),
        ],
        // With the prefix and without: which one it was is not known any more.
        _ => {
            let base64 = STANDARD.encode(secret.expose());
            vec![
                base64.clone().into_bytes(),
                format!("whsec_{base64}").into_bytes(),
            ]
        }
    };
    let mut all = Vec::new();
    for text in texts {
        let Ok(text) = String::from_utf8(text) else {
            continue;
        };
        let bare = text.strip_prefix("whsec_").unwrap_or(&text).to_owned();
        let trimmed = text.trim().to_owned();
        let tries = [
            (
                "the bytes of its text as they are",
                Secret::text(text.clone()),
            ),
            (
                "its text without `whsec_`, not decoded",
                Secret::text(bare.clone()),
            ),
            (
                "base64, decoded (`whsec_` cut off)",
                Secret::whsec(trimmed.clone()),
            ),
            ("hexadecimal, decoded", Secret::hex(bare)),
            (
                "its text without the blanks around it",
                Secret::text(trimmed),
            ),
        ];
        for (what, other) in tries {
            if let Ok(other) = other
                && other.expose() != secret.expose()
            {
                all.push((what, other));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts() {
        let json = r#"{ "b":1 , "a": [ ], "c":{"d": "x: {, \" "}}"#;
        assert_eq!(
            relaid(json, "", ",", ":"),
            r#"{"b":1,"a":[],"c":{"d":"x: {, \" "}}"#
        );
        assert_eq!(
            relaid(json, "", ", ", ": "),
            r#"{"b": 1, "a": [], "c": {"d": "x: {, \" "}}"#
        );
        let pretty = "{\n  \"b\": 1,\n  \"a\": [],\n  \"c\": {\n    \"d\": \"x: {, \\\" \"\n  }\n}";
        assert_eq!(relaid(json, "  ", ",", ": "), pretty);
        assert_eq!(escaped("\"é😀\""), r#""\u00e9\ud83d\ude00""#);
        assert_eq!(unescaped(r#""\u00e9\uD83D\ude00x\u0041""#), "\"é😀xA\"");
        // What must stay escaped, what is no such escape, and what is broken.
        for same in [
            r#""\\u00e9\n\"""#,
            r#""\u0022\u005c\u000a\u001f""#,
            r#""\ud83d \ude00""#,
            r#""\u00g9\u+0e9""#,
            "\\u00",
            "é\\",
            "\\é",
        ] {
            assert_eq!(unescaped(same), same);
        }
    }
}
