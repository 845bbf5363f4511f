//! Answers to producers that try out an endpoint.

use bytes::Bytes;

use super::HandshakeReply;
use super::error::{EnvelopeError, Field};
use super::mapping::{Handshake, Place};
use super::read::Request;
use crate::verify::{Algorithm, Verified, json};

impl Request<'_, '_> {
    /// The answer, if this is the producer's handshake; every other delivery is an event.
    pub(super) fn handshake(
        &self,
        how: Handshake,
        verified: &Verified,
    ) -> Result<Option<HandshakeReply>, EnvelopeError> {
        let (kind, name, token) = match how {
            Handshake::SlackChallenge => ("type", "url_verification", "challenge"),
            Handshake::ZoomValidation => ("event", "endpoint.url_validation", "payload.plainToken"),
        };
        let field = Field::Handshake;
        // A kind that is no text is some event's own member.
        let kind = self.value(field, &Place::json(kind))?.and_then(json::text);
        if kind.as_deref() != Some(name) {
            return Ok(None);
        }
        let place = Place::json(token);
        let token = self
            .text(field, &place)?
            .ok_or_else(|| EnvelopeError::new(field, &place, "is missing"))?;
        // Sent back, and for Zoom signed: only what a token looks like, so that nothing else can be had signed.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~+/=".contains(&byte);
        if token.is_empty() || token.len() > 255 || !token.bytes().all(plain) {
            return Err(EnvelopeError::new(
                field,
                &place,
                "is no token of at most 255 letters and digits",
            ));
        }
        Ok(Some(match how {
            Handshake::SlackChallenge => HandshakeReply {
                content_type: "text/plain; charset=utf-8",
                body: Bytes::from(token.into_owned().into_bytes()),
            },
            Handshake::ZoomValidation => {
                let mac = hex::encode(
                    verified
                        .secret()
                        .mac(Algorithm::HmacSha256, &[token.as_bytes()]),
                );
                let body = format!(r#"{{"plainToken":"{token}","encryptedToken":"{mac}"}}"#);
                HandshakeReply {
                    content_type: "application/json",
                    body: Bytes::from(body),
                }
            }
        }))
    }
}
