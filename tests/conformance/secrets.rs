//! §6.1, §6.2, §6.5, §6.6: rotation under traffic, and secrets that nothing prints.

use std::sync::{Arc, Mutex};

use axum::body::Body;
use http::Request;
use tower_inbox::verify::{Secret, SecretError, Secrets};
use tower_inbox::{Inbox, Source};

use crate::db::TestDb;
use crate::kit::watch::Watch;
use crate::kit::{Call, Event, Gate, SOURCE, World, eventually, http, now, numbered};

suite![
    every_digit_of_a_signature_counts,
    any_signature_by_any_active_secret_opens_the_door,
    a_rotation_under_traffic_refuses_nobody,
    a_delivery_in_flight_is_not_disturbed_by_a_revocation,
    the_rules_of_rotation_hold_at_run_time,
    shared_secrets_rotate_for_every_inbox_that_has_them,
    nothing_secret_is_logged_or_printed,
];

fn signed(secrets: &[&str], event: &Event) -> Request<Body> {
    http(secrets, now(), event.body()).map(|()| Body::from(event.body()))
}

fn secret(text: &str) -> Secret {
    Secret::text(text).unwrap()
}

/// §6.2
async fn any_signature_by_any_active_secret_opens_the_door<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.secrets(["new", "old"]))
        .start()
        .await;
    let passes: [&[&str]; 6] = [
        &["new"],
        &["old"],
        &["new", "old"],
        &["old", "new"],
        &["none", "old"],
        &["new", "none"],
    ];
    for (n, secrets) in passes.into_iter().enumerate() {
        let reply = world
            .post(signed(secrets, &Event::new(&format!("evt_{n}"))))
            .await;
        assert_eq!(
            (reply.status, reply.outcome()),
            (204, "applied"),
            "{secrets:?}"
        );
    }
    for secrets in [&["none"][..], &["New"], &["none", "nobody"]] {
        world
            .post(signed(secrets, &Event::new("evt_no")))
            .await
            .is(401, "rejected");
    }
}

/// §2.2, TRAPS: "a comparison over the shorter length".
async fn every_digit_of_a_signature_counts<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let event = Event::new("evt_1");
    let good = world.request(&event).headers()["x-kudos-signature"].clone();
    let good = good.to_str().unwrap();
    let digits = good.find("v1=").expect("one of version 1") + 3..good.len();
    assert_eq!(digits.len(), 64);
    for at in digits.clone() {
        let digit = if &good[at..=at] == "0" { "1" } else { "0" };
        let mut changed = good.to_owned();
        changed.replace_range(at..=at, digit);
        let mut shorter = good.to_owned();
        shorter.truncate(at);
        for signature in [changed, shorter] {
            let mut request = world.request(&event);
            let headers = request.headers_mut();
            headers.insert("x-kudos-signature", signature.parse().unwrap());
            let reply = world.post(request).await;
            assert_eq!(reply.status, 401, "{signature}: {reply:?}");
        }
    }
    world.send(&event).await.is_applied();
}

