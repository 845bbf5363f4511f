//! `--dry-run`: what it says is what would happen, and its status is the one that the action has.

use serde_json::{Value, json};

use crate::support::database::{Kind, on_each_database};
use crate::world::{World, numbered, plain, put_off, refused};

on_each_database![
    a_dry_run_ends_as_the_action_does,
    a_dry_run_in_bulk_says_what_of_those_that_it_names_would_be_refused,
    a_dry_run_says_what_becomes_due,
    one_is_one_and_what_was_not_done_was_not_done,
];

/// The states of all that is stored, which no dry run changes.
fn rows(world: &World) -> Vec<i64> {
    let tables = ["event", "pending", "cursor", "range", "audit"];
    tables.iter().map(|table| world.db.rows(table)).collect()
}

/// §5.15: of every verb that has one; of what is refused, and of what is so already.
fn a_dry_run_ends_as_the_action_does(kind: Kind) {
    let world = World::new(kind);
    world.send(&numbered("acct", 1));
    world.send(&numbered("acct", 3));
    world.send(&put_off(plain("evt_later")));
    for id in ["evt_bad", "evt_gone", "evt_again"] {
        world.send(&refused(plain(id)));
    }
    world.send(&numbered("given", 1));
    world.send(&refused(numbered("given", 2)));
    let commands: [(&[&str], i32, &str); 18] = [
        (
            &["dead", "discard", "crm", "evt_gone"],
            0,
            "it would be discarded",
        ),
        (&["dead", "discard", "crm", "evt_gone"], 0, "so already"),
        (
            &["dead", "replay", "crm", "evt_gone"],
            1,
            "discarded or superseded",
        ),
        (
            &["events", "try-now", "crm", "evt_gone"],
            1,
            "discarded or superseded",
        ),
        (
            &["dead", "discard", "crm", "evt_acct_1"],
            1,
            "applied already",
        ),
        (&["dead", "replay", "crm", "evt_acct_1"], 0, "so already"),
        (&["dead", "replay", "crm", "evt_later"], 0, "so already"),
        (
            &["dead", "replay", "crm", "evt_again", "--out-of-order"],
            0,
            "it would be replayed",
        ),
        (
            &["dead", "replay", "crm", "evt_acct_3", "--out-of-order"],
            1,
            "still to come",
        ),
        (&["events", "try-now", "crm", "evt_bad"], 1, "dead replay"),
        (&["events", "try-now", "crm", "evt_acct_3"], 0, "so already"),
        (&["skip", "crm", "acct", "1"], 1, "applied already"),
        (&["skip", "crm", "acct", "5", "--seen", "9"], 1, "has moved"),
        (
            &["skip", "crm", "nobody", "1", "--seen", "1"],
            1,
            "nothing is known of it",
        ),
        (
            &["cursor", "fast-forward", "crm", "acct", "--to", "1"],
            0,
            "so already",
        ),
        (
            &[
                "cursor",
                "fast-forward",
                "crm",
                "acct",
                "--to",
                "9",
                "--seen",
                "7",
            ],
            1,
            "has moved",
        ),
        (
            &["cursor", "reset", "crm", "acct", "--to", "1", "--seen", "7"],
            1,
            "has moved",
        ),
        (
            &[
                "cursor", "reset", "crm", "nobody", "--to", "1", "--seen", "1",
            ],
            1,
            "nothing is known of it",
        ),
    ];
    for (command, status, says) in commands {
        let before = rows(&world);
        let dry = world.run(&[command, &["--dry-run"]].concat());
        assert_eq!(dry.status, status, "{command:?}: {dry:?}");
        assert!(
            dry.stdout.contains(says),
            "{command:?}, no {says:?}: {dry:?}"
        );
        assert_eq!(rows(&world), before, "{command:?}");
        let told = world.json(status, &[command, &["--dry-run"]].concat());
        assert_eq!(told["objection"].is_string(), status == 1, "{told}");
        let yes = ["--reason", "a test", "--yes"];
        let done = world.run(&[command, &yes].concat());
        assert_eq!(done.status, status, "{command:?}: {done:?}");
    }
    // A place that is skipped: its dead letter has no turn to come.
    let skip = ["skip", "crm", "given", "2", "--reason", "a test", "--yes"];
    world.json(0, &skip);
    let replay = ["dead", "replay", "crm", "evt_given_2", "--dry-run"];
    let told = world.json(1, &replay);
    assert!(
        told["objection"].to_string().contains("--out-of-order"),
        "{told}"
    );
}

