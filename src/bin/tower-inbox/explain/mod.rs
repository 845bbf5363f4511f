//! `tower-inbox explain`: what should have been signed, what was found, and why that does not fit.

mod args;
mod cause;
mod report;
mod request;
mod variants;

use std::process::ExitCode;

use tower_inbox::verify::{Head, RequestView, Tolerance};

use self::args::{Args, Parsed};
use self::report::Report;
use crate::Usage;

pub(crate) const HELP: &str = "\
tower-inbox explain: why a captured delivery verifies, or why not

usage: tower-inbox explain <preset> [options] [request-file]

The request is a file with its raw head and body, as `nc -l` shows it (`-`: standard input), or is given by flags as
for curl. Nothing is sent, and neither a secret nor a computed signature is ever printed.

secrets, newest first, one way of the three:
  --secret-env NAME       in this environment variable; may be given twice
  --secret-file PATH      in this file, one on a line, or a JSON array in a file named *.json
  --secret TEXT           here, where other users of the machine can see it; may be given twice
  --key ENCODING          how a secret's text becomes a key: text, whsec, base64 or hex (default: the preset's)

request:
  -H, --header 'N: VALUE' a header; may be repeated
  -d, --data DATA|@FILE   the body, byte for byte (so do --data-binary and --data-raw; @- is standard input)
  -X, --method METHOD     default: POST
  --url URL               the URL that is configured at the producer, for schemes that sign it

  --now TIME              the time of its arrival: seconds since the epoch, or RFC 3339 (default: now)
  --tolerance SECONDS     how old it may be, and how far ahead (default: 300)
  --json                  prints one JSON object
  --list                  lists the presets

exit status: 0 it verifies, 1 it does not, 2 the command line or a file is wrong
";

pub(crate) fn run(arguments: lexopt::Parser) -> Result<ExitCode, Usage> {
    let args = match args::parse(arguments)? {
        Parsed::Args(args) => args,
        Parsed::Done => return Ok(ExitCode::SUCCESS),
    };
    let report = explain(&args);
    if args.json {
        println!("{}", report.json());
    } else {
        print!("{}", report.text());
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
