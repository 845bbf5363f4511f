//! How long a delivery of 1 KiB takes that needs no transaction: a duplicate that this process saw commit, one that it did not
//! see, and one whose signature is somebody else's. In this process, on SQLite: HTTP and the network are left out.

#[path = "shared/receiver.rs"]
mod receiver;

use criterion::{Criterion, Throughput};
use http::StatusCode;
use tokio::runtime::Runtime;

use receiver::{Folder, SECRET, receiver, request, send};

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let runtime = Runtime::new().expect("a runtime");
    let folder = Folder::new();
    let (remembers, forgets) = runtime.block_on(async {
        let remembers = receiver(&folder.url(), None).await;
        let first = send(&remembers, request(SECRET)).await;
        assert_eq!(first, StatusCode::NO_CONTENT);
        (remembers, receiver(&folder.url(), Some(0)).await)
    });
    let mut group = criterion.benchmark_group("deliver 1 KiB");
    group.throughput(Throughput::Elements(1));
    for (name, app, secret, status) in [
        ("duplicate, from memory", &remembers, SECRET, StatusCode::OK),
        (
            "duplicate, from the database",
            &forgets,
            SECRET,
            StatusCode::OK,
        ),
        (
            "refused signature",
            &remembers,
            "somebody else's secret",
            StatusCode::UNAUTHORIZED,
        ),
    ] {
        group.bench_function(name, |b| {
            // Requests are made and signed before the clock starts.
            b.iter_batched(
                || request(secret),
                |request| assert_eq!(runtime.block_on(send(app, request)), status),
                criterion::BatchSize::SmallInput,
            );
        });
    }
    group.finish();
    criterion.final_summary();
}
