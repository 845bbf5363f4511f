//! `dead replay`, `dead discard`, `dead release` and `purge`.

use serde_json::json;

use crate::support::database::{Kind, on_each_database};
use crate::support::wait_until;
use crate::world::{World, numbered, plain, refused};

on_each_database![
    one_dead_letter_is_replayed_or_discarded,
    a_replay_says_what_comes_of_it_and_may_wait_for_that,
    what_waits_for_its_backoff_says_when_and_is_tried_now,
    many_are_dealt_with_at_once_after_a_look,
    what_is_old_is_forgotten_and_floors_are_respected,
];

const WHY: [&str; 2] = ["--reason", "the account exists now"];

/// §5.15, §5.10
fn one_dead_letter_is_replayed_or_discarded(kind: Kind) {
    let world = World::new(kind);
    // The first of its stream: its cursor went with the handler's work.
    world.send(&refused(numbered("acct", 1)));
    world.send(&refused(plain("evt_free")));
    world.send(&refused(plain("evt_never")));
    let replay = |id: &'static str| [&["dead", "replay", "crm", id][..], &WHY].concat();
    let dry = world.json(0, &["dead", "replay", "crm", "evt_acct_1", "--dry-run"]);
    assert_eq!(
        (&dry["matched"], &dry["letters"][0]["event_id"]),
        (&json!(1), &json!("evt_acct_1"))
    );
    assert_eq!(world.db.rows("audit"), 0);
    world.mend();
    for id in ["evt_acct_1", "evt_free"] {
        assert_eq!(world.json(0, &replay(id))["changed"], true, "{id}");
    }
    wait_until("both are applied", || world.applied().len() == 2);
    assert_eq!(world.send(&numbered("acct", 2)), 204);
    assert_eq!(world.json(0, &replay("evt_free"))["changed"], false);
    world.run(&replay("evt_none")).is(1, "never came");
    let discard = |id: &'static str| [&["dead", "discard", "crm", id, "--yes"][..], &WHY].concat();
    assert_eq!(world.json(0, &discard("evt_never"))["changed"], true);
    assert_eq!(world.json(0, &discard("evt_never"))["changed"], false);
    world.run(&discard("evt_free")).is(1, "applied");
    world.run(&replay("evt_never")).is(1, "discarded");
    assert_eq!(world.send(&refused(plain("evt_never"))), 200, "it is known");
    assert_eq!(world.db.rows("pending"), 0);
    // The fence holds nothing of these.
    let release = [&["dead", "release", "crm", "evt_never"][..], &WHY].concat();
    assert_eq!(world.json(0, &release)["changed"], false);
}

/// §5.15: whoever puts something back wants to know whether it is done then.
fn a_replay_says_what_comes_of_it_and_may_wait_for_that(kind: Kind) {
    let mut world = World::new(kind);
    world.send(&refused(numbered("acct", 1)));
    world.send(&numbered("acct", 2));
    world.send(&refused(plain("evt_free")));
    let discard = ["dead", "discard", "crm", "evt_acct_2", "--yes"];
    world.json(0, &[&discard[..], &WHY].concat());
    let mut third = refused(numbered("acct", 4));
    third["event_id"] = "evt_third".into();
    world.send(&third);
    world.stop();
    // Behind what is not applied, and with nobody there.
    let dead = "UPDATE tower_inbox_pending SET reason = 3 WHERE event_id = 'evt_third'";
    world.db.execute(dead);
    world
        .db
        .execute("UPDATE tower_inbox_event SET state = 3 WHERE event_id = 'evt_third'");
    world
        .db
        .execute("UPDATE tower_inbox_alive SET at = at - 3600000000");
    let third = [&["dead", "replay", "crm", "evt_third"][..], &WHY].concat();
    let text = world.run(&third).stdout;
    let says = "put back; it waits behind sequence 1 (held by dead letter evt_acct_1 (rejected)), and then a receiver, of which none";
    assert!(text.starts_with(says), "{text}");
    assert_eq!(
        world.json(0, &third),
        json!({"changed": false, "state": "parked", "waits_for": 1})
    );
    let free = [&["dead", "replay", "crm", "evt_free"][..], &WHY].concat();
    let waited = world.run(&[&free[..], &["--wait", "1s"]].concat());
    assert_eq!(waited.status, 1, "{waited:?}");
    assert!(
        waited
            .stdout
            .contains("put back; not applied within 1 s: its turn is there"),
        "{waited:?}"
    );
    world.start();
    // It is refused once more, which is told too.
    let waited = world.run(&[&free[..], &["--wait"]].concat());
    assert_eq!(waited.status, 1, "{waited:?}");
    assert!(
        waited.stdout.contains("it is a dead letter: rejected, 422"),
        "{waited:?}"
    );
    world.mend();
    let waited = world.run(&[&free[..], &["--wait"]].concat());
    assert_eq!(
        (waited.status, &*waited.stdout),
        (0, "put back; it is applied\n")
    );
    world
        .run(&[&["dead", "replay", "--all", "--yes", "--wait"][..], &WHY].concat())
        .is(2, "--wait is for one");
}

