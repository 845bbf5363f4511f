//! The load: connections that are kept alive, each with one request under way, on one thread. Of an answer no more is read
//! than its status and its length.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::LocalSet;

use crate::gate::Gate;
use crate::pace::Pace;
use crate::process::Meter;
use crate::requests::Requests;

/// Connections begin one after the other, so that an ordered feed does not begin out of order.
const STAGGER: Duration = Duration::from_micros(500);

/// Connections of an open loop: more than ever wait for an answer, unless the side does not keep up.
const OPEN: usize = 256;

/// What one side did in its turn.
pub(crate) struct Slice {
    /// Answers as expected, in the time that counts.
    pub(crate) done: u64,
    pub(crate) took: Duration,
    /// Of these, events that came before their predecessor.
    pub(crate) early: u64,
    /// CPU seconds in that time, in the order of the meters.
    pub(crate) cpu: Vec<f64>,
    /// Microseconds from the first byte written (in an open loop: from when that was due) to the last one read, ascending.
    pub(crate) latencies: Vec<u32>,
    /// Requests sent, before the time that counts and after it too.
    pub(crate) sent: u64,
    /// Bytes that PostgreSQL has written to its log meanwhile.
    pub(crate) logged: Option<u64>,
}

impl Slice {
    pub(crate) fn rate(&self) -> f64 {
        self.done as f64 / self.took.as_secs_f64()
    }

    /// Microseconds.
    pub(crate) fn percentile(&self, percent: usize) -> u32 {
        let at = (self.latencies.len() * percent / 100).min(self.latencies.len().max(1) - 1);
        self.latencies.get(at).copied().unwrap_or(0)
    }
}

/// What all connections share.
struct Run {
    requests: Requests,
    gate: Option<Gate>,
    pace: Option<Pace>,
    next: Cell<usize>,
    counts: Cell<bool>,
    over: Cell<bool>,
    ended: Notify,
    early: Cell<u64>,
    latencies: RefCell<Vec<u32>>,
    failed: RefCell<Option<String>>,
}

impl Run {
    /// The next request, or None at the end of the run.
    fn next(&self) -> Option<usize> {
        if self.over.get() {
            return None;
        }
        let next = self.next.get();
        if next >= self.requests.len() && !self.requests.again {
            self.ended.notify_one();
            return None;
        }
        self.next.set(next + 1);
        Some(next % self.requests.len())
    }

    fn count(&self, from: Instant, early: bool) {
        if !self.counts.get() {
            return;
        }
        let took = from.elapsed().as_micros();
        self.latencies
            .borrow_mut()
            .push(u32::try_from(took).unwrap_or(u32::MAX));
        if early {
            self.early.set(self.early.get() + 1);
        }
    }

    fn fail(&self, why: String) {
        self.failed.borrow_mut().get_or_insert(why);
        self.over.set(true);
        self.ended.notify_one();
    }
}

/// A closed loop: each connection has the next request as soon as it has an answer. Sends for `warm`, then for `slice`, which counts; or until there is nothing to send any more.
///
/// # Errors
/// What was answered, if it was not as expected.
pub(crate) async fn closed(
    port: u16,
    requests: Requests,
    connections: usize,
    times: (Duration, Duration),
    meters: &[Meter],
) -> Result<Slice, String> {
    load(port, requests, (connections, None), times, meters).await
}

/// An open loop: so many requests a second.
///
/// # Errors
/// As [`closed`].
pub(crate) async fn open(
    port: u16,
    requests: Requests,
    rate: f64,
    times: (Duration, Duration),
    meters: &[Meter],
) -> Result<Slice, String> {
    load(port, requests, (OPEN, Some(rate)), times, meters).await
}

