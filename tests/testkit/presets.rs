//! A signed request in one line, for every preset.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::json;
use tower_inbox::clock::{Clock as _, Timestamp};
use tower_inbox::testkit::{self, Event, SignedRequest, TestDatabase};
use tower_inbox::{Preset, Source};

use crate::support::{On, SECRET, app, kudos, on_each_database, panics};

/// What Square signs.
const URL: &str = "https://example.test/webhooks/square";

on_each_database!(
    every_preset_is_applied_then_a_duplicate_and_refused_when_tampered_with,
    every_preset_that_has_an_order_keeps_it,
);

fn request(event: &Event, preset: &Preset) -> SignedRequest {
    event.request(*preset, SECRET).url(URL).to("/webhooks/crm")
}

fn event(id: &str) -> Event {
    let event = testkit::event(id).kind("payment");
    event.data(json!({"account": "a", "amount": 5, "of": id}))
}

/// §2.2, §2.4, §6.1 for each row of the table of presets.
async fn every_preset_is_applied_then_a_duplicate_and_refused_when_tampered_with<D: On>(
    db: TestDatabase<D>,
) {
    let mut sources = Preset::ALL
        .iter()
        .map(|preset| Source::new(preset.name, *preset).secrets([SECRET]).url(URL));
    let first = sources.next().expect("there are presets");
    db.execute("CREATE TABLE ledger (id VARCHAR(255), sequence BIGINT)")
        .await;
    let builder = crate::support::builder(&db, first);
    let builder = sources.fold(builder, |builder, source| builder.source(source));
    let inbox = builder.build().await.expect("an inbox");
    for (count, preset) in (1..).zip(Preset::ALL) {
        let name = preset.name;
        let app = inbox.mount(name, crate::support::ledger::<D>());
        // Ids that are the same everywhere are one event each time: a kit for each source.
        let kit = testkit::Kit::new(&inbox, app);
        let one = event("evt_1");
        let story = kit.send(request(&one, preset)).await;
        story.assert_applied_once().assert_answered(204, "applied");
        assert_eq!(story.source(), Some(name));
        assert_eq!(story.event_id(), Some(one.id_at(preset).as_str()), "{name}");
        kit.send(request(&one, preset))
            .await
            .assert_duplicate()
            .assert_applied_once();
        let other = event("evt_2");
        for bad in [
            request(&other, preset).tampered(),
            request(&other, preset).unsigned(),
        ] {
            kit.send(bad).await.assert_unauthorized().assert_runs(0);
        }
        kit.assert_effects("SELECT COUNT(*) FROM ledger", count)
            .await;
        let wrong = other.request(*preset, other_secret()).url(URL);
        kit.send(wrong).await.assert_unauthorized();
    }
}

fn other_secret() -> &'static str {
    "whsec_YW5vdGhlciBzZWNyZXQgdGhhdCBpcyBub3QgaXQ="
}

/// §5.1: parked behind what is missing, and applied when it has come.
async fn every_preset_that_has_an_order_keeps_it<D: On>(db: TestDatabase<D>) {
    db.execute("CREATE TABLE ledger (id VARCHAR(255), sequence BIGINT)")
        .await;
    let ordered = Preset::ALL.iter().filter(|at| at.mapping().has_sequence());
    for preset in ordered {
        let source = Source::new(preset.name, *preset).secrets([SECRET]);
        let inbox = crate::support::builder(&db, source).build().await;
        let inbox = inbox.expect("an inbox");
        let app = inbox.mount(preset.name, crate::support::ledger::<D>());
        let kit = testkit::Kit::new(&inbox, app);
        let second = event("evt_2").stream("acct", 2);
        kit.send(request(&second, preset))
            .await
            .assert_parked_behind(1)
            .assert_not_applied();
        let first = event("evt_1").stream("acct", 1);
        kit.send(request(&first, preset))
            .await
            .assert_applied_once();
        kit.settled().await;
        kit.story("evt_2").await.assert_applied_once();
    }
}

