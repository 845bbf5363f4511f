//! The command beside a worker and deliveries: whichever comes first, each event is applied once or not at all, and its stream
//! goes on.

use std::process::Child;

use crate::support::database::{Kind, on_each_database};
use crate::support::wait_until;
use crate::world::{World, numbered, plain, refused};

on_each_database![
    a_skip_raced_with_the_delivery_of_its_sequence_ends_in_one_of_both,
    a_replay_raced_with_a_redelivery_and_another_replay_applies_once,
];

fn begin(world: &World, arguments: &[&str]) -> Child {
    let call = world.command(arguments);
    call.build().spawn().expect("the built command")
}

fn ended(mut child: Child) -> i32 {
    let status = child.wait().expect("it ends");
    status.code().expect("no signal")
}

/// §9, §5.15
fn a_skip_raced_with_the_delivery_of_its_sequence_ends_in_one_of_both(kind: Kind) {
    let world = World::new(kind);
    for n in 0..8 {
        let stream = format!("acct_{n}");
        let of = |sequence: i64| format!("evt_{stream}_{sequence}");
        world.send(&numbered(&stream, 1));
        world.send(&numbered(&stream, 3));
        let skip = ["skip", "crm", &stream, "2", "--reason", "lost", "--yes"];
        let skipping = [begin(&world, &skip), begin(&world, &skip)];
        // A process takes some time to get to the point: so does the delivery, more and more.
        std::thread::sleep(std::time::Duration::from_millis(n * 8));
        let delivery = world.sending(&numbered(&stream, 2));
        let answer = world.runtime.block_on(delivery).expect("no panic");
        let skipped = skipping.map(ended);
        let expected = match answer {
            // Whoever skipped was too late.
            204 => {
                assert_eq!(skipped, [1, 1]);
                vec![of(1), of(2), of(3)]
            }
            202 => {
                assert_eq!(skipped, [0, 0]);
                vec![of(1), of(3)]
            }
            other => panic!("answered {other}, and skipped {skipped:?}"),
        };
        wait_until("the stream goes on", || {
            let applied = world.applied().into_iter();
            let of_stream = applied.filter(|id| id.starts_with(&format!("evt_{stream}_")));
            of_stream.collect::<Vec<_>>() == expected
        });
    }
}

/// §5.15
fn a_replay_raced_with_a_redelivery_and_another_replay_applies_once(kind: Kind) {
    let world = World::new(kind);
    let ids: Vec<_> = (0..6).map(|n| format!("evt_{n}")).collect();
    for id in &ids {
        world.send(&refused(plain(id)));
    }
    world.mend();
    for id in &ids {
        let replay = ["dead", "replay", "crm", id, "--reason", "mended"];
        let replays = [begin(&world, &replay), begin(&world, &replay)];
        let delivery = world.sending(&refused(plain(id)));
        let answer = world.runtime.block_on(delivery).expect("no panic");
        assert!(matches!(answer, 204 | 200 | 503), "{answer}");
        assert_eq!(replays.map(ended), [0, 0]);
    }
    wait_until("all are applied", || world.db.rows("pending") == 0);
    let mut applied = world.applied();
    applied.sort_unstable();
    assert_eq!(applied, ids);
}
