//! A check of a whole app: what its handlers must not do is provoked, one thing after the other.

mod copies;
mod first;
pub(super) mod look;
mod report;
mod snapshot;
mod stage;
mod stream;
mod trouble;

use std::fmt;
use std::future::Future;

use serde_json::{Value, json};
use sqlx::Pool;

pub(super) use self::look::Look;
pub use self::report::{Check, Finding, Report, Severity};
use self::snapshot::Snapshot;
use super::app::App;
use super::database::{TestBackend, TestDatabase};
use super::event::{Content, Event};
use super::receive::Boxed;
use crate::preset::Preset;

/// Begins a check of an app: it is driven through duplicates, crowds, restarts, faults and failing commits with a sample of
/// each of its events, and whatever breaks is told.
///
/// `app` makes the app over a pool: it is called for each of several databases, and again over the same one for a restart.
/// The databases are made in the same place as `db`, which stays empty. The app's tables are made by [`Checking::schema`],
/// or by `app` itself. It takes a [`VirtualClock`](super::VirtualClock) or the real one.
///
/// ```
/// # #[cfg(all(feature = "axum", feature = "sqlite"))] mod example {
/// use axum::{Json, Router, http::StatusCode, routing::post};
/// use serde_json::{Value, json};
/// use sqlx::SqlitePool;
/// use tower_inbox::{Inbox, Preset, Source, Tx, testkit};
///
/// async fn on_payment(mut tx: Tx<sqlx::Sqlite>, Json(event): Json<Value>) -> StatusCode {
///     let Some(amount) = event["data"]["amount"].as_i64() else { return StatusCode::BAD_REQUEST };
///     let booked = sqlx::query("INSERT INTO bookings (amount) VALUES (?)").bind(amount).execute(&mut *tx).await;
///     if booked.is_ok() { StatusCode::NO_CONTENT } else { StatusCode::INTERNAL_SERVER_ERROR }
/// }
///
/// async fn app(pool: SqlitePool) -> (Inbox<sqlx::Sqlite>, Router) {
///     let crm = Source::kudos("crm").secrets(["a secret"]);
///     let inbox = Inbox::builder(pool).source(crm).build().await.unwrap();
///     let routes = inbox.mount("crm", Router::new().route("/webhooks/crm", post(on_payment)));
///     (inbox, routes)
/// }
///
/// # pub async fn main() {
/// let report = testkit::check_idempotent(testkit::sqlite().await, app)
///     .schema("CREATE TABLE bookings (amount INTEGER NOT NULL)")
///     .producer(Preset::KUDOS, "a secret")
///     .to("/webhooks/crm")
///     .event("payment", json!({"amount": 5}))
///     .run()
///     .await;
/// report.assert_ok();
/// # report.assert_clean();
/// # }
/// # }
/// # #[cfg(all(feature = "axum", feature = "sqlite"))]
/// # #[tokio::main(flavor = "current_thread")] async fn main() { example::main().await }
/// # #[cfg(not(all(feature = "axum", feature = "sqlite")))] fn main() {}
/// ```
pub fn check_idempotent<DB, F, A>(
    db: TestDatabase<DB>,
    app: impl Fn(Pool<DB>) -> F + Send + Sync + 'static,
) -> Checking<DB>
where
    DB: TestBackend,
    F: Future<Output = A> + Send + 'static,
    A: Into<App<DB>>,
{
    let make = move |pool| -> Boxed<'static, App<DB>> {
        let made = app(pool);
        Box::pin(async move { made.await.into() })
    };
    Checking {
        db,
        make: std::sync::Arc::new(make),
        producer: None,
        next_secret: None,
        path: None,
        url: None,
        schema: Vec::new(),
        samples: Vec::new(),
        ignored: Vec::new(),
        watched: Vec::new(),
    }
}

type Make<DB> = std::sync::Arc<dyn Fn(Pool<DB>) -> Boxed<'static, App<DB>> + Send + Sync>;
type Watched = (String, Box<dyn Fn() -> i64 + Send + Sync>);

/// A [check](check_idempotent) that is being put together.
#[must_use = "nothing is checked before `run`"]
pub struct Checking<DB: TestBackend> {
    db: TestDatabase<DB>,
    make: Make<DB>,
    producer: Option<(Preset, String)>,
    next_secret: Option<String>,
    path: Option<String>,
    url: Option<String>,
    schema: Vec<String>,
    samples: Vec<Sample>,
    ignored: Vec<String>,
    watched: Vec<Watched>,
}

/// An event as the test has given it.
struct Sample {
    /// Its type; with its number, if there are two of one type.
    name: String,
    event: Event,
}

