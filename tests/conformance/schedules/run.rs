//! One schedule, against the reference and against the real inbox.

use std::fmt::Write;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tower_inbox::operator::Seen;

use super::check::{allowed, differs};
use super::command::{Command, Schedule, Signer};
use super::explore::{Delivery, Node, explore};
use super::process::{Process, Site, Trap, done};
use super::reference::{Answer, Id, Lie, Plan, RETENTION, Reference, stream_name};
use super::tally::Tally;
use crate::db::TestDb;
use crate::kit::TestClock;

/// A schedule on its way.
pub(super) struct Case<'a, D: TestDb> {
    pub(super) site: Site<D>,
    pub(super) process: Option<Process<D>>,
    pub(super) reference: Reference,
    /// What has happened, and what was answered.
    pub(super) history: Vec<String>,
    pub(super) tally: &'a Tally,
    pub(super) patience: Duration,
}

pub(super) type Checked<T = ()> = Result<T, String>;

/// What is the same for all schedules of a test.
pub(super) struct Terms<'a, D: TestDb> {
    pub(super) db: &'a D,
    pub(super) eyes: &'a sqlx::Pool<D::DB>,
    pub(super) tally: &'a Tally,
    pub(super) lie: Option<Lie>,
    /// For the inbox to come to where the reference is.
    pub(super) patience: Duration,
}

/// Runs a schedule. The error says what happened, and what should have.
pub(super) async fn run<D: TestDb>(
    terms: &Terms<'_, D>,
    name: &str,
    schedule: &Schedule,
) -> Checked {
    let site = Site {
        db: terms.db.clone(),
        eyes: terms.eyes.clone(),
        name: name.to_owned(),
        clock: TestClock::new().of_the_database_too(),
        plans: Arc::default(),
        remembers: schedule.remembers,
    };
    let reference = Reference::new(schedule.remembers, terms.lie);
    let mut case = Case {
        process: Some(site.start(&reference.secrets, Trap::None).await),
        site,
        reference,
        history: Vec::new(),
        tally: terms.tally,
        patience: terms.patience,
    };
    for command in &schedule.commands {
        case.tally.command(command.kind());
        let before = case.history.len();
        if let Err(error) = case.step(*command).await {
            let mut told = format!("{error}\nin {command:?}\nso far:\n");
            for line in &case.history {
                let _ = writeln!(told, "  {line}");
            }
            return Err(told);
        }
        if case.history.len() == before {
            case.history.push(format!("{command:?}: nothing to do"));
        }
    }
    case.end().await
}

