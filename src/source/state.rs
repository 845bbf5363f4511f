//! A source at work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{HeaderName, Method, StatusCode};
use metrics::SharedString;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use super::counted::{Counted, Verdicts};
use super::handler_time::HandlerTime;
use super::lookout::Lookout;
use super::room::{Bound, Room};
use super::{EqualVersions, SecretsFrom, Source};
use crate::broken::{self, Variant};
use crate::burst::Tally;
use crate::clock::Timestamp;
use crate::door::Door;
use crate::envelope::{Elements, Envelope, Mapping, Sequence};
use crate::error::{BuildError, BuildErrorKind};
use crate::event::Outcome;
use crate::kept::Collect;
use crate::preset::Reaction;
use crate::store::{Fence, Known, SETTLING, Start};
use crate::trace::TraceContext;
use crate::verify::{Head, Refusal, RequestView, Scheme, Secret, Secrets};

/// What a network needs to bring the answer back before the producer's patience ends (§1, budget).
const MARGIN: Duration = Duration::from_secs(1);
/// The default of §7.1.
const RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);
/// Clocks differ: added to the retention's floor (§7.1), which is rounded up to whole hours.
const SKEW: Duration = Duration::from_secs(10 * 60);
const HOUR: u64 = 3600;
/// Events of one batch: the requests of all are in memory, and two commits among so many are next to nothing.
const MOST_OF_A_BATCH: usize = 256;
/// Event types that are told apart: more than that is no type any more.
const MOST_TYPES: usize = 1_000;

