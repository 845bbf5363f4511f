//! The pool under clients that go away.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::database::{Kind, on_each_database};
use crate::support::event::Event;
use crate::support::receiver::{Receiver, Setup};
use crate::support::{http, wait_until};

const POOL: usize = 8;

/// As many deliveries as the pool has connections run at the same time: at once, or when what was begun for clients that
/// are gone has ended.
#[track_caller]
fn the_pool_is_whole(receiver: &Receiver, mark: &str) {
    let mut attempt = 0;
    wait_until("the pool is whole", || {
        attempt += 1;
        runs_at_full_size(receiver, &format!("{mark}-{attempt}"))
    });
}

fn runs_at_full_size(receiver: &Receiver, mark: &str) -> bool {
    let kind = receiver.database().kind;
    let began = Instant::now();
    let slow: Vec<_> = (0..POOL)
        .map(|n| {
            let event = Event::new(&format!("evt_{mark}_{n}"), &format!("acct-{mark}-{n}"), 1);
            let sleep = if kind.single_writer() {
                "sleep:50"
            } else {
                "sleep:1000"
            };
            receiver.deliver_meanwhile(&event.fault(sleep))
        })
        .collect();
    let all_applied = slow.into_iter().fold(true, |all, delivery| {
        let answer = delivery.join().expect("no panic").expect("an answer");
        all && answer.status == 200
    });
    // With one connection less, one of them would have had to wait for another one's second.
    all_applied && began.elapsed() < Duration::from_millis(1_900)
}

/// §4.6: 250 clients that go away at random instants, some of them inside of a handler or of the database: each of their
/// events is applied once or not at all, the pool is whole, and no transaction is left open.
fn clients_that_disconnect_leave_the_pool_whole(kind: Kind) {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let receiver = Setup::on(kind)
        .set("POOL_SIZE", &POOL.to_string())
        .set("MAX_IN_FLIGHT", &POOL.to_string())
        .set("DELIVERY_BUDGET", "2s")
        .start();
    let mut rng = fastrand::Rng::with_seed(seed);
    let events: Vec<_> = (0..250)
        .map(|n| {
            let event = match n % 3 {
                0 => Event::of(&format!("stream-{}", n % 5), i64::from(n / 15) + 1),
                _ => Event::new(&format!("evt_{n}"), &format!("acct-{}", n % 7), 1),
            };
            match n % 5 {
                0 => event.fault("sleep:60").fault_times(1),
                1 => event.fault("sql_sleep:60").fault_times(1),
                _ => event,
            }
        })
        .collect();
    for batch in events.chunks(50) {
        let clients: Vec<_> = batch
            .iter()
            .map(|event| {
                let (address, mut request) = (receiver.address, event.kudos());
                let (pause, stay) = (rng.u64(..100), rng.u64(..150));
                if rng.u8(..5) == 0 {
                    request.truncate(rng.usize(1..request.len()));
                }
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(pause));
                    let Ok(stream) = http::open(address, &request) else {
                        return;
                    };
                    thread::sleep(Duration::from_millis(stay));
                    drop(stream);
                })
            })
            .collect();
        for client in clients {
            client.join().expect("no panic");
        }
    }
    wait_until("no transaction is left open", || {
        receiver.database().open_transactions() == 0
    });
    the_pool_is_whole(&receiver, "first");
    // What was lost is sent again: then all of it is there, each once.
    for event in &events {
        wait_until("it is applied", || receiver.deliver(event).status == 200);
    }
    for n in 0..5 {
        let stream = format!("stream-{n}");
        let last = receiver.ledger(&stream).1.len();
        assert!(receiver.has_stream(&stream, last as i64), "{stream}");
    }
    let applied: usize = (0..7)
        .map(|n| receiver.ledger(&format!("acct-{n}")).1.len())
        .sum();
    assert_eq!(
        applied,
        events
            .iter()
            .filter(|event| !event.0.get("sequence").is_some_and(|s| s.is_number()))
            .count()
    );
    the_pool_is_whole(&receiver, "second");
    // The worker opens some of its own at any time, for moments: one that was left open stays.
    wait_until("no transaction is left open", || {
        receiver.database().open_transactions() == 0
    });
}

on_each_database!(clients_that_disconnect_leave_the_pool_whole);
