//! `skip` and `cursor`: dry runs, confirmation, repetition, and a cursor that has moved.

use serde_json::json;

use crate::support::database::{Kind, on_each_database};
use crate::support::wait_until;
use crate::world::{World, numbered, refused};

on_each_database![
    a_skip_frees_what_waits_behind_it_and_may_be_repeated,
    what_cannot_be_undone_is_refused_without_a_terminal_or_a_yes,
    a_cursor_is_moved_on_and_begun_again,
    a_stream_of_which_nothing_is_known_needs_its_first_sequence,
];

/// §5.15
fn a_skip_frees_what_waits_behind_it_and_may_be_repeated(kind: Kind) {
    let world = World::new(kind);
    world.send(&numbered("acct", 1));
    for sequence in [3, 4] {
        assert_eq!(world.send(&numbered("acct", sequence)), 202);
    }
    let skip = ["skip", "crm", "acct", "2"];
    let dry = world.json(0, &[&skip[..], &["--dry-run"]].concat());
    assert_eq!((&dry["dry_run"], &dry["stored"]), (&json!(true), &json!(0)));
    assert_eq!(dry["seen"], json!({"next": 2, "generation": 0}));
    assert_eq!((world.db.rows("range"), world.db.rows("audit")), (0, 0));
    let why = ["--reason", "lost by the producer, ticket 7"];
    let yes = [&skip[..], &why, &["--yes"]].concat();
    let done = world.json(0, &yes);
    assert_eq!(done["changed"], true, "{done}");
    wait_until("what waited is applied", || {
        world.applied() == ["evt_acct_1", "evt_acct_3", "evt_acct_4"]
    });
    // By its ranges it is known that it is so already, wherever the stream stands by now.
    let again = world.json(0, &yes);
    assert_eq!(again["changed"], false, "{again}");
    let entries = world.json(0, &["audit", "--source", "crm"]);
    assert_eq!(
        entries["entries"].as_array().map(Vec::len),
        Some(1),
        "{entries}"
    );
    let entry = &entries["entries"][0];
    assert_eq!(
        (&entry["action"], &entry["actor"]),
        (&json!("skip"), &json!("ada"))
    );
    let detail = entry["detail"].as_str().expect("a text");
    assert!(detail.contains("ticket 7"), "{detail}");
    // What has been applied is not skipped, and nothing is where it was.
    let applied = [&["skip", "crm", "acct", "3"][..], &why, &["--yes"]].concat();
    world.run(&applied).is(1, "applied");
    let old = [
        &["skip", "crm", "acct", "7", "--seen", "2"][..],
        &why,
        &["--yes"],
    ]
    .concat();
    world.run(&old).is(1, "has moved");
    let ahead = [
        &["skip", "crm", "acct", "7..9", "--seen", "5"][..],
        &why,
        &["--yes"],
    ]
    .concat();
    assert_eq!(world.json(0, &ahead)["changed"], true);
    let strip = world.json(0, &["streams", "show", "crm", "acct"]);
    assert_eq!(
        strip["strip"][1],
        json!({"first": 7, "last": 9, "state": "skipped"})
    );
    assert_eq!(world.send(&numbered("acct", 8)), 202, "set aside");
}

