//! `dead replay`, `dead discard`, `dead release` and `purge`.

use serde_json::json;

use crate::support::database::{Kind, on_each_database};
use crate::support::wait_until;
use crate::world::{World, numbered, plain, refused};

on_each_database![
    one_dead_letter_is_replayed_or_discarded,
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
