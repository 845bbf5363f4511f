//! `send` and `reconcile`: over real HTTP.

use std::net::SocketAddr;

use axum::extract::{RawQuery, State};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::support::database::{Kind, on_each_database};
use crate::world::{SECRET, World, plain, refused};

on_each_database![
    one_event_is_signed_and_delivered,
    what_a_producer_gave_up_and_is_missing_here_is_named,
];

fn serve(world: &World, app: Router) -> SocketAddr {
    world.runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, app).await });
        address
    })
}

/// §3
fn one_event_is_signed_and_delivered(kind: Kind) {
    let world = World::new(kind);
    let url = format!("http://{}/hooks", serve(&world, world.app()));
    let send = |secret: &str, more: &[&str]| {
        let arguments = [
            &[
                "send",
                "sequenced",
                "--url",
                &url,
                "--secret-env",
                "PRODUCERS",
                "--json",
            ][..],
            more,
        ];
        world
            .command(&arguments.concat())
            .env("PRODUCERS", secret)
            .outcome()
    };
    let event = [
        "--id",
        "evt_1",
        "--correlation-id",
        "acct",
        "--sequence",
        "1",
    ];
    let first = send(SECRET, &event);
    assert_eq!(first.status, 0, "{first:?}");
    let first = first.json();
    assert_eq!(
        (&first["status"], &first["outcome"]),
        (&json!(204), &json!("applied"))
    );
    assert_eq!(send(SECRET, &event).json()["outcome"], "duplicate");
    let other = send("another secret", &event);
    assert_eq!(
        (other.status, &other.json()["status"]),
        (1, &json!(401)),
        "{other:?}"
    );
    let body = plain("evt_2").to_string();
    let whole = send(SECRET, &["-d", &body]);
    assert_eq!(whole.json()["outcome"], "applied", "{whole:?}");
    let file = world.directory.file("event.json");
    std::fs::write(&file, plain("evt_3").to_string()).expect("a file");
    let of_file = send(SECRET, &["-d", &format!("@{}", file.display())]);
    assert_eq!(of_file.json()["outcome"], "applied", "{of_file:?}");
    let parked = send(SECRET, &["--correlation-id", "acct", "--sequence", "5"]);
    assert_eq!(
        (parked.status, &parked.json()["status"]),
        (0, &json!(202)),
        "{parked:?}"
    );
    assert_eq!(world.applied(), ["evt_1", "evt_2", "evt_3"]);
    // A dry run sends nothing, and shows no signature.
    let dry = send(SECRET, &["--id", "evt_9", "--dry-run"]);
    assert_eq!(dry.status, 0, "{dry:?}");
    assert!(dry.stdout.contains(r#"["x-signature","***"]"#), "{dry:?}");
    assert_eq!(world.db.rows("event"), 4);
    send(SECRET, &["--payload", "{"]).is(2, "--payload");
    send(SECRET, &["-d", "@/nowhere"]).is(2, "nowhere");
    let away = [
        "send",
        "sequenced",
        "--url",
        "http://127.0.0.1:1/",
        "--secret",
        SECRET,
    ];
    world.run(&away).is(3, "no answer");
    let none = ["send", "sequenced", "--url", &url];
    world.run(&none).is(2, "no secret");
}

async fn given_up(State(ids): State<Vec<&'static str>>, RawQuery(query): RawQuery) -> Json<Value> {
    assert!(query.is_some_and(|query| query.contains("list=exhausted")));
    let event = |id: &str| {
        let body = plain(id).to_string();
        json!({"event_id": id, "timestamp": "2026-05-30T08:42:11Z", "body": body})
    };
    let events: Vec<_> = ids.iter().map(|id| event(id)).collect();
    Json(json!({"events": events, "next": null}))
}

/// §7.5: a look, which changes nothing; a receiver reconciles.
fn what_a_producer_gave_up_and_is_missing_here_is_named(kind: Kind) {
    let world = World::new(kind);
    world.send(&plain("evt_there"));
    world.send(&refused(plain("evt_dead")));
    let ids = vec!["evt_there", "evt_dead", "evt_lost"];
    let app = Router::new()
        .route("/replays", get(given_up))
        .with_state(ids);
    let url = format!("http://{}/replays", serve(&world, app));
    let arguments = [
        "reconcile",
        "missing",
        "crm",
        "--url",
        &url,
        "--key-env",
        "THE_KEY",
        "--json",
    ];
    world.run(&arguments).is(2, "THE_KEY");
    let before = (world.db.rows("event"), world.db.rows("reconcile"));
    let outcome = world.command(&arguments).env("THE_KEY", "a key").outcome();
    assert_eq!(outcome.status, 1, "{outcome:?}");
    let found = outcome.json();
    assert_eq!(
        (
            &found["listed"],
            &found["applied"],
            &found["missing"],
            &found["whole"]
        ),
        (&json!(3), &json!(1), &json!(2), &json!(true))
    );
    let named: Vec<_> = found["events"].as_array().expect("a list").iter().collect();
    assert_eq!(
        (&named[0]["event_id"], &named[0]["state"]),
        (&json!("evt_dead"), &json!("dead"))
    );
    assert_eq!(
        (&named[1]["event_id"], &named[1]["state"]),
        (&json!("evt_lost"), &json!("unknown"))
    );
    assert_eq!((world.db.rows("event"), world.db.rows("reconcile")), before);
    let status = world.json(0, &["reconcile", "status"]);
    assert_eq!(status, json!({"lists": [], "incidents": []}));
    world.db.execute(
        "INSERT INTO tower_inbox_reconcile (source, kind, finished_at, through) VALUES ('crm', 1, 1700000000000000, 1600000000000000)",
    );
    world.db.execute(
        "INSERT INTO tower_inbox_incident (found_at, since, incarnation) VALUES (5, 0, 'x')",
    );
    let status = world.json(0, &["reconcile", "status", "--source", "crm"]);
    let list = &status["lists"][0];
    assert_eq!(
        (&list["list"], &list["finished_at"], &list["unfinished"]),
        (
            &json!("exhausted"),
            &json!("2023-11-14T22:13:20.000000Z"),
            &json!(false)
        )
    );
    assert_eq!(status["incidents"][0]["since"], json!(null));
    let text = world.run(&["reconcile", "status"]).stdout;
    assert!(text.contains("may be lost"), "{text}");
}
