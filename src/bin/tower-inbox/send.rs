//! `tower-inbox send`: one signed delivery, as the producer would make it.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::crypto::ring;
use serde_json::{Value, json};
use tower_inbox::INBOX_OUTCOME;
use tower_inbox::clock::Timestamp;
use tower_inbox::verify::{Secret, Signer};

use crate::explain;
use crate::failure::Failure;
use crate::secrets::{self, SecretArgs};
use crate::show::{Shown, parse_duration, safe, safe_lines};

/// An answer to a webhook is never longer.
const LONGEST_ANSWER: usize = 1024 * 1024;

/// Signs one event as a preset's producer does, and delivers it
///
/// The body is given as it is (-d), or made of --id, --type, --correlation-id, --sequence and --payload in the shape that
/// kudos, sequenced, brief and standard have. No redirect is followed, and no proxy variable is obeyed.
///
/// Exit status: 0 a 2xx, 1 another answer, 2 the command line or a file is wrong, 3 no answer.
#[derive(clap::Args)]
pub(crate) struct Given {
    /// How it is signed: a preset, see explain --list
    preset: String,
    /// Where to: http:// or https://
    #[arg(long)]
    url: Uri,
    /// The URL that is signed, for schemes that sign it (default: that of --url)
    #[arg(long, value_name = "URL")]
    signed_url: Option<String>,
    /// The event id (default: a random one)
    #[arg(long, value_name = "ID", help_heading = "Event")]
    id: Option<String>,
    /// The event type
    #[arg(
        long = "type",
        value_name = "TYPE",
        default_value = "test",
        help_heading = "Event"
    )]
    event_type: String,
    /// The correlation id
    #[arg(long, value_name = "ID", requires = "sequence", help_heading = "Event")]
    correlation_id: Option<String>,
    /// The place in the stream of the correlation id
    #[arg(
        long,
        value_name = "SEQUENCE",
        requires = "correlation_id",
        help_heading = "Event"
    )]
    sequence: Option<i64>,
    /// What is in `data`, as JSON
    #[arg(
        long,
        value_name = "JSON",
        default_value = "{}",
        help_heading = "Event"
    )]
    payload: String,
    /// The whole body, byte for byte, or @FILE (@-: standard input)
    #[arg(
        long,
        short = 'd',
        value_name = "DATA",
        allow_hyphen_values = true,
        help_heading = "Event"
    )]
    #[arg(conflicts_with_all = ["correlation_id", "sequence", "payload"])]
    data: Option<OsString>,
    /// One more header, 'Name: value'; may be repeated
    #[arg(
        long = "header",
        short = 'H',
        value_name = "HEADER",
        help_heading = "Event"
    )]
    headers: Vec<String>,
    /// How long the answer may take
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,
    /// Shows the request without its signature, and sends nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    secrets: SecretArgs,
}

/// Headers in which producers name an event that they do not name in the body, or not there alone.
fn id_header(preset: &str) -> Option<HeaderName> {
    Some(HeaderName::from_static(match preset {
        "github" => "x-github-delivery",
        "shopify" => "x-shopify-webhook-id",
        "linear" => "linear-delivery",
        _ => return None,
    }))
}

fn type_header(preset: &str) -> Option<HeaderName> {
    Some(HeaderName::from_static(match preset {
        "github" => "x-github-event",
        "shopify" => "x-shopify-topic",
        "linear" => "linear-event",
        _ => return None,
    }))
}

fn usage(error: impl std::fmt::Display) -> Failure {
    Failure::usage(error.to_string())
}

