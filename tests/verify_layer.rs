//! `VerifyLayer` by itself: on axum routes and in front of a plain tower service, without any inbox; and the inbox's
//! own door while there are no secrets.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::routing::post;
use axum::{Extension, Router};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_inbox::Preset;
use tower_inbox::clock::{Clock, SystemClock, Timestamp};
use tower_inbox::verify::{Refresh, Secret, Secrets, Signer, Tolerance, Verified, VerifyLayer};

const BODY: &[u8] = br#"{"id":"evt_1","type":"invoice.paid"}"#;

fn secrets(texts: &[&str]) -> Secrets {
    Secrets::new(
        texts
            .iter()
            .map(|text| Secret::text(*text).expect("a secret")),
    )
    .expect("a set")
}

fn layer() -> VerifyLayer {
    VerifyLayer::new(Preset::STRIPE.scheme(), secrets(&["new", "old"])).with_name("billing")
}

fn signed_at<B>(secret: &str, now: Timestamp, body: impl FnOnce(&'static [u8]) -> B) -> Request<B> {
    let secret = Secret::text(secret).expect("a secret");
    let signer = Signer::new(&Preset::STRIPE.scheme(), [secret]).expect("a signer");
    let mut request = Request::post("/").body(body(BODY)).expect("a request");
    for (name, value) in signer.sign(now, None, BODY).expect("signed") {
        request.headers_mut().append(name, value);
    }
    request
}

fn signed<B>(secret: &str, body: impl FnOnce(&'static [u8]) -> B) -> Request<B> {
    signed_at(secret, SystemClock.now(), body)
}

/// The label and the body, as a handler sees them.
fn echo()
-> impl Service<Request<Full<Bytes>>, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send>
+ Clone
+ Send
+ 'static {
    service_fn(|request: Request<Full<Bytes>>| async move {
        let label = request
            .extensions()
            .get::<Verified>()
            .map(|v| v.label().to_owned());
        assert!(
            request.headers().contains_key("stripe-signature"),
            "as it came"
        );
        let body = request
            .into_body()
            .collect()
            .await
            .expect("read")
            .to_bytes();
        let text = format!(
            "{} {}",
            label.expect("verified"),
            String::from_utf8_lossy(&body)
        );
        Ok::<_, Infallible>(Response::new(Full::from(text)))
    })
}

async fn status(layer: VerifyLayer, request: Request<Full<Bytes>>) -> StatusCode {
    layer
        .layer(echo())
        .oneshot(request)
        .await
        .expect("an answer")
        .status()
}

/// §2.2. In front of a plain tower service, with `Full<Bytes>` in and out.
#[tokio::test]
async fn a_plain_tower_service() {
    let request = signed("old", Full::from);
    let response = layer()
        .layer(echo())
        .oneshot(request)
        .await
        .expect("an answer");
    let body = response
        .into_body()
        .collect()
        .await
        .expect("read")
        .to_bytes();
    assert_eq!(body, [b"secret-2 ", BODY].concat());
    assert_eq!(status(layer(), signed("other", Full::from)).await, 401);
    assert_eq!(status(layer(), Request::new(Full::from(BODY))).await, 401);
    let mut changed = signed("new", Full::from);
    *changed.body_mut() = Full::from("{}");
    assert_eq!(status(layer(), changed).await, 401);
    let ago = |seconds| Timestamp::from_secs(SystemClock.now().as_secs() - seconds);
    assert_eq!(
        status(layer(), signed_at("new", ago(290), Full::from)).await,
        200
    );
    assert_eq!(
        status(layer(), signed_at("new", ago(310), Full::from)).await,
        401
    );
    let unlimited = layer().with_tolerance(Tolerance::insecure_unlimited());
    assert_eq!(
        status(unlimited, signed_at("new", ago(310), Full::from)).await,
        200
    );
}

/// §6.6. On axum routes. A refusal is bare: no reason, no MAC.
#[tokio::test]
async fn axum_routes() {
    async fn handler(Extension(verified): Extension<Verified>, body: Bytes) -> String {
        format!("{} {}", verified.label(), body.len())
    }
    let app = Router::new().route("/", post(handler)).layer(layer());
    let response = app
        .clone()
        .oneshot(signed("new", Body::from))
        .await
        .expect("an answer");
    assert_eq!(response.status(), 200);
    let body = to_bytes(response.into_body(), 1_000).await.expect("read");
    assert_eq!(body, format!("secret-1 {}", BODY.len()));
    let response = app
        .oneshot(signed("other", Body::from))
        .await
        .expect("an answer");
    assert_eq!(response.status(), 401);
    let body = to_bytes(response.into_body(), 1_000).await.expect("read");
    let problem: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(problem["status"], 401);
    assert!(problem.get("detail").is_none());
}

/// A body that gives one frame, and then never ends.
struct Stuck(Option<Bytes>);

impl http_body::Body for Stuck {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        match self.0.take() {
            Some(bytes) => Poll::Ready(Some(Ok(http_body::Frame::data(bytes)))),
            None => Poll::Pending,
        }
    }
}

