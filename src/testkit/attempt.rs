//! One attempt of a producer, made.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use tokio::time::timeout;

use super::event::Event;
use super::ground::Ground;
use super::network::{Point, Way};
use super::receive::{Boxed, Sent};
use super::reply::Reply;
use super::request::SignedRequest;
use super::schedule::Answer;
use super::socket::Socket;
use super::{story, write};
use crate::clock::Timestamp;
use crate::preset::Preset;
use crate::probe::Probe;

/// How a producer signs.
#[derive(Clone)]
pub(super) struct Signing {
    preset: Preset,
    pub(super) secrets: Vec<String>,
    pub(super) path: Option<String>,
    pub(super) url: Option<String>,
    /// How far its clock is ahead of the receiver's, and behind it.
    pub(super) skew: (Duration, Duration),
}

impl Signing {
    pub(super) fn new(preset: Preset, secret: String) -> Self {
        Self {
            preset,
            secrets: vec![secret],
            path: None,
            url: None,
            skew: (Duration::ZERO, Duration::ZERO),
        }
    }

    fn request(&self, event: &Event) -> SignedRequest {
        let request = event
            .request(self.preset, "")
            .signed_by(self.secrets.iter().cloned())
            .or_to(self.path.clone());
        match &self.url {
            Some(url) => request.url(url.clone()),
            None => request,
        }
    }
}

/// An attempt that is to be made.
pub(super) struct Attempting {
    pub(super) ground: Arc<dyn Ground>,
    pub(super) socket: Option<Socket>,
    pub(super) signing: Signing,
    pub(super) event: Event,
    pub(super) seed: u64,
    pub(super) number: u32,
    pub(super) replay: bool,
    pub(super) first_sent_at: Timestamp,
    pub(super) patience: Duration,
    pub(super) way: Way,
}

impl Attempting {
    /// What the producer sees of the answer.
    pub(super) async fn make(self) -> Answer {
        if self.way == Way::AfterRestart {
            self.ground.restarted().await;
        }
        let now = self.ground.now();
        let (ahead, behind) = self.signing.skew;
        let at = now.plus(ahead).minus(behind);
        let request = self.signing.request(&self.event).or_to(self.ground.path());
        let request = request.build_as(write::Attempt {
            number: self.number,
            first_sent_at: self.first_sent_at,
            at,
        });
        let probe = self
            .ground
            .log()
            .probe(self.event.id(), &self.ground.time());
        if self.socket.is_some() {
            let id = self.event.id_at(&self.signing.preset);
            self.ground.expect(id, &probe);
        }
        match self.way {
            Way::Twice => {
                let first = self.once(&request, &probe, false).await;
                self.once(&request, &probe, true).await;
                first
            }
            Way::TwiceAtOnce => {
                let first = self.once(&request, &probe, false);
                tokio::join!(first, self.once(&request, &probe, true)).0
            }
            _ => self.once(&request, &probe, false).await,
        }
    }

    async fn once(&self, request: &Request<Bytes>, probe: &Probe, copy: bool) -> Answer {
        let (name, log) = (self.event.id(), self.ground.log());
        let path = request.uri().to_string();
        let attempt = story::Attempt {
            copy,
            replay: self.replay,
            ..story::Attempt::new(path, self.ground.now(), self.way)
        };
        let index = log.attempt(name, Some(self.seed), attempt);
        let reply = match self.way {
            Way::Down => None,
            Way::Disconnect(Point::BeforeAnswer) => self.cut_off(request, probe).await,
            Way::Disconnect(Point::WhileSending) => {
                self.send(request, probe, Sent::broken(request.body()))
                    .await
            }
            _ => {
                let body = Sent::whole(request.body().clone());
                self.send(request, probe, body).await
            }
        };
        let applied = reply
            .as_ref()
            .is_some_and(|reply| reply.outcome() == "applied");
        let seen = reply.is_some() && self.way.shows(applied);
        let answer = match &reply {
            Some(reply) if seen => reply.answer(),
            _ => Answer::Nothing,
        };
        log.answered(name, index, reply, seen);
        answer
    }

    /// Goes away when the handler has been called, or when there is an answer; elsewhere when all has been sent.
    async fn cut_off(&self, request: &Request<Bytes>, probe: &Probe) -> Option<Reply> {
        let before = probe.journal().len();
        let (body, mut read) = Sent::watched(request.body().clone());
        let sent = self.send(request, probe, body);
        let reached = async {
            if self.ground.is_here() {
                probe.began_after(before).await;
            } else {
                // An error: the body was dropped before its end.
                let _ = read.wait_for(|read| *read).await;
            }
        };
        tokio::select! {
            reply = sent => reply,
            () = reached => None,
        }
    }

    fn send(
        &self,
        request: &Request<Bytes>,
        probe: &Probe,
        body: Sent,
    ) -> Boxed<'static, Option<Reply>> {
        let mut request = request.clone().map(|_| body);
        request.extensions_mut().insert(probe.clone());
        let patience = self.patience;
        let sent: Boxed<'static, Option<Reply>> = match self.socket.clone() {
            Some(socket) => Box::pin(async move { socket.send(request).await }),
            None => self.ground.receive(request),
        };
        Box::pin(async move { timeout(patience, sent).await.ok().flatten() })
    }
}
