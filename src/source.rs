//! A source: one producer, or one tenant of one producer.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderName, Method};
use metrics::SharedString;
use tokio::sync::Semaphore;

use crate::envelope::{Envelope, Mapping, Sequence};
use crate::error::{BuildError, BuildErrorKind};
use crate::preset::Preset;
use crate::store::Known;
use crate::verify::{Scheme, Secret, Secrets, Tolerance};

/// The default of §2.1: larger webhooks are rare, and a body is held in memory whole.
const BODY_LIMIT: usize = 1024 * 1024;
/// The default of §2.1.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// What a network needs to bring the answer back before the producer's patience ends (§1, budget).
const MARGIN: Duration = Duration::from_secs(1);
/// The default of §7.1.
const RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);
/// Clocks differ: added to the retention's floor (§7.1), which is rounded up to whole hours.
const SKEW: Duration = Duration::from_secs(10 * 60);
const HOUR: u64 = 3600;
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
/// Events of one source that may be parked or dead.
const PARK_LIMIT: u32 = 10_000;
/// Event types of one source that have a label of their own in the metrics.
const COUNTED_TYPES: usize = 64;
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
    allow_gone: bool,
    recovery_window: Option<Duration>,
    revive_gaps: bool,
    backoff: Vec<Duration>,
    max_attempts: u32,
    park_limit: u32,
    park_bytes: u64,
    retention: Option<Duration>,
    allow_short_retention: bool,
}

/// Where the secrets come from.
#[derive(Clone)]
enum SecretsFrom {
    Unset,
    /// As texts, newest first: decoded at build, so that a bad one is refused there.
    Texts(Vec<zeroize::Zeroizing<String>>),
    Shared(Secrets),
}

impl std::fmt::Debug for SecretsFrom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unset => f.write_str("unset"),
            Self::Texts(texts) => write!(f, "{} given", texts.len()),
            Self::Shared(secrets) => secrets.fmt(f),
        }
    }
}