impl Sample {
    /// Without anything that a handler may want to read, if the kit can leave it out.
    fn bare(&self) -> Option<Event> {
        match self.event.content {
            Content::Members(_) => Some(self.event.clone().data(json!({}))),
            Content::Object(_) => Some(self.event.clone().body(json!({}))),
            Content::Raw(_) => None,
        }
    }
}

/// What a sample does when nothing disturbs it.
struct Undisturbed {
    before: Snapshot,
    after: Snapshot,
}

impl Undisturbed {
    fn has_effects(&self) -> bool {
        self.before != self.after
    }
}

impl<DB: TestBackend> Checking<DB> {
    /// Who sends the events, and the secret that signs them. Must be said.
    pub fn producer(mut self, preset: Preset, secret: impl Into<String>) -> Self {
        self.producer = Some((preset, secret.into()));
        self
    }

    /// The secret that the producer rotates to, which the app is to know too: its source has
    /// `Source::secrets([new, old])` in the function that makes it. Without: no rotation is tried. If a secret is refused,
    /// that is told once, whatever the events.
    pub fn rotating_to(mut self, secret: impl Into<String>) -> Self {
        self.next_secret = Some(secret.into());
        self
    }

    /// Where it delivers to: a path. Without: `/webhooks/<name of the preset>`.
    pub fn to(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// For a producer that signs the URL (`square`): the one that [`Source::url`](crate::Source::url) has too.
    pub fn signed_url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// The app's tables, and what must be in them: statements that are executed in each new database before the app is made
    /// over it.
    pub fn schema(mut self, sql: impl Into<String>) -> Self {
        self.schema.push(sql.into());
        self
    }

    /// A sample of an event: its type, and its `data`. One for each type that the handlers know, or more.
    pub fn event(self, kind: &str, data: impl Into<Value>) -> Self {
        let event = Event::new(kind.to_owned()).kind(kind).data(data);
        self.sample(event)
    }

    /// A sample that has more than type and `data`: a body that was captured, say. A sample that needs another one before
    /// it is no good: each is sent to an app that has applied nothing yet.
    pub fn sample(mut self, event: Event) -> Self {
        let kind = event.kind.as_deref().unwrap_or("event").to_owned();
        let is_kind = |sample: &&Sample| sample.event.kind == event.kind;
        let name = match self.samples.iter().filter(is_kind).count() {
            0 => kind,
            before => format!("{kind}-{}", before + 1),
        };
        let event = Event {
            id: match event.content {
                // Its id is in there already.
                Content::Raw(_) => event.id,
                _ => format!("check-{name}"),
            },
            ..event
        };
        self.samples.push(Sample { name, event });
        self
    }

    /// Tables and columns (`table.column`) that are no effect of an event: a log of requests, a column that is drawn by
    /// chance. Columns that the database numbers by itself, UUIDs and times of just now need not be named.
    pub fn ignoring<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.ignored.extend(names.into_iter().map(Into::into));
        self
    }

    /// An effect that is in no table: how many mails a mailer of the test has sent so far, say.
    pub fn watching(
        mut self,
        name: impl Into<String>,
        count: impl Fn() -> i64 + Send + Sync + 'static,
    ) -> Self {
        self.watched.push((name.into(), Box::new(count)));
        self
    }

    /// Runs all checks, one after the other.
    ///
    /// # Panics
    /// If no producer or no event was given, `db` is not empty, an event cannot be signed, or a database cannot be had or
    /// refuses the schema.
    pub async fn run(self) -> Report {
        assert!(
            self.producer.is_some(),
            "whose events? `.producer(preset, secret)` says it"
        );
        assert!(
            !self.samples.is_empty(),
            "which events? `.event(type, data)` says it"
        );
        let columns = DB::columns(&self.db.pool()).await;
        let columns =
            columns.unwrap_or_else(|error| panic!("the database cannot be asked: {error}"));
        assert!(
            columns.is_empty(),
            "each check has a database of its own: say what is to be in them by `.schema(…)`, and leave this one empty"
        );
        let mut report = Report::default();
        for sample in &self.samples {
            let Some(undisturbed) = self.first(sample, &mut report).await else {
                continue;
            };
            self.trouble(sample, &undisturbed, &mut report).await;
            // Both have duplicates in them, and would only say it again.
            if !report.has(Check::Again, &sample.name) {
                self.at_once(sample, &undisturbed, &mut report).await;
                self.disconnect(sample, &undisturbed, &mut report).await;
            }
        }
        self.streams(&mut report).await;
        report
    }
}

impl<DB: TestBackend> fmt::Debug for Checking<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let samples: Vec<_> = self.samples.iter().map(|sample| &sample.name).collect();
        f.debug_struct("Checking")
            .field("samples", &samples)
            .finish_non_exhaustive()
    }
}