impl Given {
    fn event_id(&self) -> String {
        self.id
            .clone()
            .unwrap_or_else(|| match self.preset.as_str() {
                // A UUID, which is random in all but its version.
                "brief" => {
                    let random = fastrand::u128(..) & !(0xf << 76) & !(0x3 << 62);
                    let id = format!("{:032x}", random | (0x4 << 76) | (0x2 << 62));
                    let parts = [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]];
                    parts.join("-")
                }
                _ => format!("evt_{:016x}", fastrand::u64(..)),
            })
    }

    fn body(&self, id: &str) -> Result<Bytes, Failure> {
        if let Some(data) = &self.data {
            return Ok(explain::body(data)?.into());
        }
        let payload: Value = serde_json::from_str(&self.payload)
            .map_err(|error| usage(format!("--payload is no JSON: {error}")))?;
        let mut event = json!({"event_id": id, "event_type": self.event_type, "data": payload});
        if let Some(correlation_id) = &self.correlation_id {
            event["correlation_id"] = correlation_id.as_str().into();
        }
        if let Some(sequence) = self.sequence {
            event["sequence"] = sequence.into();
        }
        Ok(event.to_string().into())
    }

    fn request(&self) -> Result<Request<Full<Bytes>>, Failure> {
        if !matches!(self.url.scheme_str(), Some("http" | "https")) || self.url.host().is_none() {
            return Err(Failure::usage("--url is no http:// or https:// URL"));
        }
        let authority = self.url.authority();
        if authority.is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(Failure::usage(
                "--url has a login, which would not be sent: give -H 'Authorization: …'",
            ));
        }
        let (scheme, key) = secrets::scheme(&self.preset)?;
        let key = self.secrets.encoding(key)?;
        let secrets = self.secrets.load(key)?;
        let secrets: Vec<Secret> = secrets.iter().cloned().collect();
        let url = self
            .signed_url
            .clone()
            .unwrap_or_else(|| self.url.to_string());
        let signer = Signer::new(&scheme, secrets).map_err(usage)?.with_url(url);
        let id = self.event_id();
        let body = self.body(&id)?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let agent = concat!("tower-inbox/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        if let Some(name) = id_header(&self.preset) {
            headers.insert(name, HeaderValue::from_str(&id).map_err(usage)?);
        }
        if let Some(name) = type_header(&self.preset) {
            headers.insert(
                name,
                HeaderValue::from_str(&self.event_type).map_err(usage)?,
            );
        }
        for (name, value) in signer
            .sign(Timestamp::now(), Some(&id), &body)
            .map_err(usage)?
        {
            headers.append(name, value);
        }
        // What is asked for takes the place of what is made up.
        let mut own = HeaderMap::new();
        for text in &self.headers {
            let (name, value) = explain::header(text)?;
            own.append(name, value);
        }
        for name in own.keys() {
            headers.remove(name);
        }
        headers.extend(own);
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = headers;
        Ok(request)
    }

    fn shown(&self, request: &Request<Full<Bytes>>, body: &[u8]) -> Result<Shown, Failure> {
        let (scheme, _) = secrets::scheme(&self.preset)?;
        let headers = request.headers().iter().map(|(name, value)| {
            let value = match scheme.is_signature_header(name) {
                true => "***".into(),
                false => String::from_utf8_lossy(value.as_bytes()).into_owned(),
            };
            (name.as_str(), value)
        });
        let headers: Vec<_> = headers.collect();
        let body = String::from_utf8_lossy(body);
        let mut text = format!("POST {}\n", safe(&self.url.to_string()));
        for (name, value) in &headers {
            text.push_str(&format!("{name}: {}\n", safe(value)));
        }
        text.push_str(&format!("\n{}\n", safe_lines(&body)));
        Ok(Shown {
            json: json!({
                "dry_run": true,
                "url": self.url.to_string(),
                "headers": headers,
                "body": body,
            }),
            text,
        })
    }
}

pub(crate) async fn run(given: Given, json: bool) -> Result<ExitCode, Failure> {
    let request = given.request()?;
    if given.dry_run {
        let body = request.body().clone().collect().await;
        let body = body.unwrap_or_else(|never| match never {}).to_bytes();
        given.shown(&request, &body)?.print(json);
        return Ok(ExitCode::SUCCESS);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let builder = HttpsConnectorBuilder::new();
    let provider = ring::default_provider();
    let builder = if given.url.scheme_str() == Some("https") {
        builder
            .with_provider_and_native_roots(provider)
            .map_err(|error| Failure::Away(format!("the system has no certificates: {error}")))?
    } else {
        let tls = rustls::ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .map_err(usage)?
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        builder.with_tls_config(tls)
    };
    let connector = builder.https_or_http().enable_http1().wrap_connector(tcp);
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let away = |why: String| Failure::Away(format!("no answer from the receiver: {why}"));
    let exchange = async {
        let answer = client.request(request).await;
        let (parts, body) = answer.map_err(|error| away(reason(&error)))?.into_parts();
        let body = Limited::new(body, LONGEST_ANSWER).collect().await;
        let body = body.map_err(|error| away(error.to_string()))?.to_bytes();
        Ok::<_, Failure>((parts, body))
    };
    let (parts, body) = match tokio::time::timeout(given.timeout, exchange).await {
        Ok(answer) => answer?,
        Err(_) => return Err(away(format!("not within {:?}", given.timeout))),
    };
    answer(&parts, &body).print(json);
    Ok(ExitCode::from(u8::from(!parts.status.is_success())))
}

/// The client's own text names no cause.
fn reason(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

fn answer(parts: &http::response::Parts, body: &[u8]) -> Shown {
    let header = |name: &HeaderName| {
        let value = parts.headers.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let (outcome, retry_after) = (header(&INBOX_OUTCOME), header(&RETRY_AFTER));
    let body = String::from_utf8_lossy(body);
    let mut text = parts.status.to_string();
    if let Some(outcome) = &outcome {
        text.push_str(&format!(", {}", safe(outcome)));
    }
    if let Some(after) = &retry_after {
        text.push_str(&format!(", retry after {} s", safe(after)));
    }
    text.push('\n');
    if !body.is_empty() {
        text.push_str(&format!("{}\n", safe_lines(&body)));
    }
    Shown {
        json: json!({
            "status": parts.status.as_u16(),
            "outcome": outcome,
            "retry_after": retry_after,
            "body": body,
        }),
        text,
    }
}
