//! A producer of the seeds and the time that it shares with the receiver: an hour of backoff is over at once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use fastrand::Rng;
use http::{HeaderMap, Request};
use tower_inbox::Source;
use tower_inbox::clock::Clock as _;

use crate::db::TestDb;
use crate::kit::{Reply, SOURCE, Setup, TestClock, World, seeded};
use crate::shared::plan::{Event, Plan, Traffic};
use crate::shared::preset::{Attempt, Preset};
use crate::shared::schedule::{Answer, Ending, Next, Retries, Schedule};
use crate::shared::sign::Signer;

const SECRET: &str = "the-seeds-secret";

/// What becomes of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// There and back.
    Through,
    /// The receiver is away.
    Down,
    /// It arrives, and its answer does not.
    AnswerLost,
}

/// One producer.
pub(super) struct Producer {
    preset: Preset,
    schedule: &'static Schedule,
    pub(super) signer: Signer,
    pub(super) clock: TestClock,
    pub(super) rng: Rng,
}

/// One attempt, as the producer's log has it.
#[derive(Debug)]
pub(super) struct Sent {
    /// Since the first attempt.
    pub(super) at: Duration,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// What came back, whether the producer saw it or not.
    pub(super) reply: Option<Reply>,
}

/// All attempts of one event.
#[derive(Debug, Default)]
pub(super) struct Story {
    pub(super) sent: Vec<Sent>,
    pub(super) verdict: Option<Ending>,
}

impl Story {
    /// Demands this end, after so many attempts.
    #[track_caller]
    pub(super) fn ends(&self, verdict: Ending, attempts: usize) -> &Self {
        let is = (self.verdict, self.sent.len());
        assert_eq!(is, (Some(verdict), attempts), "{self:?}");
        self
    }

    /// The statuses of the answers, 0 where there was none.
    pub(super) fn statuses(&self) -> Vec<u16> {
        let status = |sent: &Sent| sent.reply.as_ref().map_or(0, |reply| reply.status);
        self.sent.iter().map(status).collect()
    }

    /// The values of a header, one for each attempt that has it.
    pub(super) fn header(&self, name: &str) -> Vec<&str> {
        let values = self.sent.iter().filter_map(|sent| sent.headers.get(name));
        values.map(|value| value.to_str().expect("text")).collect()
    }

    pub(super) fn last(&self) -> &Reply {
        let last = self.sent.last().expect("an attempt");
        last.reply.as_ref().expect("an answer")
    }
}

impl Producer {
    pub(super) fn new(preset: Preset) -> Self {
        Self {
            preset,
            schedule: Schedule::named(preset.name()).expect("a seed's producer"),
            signer: Signer::new(preset, &[SECRET.to_owned()]).expect("a secret"),
            clock: TestClock::new().of_the_database_too(),
            rng: seeded(preset.name()),
        }
    }

    /// Its events, over so many accounts; with a sequence if that is asked for.
    pub(super) fn events(&mut self, events: usize, accounts: usize, sequenced: bool) -> Vec<Event> {
        let plan = Plan::new(Traffic {
            seed: self.rng.u64(..),
            events,
            accounts,
            sequenced,
            uuids: self.preset.uuids(),
            duplicates: 0.0,
            reorder: 0,
        });
        plan.events
    }

    /// One event, without a place in any order.
    pub(super) fn event(&mut self) -> Event {
        self.events(1, 1, false).remove(0)
    }

    /// Its source at the receiver.
    pub(super) fn source(&self) -> Source {
        Source::new(SOURCE, *self.preset.row()).secrets([SECRET])
    }

    /// A receiver that shares its time.
    pub(super) fn receiver<D: TestDb>(&self, db: &D) -> Setup<D> {
        let (source, clock) = (self.source(), self.clock.clone());
        World::<D>::over(db)
            .source(|_| source)
            .inbox(|inbox| inbox.clock(clock))
    }

    /// Its body, the same in every attempt.
    pub(super) fn body(&self, event: &Event) -> Bytes {
        self.preset.body(event).into()
    }

    /// The headers of an attempt that is made now, for this body.
    pub(super) fn headers(&self, event: &Event, body: &[u8], number: u32) -> HeaderMap {
        let attempt = Attempt {
            number,
            first_sent: self.now(),
            now: self.now(),
        };
        self.preset.headers(event, body, attempt, &self.signer)
    }

