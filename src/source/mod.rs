//! A source: one producer, or one tenant of one producer.

mod counted;
mod handler_time;
mod lookout;
mod room;
mod state;

use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;

use crate::door::{BODY_LIMIT, READ_TIMEOUT};
use crate::envelope::{Elements, Lookup, Mapping, Sequence};

use crate::preset::Preset;
use crate::trace::TraceContext;
use crate::verify::{JsonPath, Scheme, Secrets, Tolerance};

pub(crate) use counted::{Counted, OTHER, Verdicts, refused};
pub(crate) use room::Reserved;
pub(crate) use state::SourceState;

/// The schedule of §5.5.
const BACKOFF: [Duration; 6] = [
    Duration::from_secs(1),
    Duration::from_secs(4),
    Duration::from_secs(16),
    Duration::from_secs(64),
    Duration::from_secs(256),
    Duration::from_secs(300),
];
/// The attempts of §5.5.
const MAX_ATTEMPTS: u32 = 10;
/// Of one answer: what answers to webhooks never need.
const ANSWER_LIMIT: usize = 64 * 1024;
/// Of one that failed: escaped it may be ten times as long, which every database's column of text takes.
const LONGEST_FAILURE_ANSWER: usize = 4_096;
/// Attempts in a row that ended with their process: a deploy that kills may meet the same event twice.
const MAX_CRASHES: u32 = 5;
/// Events of one source that may be parked or dead.
const PARK_LIMIT: u32 = 10_000;
/// How long a handler may say "not yet".
const LONGEST_PARK: Duration = Duration::from_secs(24 * 3_600);
/// No event of a batch begins later than this after the first one's handler did: whoever waits for its stream's cursor or
/// for one of its events waits for no more than this and one handler.
const BATCH_TIME: Duration = Duration::from_millis(5);
/// Events of one request: each one is a statement or more within one budget.
const MAX_ELEMENTS: usize = 1_000;
/// Event types with numbers of their own: producers have some dozens.
pub(crate) const MAX_EVENT_TYPES: usize = 50;
/// Bytes that they may take together.
const PARK_BYTES: u64 = 256 * 1024 * 1024;

/// One producer, with its secrets and limits. What is not set has the default that its method states; a preset's own
/// numbers are in [`preset`](crate::preset).
#[derive(Clone, Debug)]
#[must_use = "a source does nothing until it is given to an inbox"]
pub struct Source {
    name: String,
    preset: Preset,
    scheme: Scheme,
    mapping: Mapping,
    secrets: SecretsFrom,
    tolerance: Tolerance,
    url: Option<String>,
    budget: Option<Duration>,
    body_limit: usize,
    read_timeout: Duration,
    max_in_flight: Option<usize>,
    keep_headers: Vec<HeaderName>,
    keep_rejected: bool,
    skip_rejected: bool,
    allow_gone: bool,
    store_answers: bool,
    answer_limit: usize,
    failure_answers: Option<usize>,
    unfenced: bool,
    elements: Option<Elements>,
    equal_versions: EqualVersions,
    deferred: bool,
    worker_budget: Option<Duration>,
    longest_park: Duration,
    /// Events of one stream that the worker may apply in one transaction.
    batch: usize,
    batch_time: Duration,
    /// Streams begin where they stand when they have settled for so long.
    settle: Option<Duration>,
    recovery_window: Option<Duration>,
    revive_gaps: bool,
    backoff: Vec<Duration>,
    max_attempts: u32,
    max_crashes: u32,
    max_age: Option<Duration>,
    park_limit: u32,
    park_bytes: u64,
    /// None: as much as the source.
    stream_park_limit: Option<u32>,
    stream_park_bytes: Option<u64>,
    retention: Option<Duration>,
    dead_letter_retention: Option<Duration>,
    allow_short_retention: bool,
    control_to_handler: bool,
    trace_context: TraceContext,
    max_event_types: usize,
}

