//! The files of the pages. Their names change with their content, so that browsers may keep them for ever.

use std::sync::{Arc, LazyLock};

use axum::response::{IntoResponse as _, Response};
use http::header;
use sha2::{Digest as _, Sha256};

use super::asked::{Asked, Fault};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");
const ICON: &str = include_str!("icon.svg");

static FILES: LazyLock<[File; 3]> = LazyLock::new(|| {
    [
        File::new("style", "css", "text/css; charset=utf-8", STYLE),
        File::new("script", "js", "text/javascript; charset=utf-8", SCRIPT),
        File::new("icon", "svg", "image/svg+xml", ICON),
    ]
});

struct File {
    path: String,
    kind: &'static str,
    content: &'static str,
}

impl File {
    fn new(name: &str, ending: &str, kind: &'static str, content: &'static str) -> Self {
        let hash = hex::encode(&Sha256::digest(content)[..8]);
        Self {
            path: format!("/assets/{name}-{hash}.{ending}"),
            kind,
            content,
        }
    }
}

pub(super) fn style() -> &'static str {
    &FILES[0].path
}

pub(super) fn script() -> &'static str {
    &FILES[1].path
}

pub(super) fn icon() -> &'static str {
    &FILES[2].path
}

pub(super) async fn file(asked: Arc<Asked>) -> Result<Response, Fault> {
    let found = FILES.iter().find(|file| file.path == asked.path);
    let file = found.ok_or(Fault::Missing("There is no such file"))?;
    let headers = [
        (header::CONTENT_TYPE, file.kind),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    Ok((headers, file.content).into_response())
}
