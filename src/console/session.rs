//! Who is signed in: a signed cookie, of which the server stores nothing; and the tokens of its forms.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use http::HeaderMap;
use http::header::COOKIE;

use super::access::{Actor, Token, Way};
use super::keys;
use crate::clock::Timestamp;

/// Who came by a token.
pub(super) const SESSION: &str = "inbox_console";
/// Beside a check of the user's own: what the forms' tokens are bound to.
pub(super) const FORMS: &str = "inbox_console_forms";
/// What is said on the next page.
pub(super) const FLASH: &str = "inbox_console_said";

/// A new cookie's value: name, end, a number that makes it another one each time, and the MAC of these.
pub(super) fn issue(token: &Token, actor: &Actor, until: Timestamp) -> Option<String> {
    let signed = format!(
        "{}.{}.{}",
        BASE64.encode(actor.name()),
        until.as_secs(),
        keys::nonce()?
    );
    let mac = keys::mac(token.key(), &[b"session", signed.as_bytes()]);
    Some(format!("{signed}.{}", hex::encode(mac)))
}

/// Whose it is, if it is one of ours and not over.
pub(super) fn read(token: &Token, cookie: &str, now: Timestamp) -> Option<Actor> {
    let (signed, mac) = cookie.rsplit_once('.')?;
    if !keys::is_mac_hex(token.key(), &[b"session", signed.as_bytes()], mac) {
        return None;
    }
    let mut parts = signed.split('.');
    let name = BASE64.decode(parts.next()?).ok()?;
    let until: i64 = parts.next()?.parse().ok()?;
    if until <= now.as_secs() {
        return None;
    }
    Actor::new(String::from_utf8(name).ok()?)
}

/// What every form carries. The cookie is the key: a page of somebody else's cannot read it, and so cannot know this.
pub(super) fn form_token(cookie: &str, actor: &Actor) -> String {
    let mac = keys::mac(cookie.as_bytes(), &[b"form", actor.name().as_bytes()]);
    hex::encode(mac)
}

pub(super) fn is_form_token(cookie: &str, actor: &Actor, token: &str) -> bool {
    let parts: [&[u8]; 2] = [b"form", actor.name().as_bytes()];
    keys::is_mac_hex(cookie.as_bytes(), &parts, token)
}

/// What is to be said on the next page, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flash {
    pub(super) good: bool,
    pub(super) text: String,
}

/// A cookie has about 4,000 bytes.
const LONGEST_FLASH: usize = 1_000;

impl Flash {
    /// Signed, so that nobody else puts words into the console's mouth.
    pub(super) fn to_cookie(&self, key: &str) -> String {
        let mut text = self.text.as_str();
        if text.len() > LONGEST_FLASH {
            text = &text[..text.floor_char_boundary(LONGEST_FLASH)];
        }
        let signed = format!("{}{}", u8::from(self.good), BASE64.encode(text));
        let mac = keys::mac(key.as_bytes(), &[b"flash", signed.as_bytes()]);
        format!("{signed}.{}", hex::encode(mac))
    }

    pub(super) fn from_cookie(key: &str, cookie: &str) -> Option<Self> {
        let (signed, mac) = cookie.split_once('.')?;
        if !keys::is_mac_hex(key.as_bytes(), &[b"flash", signed.as_bytes()], mac) {
            return None;
        }
        let text = BASE64.decode(signed.get(1..)?).ok()?;
        Some(Self {
            good: signed.starts_with('1'),
            text: String::from_utf8(text).ok()?,
        })
    }
}

fn cookies(headers: &HeaderMap, name: String) -> impl Iterator<Item = &str> {
    headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(move |(key, _)| *key == name.as_str())
        .map(|(_, value)| value)
}

/// What the cookies of a console are told apart by: browsers send a host's cookies to all its ports, and two consoles would
/// sign each other out, or have each other's words. Processes that share sessions have the same.
#[derive(Clone, Debug)]
pub(super) struct Mark(String);

impl Mark {
    pub(super) fn of(way: &Way, table_prefix: &str) -> Self {
        let key = match way {
            Way::Token(token) => token.key(),
            // Who comes in is somebody else's to say; only words and forms are ours.
            Way::Check(_) => &[],
        };
        let mac = keys::mac(key, &[b"cookies", table_prefix.as_bytes()]);
        // As many as tell the consoles of one host apart.
        Self(hex::encode(&mac[..4]))
    }
}

/// How cookies are set: for this console's paths alone, out of reach of scripts, and of other sites' forms and frames.
#[derive(Clone, Debug)]
pub(super) struct Jar {
    pub(super) path: String,
    pub(super) secure: bool,
    pub(super) mark: Mark,
}

