//! The one way in: who asks, whether his form is one of ours, and whether he may.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Method, StatusCode};
use serde_json::json;
use tokio::time::timeout;

use super::access::{Actor, Token, Way};
use super::asked::{Answer, Asked, Fault, HTML, LONGEST_FORM, SLOWEST_FORM, problem, see};
use super::caller::{By, Caller};
use super::pairs::Pairs;
use super::routes::{Route, Run};
use super::session::{self, FLASH, FORMS, Flash, SESSION};
use super::{Site, keys, shell};
use crate::store::Backend;

/// Where a script says whose name goes into the audit table.
const ACTOR: &str = "inbox-actor";
/// Of a script that says no name, and only looks.
const NAMELESS: &str = "token";

/// The next page comes at once.
const SAID_WITHIN: Duration = Duration::from_secs(60);

/// What no route has.
pub(super) async fn nowhere<DB: Backend>(site: Arc<Site<DB>>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let asked = Asked::new(&parts, site.https, &site.mark);
    let html = asked.wants_html();
    Fault::Missing("There is no such page").answer(&asked, html)
}

pub(super) async fn enter<DB: Backend>(
    site: Arc<Site<DB>>,
    route: Arc<Route<DB>>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let mut asked = Asked::new(&parts, site.https, &site.mark);
    let mut html = asked.wants_html();
    if route.method == Method::POST {
        match timeout(SLOWEST_FORM, to_bytes(body, LONGEST_FORM)).await {
            Ok(Ok(body)) => asked.form = Pairs::parse(&body),
            Ok(Err(_)) => return Fault::TooLong.answer(&asked, html),
            Err(_) => return Fault::TooSlow.answer(&asked, html),
        }
    }
    let asked = Arc::new(asked);
    if let Run::Open(run) = route.run {
        let ran = run(site, Arc::clone(&asked)).await;
        return ran.unwrap_or_else(|fault| fault.answer(&asked, html));
    }
    let who = match who(&site, &parts, &asked).await {
        Ok(who) => who,
        Err(Fault::Stranger) => return stranger(&site, &asked, html),
        Err(fault) => return fault.answer(&asked, html),
    };
    // A script is told as scripts are, whatever it says that it takes.
    html &= !matches!(who.by, By::Bearer);
    match let_in(&site, &route, &asked, &who).await {
        Ok(mut response) => {
            if let Some(set) = who.set {
                cookie(&mut response, &asked.jar.set(FORMS, &set, None));
            }
            response
        }
        Err(fault) => fault.answer(&asked, html),
    }
}

async fn let_in<DB: Backend>(
    site: &Arc<Site<DB>>,
    route: &Route<DB>,
    asked: &Arc<Asked>,
    who: &Who,
) -> Result<Response, Fault> {
    may(site, route, asked, who)?;
    if asked.query.has_nul() || asked.form.has_nul() {
        // Nothing has one, and PostgreSQL takes none as text.
        return Err(Fault::Invalid("No value may have a NUL character.".into()));
    }
    let (site_, asked_) = (Arc::clone(site), Arc::clone(asked));
    let caller = Caller::new(site_, asked_, who.actor.clone(), who.by.clone())?;
    let frame = caller.frame();
    let answer = match route.run {
        Run::Look(run) | Run::Act(run) => run(caller).await?,
        Run::Open(_) => return Err(Fault::Stranger),
    };
    Ok(match answer {
        Answer::Raw(response) => response,
        Answer::Page(page) => {
            let flash = flash(asked, &who.by);
            let status = page.status;
            let page = shell::page(&frame, flash.as_ref(), page);
            let content = (status, [(header::CONTENT_TYPE, HTML)], page.into_string());
            let mut response = content.into_response();
            if flash.is_some() {
                cookie(&mut response, &asked.jar.remove(FLASH));
            }
            response
        }
        Answer::Done { to, flash, status } => told(&to, &flash, status, asked, &who.by),
    })
}

/// Somebody whom the console lets in.
struct Who {
    actor: Actor,
    by: By,
    /// A cookie that the forms of the next page are bound to, if there was none.
    set: Option<String>,
}

