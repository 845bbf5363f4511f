//! The little of Structured Field Values (RFC 8941) that message signatures need.

/// Members of one list or dictionary. More than any signer has, and few enough to be compared with each other: the
/// time for a header that nobody vouches for must not grow with its square.
const MOST: usize = 64;

/// An inner list of plain strings, with its parameters.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InnerList<'t> {
    /// The strings, none of them twice.
    pub(super) items: Vec<&'t str>,
    parameters: Vec<(&'t str, &'t str)>,
    /// All of it, as received.
    pub(super) raw: &'t str,
}

impl<'t> InnerList<'t> {
    /// The value of a parameter as written.
    pub(super) fn parameter(&self, name: &str) -> Option<&'t str> {
        self.parameters
            .iter()
            .find(|(other, _)| *other == name)
            .map(|(_, value)| *value)
    }
}

/// The members of a dictionary, with their values as written. `None` if one is there twice or has no value.
pub(super) fn dictionary(text: &str) -> Option<Vec<(&str, &str)>> {
    let mut members: Vec<(&str, &str)> = Vec::new();
    for member in split(text, ',')? {
        let (name, value) = member.trim_matches([' ', '\t']).split_once('=')?;
        if !is_name(name) || members.iter().any(|(other, _)| *other == name) {
            return None;
        }
        members.push((name, value));
    }
    Some(members)
}

/// The base64 text of a byte sequence.
pub(super) fn bytes(text: &str) -> Option<&str> {
    text.strip_prefix(':')?.strip_suffix(':')
}

/// An inner list whose items are strings without escapes, without parameters, and different.
pub(super) fn inner_list(text: &str) -> Option<InnerList<'_>> {
    let end = text.find(')')?;
    let mut items = Vec::new();
    for item in text[..end]
        .strip_prefix('(')?
        .split(' ')
        .filter(|item| !item.is_empty())
    {
        let item = item.strip_prefix('"')?.strip_suffix('"')?;
        if items.len() == MOST
            || item.is_empty()
            || item.contains(['"', '\\'])
            || items.contains(&item)
        {
            return None;
        }
        items.push(item);
    }
    let mut parameters: Vec<(&str, &str)> = Vec::new();
    let mut rest = split(&text[end + 1..], ';')?.into_iter();
    if rest.next() != Some("") {
        return None;
    }
    for parameter in rest {
        let (name, value) = parameter.split_once('=')?;
        if !is_name(name) || value.is_empty() || parameters.iter().any(|(other, _)| *other == name)
        {
            return None;
        }
        parameters.push((name, value));
    }
    Some(InnerList {
        items,
        parameters,
        raw: text,
    })
}

fn is_name(text: &str) -> bool {
    let fits =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte);
    !text.is_empty() && text.bytes().all(fits)
}

/// Splits outside of quotes. `None` if a quote is left open, or if there are too many parts.
fn split(text: &str, separator: char) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut from, mut quoted, mut escaped) = (0, false, false);
    for (at, char) in text.char_indices() {
        match char {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if char == separator && !quoted => {
                if parts.len() + 1 == MOST {
                    return None;
                }
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    (!quoted).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionaries() {
        let members = dictionary(r#"a=("x" "y");k="1,2", b=:QQ==:"#).unwrap();
        assert_eq!(members, [("a", r#"("x" "y");k="1,2""#), ("b", ":QQ==:")]);
        for wrong in ["", "a", "a=1,a=2", "a=\"", "A=1", "a=1,"] {
            assert_eq!(dictionary(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn no_more_than_can_be_compared() {
        let members = |n: usize| {
            (0..n)
                .map(|i| format!("a{i}=1"))
                .collect::<Vec<_>>()
                .join(",")
        };
        assert_eq!(
            dictionary(&members(MOST)).map(|members| members.len()),
            Some(MOST)
        );
        assert_eq!(dictionary(&members(MOST + 1)), None);
        let items = |n: usize| {
            format!(
                "({})",
                (0..n).map(|i| format!("\"a{i}\" ")).collect::<String>()
            )
        };
        assert!(inner_list(&items(MOST)).is_some());
        assert_eq!(inner_list(&items(MOST + 1)), None);
    }

    #[test]
    fn inner_lists() {
        let list = inner_list(r#"("a" "@b");created=1;keyid="x;y=\"z""#).unwrap();
        assert_eq!(list.items, ["a", "@b"]);
        assert_eq!(list.parameter("created"), Some("1"));
        assert_eq!(list.parameter("keyid"), Some(r#""x;y=\"z""#));
        assert!(inner_list("()").is_some_and(|list| list.items.is_empty()));
        for wrong in [
            "",
            "(",
            ")",
            "(a)",
            r#"("a" "a")"#,
            r#"("a";sf)"#,
            r#"("a")x=1"#,
            r#"("a");x"#,
            r#"("a");x=1;x=2"#,
        ] {
            assert_eq!(inner_list(wrong), None, "{wrong}");
        }
    }
}
