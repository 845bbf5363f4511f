//! The command line of `explain`.

use std::ffi::OsString;
use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use lexopt::prelude::*;
use tower_inbox::clock::{Clock as _, SystemClock, Timestamp};
use tower_inbox::preset::Preset;
use tower_inbox::verify::{
    KeyEncoding, RequestView, Rfc9421, Scheme, Secret, SecretSet, Secrets, Tolerance, Unit,
};

use super::request::Captured;
use crate::Usage;

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

#[allow(clippy::large_enum_variant, reason = "made once")]
pub(super) enum Parsed {
    Args(Args),
    /// What was asked for has been printed.
    Done,
}

#[derive(Default)]
struct Given {
    names: Vec<String>,
    env: Vec<String>,
    file: Option<OsString>,
    secrets: Vec<String>,
    key: Option<String>,
    headers: Vec<String>,
    data: Option<OsString>,
    method: Option<String>,
    url: Option<String>,
    now: Option<String>,
    tolerance: Option<u64>,
    json: bool,
}

pub(super) fn parse(mut arguments: lexopt::Parser) -> Result<Parsed, Usage> {
    let mut given = Given::default();
    while let Some(argument) = arguments.next()? {
        match argument {
            Short('h') | Long("help") => {
                print!("{}", super::HELP);
                return Ok(Parsed::Done);
            }
            Long("list") => {
                for preset in Preset::ALL {
                    println!("{:<10} {}", preset.name, preset.documented_at);
                }
                return Ok(Parsed::Done);
            }
            Long("secret-env") => given.env.push(arguments.value()?.string()?),
            Long("secret-file") => given.file = Some(arguments.value()?),
            // Not through an error that would show it.
            Long("secret") => given.secrets.push(
                arguments
                    .value()?
                    .into_string()
                    .map_err(|_| Usage("--secret is not UTF-8".into()))?,
            ),
            Long("key") => given.key = Some(arguments.value()?.string()?),
            Short('H') | Long("header") => given.headers.push(arguments.value()?.string()?),
            Short('d') | Long("data" | "data-binary" | "data-raw") => {
                given.data = Some(arguments.value()?);
            }
            Short('X') | Long("method" | "request") => {
                given.method = Some(arguments.value()?.string()?);
            }
            Long("url") => given.url = Some(arguments.value()?.string()?),
            Long("now") => given.now = Some(arguments.value()?.string()?),
            Long("tolerance") => given.tolerance = Some(arguments.value()?.parse()?),
            Long("json") => given.json = true,
            Value(name) => given.names.push(name.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    given.check().map(Parsed::Args)
}

impl Given {
    fn check(self) -> Result<Args, Usage> {
        let (name, file) = match self.names.as_slice() {
            [name] => (name, None),
            [name, file] => (name, Some(file)),
            [] => return Err(Usage(format!("no preset; there are {}", names()))),
            _ => return Err(Usage("more than one request".into())),
        };
        let (scheme, key) = scheme(name)?;
        let key = match self.key.as_deref() {
            None => key,
            Some("text") => KeyEncoding::Text,
            Some("whsec") => KeyEncoding::WHSEC,
            Some("base64") => KeyEncoding::Base64 { prefix: "" },
            Some("hex") => KeyEncoding::Hex,
            Some(other) => return Err(Usage(format!("no key encoding {other:?}"))),
        };
        let by_flags = self.data.is_some() || !self.headers.is_empty();
        let mut request = match file {
            Some(_) if by_flags => {
                return Err(Usage("a request file, and a request by flags".into()));
            }
            Some(file) => Captured::parse(&read(file.as_ref())?).map_err(Usage)?,
            None if by_flags => self.request()?,
            None => return Err(Usage("no request: name a file, or give -H and -d".into())),
        };
        if let Some(method) = &self.method {
            request.method = method.parse()?;
        }
        if scheme.needs_url() && self.url.is_none() {
            return Err(Usage(format!(
                "{name} signs the URL that is configured at the producer: give --url"
            )));
        }
        let now = match self.now.as_deref() {
            None => SystemClock.now(),
            Some(text) => [Unit::Seconds, Unit::Rfc3339]
                .into_iter()
                .find_map(|unit| unit.parse(text))
                .ok_or_else(|| Usage("--now is neither seconds nor RFC 3339".into()))?,
        };
        let tolerance = self.tolerance.map_or_else(Tolerance::default, |seconds| {
            Tolerance::new(Duration::from_secs(seconds), Duration::from_secs(seconds))
        });
        Ok(Args {
            name: name.clone(),
            scheme,
            key,
            secrets: self.secrets(key)?,
            request,
            url: self.url,
            now,
            tolerance,
            json: self.json,
        })
    }

    fn secrets(&self, key: KeyEncoding) -> Result<Arc<SecretSet>, Usage> {
        let ways = [
            !self.env.is_empty(),
            self.file.is_some(),
            !self.secrets.is_empty(),
        ];
        match ways.iter().filter(|given| **given).count() {
            0 => {
                return Err(Usage(
                    "no secret: give --secret-env or --secret-file".into(),
                ));
            }
            1 => {}
            _ => return Err(Usage("secrets by more than one way".into())),
        }
        let secrets = if let Some(file) = &self.file {
            let secrets = Secrets::from_file(key, file);
            if let Some(problem) = secrets.problem() {
                return Err(Usage(format!("--secret-file: {problem}")));
            }
            secrets
        } else if !self.env.is_empty() {
            Secrets::from_env(key, self.env.iter().cloned())?
        } else {
            let decode = |text: &String| Secret::decode(key, text.as_str());
            Secrets::new(
                self.secrets
                    .iter()
                    .map(decode)
                    .collect::<Result<Vec<_>, _>>()?,
            )?
        };
        Ok(secrets.snapshot()?)
    }

    fn request(&self) -> Result<Captured, Usage> {
        let mut headers = HeaderMap::new();
        for header in &self.headers {
            let (name, value) = header
                .split_once(':')
                .ok_or_else(|| Usage("a header without a colon".into()))?;
            headers.append(
                name.trim().parse::<HeaderName>()?,
                HeaderValue::from_str(value.trim())?,
            );
        }
        let body = match self.data.as_ref().map(|data| (data, data.to_str())) {
            None => Vec::new(),
            Some((_, Some(text))) => match text.strip_prefix('@') {
                Some(file) => read(file.as_ref())?,
                None => text.as_bytes().to_vec(),
            },
            Some((data, None)) => data.as_encoded_bytes().to_vec(),
        };
        Ok(Captured {
            method: Method::POST,
            uri: Uri::from_static("/"),
            headers,
            body,
            notes: Vec::new(),
        })
    }
}

fn scheme(name: &str) -> Result<(Scheme, KeyEncoding), Usage> {
    if let Some(preset) = Preset::named(name) {
        return Ok((preset.scheme(), preset.key));
    }
    match name {
        "rfc9421" => Ok((
            Rfc9421::new().scheme("rfc9421"),
            KeyEncoding::Base64 { prefix: "" },
        )),
        #[cfg(feature = "ed25519")]
        "standard-v1a" => {
            use tower_inbox::verify::StandardEd25519;
            Ok((StandardEd25519::scheme(), StandardEd25519::KEY))
        }
        _ => Err(Usage(format!("no preset {name:?}; there are {}", names()))),
    }
}

fn names() -> String {
    let mut names: Vec<_> = Preset::ALL.iter().map(|preset| preset.name).collect();
    names.push("rfc9421");
    if cfg!(feature = "ed25519") {
        names.push("standard-v1a");
    }
    names.join(", ")
}

fn read(file: &std::path::Path) -> Result<Vec<u8>, Usage> {
    if file.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes)?;
        return Ok(bytes);
    }
    std::fs::read(file).map_err(|error| Usage(format!("{}: {error}", file.display())))
}
