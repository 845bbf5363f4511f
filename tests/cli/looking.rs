//! What changes nothing: `status`, `streams`, `events`, `dead list`, `audit`, `cursor show`.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::database::{Kind, on_each_database};
use crate::support::wait_until;
use crate::world::{World, numbered, plain, put_off, refused};

on_each_database![
    a_gap_is_seen_with_what_is_parked_behind_it,
    the_whole_story_of_an_event_is_told_and_its_body_on_demand,
    what_a_producer_writes_into_an_id_does_nothing_to_a_terminal,
    pages_go_on_where_the_one_before_ended,
    a_watch_looks_again_and_again,
    no_table_is_wider_than_the_terminal_and_a_pipe_gets_all,
];

/// §8
fn a_gap_is_seen_with_what_is_parked_behind_it(kind: Kind) {
    let world = World::new(kind);
    assert_eq!(world.send(&numbered("acct", 1)), 204);
    for sequence in [3, 4, 6] {
        assert_eq!(world.send(&numbered("acct", sequence)), 202);
    }
    let streams = world.json(0, &["streams"]);
    let stream = &streams["streams"][0];
    assert_eq!(
        streams["streams"].as_array().map(Vec::len),
        Some(1),
        "{streams}"
    );
    for (name, value) in [
        ("source", json!("crm")),
        ("correlation_id", json!("acct")),
        ("next", json!(2)),
        ("first", json!(3)),
        ("last", json!(6)),
        ("parked", json!(3)),
        ("dead", json!(0)),
    ] {
        assert_eq!(stream[name], value, "{name}: {streams}");
    }
    let shown = world.json(0, &["streams", "show", "crm", "acct"]);
    let strip = json!([
        {"first": 2, "last": 2, "state": "missing"},
        {"first": 3, "last": 4, "state": "parked"},
        {"first": 5, "last": 5, "state": "missing"},
        {"first": 6, "last": 6, "state": "parked"},
    ]);
    assert_eq!(shown["strip"], strip);
    assert_eq!(shown["events"][0]["event_id"], "evt_acct_3");
    let text = world.run(&["streams", "show", "crm", "acct"]).stdout;
    let line = "… 1 passed | [2 missing] | 3-4 parked | 5 missing | 6 parked | …";
    assert!(text.contains(line), "{text}");
    let cursor = world.json(0, &["cursor", "show", "crm", "acct"]);
    assert_eq!(
        (&cursor["next"], &cursor["generation"]),
        (&json!(2), &json!(0))
    );
    let status = world.json(0, &["status"]);
    let source = &status["sources"][0];
    assert_eq!(
        (&source["source"], &source["parked"], &source["gaps"]),
        (&json!("crm"), &json!(3), &json!(1))
    );
    let text = world.run(&["status"]).stdout;
    assert!(
        text.starts_with("SOURCE") && text.contains("\ncrm"),
        "{text}"
    );
    let text = world.run(&["status", "--source", "crm"]).stdout;
    assert!(text.contains("gaps") && text.contains("(all)"), "{text}");
    for nothing in [
        &["streams", "show", "crm", "nobody"][..],
        &["cursor", "show", "crm", "nobody"],
        &["status", "--source", "nobody"],
    ] {
        world.run(nothing).is(1, "nobody");
    }
    assert_eq!(world.db.rows("audit"), 0);
}

