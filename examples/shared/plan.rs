//! The traffic: which events there are, and in which order and how often they are sent.
//!
//! A plan is a pure function of its [`Traffic`]. Event `n` depends only on the seed, the accounts and whether
//! there is an order; so a longer plan with the same seed begins with the same events, and two plans that
//! would give one event different content give it different ids as well.

use std::ops::Range;

use fastrand::Rng;
use serde_json::{Value, json};

/// How far behind its first sending a later copy may come, in sendings.
const LATER: usize = 64;

/// What a plan is made from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Traffic {
    pub(crate) seed: u64,
    pub(crate) events: usize,
    pub(crate) accounts: usize,
    /// Events carry a correlation id and a gap-free sequence per account.
    pub(crate) sequenced: bool,
    /// Event ids are UUIDs (version 4), as `brief` has them.
    pub(crate) uuids: bool,
    /// Share of events that are sent more than once; every other one of them at the same time.
    pub(crate) duplicates: f64,
    /// Sendings are shuffled within windows of this many; 0 and 1 leave them in order.
    pub(crate) reorder: usize,
}

/// One event, the same in every delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: String,
    pub(crate) kind: &'static str,
    pub(crate) account: String,
    pub(crate) order: Option<Order>,
    pub(crate) amount: i64,
}

/// An event's place in its account's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) correlation: String,
    pub(crate) sequence: u64,
}

/// One step of the plan: an event that is sent, once or several times at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sending {
    /// Index into [`Plan::events`].
    pub(crate) event: usize,
    /// Which copies: several are sent at the same time. Copy 0 is the first sending.
    pub(crate) first_copy: u32,
    pub(crate) copies: u32,
}

impl Sending {
    pub(crate) fn copies(self) -> Range<u32> {
        self.first_copy..self.first_copy + self.copies
    }
}

/// All of the traffic.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) traffic: Traffic,
    /// In the order in which they happened at the producer.
    pub(crate) events: Vec<Event>,
    /// In the order in which they are sent.
    pub(crate) sendings: Vec<Sending>,
}

impl Plan {
    pub(crate) fn new(traffic: Traffic) -> Self {
        let events = events(&traffic);
        let sendings = sendings(&traffic);
        Self {
            traffic,
            events,
            sendings,
        }
    }

    /// First attempts, all copies counted.
    pub(crate) fn copies(&self) -> u64 {
        let copies = self.sendings.iter().map(|sending| sending.copies);
        copies.map(u64::from).sum()
    }
}

impl Event {
    /// The body, as far as it is the same for all producers.
    pub(crate) fn json(&self) -> Value {
        let mut body = json!({
            "event_id": self.id,
            "event_type": self.kind,
            "data": { "account": self.account, "amount": self.amount },
        });
        if let Some(order) = &self.order {
            body["correlation_id"] = json!(order.correlation);
            body["sequence"] = json!(order.sequence);
        }
        body
    }
}

fn events(traffic: &Traffic) -> Vec<Event> {
    // Everything that changes an event's content changes its id, so that no id is ever sent with two contents.
    let shape = (traffic.accounts as u64) << 1 | u64::from(traffic.sequenced);
    let tag = mix(traffic.seed, shape);
    let mut next = vec![1; traffic.accounts];
    let events = (0..traffic.events).map(|index| {
        let mut rng = Rng::with_seed(mix(tag, index as u64));
        let account = rng.usize(..traffic.accounts);
        let (kind, amount) = match rng.u8(..10) {
            0 => ("payment.refunded", -rng.i64(1..=100)),
            _ => ("payment.succeeded", rng.i64(1..=1_000)),
        };
        let order = traffic.sequenced.then(|| {
            let sequence = next[account];
            next[account] += 1;
            // The tag keeps the streams of two runs apart, although they share the accounts.
            Order {
                correlation: format!("acct-{}.{tag:016x}", account + 1),
                sequence,
            }
        });
        Event {
            id: match traffic.uuids {
                true => uuid(&mut rng),
                false => format!("evt_{tag:016x}_{}", index + 1),
            },
            kind,
            account: format!("acct-{}", account + 1),
            order,
            amount,
        }
    });
    events.collect()
}

fn sendings(traffic: &Traffic) -> Vec<Sending> {
    let mut order: Vec<usize> = (0..traffic.events).collect();
    let mut rng = Rng::with_seed(mix(traffic.seed, u64::MAX));
    if traffic.reorder > 1 {
        for window in order.chunks_mut(traffic.reorder) {
            rng.shuffle(window);
        }
    }
    let mut sendings = Vec::with_capacity(order.len());
    for (place, event) in order.into_iter().enumerate() {
        let mut first = Sending {
            event,
            first_copy: 0,
            copies: 1,
        };
        if rng.f64() < traffic.duplicates {
            let more = rng.u32(1..=2);
            if rng.bool() {
                first.copies += more;
            } else {
                for copy in 1..=more {
                    let later = Sending {
                        event,
                        first_copy: copy,
                        copies: 1,
                    };
                    sendings.push((place + rng.usize(1..=LATER), later));
                }
            }
        }
        sendings.push((place, first));
    }
    // A first sending stands before the later copies that fall on its place.
    sendings.sort_by_key(|(place, sending)| (*place, sending.first_copy));
    sendings.into_iter().map(|(_, sending)| sending).collect()
}

