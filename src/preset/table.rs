//! The table of presets. What a producer's page does not say is marked so.

use std::time::Duration;

use http::HeaderName;

use super::{Answers, Codes, Preset};
use crate::envelope::{Compared, ContentPolicy, Handshake, Lookup, Mapping, Place};
use crate::verify::{
    Algorithm, Encoding, IdForm, KeyEncoding, Part, Pick, Scheme, SchemeBuilder, SignatureAt,
    TimestampAt, Unit,
};

const ANY_2XX: Codes = &[200..=299];

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

const fn times(n: u32, unit: Duration) -> Duration {
    // A product of constants; an overflow would fail the build.
    match unit.checked_mul(n) {
        Some(duration) => duration,
        None => panic!("too long"),
    }
}

impl Preset {
    /// Kudos CRM: two signatures during a rotation; retries over 1 h 42 min 30 s; a replay sends old events again under
    /// the event ids they first had.
    ///
    /// **Signed:**
    /// - `X-Kudos-Signature: t=<unix s>,v1=<hex>`, with one more `v1` during a rotation; blanks around the commas do
    ///   not matter, other fields are not looked at
    /// - HMAC-SHA-256 over `<t>.<raw body>`, `<t>` as it is in the header
    /// - key: the bytes of the secret's text as they are
    ///
    /// **Event:**
    /// - id: `event_id` of the body, a string, so that the signature covers it; `X-Kudos-Event-Id` must agree if it
    ///   is sent
    /// - type: `event_type` of the body; `subscription.replay_started` and `subscription.replay_completed` are the
    ///   producer's own messages and no events
    /// - order: `correlation_id` (a string) and `sequence` (an integer from 1 on) of the body; a sequence without a
    ///   correlation id is refused
    /// - told on, and not signed: `X-Kudos-Delivery-Attempt`, `X-Kudos-First-Sent-At` (RFC 3339) and
    ///   `X-Kudos-Original-Event-Id`
    /// - a known id with another type or other `data` is refused with 422
    ///
    /// ```json
    /// {"event_id": "evt_1", "event_type": "invoice.paid", "correlation_id": "inv-7", "sequence": 1, "data": {"amount": 5}}
    /// ```
    pub const KUDOS: Self = Self {
        name: "kudos",
        documented_at: "the producer's page on retries, idempotency and rotation",
        key: KeyEncoding::Text,
        patience: times(8, SECOND),
        // 1 h 42 min 30 s and 25 % jitter.
        retry_span: times(7_688, SECOND),
        // Historical events can be sent again; their page names no end, so that the retention decides.
        replay_window: Duration::ZERO,
        // Its table of status codes. 410 also pauses the subscription; redirects are never followed.
        answers: Answers::success(ANY_2XX)
            .stop(&[300..=407, 409..=428, 430..=499])
            .retry(&[408..=408, 429..=429, 500..=599]),
        stores_answers: false,
        fence_exempt: &[],
        scheme: || stripe_like("kudos", "x-kudos-signature").trim(),
        mapping: || {
            body_event_id("x-kudos-event-id")
                .with_event_type(Place::json("event_type"))
                .with_correlation_id(Place::json("correlation_id"))
                .with_sequence(Place::json("sequence"))
                .with_attempt("x-kudos-delivery-attempt")
                .with_first_sent_at("x-kudos-first-sent-at")
                .with_replay_of("x-kudos-original-event-id")
                .with_replay_types(
                    "subscription.replay_started",
                    "subscription.replay_completed",
                )
                .with_content_policy(ContentPolicy::Reject(Compared::TypeAndData))
        },
    };