/// What becomes of an event whose version is the one that was applied last (§5.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EqualVersions {
    /// It is applied: equal times are not duplicates. The event that was applied last is then known again only as long as
    /// its row is kept ([`Source::retention`]).
    Apply,
    /// It is superseded, as an older one is. For versions that count the changes of their entity.
    Supersede,
}

/// Where the secrets come from.
#[derive(Clone)]
enum SecretsFrom {
    Unset,
    /// As texts, newest first: decoded at build, so that a bad one is refused there.
    Texts(Vec<zeroize::Zeroizing<String>>),
    /// The names of environment variables, read at build.
    Env(Vec<String>),
    File(PathBuf),
    Shared(Secrets),
}

impl std::fmt::Debug for SecretsFrom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unset => f.write_str("unset"),
            Self::Texts(texts) => write!(f, "{} given", texts.len()),
            Self::Env(names) => write!(f, "from environment variables {names:?}"),
            Self::File(path) => write!(f, "from file {}", path.display()),
            Self::Shared(secrets) => secrets.fmt(f),
        }
    }
}

impl Source {
    /// The settle time of §5.2, for [`Source::adopt_first_sequence`]: 30 s.
    pub const SETTLE: Duration = Duration::from_secs(30);

    /// A source that signs and identifies as `preset` says. Its name is 1 to 64 of a-z, A-Z, 0-9, `.`, `_` and `-`,
    /// and must stay the same: rows are kept by it.
    pub fn new(name: impl Into<String>, preset: Preset) -> Self {
        Self {
            name: name.into(),
            scheme: preset.scheme(),
            mapping: preset.mapping(),
            store_answers: preset.stores_answers,
            answer_limit: ANSWER_LIMIT,
            failure_answers: None,
            preset,
            secrets: SecretsFrom::Unset,
            tolerance: Tolerance::default(),
            url: None,
            budget: None,
            body_limit: BODY_LIMIT,
            read_timeout: READ_TIMEOUT,
            max_in_flight: None,
            keep_headers: Vec::new(),
            keep_rejected: true,
            skip_rejected: false,
            allow_gone: false,
            unfenced: false,
            elements: None,
            equal_versions: EqualVersions::Apply,
            deferred: false,
            worker_budget: None,
            longest_park: LONGEST_PARK,
            batch: 1,
            batch_time: BATCH_TIME,
            settle: None,
            recovery_window: None,
            revive_gaps: true,
            backoff: BACKOFF.to_vec(),
            max_attempts: MAX_ATTEMPTS,
            max_crashes: MAX_CRASHES,
            max_age: None,
            park_limit: PARK_LIMIT,
            park_bytes: PARK_BYTES,
            stream_park_limit: None,
            stream_park_bytes: None,
            retention: None,
            dead_letter_retention: None,
            allow_short_retention: false,
            control_to_handler: false,
            trace_context: TraceContext::default(),
            max_event_types: MAX_EVENT_TYPES,
        }
    }

    /// Kudos CRM.
    pub fn kudos(name: impl Into<String>) -> Self {
        Self::new(name, Preset::KUDOS)
    }

    /// A producer with a sequence per correlation id, as the guaranteed-consistency strategy has it.
    pub fn sequenced(name: impl Into<String>) -> Self {
        Self::new(name, Preset::SEQUENCED)
    }

    /// One or two active secrets, newest first, as the producer shows them.
    pub fn secrets<S: Into<String>>(mut self, newest_first: impl IntoIterator<Item = S>) -> Self {
        let texts = newest_first
            .into_iter()
            .map(|text| zeroize::Zeroizing::new(text.into()));
        self.secrets = SecretsFrom::Texts(texts.collect());
        self
    }

