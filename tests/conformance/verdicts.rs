//! §2.9, §3: what becomes of a handler's answer, and of an outcome that it states.

use axum::body::Body;
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use tower_inbox::{Tx, TxError, Verdict};

use crate::db::TestDb;
use crate::kit::{Call, Event, World, numbered};

suite![
    every_success_of_the_handler_goes_out_as_it_is,
    failures_of_the_handler_go_out_as_they_are_and_keep_nothing,
    terminal_verdicts_of_the_handler_go_out_as_they_are,
    a_stated_commit_beats_the_status,
    a_stated_rollback_beats_the_status,
    a_stated_outcome_beats_a_layer_that_rewrites_the_status,
    without_a_stated_outcome_the_status_that_reaches_the_inbox_counts,
    a_verdict_in_the_answer_counts_like_a_stated_one,
    the_last_outcome_stated_counts,
    the_transaction_is_lent_once_at_a_time,
];

/// A handler that writes its line and answers with the status in the event's id: `503_…`.
fn echoing<D: TestDb>(db: &D) -> crate::kit::Setup<D> {
    World::<D>::over(db).handler(|mut call: Call<D>| async move {
        call.append().await;
        let status = call.delivery.event_id()[..3].parse().expect("a status");
        Response::builder()
            .status(StatusCode::from_u16(status).expect("a status"))
            .header("x-handler", "mine")
            .header("retry-after", "17")
            .header("inbox-outcome", "forged")
            .body(Body::from("the handler's own words"))
            .expect("a response")
    })
}

/// §3
async fn every_success_of_the_handler_goes_out_as_it_is<D: TestDb>(db: D) {
    let world = echoing(&db).start().await;
    for status in [200, 201, 202, 203, 204, 206, 299] {
        let reply = world.send(&Event::new(&format!("{status}_a"))).await;
        reply.is(status, "applied");
        assert_eq!(reply.headers["x-handler"], "mine");
        assert_eq!(reply.headers.get_all("inbox-outcome").iter().count(), 1);
        if status != 204 {
            assert_eq!(reply.body, "the handler's own words");
        }
        world
            .send(&Event::new(&format!("{status}_a")))
            .await
            .is_duplicate();
    }
}

/// §3: rolled back; `Retry-After` passes through; and the retry is a new attempt. 425 ends an event for Kudos, which would
/// be lost, since nothing of it is kept: 503.
async fn failures_of_the_handler_go_out_as_they_are_and_keep_nothing<D: TestDb>(db: D) {
    let world = echoing(&db).start().await;
    for status in [408, 425, 429, 500, 502, 503, 504, 599] {
        let event = numbered(&format!("acct_{status}"), 1).with("event_id", format!("{status}_a"));
        for attempt in 1..=2 {
            let reply = world.send(&event).await;
            reply.is(if status == 425 { 503 } else { status }, "failed");
            assert_eq!(
                (&reply.headers["retry-after"], &*reply.body),
                (&"17".parse().unwrap(), &b"the handler's own words"[..])
            );
            assert_eq!(world.probe.runs(event.id()), attempt);
        }
    }
    assert!(world.ledger().await.is_empty());
    for table in ["event", "pending", "audit"] {
        assert_eq!(
            world
                .number(&format!("SELECT COUNT(*) FROM {{p}}{table}"))
                .await,
            0,
            "{table}"
        );
    }
    world.pool_is_whole().await;
}

/// §3: a handler's own 4xx or 3xx is its verdict on this payload.
async fn terminal_verdicts_of_the_handler_go_out_as_they_are<D: TestDb>(db: D) {
    let world = echoing(&db).start().await;
    for status in [
        301, 302, 304, 400, 401, 403, 404, 405, 409, 413, 418, 422, 451,
    ] {
        let reply = world.send(&Event::new(&format!("{status}_a"))).await;
        reply.is(status, "rejected");
        assert_eq!(reply.headers["x-handler"], "mine");
    }
    assert!(world.ledger().await.is_empty());
    assert_eq!(world.in_state(3).await, 13);
}

/// A handler that states `verdict` and answers with the status in the event's id.
fn stating<D: TestDb>(db: &D, verdict: Verdict) -> crate::kit::Setup<D> {
    World::<D>::over(db).handler(move |mut call: Call<D>| async move {
        call.append().await;
        call.tx.decide(verdict);
        StatusCode::from_u16(call.delivery.event_id()[..3].parse().expect("a status"))
            .expect("a status")
    })
}

