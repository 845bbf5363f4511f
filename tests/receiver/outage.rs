//! A database server that dies and comes back.

use std::time::{Duration, Instant};

use crate::support::database::{self, Database, Kind};
use crate::support::event::Event;
use crate::support::receiver::{Receiver, Setup};
use crate::support::server::{self, Server};
use crate::support::{Directory, wait_until};

/// §9: the health check follows the database within a second; a receiver whose database died and came back goes on
/// without a restart, and what was applied before is known.
fn the_health_check_follows_a_server_that_dies_and_comes_back(kind: Kind) {
    let mut server = Server::start(kind);
    let setup = Setup::with(Database::on(&server), Directory::new());
    let receiver = setup.set("DELIVERY_BUDGET", "2s").start();
    let health = |status, limit: Duration| {
        let began = Instant::now();
        wait_until("the health check says so", || {
            let asked = Instant::now();
            let answered = receiver.get("/healthz").status;
            assert!(
                asked.elapsed() < Duration::from_secs(1),
                "{:?}",
                asked.elapsed()
            );
            answered == status
        });
        assert!(began.elapsed() < limit, "{:?}", began.elapsed());
    };
    health(200, Duration::from_secs(1));
    for n in 1..=2 {
        receiver.deliver(&Event::of("acct-1", n)).is(200, "applied");
        server.kill();
        health(503, Duration::from_secs(1));
        let refused = receiver.deliver(&Event::of("acct-1", n + 1));
        refused.is(503, "failed").is_problem().says_when_to_retry();
        server.restart();
        // How long the server is down is the server's affair; from then on a second counts.
        health(200, Duration::from_secs(1));
        receiver
            .deliver(&Event::of("acct-1", n))
            .is(200, "duplicate");
        assert!(receiver.has_stream("acct-1", n));
    }
    the_pool_works(&receiver);
}

#[track_caller]
fn the_pool_works(receiver: &Receiver) {
    for n in 0..20 {
        receiver
            .deliver(&Event::new(&format!("evt_after_{n}"), "acct-2", 1))
            .is(200, "applied");
    }
}

/// §5.14
#[cfg(feature = "postgres")]
#[test]
fn the_health_check_follows_postgres() {
    if database::is_wanted(Kind::Postgres, || server::find(Kind::Postgres)) {
        the_health_check_follows_a_server_that_dies_and_comes_back(Kind::Postgres);
    }
}

/// §5.14
#[cfg(feature = "mysql")]
#[test]
fn the_health_check_follows_mariadb() {
    if database::is_wanted(Kind::MySql, || server::find(Kind::MySql)) {
        the_health_check_follows_a_server_that_dies_and_comes_back(Kind::MySql);
    }
}
