//! A receiver on SQLite, called in this process, and the deliveries of 1 KiB that it gets: HTTP and the network are left out.

use std::path::PathBuf;

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::{HeaderMap, Request, StatusCode};
use tower::ServiceExt;
use tower_inbox::clock::Timestamp;
use tower_inbox::verify::Signer;
use tower_inbox::{Inbox, Preset, Secret, Source, sqlite};

pub(crate) const SECRET: &str = "a secret of the bench";

/// A folder for its database, which goes with it.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("tower_inbox_bench_{:x}", fastrand::u64(..)));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite://{}?mode=rwc", self.0.join("db").display())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// That remembers so many events, or as many as it does by default.
pub(crate) async fn receiver(url: &str, remembered: Option<usize>) -> Router {
    let pool = sqlite::connect(url, 4).await.expect("a pool");
    let mut builder = Inbox::builder(pool).source(Source::kudos("crm").secrets([SECRET]));
    if let Some(events) = remembered {
        builder = builder.remembered(events);
    }
    let inbox = builder.build().await.expect("an inbox");
    let routes = Router::new().route("/", post(async || StatusCode::NO_CONTENT));
    inbox.mount("crm", routes)
}

/// The same event each time.
pub(crate) fn request(secret: &str) -> Request<Body> {
    let head =
        r#"{"event_id":"evt_1","event_type":"payment.succeeded","data":{"amount":250,"note":""#;
    let body = format!("{head}{}\"}}}}", "x".repeat(1_024 - head.len() - 3));
    let secret = Secret::text(secret).expect("a secret");
    let signer = Signer::new(&Preset::KUDOS.scheme(), [secret]).expect("a signer");
    let signed = signer.sign(Timestamp::now(), None, body.as_bytes());
    let headers: HeaderMap = signed.expect("signed").into_iter().collect();
    let mut request = Request::post("/")
        .header("host", "hooks.example.com")
        .header("content-type", "application/json")
        .header("content-length", "1024")
        .body(Body::from(body))
        .expect("a request");
    request.headers_mut().extend(headers);
    request
}

pub(crate) async fn send(app: &Router, request: Request<Body>) -> StatusCode {
    let answer = app.clone().oneshot(request).await;
    std::hint::black_box(answer.unwrap_or_else(|never| match never {})).status()
}