/// §8: headers and body only where they are asked for, and the body with a trace of who read it.
fn the_whole_story_of_an_event_is_told_and_its_body_on_demand(kind: Kind) {
    let world = World::new(kind);
    let mut event = refused(plain("evt_bad"));
    event["data"]["note"] = "tell nobody".into();
    assert_eq!(world.send(&event), 422);
    let story = world.json(0, &["events", "show", "crm", "evt_bad"]);
    assert_eq!(
        (&story["state"], &story["reason"], &story["last_status"]),
        (&json!("dead"), &json!("rejected"), &json!(422))
    );
    assert_eq!(story["request"]["headers"], Value::Null);
    assert!(!story.to_string().contains("tell nobody"), "{story}");
    let story = world.json(0, &["dead", "show", "crm", "evt_bad", "--headers"]);
    let headers = story["request"]["headers"].to_string();
    assert!(
        headers.contains("content-type") && !headers.contains("x-signature"),
        "{headers}"
    );
    world
        .run(&["events", "show", "crm", "evt_bad", "--body"])
        .is(2, "--reason");
    assert_eq!(world.db.rows("audit"), 0, "nothing was read");
    let read = [
        "events", "show", "crm", "evt_bad", "--body", "--reason", "ticket 7",
    ];
    let story = world.json(0, &read);
    assert_eq!(story["request"]["body"], event.to_string());
    let audit = world.json(0, &["audit"]);
    let entry = &audit["entries"][0];
    assert_eq!(
        (
            &entry["action"],
            &entry["actor"],
            &entry["detail"],
            &entry["event_id"]
        ),
        (
            &json!("show_body"),
            &json!("ada"),
            &json!("ticket 7"),
            &json!("evt_bad")
        )
    );
    let text = world.run(&["events", "show", "crm", "evt_bad"]).stdout;
    for part in ["dead: rejected", "order.paid", "ticket 7"] {
        assert!(text.contains(part), "no {part}: {text}");
    }
    world
        .run(&["events", "show", "crm", "evt_none"])
        .is(1, "never came");
    let lines = |arguments: &[&str]| {
        let page = world.json(0, &[&["audit"][..], arguments].concat());
        page["entries"].as_array().expect("a list").len()
    };
    assert_eq!((lines(&["--by", "ada"]), lines(&["--by", "bob"])), (1, 0));
    let stream = ["--source", "crm", "--correlation-id", "acct"];
    assert_eq!(lines(&stream), 0);
    assert_eq!(world.send(&numbered("acct", 2)), 202);
    let discard = ["dead", "discard", "crm", "evt_acct_2", "--yes"];
    let why = ["--reason", "theirs", "--first-sequence", "1"];
    world.json(0, &[&discard[..], &why].concat());
    assert_eq!(lines(&stream), 1);
    assert_eq!(lines(&[&stream[..], &["--by", "bob"]].concat()), 0);
    world
        .run(&["audit", "--correlation-id", "acct"])
        .is(2, "--source");
}

/// An id, an error and a header may hold escape sequences: shown as text, and exact in JSON.
fn what_a_producer_writes_into_an_id_does_nothing_to_a_terminal(kind: Kind) {
    let world = World::new(kind);
    let id = "a\u{202e}b\u{2066}<script>😀数\u{200b}";
    let mut event = refused(plain(id));
    event["event_type"] = "t\u{202e}".into();
    assert_eq!(world.send(&event), 422);
    let mut parked = numbered("acct\u{202e}\u{feff}", 2);
    parked["event_id"] = "evt\u{2067}".into();
    assert_eq!(world.send(&parked), 202);
    // What no door lets in, and a database may hold all the same.
    world
        .db
        .execute("UPDATE tower_inbox_pending SET last_error = 'x\u{1b}[2J\u{9b}31m\u{7}'");
    let looks: [&[&str]; 6] = [
        &["dead", "list"],
        &["streams"],
        &["events", "show", "crm", id, "--headers"],
        &["streams", "show", "crm", "acct\u{202e}\u{feff}"],
        &["status"],
        &["audit"],
    ];
    for look in looks {
        for json in [&[][..], &["--json"]] {
            let outcome = world.run(&[look, json].concat());
            assert_eq!(outcome.status, 0, "{outcome:?}");
            let active = |c: char| {
                (c.is_control() && c != '\n')
                    || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
            };
            let acts = outcome.stdout.chars().find(|c| active(*c));
            assert_eq!(acts, None, "{look:?}: {outcome:?}");
        }
    }
    let letters = world.json(0, &["dead", "list"]);
    let letter = &letters["letters"][0];
    assert_eq!(
        (&letter["event_id"], &letter["event_type"]),
        (&json!(id), &json!("t\u{202e}"))
    );
    assert_eq!(letter["last_error"], "x\u{1b}[2J\u{9b}31m\u{7}");
    let text = world.run(&["dead", "list"]).stdout;
    assert!(
        text.contains("a\\u{202e}b\\u{2066}<script>😀数\\u{200b}"),
        "{text}"
    );
    let missing = world.run(&["events", "show", "crm", "no\u{1b}[2J"]);
    assert!(
        missing.status == 1 && !missing.stderr.contains('\u{1b}'),
        "{missing:?}"
    );
}