/// A random UUID: version 4, RFC 9562 variant.
fn uuid(rng: &mut Rng) -> String {
    let bits = rng.u128(..) & !(0xf << 76) & !(0b11 << 62) | 0x4 << 76 | 0b10 << 62;
    let hex = format!("{bits:032x}");
    let (a, b, c, d, e) = (
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    );
    format!("{a}-{b}-{c}-{d}-{e}")
}

/// A seed out of two, by the finaliser of SplitMix64: near inputs give unrelated outputs.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let scramble = |mut x: u64| {
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    };
    scramble(scramble(a) ^ b)
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    const TRAFFIC: Traffic = Traffic {
        seed: 7,
        events: 2_000,
        accounts: 20,
        sequenced: true,
        uuids: false,
        duplicates: 0.3,
        reorder: 16,
    };

    fn ids(traffic: Traffic) -> Vec<String> {
        let events = Plan::new(traffic).events;
        events.into_iter().map(|event| event.id).collect()
    }

    #[test]
    fn same_seed_same_traffic() {
        assert_eq!(Plan::new(TRAFFIC), Plan::new(TRAFFIC));
        let other = Plan::new(Traffic { seed: 8, ..TRAFFIC });
        assert_ne!(Plan::new(TRAFFIC).sendings, other.sendings);
    }

    #[test]
    fn a_longer_plan_begins_with_the_shorter_one() {
        let longer = Plan::new(Traffic {
            events: 3_000,
            ..TRAFFIC
        });
        assert_eq!(longer.events[..2_000], Plan::new(TRAFFIC).events);
    }

    #[test]
    fn ids_do_not_collide_where_the_content_differs() {
        let variants = [
            TRAFFIC,
            Traffic { seed: 8, ..TRAFFIC },
            Traffic {
                accounts: 21,
                ..TRAFFIC
            },
            Traffic {
                sequenced: false,
                ..TRAFFIC
            },
        ];
        let all: HashSet<_> = variants.into_iter().flat_map(ids).collect();
        assert_eq!(all.len(), 4 * 2_000);
        let uuids = [7, 8].map(|seed| Traffic {
            seed,
            uuids: true,
            ..TRAFFIC
        });
        let all: HashSet<_> = uuids.into_iter().flat_map(ids).collect();
        assert_eq!(all.len(), 2 * 2_000);
        for id in all {
            assert_eq!(id.len(), 36);
            assert_eq!(&id[14..15], "4", "{id}");
            assert!("89ab".contains(&id[19..20]), "{id}");
        }
    }

    #[test]
    fn sequences_have_no_gap_and_run_by_account() {
        let mut last: HashMap<String, u64> = HashMap::new();
        for event in Plan::new(TRAFFIC).events {
            let order = event.order.unwrap();
            assert!(order.correlation.starts_with(&event.account));
            let before = last.insert(order.correlation, order.sequence);
            assert_eq!(order.sequence, before.unwrap_or(0) + 1);
        }
        assert_eq!(last.len(), 20);
    }

    #[test]
    fn the_share_of_duplicates_is_about_right_and_half_come_at_once() {
        let plan = Plan::new(TRAFFIC);
        let mut copies: HashMap<usize, u32> = HashMap::new();
        for sending in &plan.sendings {
            *copies.entry(sending.event).or_default() += sending.copies;
        }
        assert_eq!(copies.len(), 2_000, "each event is sent");
        let doubled = copies.values().filter(|copies| **copies > 1).count();
        assert!((500..700).contains(&doubled), "{doubled}");
        let at_once = plan.sendings.iter().filter(|sending| sending.copies > 1);
        let at_once = at_once.count();
        assert!((220..380).contains(&at_once), "{at_once}");

        let none = Plan::new(Traffic {
            duplicates: 0.0,
            ..TRAFFIC
        });
        assert_eq!(none.copies(), 2_000);
        let all = Plan::new(Traffic {
            duplicates: 1.0,
            ..TRAFFIC
        });
        assert!(all.copies() >= 4_000);
    }

    #[test]
    fn reordering_stays_in_its_window_and_copies_come_later() {
        let plan = Plan::new(Traffic {
            duplicates: 0.0,
            ..TRAFFIC
        });
        let moved = plan.sendings.iter().enumerate();
        let moved = moved.filter(|(place, sending)| *place != sending.event);
        assert!(moved.count() > 1_500);
        for (place, sending) in plan.sendings.iter().enumerate() {
            assert_eq!(place / 16, sending.event / 16);
        }
        let in_order = Plan::new(Traffic {
            reorder: 0,
            ..TRAFFIC
        });
        let mut seen = HashSet::new();
        let mut next = 0;
        for sending in in_order.sendings {
            if sending.first_copy == 0 {
                assert_eq!(sending.event, next);
                next += 1;
                seen.insert(sending.event);
            } else {
                assert!(seen.contains(&sending.event));
            }
        }
    }

    #[test]
    fn the_body_is_the_documented_one() {
        let event = Event {
            id: "evt_1".to_owned(),
            kind: "payment.succeeded",
            account: "acct-7".to_owned(),
            order: Some(Order {
                correlation: "acct-7".to_owned(),
                sequence: 1,
            }),
            amount: 250,
        };
        assert_eq!(
            event.json(),
            json!({"event_id":"evt_1","event_type":"payment.succeeded","correlation_id":"acct-7","sequence":1,
                   "data":{"account":"acct-7","amount":250}})
        );
        let unordered = Event {
            order: None,
            ..event
        };
        let body = unordered.json();
        assert!(body.get("sequence").is_none() && body.get("correlation_id").is_none());
    }
}
