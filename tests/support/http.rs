//! HTTP/1.1 by hand, one connection a request: what is sent is exactly what a test says.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longer than any answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(key, _)| key == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} is there more than once");
        value
    }

    pub(crate) fn outcome(&self) -> &str {
        self.header("inbox-outcome").unwrap_or("none")
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// Status and outcome, checked together.
    #[track_caller]
    pub(crate) fn is(&self, status: u16, outcome: &str) -> &Self {
        assert_eq!(
            (self.status, self.outcome()),
            (status, outcome),
            "{self:?}, {}",
            self.text()
        );
        self
    }

    /// RFC 9457, as the inbox itself answers.
    #[track_caller]
    pub(crate) fn is_problem(&self) -> &Self {
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json"),
            "{self:?}"
        );
        let body = self.json();
        assert_eq!(body["status"], self.status, "{body}");
        assert_eq!(body["type"], "about:blank", "{body}");
        assert!(body["title"].is_string(), "{body}");
        self
    }

    #[track_caller]
    pub(crate) fn says_when_to_retry(&self) -> &Self {
        let seconds = self
            .header("retry-after")
            .and_then(|value| value.parse::<u64>().ok());
        assert!(seconds.is_some_and(|seconds| seconds >= 1), "{self:?}");
        self
    }
}

/// A request's text: headers as given, and a `Content-Length` if it has a body.
pub(crate) fn request(
    method: &str,
    path: &str,
    headers: &[(String, String)],
    body: &[u8],
) -> Vec<u8> {
    let mut head = head(method, path, headers);
    if !body.is_empty() || method == "POST" {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// The first lines, without the empty one at their end.
pub(crate) fn head(method: &str, path: &str, headers: &[(String, String)]) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: receiver\r\nconnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head
}

/// Sends bytes and leaves the connection open.
pub(crate) fn open(to: SocketAddr, bytes: &[u8]) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    stream.write_all(bytes)?;
    Ok(stream)
}

/// Sends bytes and reads the answer.
pub(crate) fn exchange(to: SocketAddr, bytes: &[u8]) -> io::Result<Response> {
    answer(&mut open(to, bytes)?)
}

/// Reads one answer, to its end.
pub(crate) fn answer(stream: &mut TcpStream) -> io::Result<Response> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        if let Some(response) = parse(&bytes) {
            return Ok(response);
        }
        match stream.read(&mut buffer)? {
            0 => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "no whole answer",
                ));
            }
            read => bytes.extend_from_slice(&buffer[..read]),
        }
    }
}

/// None while something is missing. Every answer of the receiver has a length.
fn parse(bytes: &[u8]) -> Option<Response> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).expect("a head in ASCII");
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().expect("a status");
    let headers: Vec<(String, String)> = lines
        .map(|line| {
            let (name, value) = line.split_once(':').expect("a header");
            (name.to_ascii_lowercase(), value.trim().to_owned())
        })
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(0, |(_, value)| value.parse().expect("a length"));
    let body = bytes[end + 4..].to_vec();
    (body.len() >= length).then_some(Response {
        status,
        headers,
        body,
    })
}
