//! What is asked, and what is answered.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, OriginalUri};
use axum::response::{IntoResponse as _, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use maud::{Markup, html};
use serde_json::json;

use super::pairs::{Pairs, link};
use super::session::{Flash, Jar, Mark};
use super::{shell, show};
use crate::error::{OperatorError, OperatorErrorKind};

/// The longest form: a reason has 2,000 bytes, an id 255, and each may be three times as long in a form.
pub(super) const LONGEST_FORM: usize = 64 * 1024;
/// In which it has to come: whoever sends one byte by byte holds a connection, and has shown nothing yet.
pub(super) const SLOWEST_FORM: Duration = Duration::from_secs(10);

/// A request, as far as the pages want to know it.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) method: Method,
    /// Where the console is mounted: empty, or `/console`.
    pub(super) base: String,
    /// Below it.
    pub(super) path: String,
    pub(super) query: Pairs,
    /// As it was written.
    query_text: String,
    pub(super) form: Pairs,
    pub(super) headers: HeaderMap,
    /// Whose tries are counted together.
    pub(super) client: Option<IpAddr>,
    pub(super) jar: Jar,
}

impl Asked {
    pub(super) fn new(parts: &Parts, https: bool, mark: &Mark) -> Self {
        let path = parts.uri.path();
        let original = parts.extensions.get::<OriginalUri>();
        let base = original.map_or("", |original| {
            let whole = original.path();
            // What is nested at a prefix is asked for `/` by the prefix alone.
            whole.strip_suffix(path).unwrap_or(whole)
        });
        // It goes into the cookies' path, which ends at one of these: what is behind it would be read as their settings.
        let base = base.trim_end_matches('/').replace(';', "%3B");
        let query_text = parts.uri.query().unwrap_or_default().to_owned();
        let by_https = parts.uri.scheme_str() == Some("https")
            || parts
                .headers
                .get("x-forwarded-proto")
                .is_some_and(says_https);
        let client = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        Self {
            method: parts.method.clone(),
            jar: Jar {
                path: base.clone(),
                secure: https || by_https,
                mark: mark.clone(),
            },
            base,
            path: path.to_owned(),
            query: Pairs::parse(query_text.as_bytes()),
            query_text,
            form: Pairs::default(),
            headers: parts.headers.clone(),
            client: client.map(|client| client.0.ip()),
        }
    }

    /// Within the console.
    pub(super) fn link(&self, path: &str, query: &[(&str, &str)]) -> String {
        link(&self.base, path, query)
    }

    /// What was asked for, to come back to it.
    pub(super) fn here(&self) -> String {
        match self.query_text.as_str() {
            "" => self.path.clone(),
            query => format!("{}?{query}", self.path),
        }
    }

    /// A browser, and no script.
    pub(super) fn wants_html(&self) -> bool {
        self.headers
            .get_all(header::ACCEPT)
            .iter()
            .filter_map(|accept| accept.to_str().ok())
            .any(|accept| accept.contains("text/html"))
    }
}

/// Several proxies each add one; the first is what the browser used.
fn says_https(schemes: &HeaderValue) -> bool {
    let first = schemes.as_bytes().split(|byte| *byte == b',').next();
    first.is_some_and(|scheme| scheme.trim_ascii().eq_ignore_ascii_case(b"https"))
}

/// What a page or an action comes to.
pub(super) enum Answer {
    Page(Page),
    /// Something was done, or was refused: said on another page of the console.
    Done {
        to: String,
        flash: Flash,
        /// What a script is told, where it was refused.
        status: StatusCode,
    },
    /// As it is.
    Raw(Response),
}

/// A page without its frame.
pub(super) struct Page {
    pub(super) title: String,
    /// What it is about, behind the title.
    pub(super) about: Option<Markup>,
    pub(super) main: Markup,
    /// Shown again every few seconds, where there is JavaScript.
    pub(super) live: bool,
    pub(super) status: StatusCode,
    /// Of the console, where its path does not say which it is in.
    pub(super) part: Option<&'static str>,
}

impl Page {
    pub(super) fn new(title: impl Into<String>, main: Markup) -> Self {
        Self {
            title: title.into(),
            about: None,
            main,
            live: false,
            status: StatusCode::OK,
            part: None,
        }
    }

    /// Of an event or a stream of a source.
    pub(super) fn about(mut self, id: &str, source: &str) -> Self {
        self.about = Some(html! { (show::text(id)) " " span.of { "of " (show::text(source)) } });
        self
    }

