//! `events list --parked` and `events try-now` of many; and names that were mistyped.

use serde_json::{Value, json};

use crate::support::database::{Kind, on_each_database};
use crate::support::wait_until;
use crate::world::{World, failing, numbered, plain, put_off, refused};

on_each_database![
    what_is_parked_is_listed_in_a_stream_or_in_none,
    what_waits_for_a_time_is_tried_now_all_at_once,
    a_mistyped_source_is_not_all_clear,
    what_waits_for_its_first_sequence_says_so,
    what_is_put_off_is_not_due_and_what_fails_is_seen_beside_a_gap,
    a_reason_says_something,
];

const WHY: [&str; 2] = ["--reason", "the other service is back"];

/// Three that are put off and in no stream, two that wait for their turn.
fn furnish(world: &World) {
    for n in 1..=3 {
        let id = format!("evt_free_{n}");
        assert_eq!(world.send(&put_off(plain(&id))), 202);
    }
    for sequence in [2, 3] {
        assert_eq!(world.send(&numbered("acct", sequence)), 202);
    }
    world.send(&refused(plain("evt_dead")));
}

fn ids(page: &Value) -> Vec<&str> {
    let events = page["events"].as_array().expect("a list").iter();
    let ids = events.map(|event| event["event_id"].as_str().expect("an id"));
    ids.collect()
}

/// §8: what is parked in no stream is in no list of streams.
fn what_is_parked_is_listed_in_a_stream_or_in_none(kind: Kind) {
    let world = World::new(kind);
    let list = ["events", "list", "--parked"];
    assert_eq!(world.run(&list).stdout, "none\n");
    furnish(&world);
    let free = ["evt_free_1", "evt_free_2", "evt_free_3"];
    let acct = ["evt_acct_2", "evt_acct_3"];
    let all = world.json(0, &list);
    assert_eq!(ids(&all), [&acct[..], &free].concat());
    assert_eq!(all["next"], Value::Null);
    let of_crm = [&list[..], &["--source", "crm"]].concat();
    assert_eq!(ids(&world.json(0, &of_crm)), ids(&all));
    let apart = [&list[..], &["--no-stream"]].concat();
    let page = world.json(0, &apart);
    assert_eq!(ids(&page), free);
    for event in page["events"].as_array().expect("a list") {
        assert_eq!(event["state"], "parked");
        assert!(event["not_before"].is_string(), "{event}");
    }
    // Page by page.
    let first = world.json(0, &[&apart[..], &["--limit", "2"]].concat());
    assert_eq!(ids(&first), free[..2]);
    assert_eq!(first["next"]["event_id"], "evt_free_2");
    let more = ["--limit", "2", "--after", "crm", "evt_free_2"];
    let rest = world.json(0, &[&apart[..], &more].concat());
    assert_eq!(
        (ids(&rest), &rest["next"]),
        (free[2..].to_vec(), &Value::Null)
    );
    let text = world.run(&list).stdout;
    for says in ["NEXT TRY", "in 59 min", "in its turn", "evt_free_3"] {
        assert!(text.contains(says), "no {says}: {text}");
    }
    assert!(!text.contains("evt_dead"), "{text}");
    // It is no dead letter.
    for verb in [&["list"][..], &["replay", "--dry-run"]] {
        let dead = [&["dead"], verb, &["--dead-reason", "parked"]].concat();
        world.run(&dead).is(2, "tower-inbox events list --parked");
    }
    world.run(&["events", "list"]).is(2, "--parked");
}

/// §5.5, §5.15
fn what_waits_for_a_time_is_tried_now_all_at_once(kind: Kind) {
    let world = World::new(kind);
    furnish(&world);
    let try_now = ["events", "try-now", "--source", "crm"];
    world
        .run(&[&["events", "try-now"][..], &WHY, &["--yes"]].concat())
        .is(2, "--all");
    world.run(&[&try_now[..], &WHY].concat()).is(2, "--yes");
    let dry = [&try_now[..], &["--dry-run"]].concat();
    let looked = world.json(0, &dry);
    assert_eq!(
        (&looked["matched"], &looked["letters"][2]["event_id"]),
        (&json!(3), &json!("evt_free_3"))
    );
    let text = world.run(&dry).stdout;
    let says = "3 events of crm (3 parked) would be tried now\n";
    assert!(text.ends_with(says), "{text}");
    assert_eq!(world.db.rows("audit"), 0);
    let one = world.json(0, &["events", "try-now", "crm", "evt_free_1", "--dry-run"]);
    assert_eq!((&one["matched"], world.db.rows("audit")), (&json!(1), 0));
    world.mend();
    let do_it = [&try_now[..], &["--no-stream", "--yes"], &WHY].concat();
    let done = world.json(0, &do_it);
    assert_eq!(
        (&done["matched"], &done["done"], &done["refusals"]),
        (&json!(3), &json!(3), &json!([])),
        "{done}"
    );
    wait_until("all are applied", || world.applied().len() == 3);
    assert_eq!(world.db.rows("audit"), 3);
    // Of a real run nothing "would be" done.
    let none = world.run(&do_it);
    assert_eq!(
        (none.status, &*none.stdout),
        (0, "nothing matches; nothing was done\n")
    );
}