/// §6.1, §9: the producer's steps and the receiver's in the order of the runbook.
async fn a_rotation_under_traffic_refuses_nobody<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.secrets(["key_0"]))
        .start()
        .await;
    let signing: Arc<Mutex<Vec<String>>> = Arc::new(Mutex::new(vec!["key_0".into()]));
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let senders: Vec<_> = (0..4)
        .map(|sender| {
            let (world, signing, done) = (world.clone(), Arc::clone(&signing), Arc::clone(&done));
            tokio::spawn(async move {
                let mut sent = 0;
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    sent += 1;
                    let event = numbered(&format!("acct_{sender}"), sent);
                    let request = {
                        // Sent before the producer takes its next step: a revocation comes after those in flight.
                        let keys = signing.lock().unwrap();
                        signed(&keys.iter().map(String::as_str).collect::<Vec<_>>(), &event)
                    };
                    world.post(request).await.is_applied();
                }
                sent
            })
        })
        .collect();
    let progress = async |lines: usize| {
        let before = world.ledger().await.len();
        eventually("traffic goes on", async || {
            world.ledger().await.len() >= before + lines
        })
        .await;
    };
    let secrets = world.inbox.secrets(SOURCE).unwrap();
    for n in 1..=5 {
        let (old, new) = (format!("key_{}", n - 1), format!("key_{n}"));
        progress(8).await;
        secrets.rotate(secret(&new)).unwrap();
        *signing.lock().unwrap() = vec![new.clone(), old];
        progress(8).await;
        *signing.lock().unwrap() = vec![new];
        // Those that were signed with both are through.
        progress(8).await;
        let demoted = secrets
            .active()
            .into_iter()
            .find(|active| !active.newest)
            .unwrap();
        secrets.revoke(&demoted.label).unwrap();
    }
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    for (sender, sent) in senders.into_iter().enumerate() {
        let sent = i64::try_from(sent.await.unwrap()).unwrap();
        assert_eq!(
            world.sequences(&format!("acct_{sender}")).await,
            (1..=sent).collect::<Vec<_>>()
        );
    }
    world
        .post(signed(&["key_4"], &Event::new("evt_late")))
        .await
        .is(401, "rejected");
}

/// §6.1: "a delivery takes it once and is then not disturbed".
async fn a_delivery_in_flight_is_not_disturbed_by_a_revocation<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let world = World::<D>::over(&db)
        .source(|source| source.secrets(["new", "old"]))
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                gate.pass().await;
                http::StatusCode::NO_CONTENT
            }
        })
        .start()
        .await;
    let running = tokio::spawn({
        let (world, request) = (world.clone(), signed(&["old"], &Event::new("evt_1")));
        async move { world.post(request).await }
    });
    gate.reached_by(1).await;
    let secrets = world.inbox.secrets(SOURCE).unwrap();
    let old = secrets
        .active()
        .into_iter()
        .find(|active| !active.newest)
        .unwrap();
    secrets.revoke(&old.label).unwrap();
    world
        .post(signed(&["old"], &Event::new("evt_1")))
        .await
        .is(401, "rejected");
    gate.open();
    running.await.unwrap().is_applied();
    world
        .post(signed(&["new"], &Event::new("evt_1")))
        .await
        .is_duplicate();
}

/// §6.1
async fn the_rules_of_rotation_hold_at_run_time<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.secrets(["one"]))
        .start()
        .await;
    assert!(world.inbox.secrets("nobody").is_none());
    let secrets = world.inbox.secrets(SOURCE).unwrap();
    let first = secrets.active()[0].label.to_string();
    assert_eq!(secrets.revoke(&first), Err(SecretError::None));
    secrets.rotate(secret("two")).unwrap();
    assert_eq!(secrets.rotate(secret("three")), Err(SecretError::TooMany));
    world
        .post(signed(&["three"], &Event::new("evt_1")))
        .await
        .is(401, "rejected");
    world
        .post(signed(&["one"], &Event::new("evt_1")))
        .await
        .is_applied();
    secrets.revoke(&first).unwrap();
    world
        .post(signed(&["one"], &Event::new("evt_2")))
        .await
        .is(401, "rejected");
    world
        .post(signed(&["two"], &Event::new("evt_2")))
        .await
        .is_applied();
}

/// §6.1
async fn shared_secrets_rotate_for_every_inbox_that_has_them<D: TestDb>(db: D) {
    let secrets = Secrets::new([secret("one")]).unwrap();
    let (left, right) = (secrets.clone(), secrets.clone());
    let left = World::<D>::over(&db)
        .source(|source| source.shared_secrets(left))
        .start()
        .await;
    let right = World::<D>::over(&db)
        .source(|source| source.shared_secrets(right))
        .start()
        .await;
    secrets.rotate(secret("two")).unwrap();
    left.post(signed(&["two"], &Event::new("evt_1")))
        .await
        .is_applied();
    right
        .post(signed(&["two"], &Event::new("evt_1")))
        .await
        .is_duplicate();
}

