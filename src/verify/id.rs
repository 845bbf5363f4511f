//! Forms of identifiers in headers.

/// In which form a producer writes an identifier, and so what it is compared and signed as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum IdForm {
    /// Byte for byte as received.
    #[default]
    Verbatim,
    /// A UUID, bare or as a quoted string of RFC 8941, in either case: one identifier, in lower case without quotes.
    Uuid,
}

impl IdForm {
    /// The identifier in its one spelling; `None` if it is not in this form, or empty.
    pub fn normalise(self, text: &str) -> Option<String> {
        match self {
            Self::Verbatim => (!text.is_empty()).then(|| text.to_owned()),
            Self::Uuid => {
                let bare = text
                    .strip_prefix('"')
                    .map_or(Some(text), |open| open.strip_suffix('"'))?;
                let hyphens = [8, 13, 18, 23];
                let fits = |(index, byte): (usize, u8)| {
                    if hyphens.contains(&index) {
                        byte == b'-'
                    } else {
                        byte.is_ascii_hexdigit()
                    }
                };
                (bare.len() == 36 && bare.bytes().enumerate().all(fits))
                    .then(|| bare.to_ascii_lowercase())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The `brief` preset: both spellings and either case are one key.
    #[test]
    fn uuids() {
        let one = Some("0f8fad5b-d9cb-469f-a165-70867728950e".to_owned());
        for same in [
            "0f8fad5b-d9cb-469f-a165-70867728950e",
            "\"0f8fad5b-d9cb-469f-a165-70867728950e\"",
            "0F8FAD5B-D9CB-469F-A165-70867728950E",
        ] {
            assert_eq!(IdForm::Uuid.normalise(same), one, "{same}");
        }
        for wrong in [
            "",
            "\"",
            "\"\"",
            "x",
            "0f8fad5bd9cb469fa16570867728950e",
            "\"0f8fad5b-d9cb-469f-a165-70867728950e",
            "0f8fad5b-d9cb-469f-a165-70867728950e\"",
            "{0f8fad5b-d9cb-469f-a165-70867728950e}",
            "0f8fad5b-d9cb-469f-a165-70867728950g",
            "0f8fad5b-d9cb-469f-a165-70867728950é",
            "0f8fad5b-d9cb-469f-a165-70867728950e;a=1",
        ] {
            assert_eq!(IdForm::Uuid.normalise(wrong), None, "{wrong}");
        }
    }
}