    /// One attempt, made now.
    pub(super) async fn send<D: TestDb>(&self, world: &World<D>, event: &Event) -> Reply {
        let body = self.body(event);
        let headers = self.headers(event, &body, 1);
        world.post(request(headers, body)).await
    }

    /// Sends an event until the producer is done with it.
    pub(super) async fn deliver<D: TestDb>(
        &mut self,
        world: &World<D>,
        event: &Event,
        way: impl FnMut(&Event, u32, Duration) -> Way,
    ) -> Story {
        let mut stories = self.run(world, std::slice::from_ref(event), way).await;
        stories.remove(0)
    }

    /// Sends all of them at once, in this order, and each until the producer is done with it. `way` is asked for every
    /// attempt: which one of its event it is, from 1, and how long after the first one.
    pub(super) async fn run<D: TestDb>(
        &mut self,
        world: &World<D>,
        events: &[Event],
        way: impl FnMut(&Event, u32, Duration) -> Way,
    ) -> Vec<Story> {
        self.run_over(std::slice::from_ref(world), events, way)
            .await
    }

    /// The same to several receivers behind one address: each attempt goes to another one.
    pub(super) async fn run_over<D: TestDb>(
        &mut self,
        worlds: &[World<D>],
        events: &[Event],
        mut way: impl FnMut(&Event, u32, Duration) -> Way,
    ) -> Vec<Story> {
        let mut next = worlds.iter().cycle();
        let first_sent = self.now();
        let mut now = Duration::ZERO;
        let mut stories: Vec<Story> = events.iter().map(|_| Story::default()).collect();
        let mut retries = vec![Retries::default(); events.len()];
        let mut due: BinaryHeap<_> = (0..events.len())
            .map(|index| Reverse((Duration::ZERO, index)))
            .collect();
        while let Some(Reverse((at, index))) = due.pop() {
            self.clock.advance(at - now);
            now = at;
            let (event, story) = (&events[index], &mut stories[index]);
            let number = u32::try_from(story.sent.len()).expect("few") + 1;
            let attempt = Attempt {
                number,
                first_sent,
                now: self.now(),
            };
            let body = self.body(event);
            let headers = self.preset.headers(event, &body, attempt, &self.signer);
            let way = way(event, number, at);
            let reply = match way {
                Way::Down => None,
                Way::Through | Way::AnswerLost => {
                    let world = next.next().expect("a receiver");
                    Some(world.post(request(headers.clone(), body.clone())).await)
                }
            };
            let seen = match &reply {
                Some(reply) if way == Way::Through => seen(reply),
                _ => Answer::Nothing,
            };
            story.sent.push(Sent {
                at,
                headers,
                body,
                reply,
            });
            match self
                .schedule
                .next(&mut retries[index], &seen, &mut self.rng)
            {
                Next::Again(pause) => due.push(Reverse((at + pause, index))),
                Next::Done(verdict) => story.verdict = Some(verdict),
            }
        }
        stories
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().as_micros()).expect("after 1970") / 1_000_000
    }
}

pub(super) fn request(headers: HeaderMap, body: Bytes) -> Request<Body> {
    let mut request = Request::post("/hooks/acme")
        .body(Body::from(body))
        .expect("a request");
    *request.headers_mut() = headers;
    request
}

/// An answer, as far as a producer looks at it.
pub(super) fn seen(reply: &Reply) -> Answer {
    Answer::Status {
        status: reply.status,
        retry_after: reply.retry_after(),
        outcome: Some(reply.outcome().to_owned()),
    }
}

/// The answers of the ledger's handler: on its first run of an event the status in the event's amount, then 204.
pub(super) fn status_in_amount<D: TestDb>(setup: Setup<D>) -> Setup<D> {
    setup.answers(|call| match call.run {
        1 => u16::try_from(call.entry().amount).expect("a status"),
        _ => 0,
    })
}

/// Its pauses when nothing ever answers.
pub(super) fn pauses(name: &str, rng: &mut Rng) -> Vec<Duration> {
    let schedule = Schedule::named(name).expect("a seed's producer");
    let mut retries = Retries::default();
    let mut pauses = Vec::new();
    while let Next::Again(pause) = schedule.next(&mut retries, &Answer::Nothing, rng) {
        pauses.push(pause);
    }
    pauses
}
