//! A run of a simulated producer, from its first attempt to its last.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::Location;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::attempt::Attempting;
use super::event::Event;
use super::network::Sending;
use super::producer::{Producer, Settings};
use super::schedule::{Answer, Ending, Next, Retries, Schedule, scaled};
use super::story::Story;
use crate::clock::Timestamp;
use crate::preset::Reaction;

/// A run of some events.
struct Run<'e> {
    events: &'e [Event],
    replay: bool,
    retries: Vec<Retries>,
    numbers: Vec<u32>,
    endings: Vec<Option<Ending>>,
    /// When, in which order among those of the same time, and which event.
    due: BinaryHeap<Reverse<(Duration, usize, usize)>>,
    start: Timestamp,
    began: Instant,
    elapsed: Duration,
}

impl Producer {
    pub(super) async fn run_all(
        &self,
        events: &[Event],
        caller: &'static Location<'static>,
        replay: bool,
    ) -> Vec<Story> {
        let mut run = self.begin(events, replay);
        while let Some(Reverse((at, ..))) = run.due.peek() {
            let at = *at;
            self.wait(&mut run, at, caller).await;
            if self.make(&mut run, at, caller).await {
                // It asked never to be called again.
                break;
            }
        }
        if self.ground.is_here() {
            self.ground.settled(caller).await;
        }
        let mut stories = Vec::with_capacity(events.len());
        for (event, ending) in events.iter().zip(&run.endings) {
            self.ground.log().ended(event.id(), *ending);
            stories.push(self.ground.story(event.id()).await);
        }
        stories
    }

    fn begin<'e>(&self, events: &'e [Event], replay: bool) -> Run<'e> {
        let mut settings = self.settings();
        let network = Arc::clone(&settings.network);
        let network = network.lock().unwrap_or_else(PoisonError::into_inner);
        let order = network.order(events.len(), &mut settings.rng);
        let is_left_out = |event: &Event| network.left_out.iter().any(|id| id == event.id());
        for event in events.iter().filter(|event| is_left_out(event)) {
            self.ground.log().left_out(event.id(), &self.ground.time());
        }
        let sent = order
            .into_iter()
            .filter(|index| !is_left_out(&events[*index]));
        Run {
            events,
            replay,
            retries: vec![Retries::default(); events.len()],
            numbers: vec![0; events.len()],
            endings: vec![None; events.len()],
            due: sent
                .enumerate()
                .map(|(rank, index)| Reverse((Duration::ZERO, rank, index)))
                .collect(),
            start: self.ground.now(),
            began: Instant::now(),
            elapsed: Duration::ZERO,
        }
    }

    /// Until this time of the run.
    async fn wait(&self, run: &mut Run<'_>, at: Duration, caller: &'static Location<'static>) {
        if at <= run.elapsed {
            return;
        }
        run.elapsed = at;
        if self.ground.movable().is_some() {
            self.ground.passed(run.start.plus(at), caller).await;
            return;
        }
        let scale = {
            let settings = self.settings();
            settings.socket.as_ref().map(|_| settings.time_scale)
        };
        if let Some(scale) = scale {
            sleep_until(run.began + scaled(at, scale)).await;
        }
    }

    /// Makes the attempts that are due, as many at once as it may. True if the receiver wants no more of them.
    async fn make(
        &self,
        run: &mut Run<'_>,
        at: Duration,
        caller: &'static Location<'static>,
    ) -> bool {
        let most = self.settings().concurrency;
        let mut attempts = JoinSet::new();
        let mut made = Vec::new();
        while made.len() < most
            && let Some(Reverse((due, rank, index))) = run.due.peek().copied()
            && due <= at
        {
            run.due.pop();
            run.numbers[index] += 1;
            let attempt = self.attempting(run, index, at);
            let place = made.len();
            made.push((rank, index, Answer::Nothing));
            attempts.spawn(async move { (place, attempt.make().await) });
        }
        while let Some(ended) = attempts.join_next().await {
            match ended {
                Ok((place, answer)) => made[place].2 = answer,
                // Of a request that cannot be signed, say.
                Err(error) => match error.into_panic().downcast::<String>() {
                    Ok(text) => panic!("{text} (in a run from {caller})"),
                    Err(other) => std::panic::resume_unwind(other),
                },
            }
        }
        let mut paused = false;
        for (rank, index, answer) in made {
            match self.judge(&mut run.retries[index], &answer) {
                Next::Again(pause) => run.due.push(Reverse((at + pause, rank, index))),
                Next::Done(ending) => {
                    run.endings[index] = Some(ending);
                    paused |= ending == Ending::Paused;
                }
            }
        }
        paused
    }

    fn attempting(&self, run: &Run<'_>, index: usize, at: Duration) -> Attempting {
        let mut settings = self.settings();
        let (event, number) = (&run.events[index], run.numbers[index]);
        let sending = Sending {
            event_id: event.id(),
            attempt: number,
            since_start: at,
            attempts_before: settings.attempts,
        };
        settings.attempts += 1;
        let (network, mut rng) = (Arc::clone(&settings.network), settings.rng.fork());
        drop(settings);
        let mut network = network.lock().unwrap_or_else(PoisonError::into_inner);
        let way = network.way(&sending, &mut rng);
        drop(network);
        let settings = self.settings();
        Attempting {
            ground: Arc::clone(&self.ground),
            socket: settings.socket.clone(),
            signing: settings.signing.clone(),
            event: event.clone(),
            seed: settings.seed,
            number,
            replay: run.replay,
            first_sent_at: run.start,
            patience: settings.preset.patience,
            way,
        }
    }

    /// What the producer does after an answer: by its own schedule's codes, or as its preset has it.
    fn judge(&self, retries: &mut Retries, answer: &Answer) -> Next {
        let mut settings = self.settings();
        let Settings {
            preset,
            schedule,
            rng,
            ..
        } = &mut *settings;
        if Schedule::named(preset.name).is_none()
            && let Answer::Status { status, .. } = answer
        {
            match preset.answers.reaction(*status) {
                Some(Reaction::Delivered) => return Next::Done(Ending::Delivered),
                Some(Reaction::Stops) => return Next::Done(Ending::Refused),
                // Any code that it tries again is one failure like another; what it says of 429 stays.
                Some(Reaction::Retries) if *status != 429 => {
                    return schedule.next(retries, &Answer::Nothing, rng);
                }
                _ => {}
            }
        }
        schedule.next(retries, answer, rng)
    }
}
