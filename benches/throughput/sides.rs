//! A side that runs: its process, its database, and what it is sent.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::arguments::Plan;
use crate::catalogue::{Group, Run, Side};
use crate::fill::{Fill, left, log_end};
use crate::install;
use crate::load::{Slice, closed, open};
use crate::peer;
use crate::pgbench;
use crate::place::{Place, tables};
use crate::process::{Meter, Receiver};
use crate::requests::{BODY, Feed, Mint, SECRET};
use crate::servers::Servers;

/// Requests that are made for the first slice, a second: nobody is faster where each is a new event, but on SQLite.
const FIRST: f64 = 20_000.0;
/// Of a slice's requests more are made than the last one needed.
const ROOM: f64 = 1.4;

pub(crate) struct Running {
    pub(crate) side: &'static Side,
    place: Place,
    by: By,
    mint: Mint,
    /// Requests a second, as far as is known.
    pub(crate) rate: f64,
}

enum Starts {
    Receiver(Command),
    Pgbench(PathBuf),
}

enum By {
    Receiver(Receiver),
    Pgbench(PathBuf),
}

impl Running {
    /// None, with a word about it, where what it needs is not installed.
    pub(crate) async fn start(
        side: &'static Side,
        group: &Group,
        servers: &mut Servers,
    ) -> Option<Self> {
        let hand = match side.run {
            Run::Serve("ours") => None,
            Run::Serve("rowlock") => Some(peer::ordered::TABLES),
            _ => Some(tables(group.database)),
        };
        let starts = match side.run {
            Run::Serve(name) => {
                let program = std::env::current_exe().expect("this program");
                let mut command = Command::new(program);
                command.args(["serve", name]);
                Ok(Starts::Receiver(command))
            }
            Run::Pgbench => pgbench::find()
                .map(Starts::Pgbench)
                .ok_or_else(|| "it is not installed".into()),
            Run::Fastify => install::node().map(Starts::Receiver),
            Run::Fastapi => install::python().map(Starts::Receiver),
        };
        let starts = match starts {
            Ok(starts) => starts,
            Err(why) => {
                println!("SKIPPED {}: {why}", side.label);
                return None;
            }
        };
        let place = Place::new(group.database, servers, hand).await;
        let by = match starts {
            Starts::Pgbench(program) => By::Pgbench(program),
            Starts::Receiver(mut command) => {
                command.arg(&place.url);
                if let Run::Serve(_) = side.run {
                    command.arg(format!("connections={}", group.pool));
                    command.args(side.settings);
                } else {
                    command.arg(group.pool.to_string()).env("SECRET", SECRET);
                }
                By::Receiver(Receiver::start(&mut command))
            }
        };
        Some(Self {
            side,
            place,
            by,
            mint: Mint::new(fastrand::u64(..), BODY),
            rate: FIRST,
        })
    }

    /// What is sent and made before the first slice: the events that are known in all of them, and rows of the past.
    pub(crate) async fn prime(&mut self, plan: &Plan, connections: usize) -> Result<(), String> {
        let By::Receiver(receiver) = &self.by else {
            return Ok(());
        };
        let events = match self.side.feed {
            Feed::Known(events) => events,
            // One to copy.
            _ if self.side.fill != Fill::Empty => 1,
            _ => return Ok(()),
        };
        let requests = match self.side.feed {
            Feed::Ordered(_) => self.mint.make(self.side.feed, events, 204, 200),
            _ => self.mint.first(events),
        };
        let forever = Duration::from_secs(3_600);
        let slice = closed(
            receiver.port,
            requests,
            connections,
            (Duration::ZERO, forever),
            &[],
        );
        self.mint.sent(slice.await?.sent);
        self.side.fill.once(&self.place.url, plan.quick).await;
        Ok(())
    }

    /// One turn: a closed loop, or so many requests a second.
    pub(crate) async fn turn(
        &mut self,
        plan: &Plan,
        connections: usize,
        rate: Option<f64>,
    ) -> Result<Slice, String> {
        self.side.fill.again(&self.place.url).await;
        let receiver = match &self.by {
            By::Pgbench(program) => {
                let meters = [Meter::None, self.place.meter, Meter::None];
                let took = plan.warm + plan.slice;
                return pgbench::run(program, &self.place.url, connections, took, &meters);
            }
            By::Receiver(receiver) => receiver,
        };
        let meters = [
            Meter::One(receiver.pid()),
            self.place.meter,
            Meter::One(std::process::id()),
        ];
        let most = self.rate * ROOM * (plan.warm + plan.slice).as_secs_f64();
        let requests = self
            .mint
            .make(self.side.feed, most as usize, 204, self.side.known);
        let times = (plan.warm, plan.slice);
        let is_logged = self.place.url.starts_with("postgres");
        let before = if is_logged {
            log_end(&self.place.url).await
        } else {
            0
        };
        let mut slice = match rate {
            None => closed(receiver.port, requests, connections, times, &meters).await?,
            Some(rate) => open(receiver.port, requests, rate, times, &meters).await?,
        };
        if is_logged {
            slice.logged = Some(log_end(&self.place.url).await - before);
        }
        self.mint.sent(slice.sent);
        if self.side.fill == Fill::Old && left(&self.place.url).await == 0 {
            return Err("the purge was over before the turn was".into());
        }
        if rate.is_none() {
            self.rate = slice.rate().max(1_000.0);
        }
        Ok(slice)
    }

    pub(crate) async fn close(self) {
        drop(self.by);
        self.place.close().await;
    }
}
