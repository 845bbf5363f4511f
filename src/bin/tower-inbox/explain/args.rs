//! The command line of `explain`.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use tower_inbox::clock::{Clock as _, SystemClock, Timestamp};
use tower_inbox::verify::{KeyEncoding, RequestView, Scheme, SecretSet, Tolerance, Unit};

use super::request::Captured;
use crate::failure::Failure;
use crate::secrets::{self, SecretArgs};

pub(super) struct Args {
    pub(super) name: String,
    pub(super) scheme: Scheme,
    pub(super) key: KeyEncoding,
    pub(super) secrets: Arc<SecretSet>,
    pub(super) request: Captured,
    pub(super) url: Option<String>,
    pub(super) now: Timestamp,
    pub(super) tolerance: Tolerance,
    pub(super) json: bool,
}

impl Args {
    /// The request, with this body.
    pub(super) fn view<'r>(&'r self, body: &'r [u8]) -> RequestView<'r> {
        let request = &self.request;
        RequestView::new(&request.method, &request.uri, &request.headers, body)
            .with_url(self.url.as_deref())
    }
}

/// Why a captured delivery verifies, or why not
///
/// The request is a file with its raw head and body, as `nc -l` shows it (`-`: standard input), or is given by options as for
/// curl. Nothing is sent, and neither a secret nor a computed signature is ever printed.
///
/// Exit status: 0 it verifies, 1 it does not, 2 the command line or a file is wrong.
// Of what is given twice, the last one counts.
#[derive(clap::Args)]
pub(crate) struct Given {
    /// How the delivery is signed: a preset, see --list
    preset: Option<String>,
    /// The file
    request: Option<PathBuf>,
    /// A header, 'Name: value'; may be repeated
    #[arg(
        long = "header",
        short = 'H',
        value_name = "HEADER",
        help_heading = "Request"
    )]
    headers: Vec<String>,
    /// The body, byte for byte, or @FILE (@-: standard input); so do --data-binary and --data-raw
    #[arg(long, short = 'd', aliases = ["data-binary", "data-raw"], value_name = "DATA")]
    #[arg(
        help_heading = "Request",
        allow_hyphen_values = true,
        overrides_with = "data"
    )]
    data: Option<OsString>,
    /// The method (default: POST)
    #[arg(
        long,
        short = 'X',
        alias = "request",
        value_name = "METHOD",
        help_heading = "Request",
        overrides_with = "method"
    )]
    method: Option<String>,
    /// The URL that is configured at the producer, for schemes that sign it
    #[arg(
        long,
        value_name = "URL",
        help_heading = "Request",
        overrides_with = "url"
    )]
    url: Option<String>,
    /// The time of its arrival: seconds since the epoch, or RFC 3339 (default: now)
    #[arg(long, value_name = "TIME", overrides_with = "now")]
    now: Option<String>,
    /// How old it may be, and how far ahead, in seconds (default: 300)
    #[arg(long, value_name = "SECONDS", overrides_with = "tolerance")]
    tolerance: Option<u64>,
    /// Lists the presets
    #[arg(long)]
    pub(super) list: bool,
    #[command(flatten)]
    secrets: SecretArgs,
}

impl Given {
    pub(super) fn check(self, json: bool) -> Result<Args, Failure> {
        let Some(name) = &self.preset else {
            return Err(Failure::usage(format!(
                "no preset; there are {}",
                secrets::names()
            )));
        };
        let (scheme, key) = secrets::scheme(name)?;
        let key = self.secrets.encoding(key)?;
        let by_options = self.data.is_some() || !self.headers.is_empty();
        let mut request = match &self.request {
            Some(_) if by_options => {
                return Err(Failure::usage("a request file, and a request by options"));
            }
            Some(file) => Captured::parse(&read(file)?).map_err(Failure::Usage)?,
            None if by_options => self.request()?,
            None => {
                return Err(Failure::usage("no request: name a file, or give -H and -d"));
            }
        };
        if let Some(method) = &self.method {
            request.method = method.parse().map_err(usage)?;
        }
        if scheme.needs_url() && self.url.is_none() {
            return Err(Failure::usage(format!(
                "{name} signs the URL that is configured at the producer: give --url"
            )));
        }
        let now = match self.now.as_deref() {
            None => SystemClock.now(),
            Some(text) => [Unit::Seconds, Unit::Rfc3339]
                .into_iter()
                .find_map(|unit| unit.parse(text))
                .ok_or_else(|| Failure::usage("--now is neither seconds nor RFC 3339"))?,
        };
        let tolerance = self.tolerance.map_or_else(Tolerance::default, |seconds| {
            Tolerance::new(Duration::from_secs(seconds), Duration::from_secs(seconds))
        });
        Ok(Args {
            name: name.clone(),
            scheme,
            key,
            secrets: self.secrets.load(key)?,
            request,
            url: self.url,
            now,
            tolerance,
            json,
        })
    }

    fn request(&self) -> Result<Captured, Failure> {
        let mut headers = HeaderMap::new();
        for text in &self.headers {
            let (name, value) = header(text)?;
            headers.append(name, value);
        }
        Ok(Captured {
            method: Method::POST,
            uri: Uri::from_static("/"),
            headers,
            body: match &self.data {
                Some(data) => body(data)?,
                None => Vec::new(),
            },
            notes: Vec::new(),
        })
    }
}

fn usage(error: impl std::fmt::Display) -> Failure {
    Failure::usage(error.to_string())
}

/// A file, or standard input.
pub(crate) fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    if file.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).map_err(usage)?;
        return Ok(bytes);
    }
    std::fs::read(file).map_err(|error| usage(format!("{}: {error}", file.display())))
}

/// A header as curl takes it.
pub(crate) fn header(text: &str) -> Result<(HeaderName, HeaderValue), Failure> {
    let (name, value) = text
        .split_once(':')
        .ok_or_else(|| Failure::usage("a header without a colon"))?;
    let name = name.trim().parse().map_err(usage)?;
    Ok((name, HeaderValue::from_str(value.trim()).map_err(usage)?))
}

/// A body as curl takes it: the text itself, or a file after an `@`.
pub(crate) fn body(data: &OsStr) -> Result<Vec<u8>, Failure> {
    match data.to_str().map(|text| (text, text.strip_prefix('@'))) {
        Some((_, Some(file))) => read(file.as_ref()),
        Some((text, None)) => Ok(text.as_bytes().to_vec()),
        None => Ok(data.as_encoded_bytes().to_vec()),
    }
}