async fn load(
    port: u16,
    requests: Requests,
    (connections, rate): (usize, Option<f64>),
    (warm, slice): (Duration, Duration),
    meters: &[Meter],
) -> Result<Slice, String> {
    let run = Rc::new(Run {
        gate: requests.one_stream.then(Gate::default),
        pace: rate.map(Pace::new),
        requests,
        next: Cell::new(0),
        counts: Cell::new(warm.is_zero()),
        over: Cell::new(false),
        ended: Notify::new(),
        early: Cell::new(0),
        latencies: RefCell::new(Vec::new()),
        failed: RefCell::new(None),
    });
    LocalSet::new()
        .run_until(async {
            let mut running = Vec::new();
            for _ in 0..connections {
                let stream = TcpStream::connect(("127.0.0.1", port))
                    .await
                    .map_err(|error| error.to_string())?;
                let run = Rc::clone(&run);
                running.push(tokio::task::spawn_local(async move {
                    let mut ended = one(&run, stream).await;
                    // Refused while the body was still on its way: what is left of it ends the connection.
                    while run.requests.refused && ended.is_err() {
                        run.count(Instant::now(), true);
                        ended = match TcpStream::connect(("127.0.0.1", port)).await {
                            Ok(stream) => one(&run, stream).await,
                            Err(error) => Err(error),
                        };
                    }
                    if let Err(error) = ended {
                        run.fail(format!("a connection: {error}"));
                    }
                }));
                tokio::time::sleep(STAGGER).await;
            }
            let pacing = Rc::clone(&run);
            tokio::task::spawn_local(async move {
                if let Some(pace) = &pacing.pace {
                    pace.run().await;
                }
            });
            tokio::select! {
                () = tokio::time::sleep(warm) => {}
                () = run.ended.notified() => run.ended.notify_one(),
            }
            let before: Vec<f64> = meters.iter().map(Meter::seconds).collect();
            run.counts.set(true);
            let from = Instant::now();
            tokio::select! {
                () = tokio::time::sleep(slice) => {}
                () = run.ended.notified() => {}
            }
            let took = from.elapsed();
            run.counts.set(false);
            run.over.set(true);
            if let Some(pace) = &run.pace {
                pace.end();
            }
            let cpu = meters.iter().zip(before);
            let cpu = cpu
                .map(|(meter, before)| meter.seconds() - before)
                .collect();
            // What is under way is waited for, so that all that was sent is decided; after a failure it is not.
            let answered = async {
                // Bodies that a receiver no longer reads take until its own patience ends.
                for task in running.into_iter().filter(|_| !run.requests.refused) {
                    task.await.map_err(|error| error.to_string())?;
                }
                Ok::<(), String>(())
            };
            let failed = async {
                while run.failed.borrow().is_none() {
                    run.ended.notified().await;
                }
            };
            tokio::select! {
                answered = answered => answered?,
                () = failed => {}
            }
            if let Some(why) = run.failed.borrow_mut().take() {
                return Err(why);
            }
            let mut latencies = run.latencies.take();
            latencies.sort_unstable();
            Ok(Slice {
                done: latencies.len() as u64,
                took,
                early: run.early.get(),
                cpu,
                latencies,
                sent: run.next.get() as u64,
                logged: None,
            })
        })
        .await
}

/// One connection. Which request is next is decided as it is written, so that the order of an ordered feed is kept.
async fn one(run: &Run, mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut answer = Vec::with_capacity(4_096);
    if let Some(gate) = &run.gate {
        gate.enter().await;
    }
    loop {
        if let Some(gate) = &run.gate {
            gate.pass().await;
        }
        let mut due = None;
        if let Some(pace) = &run.pace {
            due = pace.next().await;
            if due.is_none() {
                return Ok(());
            }
        }
        let Some(index) = run.next() else {
            return Ok(());
        };
        if let Some(gate) = &run.gate {
            gate.sent();
        }
        let from = due.unwrap_or_else(Instant::now);
        stream.write_all(run.requests.get(index)).await?;
        let mut status = read(&mut stream, &mut answer).await?;
        let early = Some(status) == run.requests.early
            || run.requests.refused && matches!(status, 408 | 429);
        if let (true, Some(gate)) = (early, &run.gate) {
            gate.early(index).await;
            // Whoever stored it may be applying it just now.
            while Some(status) == run.requests.early && run.failed.borrow().is_none() {
                stream.write_all(run.requests.get(index)).await?;
                status = read(&mut stream, &mut answer).await?;
            }
        }
        if status != run.requests.expected && !early {
            run.fail(format!(
                "expected {}: {}",
                run.requests.expected,
                String::from_utf8_lossy(&answer)
            ));
            return Ok(());
        }
        if let Some(gate) = &run.gate {
            gate.applied(index);
        }
        run.count(from, early);
    }
}

/// Reads one answer whole, and says its status.
async fn read(stream: &mut TcpStream, answer: &mut Vec<u8>) -> std::io::Result<u16> {
    answer.clear();
    loop {
        if stream.read_buf(answer).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let Some(head) = answer.windows(4).position(|at| at == b"\r\n\r\n") else {
            continue;
        };
        let status = (answer.get(9..12))
            .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok())
            .ok_or(std::io::ErrorKind::InvalidData)?;
        let whole = head + 4 + length(&answer[..head]);
        while answer.len() < whole {
            if stream.read_buf(answer).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        return Ok(status);
    }
}

/// The content's length; 0 where none is said, as with 204.
fn length(head: &[u8]) -> usize {
    const NAME: &[u8] = b"content-length:";
    head.split(|byte| *byte == b'\n')
        .find_map(|line| {
            let (name, value) = line.split_at_checked(NAME.len())?;
            if !name.eq_ignore_ascii_case(NAME) {
                return None;
            }
            std::str::from_utf8(value).ok()?.trim().parse().ok()
        })
        .unwrap_or(0)
}
