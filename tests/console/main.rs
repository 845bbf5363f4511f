//! The console: who gets in, what each path needs, what the pages show, and the whole of it in a real browser.
#![allow(
    clippy::print_stderr,
    reason = "that the browser is left out must be told"
)]

mod access;
mod browser;
mod bulk;
mod colours;
mod confirm;
mod first;
mod kit;
mod misled;
mod others;
mod pages;
mod routes;
mod waiting;
mod webdriver;
