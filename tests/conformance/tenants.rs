//! Sources that come and go: looked up as their deliveries arrive.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::post;
use bytes::Bytes;
use http::request::Parts;
use http::{Request, StatusCode};
use sqlx::pool::PoolOptions;
use tower::ServiceExt;
use tower_inbox::preset::Preset;
use tower_inbox::verify::{Secret, Signer};
use tower_inbox::{BuildErrorKind, Delivery, Inbox, Source, Tenant, TenantFuture, Tenants, Tx};

use crate::db::{Entry, TestDb};
use crate::kit::{Event, Reply, eventually, now, numbered};

suite![
    each_tenant_has_its_own_secret_and_its_own_events,
    an_unknown_tenant_gets_what_a_wrong_signature_gets,
    a_look_up_that_fails_is_a_503,
    parked_events_of_a_tenant_are_drained_after_a_restart,
    a_tenant_is_checked_like_any_source,
    a_tenant_that_is_made_anew_is_deregistered_still,
];

/// The tenants of a test: a name is a secret too.
#[derive(Clone, Default)]
struct Book {
    tenants: Arc<Mutex<HashMap<String, Tenant>>>,
    asked: Arc<AtomicUsize>,
    away: Arc<AtomicBool>,
}

impl Book {
    fn add<D: TestDb>(&self, inbox: &Inbox<D::DB>, name: &str) {
        let source = Source::kudos(name).secrets([format!("secret of {name}")]);
        let tenant = inbox.tenant(source).expect("a good source");
        self.tenants.lock().unwrap().insert(name.to_owned(), tenant);
    }

    fn find(&self, name: Option<&str>) -> TenantFuture<'static> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let tenant = name.and_then(|name| self.tenants.lock().unwrap().get(name).cloned());
        let away = self.away.load(Ordering::Relaxed);
        Box::pin(async move {
            if away {
                Err("the look-up is away".into())
            } else {
                Ok(tenant)
            }
        })
    }
}

impl Tenants for Book {
    fn by_request<'a>(&'a self, request: &'a Parts) -> TenantFuture<'a> {
        self.find(request.uri.path().strip_prefix("/t/"))
    }

    fn by_name<'a>(&'a self, name: &'a str) -> TenantFuture<'a> {
        self.find(Some(name))
    }
}

struct Town<D: TestDb> {
    inbox: Inbox<D::DB>,
    eyes: sqlx::Pool<D::DB>,
    book: Book,
    app: Router,
}

async fn town<D: TestDb>(db: &D, tenants: &[&str]) -> Town<D> {
    let pool = db.pool(PoolOptions::new().max_connections(4)).await;
    let eyes = db.pool(PoolOptions::new().max_connections(1)).await;
    let inbox = Inbox::builder(pool)
        .table_prefix(db.prefix())
        .tenants_only()
        .build()
        .await
        .expect("built");
    let book = Book::default();
    for name in tenants {
        book.add::<D>(&inbox, name);
    }
    let handler = async |Path(tenant): Path<String>, mut tx: Tx<D::DB>, delivery: Delivery| {
        assert_eq!(
            tenant,
            delivery.source(),
            "the path parameter, live and drained"
        );
        let entry = Entry {
            event_id: delivery.event_id().to_owned(),
            account: tenant,
            sequence: delivery.sequence(),
            amount: 1,
        };
        D::append(&mut tx, &entry)
            .await
            .expect("the ledger takes it");
        StatusCode::NO_CONTENT
    };
    let app = inbox.mount_tenants(
        book.clone(),
        Router::new().route("/t/{tenant}", post(handler)),
    );
    Town {
        inbox,
        eyes,
        book,
        app,
    }
}

impl<D: TestDb> Town<D> {
    async fn send(&self, tenant: &str, signed_by: &str, event: &Event) -> Reply {
        let body: Bytes = event.body();
        let secret = Secret::text(format!("secret of {signed_by}")).expect("not empty");
        let signer = Signer::new(&Preset::KUDOS.scheme(), [secret]).expect("an HMAC scheme");
        let request = Request::post(format!("/t/{tenant}")).body(Body::from(body.clone()));
        let mut request = request.expect("a request");
        request
            .headers_mut()
            .extend(signer.sign(now(), None, &body).expect("signed"));
        let answer = self.app.clone().oneshot(request).await;
        Reply::read(answer.unwrap_or_else(|never| match never {})).await
    }

    async fn applied(&self) -> Vec<(String, String)> {
        let ledger = D::ledger(&self.eyes).await;
        ledger
            .into_iter()
            .map(|entry| (entry.account, entry.event_id))
            .collect()
    }
}

