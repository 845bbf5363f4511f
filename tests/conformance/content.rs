//! §4.12, §4.3: a known id with other content, and a place that belongs to another id.

use bytes::Bytes;
use http::Request;
use serde_json::json;
use tower_inbox::Source;
use tower_inbox::preset::Preset;
use tower_inbox::verify::{Secret, Signer};

use crate::db::TestDb;
use crate::kit::{Call, Event, Gate, Reply, SOURCE, World, now, numbered};

suite![
    other_data_under_a_known_id_is_refused_and_leaves_an_audit_row,
    the_same_data_written_otherwise_is_a_duplicate,
    another_place_under_a_known_id_is_refused,
    other_content_is_noticed_whatever_this_process_remembers,
    other_content_is_refused_while_the_first_delivery_runs,
    the_first_body_of_a_parked_event_stays,
    a_source_that_only_notes_other_content_answers_a_duplicate,
    a_place_that_another_id_has_is_refused,
    a_parked_place_that_another_id_has_is_refused,
];

const AUDITED: &str = "SELECT COUNT(*) FROM {p}audit WHERE action = 'other_content'";

/// §4.12: kudos promises that type and data never change.
async fn other_data_under_a_known_id_is_refused_and_leaves_an_audit_row<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world
        .send(&Event::new("evt_1").amount(1))
        .await
        .is_applied();
    let other = [
        Event::new("evt_1").amount(2),
        Event::new("evt_1")
            .amount(1)
            .with("event_type", "payment.failed"),
        Event::new("evt_1").with("data", json!({"amount": 1, "note": "private words"})),
        Event::new("evt_1").with("data", json!(null)),
    ];
    for (n, event) in other.iter().enumerate() {
        let reply = world.send(event).await;
        reply.is_problem_about(422, "rejected", "other content");
        assert_eq!(world.number(AUDITED).await, i64::try_from(n).unwrap() + 1);
    }
    world
        .send(&Event::new("evt_1").amount(1))
        .await
        .is_duplicate();
    assert_eq!(world.ledger().await.len(), 1);
    assert_eq!(
        world.texts("SELECT DISTINCT event_id FROM {p}audit").await,
        ["evt_1"]
    );
    // "An audit row without a body" (§4.13), and no dead letter.
    for column in ["detail", "actor", "action"] {
        let texts = world
            .texts(&format!("SELECT {column} FROM {{p}}audit"))
            .await;
        assert!(
            !texts.iter().any(|text| text.contains("private")),
            "{texts:?}"
        );
    }
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
}

/// §4.12: "parsed, keys sorted"; and what is beside type and data may change.
async fn the_same_data_written_otherwise_is_a_duplicate<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let bodies = [
        r#"{"event_id":"evt_1","event_type":"t","data":{"a":1,"b":{"c":[1,2],"d":"é"}}}"#,
        "{ \"data\": {\"b\": {\"d\":\"\\u00e9\",\"c\":[1, 2]}, \"a\": 1},\n\"event_type\":\"t\", \"event_id\":\"evt_1\" }",
        r#"{"event_id":"evt_1","event_type":"t","attempt":2,"data":{"a":1,"b":{"c":[1,2],"d":"é"}}}"#,
    ];
    world
        .post(world.signed(Bytes::from_static(bodies[0].as_bytes())))
        .await
        .is_applied();
    for body in &bodies[1..] {
        world
            .post(world.signed(Bytes::from_static(body.as_bytes())))
            .await
            .is_duplicate();
    }
    // The order of a list is content.
    let list = r#"{"event_id":"evt_1","event_type":"t","data":{"a":1,"b":{"c":[2,1],"d":"é"}}}"#;
    world
        .post(world.signed(Bytes::from_static(list.as_bytes())))
        .await
        .is(422, "rejected");
}

/// §4.12
async fn another_place_under_a_known_id_is_refused<D: TestDb>(db: D) {
    for remembered in [0, 100] {
        let world = World::<D>::over(&db)
            .inbox(move |inbox| inbox.remembered(remembered))
            .start()
            .await;
        let (account, other) = (format!("acct_{remembered}"), format!("other_{remembered}"));
        let event = numbered(&account, 1);
        world.send(&event).await.is_applied();
        for moved in [event.clone().of(&account, 2), event.clone().of(&other, 1)] {
            let reply = world.send(&moved).await;
            assert_eq!(
                (reply.status, reply.outcome()),
                (422, "rejected"),
                "{remembered}: {reply:?}"
            );
        }
        world.send(&event).await.is_duplicate();
        world.stop().await;
    }
}