/// A source at work: its settings, checked, and what is counted about it in this process.
pub(crate) struct SourceState {
    name: Arc<str>,
    source: Source,
    secrets: Secrets,
    budget: Duration,
    recovery_window: Duration,
    retention: Duration,
    fenced: bool,
    in_flight: Semaphore,
    in_flight_limit: usize,
    room: Room,
    on_routes: AtomicBool,
    lookout: Lookout,
    handler_time: HandlerTime,
    /// What its deliveries came to, for replay bursts.
    arrivals: Tally,
    /// Its owner has deregistered it, as far as is known here.
    gone: AtomicBool,
    counted: Arc<Counted>,
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
        let fenced = !source.mapping.id_is_covered_by(&source.scheme) && !source.unfenced;
        if fenced && source.mapping.has_sequence() {
            return refuse(
                "its event id is not covered by the signature, and such a source cannot be ordered by sequence: sign \
                 the id, or take the sequence out of the mapping"
                    .into(),
            );
        }
        if source.elements.is_some()
            && (source.mapping.has_sequence() || source.mapping.id_is_in_header())
        {
            return refuse(
                "a request with several events cannot be ordered by sequence, nor have its event id in a header: use \
                 a mapping that reads the id from each element and no sequence"
                    .into(),
            );
        }
        if source.elements.is_some() && source.store_answers {
            return refuse(
                "a request with several events has one answer, which is no event's own: `.store_answers(false)`".into(),
            );
        }
        if source.mapping.has_version() && source.mapping.has_sequence() {
            return refuse(
                "events are ordered by sequence or by version, not by both: take one of them out of the mapping"
                    .into(),
            );
        }
        if source.mapping.has_version() && !source.mapping.has_correlation_id() {
            return refuse(
                "a version is one of some entity: give the mapping a correlation id".into(),
            );
        }
        if source.skip_rejected && !source.keep_rejected {
            return refuse(
                "a sequence is skipped together with the dead letter that holds it: leave `.keep_rejected(true)`, or \
                 take `.skip_rejected(true)` out"
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
        let shortest = source.worker_budget.unwrap_or(budget).min(budget);
        if shortest < Duration::from_millis(100) {
            return refuse(format!(
                "a budget of {shortest:?} is too short: at least 100 ms"
            ));
        }
        if !(1..=MOST_OF_A_BATCH).contains(&source.batch) {
            return refuse(format!("a batch has 1 to {MOST_OF_A_BATCH} events"));
        }
        if !(1..=MOST_TYPES).contains(&source.max_event_types) {
            return refuse(format!(
                "max_event_types is 1 to {MOST_TYPES}: each has series of its own in the metrics"
            ));
        }
        if source.longest_park.is_zero() {
            return refuse("longest_park must not be 0".into());
        }
        if budget > source.preset.patience {
            tracing::warn!(
                source = name, ?budget, patience = ?source.preset.patience,
                "the budget is longer than the producer waits: it will not see some answers, and send again"
            );
        }
        if source.body_limit == 0 || source.body_limit > body_budget {
            return refuse(format!(
                "the body limit of {} bytes must be at least 1 and fit the inbox's body budget of {body_budget}",
                source.body_limit
            ));
        }
        if source.backoff.is_empty()
            || source.max_attempts == 0
            || source.max_crashes == 0
            || source.max_in_flight == Some(0)
        {
            return refuse(
                "backoff, max_attempts, max_crashes and max_in_flight must not be empty or 0"
                    .into(),
            );
        }
        let floor = source.preset.retention_floor() + SKEW;
        let floor = Duration::from_secs(floor.as_secs().div_ceil(HOUR) * HOUR);
        let retention = source.retention.unwrap_or(RETENTION.max(floor));
        let of_letters = source.dead_letter_retention;
        let shortest = of_letters.map_or(retention, |kept| kept.min(retention));
        if shortest < floor && !source.allow_short_retention {
            return refuse(format!(
                "a retention of {} s is below the floor of {} s, in which this producer may send an event again: use \
                 `.retention(…)` of at least that, or say `.insecure_short_retention()`",
                shortest.as_secs(),
                floor.as_secs()
            ));
        }
        let whole = Bound {
            events: source.park_limit,
            bytes: source.park_bytes,
        };
        let stream = Bound {
            events: source.stream_park_limit.unwrap_or(whole.events),
            bytes: source.stream_park_bytes.unwrap_or(whole.bytes),
        };
        let in_flight = source.max_in_flight.unwrap_or(Semaphore::MAX_PERMITS);
        let in_flight = in_flight.min(Semaphore::MAX_PERMITS);
        let name: Arc<str> = name.into();
        Ok(Self {
            counted: Arc::new(Counted::new(&name, source.max_event_types)),
            name,
            secrets,
            budget,
            recovery_window: source
                .recovery_window
                .unwrap_or(source.preset.recovery_window()),
            retention,
            fenced,
            in_flight: Semaphore::new(in_flight),
            in_flight_limit: in_flight,
            room: Room::new(whole, stream),
            on_routes: AtomicBool::new(false),
            arrivals: Tally::default(),
            lookout: Lookout::default(),
            handler_time: HandlerTime::default(),
            gone: AtomicBool::new(false),
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

    pub(crate) fn door(&self) -> Door<'_> {
        Door {
            source: &self.name,
            scheme: &self.source.scheme,
            secrets: &self.secrets,
            tolerance: &self.source.tolerance,
            url: self.source.url.as_deref(),
            body_limit: self.source.body_limit,
            read_timeout: self.source.read_timeout,
        }
    }

    pub(crate) fn scheme(&self) -> &Scheme {
        &self.source.scheme
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.source.mapping
    }

    pub(crate) fn budget(&self) -> Duration {
        self.budget
    }

    /// For a handler that no producer waits for.
    pub(crate) fn worker_budget(&self) -> Duration {
        self.source.worker_budget.unwrap_or(self.budget)
    }

    pub(crate) fn trace_context(&self) -> TraceContext {
        self.source.trace_context
    }

    pub(crate) fn is_deferred(&self) -> bool {
        self.source.deferred
    }

    pub(crate) fn longest_park(&self) -> Duration {
        self.source.longest_park
    }

    /// Events of a stream that the worker may apply in one transaction; 1 is no batch at all.
    pub(crate) fn batch(&self) -> usize {
        self.source.batch
    }

    pub(crate) fn handler_time(&self) -> &HandlerTime {
        &self.handler_time
    }

    /// How long after the first one's handler another event of a batch may begin.
    pub(crate) fn batch_time(&self) -> Duration {
        self.source.batch_time
    }

    /// Of a delivery or of the worker.
    pub(crate) fn longest_budget(&self) -> Duration {
        self.budget().max(self.worker_budget())
    }

    pub(crate) fn lookout(&self) -> &Lookout {
        &self.lookout
    }

    pub(crate) fn in_flight(&self) -> &Semaphore {
        &self.in_flight
    }

    /// How many hold a place just now.
    pub(crate) fn in_flight_now(&self) -> usize {
        let free = self.in_flight.available_permits();
        self.in_flight_limit.saturating_sub(free)
    }

    pub(crate) fn keep_headers(&self) -> &[HeaderName] {
        &self.source.keep_headers
    }

    /// What a delivery is known by beside its id, which is not signed (§6.7). Where a time is signed, the signed message:
    /// it comes again only if it was captured. Otherwise event type and body, except for types that may honestly repeat.
    pub(crate) fn fence(
        &self,
        head: &Head,
        request: &RequestView<'_>,
        event_type: Option<&str>,
        now: Timestamp,
    ) -> Result<Option<Fence>, Refusal> {
        if !self.fenced {
            return Ok(None);
        }
        if self.source.scheme.has_timestamp() {
            let digest = head.signed_digest(request)?;
            let expires_at = now.plus(self.source.tolerance.span());
            return Ok(Some(Fence { digest, expires_at }));
        }
        Ok(self.fence_of_body(event_type, request.body, now))
    }

    /// The fence where no time is signed, which can be told of a stored event too. There is none for what came by another
    /// way than a signed delivery if one is.
    pub(crate) fn fence_of_body(
        &self,
        event_type: Option<&str>,
        body: &[u8],
        now: Timestamp,
    ) -> Option<Fence> {
        let kind = event_type.unwrap_or("");
        if !self.fenced
            || self.source.scheme.has_timestamp()
            || self.source.preset.fence_exempt.contains(&kind)
        {
            return None;
        }
        // An event type has no control characters, so that no two pairs make one text.
        let digest = Sha256::new()
            .chain_update(kind)
            .chain_update([0])
            .chain_update(body)
            .finalize();
        Some(Fence {
            digest: digest.into(),
            expires_at: now.plus(self.retention),
        })
    }

    pub(crate) fn hands_on_control(&self) -> bool {
        self.source.control_to_handler
    }

    pub(crate) fn arrivals(&self) -> &Tally {
        &self.arrivals
    }

    /// From the first attempt of a delivery to its last one.
    pub(crate) fn retry_span(&self) -> Duration {
        self.source.preset.retry_span
    }

    /// For how long the producer keeps what it gave up; zero where it does not say.
    pub(crate) fn replay_window(&self) -> Duration {
        self.source.preset.replay_window
    }

    pub(crate) fn body_limit(&self) -> usize {
        self.source.body_limit
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced
    }

    pub(crate) fn elements(&self) -> Option<&Elements> {
        self.source.elements.as_ref()
    }

    pub(crate) fn keeps_rejected(&self) -> bool {
        self.source.keep_rejected
    }

    pub(crate) fn skips_rejected(&self) -> bool {
        self.source.skip_rejected
    }

    /// The largest body of an answer that is kept for duplicates; nothing if none is.
    pub(crate) fn answer_limit(&self) -> Option<usize> {
        self.source
            .store_answers
            .then_some(self.source.answer_limit)
    }

    /// The bytes of a failing answer that are kept; nothing if none are.
    pub(crate) fn failure_answers(&self) -> Option<usize> {
        self.source.failure_answers
    }

    /// Which answers' bodies are read whole before they go out.
    pub(crate) fn collects(&self) -> Option<Collect> {
        match (self.answer_limit(), self.failure_answers()) {
            (Some(_), _) => Some(Collect::All),
            (None, Some(_)) => Some(Collect::Failures),
            (None, None) => None,
        }
    }

    pub(crate) fn allows_gone(&self) -> bool {
        self.source.allow_gone
    }

    /// Whether its producer's own page says that it gives an event up after this status, or lists the 5xx after which it
    /// does not, and this one is none of them.
    pub(crate) fn is_lost_after(&self, status: StatusCode) -> bool {
        let answers = &self.source.preset.answers;
        match answers.reaction(status.as_u16()) {
            Some(reaction) => reaction == Reaction::Stops,
            None => status.is_server_error() && answers.retry.is_some(),
        }
    }

    pub(crate) fn allows(&self, method: &Method) -> bool {
        *method == Method::POST
    }

    /// Where the cursor of a stream that is new now stands.
    pub(crate) fn start(&self, now: Timestamp) -> Start {
        match self.source.settle {
            None => Start {
                next: self.source.mapping.first_sequence(),
                settles_at: None,
            },
            Some(settle) => Start {
                next: SETTLING,
                settles_at: Some(now.plus(settle)),
            },
        }
    }

    /// How long a stream settles, whoever opened it.
    pub(crate) fn settle(&self) -> Duration {
        self.source.settle.unwrap_or(Source::SETTLE)
    }

    /// Nothing: not by version. Otherwise whether an equal one counts as newer (§5.12).
    pub(crate) fn applies_newer(&self) -> Option<bool> {
        let or_equal = self.source.equal_versions == EqualVersions::Apply;
        self.source.mapping.has_version().then_some(or_equal)
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

    /// Of dead letters; nothing if they are kept until an operator has decided.
    pub(crate) fn dead_letter_retention(&self) -> Option<Duration> {
        self.source.dead_letter_retention
    }

    pub(crate) fn max_attempts(&self) -> u32 {
        self.source.max_attempts
    }

    pub(crate) fn max_crashes(&self) -> u32 {
        self.source.max_crashes
    }

    pub(crate) fn max_age(&self) -> Option<Duration> {
        self.source.max_age
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
        if broken::is(Variant::OtherContentPasses) {
            return false;
        }
        if self.source.mapping.content_policy().rejects() {
            return true;
        }
        metrics::counter!("inbox_other_content_total", "source" => self.name_shared()).increment(1);
        // Some producers do that all the time, in all honesty.
        tracing::debug!(
            source = &*self.name,
            event_id = envelope.event_id.as_str(),
            "a known event was delivered again with other content"
        );
        false
    }

    pub(crate) fn name_shared(&self) -> SharedString {
        SharedString::from_shared(self.name_arc())
    }

    /// What is counted about it in this process.
    pub(crate) fn counted(&self) -> &Arc<Counted> {
        &self.counted
    }

    /// A handler has run for an event of it.
    pub(crate) fn ran(&self, envelope: &Envelope, verdict: Verdicts, time: Duration) {
        self.counted.ran(envelope.kind(), verdict, time);
    }

    /// An event of it was tried with nobody waiting; with a 5xx at this time.
    pub(crate) fn tried(
        &self,
        envelope: &Envelope,
        outcome: Outcome,
        failed_at: Option<Timestamp>,
    ) {
        self.counted.tried(envelope.kind(), outcome, failed_at);
    }

    /// Event types of it that are told apart.
    pub(crate) fn max_event_types(&self) -> usize {
        self.source.max_event_types
    }

    /// How much is parked and dead.
    pub(crate) fn room(&self) -> &Room {
        &self.room
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    pub(crate) fn set_gone(&self, gone: bool) {
        self.gone.store(gone, Ordering::Relaxed);
    }

    /// Only a mounted router can say that no route was reached.
    pub(crate) fn mounted_on_routes(&self) -> bool {
        self.on_routes.load(Ordering::Relaxed)
    }

    #[cfg(feature = "axum")]
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
        SecretsFrom::Env(names) => Secrets::from_env(source.preset.key, names.iter().cloned())
            .or_else(|error| refuse(error.to_string())),
        SecretsFrom::File(path) => Ok(Secrets::from_file(source.preset.key, path)),
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
