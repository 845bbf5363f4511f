//! Requests that carry several events.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::error::{EnvelopeError, Field};
use crate::verify::JsonPath;
use crate::verify::json::Members;

/// Where the array of events is in the body, and how many it may hold.
#[derive(Clone, Debug)]
pub(crate) struct Elements {
    /// None: the body is the array.
    pub(crate) at: Option<JsonPath>,
    pub(crate) most: usize,
}

impl Elements {
    /// The text of each element, as it stands in the body. Nothing is copied.
    pub(crate) fn split(&self, body: &Bytes) -> Result<Vec<Bytes>, EnvelopeError> {
        let wrong = |what: String| EnvelopeError::new(Field::Elements, self.place(), what);
        let array = match &self.at {
            None => &body[..],
            Some(path) => {
                let members = Members::read(body, [path.first()]);
                let found = members.and_then(|members| members.at(path));
                let found = found.map_err(|error| wrong(error.to_string()))?;
                found
                    .ok_or_else(|| wrong("is missing".into()))?
                    .get()
                    .as_bytes()
            }
        };
        let elements: Vec<&RawValue> =
            serde_json::from_slice(array).map_err(|_| wrong("is no JSON array".into()))?;
        if elements.len() > self.most {
            return Err(wrong(format!("has more than {} elements", self.most)));
        }
        Ok(elements
            .iter()
            .map(|element| body.slice_ref(element.get().as_bytes()))
            .collect())
    }

    fn place(&self) -> String {
        match &self.at {
            None => "the body".to_owned(),
            Some(path) => format!("body {path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(at: Option<&'static str>, body: &str) -> Result<Vec<String>, String> {
        let elements = Elements {
            at: at.map(JsonPath::from),
            most: 3,
        };
        let split = elements.split(&Bytes::copy_from_slice(body.as_bytes()));
        let text = |part: &Bytes| String::from_utf8(part.to_vec()).unwrap();
        split
            .map(|parts| parts.iter().map(text).collect())
            .map_err(|error| error.to_string())
    }

    /// (elements)
    #[test]
    fn elements_are_what_stands_in_the_body() {
        assert_eq!(
            split(None, r#"[{"a": 1},  2 ]"#).unwrap(),
            [r#"{"a": 1}"#, "2"]
        );
        assert_eq!(
            split(Some("x.items"), r#"{"x":{"items":["\ud800"]}}"#).unwrap(),
            [r#""\ud800""#]
        );
        assert!(split(None, "[]").unwrap().is_empty());
    }

    /// (elements)
    #[test]
    fn what_is_no_array_is_refused_by_name() {
        for (at, body, why) in [
            (None, "{}", "no JSON array"),
            (None, "[1,", "no JSON array"),
            (None, "[1,2,3,4]", "more than 3"),
            (Some("items"), "{}", "is missing"),
            (Some("items"), r#"{"items":1}"#, "no JSON array"),
            (
                Some("items"),
                r#"{"items":[],"items":[]}"#,
                "more than once",
            ),
            (Some("items"), "", "empty"),
        ] {
            let error = split(at, body).expect_err(body);
            assert!(error.contains(why), "{body}: {error}");
        }
    }
}
