//! The sender against small receivers of this test's own, over real sockets.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use serde_json::{Value, json};

#[cfg(feature = "reconcile")]
use crate::replays::Lists;
use crate::shared::client::{Client, Target};
use crate::shared::engine::{self, Progress, Sender};
use crate::shared::ledger::{self, Differences, Expectation};
use crate::shared::plan::{Plan, Traffic};
use crate::shared::preset::Preset;
use crate::shared::report::Report;
use crate::shared::schedule::Schedule;
use crate::shared::sign::Signer;

/// What a receiver remembers, and how it errs.
#[derive(Default)]
struct Memory {
    /// The status of every delivery's answer, if not what the ledger says.
    always: Option<StatusCode>,
    /// Every first delivery of an event is answered with this.
    first: Option<StatusCode>,
    /// Applies what it has already applied.
    forgetful: bool,
    /// Answers at once and applies so much later.
    late: Option<Duration>,
    seen: Mutex<HashMap<String, Vec<HeaderMap>>>,
    applied: Mutex<HashSet<String>>,
    entries: Mutex<Vec<Value>>,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
}

type Answer = (StatusCode, [(&'static str, &'static str); 1]);

async fn receive(State(memory): State<Arc<Memory>>, headers: HeaderMap, body: String) -> Answer {
    let now = memory.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
    memory.most_in_flight.fetch_max(now, Ordering::SeqCst);
    let answer = memory.clone().answer(headers, &body);
    tokio::task::yield_now().await;
    memory.in_flight.fetch_sub(1, Ordering::SeqCst);
    answer
}

impl Memory {
    fn answer(self: Arc<Self>, headers: HeaderMap, body: &str) -> Answer {
        let event: Value = serde_json::from_str(body).unwrap();
        let id = event["event_id"].as_str().unwrap().to_owned();
        let mut seen = self.seen.lock().unwrap();
        let deliveries = seen.entry(id.clone()).or_default();
        deliveries.push(headers);
        if let Some(status) = self.always {
            return (status, [("inbox-outcome", "rejected")]);
        }
        if let Some(status) = self.first.filter(|_| deliveries.len() == 1) {
            return (status, [("retry-after", "1")]);
        }
        if !self.applied.lock().unwrap().insert(id) && !self.forgetful {
            return (StatusCode::OK, [("inbox-outcome", "duplicate")]);
        }
        let entry = json!({"event_id": event["event_id"], "event_type": event["event_type"],
            "sequence": event["sequence"], "amount": event["data"]["amount"]});
        let Some(late) = self.late else {
            self.entries.lock().unwrap().push(entry);
            return (StatusCode::NO_CONTENT, [("inbox-outcome", "applied")]);
        };
        let memory = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(late).await;
            memory.entries.lock().unwrap().push(entry);
        });
        (StatusCode::ACCEPTED, [("inbox-outcome", "parked")])
    }
}

async fn entries(
    State(memory): State<Arc<Memory>>,
    Path(account): Path<String>,
) -> impl IntoResponse {
    let entries = memory.entries.lock().unwrap().clone();
    let amounts = entries
        .iter()
        .map(|entry| entry["amount"].as_i64().unwrap());
    let balance: i64 = amounts.sum();
    json!({"account": account, "balance": balance, "entries": entries}).to_string()
}

const TRAFFIC: Traffic = Traffic {
    seed: 3,
    events: 200,
    accounts: 1,
    sequenced: false,
    uuids: false,
    duplicates: 0.3,
    reorder: 8,
};

struct Sent {
    plan: Arc<Plan>,
    report: Report,
    client: Client,
    target: Target,
}

impl Sent {
    async fn check(&self) -> Differences {
        let expectation = Expectation::of(&self.plan);
        let patience = Duration::from_secs(3);
        ledger::check(&expectation, &self.client, &self.target, patience, |_| {}).await
    }
}

