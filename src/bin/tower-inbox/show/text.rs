//! Texts that somebody else wrote, made harmless: an id may hold what moves a terminal's cursor, or turns its line round.

use std::fmt::Write as _;

/// Whether a character does something to what stands around it, or shows nothing.
fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// With every active character written as `\u{…}`, on one line.
pub(crate) fn safe(text: &str) -> String {
    escaped(text, |_| false)
}

/// The same, with line ends and tabs left as they are.
pub(crate) fn safe_lines(text: &str) -> String {
    escaped(text, |c| matches!(c, '\n' | '\t'))
}

fn escaped(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_active(c) && !keep(c) {
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// As one word for a shell, on one line: whatever a producer wrote into it, whoever copies it runs nothing of it. Active
/// characters are written as bash, zsh and ksh read them.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    if !text.chars().any(is_active) {
        return format!("'{}'", text.replace('\'', "'\\''"));
    }
    let mut out = String::from("$'");
    for c in text.chars() {
        let _ = match c {
            '\'' | '\\' => write!(out, "\\{c}"),
            c if !is_active(c) => write!(out, "{c}"),
            c if u32::from(c) > 0xffff => write!(out, "\\U{:08x}", u32::from(c)),
            c => write!(out, "\\u{:04x}", u32::from(c)),
        };
    }
    out.push('\'');
    out
}

/// JSON with every active character as `\uXXXX`, which is the same JSON: such characters stand in its texts only.
pub(crate) fn json_safe(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if is_active(c) && c != '\n' {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_on_a_terminal_is_written_out_and_the_rest_stays() {
        let hostile = "a\u{1b}[31mb\u{9b}2J\u{202e}c\u{2066}d\u{e0041}\r\n";
        assert_eq!(
            safe(hostile),
            "a\\u{1b}[31mb\\u{9b}2J\\u{202e}c\\u{2066}d\\u{e0041}\\u{d}\\u{a}"
        );
        assert_eq!(safe_lines("a\n\tb\r"), "a\n\tb\\u{d}");
        assert_eq!(safe("évènement 数 😀 e\u{301}"), "évènement 数 😀 e\u{301}");
    }

    #[test]
    fn what_is_copied_into_a_shell_is_one_word() {
        for (text, word) in [
            ("evt_1", "evt_1"),
            ("", "''"),
            ("a b", "'a b'"),
            ("$(reboot)", "'$(reboot)'"),
            ("it's", "'it'\\''s'"),
            (
                "a\n'\\\u{202e}\u{e0041}",
                "$'a\\u000a\\'\\\\\\u202e\\U000e0041'",
            ),
        ] {
            assert_eq!(quoted(text), word);
        }
    }

    #[test]
    fn json_stays_the_same_json() {
        let value = serde_json::json!({"id": "a\u{1b}\u{9b}\u{202e}\u{e0041}\u{7f}é😀\"\\"});
        let safe = json_safe(&value.to_string());
        assert!(!safe.chars().any(is_active), "{safe}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&safe).unwrap(),
            value
        );
    }
}