    /// Events with correlation id and sequence, applied in order; an answer within 5 minutes, or a dead letter.
    ///
    /// **Signed:**
    /// - `X-Signature: t=<unix s>,v1=<hex>`, with one more `v1` during a rotation; blanks around the commas do not
    ///   matter, other fields are not looked at
    /// - HMAC-SHA-256 over `<t>.<raw body>`, `<t>` as it is in the header
    /// - key: the bytes of the secret's text as they are
    ///
    /// **Event:**
    /// - id: `event_id` of the body, a string, so that the signature covers it; `X-Event-Id` must agree if it is sent
    /// - type: `event_type` of the body
    /// - order: `correlation_id` (a string) and `sequence` (an integer from 1 on) of the body; `X-Correlation-Id` and
    ///   `X-Sequence` must agree if they are sent; a sequence without a correlation id is refused, and an event without
    ///   both has no place in an order
    /// - a known id with another type or other `data` is refused with 422
    ///
    /// ```json
    /// {"event_id": "evt_1", "event_type": "order.paid", "correlation_id": "order-7", "sequence": 2, "data": {"amount": 5}}
    /// ```
    pub const SEQUENCED: Self = Self {
        name: "sequenced",
        documented_at: "the strategy of guaranteed consistency",
        key: KeyEncoding::Text,
        // Not said there; what most producers grant.
        patience: times(10, SECOND),
        // 1 + 4 + 16 + 64 + 300 s: then the 5 minutes of its recovery window are spent.
        retry_span: times(385, SECOND),
        replay_window: Duration::ZERO,
        // Delivered "on 200", again "on timeout/5xx"; 202 is "retry later". Of other codes it says nothing.
        answers: Answers::success(&[200..=200]).retry(&[202..=202, 500..=599]),
        stores_answers: false,
        fence_exempt: &[],
        scheme: || stripe_like("sequenced", "x-signature").trim(),
        mapping: || {
            body_event_id("x-event-id")
                .with_event_type(Place::json("event_type"))
                .with_correlation_id(
                    Lookup::from(Place::json("correlation_id")).agreeing_with("x-correlation-id"),
                )
                .with_sequence(Lookup::from(Place::json("sequence")).agreeing_with("x-sequence"))
                .with_content_policy(ContentPolicy::Reject(Compared::TypeAndData))
        },
    };

    /// The coordination brief: a signed UUID in `Idempotency-Key`, replays for 72 hours.
    ///
    /// **Signed:**
    /// - `X-Signature: t=<unix s>,v1=<hex>`, with one more `v1` during a rotation; blanks around the commas do not
    ///   matter, other fields are not looked at
    /// - HMAC-SHA-256 over `<t>.<id>.<raw body>`: `<t>` as it is in the header, `<id>` the UUID of `Idempotency-Key`
    ///   in lower case and without quotes
    /// - key: the bytes of the secret's text as they are
    ///
    /// **Event:**
    /// - id: the UUID in `Idempotency-Key`, bare or quoted, in either case; the signature covers it, as a part of the
    ///   message
    /// - type: `event_type` of the body
    /// - order: none
    /// - a known id with another raw body is refused with 422
    pub const BRIEF: Self = Self {
        name: "brief",
        documented_at: "the coordination brief, sections 1 to 6",
        key: KeyEncoding::Text,
        // Not said there; what most producers grant.
        patience: times(10, SECOND),
        // 30 + 60 + 120 + 240 + 480 s and 20 % jitter.
        retry_span: times(1_116, SECOND),
        replay_window: times(72, HOUR),
        // Its section 3 lists them one by one.
        answers: Answers::success(ANY_2XX)
            .stop(&[300..=399, 400..=401, 403..=404, 409..=410, 422..=422])
            .retry(&[408..=408, 425..=425, 429..=429, 500..=500, 502..=504]),
        // Its section 2: "if seen, return the stored response".
        stores_answers: true,
        fence_exempt: &[],
        scheme: || {
            stripe_like("brief", "x-signature")
                .trim()
                .id(HeaderName::from_static("idempotency-key"), IdForm::Uuid)
                .signs([
                    Part::Timestamp,
                    ".".into(),
                    Part::Id,
                    ".".into(),
                    Part::Body,
                ])
        },
        mapping: || {
            Mapping::new(Lookup::from(Place::header("idempotency-key")).in_form(IdForm::Uuid))
                .with_event_type(Place::json("event_type"))
                .with_content_policy(ContentPolicy::Reject(Compared::RawBody))
        },
    };

