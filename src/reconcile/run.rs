//! One run over a producer's lists, page by page, remembered durably.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::put::{self, Put};
use super::report::{Problem, Report};
use super::source::{Item, List, Page, Query, ReplayError, ReplayErrorKind, ReplaySource};
use super::{Options, alive};
use crate::clock::Timestamp;
use crate::error::OperatorError;
use crate::order::in_time;
use crate::order::worker::Target;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::{Backend, ListKey, Progress, Stream};

/// Asked for once more: producers' clocks differ, and what came onto a list a moment ago may be shown late.
const OVERLAP: Duration = Duration::from_secs(3_600);
/// A process that reconciles says so anew more often than this; then another one may take over.
const LEASE: Duration = Duration::from_secs(300);
const RENEW: Duration = Duration::from_secs(60);
/// For one call of a source, retries and waits of its own included.
const PATIENCE: Duration = Duration::from_secs(300);
/// A producer's name for a page: it is kept in a row.
const LONGEST_PAGE_NAME: usize = 1_024;
/// How far ahead a producer's clock may be: what is later is an error of its own, and is not remembered.
const SKEW: Duration = Duration::from_secs(300);
/// Events of one stream that are asked for by their sequence, and streams of one look.
const FILLS: i64 = 1_000;
const STREAMS: i64 = 100;
/// What was parked and has become due is waited for, so that the report says what is the case.
const SETTLE: Duration = Duration::from_secs(5);
const STILL: Duration = Duration::from_millis(500);
/// Parked events that are looked at again at the end.
const LOOKED_AT: usize = 1_000;

pub(super) struct Run<'a, DB: Backend> {
    pub(super) shared: &'a Arc<Shared<DB>>,
    pub(super) source: &'a Arc<SourceState>,
    pub(super) target: Arc<dyn Target>,
    pub(super) from: &'a dyn ReplaySource,
    pub(super) options: &'a Options,
    pub(super) report: Report,
    /// Parked in this run.
    pub(super) parked: Vec<String>,
}

/// How a list ended.
enum Ended {
    Whole,
    Early(Problem),
}