impl Source {
    /// A source that signs and identifies as `preset` says. Its name is 1 to 64 of a-z, A-Z, 0-9, `.`, `_` and `-`,
    /// and must stay the same: rows are kept by it.
    pub fn new(name: impl Into<String>, preset: Preset) -> Self {
        Self {
            name: name.into(),
            scheme: preset.scheme(),
            mapping: preset.mapping(),
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
            allow_gone: false,
            recovery_window: None,
            revive_gaps: true,
            backoff: BACKOFF.to_vec(),
            max_attempts: MAX_ATTEMPTS,
            park_limit: PARK_LIMIT,
            park_bytes: PARK_BYTES,
            retention: None,
            allow_short_retention: false,
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

    /// A handle of secrets that something else rotates.
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

    /// Whether a handler's own 410 goes out as it is. Default: no, it becomes a 422, since producers disable the
    /// endpoint on a 410.
    pub fn allow_gone(mut self, allow: bool) -> Self {
        self.allow_gone = allow;
        self
    }

    /// Refuses (400) events without a correlation id and a sequence. Default: they are applied unordered.
    pub fn require_order(mut self) -> Self {
        self.mapping = self.mapping.with_order_required();
        self
    }

    /// The first sequence of every correlation id: 0 or 1. Default: 1.
    pub fn first_sequence(mut self, first: Sequence) -> Self {
        self.mapping = self.mapping.with_first_sequence(first.get());
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

    /// The waits between the attempts of a parked event whose handler fails, each ± at most 25 %; the last one is
    /// used again for the attempts after. Default: 1, 4, 16, 64, 256, 300 s.
    pub fn backoff(mut self, waits: impl IntoIterator<Item = Duration>) -> Self {
        self.backoff = waits.into_iter().collect();
        self
    }

    /// The attempts after which a parked event is a dead letter. Default: 10.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
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

    /// How long the rows of applied events are kept, against which duplicates are known. Default: 30 days, or the
    /// floor where that is longer. Less than
    /// [`Preset::retention_floor`], with ten minutes for skew and rounded up to whole hours, is refused, since the producer may still send such an event again.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = Some(retention);
        self
    }

    /// Gives up the promise that a late redelivery is known: lets [`Source::retention`] go below the floor.
    pub fn insecure_short_retention(mut self) -> Self {
        self.allow_short_retention = true;
        self
    }
}

/// A source at work: its settings, checked, and what is counted about it in this process.
pub(crate) struct SourceState {
    name: Arc<str>,
    source: Source,
    secrets: Secrets,
    budget: Duration,
    recovery_window: Duration,
    retention: Duration,
    in_flight: Semaphore,
    /// Parked and dead: what the sampler found last, and what this process has done since.
    pending: AtomicI64,
    pending_bytes: AtomicI64,
    on_routes: AtomicBool,
    /// The event types that have a label of their own in the metrics.
    types: Mutex<HashSet<Arc<str>>>,
}

impl SourceState {
    pub(crate) fn new(source: Source, body_budget: usize) -> Result<Self, BuildError> {
        let name = source.name.as_str();
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            let message = format!(
                "the source name {name:?} must be 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-'"
            );
            return Err(BuildError::new(BuildErrorKind::Name, message));
        }
        let refuse = |what: String| {
            Err(BuildError::unsafe_setting(format!(
                "source {name:?}: {what}"
            )))
        };
        if !source.mapping.id_is_covered_by(&source.scheme) {
            return refuse(
                "its event id is not covered by the signature, and the fence that such a source needs is not in this \
                 version: use a scheme that signs the id"
                    .into(),
            );
        }
        if !(0..=1).contains(&source.mapping.first_sequence()) {
            return refuse("the first sequence must be 0 or 1".into());
        }
        if source.scheme.needs_url() && source.url.is_none() {
            return refuse(
                "the scheme signs the URL: give the one set at the producer, `.url(…)`".into(),
            );
        }
        let secrets = build_secrets(&source)?;
        let budget = match source.budget {
            Some(budget) => budget,
            None => source.preset.patience.saturating_sub(MARGIN),
        };
        if budget < Duration::from_millis(100) {
            return refuse(format!(
                "a budget of {budget:?} is too short: at least 100 ms"
            ));
        }
        if source.body_limit == 0 || source.body_limit > body_budget {
            return refuse(format!(
                "the body limit of {} bytes must be at least 1 and fit the inbox's body budget of {body_budget}",
                source.body_limit
            ));
        }
        if source.backoff.is_empty() || source.max_attempts == 0 || source.max_in_flight == Some(0)
        {
            return refuse("backoff, max_attempts and max_in_flight must not be empty or 0".into());
        }
        let floor = source.preset.retention_floor() + SKEW;
        let floor = Duration::from_secs(floor.as_secs().div_ceil(HOUR) * HOUR);
        let retention = source.retention.unwrap_or(RETENTION.max(floor));
        if retention < floor && !source.allow_short_retention {
            return refuse(format!(
                "a retention of {} s is below the floor of {} s, in which this producer may send an event again: use \
                 `.retention(…)` of at least that, or say `.insecure_short_retention()`",
                retention.as_secs(),
                floor.as_secs()
            ));
        }
        let in_flight = source.max_in_flight.unwrap_or(Semaphore::MAX_PERMITS);
        Ok(Self {
            name: name.into(),
            secrets,
            budget,
            recovery_window: source
                .recovery_window
                .unwrap_or(source.preset.recovery_window()),
            retention,
            types: Mutex::default(),
            in_flight: Semaphore::new(in_flight.min(Semaphore::MAX_PERMITS)),
            pending: AtomicI64::new(0),
            pending_bytes: AtomicI64::new(0),
            on_routes: AtomicBool::new(false),
            source,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn name_arc(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    pub(crate) fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    pub(crate) fn scheme(&self) -> &Scheme {
        &self.source.scheme
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.source.mapping
    }

    pub(crate) fn tolerance(&self) -> &Tolerance {
        &self.source.tolerance
    }

    pub(crate) fn url(&self) -> Option<&str> {
        self.source.url.as_deref()
    }

    pub(crate) fn budget(&self) -> Duration {
        self.budget
    }

    pub(crate) fn body_limit(&self) -> usize {
        self.source.body_limit
    }

    pub(crate) fn read_timeout(&self) -> Duration {
        self.source.read_timeout
    }

    pub(crate) fn in_flight(&self) -> &Semaphore {
        &self.in_flight
    }

    pub(crate) fn keep_headers(&self) -> &[HeaderName] {
        &self.source.keep_headers
    }

    pub(crate) fn keeps_rejected(&self) -> bool {
        self.source.keep_rejected
    }

    pub(crate) fn allows_gone(&self) -> bool {
        self.source.allow_gone
    }

    pub(crate) fn allows(&self, method: &Method) -> bool {
        *method == Method::POST
    }

    pub(crate) fn first(&self) -> i64 {
        self.source.mapping.first_sequence()
    }

    pub(crate) fn recovery_window(&self) -> Duration {
        self.recovery_window
    }

    pub(crate) fn revives_gaps(&self) -> bool {
        self.source.revive_gaps
    }

    pub(crate) fn retention(&self) -> Duration {
        self.retention
    }

    pub(crate) fn max_attempts(&self) -> u32 {
        self.source.max_attempts
    }

    /// The wait before the attempt after `failed` ones, without jitter. Saturates at the last wait.
    pub(crate) fn backoff(&self, failed: u32) -> Duration {
        let waits = &self.source.backoff;
        let index = usize::try_from(failed.saturating_sub(1)).unwrap_or(usize::MAX);
        waits[index.min(waits.len() - 1)]
    }

    /// Whether a delivery carries what is known under its id: the same content, in the same place.
    pub(crate) fn same_content(&self, envelope: &Envelope, known: &Known) -> bool {
        known.fingerprint == envelope.fingerprint
            && known.sequence == envelope.sequence.map(Sequence::get)
            && known.correlation_id.as_deref() == envelope.correlation_id.as_deref()
    }

    /// Other content under a known id (§4.12): true if the policy refuses it; otherwise it is noted here.
    pub(crate) fn refuses_other_content(&self, envelope: &Envelope) -> bool {
        if self.source.mapping.content_policy().rejects() {
            return true;
        }
        metrics::counter!("inbox_other_content_total", "source" => self.name_shared()).increment(1);
        tracing::info!(
            source = &*self.name,
            event_id = envelope.event_id.as_str(),
            "a known event was delivered again with other content"
        );
        false
    }

    pub(crate) fn name_shared(&self) -> SharedString {
        SharedString::from_shared(self.name_arc())
    }

    /// The label of an event type. Types beyond a number are "other": a producer must not be able to make labels.
    pub(crate) fn type_label(&self, kind: Option<&Arc<str>>) -> SharedString {
        let Some(kind) = kind else {
            return SharedString::const_str("");
        };
        let mut types = self.types.lock().unwrap_or_else(PoisonError::into_inner);
        if !types.contains(kind) {
            if types.len() >= COUNTED_TYPES {
                return SharedString::const_str("other");
            }
            types.insert(Arc::clone(kind));
        }
        SharedString::from_shared(Arc::clone(kind))
    }

    /// Whether one more event of this size may be parked.
    pub(crate) fn may_park(&self, bytes: i64) -> bool {
        let bytes = self
            .pending_bytes
            .load(Ordering::Relaxed)
            .saturating_add(bytes);
        self.pending.load(Ordering::Relaxed) < i64::from(self.source.park_limit)
            && u64::try_from(bytes).unwrap_or(0) <= self.source.park_bytes
    }

    /// Whether anything may be waiting: a hint that saves a statement after every ordered commit.
    pub(crate) fn has_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn parked_one(&self, bytes: i64) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        self.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn unparked_one(&self, bytes: i64) {
        self.pending.fetch_sub(1, Ordering::Relaxed);
        self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn sampled(&self, events: i64, bytes: i64) {
        self.pending.store(events, Ordering::Relaxed);
        self.pending_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Only a mounted router can say that no route was reached.
    pub(crate) fn mounted_on_routes(&self) -> bool {
        self.on_routes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_mounted_on_routes(&self) {
        self.on_routes.store(true, Ordering::Relaxed);
    }
}

fn build_secrets(source: &Source) -> Result<Secrets, BuildError> {
    let name = &source.name;
    let refuse = |what: String| {
        Err(BuildError::new(
            BuildErrorKind::Secret,
            format!("source {name:?}: {what}"),
        ))
    };
    match &source.secrets {
        SecretsFrom::Shared(secrets) => Ok(secrets.clone()),
        SecretsFrom::Unset => refuse("give one or two secrets: `.secrets([new, old])`".into()),
        SecretsFrom::Texts(texts) => {
            let mut secrets = Vec::with_capacity(texts.len());
            for text in texts {
                match Secret::decode(source.preset.key, text.as_str()) {
                    Ok(secret) => secrets.push(secret),
                    Err(error) => return refuse(error.to_string()),
                }
            }
            Secrets::new(secrets).or_else(|error| refuse(error.to_string()))
        }
    }
}
