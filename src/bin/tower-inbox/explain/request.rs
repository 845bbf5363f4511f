//! A captured request: head and body as they went over the wire.

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

pub(super) struct Captured {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
    /// What is odd about the capture itself.
    pub(super) notes: Vec<String>,
}

impl Captured {
    /// Lines may end with LF alone, as editors make them; the request line may be missing.
    pub(super) fn parse(raw: &[u8]) -> Result<Self, String> {
        let mut captured = Self {
            method: Method::POST,
            uri: Uri::from_static("/"),
            headers: HeaderMap::new(),
            body: Vec::new(),
            notes: Vec::new(),
        };
        let mut rest = raw;
        for number in 1.. {
            let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
                return Err("the request has no empty line between its head and its body".into());
            };
            let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
            rest = &rest[end + 1..];
            if line.is_empty() {
                break;
            }
            captured
                .line(number, line)
                .map_err(|what| format!("line {number} of the request: {what}"))?;
        }
        captured.take_body(rest)?;
        Ok(captured)
    }

    fn line(&mut self, number: usize, line: &[u8]) -> Result<(), String> {
        let colon = line.iter().position(|&byte| byte == b':');
        let name = colon.map(|colon| &line[..colon]);
        if number == 1 && name.is_none_or(|name| name.contains(&b' ')) {
            return self.request_line(line);
        }
        let (Some(colon), Some(name)) = (colon, name) else {
            return Err("no header".into());
        };
        let name = HeaderName::from_bytes(name).map_err(|_| "no header's name")?;
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
        self.headers
            .append(name, value.map_err(|_| "no header's value")?);
        Ok(())
    }

    fn request_line(&mut self, line: &[u8]) -> Result<(), String> {
        let line = std::str::from_utf8(line).map_err(|_| "not UTF-8")?;
        let mut words = line.split(' ');
        let (method, uri, version) = (words.next(), words.next(), words.next());
        match (method, uri, version) {
            (Some(method), _, _) if method.starts_with("HTTP/") => {
                Err("this is a response; the request is wanted".into())
            }
            (Some(method), Some(uri), Some(version)) if version.starts_with("HTTP/") => {
                self.method = method.parse().map_err(|_| "no method")?;
                self.uri = uri.parse().map_err(|_| "no request target")?;
                Ok(())
            }
            _ => Err("neither a request line nor a header".into()),
        }
    }

    fn take_body(&mut self, rest: &[u8]) -> Result<(), String> {
        let chunked = self
            .headers
            .get(TRANSFER_ENCODING)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"chunked"));
        if chunked {
            self.body = match dechunk(rest) {
                Some(body) => body,
                None => {
                    self.notes
                        .push("the head says chunked, and the body is not: taken as it is".into());
                    rest.to_vec()
                }
            };
            return Ok(());
        }
        let length = self.headers.get(CONTENT_LENGTH);
        let length: Option<usize> = length.and_then(|value| value.to_str().ok()?.parse().ok());
        self.body = match length {
            Some(length) if length < rest.len() => {
                let more = rest.len() - length;
                self.notes.push(format!(
                    "{more} bytes after the announced body are left out"
                ));
                rest[..length].to_vec()
            }
            Some(length) if length > rest.len() => {
                let missing = length - rest.len();
                self.notes.push(format!(
                    "the body is {missing} bytes shorter than announced: it was cut or changed"
                ));
                rest.to_vec()
            }
            _ => rest.to_vec(),
        };
        Ok(())
    }
}

fn dechunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.iter().position(|&byte| byte == b'\n')?;
        let line = std::str::from_utf8(&rest[..end]).ok()?;
        let size = line.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        rest = &rest[end + 1..];
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..size)?);
        rest = &rest[size..];
        rest = rest
            .strip_prefix(b"\r")
            .unwrap_or(rest)
            .strip_prefix(b"\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures() {
        let parse = |raw: &str| Captured::parse(raw.as_bytes());
        let one =
            parse("PUT /hook?a=b HTTP/1.1\r\nX-A: 1\r\nx-a:2\r\nContent-Length: 2\r\n\r\n{}\n")
                .unwrap();
        assert_eq!((one.method.as_str(), one.uri.path()), ("PUT", "/hook"));
        assert_eq!(one.headers.get_all("x-a").iter().count(), 2);
        assert_eq!((&*one.body, one.notes.len()), (&b"{}"[..], 1));
        let bare = parse("X-A: 1\n\n{}\n").unwrap();
        assert_eq!((&*bare.body, bare.notes.len()), (&b"{}\n"[..], 0));
        let chunked = parse(
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
        );
        assert_eq!(chunked.unwrap().body, b"abcde");
        assert_eq!(parse("Content-Length: 9\n\nabc").unwrap().notes.len(), 1);
        for wrong in [
            "",
            "POST / HTTP/1.1\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "hello\n\n",
            "A: 1\nb\n\n",
            "A: 1\n(: 2\n\n",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