impl<D: TestDb> Case<'_, D> {
    pub(super) fn process(&self) -> &Process<D> {
        self.process.as_ref().expect("one is at work")
    }

    async fn step(&mut self, command: Command) -> Checked {
        match command {
            Command::Deliver {
                event,
                content,
                signer,
                plan,
            } => {
                let Some(id) = event.of(&self.reference) else {
                    return Ok(());
                };
                self.plan(id, plan);
                let secret = self.secret(signer);
                self.deliver(&[Delivery {
                    id,
                    content,
                    secret,
                }])
                .await
            }
            Command::AtOnce {
                one,
                two,
                content,
                plan,
            } => {
                let two = two.unwrap_or(one);
                let (Some(one), Some(two)) = (one.of(&self.reference), two.of(&self.reference))
                else {
                    return Ok(());
                };
                self.plan(one, plan);
                let secret = self.secret(Signer::Newest);
                let delivery = |id, content| Delivery {
                    id,
                    content,
                    secret,
                };
                self.deliver(&[delivery(one, 1), delivery(two, content)])
                    .await
            }
            Command::Plan { event, plan } => {
                if let Some(id) = event.of(&self.reference) {
                    self.plan(id, Some(plan));
                }
                Ok(())
            }
            Command::Fault { event, at } => self.fault(event, at).await,
            Command::Crash {
                event,
                after,
                again,
            } => self.crash(event, after, again).await,
            Command::Restart => {
                self.process.take().expect("one is at work").stop().await;
                self.reference.restart();
                self.start(Trap::None).await;
                self.at_rest("restart".to_owned()).await
            }
            Command::Rotate => {
                let got = self
                    .process()
                    .rotate(&self.site, self.reference.secrets_ever);
                let said = self.reference.rotate();
                self.told("rotate".to_owned(), got, said).await
            }
            Command::Revoke => {
                let got = self.process().revoke_oldest(&self.site);
                let said = self.reference.revoke_oldest();
                self.told("revoke".to_owned(), got, said).await
            }
            Command::Skip {
                stream,
                ahead,
                stale,
            } => self.skip(stream, ahead, stale).await,
            Command::Replay {
                event,
                out_of_order,
            } => {
                let Some(id) = event.of(&self.reference) else {
                    return Ok(());
                };
                let (name, event_id) = (self.site.name.clone(), self.site.event_id(id));
                let act = async move |ada: tower_inbox::Operator<D::DB>| match out_of_order {
                    true => ada.replay_out_of_order(&name, &event_id, "why").await,
                    false => ada.replay(&name, &event_id, "why").await,
                };
                let got = done(self.process().operator(act).await);
                let said = self.reference.replay(id, out_of_order);
                if out_of_order && said == Answer::Done {
                    self.tally.seen("replayed out of order");
                }
                self.told(
                    format!("replay {id}, out of order: {out_of_order}"),
                    got,
                    said,
                )
                .await
            }
            Command::Discard { event } => {
                let Some(id) = event.of(&self.reference) else {
                    return Ok(());
                };
                let (name, event_id) = (self.site.name.clone(), self.site.event_id(id));
                let act = async move |ada: tower_inbox::Operator<D::DB>| {
                    ada.discard(&name, &event_id, "why").await
                };
                let got = done(self.process().operator(act).await);
                let said = self.reference.discard(id);
                self.told(format!("discard {id}"), got, said).await
            }
            Command::Advance(by) => {
                self.advance(by);
                self.at_rest(format!("{by} ms go by")).await
            }
            Command::Forget => {
                self.advance(RETENTION + 1_000);
                self.reference.purge();
                self.process().purge(&self.site).await;
                self.at_rest("the retention goes by".to_owned()).await
            }
        }
    }

    pub(super) fn secret(&self, signer: Signer) -> u8 {
        match signer {
            Signer::Newest => self.reference.secrets[0],
            Signer::Older => *self.reference.secrets.last().expect("one at least"),
            Signer::First => 0,
            Signer::Nobody => u8::MAX,
        }
    }

    fn plan(&mut self, id: Id, plan: Option<Plan>) {
        if let Some(plan) = plan {
            self.reference.plans.insert(id, plan);
            self.hand_plans_on();
            self.history.push(format!("{id} will {plan:?}"));
        }
    }

    /// The handler does what the reference has it do.
    pub(super) fn hand_plans_on(&self) {
        let plans = self.reference.plans.iter();
        *self
            .site
            .plans
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = plans
            .map(|(id, plan)| (self.site.event_id(*id), *plan))
            .collect();
    }

    pub(super) fn advance(&mut self, by: u64) {
        self.reference.now += by;
        self.site.clock.advance(Duration::from_millis(by));
    }

    pub(super) async fn start(&mut self, trap: Trap) {
        let process = self.site.start(&self.reference.secrets, trap).await;
        self.process = Some(process);
    }

    async fn deliver(&mut self, deliveries: &[Delivery]) -> Checked {
        let nodes = explore(&self.reference, deliveries);
        let under_way: Vec<_> = deliveries
            .iter()
            .map(|delivery| self.process().deliver(&self.site, *delivery))
            .collect();
        let mut got = Vec::new();
        for delivery in under_way {
            got.push(Some(delivery.await.map_err(|error| error.to_string())?));
        }
        self.note(shown(deliveries), &got);
        let nodes = nodes.into_iter().filter(Node::is_at_rest);
        self.becomes(allowed(nodes, &got)?).await
    }

    async fn skip(&mut self, stream: u8, ahead: i8, stale: bool) -> Checked {
        let next = self.reference.next(stream);
        let n = next + i64::from(ahead);
        let seen = Seen {
            generation: 0,
            next: if stale { next + 1 } else { next },
        };
        let name = self.site.name.clone();
        let act = async move |ada: tower_inbox::Operator<D::DB>| {
            let skipped = ada.skip(&name, stream_name(stream), n, seen, "why");
            skipped.await.map(|moved| moved.changed)
        };
        let got = done(self.process().operator(act).await);
        let said = self.reference.skip(stream, n, stale);
        let what = format!("skip {}{n}, stale: {stale}", stream_name(stream));
        self.told(what, got, said).await
    }

    /// Nothing more comes by itself, no connection is inside a transaction, and a last restart finds all as it was.
    async fn end(mut self) -> Checked {
        let at_end = self.step(Command::Restart).await;
        self.process().world.pool_is_whole().await;
        let picture = self.site.picture().await;
        let said = self.reference.picture();
        self.process.take().expect("one is at work").stop().await;
        at_end?;
        if picture != said {
            return Err(differs(&picture, &[said]));
        }
        Ok(())
    }
}

pub(super) fn shown(deliveries: &[Delivery]) -> String {
    let one = |delivery: &Delivery| {
        format!(
            "{} with content {} by secret {}",
            delivery.id, delivery.content, delivery.secret
        )
    };
    deliveries.iter().map(one).collect::<Vec<_>>().join(" and ")
}