/// Without a terminal nobody can be asked, and nothing is done.
fn what_cannot_be_undone_is_refused_without_a_terminal_or_a_yes(kind: Kind) {
    let world = World::new(kind);
    world.send(&numbered("acct", 1));
    world.send(&numbered("acct", 3));
    world.send(&refused(numbered("other", 1)));
    let why = ["--reason", "why"];
    let commands: [&[&str]; 8] = [
        &["skip", "crm", "acct", "2"],
        &["cursor", "fast-forward", "crm", "acct", "--to", "3"],
        &["cursor", "reset", "crm", "acct", "--to", "1"],
        &["dead", "discard", "crm", "evt_other_1"],
        &["dead", "discard", "--all"],
        &["dead", "replay", "--all"],
        &["dead", "replay", "crm", "evt_other_1", "--out-of-order"],
        &[
            "purge",
            "crm",
            "--older-than",
            "30d",
            "--preset",
            "sequenced",
        ],
    ];
    for command in commands {
        let reasoned = match command[0] {
            "purge" => command.to_vec(),
            _ => [command, &why].concat(),
        };
        world.run(&reasoned).is(2, "--yes");
        if command[0] != "purge" {
            world.run(&[command, &["--yes"]].concat()).is(2, "--reason");
        }
        // Its turn is still to come.
        let status = i32::from(command.contains(&"--out-of-order"));
        let dry = world.json(status, &[command, &["--dry-run"]].concat());
        assert_eq!(dry["dry_run"], true, "{dry}");
    }
    assert_eq!((world.db.rows("range"), world.db.rows("audit")), (0, 0));
    assert_eq!((world.db.rows("event"), world.db.rows("pending")), (3, 2));
    // Nobody is nobody.
    let skip = [commands[0], &why, &["--yes"]].concat();
    world
        .command(&skip)
        .without("USER")
        .outcome()
        .is(2, "--actor");
    let named = [&skip[..], &["--actor", "grace"]].concat();
    assert_eq!(world.json(0, &named)["changed"], true);
    let entries = world.json(0, &["audit"]);
    assert_eq!(entries["entries"][0]["actor"], "grace");
}

/// §5.15
fn a_cursor_is_moved_on_and_begun_again(kind: Kind) {
    let world = World::new(kind);
    world.send(&numbered("acct", 1));
    world.send(&numbered("acct", 5));
    let why = ["--reason", "the producer has lost 2 to 4", "--yes"];
    let to = ["cursor", "fast-forward", "crm", "acct", "--to", "5"];
    let moved = world.json(0, &[&to[..], &why].concat());
    assert_eq!(moved["changed"], true, "{moved}");
    wait_until("what waited is applied", || world.applied().len() == 2);
    assert_eq!(world.json(0, &[&to[..], &why].concat())["changed"], false);
    world.send(&numbered("acct", 8));
    let reset = ["cursor", "reset", "crm", "acct", "--to", "1"];
    let dry = world.json(0, &[&reset[..], &["--dry-run"]].concat());
    assert_eq!(dry["stored"], 1, "{dry}");
    let begun = world.json(0, &[&reset[..], &["--seen", "6"], &why].concat());
    assert_eq!(begun["cursor"], json!({"next": 1, "generation": 1}));
    // It has been done: whoever saw the stream as it was before does not do it again.
    world
        .run(&[&reset[..], &["--seen", "6"], &why].concat())
        .is(1, "has moved");
    let cursor = world.json(0, &["cursor", "show", "crm", "acct"]);
    assert_eq!(
        (&cursor["next"], &cursor["generation"]),
        (&json!(1), &json!(1))
    );
    // This source takes no 0.
    let zero = ["cursor", "reset", "crm", "acct", "--to", "0"];
    let one = [&why[..], &["--first-sequence", "1"]].concat();
    for more in [&why[..], &one, &["--dry-run"]] {
        let zero = [&zero[..], more].concat();
        world.run(&zero).is(2, "--first-sequence 0");
    }
    let mut first = numbered("acct", 1);
    first["event_id"] = "evt_anew".into();
    assert_eq!(world.send(&first), 204);
}

/// Of a stream whose first event was refused nothing is left but the dead letter.
fn a_stream_of_which_nothing_is_known_needs_its_first_sequence(kind: Kind) {
    let world = World::new(kind);
    world.send(&refused(numbered("acct", 1)));
    let skip = ["skip", "crm", "acct", "1", "--reason", "theirs", "--yes"];
    world.run(&skip).is(1, "--first-sequence");
    let known = [&skip[..], &["--first-sequence", "1"]].concat();
    assert_eq!(world.json(0, &known)["changed"], true);
    assert_eq!(world.send(&numbered("acct", 2)), 204);
    assert_eq!(world.applied(), ["evt_acct_2"]);
}
