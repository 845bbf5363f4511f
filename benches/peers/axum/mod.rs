//! A receiver as a good engineer writes it by hand in a day, with axum and sqlx: the signature by one secret, the event's
//! id inserted in the transaction that the handler writes in, 200 for what is known.

pub(crate) mod mysql;
pub(crate) mod ordered;
pub(crate) mod postgres;
pub(crate) mod sqlite;

use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use sha2::Sha256;

/// Older or newer signatures are refused.
const TOLERANCE_S: u64 = 300;

/// What is shared by all requests.
pub(crate) struct App<DB: sqlx::Database> {
    key: Hmac<Sha256>,
    pool: sqlx::Pool<DB>,
}

impl<DB: sqlx::Database> App<DB> {
    pub(crate) fn new(secret: &str, pool: sqlx::Pool<DB>) -> Self {
        Self {
            key: key(secret),
            pool,
        }
    }
}

pub(crate) fn key(secret: &str) -> Hmac<Sha256> {
    Hmac::new_from_slice(secret.as_bytes()).expect("a key of any length")
}

/// No database: what is left is HTTP and the signature.
pub(crate) async fn verify_only(
    State(key): State<Hmac<Sha256>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<StatusCode, StatusCode> {
    verify(&key, &headers, &body)?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
struct Event {
    event_id: String,
    correlation_id: Option<String>,
    sequence: Option<i64>,
    data: Payment,
}

#[derive(Deserialize)]
struct Payment {
    account: String,
    amount: i64,
}

/// `t=<unix s>,v1=<hex>` over `<t>.<body>`, compared in constant time.
fn verify(key: &Hmac<Sha256>, headers: &HeaderMap, body: &[u8]) -> Result<(), StatusCode> {
    let signed = || {
        let header = headers.get("x-kudos-signature")?.to_str().ok()?;
        let (mut time, mut signature) = (None, None);
        for part in header.split(',') {
            match part.trim().split_once('=')? {
                ("t", value) => time = Some(value),
                ("v1", value) => signature = hex::decode(value).ok(),
                _ => {}
            }
        }
        let (time, signature) = (time?, signature?);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
        if now.abs_diff(time.parse().ok()?) > TOLERANCE_S {
            return None;
        }
        let mut mac = key.clone();
        mac.update(time.as_bytes());
        mac.update(b".");
        mac.update(body);
        mac.verify_slice(&signature).ok()
    };
    signed().ok_or(StatusCode::UNAUTHORIZED)
}

fn read(body: &[u8]) -> Result<Event, StatusCode> {
    serde_json::from_slice(body).map_err(|_| StatusCode::BAD_REQUEST)
}

fn fault(error: sqlx::Error) -> StatusCode {
    tracing::error!(%error, "the database");
    StatusCode::INTERNAL_SERVER_ERROR
}
