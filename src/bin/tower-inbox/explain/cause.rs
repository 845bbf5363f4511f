//! The likely cause, found by trying.

use std::time::Duration;

use http::HeaderName;
use tower_inbox::preset::Preset;
use tower_inbox::verify::{
    Head, Refusal, RefusalKind, Scheme, Secret, SecretSet, Secrets, Tolerance, Verified,
};

use super::args::Args;
use super::variants;

/// A cause: a short stable word, and what to do about it.
pub(super) struct Cause {
    pub(super) kind: &'static str,
    pub(super) text: String,
}

impl Cause {
    fn new(kind: &'static str, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
        }
    }
}

/// A delivery that verifies, and about which there is something to say.
pub(super) fn of_success(args: &Args, verified: &Verified) -> Option<Cause> {
    let newest = args.secrets.newest().label();
    (verified.label() != newest).then(|| {
        let text = format!(
            "it is signed by the older secret alone: a receiver that has only {newest} refuses it, and the older one \
             must not be revoked yet"
        );
        Cause::new("older_secret", text)
    })
}

pub(super) fn of(args: &Args, head: Option<&Head>, refusal: &Refusal) -> Cause {
    match refusal.kind() {
        RefusalKind::TooOld | RefusalKind::TooFarAhead => time(args, head),
        RefusalKind::NoMatch => no_match(args),
        RefusalKind::MissingSignature
        | RefusalKind::MissingTimestamp
        | RefusalKind::BadIdentifier => missing(args),
        RefusalKind::RepeatedHeader => Cause::new(
            "repeated_header",
            "a proxy in between, or the capture, has a header of the scheme twice",
        ),
        RefusalKind::OutsideWindow => Cause::new(
            "outside_window",
            "the secret is the right one, and its not_before or not_after excludes this time",
        ),
        RefusalKind::NotAscii => Cause::new(
            "changed_header",
            "a header of the scheme was changed on its way",
        ),
        RefusalKind::MalformedSignature => malformed(args),
        RefusalKind::MalformedTimestamp => Cause::new(
            "wrong_unit",
            "the timestamp is not written as this scheme has it: another unit, or another scheme",
        ),
        _ => Cause::new(
            "unreadable_body",
            "the scheme reads the body, and that is not what it must be",
        ),
    }
}

/// Whether the request, with this body and these secrets, verifies at whatever time.
fn passes(args: &Args, scheme: &Scheme, body: &[u8], secrets: &SecretSet) -> bool {
    let view = args.view(body);
    scheme
        .verify(&view, secrets, args.now, &Tolerance::insecure_unlimited())
        .is_ok()
}

fn time(args: &Args, head: Option<&Head>) -> Cause {
    let Some(at) = head.and_then(Head::claimed_at) else {
        // In the body: checked after the signature, which therefore is right.
        return Cause::new(
            "clock",
            "the signature is right; the time in the body is too far from now",
        );
    };
    let hour = Duration::from_secs(3_600);
    let near = |micros: i64| {
        let now = args.now.as_micros();
        now.abs_diff(micros) < u64::try_from(hour.as_micros()).unwrap_or(0)
    };
    if near(at.as_micros() / 1_000) {
        return Cause::new(
            "wrong_unit",
            "the timestamp is in milliseconds, and the scheme has seconds",
        );
    }
    if near(at.as_micros().saturating_mul(1_000)) {
        return Cause::new(
            "wrong_unit",
            "the timestamp is in seconds, and the scheme has milliseconds",
        );
    }
    let right = passes(args, &args.scheme, &args.request.body, &args.secrets);
    let proof = if right {
        "the signature is right"
    } else {
        "the signature is not right either"
    };
    let (way, off) = if at > args.now {
        ("ahead of", at.since(args.now))
    } else {
        ("behind", args.now.since(at))
    };
    let text = format!(
        "{proof}; it was signed {} s {way} this clock: a clock is off, the delivery was held up or is sent again, or \
         --now is not the time of its arrival",
        off.as_secs()
    );
    Cause::new("clock", text)
}

