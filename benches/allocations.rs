//! What a delivery allocates that needs no transaction: a duplicate that this process saw commit, and, to compare, the same
//! routes without an inbox, and the same duplicate where a subscriber keeps its span. The number is the same on every machine.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "its result is what it prints"
)]

#[path = "shared/receiver.rs"]
mod receiver;

use std::cell::Cell;

use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use http::StatusCode;

use receiver::{Folder, SECRET, receiver, request, send};

/// The first ones fill what is allocated once.
const WARM: usize = 100;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let folder = Folder::new();
    let (bare, remembers) = runtime.block_on(async {
        let remembers = receiver(&folder.url(), None).await;
        let first = send(&remembers, request(SECRET)).await;
        assert_eq!(first, StatusCode::NO_CONTENT);
        let bare = Router::new().route("/", post(async |_: Bytes| StatusCode::OK));
        (bare, remembers)
    });
    for (name, app, is_traced) in [
        ("axum alone, the body read", &bare, false),
        ("duplicate, from memory", &remembers, false),
        ("the same, its span kept", &remembers, true),
    ] {
        let _guard =
            is_traced.then(|| tracing::subscriber::set_default(tracing_subscriber::registry()));
        for _ in 0..WARM {
            runtime.block_on(send(app, request(SECRET)));
        }
        let (request, status) = (Cell::new(Some(request(SECRET))), Cell::default());
        let info = allocation_counter::measure(|| {
            let request = request.take().expect("it is sent once");
            status.set(runtime.block_on(send(app, request)));
        });
        assert_eq!(status.get(), StatusCode::OK);
        println!(
            "{name:30} {:4} allocations, {:6} bytes",
            info.count_total, info.bytes_total
        );
    }
}