    /// Standard Webhooks: `webhook-id`, `webhook-timestamp`, `webhook-signature`.
    ///
    /// **Signed:**
    /// - `webhook-signature: v1,<base64>`, with one more item after a blank during a rotation; items of other
    ///   versions are not looked at, so that `v1a` alone (Ed25519) is no signature here
    /// - HMAC-SHA-256 over `<webhook-id>.<webhook-timestamp>.<raw body>`, both as they are in the headers; the
    ///   timestamp is in Unix seconds
    /// - key: base64, decoded; `whsec_` in front of it is cut off first if it is there
    ///
    /// **Event:**
    /// - id: `webhook-id`; the signature covers it, as a part of the message
    /// - type: `type` of the body, or else `event_type`
    /// - order: `correlation_id` (a string) and `sequence` (an integer from 1 on) of the body, where a producer has
    ///   them; a sequence without a correlation id is refused
    pub const STANDARD: Self = Self {
        name: "standard",
        documented_at: "https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md",
        key: KeyEncoding::WHSEC,
        // "15 to 30 seconds" is recommended to producers.
        patience: times(15, SECOND),
        // The recommended schedule: 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h, 24 h.
        retry_span: times(76, HOUR),
        replay_window: Duration::ZERO,
        // "Delivery success and failure": suggested to producers, so that one of them may do otherwise. After 410 it
        // disables the endpoint.
        answers: Answers::success(ANY_2XX)
            .stop(&[410..=410])
            .retry(&[300..=409, 411..=599]),
        stores_answers: false,
        fence_exempt: &[],
        scheme: || {
            standard(
                "standard",
                "webhook-id",
                "webhook-timestamp",
                "webhook-signature",
            )
        },
        mapping: || standard_mapping("webhook-id"),
    };

    /// Svix's own names for the headers of Standard Webhooks.
    ///
    /// **Signed:**
    /// - `svix-signature: v1,<base64>`, with one more item after a blank during a rotation; items of other versions
    ///   are not looked at
    /// - HMAC-SHA-256 over `<svix-id>.<svix-timestamp>.<raw body>`, both as they are in the headers; the timestamp is
    ///   in Unix seconds
    /// - key: base64, decoded; `whsec_` in front of it is cut off first if it is there
    ///
    /// **Event:**
    /// - id: `svix-id`; the signature covers it, as a part of the message
    /// - type: `type` of the body, or else `event_type`
    /// - order: `correlation_id` (a string) and `sequence` (an integer from 1 on) of the body, where a producer has
    ///   them; a sequence without a correlation id is refused
    pub const SVIX: Self = Self {
        name: "svix",
        documented_at: "https://docs.svix.com/receiving/verifying-payloads/how-manual, https://docs.svix.com/retries",
        // Immediately, 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 10 h.
        retry_span: times(28, HOUR),
        // Its page: 2xx, and a redirect is a failure. Whether 410 stops it is not said there.
        answers: Answers::success(ANY_2XX).retry(&[300..=399]),
        scheme: || standard("svix", "svix-id", "svix-timestamp", "svix-signature"),
        mapping: || standard_mapping("svix-id"),
        ..Self::STANDARD
    };

    /// Stripe. Its events can be listed and sent again for 30 days.
    ///
    /// **Signed:**
    /// - `Stripe-Signature: t=<unix s>,v1=<hex>`, with one more `v1` during a rotation; no blanks around the commas,
    ///   and other fields (`v0`) are not looked at
    /// - HMAC-SHA-256 over `<t>.<raw body>`, `<t>` as it is in the header
    /// - key: the bytes of the secret's text as they are, `whsec_` included: nothing is decoded
    ///
    /// **Event:**
    /// - id: `id` of the body, a string, so that the signature covers it
    /// - type: `type` of the body
    /// - order: none
    pub const STRIPE: Self = Self {
        name: "stripe",
        documented_at: "https://docs.stripe.com/webhooks",
        key: KeyEncoding::Text,
        // Not said there; what most producers grant.
        patience: times(10, SECOND),
        retry_span: times(3, DAY),
        replay_window: times(30, DAY),
        // "All response codes outside this range, including 3xx": not received, and no code that stops it.
        answers: Answers::success(ANY_2XX).stop(&[]).retry(&[300..=599]),
        stores_answers: false,
        fence_exempt: &[],
        scheme: || stripe_like("stripe", "stripe-signature"),
        // The raw body is no content: it counts the webhooks that are still pending.
        mapping: || Mapping::new(Place::json("id")).with_event_type(Place::json("type")),
    };

