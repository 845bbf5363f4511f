//! How each producer's request looks: its headers and what they sign.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::json;

use super::plan::Event;
use super::sign::Signer;

/// The producers that can be played. Another one is a variant, its name, and its arms in [`Preset::headers`] and
/// [`Preset::body`]; how it signs the library knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preset {
    Kudos,
    Sequenced,
    Brief,
    Standard,
    Stripe,
    GitHub,
    Shopify,
    Slack,
}

/// Which attempt of an event a delivery is, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// From 1.
    pub(crate) number: u32,
    /// Seconds since the Unix epoch.
    pub(crate) first_sent: u64,
    pub(crate) now: u64,
}

impl Preset {
    pub(crate) const ALL: [Self; 8] = [
        Self::Kudos,
        Self::Sequenced,
        Self::Brief,
        Self::Standard,
        Self::Stripe,
        Self::GitHub,
        Self::Shopify,
        Self::Slack,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kudos => "kudos",
            Self::Sequenced => "sequenced",
            Self::Brief => "brief",
            Self::Standard => "standard",
            Self::Stripe => "stripe",
            Self::GitHub => "github",
            Self::Shopify => "shopify",
            Self::Slack => "slack",
        }
    }

    /// What the library knows about it.
    pub(crate) fn row(self) -> &'static tower_inbox::Preset {
        tower_inbox::Preset::named(self.name()).expect("every producer here is a preset there")
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// The variable in which the receiver reads this preset's secrets.
    pub(crate) fn secrets_variable(self) -> String {
        format!("{}_SECRETS", self.name().to_ascii_uppercase())
    }

    /// Whether its events carry a sequence: always, never, or as one likes (`None`).
    pub(crate) fn sequenced(self) -> Option<bool> {
        match self {
            Self::Kudos | Self::Standard => None,
            Self::Sequenced => Some(true),
            Self::Brief | Self::Stripe | Self::GitHub | Self::Shopify | Self::Slack => Some(false),
        }
    }

    /// Whether its event ids are UUIDs.
    pub(crate) fn uuids(self) -> bool {
        self == Self::Brief
    }

    /// The body, byte for byte the same in every delivery: what all have, and under this producer's own names what it
    /// is read by.
    pub(crate) fn body(self, event: &Event) -> Vec<u8> {
        let mut body = event.json();
        match self {
            Self::Stripe => {
                body["id"] = json!(event.id);
                body["type"] = json!(event.kind);
            }
            Self::Slack => body["event"] = json!({"type": event.kind}),
            _ => {}
        }
        body.to_string().into_bytes()
    }

    /// The headers of one delivery, signature included.
    pub(crate) fn headers(
        self,
        event: &Event,
        body: &[u8],
        attempt: Attempt,
        signer: &Signer,
    ) -> HeaderMap {
        let mut headers: HeaderMap = signer
            .headers(attempt.now, &event.id, body)
            .into_iter()
            .collect();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let mut set = |name: &'static str, value: &str| {
            let value = HeaderValue::from_str(value).expect("made of visible ASCII");
            headers.insert(HeaderName::from_static(name), value);
        };
        match self {
            Self::Kudos => {
                set("x-kudos-event-id", &event.id);
                if attempt.number > 1 {
                    set("x-kudos-delivery-attempt", &attempt.number.to_string());
                    set("x-kudos-original-event-id", &event.id);
                    set("x-kudos-first-sent-at", &rfc3339(attempt.first_sent));
                }
            }
            Self::Sequenced => {
                set("x-event-id", &event.id);
                if let Some(order) = &event.order {
                    set("x-correlation-id", &order.correlation);
                    set("x-sequence", &order.sequence.to_string());
                }
            }
            Self::GitHub => {
                set("x-github-delivery", &event.id);
                set("x-github-event", event.kind);
            }
            Self::Shopify => {
                set("x-shopify-webhook-id", &event.id);
                set("x-shopify-topic", event.kind);
            }
            // The id is one of the signed headers.
            Self::Brief | Self::Standard => {}
            // It is in the body.
            Self::Stripe | Self::Slack => {}
        }
        headers
    }
}

/// `2026-05-30T08:42:11Z`, by the calendar arithmetic of days since 0000-03-01.
pub(crate) fn rfc3339(secs: u64) -> String {
    let (days, time) = (secs / 86_400 + 719_468, secs % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::plan::{Plan, Traffic};

    fn headers(preset: Preset, number: u32) -> (Event, HeaderMap) {
        let plan = Plan::new(Traffic {
            seed: 1,
            events: 1,
            accounts: 1,
            sequenced: preset.sequenced().unwrap_or(true),
            uuids: preset.uuids(),
            duplicates: 0.0,
            reorder: 0,
        });
        let event = plan.events[0].clone();
        let attempt = Attempt {
            number,
            first_sent: 1_780_130_531,
            now: 1_780_130_561,
        };
        // Base64 as well, since standard wants that.
        let signer = Signer::new(preset, &["whsec_c2Vj".to_owned()]).unwrap();
        let headers = preset.headers(&event, &preset.body(&event), attempt, &signer);
        (event, headers)
    }

    #[test]
    fn kudos_says_more_on_retries() {
        let (event, first) = headers(Preset::Kudos, 1);
        assert_eq!(first["x-kudos-event-id"], event.id.as_str());
        assert!(
            first["x-kudos-signature"]
                .to_str()
                .unwrap()
                .starts_with("t=1780130561,v1=")
        );
        assert!(!first.contains_key("x-kudos-delivery-attempt"));
        let (event, third) = headers(Preset::Kudos, 3);
        assert_eq!(third["x-kudos-delivery-attempt"], "3");
        assert_eq!(third["x-kudos-original-event-id"], event.id.as_str());
        assert_eq!(third["x-kudos-first-sent-at"], "2026-05-30T08:42:11Z");
    }

    #[test]
    fn the_others() {
        let (event, headers_of) = headers(Preset::Sequenced, 1);
        assert_eq!(headers_of["x-event-id"], event.id.as_str());
        assert_eq!(headers_of["x-sequence"], "1");
        let (event, headers_of) = headers(Preset::Brief, 2);
        assert_eq!(headers_of["idempotency-key"], event.id.as_str());
        assert!(headers_of.contains_key("x-signature"));
        for (preset, id) in [
            (Preset::Standard, "webhook-id"),
            (Preset::GitHub, "x-github-delivery"),
            (Preset::Shopify, "x-shopify-webhook-id"),
        ] {
            let (event, headers_of) = headers(preset, 1);
            assert_eq!(headers_of[id], event.id.as_str());
        }
        let (event, headers_of) = headers(Preset::Slack, 1);
        assert!(headers_of.contains_key("x-slack-signature"));
        let body: serde_json::Value = serde_json::from_slice(&Preset::Slack.body(&event)).unwrap();
        assert_eq!(body["event_id"], event.id);
        assert_eq!(body["event"]["type"], event.kind);
        let body: serde_json::Value = serde_json::from_slice(&Preset::Stripe.body(&event)).unwrap();
        assert_eq!(
            (&body["id"], &body["type"]),
            (&json!(event.id), &json!(event.kind))
        );
    }

    #[test]
    fn dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_735_689_599), "2024-12-31T23:59:59Z");
    }
}
