//! The receiver's settings: each is a variable and a flag, and a wrong one is one line and exit status 2.

use std::process::Output;

#[cfg(feature = "console")]
use crate::support::http;
#[cfg(feature = "console")]
use crate::support::receiver::Receiver;
use crate::support::receiver::Setup;

#[track_caller]
fn is_one_line_and_status_2(output: &Output, named: &str) -> String {
    let text = String::from_utf8(output.stderr.clone()).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{named}: {text}");
    assert!(output.stdout.is_empty(), "{named}: nothing was announced");
    assert_eq!(text.lines().count(), 1, "{named}: {text}");
    assert!(text.starts_with("receiver: "), "{text}");
    text
}

/// A value that cannot be used is refused by its variable's name.
#[test]
fn a_bad_value_is_refused_with_one_line_that_names_the_variable() {
    let cases = [
        ("DATABASE_URL", "receiver.db"),
        ("DATABASE_URL", "oracle://db"),
        ("LISTEN", "nowhere"),
        ("LISTEN", "127.0.0.1"),
        ("LISTEN", "127.0.0.1:99999"),
        ("DELIVERY_BUDGET", "7"),
        ("DELIVERY_BUDGET", "soon"),
        ("DELIVERY_BUDGET", "0s"),
        ("RECOVERY_WINDOW", "5"),
        ("RETENTION", "forever"),
        ("BACKOFF", "1s,,4s"),
        ("BACKOFF", ""),
        ("LEASE", "30"),
        ("LEASE", "10s"),
        ("POOL_SIZE", "0"),
        ("POOL_SIZE", "many"),
        ("POOL_SIZE", "-1"),
        ("MAX_IN_FLIGHT", "0"),
        ("BODY_LIMIT", "big"),
        ("BODY_LIMIT", "0"),
        ("PARK_LIMIT", "-1"),
        ("TOLERANCE", "5"),
        ("FIRST_SEQUENCE", "2"),
        ("FIRST_SEQUENCE", ""),
        ("ADOPT_SETTLE", "soon"),
        ("DEFERRED", "kudos,nobody"),
        ("DEMO_FAULTS", "maybe"),
        ("ALLOW_SHORT_RETENTION", "2"),
        ("CONSOLE_TOKEN", ""),
        ("KUDOS_SECRETS", ""),
        ("KUDOS_SECRETS", "hushA,hushB,hushC"),
        ("KUDOS_SECRETS", "hushA,"),
        ("KUDOS_SECRETS", ","),
        ("STANDARD_SECRETS", ""),
    ];
    for (variable, value) in cases {
        let text = is_one_line_and_status_2(&Setup::new().set(variable, value).refused(), variable);
        assert!(text.contains(variable), "{variable}={value:?}: {text}");
        assert!(!text.contains("hush"), "{text}");
    }
}

/// What the inbox itself refuses to be built with (§7.1, §6.3, secrets that are none).
#[test]
fn a_configuration_that_cannot_be_safe_is_refused() {
    let cases = [
        ("RETENTION", "1h", "retention"),
        ("STANDARD_SECRETS", "whsec_", "standard"),
        ("STANDARD_SECRETS", "whsec_!!!!", "standard"),
        ("KUDOS_SECRETS", "hush,hush", "kudos"),
        ("DATABASE_URL", "sqlite::memory:", "memory"),
    ];
    for (variable, value, named) in cases {
        let text = is_one_line_and_status_2(&Setup::new().set(variable, value).refused(), variable);
        assert!(text.contains(named), "{variable}={value:?}: {text}");
        assert!(!text.contains("hush") && !text.contains("!!!!"), "{text}");
    }
}

/// `CONSOLE_TOKEN`: a console behind it, with actions only where they are turned on.
#[cfg(feature = "console")]
#[test]
fn a_console_is_there_where_a_token_is_set_and_only_looks_unless_told() {
    let get = |receiver: &Receiver, authorization: &str| {
        let headers = [("authorization".to_owned(), authorization.to_owned())];
        let request = http::request("GET", "/console/api/stats", &headers, b"");
        receiver.send(&request)
    };
    let receiver = Setup::new().start();
    assert_eq!(get(&receiver, "Bearer hush").status, 404);
    let receiver = Setup::new().set("CONSOLE_TOKEN", "hush").start();
    assert_eq!(get(&receiver, "Bearer wrong").status, 401);
    let stats = get(&receiver, "Bearer hush");
    assert_eq!(stats.status, 200, "{stats:?}");
    assert_eq!(stats.json()["sources"][0]["source"], "kudos", "{stats:?}");
    let act = |receiver: &Receiver| {
        let headers = [
            ("authorization", "Bearer hush"),
            ("inbox-actor", "ada"),
            ("content-type", "application/x-www-form-urlencoded"),
        ];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let form = b"source=kudos&id=evt_1&reason=a+test";
        receiver.send(&http::request(
            "POST",
            "/console/event/replay",
            &headers,
            form,
        ))
    };
    assert_eq!(act(&receiver).status, 403);
    let setup = Setup::new()
        .set("CONSOLE_TOKEN", "hush")
        .set("CONSOLE_ACTIONS", "1");
    assert_eq!(act(&setup.start()).status, 404, "no such event");
}

