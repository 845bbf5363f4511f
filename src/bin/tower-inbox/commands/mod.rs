//! One module for each command that talks to the database: its command line, and a `run`.

mod act;
mod ahead;
pub(crate) mod audit;
pub(crate) mod check;
pub(crate) mod cursor;
pub(crate) mod dead;
pub(crate) mod events;
mod found;
mod held;
mod known;
mod letter;
pub(crate) mod migrate;
mod outlook;
pub(crate) mod purge;
pub(crate) mod reconcile;
pub(crate) mod skip;
pub(crate) mod status;
mod stream;
pub(crate) mod streams;
mod waiting;

use std::process::ExitCode;
use std::time::Duration;

use sqlx::Pool;
use tower_inbox::envelope::Sequence;
use tower_inbox::operator::Operator;
use tower_inbox::preset::Preset;
use tower_inbox::{Backend, Inbox, InboxBuilder, Source};

use crate::cli::{DatabaseCommand, Global, Watch};
use crate::failure::Failure;
use crate::show::{self, Shown};
use crate::warnings;

pub(crate) async fn run<DB: Backend>(
    pool: Pool<DB>,
    global: &Global,
    command: DatabaseCommand,
) -> Result<ExitCode, Failure> {
    match command {
        DatabaseCommand::Migrate(given) => migrate::run(pool, global, &given).await,
        DatabaseCommand::Check(given) => check::run(pool, global, &given).await,
        DatabaseCommand::Status(given) => status::run(pool, global, &given).await,
        DatabaseCommand::Streams(given) => streams::run(pool, global, given).await,
        DatabaseCommand::Events(given) => events::run(pool, global, given).await,
        DatabaseCommand::Dead(given) => dead::run(pool, global, given).await,
        DatabaseCommand::Skip(given) => skip::run(pool, global, &given).await,
        DatabaseCommand::Cursor(given) => cursor::run(pool, global, given).await,
        DatabaseCommand::Purge(given) => purge::run(pool, global, &given).await,
        DatabaseCommand::Reconcile(given) => reconcile::run(pool, global, given).await,
        DatabaseCommand::Audit(given) => audit::run(pool, global, &given).await,
    }
}

/// For taking leave of the database.
const LEAVE: Duration = Duration::from_secs(1);

/// An inbox to look at and to act on. Nothing is mounted on it, so that it has no worker: it applies, purges and expires
/// nothing by itself.
pub(crate) struct Office<DB: Backend> {
    pub(crate) inbox: Inbox<DB>,
    pub(crate) operator: Operator<DB>,
    pool: Pool<DB>,
}

/// A builder that brings no tables.
pub(crate) fn builder<DB: Backend>(pool: Pool<DB>, global: &Global) -> InboxBuilder<DB> {
    Inbox::builder(pool)
        .tenants_only()
        .migrate(false)
        .table_prefix(&*global.table_prefix)
}

impl<DB: Backend> Office<DB> {
    /// To look: nobody is named for it.
    pub(crate) async fn open(pool: Pool<DB>, global: &Global) -> Result<Self, Failure> {
        Self::with(pool, global, "tower-inbox", Vec::new()).await
    }

    /// To act.
    pub(crate) async fn of_actor(
        pool: Pool<DB>,
        global: &Global,
        sources: Vec<Source>,
    ) -> Result<Self, Failure> {
        Self::with(pool, global, &global.actor()?, sources).await
    }

    /// To act, or for a dry run of that, which names nobody.
    pub(crate) async fn to_act(
        pool: Pool<DB>,
        global: &Global,
        dry_run: bool,
        sources: Vec<Source>,
    ) -> Result<Self, Failure> {
        if dry_run {
            return Self::with(pool, global, "tower-inbox", sources).await;
        }
        Self::of_actor(pool, global, sources).await
    }

