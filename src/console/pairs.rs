//! Names and values, of a query or of a form.

/// In the order in which they came.
#[derive(Clone, Debug, Default)]
pub(super) struct Pairs(Vec<(String, String)>);

impl Pairs {
    pub(super) fn parse(bytes: &[u8]) -> Self {
        Self(form_urlencoded::parse(bytes).into_owned().collect())
    }

    pub(super) fn has_nul(&self) -> bool {
        self.0.iter().any(|(_, value)| value.contains('\0'))
    }

    /// The first value of this name that is not empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    pub(super) fn all<'a, 'n>(
        &'a self,
        name: &'n str,
    ) -> impl Iterator<Item = &'a str> + use<'a, 'n> {
        self.0
            .iter()
            .filter(move |(key, value)| key == name && !value.is_empty())
            .map(|(_, value)| value.as_str())
    }
}

/// A path with a query; empty values are left out.
pub(super) fn link(base: &str, path: &str, query: &[(&str, &str)]) -> String {
    let path = match (base, path) {
        ("", path) => path,
        // Where the console is nested, its first page is the prefix itself.
        (_, "/") => "",
        (_, path) => path,
    };
    let mut link = format!("{base}{path}");
    let query: Vec<_> = query
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .collect();
    if !query.is_empty() {
        let mut pairs = form_urlencoded::Serializer::new(String::new());
        for (name, value) in query {
            pairs.append_pair(name, value);
        }
        link.push('?');
        link.push_str(&pairs.finish());
    }
    link
}
