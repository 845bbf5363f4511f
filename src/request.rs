//! A request as the handler sees it: the same live and drained (§5.3).

use std::ops::Deref;
use std::sync::OnceLock;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Uri};

use crate::store::StoredRequest;
use crate::trace::{STORED_BY, StoredBy};

/// Credentials of whoever called, which a handler does not need and a table must not keep.
const CREDENTIALS: [HeaderName; 3] = [
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::COOKIE,
];

/// About the one connection that a request came over (RFC 9110, 7.6.1), and its framing, which is gone once the body
/// has been read whole.
const HOP_BY_HOP: [HeaderName; 6] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Removes what a drained request could not have: signatures, credentials and hop-by-hop headers. `keep` names the
/// ones that stay all the same.
pub(crate) fn strip(headers: &mut HeaderMap, signatures: &[HeaderName], keep: &[HeaderName]) {
    let named_by_connection: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // A sender must not be able to take away what the mapping or the handler reads.
        .filter(|name: &HeaderName| *name != header::CONTENT_TYPE && *name != header::HOST)
        .collect();
    for name in signatures
        .iter()
        .chain(&CREDENTIALS)
        .chain(&HOP_BY_HOP)
        .chain(&named_by_connection)
    {
        if !keep.contains(name) {
            headers.remove(name);
        }
    }
    // Our own, in what is stored.
    headers.remove(STORED_BY);
}

/// A request in the form that is stored, which few are: it is made when it is needed.
pub(crate) enum Stored<'a> {
    Already(&'a StoredRequest),
    Of(&'a Request<Bytes>, OnceLock<StoredRequest>),
}

impl<'a> Stored<'a> {
    pub(crate) fn of(request: &'a Request<Bytes>) -> Self {
        Self::Of(request, OnceLock::new())
    }
}

impl Deref for Stored<'_> {
    type Target = StoredRequest;

    fn deref(&self) -> &StoredRequest {
        match self {
            Self::Already(stored) => stored,
            Self::Of(request, stored) => stored.get_or_init(|| store(request)),
        }
    }
}

/// The form that is stored. Header values are bytes and stay bytes; they can hold neither CR nor LF.
fn store(request: &Request<Bytes>) -> StoredRequest {
    let headers = match request.extensions().get::<StoredBy>() {
        None => lines_of(request.headers()),
        Some(by) => {
            let mut headers = request.headers().clone();
            headers.extend(HeaderValue::try_from(by.value()).map(|by| (STORED_BY, by)));
            lines_of(&headers)
        }
    };
    StoredRequest {
        method: request.method().as_str().to_owned(),
        uri: request.uri().to_string(),
        headers,
        body: request.body().clone(),
    }
}

/// `name: value` lines.
pub(crate) fn lines_of(headers: &HeaderMap) -> Bytes {
    let mut lines = Vec::with_capacity(headers.len() * 32);
    for (name, value) in headers {
        lines.extend_from_slice(name.as_str().as_bytes());
        lines.extend_from_slice(b": ");
        lines.extend_from_slice(value.as_bytes());
        lines.extend_from_slice(b"\r\n");
    }
    lines.into()
}

/// The headers again, or nothing if they are damaged.
pub(crate) fn headers_of(lines: &[u8]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    let mut rest = lines;
    while !rest.is_empty() {
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let colon = rest[..end].iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&rest[..colon]).ok()?;
        let value = HeaderValue::from_bytes(rest.get(colon + 2..end)?).ok()?;
        headers.append(name, value);
        rest = &rest[end + 2..];
    }
    Some(headers)
}

/// The request again, or nothing if the row is damaged.
pub(crate) fn restore(stored: &StoredRequest) -> Option<Request<Bytes>> {
    let mut request = Request::new(stored.body.clone());
    *request.method_mut() = Method::from_bytes(stored.method.as_bytes()).ok()?;
    *request.uri_mut() = stored.uri.parse::<Uri>().ok()?;
    let mut headers = headers_of(&stored.headers)?;
    if let Some(by) = StoredBy::take(&mut headers) {
        request.extensions_mut().insert(by);
    }
    *request.headers_mut() = headers;
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §5.3
    #[test]
    fn a_stored_request_comes_back_byte_for_byte() {
        let mut request = Request::new(Bytes::from_static(b"\0\xff{}"));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = "/hooks/a%20b?x=1&y=%C3%A9".parse().unwrap();
        let headers = request.headers_mut();
        headers.append("x-twice", HeaderValue::from_static("one: two"));
        headers.append("x-twice", HeaderValue::from_static(""));
        headers.append("x-bytes", HeaderValue::from_bytes(b"\xe9\x80").unwrap());
        let again = restore(&store(&request)).expect("readable");
        assert_eq!(again.headers(), request.headers());
        assert_eq!(again.uri(), request.uri());
        assert_eq!(again.method(), request.method());
        assert_eq!(again.body(), request.body());
    }

    /// §5.3, (traces)
    #[test]
    fn who_stored_a_request_is_kept_beside_its_headers_and_nobody_else_says_so() {
        const BY: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let mut forged = HeaderMap::new();
        forged.insert(STORED_BY, HeaderValue::from_static(BY));
        let by = StoredBy::take(&mut forged.clone()).expect("it is one");
        strip(&mut forged, &[], &[STORED_BY]);
        assert!(forged.is_empty());
        let mut request = Request::new(Bytes::new());
        request
            .headers_mut()
            .insert(header::HOST, HeaderValue::from_static("h"));
        assert!(restore(&store(&request)).unwrap().extensions().is_empty());
        request.extensions_mut().insert(by);
        let again = restore(&store(&request)).expect("readable");
        assert_eq!(again.headers(), request.headers());
        assert_eq!(again.extensions().get(), Some(&by));
    }

    /// §5.3
    #[test]
    fn a_damaged_row_is_nothing_rather_than_a_panic() {
        for headers in [&b"a"[..], b"a:", b"a\r\n", b"a:\r\n", b": \r\n", b"a: b"] {
            let stored = StoredRequest {
                method: "POST".into(),
                uri: "/".into(),
                headers: Bytes::copy_from_slice(headers),
                body: Bytes::new(),
            };
            assert!(restore(&stored).is_none(), "{headers:?}");
        }
    }

    /// §5.3
    #[test]
    fn signatures_credentials_and_hop_by_hop_headers_go_unless_kept() {
        let mut headers = HeaderMap::new();
        for name in [
            "x-sig",
            "authorization",
            "cookie",
            "transfer-encoding",
            "x-hop",
            "x-app",
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static("v"));
        }
        headers.insert(header::CONNECTION, HeaderValue::from_static("close, x-hop"));
        strip(
            &mut headers,
            &[HeaderName::from_static("x-sig")],
            &[header::COOKIE],
        );
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["cookie", "x-app"]);
    }
}
