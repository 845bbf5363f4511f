//! §8: what the metrics say of sources that come and go.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use http::request::Parts;
use http::{Request, Response};
use tower::ServiceExt;
use tower_inbox::{Source, Tenant, TenantFuture, Tenants};
use tower_layer::Layer;

use crate::db::TestDb;
use crate::kit::{Event, World, eventually, numbered};
use crate::metrics::{name, recording};

suite![
    a_tenant_that_is_gone_leaves_no_gauge_behind,
    a_look_up_that_fails_is_counted,
];

/// The only tenant there is, if there is one.
#[derive(Clone, Default)]
struct Book(Arc<Mutex<Option<Tenant>>>);

impl Tenants for Book {
    fn by_request<'a>(&'a self, _: &'a Parts) -> TenantFuture<'a> {
        let tenant = self.0.lock().unwrap().clone();
        Box::pin(async { tenant.map(Some).ok_or_else(|| "the book is lost".into()) })
    }

    fn by_name<'a>(&'a self, _: &'a str) -> TenantFuture<'a> {
        Box::pin(async { Ok(None) })
    }
}

/// What the tenant is answered.
async fn send<D: TestDb>(world: &World<D>, book: &Book, event: &Event) -> u16 {
    let handler = tower::service_fn(|_: Request<Body>| async {
        Ok::<_, Infallible>(Response::new(Body::empty()))
    });
    let service = world
        .inbox
        .layer_tenants::<Body>(book.clone())
        .layer(handler);
    let answer = service.oneshot(world.request(event)).await;
    answer
        .unwrap_or_else(|never| match never {})
        .status()
        .as_u16()
}

/// §8: an alert would go by them for ever. What is stored for it is told of as long as it is there.
async fn a_tenant_that_is_gone_leaves_no_gauge_behind<D: TestDb>(db: D) {
    let recording = recording();
    let (home, tenant) = (name(&db, "home"), name(&db, "guest"));
    let world = World::<D>::over(&db).named(&home).start().await;
    let book = Book::default();
    let source = Source::kudos(&*tenant).secrets([world.secret()]);
    let made = world.inbox.tenant(source).expect("it is checked");
    *book.0.lock().unwrap() = Some(made);
    assert_eq!(send(&world, &book, &numbered("acct", 2)).await, 202);
    let of = |name: &str| recording.value(name, &[("source", &tenant)]);
    eventually("it is sampled", async || {
        of("inbox_parked") == Some(1.0) && of("inbox_gaps") == Some(1.0)
    })
    .await;
    *book.0.lock().unwrap() = None;
    let age = of("inbox_oldest_parked_age_seconds");
    eventually("it is told of still", async || {
        of("inbox_oldest_parked_age_seconds") > age
    })
    .await;
    world
        .execute(&format!(
            "DELETE FROM {{p}}pending WHERE source = '{tenant}'"
        ))
        .await;
    eventually("nothing is left of it", async || {
        let gauges = [
            "inbox_parked",
            "inbox_gaps",
            "inbox_oldest_parked_age_seconds",
        ];
        gauges.iter().all(|gauge| of(gauge) == Some(0.0))
    })
    .await;
    assert_eq!(of("inbox_in_flight"), Some(0.0));
    world.stop().await;
}

/// §8: nobody's delivery, so that no source's numbers show that nothing gets in.
async fn a_look_up_that_fails_is_counted<D: TestDb>(db: D) {
    let recording = recording();
    let world = World::<D>::over(&db).named(&name(&db, "own")).start().await;
    assert_eq!(
        send(&world, &Book::default(), &Event::new("evt_1")).await,
        503
    );
    let labels = [("source", ""), ("reason", "unavailable")];
    let counted = recording.value("inbox_refused_total", &labels);
    assert!(counted >= Some(1.0), "{counted:?}");
    world.stop().await;
}
