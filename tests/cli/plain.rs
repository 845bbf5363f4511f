//! What needs no database: completions, help, and that no password shows.

use std::process::{Command, Stdio};

use crate::world::Call;

#[test]
fn completions_name_every_command() {
    let commands = [
        "migrate",
        "check",
        "status",
        "streams",
        "events",
        "dead",
        "skip",
        "cursor",
        "purge",
        "reconcile",
        "audit",
        "explain",
        "send",
    ];
    for shell in ["bash", "zsh", "fish"] {
        let outcome = Call::new(&["completions", shell]).outcome();
        assert_eq!(outcome.status, 0, "{outcome:?}");
        for name in commands {
            assert!(outcome.stdout.contains(name), "{shell} lacks {name}");
        }
        assert!(outcome.stdout.contains("dry-run"), "{shell}");
        // Where the shell is there, it can read them.
        let script =
            std::env::temp_dir().join(format!("tower-inbox-{}.{shell}", std::process::id()));
        std::fs::write(&script, &outcome.stdout).expect("a file");
        let checked = Command::new(shell)
            .arg("-n")
            .arg(&script)
            .stderr(Stdio::inherit())
            .status();
        std::fs::remove_file(&script).expect("it is there");
        match checked {
            Ok(status) => assert!(status.success(), "{shell} cannot read it"),
            Err(_) => eprintln!("NOT TESTED: {shell} is not installed"),
        }
    }
    Call::new(&["completions", "tcsh"]).outcome().is(2, "tcsh");
}

/// A script that bash can read may still complete nothing.
#[test]
fn bash_completes_what_stands_behind_a_subcommand() {
    let script = Call::new(&["completions", "bash"]).outcome().stdout;
    let ask = r#"
        complete() { function=$(printf '%s\n' "$@" | grep '^_'); }
        eval "$SCRIPT"
        ask() {
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
            "$function" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
            echo "${COMPREPLY[*]}"
        }
        ask tower-inbox dead rep
        ask tower-inbox cursor reset --fi
        ask tower-inbox dead replay --first-sequence a
    "#;
    let asked = Command::new("bash")
        .args(["--norc", "--noprofile", "-c", ask])
        .env("SCRIPT", script)
        .output();
    let Ok(asked) = asked else {
        eprintln!("NOT TESTED: bash is not installed");
        return;
    };
    let said = String::from_utf8_lossy(&asked.stdout);
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines, ["replay", "--first-sequence", "adopt"], "{asked:?}");
}

#[test]
fn the_help_says_what_an_exit_status_means() {
    let help = Call::new(&["--help"]).outcome();
    assert_eq!(help.status, 0);
    for part in ["Exit status:", "migrate", "skip", "DATABASE_URL", "--json"] {
        assert!(help.stdout.contains(part), "no {part}: {help:?}");
    }
    for command in [
        &["dead", "replay"][..],
        &["reconcile"],
        &["cursor", "reset"],
        &["send"],
    ] {
        let help = Call::new(&[command, &["--help"]].concat()).outcome();
        assert_eq!(help.status, 0, "{help:?}");
    }
    let help = Call::new(&["reconcile", "--help"]).outcome();
    assert!(help.stdout.contains("handler"), "{help:?}");
    for wrong in [
        &[][..],
        &["nonsense"],
        &["dead"],
        &["skip", "crm"],
        &["skip", "a", "b", "9..7"],
    ] {
        assert_eq!(Call::new(wrong).outcome().status, 2, "{wrong:?}");
    }
}

#[test]
fn a_database_is_demanded_and_one_that_is_not_compiled_in_is_named() {
    Call::new(&["status"]).outcome().is(2, "DATABASE_URL");
    Call::new(&["status", "--database-url", "oracle://x"])
        .outcome()
        .is(2, "sqlite:");
    for (url, feature, compiled) in [
        (
            "postgres://127.0.0.1:1/x",
            "postgres",
            cfg!(feature = "postgres"),
        ),
        (
            "postgresql://127.0.0.1:1/x",
            "postgres",
            cfg!(feature = "postgres"),
        ),
        ("mysql://127.0.0.1:1/x", "mysql", cfg!(feature = "mysql")),
        ("mariadb://127.0.0.1:1/x", "mysql", cfg!(feature = "mysql")),
    ] {
        let outcome = Call::new(&["status"]).env("DATABASE_URL", url).outcome();
        if compiled {
            outcome.is(3, "cannot be asked");
        } else {
            outcome.is(2, feature);
        }
    }
}

/// Nothing secret in any output.
#[test]
fn no_password_shows_wherever_it_was_typed() {
    let url = "postgres://ada:hunter2@127.0.0.1:1/inbox";
    let calls = [
        Call::new(&["status"]).env("DATABASE_URL", url),
        Call::new(&["status", "--database-url", url]),
        Call::new(&["status", url]),
        Call::new(&[url]),
        Call::new(&["status", "--help"]).env("DATABASE_URL", url),
        Call::new(&["skip", "crm", "acct", url]),
        // What should have been escaped.
        Call::new(&["status", "postgres://ada:x hunter2@127.0.0.1:1/inbox"]),
        Call::new(&["status", "postgres://ada:it's hunter2@127.0.0.1:1/inbox"]),
        Call::new(&[
            "send",
            "kudos",
            "--url",
            "http://ada:hunter2@127.0.0.1:1/",
            "--secret",
            "x",
            "--dry-run",
        ]),
        Call::new(&["status"]).env("DATABASE_URL", "mysql://ada:hunter2@127.0.0.1:port/inbox"),
        Call::new(&["status"]).env("DATABASE_URL", "nosql://ada:hunter2@h/inbox"),
        Call::new(&[
            "send",
            "kudos",
            "--url",
            "http://h/",
            "--secret",
            "hunter2",
            "--nonsense",
        ]),
        Call::new(&[
            "send",
            "kudos",
            "--url",
            "http://h/",
            "--secret",
            "hunter2",
            "--dry-run",
        ]),
        Call::new(&[
            "send",
            "kudos",
            "--url",
            "http://127.0.0.1:1/",
            "--secret",
            "hunter2",
        ]),
    ];
    for call in calls {
        let outcome = call.outcome();
        assert!(!outcome.stdout.contains("hunter2"), "{outcome:?}");
        assert!(!outcome.stderr.contains("hunter2"), "{outcome:?}");
    }
    let typed = Call::new(&["status", "--database-url", url]).outcome();
    assert!(typed.stderr.contains("DATABASE_URL"), "{typed:?}");
}

/// Nobody mends his command line three times.
#[test]
fn all_that_is_wrong_with_a_command_line_is_told_at_once() {
    let commands: [&[&str]; 4] = [
        &["dead", "discard", "crm", "evt_1"],
        &["skip", "crm", "acct", "4"],
        &["cursor", "reset", "crm", "acct", "--to", "1"],
        &["dead", "replay"],
    ];
    for command in commands {
        let outcome = Call::new(command).without("USER").outcome();
        for says in ["--reason", "--actor", "--yes", "DATABASE_URL"] {
            outcome.is(2, says);
        }
    }
    let outcome = Call::new(&["dead", "replay"]).outcome();
    outcome.is(2, "--all");
    outcome.is(2, "--reason");
    let dry = Call::new(&["skip", "crm", "acct", "4", "--dry-run"]);
    let outcome = dry.without("USER").outcome();
    outcome.is(2, "DATABASE_URL");
    assert!(!outcome.stderr.contains("--actor"), "{outcome:?}");
}
