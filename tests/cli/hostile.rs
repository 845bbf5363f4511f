//! What goes wrong around the command: an interruption, a reader that goes away, a full disk, a file of somebody else, ids that
//! a shell would run.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::database::{Kind, on_each_database};
use crate::support::{Directory, wait_until};
use crate::world::{Call, Outcome, World, numbered, plain, refused};

on_each_database![
    an_interrupted_work_tells_what_was_done_and_is_begun_again,
    an_interrupted_purge_tells_what_was_forgotten,
    many_are_done_as_of_the_look_and_no_later_one,
    a_work_in_bulk_ends_where_the_database_does_nothing,
    a_dry_run_says_what_would_be_refused_and_names_nobody,
    a_page_of_a_strip_calls_nothing_missing_that_is_beyond_it,
    an_id_is_handed_on_to_the_next_page_whatever_it_is,
    a_watch_ends_with_its_reader,
];

const WHY: [&str; 2] = ["--reason", "clean up"];

fn dead(world: &World, ids: &[&str]) {
    for id in ids {
        assert_eq!(world.send(&refused(plain(id))), 422, "{id}");
    }
}

fn discards(world: &World, more: &[&str]) -> Child {
    let all = ["dead", "discard", "--all", "--yes", "--json"];
    let call = world.command(&[&all[..], &WHY, more].concat());
    call.build().spawn().expect("the built command")
}

