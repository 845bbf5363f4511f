//! A console in the browser, for the people who are on call: what is parked, behind what, since when, and how to free it.
//!
//! [`Console`] is an axum router to mount. Its pages are made on the server, work without JavaScript and better with a
//! little of it, and load nothing from elsewhere.
//!
//! ```no_run
//! # fn example(inbox: tower_inbox::Inbox<sqlx::Sqlite>, app: axum::Router) -> Result<axum::Router, Box<dyn std::error::Error>> {
//! use tower_inbox::console::{Access, Console};
//!
//! let access = Access::token(std::env::var("CONSOLE_TOKEN")?)?;
//! let console = Console::new(&inbox, access).actions(true).into_router();
//! Ok(app.nest("/console", console))
//! # }
//! ```
//!
//! # Closed by construction
//!
//! - Who may come in is an argument of [`Console::new`]: a token, or a check of your own that names the actor. What each
//!   path needs stands in one table ([`Console::routes`]) from which the router is built.
//! - It only looks, unless [`Console::actions`] are turned on. Each action needs a reason, and goes with the actor into
//!   the audit table. What cannot be undone asks first, on a page that says what would happen.
//! - Every form carries a token that is bound to the session, and comes from the console's own pages.
//! - Bodies are shown when they are asked for, with a reason, which is audited too. Signatures and credentials of stored
//!   requests are not shown.
//! - Whatever a producer put into an id is text: a template writes it, and that escapes everything.
//! - Nothing is stored by a browser or a proxy, no page may frame it, and its scripts and styles are its own files.
//!
//! Serve it over TLS, as everything that takes a token. Behind a proxy that ends TLS, `X-Forwarded-Proto: https` makes the
//! cookie `Secure`, and so does [`Console::https`].

mod access;
mod asked;
mod assets;
mod audit;
mod bulk;
mod caller;
mod confirm;
mod dress;
mod enter;
mod event;
mod find;
mod gate;
mod keys;
mod letters;
mod login;
mod overview;
mod pairs;
mod routes;
mod session;
mod shell;
mod show;
mod spark;
mod stream;
mod streams;
mod strip;
mod urgent;
mod verbs;
mod waiting;
mod when;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;

use crate::inbox::Inbox;
use crate::store::Backend;

pub use access::{Access, Actor};
pub use routes::{ConsoleRoute, Needs};

use access::Way;
use bulk::Bulk;
use gate::Gate;
use session::Mark;

/// A working day and a bit of the night.
const SESSION: Duration = Duration::from_secs(12 * 3600);
/// Longer, and a stolen cookie would be as good as the token.
const LONGEST_SESSION: Duration = Duration::from_secs(7 * 24 * 3600);

/// A console of an inbox: [the module's documentation](self) has an example.
#[must_use = "a console is mounted by `into_router`"]
pub struct Console<DB: Backend> {
    site: Site<DB>,
}

/// What all requests share.
struct Site<DB: Backend> {
    inbox: Inbox<DB>,
    way: Way,
    actions: bool,
    https: bool,
    session: Duration,
    mark: Mark,
    gate: Gate,
    bulk: Bulk,
}

impl<DB: Backend> fmt::Debug for Console<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("access", &self.site.way)
            .field("actions", &self.site.actions)
            .finish_non_exhaustive()
    }
}

impl<DB: Backend> Console<DB> {
    /// A console that only looks, for those whom `access` lets in.
    pub fn new(inbox: &Inbox<DB>, access: Access) -> Self {
        Self {
            site: Site {
                inbox: inbox.clone(),
                mark: Mark::of(&access.0, &inbox.shared.sql.prefix),
                way: access.0,
                actions: false,
                https: false,
                session: SESSION,
                gate: Gate::default(),
                bulk: Bulk::default(),
            },
        }
    }

    /// Whether it may act (skip, fast-forward, reset, replay, try now, discard, release), not only look. Default: no. An actor who
    /// is [read-only](Actor::read_only) only looks all the same.
    pub fn actions(mut self, actions: bool) -> Self {
        self.site.actions = actions;
        self
    }

    /// Says that browsers reach it by https, whatever the requests say: its cookie is never sent by http then. Default: no,
    /// and the cookie is `Secure` where a proxy says `X-Forwarded-Proto: https`.
    pub fn https(mut self, https: bool) -> Self {
        self.site.https = https;
        self
    }

    /// How long somebody stays signed in who came by a token: a minute to 7 days. Default: 12 hours. Nothing is stored of a
    /// session, so that signing out forgets it in that browser alone; another token ends all of them.
    ///
    /// # Panics
    /// If it is shorter or longer.
    #[track_caller]
    pub fn session(mut self, lifetime: Duration) -> Self {
        assert!(
            (Duration::from_secs(60)..=LONGEST_SESSION).contains(&lifetime),
            "a session of the console is a minute to 7 days long, not {lifetime:?}"
        );
        self.site.session = lifetime;
        self
    }

    /// The routes, to be mounted by `.nest("/console", …)` wherever you like: its links go by where it is. What is nested has no
    /// slash at its end; `.route("/console/", get(|| async { Redirect::permanent("/console") }))` leads there whoever writes one.
    ///
    /// Wrong tokens are slowed down for each client by itself where the app is served with
    /// `into_make_service_with_connect_info::<SocketAddr>()`, or a layer of yours sets `ConnectInfo<SocketAddr>`; otherwise for all
    /// of them together, as behind a proxy. Who is signed in is never slowed down, nor is whoever has a token of 32 bytes or
    /// more.
    pub fn into_router(self) -> Router {
        routes::router(Arc::new(self.site))
    }

    /// Every path of it, and what it needs: the very table from which the router is built.
    pub fn routes() -> Vec<ConsoleRoute> {
        routes::table::<DB>()
            .iter()
            .map(ConsoleRoute::from)
            .collect()
    }
}
