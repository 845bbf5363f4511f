//! How each producer's request looks: its headers and what they sign.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use super::plan::Event;
use super::sign::Signer;

/// The producers that can be played. Another one is a variant, its name, and its arm in [`Preset::headers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preset {
    Kudos,
    Sequenced,
    Brief,
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
    pub(crate) const ALL: [Self; 3] = [Self::Kudos, Self::Sequenced, Self::Brief];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kudos => "kudos",
            Self::Sequenced => "sequenced",
            Self::Brief => "brief",
        }
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
            Self::Kudos => None,
            Self::Sequenced => Some(true),
            Self::Brief => Some(false),
        }
    }

    /// Whether its event ids are UUIDs.
    pub(crate) fn uuids(self) -> bool {
        self == Self::Brief
    }

    /// The headers of one delivery, signature included.
    pub(crate) fn headers(
        self,
        event: &Event,
        body: &[u8],
        attempt: Attempt,
        signer: &Signer,
    ) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let mut set = |name: &'static str, value: &str| {
            let value = HeaderValue::from_str(value).expect("made of visible ASCII");
            headers.insert(HeaderName::from_static(name), value);
        };
        match self {
            Self::Kudos => {
                set("x-kudos-signature", &signer.header(attempt.now, &[body]));
                set("x-kudos-event-id", &event.id);
                if attempt.number > 1 {
                    set("x-kudos-delivery-attempt", &attempt.number.to_string());
                    set("x-kudos-original-event-id", &event.id);
                    set("x-kudos-first-sent-at", &rfc3339(attempt.first_sent));
                }
            }
            Self::Sequenced => {
                set("x-signature", &signer.header(attempt.now, &[body]));
                set("x-event-id", &event.id);
                if let Some(order) = &event.order {
                    set("x-correlation-id", &order.correlation);
                    set("x-sequence", &order.sequence.to_string());
                }
            }
            Self::Brief => {
                let signed = [event.id.as_bytes(), body];
                set("x-signature", &signer.header(attempt.now, &signed));
                set("idempotency-key", &event.id);
            }
        }
        headers
    }
}

/// `2026-05-30T08:42:11Z`, by the calendar arithmetic of days since 0000-03-01.
fn rfc3339(secs: u64) -> String {
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
        let signer = Signer::new(vec!["s".to_owned()]);
        let headers = preset.headers(&event, &event.body(), attempt, &signer);
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
    }

    #[test]
    fn dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_735_689_599), "2024-12-31T23:59:59Z");
    }
}
