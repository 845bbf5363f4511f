//! What an event says about the ledger, wherever its producer puts it.

use serde::Deserialize;
use serde_json::Value;

/// The part of an event that the ledger is about.
#[derive(Deserialize)]
pub(crate) struct Data {
    pub(crate) account: String,
    pub(crate) amount: i64,
    pub(crate) fault: Option<String>,
    pub(crate) fault_times: Option<u64>,
}

impl Data {
    /// Out of a body of this preset's producer. What is wrong is said in words.
    pub(crate) fn read(preset: &str, body: &[u8]) -> Result<Self, String> {
        let mut body: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let place = places(preset)
            .iter()
            .find(|place| body.pointer(place).is_some_and(Value::is_object));
        let found = place
            .and_then(|place| body.pointer_mut(place))
            .map(Value::take);
        let data: Self = serde_json::from_value(found.ok_or("data is missing, or is no object")?)
            .map_err(|error| format!("data: {error}"))?;
        match data.account.len() {
            1..=255 => Ok(data),
            _ => Err("data.account must be 1 to 255 bytes".to_owned()),
        }
    }
}

/// Where the data may be, as JSON pointers; the first object counts.
fn places(preset: &str) -> &'static [&'static str] {
    match preset {
        "stripe" => &["/data/object", "/data"],
        "slack" => &["/event/data", "/data"],
        // Their payloads are the resource itself: account and amount are at its top, if there is no `data`.
        "github" | "shopify" => &["/data", ""],
        _ => &["/data"],
    }
}
