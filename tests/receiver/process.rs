//! The process around the inbox: health, metrics, log, and its end.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::event::{Event, SECRET, kudos, mac, now, signature};
use crate::support::receiver::Setup;
use crate::support::wait_until;

/// The health check answers within a second, and says 503 while no connection to the database is to be had.
#[test]
fn the_health_check_follows_the_database() {
    let receiver = Setup::new().set("POOL_SIZE", "1").start();
    assert_eq!(receiver.get("/healthz").status, 200);
    let slow = receiver.deliver_meanwhile(&Event::new("evt_1", "acct-1", 5).fault("sleep:3000"));
    // As soon as the handler has the one connection.
    let mut took = Duration::ZERO;
    wait_until("the health check says so", || {
        let began = Instant::now();
        let status = receiver.get("/healthz").status;
        took = began.elapsed();
        status == 503
    });
    assert!(took < Duration::from_secs(2), "{took:?}");
    slow.join()
        .expect("no panic")
        .expect("an answer")
        .is(200, "applied");
    assert_eq!(receiver.get("/healthz").status, 200);
}

/// §8. Deliveries are counted by source, type and outcome.
#[test]
fn metrics_count_deliveries_by_source_type_and_outcome() {
    let receiver = Setup::new().start();
    let refund = Event::new("evt_2", "acct-1", -1).with("event_type", "payment.refunded");
    receiver.deliver(&Event::of("acct-1", 1)).is(200, "applied");
    receiver
        .deliver(&Event::of("acct-1", 1))
        .is(200, "duplicate");
    receiver.deliver(&Event::of("acct-1", 3)).is(202, "parked");
    receiver
        .deliver(&refund.clone().fault("status:503").fault_times(1))
        .is(503, "failed");
    receiver
        .deliver(&refund.fault("status:503").fault_times(1))
        .is(200, "applied");
    receiver
        .send(&kudos("another", &Event::of("acct-1", 4).body()))
        .is(401, "rejected");
    let count = |kind, outcome| {
        let labels = [
            ("source", "kudos"),
            ("event_type", kind),
            ("outcome", outcome),
        ];
        receiver.metric("inbox_deliveries_total", &labels)
    };
    assert_eq!(count("payment.succeeded", "applied"), 1.0);
    assert_eq!(count("payment.succeeded", "duplicate"), 1.0);
    assert_eq!(count("payment.succeeded", "parked"), 1.0);
    assert_eq!(count("payment.refunded", "failed"), 1.0);
    assert_eq!(count("payment.refunded", "applied"), 1.0);
    assert_eq!(
        receiver.metric("inbox_deliveries_total", &[("outcome", "rejected")]),
        1.0
    );
    let text = receiver.get("/metrics");
    assert!(
        text.header("content-type")
            .is_some_and(|kind| kind.starts_with("text/plain"))
    );
    wait_until("what is parked is counted", || {
        receiver.metric("inbox_parked", &[("source", "kudos")]) == 1.0
    });
}

/// §6.5: no secret and no computed signature is in the log, at whatever level.
#[test]
fn nothing_secret_is_logged() {
    let token = "whk_very-secret-old";
    let secrets = format!("{SECRET},{token}");
    let receiver = Setup::new()
        .set("RUST_LOG", "trace")
        .set("KUDOS_SECRETS", &secrets)
        .start();
    let event = Event::of("acct-1", 1);
    let body = event.body();
    let at = now();
    receiver.deliver(&event).is(200, "applied");
    receiver.send(&kudos(token, &body)).is(200, "duplicate");
    receiver.deliver(&Event::of("acct-1", 3)).is(202, "parked");
    receiver
        .deliver(&Event::of("acct-2", 1).fault("panic"))
        .is(500, "failed");
    // The refused request's right signature, which the log must not tell.
    let wrong = signature(&["wrong"], at, &body);
    let headers = [("x-kudos-signature".to_owned(), wrong)];
    receiver
        .send(&crate::support::event::post("kudos", &headers, &body))
        .is(401, "rejected");
    let right = hex::encode(mac(SECRET.as_bytes(), &[at.to_string().as_bytes(), &body]));
    let log = receiver.log();
    assert!(
        log.contains("TRACE") || log.contains("DEBUG"),
        "the log is not silent"
    );
    for secret in [SECRET, token, &hex::encode(SECRET), &right] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

/// (shutdown). SIGTERM: what is in flight gets its answer, nothing new is taken, and the status is 0.
#[test]
fn on_sigterm_deliveries_in_flight_are_finished() {
    for signal in ["TERM", "INT"] {
        let mut receiver = Setup::new().start();
        receiver.deliver(&Event::of("acct-2", 2)).is(202, "parked");
        let slow = Event::new("evt_1", "acct-1", 5).fault("sleep:1000");
        let answer = receiver.deliver_meanwhile(&slow);
        receiver.wait_until_at_its_fault(&slow);
        receiver.signal(signal);
        wait_until("it takes nothing new", || {
            TcpStream::connect(receiver.address).is_err()
        });
        answer
            .join()
            .expect("no panic")
            .expect("an answer")
            .is(200, "applied");
        assert_eq!(receiver.wait().code(), Some(0), "{}", receiver.log());
        let receiver = receiver.crash();
        assert_eq!(receiver.ledger("acct-1"), (5, vec!["evt_1".to_owned()]));
        receiver.deliver(&Event::of("acct-2", 1)).is(200, "applied");
        wait_until("what was parked is applied", || {
            receiver.has_stream("acct-2", 2)
        });
    }
}

/// (shutdown). SIGTERM with a client that sends nothing: its connection does not keep the process.
#[test]
fn on_sigterm_idle_connections_do_not_keep_the_process() {
    let mut receiver = Setup::new().set("DELIVERY_BUDGET", "1s").start();
    let silent = TcpStream::connect(receiver.address).expect("it connects");
    let request = Event::new("evt_1", "acct-1", 5).kudos();
    let half = crate::support::http::open(receiver.address, &request[..40]).expect("it connects");
    assert_eq!(receiver.get("/healthz").status, 200);
    receiver.signal("TERM");
    let began = Instant::now();
    assert_eq!(receiver.wait().code(), Some(0), "{}", receiver.log());
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    drop((silent, half));
}

/// With no secrets at all it makes one, prints it after the address, and runs with it.
#[test]
fn without_secrets_it_makes_one_and_prints_it() {
    let receiver = Setup::new().without("KUDOS_SECRETS").start();
    let line = receiver.line();
    let secret = line
        .rsplit_once("KUDOS_SECRETS=")
        .expect("the secret")
        .1
        .to_owned();
    assert!(secret.len() >= 32, "{line}");
    receiver
        .send(&kudos(&secret, &Event::of("acct-1", 1).body()))
        .is(200, "applied");
    receiver
        .deliver(&Event::of("acct-1", 2))
        .is(401, "rejected");
    assert!(!receiver.log().contains(&secret));
    let other = Setup::new().without("KUDOS_SECRETS").start();
    assert_ne!(other.line(), line, "each process makes another one");
}
