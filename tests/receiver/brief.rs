//! The coordination brief: a signed UUID in `Idempotency-Key`.

use crate::support::event::{SECRET, header, mac, now, post};
use crate::support::receiver::Setup;

const KEY: &str = "0191d6b0-7c1e-4d2f-8a3b-5c6d7e8f9a0b";
const BODY: &str = r#"{"event_type":"payment","data":{"account":"acct-b","amount":7}}"#;

/// A delivery signed over `<t>.<signed key>.<body>` that says `said` in its header.
fn delivery(said: Option<&str>, signed: &str, body: &str) -> Vec<u8> {
    let at = now().to_string();
    let mac = mac(
        SECRET.as_bytes(),
        &[at.as_bytes(), signed.as_bytes(), body.as_bytes()],
    );
    let signature = format!("t={at},v1={}", hex::encode(mac));
    let mut headers = vec![header("x-signature", signature)];
    headers.extend(said.map(|key| header("idempotency-key", key)));
    post("brief", &headers, body.as_bytes())
}

/// §4.9, §4.12: both spellings and either case are one key; another body under it is a 422.
#[test]
fn a_key_is_applied_once_however_it_is_spelled() {
    let receiver = Setup::new().set("BRIEF_SECRETS", SECRET).start();
    receiver
        .send(&delivery(Some(KEY), KEY, BODY))
        .is(200, "applied");
    let upper = KEY.to_uppercase();
    for spelled in [
        KEY.to_owned(),
        format!("\"{KEY}\""),
        upper.clone(),
        format!("\"{upper}\""),
    ] {
        receiver
            .send(&delivery(Some(&spelled), KEY, BODY))
            .is(200, "duplicate");
    }
    let other = BODY.replace('7', "8");
    receiver
        .send(&delivery(Some(KEY), KEY, &other))
        .is(422, "rejected")
        .is_problem();
    assert_eq!(receiver.ledger("acct-b"), (7, vec![KEY.to_owned()]));
}

/// §3: the first answer again, byte for byte, after a restart too; not where that is turned off.
#[test]
fn a_duplicate_gets_the_stored_answer_again() {
    for (setting, stored) in [(None, true), (Some("1"), true), (Some("0"), false)] {
        let mut setup = Setup::new().set("BRIEF_SECRETS", SECRET);
        if let Some(setting) = setting {
            setup = setup.set("STORE_RESPONSES", setting);
        }
        let receiver = setup.start();
        let first = receiver.send(&delivery(Some(KEY), KEY, BODY));
        first.is(200, "applied");
        let again = |receiver: &crate::support::receiver::Receiver| {
            let again = receiver.send(&delivery(Some(KEY), KEY, BODY));
            again.is(200, "duplicate");
            let known = again.text() == r#"{"status":"already_processed"}"#;
            assert_eq!(known, !stored, "{again:?}");
            assert_eq!(again.body == first.body, stored, "{again:?}");
        };
        again(&receiver);
        again(&receiver.crash());
    }
}

/// §6.7: the key is signed.
#[test]
fn a_key_that_is_missing_or_not_signed_is_refused() {
    let receiver = Setup::new().set("BRIEF_SECRETS", SECRET).start();
    let other = KEY.replace('0', "1");
    for (said, signed) in [
        (Some(other.as_str()), KEY),
        (Some(KEY), other.as_str()),
        (Some("no uuid"), "no uuid"),
    ] {
        let answer = receiver.send(&delivery(said, signed, BODY));
        assert!([400, 401].contains(&answer.status), "{said:?}: {answer:?}");
    }
    let without = receiver.send(&delivery(None, KEY, BODY));
    assert!([400, 401].contains(&without.status), "{without:?}");
    assert_eq!(receiver.ledger("acct-b"), (0, vec![]));
}