async fn who<DB: Backend>(site: &Site<DB>, parts: &Parts, asked: &Asked) -> Result<Who, Fault> {
    let headers = &parts.headers;
    let token = match &site.way {
        Way::Token(token) => token,
        Way::Check(check) => {
            let actor = check(parts).await.ok_or(Fault::Stranger)?;
            let there = asked
                .jar
                .get(headers, FORMS)
                .filter(|cookie| cookie.len() == 32);
            let (cookie, set) = match there {
                Some(cookie) => (cookie.to_owned(), None),
                None => {
                    let made = keys::nonce().ok_or(Fault::NoRandom)?;
                    (made.clone(), Some(made))
                }
            };
            let by = By::Cookie(cookie);
            return Ok(Who { actor, by, set });
        }
    };
    // What a proxy's own sign-in leaves there, such as Basic, is not for this console.
    if let Some(bearer) = says_bearer(headers) {
        let bearer = bearer.ok_or(Fault::Stranger)?;
        try_token(site, token, asked, bearer)?;
        let actor = actor_of(headers, &parts.method)?;
        let by = By::Bearer;
        return Ok(Who {
            actor,
            by,
            set: None,
        });
    }
    let now = site.inbox.shared.clock.now();
    let mut cookies = asked.jar.all(headers, SESSION);
    let found = cookies.find_map(|cookie| Some((session::read(token, cookie, now)?, cookie)));
    let (actor, cookie) = found.ok_or(Fault::Stranger)?;
    let by = By::Cookie(cookie.to_owned());
    Ok(Who {
        actor,
        by,
        set: None,
    })
}

/// Whether the token is the right one: 401 if not, and 429 after too many of those.
pub(super) fn try_token<DB: Backend>(
    site: &Site<DB>,
    token: &Token,
    asked: &Asked,
    presented: &str,
) -> Result<(), Fault> {
    let passed = site.gate.enter(asked.client);
    if let Err(wait) = &passed
        && !(token.is_long() && token.is(presented))
    {
        return Err(Fault::Slow(wait.as_secs() + 1));
    }
    if !token.is(presented) {
        tracing::warn!(client = ?asked.client, "a wrong token at the console");
        return Err(Fault::Stranger);
    }
    if let Ok(passed) = passed {
        passed.was_right();
    }
    Ok(())
}

/// The scheme's name is of either case (RFC 9110, 11.1).
fn bearer_of(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The token of whoever sends one by himself; none inside: he sends none that could be one.
fn says_bearer(headers: &HeaderMap) -> Option<Option<&str>> {
    let value = headers.get(header::AUTHORIZATION)?;
    let scheme = value.as_bytes().split(|byte| *byte == b' ').next()?;
    scheme
        .eq_ignore_ascii_case(b"bearer")
        .then(|| value.to_str().ok().and_then(bearer_of))
}

fn actor_of(headers: &HeaderMap, method: &Method) -> Result<Actor, Fault> {
    let unusable = || Fault::Invalid(format!("{ACTOR} is to be a name of 1 to 255 bytes."));
    let name = match headers.get(ACTOR) {
        Some(name) => std::str::from_utf8(name.as_bytes()).map_err(|_| unusable())?,
        None if *method == Method::POST => return Err(unusable()),
        None => NAMELESS,
    };
    Actor::new(name).ok_or_else(unusable)
}

fn may<DB: Backend>(
    site: &Site<DB>,
    route: &Route<DB>,
    asked: &Asked,
    who: &Who,
) -> Result<(), Fault> {
    if route.method == Method::POST
        && let By::Cookie(cookie) = &who.by
    {
        if !is_from_here(&asked.headers) {
            return Err(Fault::Forbidden("This form came from another site."));
        }
        let token = asked.form.get("form").unwrap_or_default();
        if !session::is_form_token(cookie, &who.actor, token) {
            return Err(Fault::Forbidden(
                "This form is not of your session: go back, load the page again, and send it again.",
            ));
        }
    }
    if matches!(route.run, Run::Act(_)) && !(site.actions && who.actor.may_act()) {
        return Err(Fault::Forbidden(
            "This console only looks: actions are turned off.",
        ));
    }
    Ok(())
}

/// What browsers say of where a form came from. One that says nothing is told by the form's token alone.
pub(super) fn is_from_here(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin";
    }
    let Some(origin) = headers.get(header::ORIGIN) else {
        return true;
    };
    let origin = origin
        .to_str()
        .ok()
        .and_then(|origin| origin.split_once("://"));
    let Some((_, origin)) = origin else {
        return false;
    };
    // A proxy may have changed the one; a page of another site can set neither.
    [header::HOST.as_str(), "x-forwarded-host"]
        .iter()
        .filter_map(|name| headers.get(*name))
        .any(|host| host.as_bytes().eq_ignore_ascii_case(origin.as_bytes()))
}

