//! Somebody who has been let in, and what the pages know of him.

use std::sync::Arc;

use http::StatusCode;
use maud::{Markup, html};

use super::access::{Actor, Way};
use super::asked::{Answer, Asked, Fault, status_of, words_of};
use super::bulk::Bulk;
use super::session::{Flash, form_token};
use super::{Site, show};
use crate::clock::Timestamp;
use crate::error::OperatorError;
use crate::inbox::Inbox;
use crate::operator::Operator;
use crate::store::Backend;

/// How it was known who asks.
#[derive(Clone, Debug)]
pub(super) enum By {
    /// By what browsers send by themselves; forms need a token that is bound to this cookie.
    Cookie(String),
    /// By a header that no other site can have a browser send.
    Bearer,
}

/// Made in [`enter`](super::enter) alone.
pub(super) struct Caller<DB: Backend> {
    site: Arc<Site<DB>>,
    pub(super) asked: Arc<Asked>,
    pub(super) operator: Operator<DB>,
    pub(super) actor: Actor,
    by: By,
    pub(super) now: Timestamp,
}

/// What is around a page.
pub(super) struct Frame {
    pub(super) asked: Arc<Asked>,
    pub(super) actor: String,
    pub(super) acts: bool,
    pub(super) now: Timestamp,
    /// The sources of this process, to find an event in.
    pub(super) sources: Vec<String>,
    /// Where one can sign out.
    pub(super) leave: Option<Markup>,
}

impl<DB: Backend> Caller<DB> {
    pub(super) fn new(
        site: Arc<Site<DB>>,
        asked: Arc<Asked>,
        actor: Actor,
        by: By,
    ) -> Result<Self, Fault> {
        Ok(Self {
            operator: site.inbox.operator(actor.name())?,
            now: site.inbox.shared.clock.now(),
            site,
            asked,
            actor,
            by,
        })
    }

    pub(super) fn inbox(&self) -> &Inbox<DB> {
        &self.site.inbox
    }

    pub(super) fn bulk(&self) -> &Bulk {
        &self.site.bulk
    }

    /// What is around his pages.
    pub(super) fn frame(&self) -> Frame {
        let signed_in = matches!((&self.site.way, &self.by), (Way::Token(_), By::Cookie(_)));
        let button = html! { button.plain type="submit" { "Sign out" } };
        Frame {
            asked: Arc::clone(&self.asked),
            actor: self.actor.name().to_owned(),
            acts: self.may_act(),
            now: self.now,
            sources: self.sources(),
            leave: signed_in.then(|| self.form("/logout", &[], &button)),
        }
    }

    /// Whether forms that act are shown. Whoever sends one all the same is refused before it gets anywhere.
    pub(super) fn may_act(&self) -> bool {
        self.site.actions && self.actor.may_act()
    }

    /// The sources of this process, for people to choose from: tenants are not among them.
    pub(super) fn sources(&self) -> Vec<String> {
        let sources = self.site.inbox.shared.sources.keys();
        let mut sources: Vec<_> = sources.map(|name| name.to_string()).collect();
        sources.sort();
        sources
    }

    pub(super) fn link(&self, path: &str, query: &[(&str, &str)]) -> String {
        self.asked.link(path, query)
    }

    /// Of the query.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.asked.query.get(name)
    }

    pub(super) fn demand(&self, name: &str) -> Result<&str, Fault> {
        let missing = || Fault::Invalid(format!("The link has no {name}."));
        self.get(name).ok_or_else(missing)
    }

    /// Of the form.
    pub(super) fn field(&self, name: &str) -> Result<&str, Fault> {
        let missing = || Fault::Invalid(format!("The form has no {name}: go back and fill it in."));
        self.asked.form.get(name).ok_or_else(missing)
    }

    /// Why something is done: 1 to 2,000 bytes, as operations want it, and not blank.
    pub(super) fn reason(&self) -> Result<&str, Fault> {
        let reason = self.field("reason")?.trim();
        match reason.len() {
            1..=2_000 => Ok(reason),
            _ => Err(Fault::Invalid("A reason is 1 to 2,000 bytes long.".into())),
        }
    }

    pub(super) fn number(&self, name: &str) -> Result<i64, Fault> {
        number(name, self.field(name)?)
    }

    /// Of the query.
    pub(super) fn demand_number(&self, name: &str) -> Result<i64, Fault> {
        number(name, self.demand(name)?)
    }

    /// A form that changes nothing: it asks for the page that says what would happen.
    pub(super) fn ask(
        &self,
        path: &str,
        fixed: &[(&str, &str)],
        fields: &Markup,
        button: &str,
    ) -> Markup {
        html! {
            form method="get" action=(self.link(path, &[])) {
                @for (name, value) in fixed {
                    input type="hidden" name=(name) value=(value);
                }
                (fields)
                button.plain type="submit" { (button) }
            }
        }
    }

    /// A form to a path of the console. Every form is made here, so that each has the token.
    pub(super) fn form(&self, path: &str, fixed: &[(&str, &str)], content: &Markup) -> Markup {
        let token = match &self.by {
            By::Cookie(cookie) => form_token(cookie, &self.actor),
            By::Bearer => String::new(),
        };
        html! {
            form method="post" action=(self.link(path, &[])) {
                input type="hidden" name="form" value=(token);
                @for (name, value) in fixed {
                    input type="hidden" name=(name) value=(value);
                }
                (content)
            }
        }
    }

    /// One that acts: with a reason, and a button that says what it does.
    pub(super) fn act(
        &self,
        path: &str,
        fixed: &[(&str, &str)],
        fields: &Markup,
        button: &str,
        grave: bool,
    ) -> Markup {
        let id = format!("reason{}", path.replace('/', "-"));
        self.form(
            path,
            fixed,
            &html! {
                (fields)
                (show::reason_field(&id))
                button.grave[grave] type="submit" { (button) }
            },
        )
    }

    /// What an action came to, said on the page `to`.
    pub(super) fn done(
        &self,
        to: String,
        came: Result<String, OperatorError>,
    ) -> Result<Answer, Fault> {
        let (good, text, status) = match came {
            Ok(text) => (true, text, StatusCode::OK),
            Err(error) => (false, words_of(&error), status_of(&error)),
        };
        let flash = Flash { good, text };
        Ok(Answer::Done { to, flash, status })
    }
}

fn number(name: &str, text: &str) -> Result<i64, Fault> {
    let text = text.trim();
    let number = text.parse().ok().filter(|number| *number >= 0);
    number.ok_or_else(|| {
        Fault::Invalid(format!(
            "{name} is to be a whole number from 0 to 2^63-1, not {text:?}."
        ))
    })
}
