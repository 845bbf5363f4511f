//! Rotation, and the sources of secrets.

mod elsewhere;

use super::*;

fn secret(text: &str) -> Secret {
    Secret::text(text).unwrap()
}

fn labels(secrets: &Secrets) -> Vec<String> {
    secrets
        .active()
        .into_iter()
        .map(|secret| secret.label.to_string())
        .collect()
}

/// §6.1: add, demote, revoke; never a third, never none.
#[test]
fn a_rotation_from_start_to_end() {
    let secrets = Secrets::new([secret("a")]).unwrap();
    let shared = secrets.clone();
    let before = secrets.snapshot().unwrap();
    secrets.rotate(secret("b").labelled("march")).unwrap();
    assert_eq!(labels(&shared), ["march", "secret-1"]);
    assert_eq!(before.iter().count(), 1, "a snapshot does not change");
    assert_eq!(shared.snapshot().unwrap().newest().label(), "march");
    assert_eq!(secrets.rotate(secret("c")), Err(SecretError::TooMany));
    assert_eq!(secrets.revoke("nobody"), Err(SecretError::UnknownLabel));
    secrets.revoke("secret-1").unwrap();
    assert_eq!(secrets.revoke("march"), Err(SecretError::None));
    secrets.rotate(secret("c")).unwrap();
    assert_eq!(
        labels(&shared),
        ["secret-2", "march"],
        "a number is not given twice"
    );
}

/// §6.1
#[test]
fn sets_that_are_refused() {
    assert_eq!(Secrets::new([]).unwrap_err(), SecretError::NoneGiven);
    assert_eq!(
        Secrets::new(["a", "b", "c"].map(secret)).unwrap_err(),
        SecretError::TooManyGiven(3)
    );
    assert_eq!(
        Secrets::new(["a", "a"].map(secret)).unwrap_err(),
        SecretError::SameKeyGiven
    );
    for (given, text) in [
        (
            &["a", "b", "c"][..],
            "3 secrets given: give one or two, newest first",
        ),
        (&[], "give one or two secrets, newest first"),
        (&["a", "a"], "the two secrets are the same"),
    ] {
        let refused = Secrets::new(given.iter().map(|text| secret(text)));
        assert_eq!(refused.unwrap_err().to_string(), text);
    }
    assert!(Secrets::new(std::iter::repeat_with(|| secret("a"))).is_err());
    let same = ["a", "b"].map(|text| secret(text).labelled("x"));
    assert_eq!(Secrets::new(same).unwrap_err(), SecretError::DuplicateLabel);
}

/// §6.1. A broken replacement keeps the old secrets; a key that stays keeps its name.
#[test]
fn replacing_the_whole_set() {
    let secrets = Secrets::new([secret("a")]).unwrap();
    assert_eq!(secrets.replace([]), Err(SecretError::NoneGiven));
    assert_eq!(labels(&secrets), ["secret-1"]);
    secrets.replace([secret("b"), secret("a")]).unwrap();
    assert_eq!(labels(&secrets), ["secret-2", "secret-1"]);
}

/// §6.5: neither the handle nor a snapshot prints a secret.
#[test]
fn debug_prints_labels_only() {
    let secrets = Secrets::new([secret("hunter2")]).unwrap();
    assert_eq!(format!("{secrets:?}"), r#"Secrets(["secret-1"])"#);
}