/// §5.15
fn a_dry_run_in_bulk_says_what_of_those_that_it_names_would_be_refused(kind: Kind) {
    let world = World::new(kind);
    world.send(&numbered("acct", 1));
    world.send(&refused(numbered("acct", 2)));
    world.send(&refused(plain("evt_bad")));
    let skip = ["skip", "crm", "acct", "2", "--reason", "a test", "--yes"];
    world.json(0, &skip);
    let replay = [
        "dead",
        "replay",
        "--dead-reason",
        "skipped",
        "--dead-reason",
        "rejected",
    ];
    let dry = world.run(&[&replay[..], &["--dry-run"]].concat());
    assert_eq!(dry.status, 1, "{dry:?}");
    assert!(
        dry.stdout
            .contains("but not evt_acct_2: its sequence is skipped"),
        "{dry:?}"
    );
    let told = world.json(1, &[&replay[..], &["--dry-run"]].concat());
    assert_eq!(
        (&told["matched"], &told["refusals"][0]["event_id"]),
        (&json!(2), &json!("evt_acct_2"))
    );
    let done = world.json(1, &[&replay[..], &["--reason", "a test", "--yes"]].concat());
    assert_eq!(
        (&done["done"], &done["left"]),
        (&json!(1), &json!(1)),
        "{done}"
    );
}

/// §5.4, §5.15: skip, fast-forward and discard free what is behind them.
fn a_dry_run_says_what_becomes_due(kind: Kind) {
    let mut world = World::new(kind);
    world.send(&numbered("acct", 1));
    for sequence in [3, 4, 7] {
        world.send(&numbered("acct", sequence));
    }
    world.send(&numbered("held", 1));
    world.send(&refused(numbered("held", 2)));
    world.send(&numbered("held", 3));
    world.stop();
    let then = |command: &[&str], says: &str| {
        let dry = [command, &["--dry-run"]].concat();
        let text = world.run(&dry).stdout;
        assert!(text.contains(says), "{command:?}, no {says:?}: {text}");
        world.json(0, &dry)["then"].clone()
    };
    let skip = then(
        &["skip", "crm", "acct", "2"],
        "then 2 events are due, sequence 3 to 4",
    );
    assert_eq!(
        skip,
        json!({"next": 3, "due": 2, "last_due": 4, "more": false, "held_by": null})
    );
    let later = then(&["skip", "crm", "acct", "5..6"], "it waits for 2 as before");
    assert_eq!((&later["next"], &later["due"]), (&json!(2), &json!(0)));
    let forward = ["cursor", "fast-forward", "crm", "acct", "--to"];
    then(
        &[&forward[..], &["7"]].concat(),
        "then 1 event is due, sequence 7",
    );
    then(
        &[&forward[..], &["5"]].concat(),
        "then it waits for 5, which has not come",
    );
    then(
        &["cursor", "reset", "crm", "acct", "--to", "1"],
        "then nothing is due",
    );
    let discard = ["dead", "discard", "crm", "evt_held_2", "--dry-run"];
    let text = world.run(&discard).stdout;
    let says = "its sequence 2 is skipped with it: then 1 event is due, sequence 3\n";
    assert!(text.ends_with(says), "{text}");
    // Behind what is freed something is dead.
    let dead = "UPDATE tower_inbox_pending SET reason = 3 WHERE event_id = 'evt_acct_4'";
    world.db.execute(dead);
    let held = then(
        &["skip", "crm", "acct", "2"],
        "then 1 event is due, sequence 3, and it is held up at 4 by dead letter evt_acct_4 (rejected) behind that",
    );
    assert_eq!(held["held_by"]["event_id"], "evt_acct_4");
}

/// The words of one are not those of many, and nothing reads as if it had been done.
fn one_is_one_and_what_was_not_done_was_not_done(kind: Kind) {
    let world = World::new(kind);
    world.send(&numbered("acct", 1));
    world.send(&numbered("acct", 3));
    let dry = world
        .run(&["skip", "crm", "acct", "2..3", "--dry-run"])
        .stdout;
    let says = "acct of crm waits for sequence 2: sequences 2 to 3 are to be skipped, 1 event stored there";
    assert!(dry.starts_with(says), "{dry}");
    let why = ["--reason", "a test", "--yes"];
    let back = ["cursor", "fast-forward", "crm", "acct", "--to", "1"];
    let done = world.run(&[&back[..], &why].concat()).stdout;
    assert_eq!(
        done,
        "so already: nothing was done, and the stream waits for sequence 2\n"
    );
    let dry = world.run(&[&back[..], &["--dry-run"]].concat()).stdout;
    assert!(
        dry.starts_with("so already: nothing would be done"),
        "{dry}"
    );
    let none = ["dead", "replay", "--dead-reason", "gap"];
    let done = world.run(&[&none[..], &why].concat()).stdout;
    assert_eq!(done, "nothing matches; nothing was done\n");
    world.send(&refused(plain("evt_bad")));
    let status = world.run(&["status", "--source", "crm"]).stdout;
    let json = world.json(0, &["status"]);
    assert!(
        status.contains("DISCARDED") && json["sources"][0].get("discarded") != Some(&Value::Null),
        "{status} {json}"
    );
}