/// §1: a source is one tenant of one producer.
async fn each_tenant_has_its_own_secret_and_its_own_events<D: TestDb>(db: D) {
    let town = town(&db, &["acme", "bolt"]).await;
    let event = Event::new("evt_1");
    town.send("acme", "acme", &event).await.is_applied();
    town.send("acme", "acme", &event).await.is_duplicate();
    assert_eq!(town.send("bolt", "acme", &event).await.status, 401);
    town.send("bolt", "bolt", &event).await.is_applied();
    let of = |tenant: &str| (tenant.to_owned(), "evt_1".to_owned());
    assert_eq!(town.applied().await, [of("acme"), of("bolt")]);
}

/// §3: 401 for an unknown source, without a word more. And it is there as soon as the look-up knows it.
async fn an_unknown_tenant_gets_what_a_wrong_signature_gets<D: TestDb>(db: D) {
    let town = town(&db, &["acme"]).await;
    let unknown = town.send("dent", "dent", &Event::new("evt_1")).await;
    let wrong = town.send("acme", "dent", &Event::new("evt_1")).await;
    assert_eq!((unknown.status, &unknown.body), (401, &wrong.body));
    assert_eq!(unknown.outcome(), wrong.outcome());
    town.book.add::<D>(&town.inbox, "dent");
    town.send("dent", "dent", &Event::new("evt_1"))
        .await
        .is_applied();
}

/// 401 is terminal: not what a look-up that is away may say (§2.2).
async fn a_look_up_that_fails_is_a_503<D: TestDb>(db: D) {
    let town = town(&db, &["acme"]).await;
    town.book.away.store(true, Ordering::Relaxed);
    let reply = town.send("acme", "acme", &Event::new("evt_1")).await;
    assert_eq!((reply.status, reply.outcome()), (503, "failed"));
    assert!(reply.retry_after().is_some());
    town.book.away.store(false, Ordering::Relaxed);
    town.send("acme", "acme", &Event::new("evt_1"))
        .await
        .is_applied();
}

/// §5.9: by its name alone, without a request.
async fn parked_events_of_a_tenant_are_drained_after_a_restart<D: TestDb>(db: D) {
    let before = town(&db, &["acme"]).await;
    before
        .send("acme", "acme", &numbered("a", 2))
        .await
        .is_parked(1);
    before.inbox.shutdown().await;
    let after = town(&db, &["acme"]).await;
    after
        .send("acme", "acme", &numbered("a", 1))
        .await
        .is_applied();
    eventually("the parked event is applied", async || {
        after.applied().await.len() == 2
    })
    .await;
    let ids: Vec<_> = after
        .applied()
        .await
        .into_iter()
        .map(|(_, id)| id)
        .collect();
    assert_eq!(ids, ["evt_a_1", "evt_a_2"]);
    assert!(after.book.asked.load(Ordering::Relaxed) >= 2);
}

/// (setup)
async fn a_tenant_is_checked_like_any_source<D: TestDb>(db: D) {
    let pool = db.pool(PoolOptions::new().max_connections(2)).await;
    let own = Source::kudos("crm").secrets(["a secret"]);
    let inbox = Inbox::builder(pool)
        .table_prefix(db.prefix())
        .source(own.clone())
        .build()
        .await
        .unwrap();
    let kind = |source: Source| inbox.tenant(source).expect_err("refused").kind();
    assert_eq!(kind(Source::kudos("acme")), BuildErrorKind::Secret);
    assert_eq!(
        kind(Source::kudos("a b").secrets(["x"])),
        BuildErrorKind::Name
    );
    assert_eq!(kind(own), BuildErrorKind::Name);
}

/// §3: here at once, and after a restart: a look-up that makes its tenants as it is asked knows nothing of it.
async fn a_tenant_that_is_made_anew_is_deregistered_still<D: TestDb>(db: D) {
    let before = town(&db, &["acme"]).await;
    let ada = before.inbox.operator("ada").expect("a name");
    ada.deregister("acme", "we move").await.expect("it is");
    before.book.add::<D>(&before.inbox, "acme");
    let after = town(&db, &["acme"]).await;
    for town in [&before, &after] {
        let reply = town.send("acme", "acme", &Event::new("evt_1")).await;
        assert_eq!((reply.status, reply.outcome()), (410, "rejected"));
    }
    ada.rearm("acme", "we have moved").await.expect("it is");
    before
        .send("acme", "acme", &Event::new("evt_1"))
        .await
        .is_applied();
}
