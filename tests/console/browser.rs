//! The console as people see it: in Chromium, headless. `TOWER_INBOX_SCREENSHOTS` names a directory for pictures.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::json;
use tower_inbox::testkit;

use crate::kit::{TOKEN, World};
use crate::webdriver::{Browser, chromedriver};

/// An app that is served, and a browser before it.
struct Scene {
    runtime: tokio::runtime::Runtime,
    world: World,
    browser: Browser,
    base: String,
}

impl Scene {
    /// None, and told, where there is no browser.
    fn open(actions: bool, javascript: bool) -> Option<Self> {
        let chromedriver = chromedriver()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let (world, address) = runtime.block_on(async {
            let world = World::with(|console| console.actions(actions)).await;
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
                .await
                .expect("a port");
            let address = listener.local_addr().expect("an address");
            let app = world
                .app
                .clone()
                .into_make_service_with_connect_info::<SocketAddr>();
            tokio::spawn(async move { axum::serve(listener, app).await });
            (world, address)
        });
        let browser = Browser::start(&chromedriver, javascript);
        let base = format!("http://{address}/console");
        Some(Self {
            runtime,
            world,
            browser,
            base,
        })
    }

    fn run<T>(&self, does: impl Future<Output = T>) -> T {
        self.runtime.block_on(does)
    }

    fn sign_in(&self) {
        let browser = &self.browser;
        browser.open(&self.base);
        browser.find("#actor").write("Ada");
        browser.find("#token").write(TOKEN);
        browser.button("Sign in").click();
        browser.find("nav a[aria-current]");
    }

    /// Into the directory of pictures, if one is named.
    fn picture(&self, name: &str) {
        if let Some(folder) = std::env::var_os("TOWER_INBOX_SCREENSHOTS") {
            let folder = PathBuf::from(folder);
            std::fs::create_dir_all(&folder).expect("the directory of pictures");
            let picture = self.browser.picture();
            std::fs::write(folder.join(format!("{name}.png")), picture).expect("a picture");
        }
    }

    /// Skips what the one stream that waits waits for.
    fn skip_the_gap(&self) {
        let browser = &self.browser;
        browser.link("Streams").click();
        browser.sees("missing");
        browser.link("acct_1").click();
        browser.sees("It waits for sequence 3, which has not come.");
        browser.button("Skip…").click();
        browser.sees("2 sequences would be skipped: 3 to 4.");
        browser.sees("2 events, sequence 5 to 6, are due at once.");
        browser.sees("This cannot be undone.");
        self.picture("skip");
        browser
            .find("#reason-stream-skip")
            .write("lost by the producer, ticket 7");
        browser.button("Skip 3 to 4").click();
        browser.sees("Skipped 3 to 4.");
        browser.sees_in_time("Nothing waits in it.");
    }
}

#[test]
fn a_gap_is_seen_skipped_with_a_reason_and_drains() {
    let Some(scene) = Scene::open(true, true) else {
        return;
    };
    scene.run(scene.world.stream("acct_1", [1, 2, 5, 6]));
    scene.sign_in();
    scene.skip_the_gap();
    scene.run(scene.world.wait_for_applied(4));
    scene.browser.link("Audit log").click();
    scene.browser.sees("lost by the producer, ticket 7");
    scene.browser.sees("Ada");
    scene.browser.button("Sign out").click();
    scene.browser.sees("Sign in");
    scene.browser.open(&scene.base);
    scene.browser.find("#token");
}

#[test]
fn all_of_it_works_without_javascript() {
    let Some(scene) = Scene::open(true, false) else {
        return;
    };
    scene
        .browser
        .open("data:text/html,<noscript>scripts are off</noscript>");
    scene.browser.sees("scripts are off");
    scene.run(scene.world.stream("acct_1", [1, 2, 5, 6]));
    scene.run(scene.world.dead(["evt_bad_1".to_owned()]));
    scene.sign_in();
    scene.skip_the_gap();
    scene.run(scene.world.wait_for_applied(4));
    scene.world.mend();
    replay_all(&scene, "1");
    scene.run(scene.world.wait_for_applied(5));
}

fn replay_all(scene: &Scene, number: &str) {
    let browser = &scene.browser;
    browser.link("Dead letters").click();
    browser.button("Replay all…").click();
    browser.sees("Nothing has been changed yet.");
    assert_eq!(browser.find("#matched").text(), number);
    scene.picture("dry-run");
    browser
        .find("input[name=reason]")
        .write("the account exists now");
    let letters = match number {
        "1" => "1 dead letter".to_owned(),
        number => format!("{number} dead letters"),
    };
    browser.button(&format!("Replay {letters}")).click();
    browser.sees(&format!("Replayed {letters}."));
}

