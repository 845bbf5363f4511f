//! What is around every page.

use maud::{DOCTYPE, Markup, html};

use super::asked::{Asked, Page};
use super::caller::Frame;
use super::session::Flash;
use super::{assets, find, show};

const PAGES: [(&str, &str); 5] = [
    ("/", "Overview"),
    ("/streams", "Streams"),
    ("/waiting", "Waiting"),
    ("/dead", "Dead letters"),
    ("/audit", "Audit log"),
];

/// The part of the console that a page is in. An event may be in any of them, or in none: its page says.
fn part(path: &str) -> &str {
    match path {
        "/" => "/",
        path if path.starts_with("/stream") => "/streams",
        path if path.starts_with("/waiting") => "/waiting",
        path if path.starts_with("/dead") => "/dead",
        path => path,
    }
}

pub(super) fn page(frame: &Frame, flash: Option<&Flash>, page: Page) -> Markup {
    let asked = &frame.asked;
    let here = page.part.unwrap_or_else(|| part(&asked.path));
    let top = html! {
        header.top {
            a.brand href=(asked.link("/", &[])) { "Inbox" }
            nav aria-label="Console" {
                @for (path, name) in PAGES {
                    a href=(asked.link(path, &[])) aria-current=[(path == here).then_some("page")] { (name) }
                }
            }
            (find::form(asked, &frame.sources))
            div.who {
                @if !frame.acts { span.mode { "read-only" } }
                span { (show::text(&frame.actor)) }
                @if let Some(leave) = &frame.leave { (leave) }
            }
        }
    };
    let main = html! {
        @if let Some(flash) = flash { (said(flash)) }
        p #stale .alert.bad role="status" hidden {}
        h1 { (page.title) @if let Some(about) = &page.about { " " (about) } }
        div #live data-live[page.live] data-now=(frame.now.as_micros() / 1_000) { (page.main) }
    };
    document(asked, &page.title, &top, &main)
}

/// For whom has not come in, and for what there is no page of.
pub(super) fn bare(asked: &Asked, title: &str, main: Markup) -> Markup {
    let top = html! {
        header.top { a.brand href=(asked.link("/", &[])) { "Inbox" } }
    };
    let main = html! { h1 { (title) } (main) };
    document(asked, title, &top, &main)
}

fn document(asked: &Asked, title: &str, top: &Markup, main: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="robots" content="noindex";
                title { (title) " – Inbox" }
                link rel="icon" href=(asked.link(assets::icon(), &[])) type="image/svg+xml";
                link rel="stylesheet" href=(asked.link(assets::style(), &[]));
                script src=(asked.link(assets::script(), &[])) defer {}
            }
            body {
                a.skip-link href="#main" { "Skip to the content" }
                (top)
                main #main tabindex="-1" { (main) }
            }
        }
    }
}

fn said(flash: &Flash) -> Markup {
    match flash.good {
        true => html! { p.alert.good role="status" { (show::Look::Good.icon()) (flash.text) } },
        false => alert(&flash.text),
    }
}

pub(super) fn alert(text: &str) -> Markup {
    html! { p.alert.bad role="alert" { (show::Look::Dead.icon()) (text) } }
}