/// Defaults may be spelled out.
#[test]
fn a_setting_may_say_what_is_so_anyway() {
    let setup = Setup::new()
        .set("CONSOLE_ACTIONS", "0")
        .set("STORE_RESPONSES", "0")
        .set("LEASE", "40s")
        .set("DEFERRED", "");
    setup.start();
}

/// Every variable is a flag as well, and a flag beats its variable.
#[test]
fn every_variable_is_a_flag_and_help_lists_them() {
    let run = |args: &[&str]| Setup::new().command().args(args).output().expect("it runs");
    let help = run(&["--help"]);
    let text = String::from_utf8(help.stdout).expect("UTF-8");
    // Long lines are broken.
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(help.status.code(), Some(0));
    let variables = [
        "DATABASE_URL",
        "LISTEN",
        "KUDOS_SECRETS",
        "STANDARD_SECRETS",
        "BRIEF_SECRETS",
        "SEQUENCED_SECRETS",
        "STRIPE_SECRETS",
        "GITHUB_SECRETS",
        "SHOPIFY_SECRETS",
        "SLACK_SECRETS",
        "CONSOLE_TOKEN",
        "DELIVERY_BUDGET",
        "RECOVERY_WINDOW",
        "RETENTION",
        "BACKOFF",
        "LEASE",
        "POOL_SIZE",
        "MAX_IN_FLIGHT",
        "BODY_LIMIT",
        "PARK_LIMIT",
        "TOLERANCE",
        "FIRST_SEQUENCE",
        "ADOPT_SETTLE",
        "DEFERRED",
        "STORE_RESPONSES",
        "CONSOLE_ACTIONS",
        "DEMO_FAULTS",
        "ALLOW_SHORT_RETENTION",
    ];
    for variable in variables {
        let flag = format!("--{}", variable.to_ascii_lowercase().replace('_', "-"));
        assert!(
            text.contains(&format!("env {variable}")) && text.contains(&flag),
            "{variable}: {text}"
        );
    }
    let text = is_one_line_and_status_2(&run(&["--pool-size", "0"]), "--pool-size");
    assert!(text.contains("--pool-size"), "{text}");
    is_one_line_and_status_2(&run(&["--no-such-flag"]), "--no-such-flag");
    is_one_line_and_status_2(&run(&["stray"]), "stray");
    let beaten = Setup::new()
        .set("POOL_SIZE", "5")
        .command()
        .arg("--pool-size=0")
        .output()
        .expect("it runs");
    is_one_line_and_status_2(&beaten, "--pool-size");
}

/// An address that is taken, a database that cannot be opened: one line, and status 1, since no setting is malformed.
#[test]
fn what_the_world_refuses_is_one_line_as_well() {
    let running = Setup::new().start();
    let address = running.address.to_string();
    let cases = [
        ("LISTEN", address.as_str()),
        ("DATABASE_URL", "sqlite:///no/such/folder/inbox.db?mode=rwc"),
    ];
    for (variable, value) in cases {
        let output = Setup::new().set(variable, value).refused();
        let text = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(
            text.lines().any(|line| line.starts_with("receiver: ")),
            "{text}"
        );
        assert!(output.stdout.is_empty());
    }
}

/// A back end that is not compiled in is one line that says what is needed; one that is away is one line and status 1,
/// and soon. Neither tells the password.
#[test]
fn a_database_that_cannot_be_had_is_one_line() {
    let cases = [
        ("postgres", "postgres", cfg!(feature = "postgres")),
        ("postgresql", "postgres", cfg!(feature = "postgres")),
        ("mysql", "mysql", cfg!(feature = "mysql")),
        ("mariadb", "mysql", cfg!(feature = "mysql")),
    ];
    for (scheme, feature, compiled) in cases {
        // Nobody listens there.
        let url = format!("{scheme}://user:hush@127.0.0.1:1/app");
        let output = Setup::new().set("DATABASE_URL", &url).refused();
        let text = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.contains("hush") && output.stdout.is_empty(), "{text}");
        if compiled {
            assert_eq!(output.status.code(), Some(1), "{text}");
            assert!(text.contains("the database could not be opened"), "{text}");
            assert!(text.contains("refused"), "{text}");
            let malformed = format!("{scheme}://user:hush@127.0.0.1:port/app");
            let setup = Setup::new().set("DATABASE_URL", &malformed);
            is_one_line_and_status_2(&setup.refused(), "DATABASE_URL");
        } else {
            assert_eq!(output.status.code(), Some(2), "{text}");
            let wanted = format!("{scheme}: needs the feature {feature}");
            assert!(text.contains(&wanted), "{text}");
        }
    }
}