fn no_match(args: &Args) -> Cause {
    let body = &args.request.body;
    let bodies = variants::bodies(body);
    for (what, variant) in &bodies {
        if passes(args, &args.scheme, variant, &args.secrets) {
            let text =
                format!("{what} on the way: verify the raw bytes, before anything parses them");
            return Cause::new("changed_body", text);
        }
    }
    let set = |secret: Secret| Secrets::new([secret]).and_then(|secrets| secrets.snapshot());
    for secret in args.secrets.iter() {
        for (what, other) in variants::keys(args.key, secret) {
            let Ok(other) = set(other) else { continue };
            let also = |body: &[u8]| passes(args, &args.scheme, body, &other);
            let changed = bodies
                .iter()
                .find(|(_, variant)| also(variant))
                .map(|(what, _)| *what);
            if also(body) || changed.is_some() {
                let and = changed
                    .map(|changed| format!(", and {changed}"))
                    .unwrap_or_default();
                let text = format!("the key of {} is {what}{and}", secret.label());
                return Cause::new("secret_encoding", text);
            }
        }
    }
    if let Some(cause) = url(args).or_else(|| other_preset(args)) {
        return cause;
    }
    let mut text = "another secret (an older one, a newer one, or that of another endpoint), or a body that was changed \
                    in a way that is not tried here"
        .to_owned();
    if serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok() {
        text.push_str(
            "; if the JSON was parsed and written again by something that lost its members' order, that cannot be \
             undone here: capture the raw bytes",
        );
    }
    Cause::new("other_secret", text)
}

/// The spellings of a URL that people mix up.
fn url(args: &Args) -> Option<Cause> {
    let url = args.url.as_deref().filter(|_| args.scheme.needs_url())?;
    let (scheme, rest) = url.split_once("://")?;
    let other = if scheme == "https" { "http" } else { "https" };
    let (address, query) = rest
        .split_once('?')
        .map_or((rest, None), |(address, query)| (address, Some(query)));
    let slash = address
        .strip_suffix('/')
        .map_or_else(|| format!("{address}/"), str::to_owned);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    let variants = [
        ("http and https", format!("{other}://{rest}")),
        ("a trailing slash", format!("{scheme}://{slash}{query}")),
        (
            "both http and https, and a trailing slash",
            format!("{other}://{slash}{query}"),
        ),
        ("the query", format!("{scheme}://{address}")),
    ];
    let passes = |url: &str| {
        let view = args.view(&args.request.body).with_url(Some(url));
        args.scheme
            .verify(
                &view,
                &args.secrets,
                args.now,
                &Tolerance::insecure_unlimited(),
            )
            .is_ok()
    };
    let (what, _) = variants.into_iter().find(|(_, url)| passes(url))?;
    Some(Cause::new(
        "url",
        format!("the URL at the producer is another one: {what} differ"),
    ))
}

fn other_preset(args: &Args) -> Option<Cause> {
    let preset = Preset::ALL.iter().find(|preset| {
        preset.name != args.name
            && passes(args, &preset.scheme(), &args.request.body, &args.secrets)
    })?;
    let text = format!(
        "it verifies as `{}`: that is the preset to use",
        preset.name
    );
    Some(Cause::new("other_scheme", text))
}

fn malformed(args: &Args) -> Cause {
    other_preset(args).unwrap_or_else(|| {
        let text = "the signature's header is not in this scheme's form: another scheme, or it was cut or changed on \
                    its way";
        Cause::new("changed_header", text)
    })
}

/// A header that is not there under its name.
fn missing(args: &Args) -> Cause {
    if let Some(cause) = other_preset(args) {
        return cause;
    }
    let squeezed = |name: &str| name.replace(['-', '_'], "");
    let headers = &args.request.headers;
    let renamed = headers.keys().find(|name| {
        let plain = |other: &HeaderName| {
            squeezed(other.as_str()) == squeezed(name.as_str()) && other != *name
        };
        KNOWN.iter().any(|known| {
            let known = HeaderName::from_static(known);
            reads(&args.scheme, &known) && plain(&known)
        })
    });
    match renamed {
        Some(name) => Cause::new(
            "changed_header",
            format!("a proxy renamed it: there is a header {name}"),
        ),
        None => Cause::new(
            "missing_header",
            "a header of the scheme is not there: a proxy dropped it, the capture left it out, it is another scheme, \
             or the producer has no secret set",
        ),
    }
}

fn reads(scheme: &Scheme, name: &HeaderName) -> bool {
    scheme.is_signature_header(name) || scheme.covers_header(name)
}

/// The headers that presets read before a body.
const KNOWN: &[&str] = &[
    "x-kudos-signature",
    "x-signature",
    "idempotency-key",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
    "svix-id",
    "svix-timestamp",
    "svix-signature",
    "stripe-signature",
    "x-hub-signature-256",
    "x-shopify-hmac-sha256",
    "x-slack-signature",
    "x-slack-request-timestamp",
    "x-zm-signature",
    "x-zm-request-timestamp",
    "paddle-signature",
    "linear-signature",
    "x-square-hmacsha256-signature",
    "signature",
    "signature-input",
    "content-digest",
];