/// §6.3: five minutes each way.
#[tokio::test]
async fn a_stale_request_is_refused_and_so_is_one_from_the_future() {
    let db = testkit::sqlite().await;
    let (kit, clock) = app(&db, kudos()).await;
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let at = |time: Timestamp| request(&event("evt_1"), &Preset::KUDOS).at(time);
    for time in [clock.now().minus(minutes(6)), clock.now().plus(minutes(6))] {
        let story = kit.send(at(time)).await;
        story.assert_unauthorized();
        assert!(story.to_string().contains("refused: "), "{story}");
    }
    kit.send(at(clock.now().minus(minutes(4))))
        .await
        .assert_applied_once();
}

/// §6.1, §6.2.
#[tokio::test]
async fn during_a_rotation_either_secret_is_enough() {
    let db = testkit::sqlite().await;
    let (kit, _) = app(&db, Source::kudos("crm").secrets(["new"])).await;
    let by = |id: &str, secrets: &[&str]| {
        request(&event(id), &Preset::KUDOS).signed_by(secrets.iter().copied())
    };
    kit.send(by("evt_1", &["old", "new"]))
        .await
        .assert_applied_once();
    kit.send(by("evt_2", &["old"])).await.assert_unauthorized();
}

#[test]
fn a_request_becomes_one_of_any_body() {
    let one = event("evt_1")
        .request(Preset::KUDOS, "secret")
        .to("/in?a=1");
    let one = one.header("x-tenant", "7").at(Timestamp::from_secs(1));
    let bytes: Request<Bytes> = one.clone().into();
    let _: Request<Body> = one.clone().into();
    let full: Request<Full<Bytes>> = one.into();
    assert_eq!(full.headers(), bytes.headers());
    assert_eq!(bytes.uri(), "/in?a=1");
    assert_eq!(bytes.headers()["x-tenant"], "7");
    assert_eq!(bytes.headers()["x-kudos-event-id"], "evt_1");
    let retry = event("evt_1").request(Preset::KUDOS, "secret").attempt(3);
    let retry: Request<Bytes> = retry.at(Timestamp::from_secs(1_780_130_531)).into();
    assert_eq!(retry.headers()["x-kudos-delivery-attempt"], "3");
    assert_eq!(retry.headers()["x-kudos-original-event-id"], "evt_1");
    assert_eq!(
        retry.headers()["x-kudos-first-sent-at"],
        "2026-05-30T08:42:11Z"
    );
}

#[test]
fn a_captured_body_keeps_what_it_has() {
    let captured = json!({"id": "evt_old", "object": "event", "data": {"object": {"id": "ch_1"}}});
    let event = testkit::event("evt_new")
        .kind("charge.succeeded")
        .body(captured);
    let request: Request<Bytes> = event.request(Preset::STRIPE, "whsec_x").into();
    let body: serde_json::Value = serde_json::from_slice(request.body()).expect("JSON");
    assert_eq!(body["id"], "evt_new");
    assert_eq!(body["type"], "charge.succeeded");
    assert_eq!(body["data"]["object"]["id"], "ch_1");
    let raw = testkit::event("7").raw_body(&b"not \xff JSON"[..]);
    let request: Request<Bytes> = raw.request(Preset::GITHUB, "s").into();
    assert_eq!(request.body(), &b"not \xff JSON"[..]);
    assert_eq!(request.headers()["x-github-delivery"], "7");
}

#[tokio::test]
async fn what_a_producer_cannot_say_is_said_at_once() {
    for (why, make) in [
        (
            "stripe has no place for the correlation id",
            (|| {
                drop(
                    testkit::event("evt_1")
                        .stream("a", 1)
                        .request(Preset::STRIPE, "s"),
                );
            }) as fn(),
        ),
        ("without the URL", || {
            let request = testkit::event("evt_1").request(Preset::SQUARE, "s");
            drop(request.build::<Bytes>());
        }),
        ("not in the form of standard", || {
            let request = testkit::event("evt_1").request(Preset::STANDARD, "not base64!");
            drop(request.build::<Bytes>());
        }),
        ("more secrets than", || {
            let request = testkit::event("evt_1").request(Preset::GITHUB, "s");
            drop(request.signed_by(["a", "b"]).build::<Bytes>());
        }),
    ] {
        let said = panics(async move { make() }).await;
        assert!(said.contains(why), "{said}");
        assert!(!said.contains("not base64!"), "no secrets: {said}");
    }
}