    /// GitHub. It does not retry by itself; a delivery can be sent again for 3 days.
    ///
    /// **Signed:**
    /// - `X-Hub-Signature-256: sha256=<hex>`; the older `X-Hub-Signature` (SHA-1) is not looked at
    /// - HMAC-SHA-256 over the raw body alone: no time is signed, so that an old delivery looks like a new one
    /// - key: the bytes of the secret's text as they are
    ///
    /// **Event:**
    /// - id: `X-GitHub-Delivery`. **The signature does not cover it**: a fence on the body is needed (§6.7), which
    ///   lets `ping`, `workflow_dispatch` and `repository_dispatch` pass
    /// - type: `X-GitHub-Event`, not signed either; `ping` is the producer's own message and no event
    /// - order: none
    pub const GITHUB: Self = Self {
        name: "github",
        documented_at: "https://docs.github.com/en/webhooks/using-webhooks",
        key: KeyEncoding::Text,
        patience: times(10, SECOND),
        retry_span: Duration::ZERO,
        replay_window: times(3, DAY),
        // It does not send again by itself, whatever the answer.
        answers: Answers::success(ANY_2XX).stop(&[300..=599]).retry(&[]),
        stores_answers: false,
        fence_exempt: &["ping", "workflow_dispatch", "repository_dispatch"],
        scheme: || {
            Scheme::hmac(
                "github",
                Algorithm::HmacSha256,
                header("x-hub-signature-256"),
            )
            .pick(Pick::Prefix("sha256=".into()))
        },
        mapping: || {
            Mapping::new(Place::header("x-github-delivery"))
                .with_event_type(Place::header("x-github-event"))
                .with_control_types(["ping"])
        },
    };

    /// Shopify. Retries are eight in four hours.
    ///
    /// **Signed:**
    /// - `X-Shopify-Hmac-Sha256: <base64>`
    /// - HMAC-SHA-256 over the raw body alone: no time is signed, so that an old delivery looks like a new one
    /// - key: the bytes of the secret's text as they are
    ///
    /// **Event:**
    /// - id: `X-Shopify-Webhook-Id`. **The signature does not cover it**: a fence on the body is needed (§6.7)
    /// - type: `X-Shopify-Topic`, not signed either
    /// - order: none
    pub const SHOPIFY: Self = Self {
        name: "shopify",
        documented_at: "https://shopify.dev/docs/apps/build/webhooks, https://shopify.dev/changelog/updates-to-webhook-retry-mechanism",
        key: KeyEncoding::Text,
        patience: times(5, SECOND),
        retry_span: times(4, HOUR),
        replay_window: Duration::ZERO,
        // Anything outside the 200s is an error, 3xx too. Whether some code stops it is not said.
        answers: Answers::success(ANY_2XX).retry(&[300..=599]),
        stores_answers: false,
        fence_exempt: &[],
        scheme: || {
            Scheme::hmac(
                "shopify",
                Algorithm::HmacSha256,
                header("x-shopify-hmac-sha256"),
            )
            .encoding(Encoding::Base64)
        },
        mapping: || {
            Mapping::new(Place::header("x-shopify-webhook-id"))
                .with_event_type(Place::header("x-shopify-topic"))
        },
    };

    /// Slack's Events API. Retries while the first request is still running.
    ///
    /// **Signed:**
    /// - `X-Slack-Signature: v0=<hex>`, with `X-Slack-Request-Timestamp: <unix s>`
    /// - HMAC-SHA-256 over `v0:<timestamp>:<raw body>`, the timestamp as it is in its header
    /// - key: the bytes of the secret's text as they are
    ///
    /// **Event:**
    /// - id: `event_id` of the body, a string, so that the signature covers it
    /// - type: `type` in the object `event` of the body
    /// - order: none
    /// - a signed `url_verification` is answered with its `challenge`
    pub const SLACK: Self = Self {
        name: "slack",
        documented_at: "https://docs.slack.dev/authentication/verifying-requests-from-slack, https://docs.slack.dev/apis/events-api",
        key: KeyEncoding::Text,
        patience: times(3, SECOND),
        // At once, after 1 and after 5 minutes; with delayed events switched on, hourly for a day after that.
        retry_span: times(25, HOUR),
        replay_window: Duration::ZERO,
        // Anything but 2xx is retried, after at most two redirects; a header (`X-Slack-No-Retry`), no code, stops it.
        answers: Answers::success(ANY_2XX).stop(&[]).retry(&[400..=599]),
        stores_answers: false,
        fence_exempt: &[],
        scheme: || v0("slack", "x-slack-signature", "x-slack-request-timestamp"),
        mapping: || {
            Mapping::new(Place::json("event_id"))
                .with_event_type(Place::json("event.type"))
                .with_handshake(Handshake::SlackChallenge)
        },
    };

