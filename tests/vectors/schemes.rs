//! The schemes of the vectors: presets, descriptors, and code.

use http::HeaderName;
use tower_inbox::preset::Preset;
use tower_inbox::verify::{
    Algorithm, Encoding, KeyEncoding, Part, Pick, Rfc9421, Scheme, SchemeBuilder, SignatureAt,
    TimestampAt, Unit,
};

use crate::custom::{AdyenPayments, GitlabToken, Twilio};

/// How a scheme of the vectors is verified; no scheme means that this crate refuses it.
pub(crate) struct Known {
    pub(crate) scheme: Option<Scheme>,
    pub(crate) key: KeyEncoding,
}

const BASE64: KeyEncoding = KeyEncoding::Base64 { prefix: "" };

pub(crate) fn known(name: &str) -> Option<Known> {
    use Algorithm::{HmacSha1Legacy, HmacSha256, HmacSha512};
    use Encoding::{Base64, Hex};

    let text = |scheme: Scheme| {
        Some(Known {
            scheme: Some(scheme),
            key: KeyEncoding::Text,
        })
    };
    let preset = |preset: Preset| {
        Some(Known {
            scheme: Some(preset.scheme()),
            key: preset.key,
        })
    };
    let build = |builder: SchemeBuilder| text(builder.build().expect("a descriptor of the test"));
    let body = |algorithm, encoding, header| {
        Scheme::hmac("body", algorithm, at(header)).encoding(encoding)
    };
    let prefixed = |algorithm, encoding, header, prefix: &'static str| {
        body(algorithm, encoding, header).pick(Pick::Prefix(prefix.into()))
    };
    let generic = |algorithm, prefix: &'static str| {
        body(algorithm, Hex, "x-signature")
            .split(',')
            .pick(Pick::OptionalPrefix(prefix.into()))
    };

    match name {
        "standard-webhooks" => preset(Preset::STANDARD),
        "svix" => preset(Preset::SVIX),
        "standard-webhooks-rawkey" => text(Preset::STANDARD.scheme()),
        "kudos" | "sequenced" | "brief" | "stripe" | "github" | "shopify" | "slack" | "zoom"
        | "paddle" | "linear" | "square" => preset(*Preset::named(name)?),

        "calendly" => build(stamped(
            "calendly-webhook-signature",
            "v1",
            Unit::Seconds,
            ".",
        )),
        "workos" => build(stamped("workos-signature", "v1", Unit::Millis, ".").trim()),
        "elevenlabs" => build(stamped("elevenlabs-signature", "v0", Unit::Seconds, ".")),
        "zendesk" => build(
            body(HmacSha256, Base64, "x-zendesk-webhook-signature")
                .timestamp(time("x-zendesk-webhook-signature-timestamp"), Unit::Rfc3339)
                .signs([Part::Timestamp, Part::Body]),
        ),
        "webflow" => build(
            body(HmacSha256, Hex, "x-webflow-signature")
                .timestamp(time("x-webflow-timestamp"), Unit::Millis)
                .signs([Part::Timestamp, ":".into(), Part::Body]),
        ),
        "hubspot-v3" => build(
            body(HmacSha256, Base64, "x-hubspot-signature-v3")
                .timestamp(time("x-hubspot-request-timestamp"), Unit::Millis)
                .signs([Part::Method, Part::Url, Part::Body, Part::Timestamp]),
        ),
        "box" => {
            let headers =
                ["box-signature-primary", "box-signature-secondary"].map(HeaderName::from_static);
            build(
                Scheme::hmac("box", HmacSha256, SignatureAt::AnyHeader(headers.into()))
                    .encoding(Base64)
                    .timestamp(time("box-delivery-timestamp"), Unit::Rfc3339)
                    .signs([Part::Body, Part::Timestamp]),
            )
        }
        "docusign" => {
            let at = SignatureAt::NumberedHeader("x-docusign-signature-".into());
            build(Scheme::hmac("docusign", HmacSha256, at).encoding(Base64))
        }
        "mollie" => {
            let at = SignatureAt::RepeatableHeader(HeaderName::from_static("x-mollie-signature"));
            build(
                Scheme::hmac("mollie", HmacSha256, at).pick(Pick::OptionalPrefix("sha256=".into())),
            )
        }
        "mailgun" => build(
            Scheme::hmac(
                "mailgun",
                HmacSha256,
                SignatureAt::Json("signature.signature".into()),
            )
            .timestamp(
                TimestampAt::Json("signature.timestamp".into()),
                Unit::Seconds,
            )
            .signs([
                Part::Json("signature.timestamp".into()),
                Part::Json("signature.token".into()),
            ]),
        ),
        "trello" => {
            build(body(HmacSha1Legacy, Base64, "x-trello-webhook").signs([Part::Body, Part::Url]))
        }

        "intercom" => build(prefixed(HmacSha1Legacy, Hex, "x-hub-signature", "sha1=")),
        "bitbucket-server" => build(prefixed(HmacSha256, Hex, "x-hub-signature", "sha256=")),
        "typeform" => build(prefixed(
            HmacSha256,
            Base64,
            "typeform-signature",
            "sha256=",
        )),
        "x-twitter" => build(prefixed(
            HmacSha256,
            Base64,
            "x-twitter-webhooks-signature",
            "sha256=",
        )),
        "gitea" => build(body(HmacSha256, Hex, "x-gitea-signature")),
        "gogs" => build(body(HmacSha256, Hex, "x-gogs-signature")),
        "dropbox" => build(body(HmacSha256, Hex, "x-dropbox-signature")),
        "launchdarkly" => build(body(HmacSha256, Hex, "x-ld-signature")),
        "vercel" => build(body(HmacSha1Legacy, Hex, "x-vercel-signature")),
        "pagerduty" => build(
            body(HmacSha256, Hex, "x-pagerduty-signature")
                .split(',')
                .field('=', "v1"),
        ),
        "woocommerce" => build(body(HmacSha256, Base64, "x-wc-webhook-signature")),
        "xero" => build(body(HmacSha256, Base64, "x-xero-signature")),
        "adyen-banking" => {
            let scheme = body(HmacSha256, Base64, "hmacsignature")
                .build()
                .expect("a descriptor of the test");
            Some(Known {
                scheme: Some(scheme),
                key: KeyEncoding::Hex,
            })
        }
        "generic-body-sha1-hex" => build(generic(HmacSha1Legacy, "sha1=")),
        "generic-body-sha256-hex" => build(generic(HmacSha256, "sha256=")),
        "generic-body-sha512-hex" => build(generic(HmacSha512, "sha512=")),

        "convoy-simple-sha256-hex" => build(body(HmacSha256, Hex, "x-convoy-signature")),
        "convoy-simple-sha256-base64" => build(body(HmacSha256, Base64, "x-convoy-signature")),
        "convoy-simple-sha512-hex" => build(body(HmacSha512, Hex, "x-convoy-signature")),
        "convoy-simple-sha512-base64" => build(body(HmacSha512, Base64, "x-convoy-signature")),
        "convoy-advanced-sha256-hex" => build(convoy(HmacSha256, Hex)),
        "convoy-advanced-sha256-base64" => build(convoy(HmacSha256, Base64)),
        "convoy-advanced-sha512-hex" => build(convoy(HmacSha512, Hex)),
        "convoy-advanced-sha512-base64" => build(convoy(HmacSha512, Base64)),

        "twilio" => text(Scheme::custom("twilio", Twilio::new())),
        "gitlab-token" => text(Scheme::custom("gitlab-token", GitlabToken::new())),
        "adyen-payments" => Some(Known {
            scheme: Some(Scheme::custom("adyen-payments", AdyenPayments)),
            key: KeyEncoding::Hex,
        }),
        "rfc9421-hmac" => Some(Known {
            scheme: Some(Rfc9421::new().scheme("rfc9421-hmac")),
            key: BASE64,
        }),
        "hubspot-v1" | "hubspot-v2" => Some(Known {
            scheme: None,
            key: KeyEncoding::Text,
        }),
        _ => None,
    }
}

fn at(header: &'static str) -> SignatureAt {
    SignatureAt::Header(HeaderName::from_static(header))
}

fn time(header: &'static str) -> TimestampAt {
    TimestampAt::Header(HeaderName::from_static(header))
}

/// `t=<time>,<field>=<hex>` over time, a joint and the body.
fn stamped(
    header: &'static str,
    field: &'static str,
    unit: Unit,
    joint: &'static str,
) -> SchemeBuilder {
    Scheme::hmac("stamped", Algorithm::HmacSha256, at(header))
        .split(',')
        .field('=', field)
        .timestamp(TimestampAt::Field("t".into()), unit)
        .signs([Part::Timestamp, joint.into(), Part::Body])
}

fn convoy(algorithm: Algorithm, encoding: Encoding) -> SchemeBuilder {
    Scheme::hmac("convoy", algorithm, at("x-convoy-signature"))
        .encoding(encoding)
        .split(',')
        .field('=', "v1")
        .timestamp(TimestampAt::Field("t".into()), Unit::Seconds)
        .signs([Part::Timestamp, ",".into(), Part::Body])
}
