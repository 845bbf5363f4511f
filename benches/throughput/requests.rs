//! Requests as they go over the wire, signed and rendered before the clock starts.

use tower_inbox::clock::Timestamp;
use tower_inbox::verify::Signer;
use tower_inbox::{Preset, Secret};

pub(crate) const SECRET: &str = "a secret of the bench";
/// Bytes of a body.
pub(crate) const BODY: usize = 1_024;

/// What a side is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Feed {
    /// Every event is new, and of no stream.
    Unique,
    /// So many events that were applied before, again and again.
    Known(usize),
    /// So many streams in turns, each in the order of its sequences.
    Ordered(u64),
    /// Every event is new, and its stream's first one never comes: a hundred in each.
    Behind,
}

/// Requests one behind the other in one piece of memory.
pub(crate) struct Requests {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// Begin again at the end, where the same events may be sent again.
    pub(crate) again: bool,
    /// The status that each is answered with.
    pub(crate) expected: u16,
    /// One that an ordered one may be answered with besides: it came before its predecessor.
    pub(crate) early: Option<u16>,
    /// There may be too much load: 408 and 429 are expected besides, and may come before the request is read.
    pub(crate) refused: bool,
    /// Each waits for the one before it.
    pub(crate) one_stream: bool,
}

impl Requests {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn get(&self, index: usize) -> &[u8] {
        let from = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[from..self.ends[index]]
    }
}

/// Makes the requests of one side.
pub(crate) struct Mint {
    signer: Signer,
    ids: fastrand::Rng,
    known: Vec<u128>,
    /// How many of an ordered feed are sent; what was only rendered comes again.
    sent: u64,
    body: usize,
}

impl Mint {
    pub(crate) fn new(seed: u64, body: usize) -> Self {
        let secret = Secret::text(SECRET).expect("a secret");
        Self {
            signer: Signer::new(&Preset::KUDOS.scheme(), [secret]).expect("a signer"),
            ids: fastrand::Rng::with_seed(seed),
            known: Vec::new(),
            sent: 0,
            body,
        }
    }

    /// The events that [`Feed::Known`] sends, for the first time.
    pub(crate) fn first(&mut self, events: usize) -> Requests {
        self.known = (0..events).map(|_| self.ids.u128(..)).collect();
        let ids = self.known.clone();
        self.render(ids.into_iter().map(|id| (id, None)), false, 204)
    }

    /// At most so many requests; fewer where they are sent again.
    pub(crate) fn make(&mut self, feed: Feed, most: usize, applied: u16, known: u16) -> Requests {
        match feed {
            Feed::Unique => {
                let ids: Vec<u128> = (0..most).map(|_| self.ids.u128(..)).collect();
                self.render(ids.into_iter().map(|id| (id, None)), false, applied)
            }
            Feed::Known(events) => {
                if self.known.is_empty() {
                    self.known = (0..events).map(|_| self.ids.u128(..)).collect();
                }
                let ids = self.known.clone();
                self.render(ids.into_iter().map(|id| (id, None)), true, known)
            }
            Feed::Behind => {
                let events =
                    (0..most as u64).map(|n| (u128::from(n), Some((n / 100, n % 100 + 2))));
                self.render(events, false, applied)
            }
            Feed::Ordered(streams) => {
                let from = self.sent;
                let events = (from..from + most as u64)
                    .map(|n| (u128::from(n), Some((n % streams, n / streams + 1))));
                let mut requests = self.render(events, false, applied);
                requests.early = Some(202);
                requests.one_stream = streams == 1;
                requests
            }
        }
    }

    /// So many of what was made were sent.
    pub(crate) fn sent(&mut self, events: u64) {
        self.sent += events;
    }

    fn render(
        &self,
        events: impl Iterator<Item = (u128, Option<(u64, u64)>)>,
        again: bool,
        expected: u16,
    ) -> Requests {
        use std::fmt::Write as _;
        let (mut bytes, mut ends, mut body) = (Vec::new(), Vec::new(), String::new());
        for (id, place) in events {
            body.clear();
            let _ = write!(
                body,
                r#"{{"event_id":"evt_{id:032x}","event_type":"payment.succeeded""#
            );
            if let Some((stream, sequence)) = place {
                let _ = write!(
                    body,
                    r#","correlation_id":"acct-{stream}","sequence":{sequence}"#
                );
            }
            body.push_str(r#","data":{"account":"acct-7","amount":250,"note":""#);
            // A pad of few different bytes is as good as any: nobody compresses.
            while body.len() + 3 < self.body {
                body.push('x');
            }
            body.push_str("\"}}");
            let signed = self
                .signer
                .sign(Timestamp::now(), None, body.as_bytes())
                .expect("signed");
            bytes.extend_from_slice(
                b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n",
            );
            for (name, value) in &signed {
                bytes.extend_from_slice(name.as_str().as_bytes());
                bytes.extend_from_slice(b": ");
                bytes.extend_from_slice(value.as_bytes());
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
            bytes.extend_from_slice(body.as_bytes());
            ends.push(bytes.len());
        }
        Requests {
            bytes,
            ends,
            again,
            expected,
            early: None,
            refused: false,
            one_stream: false,
        }
    }
}
