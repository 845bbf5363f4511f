//! Finding a few fields of a JSON body, without building a tree of it.
//!
//! Only what is asked for is decoded: a lone surrogate, a NUL or a huge number elsewhere does not refuse a body.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use smallvec::SmallVec;

/// Where a field is in a JSON body: names of object members, outermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JsonPath(Vec<Cow<'static, str>>);

impl JsonPath {
    /// From the names of the members, outermost first. A name may contain any character.
    ///
    /// # Panics
    /// Without a name.
    pub fn new<N: Into<Cow<'static, str>>>(names: impl IntoIterator<Item = N>) -> Self {
        let names: Vec<_> = names.into_iter().map(Into::into).collect();
        assert!(!names.is_empty(), "a path has at least one name");
        Self(names)
    }

    pub(crate) fn first(&self) -> &str {
        &self.0[0]
    }

    #[cfg(feature = "testkit")]
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(AsRef::as_ref)
    }
}

impl From<&'static str> for JsonPath {
    /// `event.type` is the member `type` of the object `event`.
    fn from(dotted: &'static str) -> Self {
        Self::new(dotted.split('.'))
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

/// Why a field could not be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JsonError {
    /// Not JSON, or not an object. With the place, never with content.
    NotAnObject(String),
    /// The member is there twice, so that two readers could read two things.
    Repeated,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAnObject(why) => f.write_str(why),
            Self::Repeated => f.write_str("is there more than once"),
        }
    }
}

/// The wanted members of one object.
#[derive(Debug)]
pub(crate) struct Members<'b, 'n> {
    found: Found<'b, 'n>,
}

/// Rarely more are asked for.
type Found<'b, 'n> = SmallVec<[Member<'b, 'n>; 6]>;

#[derive(Debug)]
struct Member<'b, 'n> {
    name: &'n str,
    value: Option<&'b RawValue>,
    repeated: bool,
}

impl<'b, 'n> Members<'b, 'n> {
    /// Reads the whole text once and keeps the members with these names.
    pub(crate) fn read(
        body: &'b [u8],
        names: impl IntoIterator<Item = &'n str>,
    ) -> Result<Self, JsonError> {
        let mut found = Found::new();
        for name in names {
            if !found.iter().any(|member| member.name == name) {
                found.push(Member {
                    name,
                    value: None,
                    repeated: false,
                });
            }
        }
        if body.is_empty() {
            return Err(JsonError::NotAnObject("the body is empty".into()));
        }
        let mut deserializer = serde_json::Deserializer::from_slice(body);
        let read = deserializer
            .deserialize_map(Collect { found: &mut found })
            .and_then(|()| deserializer.end());
        match read {
            Ok(()) => Ok(Self { found }),
            Err(error) if error.is_data() => {
                Err(JsonError::NotAnObject("the body is no JSON object".into()))
            }
            Err(error) => {
                let (line, column) = (error.line(), error.column());
                Err(JsonError::NotAnObject(format!(
                    "the body is not JSON (line {line}, column {column})"
                )))
            }
        }
    }

    /// The value at a path whose first name was asked for. A path that leads through something else than an object
    /// leads nowhere; `null` is a value.
    pub(crate) fn at(&self, path: &JsonPath) -> Result<Option<&'b RawValue>, JsonError> {
        let Some(member) = self.found.iter().find(|member| member.name == path.first()) else {
            return Ok(None);
        };
        if member.repeated {
            return Err(JsonError::Repeated);
        }
        let mut value = member.value;
        for name in &path.0[1..] {
            let Some(object) = value.filter(|value| value.get().starts_with('{')) else {
                return Ok(None);
            };
            let inner = Members::read(object.get().as_bytes(), [&**name])?;
            let [member] = inner.found.as_slice() else {
                return Ok(None);
            };
            if member.repeated {
                return Err(JsonError::Repeated);
            }
            value = member.value;
        }
        Ok(value)
    }

    /// The last member of this name, however often it is there.
    pub(crate) fn last(&self, name: &str) -> Option<&'b RawValue> {
        self.found.iter().find(|member| member.name == name)?.value
    }
}

/// The text of a JSON string; `None` for another value, and for one that is no text (a lone surrogate).
pub(crate) fn text(value: &RawValue) -> Option<Cow<'_, str>> {
    let inner = value.get().strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        // Validated when it was found; without an escape it is its own text.
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(value.get()).ok().map(Cow::Owned)
}