/// §5.5, §5.15
fn what_waits_for_its_backoff_says_when_and_is_tried_now(kind: Kind) {
    let world = World::new(kind);
    let mut failing = numbered("acct", 2);
    failing["data"] = json!({"status": 503});
    world.send(&failing);
    world.send(&numbered("acct", 3));
    world.send(&numbered("acct", 1));
    let show = ["events", "show", "crm", "evt_acct_2"];
    wait_until("it has failed", || {
        world.json(0, &show)["last_status"] == 503
    });
    let story = world.json(0, &show);
    assert!(story["not_before"].is_string(), "{story}");
    let text = world.run(&show).stdout;
    for says in [
        "so far, last status 503",
        "next attempt",
        "min: events try-now",
    ] {
        assert!(text.contains(says), "no {says}: {text}");
    }
    let behind = world.run(&["events", "show", "crm", "evt_acct_3"]).stdout;
    assert!(
        behind.contains("when its turn is there, behind 2"),
        "{behind}"
    );
    let streams = world.run(&["streams"]).stdout;
    assert!(streams.contains("(503), again in"), "{streams}");
    let table = world.run(&["streams", "show", "crm", "acct"]).stdout;
    assert!(
        table.contains("NEXT TRY") && table.contains(" min "),
        "{table}"
    );
    world.mend();
    let try_now = |id: &'static str| [&["events", "try-now", "crm", id][..], &WHY].concat();
    assert_eq!(world.json(0, &try_now("evt_acct_3"))["waits_for"], 2);
    assert_eq!(world.json(0, &try_now("evt_acct_2"))["changed"], true);
    wait_until("all are applied", || world.applied().len() == 3);
    assert_eq!(world.json(0, &try_now("evt_acct_2"))["changed"], false);
    world.run(&try_now("evt_none")).is(1, "never came");
    world.send(&numbered("other", 1));
    let letter = "UPDATE tower_inbox_event SET state = 3 WHERE event_id = 'evt_other_1'";
    world.db.execute(letter);
    world.run(&try_now("evt_other_1")).is(1, "dead replay");
}

/// §5.15: a look first, at a pace, by what is asked for; and again, which changes nothing.
fn many_are_dealt_with_at_once_after_a_look(kind: Kind) {
    let world = World::new(kind);
    for n in 1..=6 {
        world.send(&refused(plain(&format!("evt_{n}"))));
        world.send(&refused(numbered(&format!("acct_{n}"), 1)));
    }
    world
        .run(&[&["dead", "replay", "--yes"][..], &WHY].concat())
        .is(2, "--all");
    let dry = world.json(0, &["dead", "replay", "--all", "--dry-run"]);
    assert_eq!(
        (&dry["matched"], dry["letters"].as_array().map(Vec::len)),
        (&json!(12), Some(12))
    );
    let text = world.run(&["dead", "discard", "--all", "--dry-run"]).stdout;
    assert!(
        text.contains("12 dead letters of crm (12 rejected) would be discarded"),
        "{text}"
    );
    assert_eq!((world.db.rows("pending"), world.db.rows("audit")), (12, 0));
    world.mend();
    let some = [
        &["dead", "replay", "--correlation-id", "acct_3", "--yes"][..],
        &WHY,
    ]
    .concat();
    let done = world.json(0, &some);
    assert_eq!(
        (&done["matched"], &done["done"]),
        (&json!(1), &json!(1)),
        "{done}"
    );
    wait_until("it is applied", || world.applied() == ["evt_acct_3_1"]);
    let all = [
        &["dead", "replay", "--all", "--yes", "--per-second", "1000"][..],
        &WHY,
    ]
    .concat();
    let done = world.json(0, &all);
    assert_eq!(
        (&done["done"], &done["left"], &done["stopped"]),
        (&json!(11), &json!(0), &json!(null)),
        "{done}"
    );
    wait_until("all are applied", || world.applied().len() == 12);
    assert_eq!(world.json(0, &all)["matched"], 0);
    for n in 7..=9 {
        let mut event = plain(&format!("evt_{n}"));
        event["data"] = json!({"status": 422});
        world.send(&event);
    }
    let none = [
        &["dead", "discard", "--dead-reason", "gap", "--yes"][..],
        &WHY,
    ]
    .concat();
    assert_eq!(world.json(0, &none)["matched"], 0);
    assert_eq!(world.db.rows("pending"), 0);
}

/// §7.1
fn what_is_old_is_forgotten_and_floors_are_respected(kind: Kind) {
    let world = World::new(kind);
    for n in 1..=3 {
        world.send(&plain(&format!("evt_{n}")));
    }
    world.send(&numbered("acct", 1));
    let purge = |more: &[&'static str]| [&["purge", "crm"][..], more].concat();
    world
        .run(&purge(&["--older-than", "30d", "--yes"]))
        .is(2, "--preset");
    world
        .run(&purge(&[
            "--older-than",
            "30d",
            "--preset",
            "nobody",
            "--yes",
        ]))
        .is(2, "nobody");
    let short = ["--older-than", "1s", "--preset", "sequenced", "--yes"];
    world
        .run(&purge(&short))
        .is(1, "--insecure-short-retention");
    let due = ["--older-than", "30d", "--preset", "sequenced", "--yes"];
    assert_eq!(world.json(0, &purge(&due))["events"], 0);
    let all = ["--older-than", "0s", "--insecure-short-retention"];
    let dry = world.json(0, &[&purge(&all)[..], &["--dry-run"]].concat());
    assert_eq!((&dry["dry_run"], &dry["events"]), (&json!(true), &json!(4)));
    assert_eq!(world.db.rows("event"), 4);
    let done = world.json(0, &[&purge(&all)[..], &["--yes"]].concat());
    assert_eq!((&done["events"], world.db.rows("event")), (&json!(4), 0));
    let done = world.json(0, &[&purge(&all)[..], &["--yes"]].concat());
    assert_eq!(done["events"], 0);
    // Its cursor stays: what comes again is known by that.
    assert_eq!(world.db.rows("cursor"), 1);
    assert_eq!(world.send(&numbered("acct", 2)), 204);
}
