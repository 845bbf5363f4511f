//! What `explain` says, for people and as JSON. Neither has a secret, a received or a computed signature in it.

use std::fmt::Write as _;

use tower_inbox::clock::Timestamp;
use tower_inbox::verify::Refusal;

use super::args::Args;
use super::cause::Cause;

/// Of the signed message, at its beginning and at its end: where the differences are that one can see.
const SHOWN: (usize, usize) = (240, 80);

pub(super) struct Report {
    preset: String,
    now: Timestamp,
    body: usize,
    notes: Vec<String>,
    pub(super) found: Vec<String>,
    pub(super) candidates: usize,
    pub(super) claimed_at: Option<Timestamp>,
    pub(super) message: Option<Vec<u8>>,
    pub(super) label: Option<String>,
    pub(super) refusal: Option<Refusal>,
    pub(super) cause: Option<Cause>,
}

impl Report {
    pub(super) fn new(args: &Args, notes: &[String]) -> Self {
        Self {
            preset: args.name.clone(),
            now: args.now,
            body: args.request.body.len(),
            notes: notes.to_vec(),
            found: Vec::new(),
            candidates: 0,
            claimed_at: None,
            message: None,
            label: None,
            refusal: None,
            cause: None,
        }
    }

    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |name: &str, text: &str| {
            let _ = writeln!(out, "{name:<10}{text}");
        };
        line("scheme", &self.preset);
        line("body", &format!("{} bytes", self.body));
        for note in &self.notes {
            line("capture", note);
        }
        for found in &self.found {
            line("found", found);
        }
        if self.candidates > 0 {
            line(
                "found",
                &format!("{} signature(s) of the right form", self.candidates),
            );
        }
        if let Some(at) = self.claimed_at {
            let (from, way) = if at > self.now {
                (at.since(self.now), "ahead")
            } else {
                (self.now.since(at), "ago")
            };
            line(
                "found",
                &format!("signed time {}, {} s {way}", at.as_secs(), from.as_secs()),
            );
        }
        if let Some(message) = &self.message {
            line(
                "expected",
                &format!("a signature over these {} bytes:", message.len()),
            );
            line("", &shown(message));
        }
        match (&self.refusal, &self.label) {
            (Some(refusal), _) => line(
                "verdict",
                &format!("REFUSED ({}): {refusal}", refusal.kind().as_str()),
            ),
            (None, label) => line(
                "verdict",
                &format!("VERIFIES, by {}", label.as_deref().unwrap_or_default()),
            ),
        }
        if let Some(cause) = &self.cause {
            line(
                if self.refusal.is_some() {
                    "likely"
                } else {
                    "note"
                },
                &cause.text,
            );
        }
        out
    }

    pub(super) fn json(&self) -> String {
        serde_json::json!({
            "scheme": self.preset,
            "verifies": self.refusal.is_none(),
            "secret": self.label,
            "refusal": self.refusal.as_ref().map(|refusal| refusal.kind().as_str()),
            "reason": self.refusal.as_ref().map(ToString::to_string),
            "cause": self.cause.as_ref().map(|cause| cause.kind),
            "explanation": self.cause.as_ref().map(|cause| &cause.text),
            "found": self.found,
            "candidates": self.candidates,
            "signed_at": self.claimed_at.map(Timestamp::as_secs),
            "now": self.now.as_secs(),
            "message": self.message.as_deref().map(shown),
            "message_bytes": self.message.as_ref().map(Vec::len),
            "body_bytes": self.body,
            "capture": self.notes,
        })
        .to_string()
    }
}

/// Escaped, and without its middle.
fn shown(message: &[u8]) -> String {
    let (start, end) = SHOWN;
    if message.len() <= start + end {
        return message.escape_ascii().to_string();
    }
    let (first, last) = (&message[..start], &message[message.len() - end..]);
    let left_out = message.len() - start - end;
    format!(
        "{} [… {left_out} bytes …] {}",
        first.escape_ascii(),
        last.escape_ascii()
    )
}
