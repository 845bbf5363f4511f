//! The ratios that must hold, measured side by side: `bar <name> <median> (<min>-<max>) goal <goal>` for each.
//!
//! Two things that are compared run in turns within one round, so that a neighbour on the machine slows both; each
//! round gives one ratio. Rates are compared for the first bar, times for the second.

#![allow(clippy::print_stdout, reason = "its result is what it prints")]

#[allow(dead_code, reason = "shared with the other benches")]
mod shared;

use std::hint::black_box;
use std::time::{Duration, Instant};

use shared::{Bare, Case};

/// Odd, for a median that was measured.
const ROUNDS: usize = 41;
/// Of each side at a time: far over the clock's resolution, and short enough to often be left alone by neighbours.
const SLICE: Duration = Duration::from_micros(500);
/// Slices of each side in a round, in turns. The fastest one counts: what disturbs only ever adds.
const TURNS: usize = 12;

fn main() {
    // `cargo test --benches` runs this too, and wants to know whether it works, not how fast.
    let rounds = if std::env::args().any(|argument| argument == "--bench") {
        ROUNDS
    } else {
        1
    };
    let (bare, one, two) = (Bare::new(), Case::one_by_one(), Case::two_by_two());
    println!("sha-256 instructions: {}", sha_instructions());
    bar(
        "verify_vs_bare_hmac",
        rounds,
        "0.8",
        || bare.prepared(),
        || drop(black_box(one.verify())),
    );
    bar(
        "verify_vs_bare_hmac_fresh_key",
        rounds,
        "0.8",
        || bare.fresh(),
        || drop(black_box(one.verify())),
    );
    bar(
        "verify_two_by_two",
        rounds,
        "2.2",
        || drop(black_box(two.verify())),
        || drop(black_box(one.verify())),
    );
}

/// Prints the time of `a` over the time of `b`.
fn bar(name: &str, rounds: usize, goal: &str, mut a: impl FnMut(), mut b: impl FnMut()) {
    let (batch_a, batch_b) = (batch(&mut a), batch(&mut b));
    let mut ratios: Vec<f64> = (0..rounds)
        .map(|_| {
            let (mut time_a, mut time_b) = (f64::MAX, f64::MAX);
            for _ in 0..TURNS {
                time_a = time_a.min(time(batch_a, &mut a) / f64::from(batch_a));
                time_b = time_b.min(time(batch_b, &mut b) / f64::from(batch_b));
            }
            time_a / time_b
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    let (min, max) = (ratios[0], ratios[ratios.len() - 1]);
    println!("bar {name} {median:.3} ({min:.3}-{max:.3}) goal {goal}");
}

/// How many calls take a slice.
fn batch(call: &mut impl FnMut()) -> u32 {
    let mut calls = 16;
    while time(calls, call) < SLICE.as_secs_f64() {
        calls *= 2;
    }
    calls
}

fn time(calls: u32, call: &mut impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..calls).for_each(|_| call());
    start.elapsed().as_secs_f64()
}

/// What `sha2` finds at run time on the processors that it has instructions for.
fn sha_instructions() -> &'static str {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    if std::arch::is_x86_feature_detected!("sha") {
        return "SHA-NI";
    }
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("sha2") {
        return "ARMv8 SHA2";
    }
    "none"
}
