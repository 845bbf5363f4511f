//! The service: its tables, its inbox, its routes and its handler.

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sqlx::{Sqlite, SqliteConnection, SqlitePool};
use tower_inbox::{Delivery, Inbox, InboxBuilder, Source, Tx};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS accounts (
        id TEXT PRIMARY KEY, owner TEXT NOT NULL DEFAULT '', balance INTEGER NOT NULL DEFAULT 0
    );
    CREATE TABLE IF NOT EXISTS outbox (
        id INTEGER PRIMARY KEY, account TEXT NOT NULL, text TEXT NOT NULL, sent_at TEXT
    )";

/// Makes the tables that are not there yet.
pub(crate) async fn prepare(pool: &SqlitePool) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(TABLES).execute(pool).await?;
    Ok(())
}

/// The inbox, ready to be built; tests give it a clock of theirs.
pub(crate) fn inbox<S: Into<String>>(
    pool: SqlitePool,
    secrets: impl IntoIterator<Item = S>,
) -> InboxBuilder<Sqlite> {
    Inbox::builder(pool).source(Source::kudos("crm").secrets(secrets.into_iter().map(Into::into)))
}

/// All routes: the webhooks behind the inbox, and what is not.
pub(crate) fn routes(inbox: &Inbox<Sqlite>) -> Router {
    let webhooks = Router::new().route("/webhooks/crm", post(on_event));
    inbox
        .mount("crm", webhooks)
        .route("/health", get(|| async { "ok" }))
}

#[derive(Deserialize)]
struct Payment {
    account: String,
    cents: i64,
}

#[derive(Deserialize)]
struct Renaming {
    account: String,
    owner: String,
}

async fn on_event(mut tx: Tx<Sqlite>, event: Delivery, body: Bytes) -> Result<StatusCode, Failure> {
    match event.event_type() {
        Some("payment.received") => book(&mut tx, data(&body)?).await?,
        Some("account.renamed") => rename(&mut tx, data(&body)?).await?,
        // The CRM has more types than we have uses for.
        _ => {}
    }
    Ok(StatusCode::NO_CONTENT)
}

/// The balance, and the mail about it: written here, sent by a task that looks for those without `sent_at`.
async fn book(conn: &mut SqliteConnection, payment: Payment) -> Result<(), sqlx::Error> {
    let balance: i64 = sqlx::query_scalar(
        "INSERT INTO accounts (id, balance) VALUES (?, ?)
         ON CONFLICT (id) DO UPDATE SET balance = balance + excluded.balance RETURNING balance",
    )
    .bind(&payment.account)
    .bind(payment.cents)
    .fetch_one(&mut *conn)
    .await?;
    sqlx::query("INSERT INTO outbox (account, text) VALUES (?, ?)")
        .bind(&payment.account)
        .bind(format!(
            "We have got your payment. Your balance is {balance} cents."
        ))
        .execute(conn)
        .await?;
    Ok(())
}

/// The last one counts, so that the order matters.
async fn rename(conn: &mut SqliteConnection, renaming: Renaming) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO accounts (id, owner) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET owner = excluded.owner",
    )
    .bind(renaming.account)
    .bind(renaming.owner)
    .execute(conn)
    .await?;
    Ok(())
}

/// What an event says.
fn data<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    #[derive(Deserialize)]
    struct Body<T> {
        data: T,
    }
    let body: Body<T> = serde_json::from_slice(body).map_err(Failure::Unreadable)?;
    Ok(body.data)
}

/// Why an event is not applied.
enum Failure {
    /// It will not get better: a dead letter.
    Unreadable(serde_json::Error),
    /// It may go better another time.
    Database(sqlx::Error),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Self::Unreadable(error) => {
                (StatusCode::UNPROCESSABLE_ENTITY, error.to_string()).into_response()
            }
            Self::Database(error) => {
                tracing::error!(%error, "an event could not be applied");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}