#[test]
fn dead_letters_are_replayed_in_bulk_after_a_dry_run() {
    let Some(scene) = Scene::open(true, true) else {
        return;
    };
    let (world, browser) = (&scene.world, &scene.browser);
    scene.run(world.dead((0..12).map(|number| format!("evt_bad_{number:02}"))));
    scene.sign_in();
    browser.link("Dead letters").click();
    browser.link("evt_bad_03").click();
    browser.sees("Its handler refused it for good.");
    browser.find("details#body summary").click();
    browser.find("#reason-body").write("a look");
    browser.button("Show the body").click();
    browser.sees("\"card\"");
    // The same by its id, from whatever page.
    browser.find("form.find input[name=id]").write("evt_bad_07");
    browser.button("Find").click();
    browser.sees("evt_bad_07");
    browser.link("Its audit log").click();
    browser.sees("Nothing of that was decided or refused");
    world.mend();
    replay_all(&scene, "12");
    scene.run(world.wait_for_applied(12));
    browser.link("Dead letters").click();
    browser.sees_in_time("There is none.");
}

#[test]
fn scripts_and_emoji_in_ids_are_text() {
    let Some(scene) = Scene::open(true, true) else {
        return;
    };
    let (world, browser) = (&scene.world, &scene.browser);
    let script = "bad <script>alert(1)</script><img src=x onerror=alert(1)>";
    let emoji = "🦀".repeat(63) + "bad";
    assert_eq!(emoji.len(), 255);
    for id in [script, &emoji] {
        scene.run(world.send(testkit::event(id).kind(script)));
    }
    scene.run(world.send(testkit::event("evt_1").stream(script, 5)));
    scene.sign_in();
    for page in ["Dead letters", "Streams", "Overview", "Audit log"] {
        browser.link(page).click();
        browser.find("main");
        assert!(!browser.has_alert(), "{page}");
    }
    browser.link("Dead letters").click();
    for id in [&emoji, script] {
        let link = browser.link(id);
        assert_eq!(link.text(), *id);
        link.click();
        browser.sees("Its handler refused it for good.");
        browser.sees(id);
        assert!(!browser.has_alert(), "{id}");
        assert_eq!(
            browser.script("return document.querySelectorAll('main script, main img').length"),
            0
        );
        browser.link("Dead letters").click();
    }
    // Nor does the policy let anything run that got in all the same.
    let ran = "const s = document.createElement('script'); s.textContent = 'window.ran = true'; \
               document.body.append(s); return window.ran === undefined";
    assert_eq!(browser.script(ran), true);
}

#[test]
fn a_wrong_token_a_form_without_its_token_and_actions_that_are_off_are_refused() {
    let Some(scene) = Scene::open(false, true) else {
        return;
    };
    let (world, browser) = (&scene.world, &scene.browser);
    scene.run(world.dead(["evt_bad_1".to_owned()]));
    browser.open(&scene.base);
    browser.find("#actor").write("Eve");
    browser.find("#token").write("a wrong token");
    browser.button("Sign in").click();
    browser.sees("That is not the token.");
    scene.picture("sign-in");
    browser.open(&format!("{}/dead", scene.base));
    browser.find("#token");
    scene.sign_in();
    browser.sees("read-only");
    browser.link("Dead letters").click();
    browser.link("evt_bad_1").click();
    browser.sees("Its handler refused it for good.");
    assert!(!browser.text().contains("Discard"));
    // A form that the page does not offer.
    let discard = |token: &str| {
        let form = format!(
            "const token = document.querySelector('input[name=form]').value; \
             const body = new URLSearchParams({{source: 'crm', id: 'evt_bad_1', reason: 'a test', form: {token}}}); \
             const asked = new XMLHttpRequest(); asked.open('POST', '{}/event/discard', false); \
             asked.send(body); return asked.status",
            scene.base
        );
        browser.script(&form)
    };
    assert_eq!(discard("token"), 403);
    assert_eq!(discard("''"), 403);
    assert_eq!(
        scene.run(world.db.number("SELECT count(*) FROM tower_inbox_audit")),
        0
    );
}

#[test]
fn the_overview_shows_what_is_there_now_by_itself() {
    let Some(scene) = Scene::open(true, true) else {
        return;
    };
    scene.sign_in();
    scene.browser.sees("all clear");
    scene.run(scene.world.stream("acct_1", [1, 3]));
    scene.browser.sees("1 stream waits");
}