    /// Zoom. It sends no event id; the digest of the whole signed body, with its event time in ms, is the nearest
    /// thing.
    ///
    /// **Signed:**
    /// - `x-zm-signature: v0=<hex>`, with `x-zm-request-timestamp: <unix s>`
    /// - HMAC-SHA-256 over `v0:<timestamp>:<raw body>`, the timestamp as it is in its header
    /// - key: the bytes of the secret's text as they are
    ///
    /// **Event:**
    /// - id: SHA-256 of the raw body as hex, so that the signature covers it
    /// - type: `event` of the body
    /// - order: none
    /// - a signed `endpoint.url_validation` is answered with its token and the token's MAC
    pub const ZOOM: Self = Self {
        name: "zoom",
        documented_at: "https://developers.zoom.us/docs/api/webhooks/",
        key: KeyEncoding::Text,
        patience: times(3, SECOND),
        // Three retries, 5, 30 and 90 minutes apart; an older page says 5, 20 and 60.
        retry_span: times(125 * 60, SECOND),
        replay_window: Duration::ZERO,
        // "Either a 200 or a 204"; its pages do not agree on what follows other codes.
        answers: Answers::success(&[200..=200, 204..=204]),
        stores_answers: false,
        fence_exempt: &[],
        scheme: || v0("zoom", "x-zm-signature", "x-zm-request-timestamp"),
        mapping: || {
            Mapping::new(Place::BodyDigest)
                .with_event_type(Place::json("event"))
                .with_handshake(Handshake::ZoomValidation)
        },
    };

    /// Paddle Billing. A replay has a new notification id and the event id it had.
    ///
    /// **Signed:**
    /// - `Paddle-Signature: ts=<unix s>;h1=<hex>`, with one more `h1` during a rotation
    /// - HMAC-SHA-256 over `<ts>:<raw body>`, `<ts>` as it is in the header
    /// - key: the bytes of the secret's text as they are
    ///
    /// **Event:**
    /// - id: `event_id` of the body, a string, so that the signature covers it; `notification_id` is not looked at
    /// - type: `event_type` of the body
    /// - order: none
    pub const PADDLE: Self = Self {
        name: "paddle",
        documented_at: "https://developer.paddle.com/webhooks/signature-verification, https://developer.paddle.com/webhooks/respond-to-webhooks",
        key: KeyEncoding::Text,
        patience: times(5, SECOND),
        // 60 retries over 3 days for live accounts.
        retry_span: times(3, DAY),
        replay_window: times(90, DAY),
        // "HTTP 200": whether other 2xx count is not said. A duplicate's answer is a 200 in any case.
        answers: Answers::success(&[200..=200]),
        stores_answers: false,
        fence_exempt: &[],
        scheme: || {
            Scheme::hmac("paddle", Algorithm::HmacSha256, header("paddle-signature"))
                .split(';')
                .field('=', "h1")
                .timestamp(TimestampAt::Field("ts".into()), Unit::Seconds)
                .signs([Part::Timestamp, ":".into(), Part::Body])
        },
        mapping: || {
            Mapping::new(Place::json("event_id")).with_event_type(Place::json("event_type"))
        },
    };

    /// Linear. The signed time is in the body; the delivery's id is in a header and not signed.
    ///
    /// **Signed:**
    /// - `Linear-Signature: <hex>`
    /// - HMAC-SHA-256 over the raw body alone, which has the signed time: `webhookTimestamp`, in Unix milliseconds
    /// - key: the bytes of the secret's text as they are
    ///
    /// **Event:**
    /// - id: `Linear-Delivery`. **The signature does not cover it**: a fence on the body is needed (§6.7)
    /// - type: `type` of the body
    /// - order: none
    pub const LINEAR: Self = Self {
        name: "linear",
        documented_at: "https://linear.app/developers/webhooks",
        key: KeyEncoding::Text,
        patience: times(5, SECOND),
        // After 1 minute, 1 hour and 6 hours.
        retry_span: times(7 * 60 + 1, MINUTE),
        replay_window: Duration::ZERO,
        // "A non-200 status code" is retried, so that the first answer of a handler that says 204 is tried once more.
        answers: Answers::success(&[200..=200]).stop(&[]).retry(&[201..=599]),
        stores_answers: false,
        fence_exempt: &[],
        scheme: || {
            Scheme::hmac("linear", Algorithm::HmacSha256, header("linear-signature"))
                .timestamp(TimestampAt::Json("webhookTimestamp".into()), Unit::Millis)
        },
        mapping: || {
            Mapping::new(Place::header("linear-delivery")).with_event_type(Place::json("type"))
        },
    };