/// To where one signs in, or that one is not.
fn stranger<DB: Backend>(site: &Site<DB>, asked: &Asked, html: bool) -> Response {
    let by_token = matches!(site.way, Way::Token(_));
    // Whoever sends a token by himself is no browser that could be led anywhere.
    if !by_token || !html || says_bearer(&asked.headers).is_some() {
        let mut response = Fault::Stranger.answer(asked, html);
        if by_token {
            let bearer = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, bearer);
        }
        return response;
    }
    // A form that came too late is not sent again behind somebody's back.
    let to = match (&asked.method, asked.path.as_str()) {
        (&Method::POST, _) | (_, "/") => String::new(),
        _ => asked.here(),
    };
    see(&asked.link("/login", &[("to", &to)]))
}

fn flash(asked: &Asked, by: &By) -> Option<Flash> {
    let By::Cookie(key) = by else { return None };
    Flash::from_cookie(key, asked.jar.get(&asked.headers, FLASH)?)
}

/// A browser sees it on the next page; a script is told at once.
fn told(to: &str, flash: &Flash, status: StatusCode, asked: &Asked, by: &By) -> Response {
    match by {
        By::Cookie(key) => {
            let mut response = see(to);
            let said = flash.to_cookie(key);
            cookie(
                &mut response,
                &asked.jar.set(FLASH, &said, Some(SAID_WITHIN)),
            );
            response
        }
        By::Bearer if flash.good => {
            let body = json!({ "status": "done", "detail": flash.text }).to_string();
            ([(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        By::Bearer => problem(status, &flash.text),
    }
}

/// Adds a cookie. Ours are ASCII; one that is not would be left out.
pub(super) fn cookie(response: &mut Response<Body>, cookie: &str) {
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| {
                let name = header::HeaderName::from_static(name);
                (name, HeaderValue::from_static(value))
            })
            .collect()
    }

    #[test]
    fn a_form_comes_from_the_consoles_own_origin() {
        for (from_here, pairs) in [
            (true, &[("sec-fetch-site", "same-origin")][..]),
            (false, &[("sec-fetch-site", "cross-site")]),
            (false, &[("sec-fetch-site", "same-site")]),
            (
                true,
                &[("origin", "https://ops.example"), ("host", "ops.example")],
            ),
            (
                false,
                &[("origin", "https://evil.example"), ("host", "ops.example")],
            ),
            (false, &[("origin", "null"), ("host", "ops.example")]),
            (
                true,
                &[
                    ("origin", "https://ops.example"),
                    ("host", "127.0.0.1:3000"),
                    ("x-forwarded-host", "ops.example"),
                ],
            ),
            (true, &[("host", "ops.example")]),
        ] {
            assert_eq!(is_from_here(&headers(pairs)), from_here, "{pairs:?}");
        }
    }

    #[test]
    fn a_bearers_scheme_is_of_either_case() {
        assert_eq!(bearer_of("bearer t0ken"), Some("t0ken"));
        assert_eq!(bearer_of("Bearer  t0ken "), Some("t0ken"));
        assert_eq!(bearer_of("Basic t0ken"), None);
        assert_eq!(bearer_of("t0ken"), None);
    }
}