    pub(super) fn live(mut self) -> Self {
        self.live = true;
        self
    }

    pub(super) fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    pub(super) fn part(mut self, part: Option<&'static str>) -> Self {
        self.part = part;
        self
    }
}

impl From<Page> for Answer {
    fn from(page: Page) -> Self {
        Self::Page(page)
    }
}

/// Why there is no page.
#[derive(Debug)]
pub(super) enum Fault {
    /// 404.
    Missing(&'static str),
    /// 400.
    Invalid(String),
    /// 401.
    Stranger,
    /// 403.
    Forbidden(&'static str),
    /// 409.
    Refused(String),
    /// 408.
    TooSlow,
    /// 413.
    TooLong,
    /// 429.
    Slow(u64),
    /// 500.
    NoRandom,
    Operator(OperatorError),
}

impl From<OperatorError> for Fault {
    fn from(error: OperatorError) -> Self {
        Self::Operator(error)
    }
}

/// What an operator's error is, as a status.
pub(super) fn status_of(error: &OperatorError) -> StatusCode {
    match error.kind() {
        OperatorErrorKind::NotFound => StatusCode::NOT_FOUND,
        OperatorErrorKind::Invalid => StatusCode::BAD_REQUEST,
        OperatorErrorKind::Busy | OperatorErrorKind::Database => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::CONFLICT,
    }
}

/// What an operator's error says to people. A database's own words are for the log.
pub(super) fn words_of(error: &OperatorError) -> String {
    match error.kind() {
        OperatorErrorKind::Database => {
            tracing::warn!(%error, "the console could not ask the database");
            "The database failed: the log has its words.".into()
        }
        OperatorErrorKind::CursorMoved { now } => format!(
            "The cursor has moved meanwhile: it is {} in generation {} now. Look again, and decide again.",
            now.next, now.generation
        ),
        _ => {
            let words = error.to_string();
            let mut chars = words.chars();
            let first = chars.next().into_iter().flat_map(char::to_uppercase);
            first.chain(chars).chain(['.']).collect()
        }
    }
}

impl Fault {
    fn status(&self) -> StatusCode {
        match self {
            Self::Missing(_) => StatusCode::NOT_FOUND,
            Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::Stranger => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::Refused(_) => StatusCode::CONFLICT,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Slow(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::NoRandom => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Operator(error) => status_of(error),
        }
    }

    fn words(&self) -> String {
        match self {
            Self::Missing(what) => format!("{what}."),
            Self::Invalid(why) | Self::Refused(why) => why.clone(),
            Self::Stranger => "You are not signed in.".into(),
            Self::Forbidden(why) => (*why).into(),
            Self::TooSlow => "The form did not come in time: send it again.".into(),
            Self::TooLong => "The form is too long.".into(),
            Self::Slow(seconds) => {
                format!("Too many wrong tokens: try again in {seconds} s.")
            }
            Self::NoRandom => "The system has no random numbers.".into(),
            Self::Operator(error) => words_of(error),
        }
    }

    /// For a browser a page, for a script RFC 9457.
    pub(super) fn answer(&self, asked: &Asked, html: bool) -> Response {
        let (status, words) = (self.status(), self.words());
        let mut response = match html {
            true => {
                let page = shell::bare(asked, title(status), shell::alert(&words));
                (status, [(header::CONTENT_TYPE, HTML)], page.into_string()).into_response()
            }
            false => problem(status, &words),
        };
        let headers = response.headers_mut();
        if let Self::Slow(seconds) = self {
            headers.insert(header::RETRY_AFTER, (*seconds).into());
        }
        response
    }
}

pub(super) const HTML: &str = "text/html; charset=utf-8";

pub(super) fn problem(status: StatusCode, words: &str) -> Response {
    let body = json!({
        "type": "about:blank", "title": title(status), "status": status.as_u16(), "detail": words,
    });
    let kind = "application/problem+json";
    (status, [(header::CONTENT_TYPE, kind)], body.to_string()).into_response()
}

fn title(status: StatusCode) -> &'static str {
    status.canonical_reason().unwrap_or("Error")
}

/// Elsewhere, by GET.
pub(super) fn see(to: &str) -> Response {
    (
        StatusCode::SEE_OTHER,
        [(header::LOCATION, to)],
        Body::empty(),
    )
        .into_response()
}