/// What is empty since nobody has that name must not read as "all clear".
fn a_mistyped_source_is_not_all_clear(kind: Kind) {
    let world = World::new(kind);
    world.send(&plain("evt_1"));
    wait_until("the counts are written", || world.db.rows("stats") > 0);
    let purge = [
        "purge",
        "crn",
        "--older-than",
        "0s",
        "--insecure-short-retention",
    ];
    let commands: [&[&str]; 10] = [
        &["status", "--source", "crn"],
        &["streams", "--source", "crn"],
        &["dead", "list", "--source", "crn"],
        &["dead", "replay", "--source", "crn", "--dry-run"],
        &["dead", "discard", "--source", "crn", "--dry-run"],
        &["events", "list", "--parked", "--source", "crn"],
        &["events", "try-now", "--source", "crn", "--dry-run"],
        &["audit", "--source", "crn"],
        &["reconcile", "status", "--source", "crn"],
        &[&purge[..], &["--dry-run"]].concat(),
    ];
    for command in commands {
        world
            .run(command)
            .is(1, "nothing is known of source crn; known are crm");
        let known: Vec<_> = command
            .iter()
            .map(|word| if *word == "crn" { "crm" } else { word })
            .collect();
        let known = world.run(&known);
        assert_eq!(known.status, 0, "{command:?}: {known:?}");
    }
    // Of one thing: no decision is even rehearsed on a name that is none.
    let why = &WHY[..];
    let commands: [&[&str]; 6] = [
        &["events", "show", "crn", "evt_1"],
        &["dead", "show", "crn", "evt_1"],
        &[&["events", "try-now", "crn", "evt_1"], why].concat(),
        &["streams", "show", "crn", "acct"],
        &[
            "skip",
            "crn",
            "acct",
            "1",
            "--first-sequence",
            "1",
            "--dry-run",
        ],
        &["skip", "crn", "acct", "1", "--dry-run"],
    ];
    for command in commands {
        world
            .run(command)
            .is(1, "nothing is known of source crn; known are crm");
    }
    // One that was quiet for a day is known all the same.
    world.db.execute("DELETE FROM tower_inbox_stats");
    let quiet = world.run(&["streams", "--source", "crm"]);
    assert_eq!(quiet.status, 0, "{quiet:?}");
}

/// §8: of a stream whose first event was refused there is no cursor.
fn what_waits_for_its_first_sequence_says_so(kind: Kind) {
    let world = World::new(kind);
    world.send(&refused(numbered("acct", 1)));
    let text = world.run(&["streams"]).stdout;
    assert!(text.contains("its first") && !text.contains('?'), "{text}");
}

/// §5.5, §8: a `Park` is no fault of a worker, and a gap elsewhere does not hide a handler that fails.
fn what_is_put_off_is_not_due_and_what_fails_is_seen_beside_a_gap(kind: Kind) {
    let world = World::new(kind);
    assert_eq!(world.send(&put_off(numbered("later", 1))), 202);
    assert_eq!(world.send(&numbered("gap", 2)), 202);
    assert_eq!(world.send(&failing(numbered("acct", 2))), 202);
    assert_eq!(world.send(&numbered("acct", 1)), 204);
    wait_until("the worker has tried it", || {
        world.run(&["streams"]).stdout.contains("tried once (503)")
    });
    let text = world.run(&["streams"]).stdout;
    assert!(text.contains("put off, again in 59 min"), "{text}");
    assert!(!text.contains("due"), "{text}");
    let checked = || world.run(&["check"]).stdout;
    let says = "1 stream (acct at 2) of crm behind an event that fails: tried again by itself";
    let text = checked();
    assert!(
        text.contains("note     failing") && text.contains(says),
        "{text}"
    );
    world
        .db
        .execute("UPDATE tower_inbox_pending SET parked_at = parked_at - 3600000000");
    let text = checked();
    assert!(text.contains("problem  failing"), "{text}");
    assert!(text.contains("problem  gaps"), "{text}");
}

/// §5.15: what goes into the audit table.
fn a_reason_says_something(kind: Kind) {
    let world = World::new(kind);
    furnish(&world);
    world
        .run(&["events", "try-now", "crm", "evt_free_1", "--reason", "  "])
        .is(2, "--reason");
    assert_eq!(world.db.rows("audit"), 0);
}