/// §6.5, §6.6: every line of every target in full detail, and every `Debug`, over traffic of all kinds.
async fn nothing_secret_is_logged_or_printed<D: TestDb>(db: D) {
    let watch = Watch::everything();
    // Texts that occur nowhere else.
    let [new, old, third] = [1, 2, 3].map(|_| format!("whk_{:032x}", fastrand::u128(..)));
    let source = Source::kudos(SOURCE).secrets([new.clone(), old.clone()]);
    let mut printed = vec![format!("{source:?}")];
    let world = World::<D>::over(&db)
        .source(|_| source.clone())
        .answers(|call| match call.delivery.event_id() {
            "evt_503" => 503,
            "evt_422" => 422,
            "evt_panic" => panic!("this panic is part of the test"),
            _ => 0,
        })
        .start()
        .await;
    let builder = Inbox::builder(world.pool.clone()).source(source);
    printed.push(format!("{builder:?}"));
    let failed = Inbox::builder(world.pool.clone())
        .source(Source::kudos("bad").secrets([new.clone(), new.clone()]))
        .build()
        .await
        .unwrap_err();
    printed.push(format!("{failed} {failed:?}"));
    let secrets = world.inbox.secrets(SOURCE).unwrap();
    printed.push(format!(
        "{:?} {secrets:?} {:?}",
        world.inbox,
        secrets.active()
    ));
    printed.push(format!("{:?}", world.inbox.layer::<Body>(SOURCE)));
    let mut private = vec![new.clone(), old.clone(), third.clone()];
    private.extend([&new, &old, &third].map(hex::encode));
    private.extend([&new, &old, &third].map(|text| format!("{:?}", text.as_bytes())));
    let mut send = async |keys: &[&str], event: &Event| {
        let request = signed(keys, event);
        let signature = request.headers()["x-kudos-signature"].to_str().unwrap();
        // A signature that verifies opens the door for five minutes, and a computed one too.
        private.extend(
            signature
                .split(',')
                .filter_map(|part| part.strip_prefix("v1="))
                .map(str::to_owned),
        );
        world.post(request).await
    };
    for id in ["evt_1", "evt_1", "evt_503", "evt_422", "evt_panic", ""] {
        send(&[&new, &old], &Event::new(id)).await;
    }
    send(&[&old], &numbered("acct", 2)).await.is_parked(1);
    send(&[&old], &numbered("acct", 1)).await.is_applied();
    send(&["somebody else's"], &Event::new("evt_1"))
        .await
        .is(401, "rejected");
    send(&[&third], &Event::new("evt_1"))
        .await
        .is(401, "rejected");
    send(&[&new], &Event::new("evt_1").amount(99))
        .await
        .is(422, "rejected");
    assert!(secrets.rotate(secret(&third)).is_err());
    let demoted = secrets.active()[1].label.to_string();
    secrets.revoke(&demoted).unwrap();
    secrets.rotate(secret(&third)).unwrap();
    send(&[&third], &Event::new("evt_2")).await.is_applied();
    send(&[&old], &Event::new("evt_3"))
        .await
        .is(401, "rejected");
    eventually("2 follows", async || {
        world.sequences("acct").await.len() == 2
    })
    .await;
    world.stop().await;
    let mut lines = watch.take();
    assert!(
        lines.iter().any(|line| line.contains("refused a delivery")),
        "nothing was watched"
    );
    assert!(
        lines.iter().any(|line| line.contains("sqlx::query")),
        "not in full detail"
    );
    lines.extend(printed);
    for line in &lines {
        for text in &private {
            assert!(!line.contains(text), "{text} is in: {line}");
        }
    }
}