fn outcome(child: Child) -> Outcome {
    let output = child.wait_with_output().expect("it ends");
    Outcome {
        status: output.status.code().expect("no signal"),
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

fn interrupt(child: &Child) {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status();
    assert!(sent.expect("kill").success());
}

/// §7.1: batch by batch, and none is taken back.
fn an_interrupted_purge_tells_what_was_forgotten(kind: Kind) {
    let world = World::new(kind);
    world.send(&plain("e"));
    for n in 0..14 {
        world.db.execute(&format!(
            "INSERT INTO tower_inbox_event (source, event_id, state, fingerprint, received_at, decided_at)
             SELECT source, CONCAT(event_id, '_{n}'), state, fingerprint, received_at, decided_at FROM tower_inbox_event"
        ));
    }
    let all = 1 << 14;
    assert_eq!(world.db.rows("event"), all);
    let purge = [
        "purge",
        "crm",
        "--older-than",
        "0s",
        "--insecure-short-retention",
        "--yes",
        "--json",
    ];
    let child = world.command(&purge).build().spawn();
    let child = child.expect("the built command");
    wait_until("a batch is forgotten", || world.db.rows("event") < all);
    interrupt(&child);
    let outcome = outcome(child);
    assert_eq!(outcome.status, 130, "{outcome:?}");
    let events = outcome.json()["events"].as_i64().expect("a number");
    assert!(events > 0 && events < all, "{outcome:?}");
    assert_eq!(world.db.rows("event"), all - events);
}

/// §5.15: what was done stays done.
fn an_interrupted_work_tells_what_was_done_and_is_begun_again(kind: Kind) {
    let world = World::new(kind);
    dead(&world, &["e0", "e1", "e2", "e3", "e4", "e5", "e6", "e7"]);
    let child = discards(&world, &["--per-second", "2"]);
    wait_until("one is discarded", || world.db.rows("audit") > 0);
    interrupt(&child);
    let outcome = outcome(child);
    assert_eq!(outcome.status, 130, "{outcome:?}");
    let report = outcome.json();
    let done = report["done"].as_i64().expect("a number");
    assert_eq!(
        (&report["stopped"], &report["left"]),
        (&json!("interrupted"), &json!(0)),
        "{report}"
    );
    assert!((1..8).contains(&done), "{report}");
    assert_eq!(world.db.rows("audit"), done, "each that was done is told");
    assert_eq!(world.db.rows("pending"), 8 - done);
    let rest = discards(&world, &[]);
    assert_eq!(self::outcome(rest).json()["done"], 8 - done);
}

/// §5.15: whoever has said yes to so many has not said yes to what comes after.
fn many_are_done_as_of_the_look_and_no_later_one(kind: Kind) {
    let world = World::new(kind);
    dead(&world, &["e1", "e2", "e3"]);
    let child = discards(&world, &["--per-second", "2"]);
    wait_until("one is discarded", || world.db.rows("audit") > 0);
    dead(&world, &["e4"]);
    let outcome = outcome(child);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    assert_eq!(outcome.json()["done"], 3, "{outcome:?}");
    let left = world.json(0, &["dead", "list"]);
    assert_eq!(left["letters"][0]["event_id"], "e4");
}

/// Each of thousands would take ten seconds to fail.
fn a_work_in_bulk_ends_where_the_database_does_nothing(kind: Kind) {
    let world = World::new(kind);
    let ids: Vec<_> = (0..9).map(|n| format!("e{n}")).collect();
    dead(&world, &ids.iter().map(String::as_str).collect::<Vec<_>>());
    let child = discards(&world, &["--per-second", "2"]);
    wait_until("one is discarded", || world.db.rows("audit") > 0);
    world
        .db
        .execute("ALTER TABLE tower_inbox_audit RENAME TO out_of_the_way");
    let outcome = outcome(child);
    world
        .db
        .execute("ALTER TABLE out_of_the_way RENAME TO tower_inbox_audit");
    assert_eq!(outcome.status, 3, "{outcome:?}");
    let report = outcome.json();
    assert!(report["stopped"].is_string(), "{report}");
    assert_eq!(report["left"], 3, "{report}");
    assert_eq!(report["done"], world.db.rows("audit"));
}

/// A dry run is looked at, and believed.
fn a_dry_run_says_what_would_be_refused_and_names_nobody(kind: Kind) {
    let world = World::new(kind);
    world.send(&numbered("acct", 1));
    world.send(&numbered("acct", 3));
    dead(&world, &["bad"]);
    let dry = |status: i32, arguments: &[&str]| {
        let call = world.command(&[arguments, &["--dry-run", "--json"]].concat());
        let outcome = call.without("USER").outcome();
        assert_eq!(outcome.status, status, "{arguments:?}: {outcome:?}");
        outcome.json()
    };
    let fine = dry(0, &["skip", "crm", "acct", "2"]);
    assert_eq!(fine["objection"], Value::Null, "{fine}");
    let moved = dry(1, &["skip", "crm", "acct", "7", "--seen", "7"]);
    assert!(
        moved["objection"]
            .as_str()
            .is_some_and(|text| text.contains("has moved: it is 2")),
        "{moved}"
    );
    let passed = dry(1, &["skip", "crm", "acct", "1"]);
    assert!(passed["objection"].is_string(), "{passed}");
    let reset = ["cursor", "reset", "crm", "acct", "--to", "1"];
    assert_eq!(dry(0, &reset)["objection"], Value::Null);
    assert!(dry(1, &[&reset[..], &["--seen", "1"]].concat())["objection"].is_string());
    let ahead = ["cursor", "fast-forward", "crm", "acct", "--to", "3"];
    assert_eq!(dry(0, &ahead)["objection"], Value::Null);
    // One that is applied is no dead letter.
    let discard = |status, id| dry(status, &["dead", "discard", "crm", id])["matched"].clone();
    assert_eq!(
        (discard(1, "evt_acct_1"), discard(0, "bad")),
        (json!(0), json!(1))
    );
    let purge = [
        "purge",
        "crm",
        "--older-than",
        "0s",
        "--dead-letters-older-than",
        "0s",
        "--insecure-short-retention",
    ];
    let purged = dry(0, &purge);
    assert_eq!(
        (&purged["events"], &purged["dead_letters"]),
        (&json!(1), &json!(1)),
        "{purged}"
    );
    let parked = ["dead", "discard", "--dead-reason", "parked", "--dry-run"];
    let text = world.run(&parked).stdout;
    assert!(
        text.ends_with("1 event of crm (1 parked) would be discarded\n"),
        "{text}"
    );
    assert_eq!((world.db.rows("audit"), world.db.rows("pending")), (0, 2));
    let done = world.json(0, &[&purge[..], &["--yes"]].concat());
    assert_eq!(
        (&done["events"], &done["dead_letters"]),
        (&json!(1), &json!(1))
    );
}

/// Whoever is to decide by it at night must not see a gap that is none.
fn a_page_of_a_strip_calls_nothing_missing_that_is_beyond_it(kind: Kind) {
    let world = World::new(kind);
    for sequence in 2..=5 {
        world.send(&numbered("acct", sequence));
    }
    let skip = ["skip", "crm", "acct", "9", "--yes"];
    world.json(0, &[&skip[..], &WHY].concat());
    let strip = |more: &[&str]| {
        let show = ["streams", "show", "crm", "acct", "--limit", "2"];
        let strip = world.json(0, &[&show[..], more].concat())["strip"].clone();
        let text = world.run(&[&show[..], more].concat()).stdout;
        (strip, text.lines().nth(1).expect("a strip").to_owned())
    };
    let (first, text) = strip(&[]);
    assert_eq!(
        first,
        json!([
            {"first": 1, "last": 1, "state": "missing"},
            {"first": 2, "last": 3, "state": "parked"},
        ])
    );
    assert!(text.ends_with("[1 missing] | 2-3 parked | …"), "{text}");
    let (second, text) = strip(&["--from", "4"]);
    assert_eq!(
        second,
        json!([
            {"first": 4, "last": 5, "state": "parked"},
            {"first": 6, "last": 8, "state": "missing"},
            {"first": 9, "last": 9, "state": "skipped"},
        ])
    );
    assert!(text.contains("… | 4-5 parked | 6-8 missing"), "{text}");
}

/// A producer chooses its ids; whoever copies the line for the next page runs nothing of them.
fn an_id_is_handed_on_to_the_next_page_whatever_it_is(kind: Kind) {
    let world = World::new(kind);
    for stream in ["$(id)", "-y", "z"] {
        assert_eq!(world.send(&numbered(stream, 2)), 202);
    }
    let page = |after: &[&str]| world.run(&[&["streams", "--limit", "1"][..], after].concat());
    let text = page(&[]).stdout;
    assert!(text.contains("\nmore: --after crm '$(id)'\n"), "{text}");
    let second = page(&["--after", "crm", "$(id)"]).stdout;
    assert!(second.contains("\nmore: --after crm -y\n"), "{second}");
    let third = page(&["--after", "crm", "-y"]);
    assert!(
        third.status == 0 && third.stdout.contains("\ncrm     z"),
        "{third:?}"
    );
    let none = world.run(&["dead", "list", "--after", "crm", "-y"]);
    assert_eq!(
        (none.status, none.stdout.as_str()),
        (0, "none\n"),
        "{none:?}"
    );
}

/// `--watch | head -1` would go on for ever.
fn a_watch_ends_with_its_reader(kind: Kind) {
    let world = World::new(kind);
    for command in ["status", "streams"] {
        let call = world.command(&[command, "--watch", "0.1", "--json"]);
        let mut child = call.build().spawn().expect("the built command");
        let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
        reader.read_line(&mut String::new()).expect("a line");
        drop(reader);
        let mut ended = None;
        wait_until("it ends", || {
            ended = child.try_wait().expect("a child");
            ended.is_some()
        });
        assert!(ended.expect("it has ended").success());
    }
}

/// Whatever is looked at, and it may be of something else altogether: nothing but `migrate` writes to it.
#[test]
fn a_file_that_is_looked_at_stays_as_it_is() {
    let (directory, world) = (Directory::new(), World::empty(Kind::Sqlite));
    let theirs = directory.path().join("theirs.db");
    let url = format!("sqlite://{}?mode=rwc", theirs.display());
    // Not in WAL mode, as SQLite makes files by itself.
    world.runtime.block_on(async {
        let pool = sqlx::SqlitePool::connect(&url).await.expect("a file");
        let table = sqlx::query("CREATE TABLE theirs (x)").execute(&pool).await;
        table.expect("a table");
        pool.close().await;
    });
    let empty = directory.path().join("empty.db");
    fs::write(&empty, "").expect("a file");
    for file in [&theirs, &empty] {
        let before = fs::read(file).expect("a file");
        let looks: [(&[&str], i32); 4] = [
            (&["status"], 4),
            (&["check"], 4),
            (&["dead", "discard", "--all", "--yes", "--reason", "x"], 4),
            (&["migrate", "--dry-run"], 0),
        ];
        for (look, status) in looks {
            let url = format!("sqlite://{}?mode=rwc", file.display());
            let outcome = Call::new(look).env("DATABASE_URL", &url).outcome();
            assert_eq!(outcome.status, status, "{look:?}: {outcome:?}");
            let same = fs::read(file).expect("a file") == before;
            assert!(same, "{look:?} wrote to {}", file.display());
        }
    }
}

/// A script must not take nothing, or half, for the whole.
#[test]
fn a_report_that_cannot_be_written_is_no_success() {
    let Ok(full) = fs::OpenOptions::new().write(true).open("/dev/full") else {
        eprintln!("NOT TESTED: there is no /dev/full");
        return;
    };
    let mut command = Call::new(&["completions", "bash"]).build();
    let output = command.stdout(Stdio::from(full)).output();
    let output = output.expect("the built command");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("standard output"), "{said}");
}

/// Statements of other sessions are left behind on its connections.
#[cfg(feature = "postgres")]
#[test]
fn the_command_works_behind_pgbouncer_and_says_what_that_needs() {
    use crate::support::database::is_wanted;
    use crate::support::server::{Server, find_pgbouncer};
    let found = || match std::env::var("TEST_POSTGRES_URL") {
        Ok(_) => find_pgbouncer(),
        Err(_) => Err("TEST_POSTGRES_URL is not set".into()),
    };
    if !is_wanted(Kind::Postgres, found) {
        return;
    }
    let world = World::new(Kind::Postgres);
    let bouncer = Server::pgbouncer(world.db.url(), 2);
    let (_, name) = world.db.url().rsplit_once('/').expect("a database");
    let (place, _) = bouncer.url.rsplit_once('/').expect("a database");
    let url = format!("{place}/{name}");
    let unnamed = format!("{url}?statement-cache-capacity=0");
    world.send(&numbered("acct", 1));
    world.send(&numbered("acct", 3));
    for round in 0..3 {
        // It works by chance, or says why it does not.
        let named = Call::new(&["status"]).env("DATABASE_URL", &url).outcome();
        if named.status != 0 {
            named.is(1, "statement-cache-capacity=0");
        }
        let skip = [&["skip", "crm", "acct", "2", "--yes"][..], &WHY].concat();
        for command in [&["status"][..], &["streams"], &["check"], &skip] {
            let call = Call::new(command).env("DATABASE_URL", &unnamed);
            let outcome = call.outcome();
            assert_eq!(outcome.status, 0, "{round} {command:?}: {outcome:?}");
        }
    }
    wait_until("the stream goes on", || world.applied().len() == 2);
}