fn pages_go_on_where_the_one_before_ended(kind: Kind) {
    let world = World::new(kind);
    for n in 1..=5 {
        assert_eq!(world.send(&refused(plain(&format!("evt_{n}")))), 422);
        assert_eq!(world.send(&numbered(&format!("acct_{n}"), 2)), 202);
    }
    let walk = |command: &[&str], list: &str, name: &str| {
        let (mut found, mut after) = (Vec::new(), Vec::<String>::new());
        loop {
            let mut arguments = [command, &["--limit", "2"]].concat();
            arguments.extend(after.iter().map(String::as_str));
            let page = world.json(0, &arguments);
            let rows = page[list].as_array().expect("a list");
            assert!(rows.len() <= 2, "{page}");
            found.extend(
                rows.iter()
                    .map(|row| row[name].as_str().expect("an id").to_owned()),
            );
            let next = &page["next"];
            if next.is_null() {
                return found;
            }
            let key = next["event_id"]
                .as_str()
                .or(next["correlation_id"].as_str());
            after = vec!["--after".into(), "crm".into(), key.expect("a key").into()];
        }
    };
    let names = |kind: &str| (1..=5).map(|n| format!("{kind}_{n}")).collect::<Vec<_>>();
    assert_eq!(walk(&["dead", "list"], "letters", "event_id"), names("evt"));
    assert_eq!(
        walk(&["streams"], "streams", "correlation_id"),
        names("acct")
    );
    let only = world.json(0, &["dead", "list", "--dead-reason", "gap"]);
    assert_eq!(only["letters"].as_array().map(Vec::len), Some(0));
    let recent = world.json(
        0,
        &[
            "dead",
            "list",
            "--since",
            "1h",
            "--source",
            "crm",
            "--type",
            "order.paid",
        ],
    );
    assert_eq!(recent["letters"].as_array().map(Vec::len), Some(5));
    let old = world.json(0, &["dead", "list", "--until", "1h"]);
    assert_eq!(old["letters"].as_array().map(Vec::len), Some(0));
}

/// Eighty columns are what a terminal has at least.
fn no_table_is_wider_than_the_terminal_and_a_pipe_gets_all(kind: Kind) {
    const WIDTH: usize = 80;
    let world = World::new(kind);
    let long = "x".repeat(90);
    world.send(&numbered(&long, 100_000_000_000));
    world.send(&numbered(&long, 100_000_000_001));
    world.send(&put_off(plain(&format!("evt_{long}"))));
    let mut bad = refused(plain(&format!("bad_{long}")));
    bad["event_type"] = format!("type.{long}").into();
    world.send(&bad);
    let actor = format!("actor-{long}");
    let why = ["--reason", &long, "--yes", "--actor", &actor];
    world.json(
        0,
        &[&["skip", "crm", &long, "7..9", "--seen", "1"][..], &why].concat(),
    );
    let id = format!("bad_{long}");
    let replay = ["dead", "replay", "crm", &id, "--out-of-order", "--dry-run"];
    world.run(&replay);
    wait_until("the counts are written", || world.db.rows("stats") > 0);
    let looks: [&[&str]; 7] = [
        &["status"],
        &["status", "--source", "crm"],
        &["streams"],
        &["streams", "show", "crm", &long],
        &["events", "list", "--parked"],
        &["dead", "list"],
        &["audit"],
    ];
    for look in looks {
        // The command has its own words for a shell.
        let words = look.join(" ");
        let command = format!("{} {words}", env!("CARGO_BIN_EXE_tower-inbox"));
        let script = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .env("DATABASE_URL", world.db.url())
            .env("COLUMNS", WIDTH.to_string())
            .stdin(Stdio::null())
            .output();
        let Ok(script) = script else {
            eprintln!("NOT TESTED: script is not installed");
            return;
        };
        let shown = String::from_utf8(script.stdout).expect("UTF-8");
        // A table begins with its head, in capitals.
        let head = |line: &&str| {
            line.trim_start()
                .starts_with(|c: char| c.is_ascii_uppercase())
        };
        let lines: Vec<_> = shown.lines().skip_while(|line| !head(line)).collect();
        assert!(lines.len() > 1, "{look:?}: {shown}");
        let is_left_out = |line: &&&str| !line.starts_with('(') || line.starts_with("(all)");
        for line in lines.iter().filter(is_left_out) {
            let line = line.trim_end();
            assert!(line.chars().count() <= WIDTH, "{look:?}: {line}");
        }
        let piped = world.run(look).stdout;
        assert!(!piped.contains('…') || look[0] == "streams", "{piped}");
    }
}

fn a_watch_looks_again_and_again(kind: Kind) {
    let world = World::new(kind);
    let call = world.command(&["streams", "--watch", "0.1", "--json"]);
    let mut child = call.build().spawn().expect("the built command");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut next = || {
        let line = lines.next().expect("it goes on").expect("UTF-8");
        let value: Value = serde_json::from_str(&line).expect("JSON");
        value["streams"].as_array().expect("a list").len()
    };
    assert_eq!(next(), 0);
    assert_eq!(world.send(&numbered("acct", 2)), 202);
    wait_until("the stream is seen", || next() == 1);
    child.kill().expect("it runs still");
    child.wait().expect("it ends");
}
