//! Who may come in.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::request::Parts;
use zeroize::Zeroizing;

use super::keys;
use crate::error::{BuildError, BuildErrorKind};

/// Shorter tokens can be guessed.
const SHORTEST: usize = 16;
/// Longer ones are not guessed at any rate.
const LONG: usize = 32;
/// The library's own name in the audit table.
const INBOX: &str = "inbox";
/// What the token is turned into a key with: the token itself is not kept.
const LABEL: &[u8] = b"tower-inbox console 1";

/// Who may come in: a token that all share, or a check of your own.
pub struct Access(pub(super) Way);

#[derive(Clone)]
pub(super) enum Way {
    Token(Arc<Token>),
    Check(Arc<Check>),
}

/// What a token becomes: every process that has the same token knows the others' sessions.
pub(super) struct Token {
    key: Zeroizing<[u8; 32]>,
    is_long: bool,
}

type Check = dyn Fn(&Parts) -> Pin<Box<dyn Future<Output = Option<Actor>> + Send>> + Send + Sync;

impl Access {
    /// Whoever knows this token, of at least 16 bytes. A browser asks for it and for a name, which becomes the actor, and
    /// stays signed in by a cookie. A script sends `Authorization: Bearer <token>`, and its name as `Inbox-Actor`, which an
    /// action needs.
    ///
    /// Wrong ones are slowed down, and so is the right one beside them if it is shorter than 32 bytes: a longer one is not
    /// guessed at any rate, so that nobody keeps its owner out.
    ///
    /// # Errors
    /// Of the kind [`Secret`](BuildErrorKind::Secret), if it is shorter.
    pub fn token(token: impl Into<String>) -> Result<Self, BuildError> {
        let token = Zeroizing::new(token.into());
        if token.trim().len() < SHORTEST {
            return Err(BuildError::new(
                BuildErrorKind::Secret,
                "a console's token has at least 16 bytes: take 32 random ones, as `openssl rand -hex 32` makes them",
            ));
        }
        Self::insecure_short_token(token.as_str())
    }

    /// As [`Access::token`], for a token that may be guessed: for a console that only you reach.
    ///
    /// # Errors
    /// Of the kind [`Secret`](BuildErrorKind::Secret), if it is empty.
    pub fn insecure_short_token(token: impl Into<String>) -> Result<Self, BuildError> {
        let token = Zeroizing::new(token.into());
        // As it is compared: what is copied into a browser or a header loses the blanks around it.
        let token = token.trim();
        if token.is_empty() {
            return Err(BuildError::new(
                BuildErrorKind::Secret,
                "a console's token must not be empty",
            ));
        }
        let key = Zeroizing::new(keys::mac(token.as_bytes(), &[LABEL]));
        let is_long = token.len() >= LONG;
        Ok(Self(Way::Token(Arc::new(Token { key, is_long }))))
    }

    /// Whoever `check` names, by the head of the request: by what your own sign-in or a proxy says, for example. It is asked
    /// for every request. Nobody named: 401.
    ///
    /// ```
    /// use tower_inbox::console::{Access, Actor};
    ///
    /// // Behind a proxy that signs people in, sets this header, and takes it from nobody else.
    /// let access = Access::check(|parts| {
    ///     let name = parts.headers.get("x-remote-user").and_then(|name| name.to_str().ok());
    ///     let actor = name.and_then(Actor::new);
    ///     async move { actor }
    /// });
    /// # let _ = access;
    /// ```
    pub fn check<C, F>(check: C) -> Self
    where
        C: Fn(&Parts) -> F + Send + Sync + 'static,
        F: Future<Output = Option<Actor>> + Send + 'static,
    {
        Self(Way::Check(Arc::new(move |parts: &Parts| {
            Box::pin(check(parts)) as Pin<Box<dyn Future<Output = _> + Send>>
        })))
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Token(_) => "Token",
            Self::Check(_) => "Check",
        })
    }
}

impl Token {
    /// Whether this is the token, in constant time: what is compared is a MAC of either.
    pub(super) fn is(&self, presented: &str) -> bool {
        keys::is_mac(presented.as_bytes(), &[LABEL], &*self.key)
    }

    /// Whether it is let in also while wrong ones from the same place are slowed down.
    pub(super) fn is_long(&self) -> bool {
        self.is_long
    }

    pub(super) fn key(&self) -> &[u8] {
        &*self.key
    }
}

/// Somebody who looks or acts, by the name that goes into the audit table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    name: String,
    read_only: bool,
}

impl Actor {
    /// By a name of 1 to 255 bytes without control characters; nothing if it is not one, or is `inbox`, by which the audit
    /// table has what the library decided by itself.
    pub fn new(name: impl Into<String>) -> Option<Self> {
        let name = name.into();
        let word = name.trim();
        let usable = !word.is_empty()
            && !word.eq_ignore_ascii_case(INBOX)
            && name.len() <= 255
            && !name.chars().any(char::is_control);
        usable.then_some(Self {
            name,
            read_only: false,
        })
    }

    /// Somebody who may only look, also where [`actions`](super::Console::actions) are on.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn may_act(&self) -> bool {
        !self.read_only
    }
}
