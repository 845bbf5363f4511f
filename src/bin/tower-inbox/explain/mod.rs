//! `tower-inbox explain`: what should have been signed, what was found, and why that does not fit.

mod args;
mod cause;
mod report;
mod request;
mod variants;

use std::process::ExitCode;

use tower_inbox::preset::Preset;
use tower_inbox::verify::{Head, RequestView, Tolerance};

use self::args::Args;
pub(crate) use self::args::{Given, body, header};
use self::report::Report;
use crate::failure::Failure;
use crate::show;

pub(crate) fn run(given: Given, json: bool) -> Result<ExitCode, Failure> {
    if given.list {
        let lines = Preset::ALL.iter();
        let lines = lines.map(|preset| format!("{:<10} {}\n", preset.name, preset.documented_at));
        show::print(&lines.collect::<String>());
        return Ok(ExitCode::SUCCESS);
    }
    let args = given.check(json)?;
    let report = explain(&args);
    if args.json {
        show::print(&format!("{}\n", report.json()));
    } else {
        show::print(&report.text());
    }
    Ok(ExitCode::from(u8::from(report.refusal.is_some())))
}

fn explain(args: &Args) -> Report {
    let request = &args.request;
    let view = args.view(&request.body);
    // Without the limits of time first, so that the rest can be looked at.
    let head = args
        .scheme
        .check_head(&request.headers, args.now, &Tolerance::insecure_unlimited());
    let verdict = args
        .scheme
        .verify(&view, &args.secrets, args.now, &args.tolerance);
    let mut report = Report::new(args, &request.notes);
    match &head {
        Ok(head) => found(&mut report, args, head, &view),
        Err(refusal) => report.found.push(refusal.to_string()),
    }
    match verdict {
        Ok(verified) => {
            report.label = Some(verified.label().to_owned());
            report.cause = cause::of_success(args, &verified);
        }
        Err(refusal) => {
            report.cause = Some(cause::of(args, head.as_ref().ok(), &refusal));
            report.refusal = Some(refusal);
        }
    }
    report
}

fn found(report: &mut Report, args: &Args, head: &Head, view: &RequestView<'_>) {
    for name in args.scheme.signature_headers(&args.request.headers) {
        report.found.push(format!("signature header {name}"));
    }
    report.candidates = head.candidates();
    report.claimed_at = head.claimed_at();
    report.message = match head.signed_message(view) {
        Ok(message) => message,
        Err(refusal) => {
            report.found.push(refusal.to_string());
            None
        }
    };
}
