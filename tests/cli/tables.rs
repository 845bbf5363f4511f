//! `migrate` and `check`.

use crate::support::database::{Kind, on_each_database};
use crate::support::wait_until;
use crate::world::{World, numbered};

on_each_database![
    tables_are_brought_by_migrate_and_demanded_by_the_rest,
    check_finds_out_what_is_there,
];

/// §5.9: a deployment is looked at before anything is delivered to it.
fn tables_are_brought_by_migrate_and_demanded_by_the_rest(kind: Kind) {
    let world = World::empty(kind);
    for command in [&["status"][..], &["streams"], &["dead", "list"], &["audit"]] {
        world.run(command).is(4, "tower-inbox migrate");
    }
    let would = world.json(0, &["migrate", "--dry-run"]);
    let versions = would["versions"].as_array().expect("a list").len();
    assert!(
        versions >= 3 && would["versions"][0]["name"] == "inbox",
        "{would}"
    );
    if kind == Kind::Sqlite {
        assert!(
            !world.directory.file("inbox.db").exists(),
            "a dry run made a file"
        );
    }
    world.run(&["status"]).is(4, "");
    assert_eq!(
        world.json(0, &["migrate"])["versions"]
            .as_array()
            .map(Vec::len),
        Some(versions)
    );
    assert_eq!(
        world.json(0, &["migrate"])["versions"]
            .as_array()
            .map(Vec::len),
        Some(0)
    );
    assert_eq!(world.run(&["status"]).status, 0);
    // Another prefix is another inbox, beside it.
    world
        .run(&["status", "--table-prefix", "other_"])
        .is(4, "other_");
    world
        .run(&["status", "--table-prefix", "x; DROP"])
        .is(2, "prefix");
    world.json(0, &["migrate", "--table-prefix", "other_"]);
    assert_eq!(world.run(&["status", "--table-prefix", "other_"]).status, 0);
    assert_eq!(world.db.rows("event"), 0);
}

/// §5.14, §7.1
fn check_finds_out_what_is_there(kind: Kind) {
    let mut world = World::empty(kind);
    let bare = world.run(&["check", "--json"]);
    assert_eq!(bare.status, 4, "{bare:?}");
    world.start();
    world.send(&numbered("acct", 2));
    wait_until("a receiver gives a sign of life", || {
        world.db.rows("alive") > 0
    });
    let found = world.json(0, &["check"]);
    assert_eq!(found["ok"], true, "{found}");
    let about: Vec<_> = found["findings"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|finding| {
            let word = |name: &str| finding[name].as_str().expect("a word").to_owned();
            (word("about"), word("level"))
        })
        .collect();
    for (name, level) in [
        ("database", "ok"),
        ("tables", "ok"),
        ("settings", "ok"),
        ("clocks", "ok"),
        ("receivers", "ok"),
        ("due", "ok"),
        ("gaps", "note"),
    ] {
        assert!(
            about.contains(&(name.into(), level.into())),
            "no {name} {level}: {found}"
        );
    }
    // Nobody is there any more, and has not been for an hour.
    world.stop();
    world
        .db
        .execute("UPDATE tower_inbox_alive SET at = at - 3600000000");
    let found = world.json(1, &["check"]);
    assert_eq!(found["ok"], false, "{found}");
    let text = world.run(&["check"]).stdout;
    assert!(text.contains("problem  receivers"), "{text}");
    world.db.execute(
        "UPDATE tower_inbox_cursor SET next_sequence = 2, updated_at = updated_at - 3600000000",
    );
    world.db.execute(
        "UPDATE tower_inbox_pending SET parked_at = parked_at - 3600000000, not_before = not_before - 3600000000",
    );
    let text = world.run(&["check"]).stdout;
    assert!(text.contains("problem  due"), "{text}");
}