    /// Square. The URL of the subscription is signed, so the source must have it configured.
    ///
    /// **Signed:**
    /// - `x-square-hmacsha256-signature: <base64>`
    /// - HMAC-SHA-256 over `<url><raw body>`, nothing between them: the URL as it is configured at the producer,
    ///   never one that is rebuilt from the request. No time is signed, so that an old delivery looks like a new one
    /// - key: the bytes of the secret's text as they are
    ///
    /// **Event:**
    /// - id: `event_id` of the body, a string, so that the signature covers it
    /// - type: `type` of the body
    /// - order: none
    pub const SQUARE: Self = Self {
        name: "square",
        documented_at: "https://developer.squareup.com/docs/webhooks/step3validate, https://developer.squareup.com/docs/webhooks/troubleshooting",
        key: KeyEncoding::Text,
        patience: times(10, SECOND),
        retry_span: times(72, HOUR),
        replay_window: Duration::ZERO,
        // 2xx; "unsuccessful deliveries are retried". Whether some code stops it is not said.
        answers: Answers::success(ANY_2XX).retry(&[300..=599]),
        stores_answers: false,
        fence_exempt: &[],
        scheme: || {
            Scheme::hmac(
                "square",
                Algorithm::HmacSha256,
                header("x-square-hmacsha256-signature"),
            )
            .encoding(Encoding::Base64)
            .signs([Part::Url, Part::Body])
        },
        mapping: || Mapping::new(Place::json("event_id")).with_event_type(Place::json("type")),
    };

    /// Every preset.
    pub const ALL: &'static [Self] = &[
        Self::KUDOS,
        Self::SEQUENCED,
        Self::BRIEF,
        Self::STANDARD,
        Self::SVIX,
        Self::STRIPE,
        Self::GITHUB,
        Self::SHOPIFY,
        Self::SLACK,
        Self::ZOOM,
        Self::PADDLE,
        Self::LINEAR,
        Self::SQUARE,
    ];
}

/// A header by its name in lower case.
fn header(name: &'static str) -> SignatureAt {
    SignatureAt::Header(HeaderName::from_static(name))
}

/// `v0=<hex>` over `v0:<unix s>:<raw body>`.
fn v0(name: &'static str, signature: &'static str, timestamp: &'static str) -> SchemeBuilder {
    Scheme::hmac(name, Algorithm::HmacSha256, header(signature))
        .pick(Pick::Prefix("v0=".into()))
        .timestamp(
            TimestampAt::Header(HeaderName::from_static(timestamp)),
            Unit::Seconds,
        )
        .signs(["v0:".into(), Part::Timestamp, ":".into(), Part::Body])
}

/// `t=<unix s>,v1=<hex>` over `<t>.<raw body>`.
fn stripe_like(name: &'static str, signature: &'static str) -> SchemeBuilder {
    Scheme::hmac(name, Algorithm::HmacSha256, header(signature))
        .split(',')
        .field('=', "v1")
        .timestamp(TimestampAt::Field("t".into()), Unit::Seconds)
        .signs([Part::Timestamp, ".".into(), Part::Body])
}

/// `v1,<base64>`, blank-separated, over `<id>.<unix s>.<raw body>`.
fn standard(
    name: &'static str,
    id: &'static str,
    timestamp: &'static str,
    signature: &'static str,
) -> SchemeBuilder {
    Scheme::hmac(name, Algorithm::HmacSha256, header(signature))
        .encoding(Encoding::Base64)
        .split(' ')
        .field(',', "v1")
        .id(HeaderName::from_static(id), IdForm::Verbatim)
        .timestamp(
            TimestampAt::Header(HeaderName::from_static(timestamp)),
            Unit::Seconds,
        )
        .signs([
            Part::Id,
            ".".into(),
            Part::Timestamp,
            ".".into(),
            Part::Body,
        ])
}

fn standard_mapping(id: &'static str) -> Mapping {
    Mapping::new(Place::header(id))
        .with_event_type(Place::FirstOf(vec![
            Place::json("type"),
            Place::json("event_type"),
        ]))
        .with_correlation_id(Place::json("correlation_id"))
        .with_sequence(Place::json("sequence"))
}

/// The event id of the body; this header, if it is sent, must agree.
fn body_event_id(header: &'static str) -> Mapping {
    Mapping::new(Lookup::from(Place::json("event_id")).agreeing_with(header))
}
