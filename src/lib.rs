//! A tower layer in front of webhook handlers: every event applied exactly once, and in order.
//!
//! An [`Inbox`] belongs to a database and has one or more [`Source`]s. It verifies a delivery's signature, inserts the
//! event's id inside the transaction that the handler writes in, answers duplicates with 200, and parks an event whose
//! predecessors have not come. `Inbox::mount` puts it on axum routes, [`Inbox::layer`] on any tower service; either way
//! the worker that drains parked events starts by itself.
//!
//! ```no_run
//! # #[cfg(all(feature = "axum", feature = "sqlite"))] mod example {
//! use axum::{Router, http::StatusCode, routing::post};
//! use tower_inbox::{Delivery, Inbox, Source, Tx, sqlite};
//!
//! async fn on_event(mut tx: Tx<sqlx::Sqlite>, event: Delivery) -> Result<StatusCode, StatusCode> {
//!     sqlx::query("INSERT INTO seen (id) VALUES (?)")
//!         .bind(event.event_id())
//!         .execute(&mut *tx)
//!         .await
//!         .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
//!     Ok(StatusCode::NO_CONTENT) // 2xx commits both rows; anything else rolls both back
//! }
//!
//! async fn app() -> Result<Router, Box<dyn std::error::Error>> {
//!     let pool = sqlite::connect("sqlite://app.db?mode=rwc", 10).await?;
//!     let source = Source::kudos("crm").secrets(["newest secret", "older secret"]);
//!     let inbox = Inbox::builder(pool).source(source).build().await?;
//!     Ok(inbox.mount("crm", Router::new().route("/webhooks/crm", post(on_event))))
//! }
//! # }
//! ```
//!
//! **Effects outside the transaction are at least once**: a mail or an HTTP call is made again when a delivery is tried
//! again. The README says
//! what else is promised and what is not. Numbers such as §4.5 in these pages are the rules of [`guide::rules`], each with
//! a test that shows it.
//!
//! # One delivery
//!
//! 1. The door: method, the signature header's shape and time, the announced size; then the body, capped and timed.
//! 2. The signature, by each active secret. Until here the database is not asked anything.
//! 3. The envelope: event id, type, correlation id, sequence.
//! 4. Known already? From the memory of commits that this process saw, or by one statement.
//! 5. The queue: in this process one event and one correlation id hold at most one connection.
//! 6. BEGIN, a savepoint, and the event's row, inserted as applied. Exactly one transaction can win.
//! 7. With a sequence: the cursor of its correlation id is advanced by a compare-and-swap, or the event is parked. With a
//!    version: that of its correlation id is raised by a compare-and-swap, or the event is recorded as superseded.
//! 8. The handler runs with that transaction in its hands, within what is left of the budget.
//! 9. A 2xx: the savepoint is released, which fails if the transaction is not what it was; then COMMIT, on
//!    SQLite with [`Source::batch`] that of all who share the transaction; then the answer.
//!    Another 4xx or a 3xx: rolled back, and a dead letter in the same transaction. [`Park`]: rolled back, and parked in the
//!    same transaction. Anything else: rolled back.
//!    A deferred source ([`Source::deferred`]) stores the event after step 6 instead; the worker does the rest.
//! 10. Successors that are now due are applied by the worker, one transaction each, or several in one ([`Source::batch`]).
//!
//! # States of an event
//!
//! On one page, with what guards each transition: [`guide::states`].
//!
//! ```text
//!            its turn, 2xx                    its turn, 2xx
//!  (new) ───────────────────────▶ applied ◀─────────────────── parked ◀── higher than the cursor ── (new)
//!    │                               ▲                            │  ▲
//!    │ 4xx, 3xx                      │ redelivered, 2xx           │  └─ failed: again after a backoff
//!    └─────────────▶ dead ───────────┘                            │
//!                     ▲    gap: by itself, when it is its turn    │
//!                     └────── gap, too many failures, 4xx ────────┘
//! ```
//!
//! A source whose event id is not signed has one state more, *fenced*: kept, and handed over only if an operator says so. One
//! that applies what is newer ([`Source::newer_than`]) has *superseded*: recorded, and never handed over.
//!
//! A stream that adopts its first sequence ([`Source::adopt_first_sequence`]) has a cursor of −1 while it settles, so that
//! everything of it parks; then the cursor is set to the lowest sequence that is parked, and what was below it is recorded
//! as *before start*.
//!
//! What else operators decide is in [`operator`]: a dead letter goes back into its turn, or is *discarded*; a sequence is
//! skipped, and what comes for it is a dead letter at once.
//!
//! Whose turn it is is computed from the cursor and stored nowhere, so that nothing is stranded by a crash or a race.
//!
//! # Seen from outside
//!
//! Metrics by the `metrics` facade, each named in [`guide::metrics`]; statistics of the last 24 hours, over all processes and
//! restarts, by [`Inbox::stats`], whose numbers are told in [`stats`].
//!
//! Each delivery, and each attempt of the worker, is a span with the handler inside; [`TraceContext`] says what it takes over
//! from its producer's trace. [`Inbox::readiness`] and `Inbox::health_routes` are for probes. A dashboard and alert rules are in
//! `ops/`; the README has the fields of the spans.
//!
//! # Features
//!
//! `axum` (default): `Inbox::mount` and the extractors. `sqlite` (default), `postgres`, `mysql` (MariaDB too): the back
//! ends. `ed25519`: Standard Webhooks' `v1a` signatures. `opentelemetry`: parents and links of spans, for
//! `tracing-opentelemetry`. `reconcile`: producers' lists over HTTP(S), for [`reconcile`]. `testkit`: tests of your own handlers,
//! in `testkit`. `console`: a console in the browser, in `console`. `cli`: the command `tower-inbox`, with which operators see
//! what waits and free it: [`guide::command_line`].
#![cfg_attr(docsrs, feature(doc_cfg))]
// Without a back end the crate is `verify`, `envelope` and `preset`, and the rest is there for nobody.
#![cfg_attr(
    not(any(feature = "sqlite", feature = "postgres", feature = "mysql")),
    allow(dead_code, unused_imports, unused_macros)
)]

