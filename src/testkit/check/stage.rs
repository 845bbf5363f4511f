//! A database with the app over it, for one check.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{AssertSqlSafe, SqlSafeStr as _};
use tokio::time::timeout;

use super::super::database::{TestBackend, TestDatabase};
use super::super::event::Event;
use super::super::kit::Kit;
use super::super::reply::Reply;
use super::super::story::Story;
use super::snapshot::{Snapshot, View};
use super::{Checking, Undisturbed};
use crate::clock::{Clock, SystemClock};
use crate::probe::{Happened, Loss};

pub(super) struct Stage<'a, DB: TestBackend> {
    checking: &'a Checking<DB>,
    pub(super) kit: Kit<DB>,
    db: TestDatabase<DB>,
    /// What was watched came to this before.
    watched: Vec<i64>,
}

impl<DB: TestBackend> Checking<DB> {
    pub(super) async fn stage(&self) -> Stage<'_, DB> {
        let db = DB::another(&self.db).await;
        for sql in &self.schema {
            db.execute(sql).await;
        }
        let (make, pool) = (Arc::clone(&self.make), db.pool());
        let kit = Kit::remade(move || make(pool.clone())).await;
        let watched = self.watched.iter().map(|(_, count)| count()).collect();
        Stage {
            checking: self,
            kit,
            db,
            watched,
        }
    }

    fn signed_by(&self) -> &str {
        self.producer.as_ref().map_or("", |(_, secret)| secret)
    }

    /// How long the producer waits for an answer.
    pub(super) fn patience(&self) -> Duration {
        let preset = self.producer.as_ref().map(|(preset, _)| preset.patience);
        preset.unwrap_or_default()
    }
}

impl<DB: TestBackend> Stage<'_, DB> {
    /// Delivers an event, as long as its producer waits; its story in this stage then.
    pub(super) async fn send(&self, event: &Event) -> Story {
        self.send_signed(event, &[self.checking.signed_by()]).await
    }

    pub(super) async fn send_signed(&self, event: &Event, secrets: &[&str]) -> Story {
        let checking = self.checking;
        let Some((preset, _)) = &checking.producer else {
            return self.kit.story(event.id()).await;
        };
        // Times of a story are real: they tell how long a handler takes.
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        self.kit.log().probe(event.id(), &clock);
        let mut request = event
            .request(*preset, "")
            .signed_by(secrets.iter().copied());
        if let Some(path) = &checking.path {
            request = request.to(path);
        }
        if let Some(url) = &checking.url {
            request = request.url(url);
        }
        match timeout(preset.patience, self.kit.send(request)).await {
            Ok(story) => story,
            Err(_) => self.kit.story(event.id()).await,
        }
    }

    /// How long a delivery of this event may take.
    pub(super) fn budget(&self, story: &Story) -> Duration {
        let inbox = self.kit.inbox();
        let source = story.source().and_then(|name| inbox.shared.source(name));
        source.map_or_else(|| self.checking.patience(), |source| source.budget())
    }

    /// When nothing is at work any more.
    pub(super) async fn snapshot(&self) -> Snapshot {
        self.kit.settled().await;
        let inbox = self.kit.inbox();
        let view = View {
            prefix: &inbox.shared.sql.prefix,
            ignored: &self.checking.ignored,
        };
        let mut snapshot = match view.snapshot(&self.db.pool()).await {
            Ok(snapshot) => snapshot,
            Err(error) => panic!("the app's tables cannot be read: {error}"),
        };
        for ((name, count), before) in self.checking.watched.iter().zip(&self.watched) {
            snapshot.add(name, count() - before);
        }
        snapshot
    }

    /// What the tables have that those of a run without any trouble do not have, and the other way round.
    pub(super) async fn differs_from(&self, undisturbed: &Undisturbed) -> Option<String> {
        let after = self.snapshot().await.comparable();
        let expected = undisturbed.after.clone().comparable();
        expected.difference(&after).map(|it| it.to_string())
    }

    /// Makes every write of the app's tables fail. False if it cannot be done for one of them.
    pub(super) async fn break_writes(&self) -> bool {
        let mut broken = true;
        for (number, from) in self.tables().await.iter().enumerate() {
            for statement in DB::break_writes(from, number) {
                broken &= self.execute(statement).await;
            }
        }
        broken
    }

    pub(super) async fn mend_writes(&self) {
        for (number, from) in self.tables().await.iter().enumerate() {
            for statement in DB::mend_writes(from, number) {
                self.execute(statement).await;
            }
        }
    }

    async fn tables(&self) -> Vec<String> {
        let inbox = self.kit.inbox();
        let view = View {
            prefix: &inbox.shared.sql.prefix,
            ignored: &[],
        };
        let tables = view.tables(&self.db.pool()).await.unwrap_or_default();
        let from = |columns: Vec<super::look::Column>| columns[0].from.clone();
        tables.into_values().map(from).collect()
    }

    async fn execute(&self, sql: String) -> bool {
        let Ok(mut conn) = self.db.pool().acquire().await else {
            return false;
        };
        DB::run(&mut conn, AssertSqlSafe(sql).into_sql_str())
            .await
            .is_ok()
    }

    /// The app's worker is stopped; then the database goes.
    pub(super) async fn end(self) {
        self.kit.inbox().shutdown().await;
    }
}

impl Story {
    /// The last attempt's answer; nothing if there was none.
    pub(super) fn last_reply(&self) -> Option<&Reply> {
        self.attempts.last()?.reply.as_ref()
    }

    pub(super) fn last_is(&self, outcome: &str) -> bool {
        self.last_reply()
            .is_some_and(|reply| reply.outcome() == outcome)
    }

    /// What was answered last, for people.
    pub(super) fn said(&self) -> String {
        match self.last_reply() {
            Some(reply) => format!("answered {} {}", reply.status, reply.outcome())
                .trim_end()
                .to_owned(),
            None => "not answered in time".into(),
        }
    }

    /// What the last attempt has in the journal.
    pub(super) fn last_attempt(&self) -> impl Iterator<Item = &Happened> {
        let is_attempt =
            |record: &crate::probe::Record| matches!(record.happened, Happened::Attempted(_));
        let from = self.journal.iter().rposition(is_attempt).unwrap_or(0);
        self.journal[from..].iter().map(|record| &record.happened)
    }

    pub(super) fn last_loss(&self) -> Option<Loss> {
        self.last_attempt().find_map(|happened| match happened {
            Happened::Lost(loss) => Some(*loss),
            _ => None,
        })
    }

    pub(super) fn last_panicked(&self) -> bool {
        let panicked = Happened::Ended("panicked".into());
        self.last_attempt().any(|happened| *happened == panicked)
    }

    pub(super) fn took_too_long(&self) -> bool {
        let spent = Happened::Ended("took longer than it may".into());
        self.last_attempt().any(|happened| *happened == spent)
    }

    /// A sentence more, if the handler never took its transaction.
    pub(super) fn untaken(&self) -> &'static str {
        if self.last_attempt().any(|it| *it == Happened::Untaken) {
            ". It never took its transaction (`Tx`)"
        } else {
            ""
        }
    }

    /// How long the handler took at its first run.
    pub(super) fn first_run(&self) -> Option<Duration> {
        let began = self
            .journal
            .iter()
            .find(|record| matches!(record.happened, Happened::Began(_)))?;
        let ended = self
            .journal
            .iter()
            .find(|record| matches!(record.happened, Happened::Ended(_)))?;
        Some(ended.at.since(began.at))
    }
}
