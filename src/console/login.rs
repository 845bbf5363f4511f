//! Where one signs in with the token, and out.

use std::sync::Arc;

use axum::response::{IntoResponse as _, Response};
use http::{StatusCode, header};
use maud::{Markup, html};

use super::access::{Actor, Way};
use super::asked::{Answer, Asked, Fault, HTML, see};
use super::caller::Caller;
use super::session::{self, FLASH, SESSION};
use super::{Site, enter, shell};
use crate::store::Backend;

/// Where there is no token, there is nowhere to sign in.
const ELSEWHERE: Fault = Fault::Missing("This console does not sign anybody in");

pub(super) async fn page<DB: Backend>(
    site: Arc<Site<DB>>,
    asked: Arc<Asked>,
) -> Result<Response, Fault> {
    match site.way {
        Way::Token(_) => Ok(form(&asked, StatusCode::OK, asked.query.get("to"), None)),
        Way::Check(_) => Err(ELSEWHERE),
    }
}

pub(super) async fn enter<DB: Backend>(
    site: Arc<Site<DB>>,
    asked: Arc<Asked>,
) -> Result<Response, Fault> {
    let Way::Token(token) = &site.way else {
        return Err(ELSEWHERE);
    };
    if !enter::is_from_here(&asked.headers) {
        return Err(Fault::Forbidden("This form came from another site."));
    }
    let to = asked.form.get("to");
    let again = |status, why: &str| form(&asked, status, to, Some(why));
    let Some(actor) = asked
        .form
        .get("actor")
        .and_then(|name| Actor::new(name.trim()))
    else {
        let why = "Your name is missing, or cannot be one: it goes into the audit log.";
        return Ok(again(StatusCode::BAD_REQUEST, why));
    };
    let presented = asked.form.get("token").unwrap_or_default();
    match enter::try_token(&site, token, &asked, presented.trim()) {
        Ok(()) => {}
        Err(Fault::Stranger) => {
            let why = "That is not the token.";
            return Ok(again(StatusCode::UNAUTHORIZED, why));
        }
        Err(fault) => return Err(fault),
    }
    let until = site.inbox.shared.clock.now().plus(site.session);
    let cookie = session::issue(token, &actor, until).ok_or(Fault::NoRandom)?;
    let mut response = match to.filter(|to| is_within(to)) {
        Some(to) => see(&format!("{}{to}", asked.base)),
        None => see(&asked.link("/", &[])),
    };
    let cookie = asked.jar.set(SESSION, &cookie, Some(site.session));
    enter::cookie(&mut response, &cookie);
    Ok(response)
}

/// A path of this console: neither another site nor what a browser would read as one.
fn is_within(to: &str) -> bool {
    let visible = to
        .bytes()
        .all(|byte| (b'!'..=b'~').contains(&byte) && byte != b'\\');
    to.starts_with('/') && !to.starts_with("//") && visible
}

pub(super) async fn leave<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let asked = &caller.asked;
    let mut response = see(&asked.link("/login", &[]));
    for name in [SESSION, FLASH] {
        enter::cookie(&mut response, &asked.jar.remove(name));
    }
    Ok(Answer::Raw(response))
}

fn form(asked: &Asked, status: StatusCode, to: Option<&str>, wrong: Option<&str>) -> Response {
    let content: Markup = html! {
        @if let Some(wrong) = wrong { (shell::alert(wrong)) }
        form.login method="post" action=(asked.link("/login", &[])) {
            input type="hidden" name="to" value=[to];
            label for="actor" { "Your name " span.quiet { "(for the audit log)" } }
            input #actor name="actor" type="text" required maxlength="255" autocomplete="username"
                value=[asked.form.get("actor")] autofocus;
            label for="token" { "Token" }
            input #token name="token" type="password" required autocomplete="current-password";
            button type="submit" { "Sign in" }
        }
    };
    let page = shell::bare(asked, "Sign in", content);
    (status, [(header::CONTENT_TYPE, HTML)], page.into_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::is_within;

    #[test]
    fn one_comes_back_to_a_page_of_the_console_and_nowhere_else() {
        for within in ["/", "/stream?source=crm&id=a%2Fb", "/dead"] {
            assert!(is_within(within), "{within}");
        }
        for elsewhere in [
            "",
            "//evil.example",
            "https://evil.example",
            "/\\evil.example",
            "/a\nb",
            "evil",
        ] {
            assert!(!is_within(elsewhere), "{elsewhere:?}");
        }
    }
}