/// Sends the traffic to a receiver.
async fn send(memory: &Arc<Memory>, traffic: Traffic, adjust: impl FnOnce(&mut Sender)) -> Sent {
    let app = Router::new()
        .route("/webhooks/kudos", post(receive))
        .route("/ledger/{account}", get(entries))
        .with_state(memory.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, app).await });
    let mut sender = Sender {
        preset: Preset::Kudos,
        target: Target::parse(&url, "kudos").unwrap(),
        client: Client::new(Duration::from_secs(8)),
        signer: Arc::new(Signer::new(Preset::Kudos, &["secret".to_owned()]).unwrap()),
        schedule: Schedule::named("kudos").unwrap(),
        time_scale: 100_000.0,
        concurrency: 4,
        drop: 0.0,
    };
    adjust(&mut sender);
    let (client, target) = (sender.client.clone(), sender.target.clone());
    let plan = Arc::new(Plan::new(traffic));
    let report = engine::run(plan.clone(), sender, Arc::new(Progress::default())).await;
    Sent {
        plan,
        report,
        client,
        target,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_arrives_and_every_delivery_is_counted() {
    let memory = Arc::default();
    let sent = send(&memory, TRAFFIC, |sender| sender.drop = 0.1).await;
    let found = sent.check().await;
    let (plan, report) = (&sent.plan, &sent.report);
    assert!(found.none(), "{found:?}");
    assert_eq!((report.events, report.delivered), (200, 200));
    assert_eq!(report.deliveries, plan.copies() + report.retries);
    assert_eq!(report.dropped, report.retries, "nothing else was retried");
    assert!(report.dropped > 0);
    assert_eq!(report.answers[&204]["applied"], 200);
    assert_eq!(report.answers[&200]["duplicate"], report.deliveries - 200);
    // Four at a time, each of up to three copies at once.
    let most = memory.most_in_flight.load(Ordering::SeqCst);
    assert!((2..=12).contains(&most), "{most}");
}

#[tokio::test]
async fn a_retry_says_that_it_is_one_and_sends_the_same_again() {
    let memory = Arc::new(Memory {
        first: Some(StatusCode::SERVICE_UNAVAILABLE),
        ..Memory::default()
    });
    let traffic = Traffic {
        duplicates: 0.0,
        ..TRAFFIC
    };
    let sent = send(&memory, traffic, |_| {}).await;
    let found = sent.check().await;
    let (plan, report) = (&sent.plan, &sent.report);
    assert!(found.none(), "{found:?}");
    assert_eq!((report.deliveries, report.retries), (400, 200));
    let seen = memory.seen.lock().unwrap();
    for event in &plan.events {
        let [first, second] = &seen[&event.id][..] else {
            panic!("not two deliveries");
        };
        assert!(!first.contains_key("x-kudos-delivery-attempt"));
        assert_eq!(second["x-kudos-delivery-attempt"], "2");
        assert_eq!(second["x-kudos-event-id"], first["x-kudos-event-id"]);
    }
}

#[tokio::test]
async fn a_receiver_that_applies_twice_is_found_out() {
    let memory = Arc::new(Memory {
        forgetful: true,
        ..Memory::default()
    });
    let sent = send(&memory, TRAFFIC, |_| {}).await;
    let found = sent.check().await;
    let (plan, report) = (&sent.plan, &sent.report);
    assert_eq!(report.delivered, 200);
    assert_eq!(found.repeated as u64, plan.copies() - 200);
    assert_eq!((found.missing, found.altered), (0, 0));
}

#[tokio::test]
async fn gone_pauses_the_rest() {
    let memory = Arc::new(Memory {
        always: Some(StatusCode::GONE),
        ..Memory::default()
    });
    let sent = send(&memory, TRAFFIC, |sender| sender.concurrency = 1).await;
    let found = sent.check().await;
    let report = &sent.report;
    assert_eq!(report.refused, 1);
    assert_eq!(report.unsent, 199);
    assert_eq!(found.missing, 200);
}

#[tokio::test]
async fn nobody_there_is_exhausted_after_six_attempts() {
    let memory = Arc::new(Memory {
        always: Some(StatusCode::BAD_GATEWAY),
        ..Memory::default()
    });
    let traffic = Traffic {
        events: 5,
        duplicates: 0.0,
        ..TRAFFIC
    };
    let sent = send(&memory, traffic, |sender| {
        sender.schedule = Schedule::named("brief").unwrap();
        sender.drop = 0.5;
    })
    .await;
    let report = &sent.report;
    assert_eq!((report.exhausted, report.deliveries), (5, 30));
}

#[tokio::test]
async fn a_check_waits_for_what_is_parked() {
    let memory = Arc::new(Memory {
        late: Some(Duration::from_millis(400)),
        ..Memory::default()
    });
    let traffic = Traffic {
        duplicates: 0.0,
        ..TRAFFIC
    };
    let sent = send(&memory, traffic, |_| {}).await;
    let found = sent.check().await;
    let report = &sent.report;
    assert_eq!(report.answers[&202]["parked"], 200);
    assert!(found.none(), "{found:?}");
}

/// The brief, section 6: a replay endpoint that lists exhausted events by event id and timestamp.
#[cfg(feature = "reconcile")]
#[tokio::test]
async fn what_was_given_up_is_listed_for_whoever_has_the_key() {
    use tower_inbox::reconcile::{HttpReplays, List, Query, ReplaySource as _};

    let memory = Arc::new(Memory {
        always: Some(StatusCode::BAD_GATEWAY),
        ..Memory::default()
    });
    let traffic = Traffic {
        events: 5,
        sequenced: true,
        duplicates: 0.0,
        ..TRAFFIC
    };
    let mut producer = None;
    let sent = send(&memory, traffic, |sender| {
        sender.schedule = Schedule::named("brief").unwrap();
        producer = Some(sender.clone());
    })
    .await;
    let key = "rk_1".to_owned();
    let lists = Lists::new(key, &sent.plan, &producer.unwrap(), &sent.report);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/replays", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, lists.router()).await });
    let replays = HttpReplays::new(&url, "rk_1").unwrap().with_sequences();
    let page = replays.page(Query::new(List::Exhausted)).await.unwrap();
    assert!(page.unreadable.is_empty(), "{page:?}");
    assert_eq!(
        (page.items.len(), page.next, page.announced),
        (5, None, Some(5))
    );
    let ids: HashSet<_> = page
        .items
        .iter()
        .map(|item| item.event_id.clone())
        .collect();
    assert_eq!(
        ids,
        sent.plan
            .events
            .iter()
            .map(|event| event.id.clone())
            .collect()
    );
    let request = page.items[0].request.as_ref().unwrap();
    assert_eq!(request.uri(), "/webhooks/kudos");
    assert_eq!(request.body()[..], Preset::Kudos.body(&sent.plan.events[0]));
    assert!(request.headers().contains_key("x-kudos-event-id"));
    assert!(!request.headers().contains_key("x-kudos-signature"));
    // From its own last time on it is listed; a second later, no more.
    let last = page.items.iter().map(|item| item.at).max().unwrap();
    for (since, some) in [(last, true), (last.plus(Duration::from_secs(1)), false)] {
        let asked = Query::new(List::Exhausted).since(Some(since));
        assert_eq!(!replays.page(asked).await.unwrap().items.is_empty(), some);
    }
    let other = Query::new(List::Delivered);
    assert!(replays.page(other).await.unwrap().items.is_empty());
    let order = sent.plan.events[0].order.as_ref().unwrap();
    let sequence = i64::try_from(order.sequence).unwrap();
    let found = replays.by_sequence(&order.correlation, sequence).await;
    assert_eq!(found.unwrap().unwrap().event_id, sent.plan.events[0].id);
    let wrong = HttpReplays::new(&url, "rk_2").unwrap();
    assert!(wrong.page(Query::new(List::Exhausted)).await.is_err());
}