/// §2.4, §4.12: from memory, from the database, and inside the transaction.
async fn other_content_is_noticed_whatever_this_process_remembers<D: TestDb>(db: D) {
    for remembered in [0, 100] {
        let world = World::<D>::over(&db)
            .inbox(move |inbox| inbox.remembered(remembered))
            .answers(|call| {
                if call.delivery.event_id().contains("bad") {
                    422
                } else {
                    0
                }
            })
            .start()
            .await;
        let id = |what| format!("evt_{what}_{remembered}");
        world.send(&Event::new(&id("good"))).await.is_applied();
        world
            .send(&Event::new(&id("good")).amount(7))
            .await
            .is_problem_about(422, "rejected", "other content");
        // A dead letter is open to a new attempt, of the same content.
        world
            .send(&Event::new(&id("bad")))
            .await
            .is(422, "rejected");
        let reply = world.send(&Event::new(&id("bad")).amount(7)).await;
        reply.is_problem_about(422, "rejected", "other content");
        assert_eq!(world.probe.runs(&id("bad")), 1);
        world.stop().await;
    }
}

/// §4.8, §4.12: "those with its content get" the leader's answer; others do not.
async fn other_content_is_refused_while_the_first_delivery_runs<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let world = World::<D>::over(&db)
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                gate.pass().await;
            }
        })
        .start()
        .await;
    let leader = world.spawn(&Event::new("evt_1").amount(1));
    gate.reached_by(1).await;
    let others: Vec<_> = (2..6)
        .map(|n| world.spawn(&Event::new("evt_1").amount(n)))
        .collect();
    let same = world.spawn(&Event::new("evt_1").amount(1));
    gate.open();
    leader.await.unwrap().is(200, "applied");
    same.await.unwrap().is_duplicate();
    for other in others {
        other
            .await
            .unwrap()
            .is_problem_about(422, "rejected", "other content");
    }
    assert_eq!(world.ledger().await.len(), 1);
}

/// §4.12: "while parked or dead the first stored body stays".
async fn the_first_body_of_a_parked_event_stays<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world
        .send(&numbered("acct", 2).amount(20))
        .await
        .is_parked(1);
    world
        .send(&numbered("acct", 2).amount(99))
        .await
        .is(422, "rejected");
    world
        .send(&numbered("acct", 2).amount(20))
        .await
        .is_parked(1);
    world.send(&numbered("acct", 1)).await.is_applied();
    crate::kit::eventually("the second one is applied", async || {
        world.ledger().await.len() == 2
    })
    .await;
    assert_eq!(world.ledger().await[1].amount, 20);
}

fn standard(world: &World<impl TestDb>, id: &str, body: &'static str) -> Request<axum::body::Body> {
    let secret = Secret::whsec(WHSEC).unwrap();
    let signer = Signer::new(&Preset::STANDARD.scheme(), [secret]).unwrap();
    let mut request = world.signed(Bytes::from_static(body.as_bytes()));
    request
        .headers_mut()
        .extend(signer.sign(now(), Some(id), body.as_bytes()).unwrap());
    request
}

const WHSEC: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// §4.12: `note`, the default of the others, "since honest bodies may differ".
async fn a_source_that_only_notes_other_content_answers_a_duplicate<D: TestDb>(db: D) {
    for remembered in [0, 100] {
        let world = World::<D>::over(&db)
            .source(|_| Source::new(SOURCE, Preset::STANDARD).secrets([WHSEC]))
            .inbox(move |inbox| inbox.remembered(remembered))
            .start()
            .await;
        let id = format!("msg_{remembered}");
        let first = r#"{"type":"t","data":{"amount":1},"pending_webhooks":2}"#;
        let again = r#"{"type":"t","data":{"amount":1},"pending_webhooks":1}"#;
        world.post(standard(&world, &id, first)).await.is_applied();
        let reply: Reply = world.post(standard(&world, &id, again)).await;
        reply.is_duplicate();
        world
            .post(standard(&world, &id, first))
            .await
            .is_duplicate();
        assert_eq!(world.number("SELECT COUNT(*) FROM {p}audit").await, 0);
        world.stop().await;
    }
}

/// §4.3: "held by another id (applied …): 422".
async fn a_place_that_another_id_has_is_refused<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    world.send(&numbered("acct", 2)).await.is_applied();
    for n in [1, 2] {
        let impostor = Event::new(&format!("evt_impostor_{n}")).of("acct", n);
        for _ in 0..2 {
            let reply = world.send(&impostor).await;
            reply.is_problem_about(422, "rejected", "another event id");
        }
        assert_eq!(world.probe.runs(impostor.id()), 0);
    }
    assert_eq!(world.sequences("acct").await, [1, 2]);
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}event").await, 2);
    assert_eq!(
        world
            .number("SELECT COUNT(*) FROM {p}audit WHERE action = 'place_taken'")
            .await,
        4
    );
}

/// §4.3: "held by another id (… parked …): 422".
async fn a_parked_place_that_another_id_has_is_refused<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&numbered("acct", 3)).await.is_parked(1);
    world
        .send(&Event::new("evt_impostor").of("acct", 3))
        .await
        .is_problem_about(422, "rejected", "another event id");
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("acct", 1)).await.is_applied();
    crate::kit::eventually("all are applied", async || world.ledger().await.len() == 3).await;
    assert_eq!(
        world.applied().await,
        ["evt_acct_1", "evt_acct_2", "evt_acct_3"]
    );
}