impl<DB: Backend> Run<'_, DB> {
    pub(super) async fn run(mut self) -> Result<Report, OperatorError> {
        alive::look(self.shared, true)
            .await
            .map_err(OperatorError::database)?;
        let lists: &[List] = match self.options.delivered_since {
            Some(_) => &[List::Delivered],
            None => &[List::Exhausted, List::Delivered],
        };
        for list in lists {
            if let Ended::Early(problem) = self.list(*list).await? {
                self.report.problem = Some(problem);
                break;
            }
        }
        if self.report.problem.is_none() && self.from.knows_sequences() {
            self.fill().await?;
        }
        self.settle().await;
        self.report.tell();
        if self.report.is_complete() {
            let now = self.shared.clock.now();
            crate::order::show_time(
                metrics::gauge!(
                    "inbox_reconciliation_last_success_timestamp_seconds",
                    "source" => self.source.name_shared()
                ),
                now,
            );
        }
        Ok(self.report)
    }

    /// Whether this run is one that is remembered, and not an operator's look at a part of a list.
    fn remembers(&self) -> bool {
        self.options.delivered_since.is_none() && self.options.event_type.is_none()
    }

    async fn list(&mut self, list: List) -> Result<Ended, OperatorError> {
        let key = ListKey {
            source: self.source.name(),
            kind: list.kind(),
        };
        let owner = self.shared.worker.leases.owner();
        let Some(known) = self.take(key, owner).await? else {
            return Err(OperatorError::busy(
                "another process is reconciling this source",
            ));
        };
        let mut walk = Walk {
            list,
            progress: known.clone(),
            settles: known.settled,
            renewed: Instant::now(),
        };
        let wanted = match list {
            List::Exhausted => {
                self.warn_of_window(&known);
                walk.resume_or_begin(known.through.map(|at| at.minus(OVERLAP)), true);
                true
            }
            List::Delivered => self.delivered(&mut walk).await?,
        };
        let ended = if wanted {
            self.report.lists.push(list);
            self.walk(key, owner, &mut walk).await
        } else {
            Ok(Ended::Whole)
        };
        if let Ok(Ended::Whole) = ended
            && wanted
        {
            walk.finish(self.shared.clock.now());
        }
        // What an operator looked at besides is no progress.
        let progress = if self.remembers() {
            &walk.progress
        } else {
            &known
        };
        let saved = self
            .save(key, owner, progress, Timestamp::from_micros(0))
            .await;
        let ended = ended?;
        match saved {
            Ok(true) => Ok(ended),
            Ok(false) => Ok(Ended::Early(Problem::TakenOver)),
            Err(error) => Err(error),
        }
    }

    /// Whether there is a reason to ask for delivered events, and since when.
    async fn delivered(&self, walk: &mut Walk) -> Result<bool, OperatorError> {
        if let Some(since) = self.options.delivered_since {
            walk.begin(Some(since));
            return Ok(true);
        }
        let incidents = self
            .database(async |conn| {
                DB::incidents(conn, &self.shared.sql, walk.progress.settled).await
            })
            .await?;
        let Some(since) = incidents.iter().map(|(_, since)| *since).min() else {
            return Ok(false);
        };
        walk.settles = incidents
            .iter()
            .map(|(at, _)| *at)
            .max()
            .unwrap_or_default();
        // 0: nothing tells since when.
        let since = (since.as_micros() > 0).then(|| since.minus(OVERLAP));
        walk.resume_or_begin(since, false);
        Ok(true)
    }

    async fn walk(
        &mut self,
        key: ListKey<'_>,
        owner: &str,
        walk: &mut Walk,
    ) -> Result<Ended, OperatorError> {
        let mut resumed = walk.progress.next_page.is_some();
        let whole = !resumed;
        let (mut seen, mut events, mut announced) = (HashSet::new(), 0_u64, None);
        for _ in 0..self.options.max_pages {
            let page = match self.page(walk).await {
                Ok(page) => page,
                Err(Problem::Producer(error))
                    if resumed && error.kind() == ReplayErrorKind::PageGone =>
                {
                    self.report
                        .complain("the producer does not know its own page any more: begun anew");
                    walk.begin(walk.progress.run_since);
                    resumed = false;
                    continue;
                }
                Err(problem) => return Ok(Ended::Early(problem)),
            };
            resumed = false;
            self.report.pages += 1;
            announced = announced.max(page.announced);
            events += (page.items.len() + page.unreadable.len()) as u64;
            let next = page.next.clone();
            if let Some(problem) = self.deal_with(key, owner, walk, page).await? {
                return Ok(Ended::Early(problem));
            }
            let Some(next) = next else {
                if let Some(announced) = announced
                    && whole
                    && announced != events
                {
                    self.report.complain(format!(
                        "the {} list says that it has {announced} events, and has {events}",
                        walk.list.as_str()
                    ));
                }
                return Ok(Ended::Whole);
            };
            if next.is_empty() || next.len() > LONGEST_PAGE_NAME || !seen.insert(next.clone()) {
                walk.progress.next_page = None;
                let what = "the list's next page is one that was read already, or none";
                return Ok(Ended::Early(Problem::Endless(what.into())));
            }
            // Only now: the whole page has been dealt with.
            walk.progress.next_page = Some(next);
            if self.remembers() {
                let until = self.shared.clock.now().plus(LEASE);
                if !self.save(key, owner, &walk.progress, until).await? {
                    return Ok(Ended::Early(Problem::TakenOver));
                }
                walk.renewed = Instant::now();
            }
            if events >= self.options.max_events {
                break;
            }
        }
        let what = format!(
            "more than {} pages or {} events: the next run goes on there",
            self.options.max_pages, self.options.max_events
        );
        Ok(Ended::Early(Problem::Bounded(what)))
    }

    async fn page(&self, walk: &Walk) -> Result<Page, Problem> {
        let query = Query::new(walk.list)
            .since(walk.progress.run_since)
            .event_type(self.options.event_type.as_deref())
            .page(walk.progress.next_page.as_deref());
        self.ask(self.from.page(query)).await
    }

    /// Waits for the producer, for so long; a shutdown does not.
    async fn ask<T>(
        &self,
        question: impl Future<Output = Result<T, ReplayError>>,
    ) -> Result<T, Problem> {
        let mut stop = self.shared.keeping.stop.subscribe();
        tokio::select! {
            answer = timeout(PATIENCE, question) => match answer {
                Ok(answer) => answer.map_err(Problem::Producer),
                Err(_) => {
                    let what = "the producer's list did not come in time";
                    Err(Problem::Producer(ReplayError::new(ReplayErrorKind::Unavailable, what)))
                }
            },
            _ = stop.wait_for(|stopped| *stopped) => Err(Problem::Stopped),
        }
    }

    /// Each event of a page. Lower sequences first, so that as little as possible is parked.
    async fn deal_with(
        &mut self,
        key: ListKey<'_>,
        owner: &str,
        walk: &mut Walk,
        page: Page,
    ) -> Result<Option<Problem>, OperatorError> {
        let latest = self.shared.clock.now().plus(SKEW);
        for bad in page.unreadable {
            self.report.found += 1;
            self.report.failed += 1;
            self.report.miss(&bad.what, bad.why);
            walk.hold_back(bad.at);
        }
        let mut items: Vec<_> = page
            .items
            .into_iter()
            .map(|item| (put::read(self.shared, self.source, &item), item))
            .collect();
        items.sort_by_key(|(read, _)| match read {
            Ok(Some(read)) => read.envelope.sequence,
            _ => None,
        });
        for (read, item) in items {
            if *self.shared.keeping.stop.borrow() {
                return Ok(Some(Problem::Stopped));
            }
            if walk.renewed.elapsed() >= RENEW {
                let until = self.shared.clock.now().plus(LEASE);
                if self.take_until(key, owner, until).await?.is_none() {
                    return Ok(Some(Problem::TakenOver));
                }
                walk.renewed = Instant::now();
            }
            self.report.found += 1;
            let put = self.one(read, &item).await?;
            if !self.note(&item, put) {
                walk.hold_back(Some(item.at));
            }
            if item.at > latest {
                let what = format!("event {:?} is listed in the future", item.event_id);
                self.report.complain(what);
            } else {
                walk.progress.highest = walk.progress.highest.max(Some(item.at));
            }
        }
        Ok(None)
    }

    /// Nothing: the producer was asked to send it again.
    async fn one(
        &self,
        read: Result<Option<put::Read>, String>,
        item: &Item,
    ) -> Result<Option<Put>, OperatorError> {
        Ok(match read {
            Err(why) => Some(Put::Failed(why)),
            // Not for the handler: it tells about deliveries.
            Ok(Some(read)) if read.is_control(self.source) => Some(Put::Known),
            Ok(Some(read)) => Some(put::put(self.shared, self.source, &self.target, read).await),
            Ok(None) => {
                let deadline = Instant::now() + self.source.budget();
                let known = self.source.mapping().event_id(&item.event_id);
                let Some(id) = known else {
                    return Ok(Some(Put::Failed("its event id cannot be one".into())));
                };
                match put::look(self.shared, self.source, id.as_str(), deadline).await {
                    Ok(Some(put)) => Some(put),
                    Err(why) => Some(Put::Failed(why)),
                    Ok(None) => match self.ask(self.from.send_again(item)).await {
                        Ok(()) => None,
                        Err(problem) => Some(Put::Failed(problem.to_string())),
                    },
                }
            }
        })
    }

    /// Counts it. False if the next run must meet it again.
    fn note(&mut self, item: &Item, put: Option<Put>) -> bool {
        let (report, id) = (&mut self.report, item.event_id.as_str());
        match put {
            Some(Put::Applied) => report.applied += 1,
            Some(Put::Known) => report.already_applied += 1,
            Some(Put::Parked(why)) => {
                report.parked += 1;
                report.miss(id, why);
                if self.parked.len() < LOOKED_AT {
                    self.parked.push(id.to_owned());
                }
            }
            Some(Put::Dead(why)) => {
                report.dead += 1;
                report.miss(id, why);
            }
            Some(Put::Failed(why)) => {
                tracing::warn!(
                    source = report.source,
                    event_id = id,
                    why,
                    "could not reconcile an event"
                );
                report.failed += 1;
                report.miss(id, why);
                return false;
            }
            None => {
                report.sent_again += 1;
                report.miss(id, "the producer was asked to send it again");
                return false;
            }
        }
        true
    }

    /// Asks for what parked events wait for.
    async fn fill(&mut self) -> Result<(), OperatorError> {
        let mut after = String::new();
        loop {
            let stream = Stream {
                source: self.source.name(),
                correlation_id: &after,
            };
            let gaps = self
                .database(async |conn| DB::gaps(conn, &self.shared.sql, stream, STREAMS).await)
                .await?;
            let full = gaps.len() as i64 == STREAMS;
            for gap in gaps {
                let end = gap.parked.min(gap.missing.saturating_add(FILLS));
                for sequence in gap.missing..end {
                    let asked = self.from.by_sequence(&gap.correlation_id, sequence);
                    let item = match self.ask(asked).await {
                        Ok(item) => item,
                        Err(problem) => {
                            self.report.problem = Some(problem);
                            return Ok(());
                        }
                    };
                    let Some(item) = item else {
                        self.report.gap(&gap.correlation_id, sequence);
                        break;
                    };
                    self.report.found += 1;
                    let read = put::read(self.shared, self.source, &item);
                    let read = read.and_then(|read| in_place(read, &gap.correlation_id, sequence));
                    let put = self.one(read, &item).await?;
                    let filled = matches!(put, Some(Put::Applied | Put::Known));
                    self.note(&item, put);
                    if !filled {
                        break;
                    }
                }
                after = gap.correlation_id;
            }
            if !full {
                return Ok(());
            }
        }
    }

    /// What was parked is drained now, perhaps: the report says what is the case at its end, once nothing moves any more.
    async fn settle(&mut self) {
        let until = Instant::now() + SETTLE;
        let mut moved = Instant::now();
        let mut waits = HashMap::new();
        while !self.parked.is_empty() {
            for id in std::mem::take(&mut self.parked) {
                match put::look(self.shared, self.source, &id, until).await {
                    Ok(Some(Put::Known)) => {
                        self.report.parked -= 1;
                        self.report.applied += 1;
                        self.report.missing.retain(|missing| missing.event_id != id);
                        moved = Instant::now();
                        continue;
                    }
                    // Its turn has come.
                    Ok(None) => moved = Instant::now(),
                    Ok(Some(Put::Parked(why))) => {
                        if waits
                            .insert(id.clone(), why.clone())
                            .is_some_and(|was| was != why)
                        {
                            moved = Instant::now();
                        }
                    }
                    Ok(Some(_)) => {}
                    Err(_) => return,
                }
                self.parked.push(id);
            }
            let still = moved.elapsed() >= STILL || Instant::now() >= until;
            if still || *self.shared.keeping.stop.borrow() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn warn_of_window(&self, known: &Progress) {
        let window = self.source.replay_window();
        let now = self.shared.clock.now();
        if let Some(last) = known.finished_at
            && alive::nears(now.since(last), window)
        {
            tracing::warn!(
                source = self.source.name(), since = ?now.since(last), ?window,
                "the last reconciliation is almost as long ago as the producer keeps what it gave up, or longer"
            );
        }
    }

    /// The list's state, if no other process is at it.
    async fn take(&self, key: ListKey<'_>, owner: &str) -> Result<Option<Progress>, OperatorError> {
        self.take_until(key, owner, self.shared.clock.now().plus(LEASE))
            .await
    }

    async fn take_until(
        &self,
        key: ListKey<'_>,
        owner: &str,
        until: Timestamp,
    ) -> Result<Option<Progress>, OperatorError> {
        let (sql, now) = (&self.shared.sql, self.shared.clock.now());
        self.database(async |conn| {
            let mut taken = DB::take_reconcile(conn, sql, key, owner, now, until).await?;
            if !taken && DB::open_reconcile(conn, sql, key).await? {
                taken = DB::take_reconcile(conn, sql, key, owner, now, until).await?;
            }
            if !taken {
                return Ok(None);
            }
            DB::reconcile_state(conn, sql, key).await
        })
        .await
    }

    async fn save(
        &self,
        key: ListKey<'_>,
        owner: &str,
        progress: &Progress,
        until: Timestamp,
    ) -> Result<bool, OperatorError> {
        self.database(async |conn| {
            DB::save_reconcile(conn, &self.shared.sql, key, progress, owner, until).await
        })
        .await
    }

    async fn database<T>(
        &self,
        work: impl AsyncFnOnce(&mut DB::Connection) -> Result<T, sqlx::Error>,
    ) -> Result<T, OperatorError> {
        in_time(async {
            let _turn = self.shared.turn().await;
            let mut conn = self.shared.acquire_statements().await?;
            let done = work(&mut conn).await;
            conn.done(done).await
        })
        .await
        .map_err(OperatorError::database)
    }
}

/// What a producer calls this place must be it: or it would be asked for the same one again and again.
fn in_place(
    read: Option<put::Read>,
    correlation_id: &str,
    sequence: i64,
) -> Result<Option<put::Read>, String> {
    if let Some(read) = &read {
        let order = read.envelope.order();
        if order.map(|(id, n)| (id.as_str(), n.get())) != Some((correlation_id, sequence)) {
            return Err("it has another place than the one that was asked for".into());
        }
    }
    Ok(read)
}

/// The way through one list.
struct Walk {
    list: List,
    progress: Progress,
    /// The incidents that this run settles.
    settles: Timestamp,
    renewed: Instant,
}

impl Walk {
    /// Goes on where the last run was broken off.
    fn resume_or_begin(&mut self, since: Option<Timestamp>, any_since: bool) {
        let resumes = self.progress.next_page.is_some();
        if !resumes || !(any_since || self.progress.run_since == since) {
            self.begin(since);
        }
    }

    fn begin(&mut self, since: Option<Timestamp>) {
        self.progress.run_since = since;
        self.progress.next_page = None;
        self.progress.highest = None;
        self.progress.held_back = None;
    }

    /// An event that was not dealt with: nothing after it counts as dealt with.
    fn hold_back(&mut self, at: Option<Timestamp>) {
        if let Some(at) = at {
            let held = self.progress.held_back.map_or(at, |held| held.min(at));
            self.progress.held_back = Some(held);
        }
    }

    fn finish(&mut self, now: Timestamp) {
        let progress = &mut self.progress;
        let reached = progress.through.max(progress.highest);
        progress.through = match (reached, progress.held_back) {
            (Some(reached), Some(held)) => Some(reached.min(held)),
            (reached, held) => reached.or(held),
        };
        if progress.held_back.is_none() {
            progress.settled = self.settles;
        }
        progress.finished_at = Some(now);
        self.begin(None);
    }
}