    /// One or two active secrets, each in an environment variable, the newest one's first; the second variable may be
    /// unset. Read when the inbox is built, which fails if they cannot be used: see [`Secrets::from_env`].
    pub fn secrets_from_env<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.secrets = SecretsFrom::Env(names.into_iter().map(Into::into).collect());
        self
    }

    /// One or two active secrets in a file that is watched: see [`Secrets::from_file`] for its form. A file that cannot
    /// be read yet does not fail the build; until it can be, deliveries get 503 and the log says why.
    pub fn secrets_from_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.secrets = SecretsFrom::File(path.into());
        self
    }

    /// A handle of secrets: one that the app rotates, or one whose truth is a file or a provider.
    pub fn shared_secrets(mut self, secrets: Secrets) -> Self {
        self.secrets = SecretsFrom::Shared(secrets);
        self
    }

    /// How old a signed time may be, and how far ahead. Default: 5 minutes each.
    pub fn tolerance(mut self, tolerance: Tolerance) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// The URL that is configured at the producer, for schemes that sign it.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// The time that one delivery may take from its first byte to its answer. Default: the producer's patience less
    /// 1 s.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.budget = Some(budget);
        self
    }

    /// The largest body, in bytes; a larger one gets 413. Default: 1 MiB.
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.body_limit = bytes;
        self
    }

    /// The time in which a body must have arrived; a slower one gets 408. Default: 5 s.
    pub fn read_timeout(mut self, timeout: Duration) -> Self {
        self.read_timeout = timeout;
        self
    }

    /// Verified deliveries of this source that may hold a connection at the same time. Default: as many as the inbox
    /// has.
    pub fn max_in_flight(mut self, deliveries: usize) -> Self {
        self.max_in_flight = Some(deliveries);
        self
    }

    /// Lets the handler see a header that is removed otherwise: a signature, or a credential. It is then stored with
    /// parked events too.
    pub fn keep_header(mut self, name: HeaderName) -> Self {
        self.keep_headers.push(name);
        self
    }

    /// Whether a handler's terminal verdict (4xx, 3xx) is kept as a dead letter, with its request. Default: yes.
    pub fn keep_rejected(mut self, keep: bool) -> Self {
        self.keep_rejected = keep;
        self
    }

    /// Whether a terminal verdict on a sequence skips that sequence by itself, in the same transaction, so that its
    /// successors go on without it (§5.10). Its dead letter is kept; an operator can replay it out of its order only.
    /// Default: no, the stream waits until the event is replayed, skipped, discarded or delivered again.
    pub fn skip_rejected(mut self, skip: bool) -> Self {
        self.skip_rejected = skip;
        self
    }

    /// Whether a handler's own 410 goes out as it is. Default: no, it becomes a 422, since producers disable the
    /// endpoint on a 410.
    pub fn allow_gone(mut self, allow: bool) -> Self {
        self.allow_gone = allow;
        self
    }

    /// Whether a duplicate is answered with the first answer again, as the IETF's Idempotency-Key draft has it: status,
    /// headers and body as of the run that committed, live or drained, with `Inbox-Outcome: duplicate`. The answer is read
    /// whole and stored in the same transaction. Not kept: hop-by-hop headers, `Set-Cookie`, credentials, `Date`. Only
    /// answers that committed are stored: what failed may go better another time. Default: as the preset has it; on for
    /// `brief`.
    ///
    /// Not together with [`Source::elements`]: refused at build.
    pub fn store_answers(mut self, store: bool) -> Self {
        self.store_answers = store;
        self
    }

    /// The largest answer's body that is stored, in bytes. A larger one goes out whole the first time; a duplicate of it
    /// gets `already_processed`, and is not processed again either. Default: 64 KiB.
    pub fn answer_limit(mut self, bytes: usize) -> Self {
        self.answer_limit = bytes;
        self
    }

    /// Keeps the beginning of the handler's own answer beside what it refused or failed: up to so many bytes of its body,
    /// for whoever looks at the dead letter or the parked event ([`Letter::last_error`](crate::operator::Letter::last_error),
    /// the console, the command line). As text, with control characters escaped. Default: none; the status alone is kept.
    ///
    /// What a handler answers may say something about a customer: turn it on only if everybody who may look at events may
    /// read that. It goes with the event's request when that is erased or discarded, and with its next attempt. Such an answer is
    /// read whole before it goes out.
    ///
    /// # Panics
    /// If it is not 1 to 4,096 bytes: it stands in lists.
    #[track_caller]
    pub fn keep_failure_answers(mut self, bytes: usize) -> Self {
        assert!(
            (1..=LONGEST_FAILURE_ANSWER).contains(&bytes),
            "of a failing answer 1 to {LONGEST_FAILURE_ANSWER} bytes are kept, not {bytes}"
        );
        self.failure_answers = Some(bytes);
        self
    }

    /// For a producer whose patience is shorter than the work: a delivery is verified, stored, and answered 202
    /// `{"status":"accepted"}`, and the worker applies it at once or when its turn comes, under the same rules as every
    /// parked event (§5.13). Redeliveries get the same 202 until it is applied. Over the bounds on parking: 429.
    ///
    /// The handler's verdict reaches nobody: watch the dead letters. Events without a sequence are applied several at a
    /// time, in no order; their handlers may run for as long as [`Source::worker_budget`] says.
    ///
    /// On SQLite, which has one writer, a delivery waits to be stored until the handler that writes has ended.
    pub fn deferred(mut self) -> Self {
        self.deferred = true;
        self
    }

    /// The time that the worker gives a handler, for a parked or deferred event. Default: the budget of a delivery, in
    /// which nobody waits here.
    pub fn worker_budget(mut self, budget: Duration) -> Self {
        self.worker_budget = Some(budget);
        self
    }

    /// Lets up to `events` events share one transaction, and its commit. Default: 1, each in one of its own. 1 to 256; anything
    /// else is refused at build. What is promised stays as it is: each event once, in its order, whole or not at all. **But a
    /// handler may run for an event once more than it would otherwise**, which matters for its effects outside the
    /// transaction.
    ///
    /// **The worker** applies events that are due of one correlation id in one transaction, in their order, the handler called
    /// for each of them with that same transaction: two commits for all of them in place of two for each. For streams that are
    /// drained by the hundred, with handlers that take much less time than a commit. If one of them does not end with a
    /// commit, for whatever reason (a failure, a verdict, [`Park`](crate::Park), a panic, a transaction that it ended or spoiled,
    /// a commit that the database refuses), then all of them are rolled back, and are run again one by one: attempts, backoff,
    /// dead letters and crashes are counted and judged there alone.
    ///
    /// No event is begun later than 5 ms after the first one's handler was; what is left is the next batch's. At most 4 MiB
    /// of requests are read for one. A batch ends before a gap, a skipped range, an event that was tried before or whose
    /// time has not come, a dead letter of a gap that comes back, and an event that is being delivered again just now. What
    /// has no place in a stream is never part of one: events without a sequence, those of [`Source::newer_than`] and of
    /// [`Source::elements`], and what an operator replays out of its order. Answers that are stored
    /// ([`Source::store_answers`]) are stored for each event.
    ///
    /// **Deliveries** share transactions too (group commit): one whose handler has succeeded hands its transaction on to one that
    /// waits just then, and the last of them, at most `events`, commits for all. That is the very next event of the same
    /// correlation id, where it waits for its turn in this process: for streams whose events come faster than they are
    /// committed. Or it is any other, of all sources that have it set:
    ///
    /// - On PostgreSQL one that waits for a place among those that may hold a connection
    ///   ([`InboxBuilder::max_in_flight`](crate::InboxBuilder::max_in_flight), one less than the pool's connections), and not for
    ///   one of its source's own ([`Source::max_in_flight`]). While there is a free one nothing is shared. A small pool shares
    ///   soon, which is what pays off where the database is short of processors; with a database far away a large one does more,
    ///   since those who share go one after the other. What has a version ([`Source::newer_than`]) or an event id that is not
    ///   signed does not join.
    /// - On SQLite, which has one writer, one that waits to write; no more of those wait than may be in flight: with a pool of
    ///   2 nobody does.
    /// - On MySQL and MariaDB none: their transactions have a snapshot unless they are told otherwise, and a handler would not see
    ///   what was acknowledged since the one that it joins began. The same is so on PostgreSQL at `REPEATABLE READ` and above, for
    ///   events without a sequence.
    ///
    /// Who joins needs no connection, and it has its own time: the limits that the server keeps are set anew for it. A group
    /// holds the rows of several streams until it commits, and its members are answered when the last one's handler has ended.
    /// Nobody joins it who would wait for rows that others hold, but a handler may wait: two groups whose handlers lock the same
    /// rows of yours in another order wait for each other, until the database ends the statement of one of them, which fails as
    /// its handler says then.
    ///
    /// Nobody is answered before the commit, and nobody waits for others to come. A handler's failure takes back
    /// its own work alone; its 3xx, 4xx or `Park` is run once more, in a transaction that keeps the request with it. What
    /// spoils the transaction, a panic or a spent budget say, undoes the whole group, and those who had succeeded in it are
    /// run again one by one, in their order. A source whose last handlers took longer than about 2 ms on the average, their waiting included,
    /// shares nothing until they are short again; nor do the next deliveries after groups that were undone. Deferred sources and
    /// those of [`Source::elements`] take no part. The metrics `inbox_group_commits_total` and
    /// `inbox_group_commit_deliveries_total` show it.
    ///
    /// What handlers in one transaction share, and so may see of those that ran before them:
    ///
    /// - their writes, before they are committed, and the locks that they took;
    /// - `SET LOCAL` and transaction-level advisory locks (PostgreSQL), session variables and `SET SESSION` (MySQL,
    ///   MariaDB), temporary tables, `PRAGMA`s (SQLite);
    /// - the time: `now()` and `CURRENT_TIMESTAMP` of PostgreSQL are when the batch began, for each of them;
    /// - deferred constraints, which are checked once, for all, when the batch commits; `SET CONSTRAINTS` holds for the rest;
    /// - `NOTIFY`: the notifications of all are sent at the commit, equal ones once;
    /// - names of savepoints, cursors and prepared statements; the snapshot, at `REPEATABLE READ` and above;
    /// - their fate: an outage, a deadlock or a lost connection ends all of them together.
    pub fn batch(mut self, events: usize) -> Self {
        self.batch = events;
        self
    }

    /// For tests: in place of the 5 ms.
    #[cfg(feature = "failpoints")]
    #[doc(hidden)]
    pub fn batch_time(mut self, time: Duration) -> Self {
        self.batch_time = time;
        self
    }

    /// For how long a handler may answer [`Park`](crate::Park) for one event, since that was parked. After that it counts
    /// as a failed attempt. Default: 24 hours.
    pub fn longest_park(mut self, longest: Duration) -> Self {
        self.longest_park = longest;
        self
    }

    /// For a producer whose request carries several events: where their array is in the body, such as
    /// `Some("data.events".into())`, or `None` if the body is the array. Each element is an event of its own, read by the
    /// mapping as if it were the body, and the handler runs once for each new one, with the element as its body. They
    /// are applied in one transaction: all, or none. At most 1,000 of them, or 400.
    ///
    /// Not together with a sequence, and not where the event id is in a header: refused at build.
    pub fn elements(mut self, at: Option<JsonPath>) -> Self {
        self.elements = Some(Elements {
            at,
            most: MAX_ELEMENTS,
        });
        self
    }

    /// Gives up the fence of a source whose event id is not signed: whoever captured one delivery can then have its
    /// event applied again under any new id.
    pub fn insecure_unfenced(mut self) -> Self {
        self.unfenced = true;
        self
    }

    /// Refuses (400) events without a correlation id and a sequence. Default: they are applied unordered.
    pub fn require_order(mut self) -> Self {
        self.mapping = self.mapping.with_order_required();
        self
    }

    /// For producers without gap-free numbers: an event is applied only if its version is greater than the last applied one
    /// of its correlation id (§5.12). An older one is recorded, acknowledged with 200 `{"status":"superseded"}`, and never
    /// handed over. There are no gaps, and nothing is parked for its order's sake.
    ///
    /// Says where both are, in place of the preset's own order. A version is an integer of 64 bits, or an RFC 3339 time,
    /// which is compared as an instant in µs. Events that lack one of the two get 400.
    ///
    /// Fit for events that carry the whole state of their entity: those in between may never reach the handler.
    ///
    /// ```
    /// use tower_inbox::{Preset, Source, envelope::Place};
    ///
    /// let stripe = Source::new("stripe", Preset::STRIPE)
    ///     .secrets(["whsec_…"])
    ///     .newer_than(Place::json("data.object.id"), Place::JsonInteger("created".into()));
    /// ```
    pub fn newer_than(
        mut self,
        correlation_id: impl Into<Lookup>,
        version: impl Into<Lookup>,
    ) -> Self {
        let mapping = self.mapping.without_sequence();
        self.mapping = mapping
            .with_correlation_id(correlation_id)
            .with_version(version);
        self
    }

    /// What becomes of an event whose version is the one that was applied last of its correlation id. Default: it is
    /// applied. Only with [`Source::newer_than`].
    pub fn equal_versions(mut self, policy: EqualVersions) -> Self {
        self.equal_versions = policy;
        self
    }

    /// Where the parts of an envelope are, in place of what the preset says.
    pub fn mapping(mut self, mapping: Mapping) -> Self {
        self.mapping = mapping;
        self
    }

    /// The first sequence of every correlation id: 0 or 1. Default: 1. For streams that are in the middle already, see
    /// [`Source::adopt_first_sequence`].
    pub fn first_sequence(mut self, first: Sequence) -> Self {
        self.settle = None;
        self.mapping = self.mapping.with_first_sequence(first.get());
        self
    }

    /// Takes every correlation id where it stands (§5.2), for a producer that has sent events before this inbox was there.
    /// What arrives of a new one is parked for `settle` ([`Source::SETTLE`], 30 s, is a good one: longer than the
    /// producer's first retries, so that the lowest one is among what has come); then the stream begins at the lowest
    /// sequence that is parked. A lower one that comes later is set aside, and not applied by itself.
    ///
    /// In place of [`Source::first_sequence`]: of the two, the one that is called last counts. A correlation id that has a
    /// cursor already goes on as it is.
    ///
    /// ```
    /// use tower_inbox::Source;
    ///
    /// let source = Source::sequenced("erp").secrets(["a secret"]).adopt_first_sequence(Source::SETTLE);
    /// ```
    pub fn adopt_first_sequence(mut self, settle: Duration) -> Self {
        self.mapping = self.mapping.with_first_sequence(0);
        self.settle = Some(settle);
        self
    }

    /// How long an event waits for a gap before it becomes a dead letter. Default: 5 minutes for `sequenced`,
    /// otherwise the producer's whole retry span and a quarter.
    pub fn recovery_window(mut self, window: Duration) -> Self {
        self.recovery_window = Some(window);
        self
    }

    /// Whether a dead letter of a gap comes back by itself when the gap fills. Default: yes.
    pub fn revive_gaps(mut self, revive: bool) -> Self {
        self.revive_gaps = revive;
        self
    }

    /// The waits between the attempts of a parked event whose handler fails, each ± at most 25 %, and never more than five
    /// minutes for a jitter's sake; the last one is used again for the attempts after. A `Retry-After` of the handler, in
    /// seconds, up to an hour, makes a wait longer. Default: 1, 4, 16, 64, 256, 300 s.
    pub fn backoff(mut self, waits: impl IntoIterator<Item = Duration>) -> Self {
        self.backoff = waits.into_iter().collect();
        self
    }

    /// The attempts after which a parked event is a dead letter. Default: 10.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// The attempts, one after the other, that end without a word because their process ended, after which an event that a
    /// worker tries is a dead letter (`crash`). The first is tried again as soon as the worker is known to be gone, the next
    /// ones after the waits of [`Source::backoff`]. Default: 5.
    pub fn max_crashes(mut self, crashes: u32) -> Self {
        self.max_crashes = crashes;
        self
    }

    /// The age, since it was stored, from which on a parked event that fails is a dead letter at once, however few its
    /// attempts. Default: no limit.
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = Some(age);
        self
    }

    /// Events that may be parked or dead; over it, what would be parked gets 429. Default: 10,000.
    pub fn park_limit(mut self, events: u32) -> Self {
        self.park_limit = events;
        self
    }

    /// Bytes that parked and dead events may take; over it, what would be parked gets 429. Default: 256 MiB.
    pub fn park_bytes(mut self, bytes: u64) -> Self {
        self.park_bytes = bytes;
        self
    }

    /// Events of one correlation id that may be parked or dead; over it, what would be parked gets 429, and dead letters
    /// keep id, headers and reason only. Default: [`Source::park_limit`]. A producer that sends a single long stream needs
    /// all of that for it; a bound below it keeps one stream with a gap from taking the room of all the others.
    ///
    /// It is counted by one statement when a stream parks that this process has not counted in the last 5 s. What other
    /// processes park meanwhile is not seen until then.
    pub fn park_limit_per_stream(mut self, events: u32) -> Self {
        self.stream_park_limit = Some(events);
        self
    }

    /// Bytes that parked and dead events of one correlation id may take, as [`Source::park_limit_per_stream`] has it.
    /// Default: [`Source::park_bytes`].
    pub fn park_bytes_per_stream(mut self, bytes: u64) -> Self {
        self.stream_park_bytes = Some(bytes);
        self
    }

    /// How long the rows of applied events are kept, against which duplicates are known. Default: 30 days, or the
    /// floor where that is longer. Less than
    /// [`Preset::retention_floor`], with ten minutes for skew and rounded up to whole hours, is refused, since the producer may still send such an event again.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = Some(retention);
        self
    }

    /// How long dead letters are kept, from the time when they became one; then they are removed with their requests, and
    /// whoever sends such an event again sends a new one. One whose turn has come is left to the worker. Default: none, they
    /// are kept until an operator has decided. What the fence holds goes by [`Source::retention`]. The floor is the same.
    ///
    /// It counts from its death alone: a redelivery that finds the letter, and is answered 202 while that waits, does not
    /// prolong it. Of a letter of an earlier generation of its stream nothing is known either once it is forgotten: sent
    /// again, its event is a new one of the present generation.
    pub fn dead_letter_retention(mut self, retention: Duration) -> Self {
        self.dead_letter_retention = Some(retention);
        self
    }

    /// Gives up the promise that a late redelivery is known: lets [`Source::retention`] and
    /// [`Source::dead_letter_retention`] go below the floor.
    pub fn insecure_short_retention(mut self) -> Self {
        self.allow_short_retention = true;
        self
    }

    /// Whether the handler gets the events by which the producer tells about its deliveries, such as the start of a replay:
    /// they are then events like any other. Default: no, they are answered with an empty 200. Bursts are tracked either way
    /// ([`Inbox::bursts`](crate::Inbox::bursts)).
    pub fn control_events_to_handler(mut self, hand_on: bool) -> Self {
        self.control_to_handler = hand_on;
        self
    }

    /// What is taken from the headers by which the producer names the trace that a delivery belongs to. Default:
    /// [`TraceContext::Follow`]. It comes from outside and no scheme signs it: where a producer should not decide what is
    /// recorded here, [`TraceContext::Link`].
    pub fn trace_context(mut self, context: TraceContext) -> Self {
        self.trace_context = context;
        self
    }

    /// How many event types have numbers of their own, in the metrics and in [`Inbox::stats`](crate::Inbox::stats): the first
    /// ones that this process has seen in verified deliveries. The rest are `other` together. Default: 50; 1 to 1,000,
    /// anything else is refused at build.
    pub fn max_event_types(mut self, types: usize) -> Self {
        self.max_event_types = types;
        self
    }
}
