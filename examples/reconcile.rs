//! Reconciliation in one process: a producer that has given three events up, its list over HTTP, and an inbox that pulls
//! them from there, twice.
//!
//! `cargo run --example reconcile --features reconcile`. A whole producer is `examples/sender` with `--serve-replays`.
#![allow(clippy::print_stdout, reason = "a command-line program")]

use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;
use tower_inbox::reconcile::HttpReplays;
use tower_inbox::{Delivery, Inbox, Source, Tx};

type Error = Box<dyn std::error::Error>;

async fn on_event(mut tx: Tx<sqlx::Sqlite>, event: Delivery) -> Result<StatusCode, StatusCode> {
    let insert = sqlx::query("INSERT INTO seen (id) VALUES (?)").bind(event.event_id());
    let inserted = insert.execute(&mut *tx).await;
    inserted.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    println!("applied {} ({:?})", event.event_id(), event.origin());
    Ok(StatusCode::NO_CONTENT)
}

/// The producer's side: each event that all its attempts lost, as its delivery would be.
async fn given_up() -> Json<serde_json::Value> {
    let event = |id: &str, sequence: u32| {
        let body = json!({"event_id": id, "event_type": "order.paid", "correlation_id": "order-7",
            "sequence": sequence, "data": {}});
        json!({"event_id": id, "timestamp": "2026-05-30T08:42:11Z", "path": "/webhooks/crm",
            "headers": {"content-type": "application/json"}, "body": body.to_string()})
    };
    // In whatever order: the inbox applies them in theirs.
    Json(json!({"events": [event("evt_3", 3), event("evt_1", 1), event("evt_2", 2)], "next": null}))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/replays", listener.local_addr()?);
    let producer = Router::new().route("/replays", get(given_up));
    tokio::spawn(async { axum::serve(listener, producer).await });

    let pool = sqlx::sqlite::SqlitePoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .connect("sqlite::memory:")
        .await?;
    sqlx::query("CREATE TABLE seen (id TEXT PRIMARY KEY)")
        .execute(&pool)
        .await?;
    let source = Source::sequenced("crm").secrets(["a secret"]);
    let inbox = Inbox::builder(pool).source(source).build().await?;
    // Mounted, so that the inbox knows the handler; a real receiver serves it, too.
    let _app = inbox.mount("crm", Router::new().route("/webhooks/crm", post(on_event)));

    let replays = HttpReplays::new(&url, "the producer's key")?;
    for run in ["first", "second"] {
        let report = inbox.reconcile("crm", &replays).await?;
        println!(
            "{run} run: {} found, {} applied now, {} before, {} still missing",
            report.found,
            report.applied,
            report.already_applied,
            report.still_missing()
        );
    }
    inbox.shutdown().await;
    Ok(())
}
