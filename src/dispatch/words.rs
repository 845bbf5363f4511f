//! What is kept of a handler's answer beside what it refused or failed: its status, and its own words where a source wants them.

use std::borrow::Cow;

use http::{Response, StatusCode};

use crate::kept::Collected;
use crate::source::SourceState;

/// What the dead letter of a handler's own verdict says; its status is beside it.
const VERDICT: &str = "the handler refused it";
const OF_OTHERS: &str = "the handler refused another event of its request";

/// A terminal verdict, as its dead letter has it.
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) words: Cow<'static, str>,
}

impl Refusal {
    pub(super) fn of<R>(source: &SourceState, response: &Response<R>) -> Self {
        Self {
            status: response.status(),
            words: words(source, VERDICT, response),
        }
    }

    /// For the other events of its request: what was said is about the one that was refused, and is erased with that.
    pub(super) fn of_others(&self) -> Self {
        Self {
            status: self.status,
            words: OF_OTHERS.into(),
        }
    }
}

/// What it was, and behind it the beginning of the answer's body, if the source keeps that.
pub(crate) fn words<R>(
    source: &SourceState,
    what: &'static str,
    response: &Response<R>,
) -> Cow<'static, str> {
    let body = response.extensions().get::<Collected>();
    let (Some(limit), Some(Collected(body))) = (source.failure_answers(), body) else {
        return what.into();
    };
    match said(body, limit) {
        Some(said) => format!("{what}: {said}").into(),
        None => what.into(),
    }
}

/// As text on one line, which every column takes: what is no text is told by its size.
fn said(body: &[u8], limit: usize) -> Option<String> {
    if body.is_empty() {
        return None;
    }
    let cut = &body[..body.len().min(limit)];
    let text = match std::str::from_utf8(cut) {
        Ok(text) => text,
        // Cut in the middle of a character.
        Err(error) if cut.len() < body.len() && error.error_len().is_none() => {
            std::str::from_utf8(&cut[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return Some(format!("{} bytes that are no text", body.len())),
    };
    let mut said = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() {
            true => said.extend(character.escape_default()),
            false => said.push(character),
        }
    }
    if text.len() < body.len() {
        said.push('…');
    }
    Some(said)
}

#[cfg(test)]
mod tests {
    use super::said;

    #[test]
    fn words_are_text_of_one_line_and_bounded() {
        let shown = |body: &[u8], limit| said(body, limit).unwrap_or_default();
        assert_eq!(said(b"", 100), None);
        assert_eq!(shown(b"no such account", 100), "no such account");
        assert_eq!(shown(b"no such account", 7), "no such\u{2026}");
        assert_eq!(shown("h\u{e9}h\u{e9}".as_bytes(), 5), "h\u{e9}h\u{2026}");
        assert_eq!(shown(b"a\r\nb\0\x1b[2J", 100), "a\\r\\nb\\u{0}\\u{1b}[2J");
        assert_eq!(shown(b"\x1f\x8b\x08", 100), "3 bytes that are no text");
        assert_eq!(shown(b"a\xff\xff\xffb", 3), "5 bytes that are no text");
        assert_eq!(
            shown(&[0; 10], 10).len(),
            50,
            "at most so many times as long"
        );
    }
}