    async fn with(
        pool: Pool<DB>,
        global: &Global,
        actor: &str,
        sources: Vec<Source>,
    ) -> Result<Self, Failure> {
        let builder = builder(pool.clone(), global);
        are_there(&builder, global).await?;
        let builder = sources.into_iter().fold(builder, InboxBuilder::source);
        let inbox = builder.build().await?;
        for warning in warnings::take() {
            show::say(&format!("warning: {warning}"));
        }
        let operator = inbox.operator(actor)?;
        Ok(Self {
            inbox,
            operator,
            pool,
        })
    }

    /// What was done is told to the processes that listen; then the connections are closed.
    pub(crate) async fn close(self) {
        self.inbox.shutdown().await;
        let _ = tokio::time::timeout(LEAVE, self.pool.close()).await;
    }
}

/// Whether the tables are those that this command knows.
async fn are_there<DB: Backend>(
    builder: &InboxBuilder<DB>,
    global: &Global,
) -> Result<(), Failure> {
    let schema = builder.schema().await?;
    let missing = schema.iter().filter(|version| !version.applied).count();
    match missing {
        0 => Ok(()),
        n if n == schema.len() => Err(Failure::Schema(format!(
            "the database has no inbox under the table prefix {}: tower-inbox migrate makes its tables, or DATABASE_URL or \
             --table-prefix is another one",
            global.table_prefix
        ))),
        n => Err(Failure::Schema(format!(
            "the inbox's tables are {n} version(s) older than this command: tower-inbox migrate"
        ))),
    }
}

/// A process in which a source is mounted gives a sign of life every half minute.
const SILENT: Duration = Duration::from_secs(120);

/// Whether some process with a source mounted is there.
pub(crate) async fn receiver_is_there<DB: Backend>(
    operator: &Operator<DB>,
) -> Result<bool, Failure> {
    let Some(last) = operator.last_sign().await? else {
        return Ok(false);
    };
    Ok(operator.clocks().await?.database.since(last) < SILENT)
}

/// A source of which only its name is known, and what an action needs: its secret is a random one, and nothing is verified.
pub(crate) fn named(name: &str, preset: Preset) -> Source {
    let secret = format!("{:032x}{:032x}", fastrand::u128(..), fastrand::u128(..));
    Source::new(name, preset).secrets([secret])
}

/// Where streams of a source begin of which nothing is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum First {
    #[value(name = "0")]
    Zero,
    #[value(name = "1")]
    One,
    /// They begin where they stand
    Adopt,
}

impl First {
    pub(crate) fn of(self, name: &str) -> Source {
        let source = named(name, Preset::SEQUENCED);
        match self {
            Self::Zero => source.first_sequence(sequence(0)),
            Self::One => source.first_sequence(sequence(1)),
            Self::Adopt => source.adopt_first_sequence(Source::SETTLE),
        }
    }
}

fn sequence(number: i64) -> Sequence {
    Sequence::new(number).expect("0 and 1 are sequences")
}

/// Shows something once, or again and again.
pub(crate) async fn watch(
    watch: &Watch,
    json: bool,
    mut look: impl AsyncFnMut() -> Result<Shown, Failure>,
) -> Result<(), Failure> {
    let Some(pause) = watch.watch else {
        look().await?.print(json);
        return Ok(());
    };
    let clears = !json && show::width().is_some();
    loop {
        let text = match look().await {
            Ok(shown) => shown.render(json),
            // It may come back. On a terminal that is wiped, the reason stands in the place of the rest.
            Err(failure @ Failure::Away(_)) if clears => {
                format!("{}\n", show::safe_lines(&failure.to_string()))
            }
            Err(failure @ Failure::Away(_)) => {
                show::say(&failure.to_string());
                String::new()
            }
            Err(failure) => return Err(failure),
        };
        let read = if clears {
            show::print(&format!("\x1b[H\x1b[2J{text}"))
        } else {
            let end = if json || text.is_empty() { "" } else { "\n" };
            show::print(&format!("{text}{end}"))
        };
        if !read {
            return Ok(());
        }
        tokio::time::sleep(pause.max(Duration::from_millis(100))).await;
    }
}

/// Some of the same: "3 events", "1 event".
pub(crate) fn count(number: u64, what: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {what}{s}")
}