/// Nothing is asserted of beauty; but the pages must be there in each of the looks, and nothing may be wider than a phone.
#[test]
fn pages_fit_a_phone_in_light_and_dark() {
    let Some(scene) = Scene::open(true, true) else {
        return;
    };
    let (world, browser) = (&scene.world, &scene.browser);
    a_day_has_passed(&scene);
    furnish(&scene);
    scene.sign_in();
    browser.sees_in_time("streams wait");
    let pages = [
        ("overview", "/"),
        ("streams", "/streams"),
        ("stream", "/stream?source=crm&id=acct_7"),
        ("event", "/event?source=crm&id=evt_bad_refund_2"),
        (
            "mistyped",
            "/stream/skip?source=crm&id=acct_7&seen_next=42&seen_generation=0&first=42&last=99999999",
        ),
        ("discard", "/event/discard?source=crm&id=evt_bad_invoice_9"),
        ("dead", "/dead"),
        ("audit", "/audit"),
        ("found", "/find?id=evt_nowhere"),
    ];
    for look in ["light", "dark"] {
        let features = json!([{ "name": "prefers-color-scheme", "value": look }]);
        browser.devtools(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        );
        for (width, height, mobile) in [(1280, 800, false), (390, 844, true)] {
            let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile });
            browser.devtools("Emulation.setDeviceMetricsOverride", screen);
            for (name, path) in pages {
                browser.open(&format!("{}{}", scene.base, path.trim_end_matches('/')));
                browser.find("h1");
                if name == "mistyped" {
                    browser.sees("99,999,949 sequences that the producer may have yet to send");
                }
                let wide = browser.script("return document.documentElement.scrollWidth");
                assert!(
                    wide.as_u64().is_some_and(|wide| wide <= width),
                    "{name} is {wide} wide on {width}"
                );
                // Nor has a table columns that are out of sight.
                let hidden = "return [...document.querySelectorAll('.scroll')] \
                     .filter(table => table.scrollWidth > table.clientWidth).length";
                assert_eq!(browser.script(hidden), 0, "{name} on {width}");
                let size = if mobile { "phone" } else { "wide" };
                scene.picture(&format!("{name}-{look}-{size}"));
            }
        }
    }
    assert!(scene.run(world.applied()) > 0);
}

/// The hours before this one: more by day than by night, and now and then a failure.
fn a_day_has_passed(scene: &Scene) {
    for (hours, kind) in
        (1_u32..24).flat_map(|hours| [(hours, "invoice.paid"), (hours, "payment.succeeded")])
    {
        let at = (24 + 14 - hours) % 24;
        let total = 40 + 900 * (12 - at.abs_diff(12)) / 12 + (hours * 37) % 60;
        let failed = if hours % 7 == 3 { total / 15 } else { 0 };
        let delivered = total - failed;
        let [fast, middling, slow] = [85, 12, 3].map(|share| delivered * share / 100);
        let last_5xx = if failed > 0 {
            "unixepoch() * 1000000 - slots.slot * 3600000000"
        } else {
            "0"
        };
        let insert = format!(
            "INSERT INTO tower_inbox_stats (source, event_type, slot, total, delivered, failed, last_5xx, b03, b10, b14) \
             SELECT 'crm', '{kind}', (unixepoch() / 3600 - slots.slot) * 3600000000, {total}, {delivered}, {failed}, {last_5xx}, \
             {fast}, {middling}, {slow} FROM (SELECT {hours} AS slot) AS slots"
        );
        scene.run(scene.world.db.execute(&insert));
    }
}

/// Something of everything.
fn furnish(scene: &Scene) {
    let world = &scene.world;
    scene.run(async {
        world
            .stream("acct_7", (1..=41).chain([44, 45, 46, 49, 50]))
            .await;
        world.stream("acct_12", [1, 2, 3, 4, 6]).await;
        world
            .stream("order-2026-11-0417", (1..=9).chain(12..=60))
            .await;
        let refund = testkit::event("evt_bad_invoice_9")
            .kind("invoice.paid")
            .stream("acct_31", 1);
        world.send(refund).await;
        world.stream("acct_31", [2, 3]).await;
        world.stream("acct_58", [1]).await;
        let later = testkit::event("evt_later_3").kind("invoice.paid");
        world.send(later.stream("acct_58", 3)).await;
        world.stream("acct_58", [4, 5, 2]).await;
        for number in 1..=3 {
            let id = format!("evt_bad_refund_{number}");
            world
                .send(
                    testkit::event(id)
                        .kind("refund.created")
                        .data(json!({"amount": 250})),
                )
                .await;
        }
        let ada = world.inbox.operator("Ada Lovelace").expect("a name");
        let seen = ada
            .cursor("crm", "acct_7")
            .await
            .expect("asked")
            .expect("a stream")
            .seen();
        ada.skip(
            "crm",
            "acct_7",
            47,
            seen,
            "never sent, the producer says (ticket 4711)",
        )
        .await
        .expect("skipped");
        ada.discard("crm", "evt_bad_refund_3", "a test payment")
            .await
            .expect("discarded");
    });
}
