//! Verification alone, as a tower layer.

mod future;
mod service;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tower_layer::Layer;

pub use self::future::VerifyFuture;
pub use self::service::VerifyService;

use super::{Scheme, Secrets, Tolerance};
use crate::body::ByteBudget;
use crate::clock::{Clock, SystemClock};
use crate::door::{BODY_LIMIT, Door, READ_TIMEOUT};

/// The default of §2.1: bodies that nobody vouches for yet may take this much together.
const BODY_BUDGET: usize = 64 * 1024 * 1024;

/// Verifies signatures in front of a service, and does nothing else: no database, no duplicates, no order.
///
/// The inner service gets the request as it came, with its body read whole and [`Verified`](super::Verified) in the
/// extensions. Trailers are dropped. What is not verified gets the inbox's own answers:
///
/// | status | when |
/// |---|---|
/// | 401 | signature missing, malformed, stale, or by no active secret; the reason is in the log only |
/// | 400, 408, 413 | the body broke off, came too slowly, or is too big |
/// | 429 + `Retry-After` | bodies that are being read take too much memory together |
/// | 503 + `Retry-After` | the secrets are not available yet |
///
/// It works with any service whose request body can be made from [`Bytes`](bytes::Bytes) and whose response body can be
/// too: axum's `Body`, or `Full<Bytes>`. It needs a tokio runtime, for the read timeout. A captured delivery that is
/// sent again within the tolerance passes: to know it again is what an [`Inbox`](crate::Inbox) is for.
///
/// ```
/// use axum::{Extension, Router, routing::post};
/// use tower_inbox::Preset;
/// use tower_inbox::verify::{Secret, Secrets, Verified, VerifyLayer};
///
/// async fn on_event(Extension(verified): Extension<Verified>, body: String) -> String {
///     format!("{} bytes, signed with {}", body.len(), verified.label())
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let secrets = Secrets::new([Secret::text("the producer's secret")?])?;
/// let app: Router = Router::new()
///     .route("/webhooks/stripe", post(on_event))
///     .layer(VerifyLayer::new(Preset::STRIPE.scheme(), secrets));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct VerifyLayer {
    settings: Arc<Settings>,
}

#[derive(Clone)]
struct Settings {
    name: Arc<str>,
    scheme: Scheme,
    secrets: Secrets,
    tolerance: Tolerance,
    url: Option<String>,
    body_limit: usize,
    read_timeout: Duration,
    bodies: Arc<ByteBudget>,
    clock: Arc<dyn Clock>,
}

impl VerifyLayer {
    /// Verifies by this scheme with these secrets.
    pub fn new(scheme: Scheme, secrets: Secrets) -> Self {
        Self {
            settings: Arc::new(Settings {
                name: scheme.name().into(),
                scheme,
                secrets,
                tolerance: Tolerance::default(),
                url: None,
                body_limit: BODY_LIMIT,
                read_timeout: READ_TIMEOUT,
                bodies: Arc::new(ByteBudget::new(BODY_BUDGET)),
                clock: Arc::new(SystemClock),
            }),
        }
    }

    /// What it is called in logs and metrics. Default: the scheme's name.
    #[must_use]
    pub fn with_name(self, name: impl Into<Arc<str>>) -> Self {
        self.with(|settings| settings.name = name.into())
    }

    /// How old a signed time may be, and how far ahead. Default: 5 minutes each.
    #[must_use]
    pub fn with_tolerance(self, tolerance: Tolerance) -> Self {
        self.with(|settings| settings.tolerance = tolerance)
    }

    /// The URL that is configured at the producer, for schemes that sign it. Default: none.
    #[must_use]
    pub fn with_url(self, url: impl Into<String>) -> Self {
        self.with(|settings| settings.url = Some(url.into()))
    }

    /// The largest body, in bytes; a larger one gets 413. Default: 1 MiB.
    #[must_use]
    pub fn with_body_limit(self, bytes: usize) -> Self {
        self.with(|settings| settings.body_limit = bytes)
    }

    /// The time in which a body must have arrived; a slower one gets 408. Default: 5 s.
    #[must_use]
    pub fn with_read_timeout(self, timeout: Duration) -> Self {
        self.with(|settings| settings.read_timeout = timeout)
    }

    /// Bytes of bodies that may be in memory before their signature is verified, over all services of this layer; more
    /// get 429. Default: 64 MiB.
    #[must_use]
    pub fn with_body_budget(self, bytes: usize) -> Self {
        self.with(|settings| settings.bodies = Arc::new(ByteBudget::new(bytes)))
    }

    /// Where the wall-clock time comes from. Default: the operating system.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock) -> Self {
        self.with(|settings| settings.clock = Arc::new(clock))
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<S> Layer<S> for VerifyLayer {
    type Service = VerifyService<S>;

    /// Wraps a service.
    ///
    /// # Panics
    /// If the scheme signs the URL and none was given: everything would be refused.
    #[track_caller]
    fn layer(&self, inner: S) -> Self::Service {
        let settings = &self.settings;
        assert!(
            !settings.scheme.needs_url() || settings.url.is_some(),
            "{}: the scheme signs the URL: give the one set at the producer, `.with_url(…)`",
            settings.name
        );
        VerifyService::new(Arc::clone(settings), inner)
    }
}

impl Settings {
    fn door(&self) -> Door<'_> {
        Door {
            source: &self.name,
            scheme: &self.scheme,
            secrets: &self.secrets,
            tolerance: &self.tolerance,
            url: self.url.as_deref(),
            body_limit: self.body_limit,
            read_timeout: self.read_timeout,
        }
    }
}

impl fmt::Debug for VerifyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifyLayer")
            .field("name", &self.settings.name)
            .field("secrets", &self.settings.secrets)
            .finish_non_exhaustive()
    }
}
