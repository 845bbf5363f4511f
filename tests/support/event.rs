//! Events, and the requests that deliver them, signed as the producers sign.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;

use super::http;

/// The secret of every receiver that a test starts without another one.
pub(crate) const SECRET: &str = "black-box-secret";

/// An event as its body has it.
#[derive(Clone, Debug)]
pub(crate) struct Event(pub(crate) Value);

impl Event {
    pub(crate) fn new(id: &str, account: &str, amount: i64) -> Self {
        Self(json!({
            "event_id": id,
            "event_type": "payment.succeeded",
            "data": {"account": account, "amount": amount},
        }))
    }

    /// Event `sequence` of the stream `correlation`: its id is made of both, its account is the stream.
    pub(crate) fn of(correlation: &str, sequence: i64) -> Self {
        Self::new(
            &format!("evt_{correlation}_{sequence}"),
            correlation,
            sequence,
        )
        .ordered(correlation, sequence)
    }

    pub(crate) fn ordered(self, correlation: &str, sequence: i64) -> Self {
        self.with("correlation_id", correlation)
            .with("sequence", sequence)
    }

    pub(crate) fn fault(mut self, fault: &str) -> Self {
        self.0["data"]["fault"] = fault.into();
        self
    }

    pub(crate) fn fault_times(mut self, times: u64) -> Self {
        self.0["data"]["fault_times"] = times.into();
        self
    }

    pub(crate) fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0[field] = value.into();
        self
    }

    pub(crate) fn id(&self) -> &str {
        self.0["event_id"].as_str().expect("an id")
    }

    pub(crate) fn body(&self) -> Vec<u8> {
        self.0.to_string().into_bytes()
    }

    /// As Kudos delivers it now.
    pub(crate) fn kudos(&self) -> Vec<u8> {
        kudos(SECRET, &self.body())
    }
}

/// A body as Kudos delivers it now.
pub(crate) fn kudos(secret: &str, body: &[u8]) -> Vec<u8> {
    post(
        "kudos",
        &[header(
            "x-kudos-signature",
            signature(&[secret], now(), body),
        )],
        body,
    )
}

pub(crate) fn post(preset: &str, headers: &[(String, String)], body: &[u8]) -> Vec<u8> {
    http::request("POST", &format!("/webhooks/{preset}"), headers, body)
}

pub(crate) fn header(name: &str, value: impl Into<String>) -> (String, String) {
    (name.to_owned(), value.into())
}

/// `t=…,v1=…`, one signature for each secret.
pub(crate) fn signature(secrets: &[&str], at: i64, body: &[u8]) -> String {
    let mut header = format!("t={at}");
    for secret in secrets {
        header.push_str(&format!(
            ",v1={}",
            hex::encode(mac(secret.as_bytes(), &[at.to_string().as_bytes(), body]))
        ));
    }
    header
}

/// Standard Webhooks: id, time and signature, of a `whsec_` secret.
pub(crate) fn standard(secret: &str, id: &str, body: &[u8]) -> Vec<u8> {
    let key = STANDARD
        .decode(secret.trim_start_matches("whsec_"))
        .expect("base64");
    let at = now().to_string();
    let signature = STANDARD.encode(mac(&key, &[id.as_bytes(), at.as_bytes(), body]));
    let headers = [
        header("webhook-id", id),
        header("webhook-timestamp", at),
        header("webhook-signature", format!("v1,{signature}")),
    ];
    post("standard", &headers, body)
}

/// HMAC-SHA256 over the parts with dots between them.
pub(crate) fn mac(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(&parts.join(&b'.'));
    mac.finalize().into_bytes().to_vec()
}

/// Seconds since the Unix epoch.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    i64::try_from(since.as_secs()).expect("before the end of time")
}
