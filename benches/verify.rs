//! How long it takes to verify and read a delivery of 1 KiB, beside `hmac` and `sha2` alone.

#[allow(dead_code, reason = "shared with the other benches")]
mod shared;

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use shared::{Bare, Case};

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let (bare, one, two) = (Bare::new(), Case::one_by_one(), Case::two_by_two());
    let mut group = criterion.benchmark_group("verify 1 KiB");
    group.throughput(Throughput::Elements(1));
    group.bench_function("bare hmac and sha2, key prepared", |b| {
        b.iter(|| bare.prepared())
    });
    group.bench_function("bare hmac and sha2, fresh key", |b| b.iter(|| bare.fresh()));
    group.bench_function("one secret, one candidate", |b| {
        b.iter(|| black_box(one.verify()))
    });
    group.bench_function("two secrets, two candidates", |b| {
        b.iter(|| black_box(two.verify()))
    });
    let verified = one.verify();
    group.bench_function("envelope", |b| b.iter(|| black_box(one.read(&verified))));
    group.finish();
    criterion.final_summary();
}
