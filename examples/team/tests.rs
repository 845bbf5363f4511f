//! How the team knows that its handlers can be trusted with a producer that sends everything twice.

use std::time::Duration;

use axum::Router;
use serde_json::{Value, json};
use sqlx::{Sqlite, SqlitePool};
use tower_inbox::operator::Reason;
use tower_inbox::testkit::schedule::Ending;
use tower_inbox::testkit::{self, Event, Kit, Network, Producer, TestDatabase, VirtualClock};
use tower_inbox::{Inbox, Preset};

use crate::service;

const SECRET: &str = "the secret of last year";
const NEXT_SECRET: &str = "the secret of this year";
const HOURS: Duration = Duration::from_secs(3_600);

async fn start(pool: SqlitePool) -> (Inbox<Sqlite>, Router) {
    service::prepare(&pool).await.expect("tables");
    let inbox = service::inbox(pool, [NEXT_SECRET, SECRET]).build().await;
    let inbox = inbox.expect("an inbox");
    let routes = service::routes(&inbox);
    (inbox, routes)
}

#[tokio::test]
async fn a_payment_is_booked_once() {
    let db = testkit::sqlite().await;
    let (inbox, routes) = start(db.pool()).await;
    let kit = Kit::new(&inbox, routes);
    let payment = testkit::event("evt_1")
        .kind("payment.received")
        .data(json!({"account": "anna", "cents": 500}));
    let request = payment.request(Preset::KUDOS, SECRET).to("/webhooks/crm");
    kit.send(request.clone()).await.assert_applied_once();
    kit.send(request).await.assert_duplicate();
    kit.assert_effects("SELECT SUM(balance) FROM accounts", 500)
        .await;
    kit.assert_effects("SELECT COUNT(*) FROM outbox", 1).await;
}

/// Side effects, swallowed errors, restarts, crowds, and whatever else the kit knows.
#[tokio::test]
async fn the_service_is_idempotent() {
    let report = testkit::check_idempotent(testkit::sqlite().await, start)
        .producer(Preset::KUDOS, SECRET)
        .rotating_to(NEXT_SECRET)
        .to("/webhooks/crm")
        .event("payment.received", json!({"account": "anna", "cents": 500}))
        .event(
            "account.renamed",
            json!({"account": "anna", "owner": "Anna"}),
        )
        .run()
        .await;
    report.assert_clean();
}

/// The service in virtual time, and the CRM in front of it.
struct World {
    db: TestDatabase<Sqlite>,
    clock: VirtualClock,
    kit: Kit<Sqlite>,
    crm: Producer,
}

impl World {
    async fn new() -> Self {
        let (db, clock) = (testkit::sqlite().await, VirtualClock::new());
        service::prepare(&db.pool()).await.expect("tables");
        let inbox = service::inbox(db.pool(), [NEXT_SECRET, SECRET]).clock(clock.clone());
        let inbox = inbox.build().await.expect("an inbox");
        let kit = Kit::new(&inbox, service::routes(&inbox)).clock(&clock);
        let crm = kit.producer(Preset::KUDOS, SECRET).to("/webhooks/crm");
        Self {
            db,
            clock,
            kit,
            crm,
        }
    }

    async fn owner(&self, account: &str) -> String {
        sqlx::query_scalar("SELECT owner FROM accounts WHERE id = ?")
            .bind(account)
            .fetch_one(&self.db.pool())
            .await
            .expect("an account")
    }
}

fn event(account: &str, sequence: i64, kind: &str, data: Value) -> Event {
    testkit::event(format!("{account}-{sequence}"))
        .kind(kind)
        .stream(account, sequence)
        .data(data)
}

/// Anna pays twenty times, a cent more each time: 210 cents in all.
fn payments() -> Vec<Event> {
    let payment = |n: i64| json!({"account": "anna", "cents": n});
    (1..=20)
        .map(|n| event("anna", n, "payment.received", payment(n)))
        .collect()
}

#[tokio::test]
async fn the_last_name_is_the_one_that_stays_in_whatever_order_they_arrive() {
    let world = World::new().await;
    let names = ["Anna", "Anna B.", "Anna Berg", "Anna Berg-Lind"];
    let renaming = |(n, name): (i64, &str)| {
        event(
            "anna",
            n,
            "account.renamed",
            json!({"account": "anna", "owner": name}),
        )
    };
    let events: Vec<_> = (1..).zip(names).map(renaming).collect();
    let network = Network::perfect()
        .reorder(4)
        .duplicates(0.3)
        .drop_answers(0.3);
    for story in world.crm.clone().network(network).run(&events).await {
        story.assert_applied_once();
    }
    assert_eq!(world.owner("anna").await, "Anna Berg-Lind");
}

/// The CRM gives up after an hour and three quarters; then our operators ask it for a replay.
#[tokio::test]
async fn an_outage_of_72_hours_loses_nothing() {
    let world = World::new().await;
    let away = Network::perfect().down_for(72 * HOURS);
    for story in world.crm.clone().network(away).run(&payments()).await {
        story.assert_ended(Ending::Exhausted).assert_not_applied();
    }
    world.clock.advance(72 * HOURS);
    let back = world.crm.clone().network(Network::perfect());
    for story in back.replay(&payments()).await {
        story.assert_ended(Ending::Delivered).assert_applied_once();
    }
    let (sum, mails) = (
        "SELECT balance FROM accounts",
        "SELECT COUNT(*) FROM outbox",
    );
    world.kit.assert_effects(sum, 210).await;
    world.kit.assert_effects(mails, 20).await;
}

#[tokio::test]
async fn a_replay_of_what_we_have_sends_no_mail_again() {
    let world = World::new().await;
    world.crm.run(&payments()).await;
    world.clock.advance(24 * HOURS);
    for story in world.crm.replay(&payments()).await {
        story.assert_duplicate().assert_runs(1);
    }
    let mails = "SELECT COUNT(*) FROM outbox";
    world.kit.assert_effects(mails, 20).await;
}

#[tokio::test]
async fn a_rotation_in_the_middle_of_the_traffic_refuses_nobody() {
    let world = World::new().await;
    let crm = world.crm.clone();
    let network = Network::perfect().each(move |sending| {
        match sending.attempts_before {
            5 => crm.sign_with([NEXT_SECRET, SECRET]),
            15 => crm.sign_with([NEXT_SECRET]),
            _ => {}
        }
        None
    });
    for story in world.crm.clone().network(network).run(&payments()).await {
        story.assert_attempts(1).assert_applied_once();
    }
}

/// What happened can be read, and asked for.
#[tokio::test]
async fn a_payment_whose_answer_was_lost_tells_its_story() {
    let world = World::new().await;
    let network = Network::perfect().drop_answer_after_commit();
    let crm = world.crm.clone().network(network);
    let story = crm.deliver(&payments()[0]).await;
    story.assert_attempts(2).assert_applied_once();
    assert_eq!(story.statuses(), [204, 200]);
    let text = story.to_string();
    assert!(
        text.contains("answered 204 applied; its producer does not see that"),
        "{text}"
    );
    assert!(text.contains("known from memory"), "{text}");
}

#[tokio::test]
async fn a_payment_without_an_amount_is_a_dead_letter_for_our_operators() {
    let world = World::new().await;
    let payment = event("anna", 1, "payment.received", json!({"account": "anna"}));
    let story = world.crm.deliver(&payment).await;
    story
        .assert_answered(422, "rejected")
        .assert_ended(Ending::Refused)
        .assert_dead(Reason::Rejected);
}