struct Collect<'c, 'b, 'n> {
    found: &'c mut Found<'b, 'n>,
}

impl<'b> Visitor<'b> for Collect<'_, 'b, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'b>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(index) = map.next_key_seed(Name { found: self.found })? {
            match index.map(|index| &mut self.found[index]) {
                Some(member) => {
                    member.repeated = member.value.is_some();
                    member.value = Some(map.next_value()?);
                }
                // Skipped without recursion, so that depth costs no stack.
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// Reads a member's name as bytes: one that is no text is somebody else's, and no error.
struct Name<'c, 'b, 'n> {
    found: &'c [Member<'b, 'n>],
}

impl<'b> DeserializeSeed<'b> for Name<'_, 'b, '_> {
    type Value = Option<usize>;

    fn deserialize<D: serde::Deserializer<'b>>(
        self,
        deserializer: D,
    ) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_bytes(self)
    }
}

impl<'b> Visitor<'b> for Name<'_, 'b, '_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_bytes<E: serde::de::Error>(self, name: &[u8]) -> Result<Self::Value, E> {
        Ok(self
            .found
            .iter()
            .position(|member| member.name.as_bytes() == name))
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Self::Value, E> {
        self.visit_bytes(name.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at<'b>(body: &'b [u8], path: &'static str) -> Result<Option<&'b str>, JsonError> {
        let path = JsonPath::from(path);
        Ok(Members::read(body, [path.first()])?
            .at(&path)?
            .map(RawValue::get))
    }

    #[test]
    fn finds_nested_members() {
        let body = br#"{"a":{"b":{"c": 1 }},"x.y":2}"#;
        assert_eq!(at(body, "a.b.c"), Ok(Some("1")));
        assert_eq!(at(body, "a.b.d"), Ok(None));
        assert_eq!(at(body, "x.y"), Ok(None));
        assert_eq!(at(br#"{"a":[1]}"#, "a.b"), Ok(None));
    }

    /// §4.9: a member that is there twice is ambiguous, also spelled with an escape, also further in.
    #[test]
    fn repeated_members() {
        assert_eq!(at(br#"{"id":1,"id":1}"#, "id"), Err(JsonError::Repeated));
        assert_eq!(
            at(br#"{"id":1,"i\u0064":2}"#, "id"),
            Err(JsonError::Repeated)
        );
        assert_eq!(
            at(br#"{"a":{"id":1,"id":2}}"#, "a.id"),
            Err(JsonError::Repeated)
        );
        assert_eq!(at(br#"{"id":1,"x":1,"x":2}"#, "id"), Ok(Some("1")));
        let three = br#"{"id":1,"id":2,"id":3}"#;
        assert_eq!(at(three, "id"), Err(JsonError::Repeated));
    }

    /// What nobody asked for does not matter: surrogates, NULs, bytes, numbers, depth.
    #[test]
    fn oddities_elsewhere() {
        assert_eq!(
            at(
                br#"{"x":"\ud800","\udfff":"\u0000","n":1e999999,"id":1}"#,
                "id"
            ),
            Ok(Some("1"))
        );
        assert_eq!(at(b"{\"x\":\"\xff\",\"id\":1}", "id"), Ok(Some("1")));
        let deep = format!(
            r#"{{"x":{}{},"id":1}}"#,
            "[".repeat(200_000),
            "]".repeat(200_000)
        );
        assert_eq!(at(deep.as_bytes(), "id"), Ok(Some("1")));
    }

    #[test]
    fn bodies_that_are_no_object() {
        for body in [
            "",
            "[]",
            "1",
            "null",
            "\"x\"",
            "{",
            "{}x",
            "{\"id\":}",
            "\u{feff}{}",
            "a=b&c=d",
        ] {
            assert!(
                matches!(at(body.as_bytes(), "id"), Err(JsonError::NotAnObject(_))),
                "{body}"
            );
        }
    }

    #[test]
    fn texts() {
        let text =
            |raw: &str| text(&RawValue::from_string(raw.into()).unwrap()).map(Cow::into_owned);
        assert_eq!(text(r#""a\u0062""#).as_deref(), Some("ab"));
        for wrong in [r#""\ud800""#, "1", "null", "[\"a\"]"] {
            assert_eq!(text(wrong), None, "{wrong}");
        }
    }
}
