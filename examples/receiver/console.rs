//! The console, where `CONSOLE_TOKEN` asks for one.

use axum::Router;
use axum::response::Redirect;
use axum::routing::get;
use tower_inbox::console::{Access, Console};
use tower_inbox::{Backend, Inbox};

use crate::settings::Settings;
use crate::shared::args::Wrong;

/// Shorter tokens are taken, since it is whoever starts this who knows who can reach it.
const SHORT: usize = 16;

pub(crate) fn mount<DB: Backend>(
    router: Router,
    inbox: &Inbox<DB>,
    settings: &Settings,
) -> Result<Router, Wrong> {
    let Some(token) = &settings.console_token else {
        if settings.console_actions {
            tracing::warn!(
                "CONSOLE_ACTIONS is on, and without a CONSOLE_TOKEN there is no console"
            );
        }
        return Ok(router);
    };
    if token.len() < SHORT {
        tracing::warn!("CONSOLE_TOKEN is short enough to be guessed: take at least {SHORT} bytes");
    }
    let access = Access::insecure_short_token(token.as_str())
        .map_err(|error| Wrong(format!("CONSOLE_TOKEN: {error}")))?;
    let console = Console::new(inbox, access).actions(settings.console_actions);
    // What is nested has no slash at its end; people write one.
    let slash = get(|| async { Redirect::permanent("/console") });
    Ok(router
        .nest("/console", console.into_router())
        .route("/console/", slash))
}
