//! Every path and what it needs, in one table; the router is made of it, and of nothing else.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use http::Method;

use super::asked::{Answer, Asked, Fault};
use super::caller::Caller;
use super::{
    Site, assets, audit, bulk, confirm, dress, enter, event, find, letters, login, overview,
    stream, streams, verbs, waiting,
};
use crate::store::Backend;

/// What a path of the console needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Needs {
    /// Nothing: where one signs in, and the files of the pages.
    Nothing,
    /// Somebody whom the console lets in.
    Session,
    /// Somebody whom the console lets in, and that [actions](super::Console::actions) are turned on.
    Actions,
}

/// A path of the console.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsoleRoute {
    /// GET or POST.
    pub method: Method,
    /// The path, below where the console is mounted.
    pub path: String,
    /// What it needs.
    pub needs: Needs,
}

impl<DB: Backend> From<&Route<DB>> for ConsoleRoute {
    fn from(route: &Route<DB>) -> Self {
        Self {
            method: route.method.clone(),
            path: route.path.clone(),
            needs: match route.run {
                Run::Open(_) => Needs::Nothing,
                Run::Look(_) => Needs::Session,
                Run::Act(_) => Needs::Actions,
            },
        }
    }
}

type Ran<T> = Pin<Box<dyn Future<Output = Result<T, Fault>> + Send>>;

/// What is run. A page gets at the inbox by its [`Caller`] alone, and that is made where it has been checked who asks.
pub(super) enum Run<DB: Backend> {
    Open(fn(Arc<Site<DB>>, Arc<Asked>) -> Ran<Response>),
    Look(fn(Caller<DB>) -> Ran<Answer>),
    Act(fn(Caller<DB>) -> Ran<Answer>),
}

pub(super) struct Route<DB: Backend> {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) run: Run<DB>,
}

fn route<DB: Backend>(method: Method, path: impl Into<String>, run: Run<DB>) -> Route<DB> {
    let path = path.into();
    Route { method, path, run }
}

pub(super) fn table<DB: Backend>() -> Vec<Route<DB>> {
    use Run::{Act, Look, Open};
    const GET: Method = Method::GET;
    const POST: Method = Method::POST;
    vec![
        route(GET, "/", Look(|caller| Box::pin(overview::page(caller)))),
        route(
            GET,
            "/streams",
            Look(|caller| Box::pin(streams::page(caller))),
        ),
        route(
            GET,
            "/waiting",
            Look(|caller| Box::pin(waiting::page(caller))),
        ),
        route(
            POST,
            "/waiting/dry-run",
            Act(|caller| Box::pin(waiting::dry_run(caller))),
        ),
        route(
            POST,
            "/waiting/bulk",
            Act(|caller| Box::pin(waiting::run(caller))),
        ),
        route(
            GET,
            "/stream",
            Look(|caller| Box::pin(stream::page(caller))),
        ),
        // Of what cannot be undone: GET says what would happen, POST does it.
        route(
            GET,
            "/stream/skip",
            Act(|caller| Box::pin(confirm::skip(caller))),
        ),
        route(
            GET,
            "/stream/fast-forward",
            Act(|caller| Box::pin(confirm::fast_forward(caller))),
        ),
        route(
            GET,
            "/stream/reset",
            Act(|caller| Box::pin(confirm::reset(caller))),
        ),
        route(
            GET,
            "/event/discard",
            Act(|caller| Box::pin(confirm::discard(caller))),
        ),
        route(
            POST,
            "/stream/skip",
            Act(|caller| Box::pin(verbs::skip(caller))),
        ),
        route(
            POST,
            "/stream/fast-forward",
            Act(|caller| Box::pin(verbs::fast_forward(caller))),
        ),
        route(
            POST,
            "/stream/reset",
            Act(|caller| Box::pin(verbs::reset(caller))),
        ),
        route(GET, "/find", Look(|caller| Box::pin(find::page(caller)))),
        route(GET, "/event", Look(|caller| Box::pin(event::page(caller)))),
        // It changes nothing but the audit table: who may look may see a body, and is seen to.
        route(
            POST,
            "/event/body",
            Look(|caller| Box::pin(event::body(caller))),
        ),
        route(
            POST,
            "/event/replay",
            Act(|caller| Box::pin(verbs::replay(caller))),
        ),
        route(
            POST,
            "/event/try-now",
            Act(|caller| Box::pin(verbs::try_now(caller))),
        ),
        route(
            POST,
            "/event/replay-out-of-order",
            Act(|caller| Box::pin(verbs::replay_out_of_order(caller))),
        ),
        route(
            POST,
            "/event/release",
            Act(|caller| Box::pin(verbs::release(caller))),
        ),
        route(
            POST,
            "/event/discard",
            Act(|caller| Box::pin(verbs::discard(caller))),
        ),
        route(GET, "/dead", Look(|caller| Box::pin(letters::page(caller)))),
        route(
            POST,
            "/dead/dry-run",
            Act(|caller| Box::pin(bulk::dry_run(caller))),
        ),
        route(
            POST,
            "/dead/bulk",
            Act(|caller| Box::pin(bulk::run(caller))),
        ),
        route(GET, "/audit", Look(|caller| Box::pin(audit::page(caller)))),
        route(
            GET,
            "/api/stats",
            Look(|caller| Box::pin(overview::json(caller))),
        ),
        route(
            GET,
            "/login",
            Open(|site, asked| Box::pin(login::page(site, asked))),
        ),
        route(
            POST,
            "/login",
            Open(|site, asked| Box::pin(login::enter(site, asked))),
        ),
        route(
            POST,
            "/logout",
            Look(|caller| Box::pin(login::leave(caller))),
        ),
        route(
            GET,
            assets::style(),
            Open(|_, asked| Box::pin(assets::file(asked))),
        ),
        route(
            GET,
            assets::script(),
            Open(|_, asked| Box::pin(assets::file(asked))),
        ),
        route(
            GET,
            assets::icon(),
            Open(|_, asked| Box::pin(assets::file(asked))),
        ),
    ]
}

pub(super) fn router<DB: Backend>(site: Arc<Site<DB>>) -> Router {
    let mut router = Router::new();
    for route in table() {
        let filter = match route.method {
            Method::POST => MethodFilter::POST,
            _ => MethodFilter::GET,
        };
        let path = route.path.clone();
        let (site, route) = (Arc::clone(&site), Arc::new(route));
        let handler = on(filter, move |request: Request| {
            enter::enter(Arc::clone(&site), Arc::clone(&route), request)
        });
        router = router.route(&path, handler);
    }
    router
        .fallback(move |request: Request| enter::nowhere(Arc::clone(&site), request))
        .layer(map_response(dress::dress))
}