/// §2.9: "commit means a 2xx goes out".
async fn a_stated_commit_beats_the_status<D: TestDb>(db: D) {
    let world = stating(&db, Verdict::Commit).start().await;
    for (status, expected) in [
        (200, 200),
        (202, 202),
        (302, 200),
        (404, 200),
        (429, 200),
        (500, 200),
    ] {
        let event = Event::new(&format!("{status}_a"));
        world.send(&event).await.is(expected, "applied");
        world.send(&event).await.is_duplicate();
    }
    assert_eq!(
        (world.ledger().await.len(), world.in_state(1).await),
        (6, 6)
    );
}

/// §2.9: "roll back means never a 2xx".
async fn a_stated_rollback_beats_the_status<D: TestDb>(db: D) {
    let world = stating(&db, Verdict::RollBack).start().await;
    for (status, expected, outcome) in [
        (200, 500, "failed"),
        (204, 500, "failed"),
        (503, 503, "failed"),
        (422, 422, "rejected"),
    ] {
        world
            .send(&Event::new(&format!("{status}_a")))
            .await
            .is(expected, outcome);
    }
    assert!(world.ledger().await.is_empty());
    assert_eq!(world.in_state(1).await, 0);
}

/// §2.9; TRAPS: "the verdict is read off a status that an outer layer has already rewritten".
async fn a_stated_outcome_beats_a_layer_that_rewrites_the_status<D: TestDb>(db: D) {
    async fn always_200(_: Response) -> Response {
        StatusCode::OK.into_response()
    }
    async fn always_500(_: Response) -> Response {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
    let failing = stating(&db, Verdict::RollBack)
        .inner(|router| router.layer(map_response(always_200)))
        .start()
        .await;
    failing.send(&Event::new("503_a")).await.is(500, "failed");
    assert!(failing.ledger().await.is_empty());
    failing.stop().await;
    let succeeding = stating(&db, Verdict::Commit)
        .inner(|router| router.layer(map_response(always_500)))
        .start()
        .await;
    succeeding
        .send(&Event::new("200_a"))
        .await
        .is(200, "applied");
    succeeding.send(&Event::new("200_a")).await.is_duplicate();
    assert_eq!(succeeding.applied().await, ["200_a"]);
}

/// §2.9: layers between the inbox and the handler count; layers outside of the inbox do not.
async fn without_a_stated_outcome_the_status_that_reaches_the_inbox_counts<D: TestDb>(db: D) {
    async fn to_200(mut response: Response) -> Response {
        *response.status_mut() = StatusCode::OK;
        response
    }
    let world = World::<D>::over(&db).answers(|_| 503).start().await;
    let outside = world.through(world.app.clone().layer(map_response(to_200)));
    outside.send(&Event::new("evt_1")).await.is(200, "failed");
    assert!(world.ledger().await.is_empty());
    world.send(&Event::new("evt_1")).await.is(503, "failed");
}

/// §2.9: `(Verdict::RollBack, StatusCode::OK)` as an answer.
async fn a_verdict_in_the_answer_counts_like_a_stated_one<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            match call.delivery.event_id() {
                "evt_back" => (Verdict::RollBack, StatusCode::OK).into_response(),
                _ => (Verdict::Commit, StatusCode::BAD_GATEWAY).into_response(),
            }
        })
        .start()
        .await;
    world.send(&Event::new("evt_back")).await.is(500, "failed");
    world
        .send(&Event::new("evt_commit"))
        .await
        .is(200, "applied");
    assert_eq!(world.applied().await, ["evt_commit"]);
}

/// §2.9
async fn the_last_outcome_stated_counts<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            call.delivery.decide(Verdict::Commit);
            call.tx.decide(Verdict::RollBack);
            StatusCode::OK
        })
        .start()
        .await;
    world.send(&Event::new("evt_1")).await.is(500, "failed");
    assert!(world.ledger().await.is_empty());
}

/// §4.4: dropped, it can be taken again; held, it cannot.
async fn the_transaction_is_lent_once_at_a_time<D: TestDb>(db: D) {
    assert!(matches!(
        Tx::<D::DB>::take(&http::Extensions::new()),
        Err(TxError::NoInbox)
    ));
    let world = World::<D>::over(&db)
        .handler(|mut call: Call<D>| async move {
            let extensions = call.request.extensions().clone();
            assert!(matches!(
                Tx::<D::DB>::take(&extensions),
                Err(TxError::Taken)
            ));
            call.append().await;
            let entry = call.entry();
            drop(call.tx);
            let mut again = Tx::<D::DB>::take(&extensions).expect("it is back");
            D::append(&mut again, &entry)
                .await
                .expect("it is the same transaction");
        })
        .start()
        .await;
    world.send(&Event::new("evt_1")).await.is(200, "applied");
    assert_eq!(world.applied().await, ["evt_1", "evt_1"]);
    world.pool_is_whole().await;
}
