//! A team's service as it might be, small: payments of a CRM go into accounts, with a mail for each.
//!
//! The point of it is `tests.rs`: how such a team tests its handlers with the kit of `tower_inbox::testkit`. They run by
//! `cargo test --example team --features testkit`; the service itself by `cargo run --example team`, with `DATABASE_URL`
//! and `CRM_SECRETS` (newest first, with commas) from the environment.

mod service;
#[cfg(all(test, feature = "testkit"))]
mod tests;

use std::env;

use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = env::var("DATABASE_URL").unwrap_or_else(|_| "sqlite://team.db?mode=rwc".into());
    let secrets = env::var("CRM_SECRETS").map_err(|_| "CRM_SECRETS is not set")?;
    let pool = tower_inbox::sqlite::connect(&url, 10).await?;
    service::prepare(&pool).await?;
    let inbox = service::inbox(pool, secrets.split(',')).build().await?;
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    let routes = service::routes(&inbox);
    axum::serve(listener, routes)
        .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    inbox.shutdown().await;
    Ok(())
}