impl Jar {
    fn name(&self, name: &str) -> String {
        format!("{name}_{}", self.mark.0)
    }

    /// The first one of this name.
    pub(super) fn get<'a>(&self, headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
        cookies(headers, self.name(name)).next()
    }

    /// All of this name: another site of the same domain can put one of its own before ours.
    pub(super) fn all<'a>(
        &self,
        headers: &'a HeaderMap,
        name: &str,
    ) -> impl Iterator<Item = &'a str> + use<'a> {
        cookies(headers, self.name(name))
    }

    /// No lifetime: as long as the browser runs. Zero: it is removed.
    ///
    /// `Lax`, so that a link in a chat or a mail opens its page, and does not ask for the token again: what comes so can only
    /// look, and whoever made the link does not see it. All that acts is a POST, for which browsers send no such cookie from
    /// elsewhere, and which needs the form's token and the console's own origin besides.
    pub(super) fn set(&self, name: &str, value: &str, lifetime: Option<Duration>) -> String {
        let path = match self.path.as_str() {
            "" => "/",
            path => path,
        };
        let name = self.name(name);
        let mut cookie = format!("{name}={value}; Path={path}; HttpOnly; SameSite=Lax");
        if let Some(lifetime) = lifetime {
            cookie.push_str(&format!("; Max-Age={}", lifetime.as_secs()));
        }
        if self.secure {
            cookie.push_str("; Secure");
        }
        cookie
    }

    pub(super) fn remove(&self, name: &str) -> String {
        self.set(name, "", Some(Duration::ZERO))
    }
}

#[cfg(test)]
mod tests {
    use super::super::access::Access;
    use super::*;

    fn with_token(token: &str, then: impl FnOnce(&Token)) {
        match Access::token(token).expect("long enough").0 {
            Way::Token(token) => then(&token),
            Way::Check(_) => unreachable!("a token was asked for"),
        }
    }

    #[test]
    fn a_session_is_known_by_every_process_with_the_token_until_it_ends() {
        let ada = Actor::new("Ada ✓").expect("a name");
        let until = Timestamp::from_secs(1_000);
        let mut cookie = String::new();
        with_token("the token of the two", |token| {
            cookie = issue(token, &ada, until).expect("random numbers");
        });
        with_token("the token of the two", |token| {
            let read = |at| read(token, &cookie, Timestamp::from_secs(at));
            assert_eq!((read(999), read(1_000)), (Some(ada.clone()), None));
        });
        with_token("the token of a third", |token| {
            assert_eq!(read(token, &cookie, Timestamp::from_secs(1)), None);
        });
    }

    #[test]
    fn a_session_that_was_changed_is_none() {
        let ada = Actor::new("ada").expect("a name");
        with_token("the token of the two", |token| {
            let cookie = issue(token, &ada, Timestamp::from_secs(1_000)).expect("random numbers");
            let later = cookie.replacen(".1000.", ".9999.", 1);
            let other = cookie.replacen(&BASE64.encode("ada"), &BASE64.encode("bob"), 1);
            for changed in [&later, &other, &cookie[1..], ""] {
                assert_ne!(changed, &cookie);
                assert_eq!(
                    read(token, changed, Timestamp::from_secs(1)),
                    None,
                    "{changed}"
                );
            }
        });
    }

    #[test]
    fn a_form_is_bound_to_its_session_and_actor() {
        let [ada, bob] = ["ada", "bob"].map(|name| Actor::new(name).expect("a name"));
        let token = form_token("cookie", &ada);
        assert!(is_form_token("cookie", &ada, &token));
        assert!(!is_form_token("another", &ada, &token));
        assert!(!is_form_token("cookie", &bob, &token));
        assert!(!is_form_token("cookie", &ada, ""));
    }

    #[test]
    fn what_is_said_next_cannot_be_put_in_by_others() {
        let flash = Flash {
            good: true,
            text: "Skipped 3 – “lost”".into(),
        };
        let cookie = flash.to_cookie("key");
        assert_eq!(Flash::from_cookie("key", &cookie), Some(flash));
        assert_eq!(Flash::from_cookie("another", &cookie), None);
        let long = Flash {
            good: false,
            text: "🦀".repeat(1_000),
        };
        let cut = Flash::from_cookie("key", &long.to_cookie("key")).expect("read");
        assert!(cut.text.len() <= LONGEST_FLASH && long.text.starts_with(&cut.text));
    }
}