impl From<Bytes> for Stuck {
    fn from(bytes: Bytes) -> Self {
        Self(Some(bytes))
    }
}

/// §2.1: the limits of the inbox's door.
#[tokio::test(start_paused = true)]
async fn limits_of_the_body() {
    let full = Full::from;
    assert_eq!(
        status(layer().with_body_limit(BODY.len()), signed("new", full)).await,
        200
    );
    assert_eq!(
        status(layer().with_body_limit(BODY.len() - 1), signed("new", full)).await,
        413
    );
    assert_eq!(
        status(
            layer().with_body_budget(BODY.len() - 1),
            signed("new", full)
        )
        .await,
        429
    );
    let never_called = service_fn(|_: Request<Stuck>| async {
        unreachable!("the body never came");
        #[allow(unreachable_code)]
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let service = layer()
        .with_read_timeout(Duration::from_secs(2))
        .layer(never_called);
    let start = tokio::time::Instant::now();
    let request = signed("new", |body| Stuck(Some(Bytes::from_static(body))));
    let response = service.oneshot(request).await.expect("an answer");
    assert_eq!(response.status(), 408);
    assert!(start.elapsed() >= Duration::from_secs(2));
}

/// §2.2: secrets that cannot be had are no reason for a 401, which would be the last word.
#[tokio::test(start_paused = true)]
async fn secrets_that_come_later() {
    let provider = || async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok(vec![Secret::text("new")?])
    };
    let secrets = Secrets::from_provider(provider, Refresh::default());
    let layer = VerifyLayer::new(Preset::STRIPE.scheme(), secrets.clone());
    let service = layer.layer(echo());
    let send = || service.clone().oneshot(signed("new", Full::from));
    let response = send().await.expect("an answer");
    assert_eq!(response.status(), 503);
    assert!(response.headers().contains_key("retry-after"));
    // What is refused whatever the secrets are is refused all the same.
    assert_eq!(status(layer, Request::new(Full::from(BODY))).await, 401);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(send().await.expect("an answer").status(), 200);
    assert!(secrets.active()[0].last_verified.is_some());
}

/// (setup). A scheme that signs the URL, and nobody said which: found when the service is put together.
#[test]
#[should_panic(expected = "with_url")]
fn a_url_that_is_missing() {
    let _ = VerifyLayer::new(Preset::SQUARE.scheme(), secrets(&["s"])).layer(echo());
}

/// Any method: whether it is one that the producer uses is the router's business.
#[tokio::test]
async fn other_methods() {
    let mut request = signed("new", Full::from);
    *request.method_mut() = Method::PUT;
    assert_eq!(status(layer(), request).await, 200);
}

#[cfg(all(feature = "axum", feature = "sqlite"))]
mod inbox {
    //! The inbox has the same door.

    use super::*;
    use tower_inbox::{BuildErrorKind, Inbox, Source, sqlite};

    /// §2.2, §6.1: 503 until the file can be read, and what replaces it is in force within a second.
    #[tokio::test]
    async fn a_source_with_a_file() {
        let dir = std::env::temp_dir().join(format!("inbox-file-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let file = dir.join("secrets");
        let url = format!("sqlite://{}?mode=rwc", dir.join("app.db").display());
        let pool = sqlite::connect(&url, 4).await.expect("a pool");
        let unset =
            Source::new("billing", Preset::STRIPE).secrets_from_env(["TOWER_INBOX_NOT_SET"]);
        let error = Inbox::builder(pool.clone())
            .source(unset)
            .build()
            .await
            .expect_err("refused");
        assert_eq!(error.kind(), BuildErrorKind::Secret);
        assert!(
            error.to_string().contains("TOWER_INBOX_NOT_SET is not set"),
            "{error}"
        );

        let source = Source::new("billing", Preset::STRIPE).secrets_from_file(&file);
        let inbox = Inbox::builder(pool)
            .source(source)
            .build()
            .await
            .expect("an inbox");
        let handler = post(|| async { StatusCode::NO_CONTENT });
        let app = inbox.mount("billing", Router::new().route("/", handler));
        let send = async |secret: &str| {
            let request = signed(secret, Body::from);
            app.clone()
                .oneshot(request)
                .await
                .expect("an answer")
                .status()
                .as_u16()
        };
        assert_eq!(send("a").await, 503);
        for (secret, first) in [("a", 204), ("b", 200)] {
            std::fs::write(dir.join("new"), secret).expect("written");
            std::fs::rename(dir.join("new"), &file).expect("renamed");
            let start = std::time::Instant::now();
            while send(secret).await != first {
                assert!(
                    start.elapsed() < Duration::from_secs(1),
                    "in force within a second"
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        assert_eq!(send("a").await, 401, "revoked by its absence");
        inbox.shutdown().await;
        let _ = std::fs::remove_dir_all(dir);
    }
}
