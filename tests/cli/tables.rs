//! `migrate` and `check`.

use crate::support::database::{Kind, on_each_database};
use crate::support::wait_until;
use crate::world::{World, numbered, plain, refused};

on_each_database![
    tables_are_brought_by_migrate_and_demanded_by_the_rest,
    check_finds_out_what_is_there,
    check_says_which_streams_are_held_up_and_that_this_is_not_in_order,
    check_says_what_waits_since_it_fails,
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
    // Its first sign comes later than the first event that it applies.
    world.stop();
    world.db.execute("DELETE FROM tower_inbox_alive");
    let early = world.run(&["check"]).stdout;
    assert!(
        early.contains("none has given a sign of life yet"),
        "{early}"
    );
    world.start();
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

/// §5.10, §8: a person, or cron, sees what nobody but a person frees.
fn check_says_which_streams_are_held_up_and_that_this_is_not_in_order(kind: Kind) {
    let world = World::new(kind);
    wait_until("a receiver gives a sign of life", || {
        world.db.rows("alive") > 0
    });
    let text = world.run(&["check"]);
    assert_eq!(text.status, 0, "{text:?}");
    assert!(text.stdout.contains("none is held up"), "{text:?}");
    assert!(text.stdout.ends_with("in order; 0 notes\n"), "{text:?}");
    // What holds nothing up is for whoever has time.
    world.send(&refused(plain("evt_free")));
    world.send(&numbered("early", 3));
    let found = world.json(0, &["check"]);
    assert_eq!(found["ok"], true, "{found}");
    assert_eq!(problems(&found), Vec::<String>::new());
    world.send(&refused(numbered("acct", 1)));
    world.send(&numbered("acct", 2));
    world.send(&refused(numbered("other", 1)));
    let found = world.json(1, &["check"]);
    let [dead] = &problems(&found)[..] else {
        panic!("{found}")
    };
    assert!(
        dead.starts_with("dead: 2 streams (acct at 1 first) of crm held up"),
        "{dead}"
    );
    // A gap that stands.
    world.db.execute(
        "UPDATE tower_inbox_pending SET parked_at = parked_at - 600000000 WHERE correlation_id = 'early'",
    );
    let found = world.json(1, &["check"]);
    let gap = "gaps: 1 stream (early at 1) of crm behind a sequence that has not come for 5 min";
    assert!(problems(&found)[1].starts_with(gap), "{found}");
    let text = world.run(&["check"]).stdout;
    assert!(text.contains("not in order: 2 problems; 1 note"), "{text}");
}

/// §5.5, §8: nothing is missing, and yet an event waits: its handler fails.
fn check_says_what_waits_since_it_fails(kind: Kind) {
    let world = World::new(kind);
    let mut failing = numbered("acct", 2);
    failing["data"] = serde_json::json!({"status": 503});
    world.send(&failing);
    world.send(&numbered("acct", 1));
    wait_until("it has failed", || {
        let failed =
            "SELECT COUNT(*) FROM tower_inbox_pending WHERE attempts = 1 AND last_status = 503";
        world.db.number(failed) == 1
    });
    let text = world.run(&["check"]);
    assert_eq!(text.status, 0, "{text:?}");
    let note = "1 event of crm parked, the oldest for";
    assert!(text.stdout.contains(note), "{text:?}");
    world.db.execute(
        "UPDATE tower_inbox_pending SET parked_at = parked_at - 3600000000, not_before = not_before + 3600000000",
    );
    let found = world.json(1, &["check"]);
    assert!(
        problems(&found)[0].starts_with("parked: 1 event of crm parked"),
        "{found}"
    );
}

fn problems(found: &serde_json::Value) -> Vec<String> {
    let findings = found["findings"].as_array().expect("a list").iter();
    let word = |finding: &serde_json::Value, name: &str| {
        finding[name].as_str().expect("a word").to_owned()
    };
    findings
        .filter(|finding| finding["level"] == "problem")
        .map(|finding| format!("{}: {}", word(finding, "about"), word(finding, "text")))
        .collect()
}