mod answer;
mod body;
#[cfg(feature = "failpoints")]
#[doc(hidden)]
pub mod broken;
#[cfg(not(feature = "failpoints"))]
mod broken;
mod burst;
pub mod clock;
#[cfg(feature = "console")]
pub mod console;
mod describe;
mod dispatch;
mod door;
pub mod envelope;
mod error;
mod event;
#[cfg(feature = "axum")]
mod extract;
mod fail;
mod generations;
mod guard;
mod health;
mod inbox;
mod kept;
mod lane;
pub mod layer;
pub mod operator;
mod order;
mod outlive;
mod park;
pub mod preset;
mod probe;
mod queue;
mod recent;
pub mod reconcile;
mod request;
mod shared;
mod source;
pub mod stats;
mod store;
mod tenants;
#[cfg(feature = "testkit")]
pub mod testkit;
mod trace;
mod tracker;
mod tx;
pub mod verify;
mod warm;
mod watch;

pub use answer::INBOX_OUTCOME;
pub use burst::{Burst, BurstState};
#[doc(hidden)]
pub use describe::{METRICS, Metric, MetricKind};
pub use error::{BuildError, BuildErrorKind, OperatorError, OperatorErrorKind, TxError};
pub use event::{Delivery, Origin, Outcome, Verdict};
#[cfg(feature = "failpoints")]
#[doc(hidden)]
pub use fail::FailPoints;
pub use guard::Guarded;
pub use health::{Check, Readiness};
pub use inbox::{Inbox, InboxBuilder};
pub use operator::Operator;
pub use order::{Purged, WorkerStatus};
pub use park::Park;
pub use preset::Preset;
pub use source::{EqualVersions, Source};
pub use stats::Stats;
#[cfg(feature = "sqlite")]
pub use store::sqlite;
pub use store::{Backend, SchemaVersion};
pub use tenants::{Tenant, TenantFuture, Tenants};
pub use trace::TraceContext;
pub use tx::Tx;
pub use verify::{Secret, Secrets};

/// Pages that are no one item's.
pub mod guide {
    #[doc = include_str!("../docs/brief.md")]
    pub mod brief {}
    #[doc = include_str!("../docs/broken.md")]
    pub mod broken {}
    #[doc = include_str!("../docs/clauses.md")]
    pub mod clauses {}
    #[doc = include_str!("../docs/command-line.md")]
    pub mod command_line {}
    #[doc = include_str!("../docs/consistency.md")]
    pub mod consistency {}
    #[doc = include_str!("../docs/kudos.md")]
    pub mod kudos {}
    #[doc = include_str!("../docs/metrics.md")]
    pub mod metrics {}
    #[doc = include_str!("../docs/model.md")]
    pub mod model {}
    #[doc = include_str!("../docs/on-call.md")]
    pub mod on_call {}
    #[doc = include_str!("../docs/rules.md")]
    pub mod rules {}
    #[doc = include_str!("../docs/states.md")]
    pub mod states {}
    #[doc = include_str!("../docs/traps.md")]
    pub mod traps {}
}

/// The README's code is compiled with the crate's.
#[cfg(all(doctest, feature = "axum", feature = "sqlite"))]
#[doc = include_str!("../README.md")]
struct Readme;
