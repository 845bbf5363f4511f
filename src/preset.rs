//! Presets: one row for each producer that is known by name. A new one is a row of [`Preset::ALL`] and nothing else.

use std::time::Duration;

use http::HeaderName;

use crate::envelope::{Compared, ContentPolicy, Mapping, Place, Source};
use crate::verify::{
    Algorithm, Encoding, IdForm, KeyEncoding, Part, Scheme, SchemeBuilder, SignatureAt,
    TimestampAt, Unit,
};

/// What is known about a producer: how it signs, identifies and orders its events, and how it retries.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Preset {
    /// Its name, as in `/webhooks/<name>`.
    pub name: &'static str,
    /// Where the facts of this row are from.
    pub documented_at: &'static str,
    /// How the text of its secrets becomes a key.
    pub key: KeyEncoding,
    /// How long it waits for an answer.
    pub patience: Duration,
    /// From the first attempt of a delivery to its last one.
    pub retry_span: Duration,
    /// For how long after the event it can be sent again on demand, where the producer says so.
    pub replay_window: Duration,
    /// Event types whose content may honestly repeat, so that a fence on it must let them pass (§6.7).
    pub fence_exempt: &'static [&'static str],
    scheme: fn() -> SchemeBuilder,
    mapping: fn() -> Mapping,
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
#[allow(dead_code)]
const DAY: Duration = Duration::from_secs(86_400);

const fn times(n: u32, unit: Duration) -> Duration {
    // A product of constants; an overflow would fail the build.
    match unit.checked_mul(n) {
        Some(duration) => duration,
        None => panic!("too long"),
    }
}

impl Preset {
    /// Kudos CRM: two signatures during a rotation, retries over 1 h 45 m, replay bursts under the first event ids.
    pub const KUDOS: Self = Self {
        name: "kudos",
        documented_at: "the producer's page on retries, idempotency and rotation",
        key: KeyEncoding::Text,
        patience: times(8, SECOND),
        // 1 h 42 min 30 s and 25 % jitter.
        retry_span: times(7_688, SECOND),
        // Historical events can be sent again; their page names no end, so that the retention decides.
        replay_window: Duration::ZERO,
        fence_exempt: &[],
        scheme: || stripe_like("kudos", "x-kudos-signature").trim(),
        mapping: || {
            json_events("event_id", Some("x-kudos-event-id"))
                .with_event_type(Place::json("event_type"))
                .with_correlation_id(Place::json("correlation_id"))
                .with_sequence(Place::json("sequence"))
                .with_attempt("x-kudos-delivery-attempt")
                .with_first_sent_at("x-kudos-first-sent-at")
                .with_replay_of("x-kudos-original-event-id")
                .with_control_types([
                    "subscription.replay_started",
                    "subscription.replay_completed",
                ])
                .with_content_policy(ContentPolicy::Reject(Compared::TypeAndData))
        },
    };

    /// Events with correlation id and sequence, applied in order; an answer within 5 minutes, or a dead letter.
    pub const SEQUENCED: Self = Self {
        name: "sequenced",
        documented_at: "the strategy of guaranteed consistency",
        key: KeyEncoding::Text,
        // Not said there; what most producers grant.
        patience: times(10, SECOND),
        // 1 + 4 + 16 + 64 + 300 s: then the 5 minutes of its recovery window are spent.
        retry_span: times(385, SECOND),
        replay_window: Duration::ZERO,
        fence_exempt: &[],
        scheme: || stripe_like("sequenced", "x-signature").trim(),
        mapping: || {
            json_events("event_id", Some("x-event-id"))
                .with_event_type(Place::json("event_type"))
                .with_correlation_id(
                    Source::from(Place::json("correlation_id")).agreeing_with("x-correlation-id"),
                )
                .with_sequence(Source::from(Place::json("sequence")).agreeing_with("x-sequence"))
                .with_content_policy(ContentPolicy::Reject(Compared::TypeAndData))
        },
    };

    /// The coordination brief: a signed UUID in `Idempotency-Key`, replays for 72 hours.
    pub const BRIEF: Self = Self {
        name: "brief",
        documented_at: "the coordination brief, sections 1 to 6",
        key: KeyEncoding::Text,
        // Not said there; what most producers grant.
        patience: times(10, SECOND),
        // 30 + 60 + 120 + 240 + 480 s and 20 % jitter.
        retry_span: times(1_116, SECOND),
        replay_window: times(72, HOUR),
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
            Mapping::new(Source::from(Place::header("idempotency-key")).in_form(IdForm::Uuid))
                .with_event_type(Place::json("event_type"))
                .with_content_policy(ContentPolicy::Reject(Compared::RawBody))
        },
    };

    /// Standard Webhooks: `webhook-id`, `webhook-timestamp`, `webhook-signature`.
    pub const STANDARD: Self = Self {
        name: "standard",
        documented_at: "https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md",
        key: KeyEncoding::WHSEC,
        // "15 to 30 seconds" is recommended to producers.
        patience: times(15, SECOND),
        // The recommended schedule: 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h, 24 h.
        retry_span: times(76, HOUR),
        replay_window: Duration::ZERO,
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
    pub const SVIX: Self = Self {
        name: "svix",
        documented_at: "https://docs.svix.com/receiving/verifying-payloads/how-manual, https://docs.svix.com/retries",
        // Immediately, 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 10 h.
        retry_span: times(28, HOUR),
        scheme: || standard("svix", "svix-id", "svix-timestamp", "svix-signature"),
        mapping: || standard_mapping("svix-id"),
        ..Self::STANDARD
    };

    /// Every preset.
    pub const ALL: &'static [Self] = &[
        Self::KUDOS,
        Self::SEQUENCED,
        Self::BRIEF,
        Self::STANDARD,
        Self::SVIX,
    ];

    /// The preset of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|preset| preset.name == name)
    }

    /// How it signs.
    ///
    /// # Panics
    /// Never: a test builds the scheme of every row.
    pub fn scheme(&self) -> Scheme {
        (self.scheme)()
            .build()
            .expect("the schemes of presets are tested")
    }

    /// How it identifies and orders events.
    pub fn mapping(&self) -> Mapping {
        (self.mapping)()
    }

    /// Whether its event ids are covered by the signature. Computed; where they are not, a fence is needed (§6.7).
    pub fn id_is_covered(&self) -> bool {
        self.mapping().id_is_covered_by(&self.scheme())
    }

    /// For how long an event id must be kept at least: the longest time in which it can honestly come again.
    pub fn retention_floor(&self) -> Duration {
        self.replay_window + self.retry_span
    }

    /// How long a parked event waits for a gap by default: the producer's whole retry span and a quarter, within which
    /// an honest producer has sent the missing event; 5 minutes for `sequenced`, which says so itself (§5.4).
    pub fn recovery_window(&self) -> Duration {
        if self.name == Self::SEQUENCED.name {
            return times(300, SECOND);
        }
        self.retry_span + self.retry_span / 4
    }
}

/// `t=<unix s>,v1=<hex>` over `<t>.<raw body>`.
fn stripe_like(name: &'static str, header: &'static str) -> SchemeBuilder {
    Scheme::hmac(
        name,
        Algorithm::HmacSha256,
        SignatureAt::Header(HeaderName::from_static(header)),
    )
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
    Scheme::hmac(
        name,
        Algorithm::HmacSha256,
        SignatureAt::Header(HeaderName::from_static(signature)),
    )
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

fn json_events(id: &'static str, header: Option<&'static str>) -> Mapping {
    let source = Source::from(Place::json(id));
    Mapping::new(match header {
        Some(header) => source.agreeing_with(header),
        None => source,
    })
}
