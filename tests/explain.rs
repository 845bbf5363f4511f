//! `tower-inbox explain`, driven as an operator would: the verdict, the likely cause, the exit status, and that neither a
//! secret nor a signature that would verify is ever printed.

use std::io::Write as _;
use std::process::{Command, Stdio};

use http::HeaderMap;
use serde_json::Value;
use tower_inbox::clock::Timestamp;
use tower_inbox::preset::Preset;
use tower_inbox::verify::{KeyEncoding, Secret, Signer};

const NOW: i64 = 1_700_000_000;
const SECRET: &str = "hunter2-the-secret";
const WHSEC: &str = "whsec_aHVudGVyMi10aGUtc2VjcmV0";
const BODY: &str = "{\"event_id\": \"evt_1\",\n  \"note\": \"caf\u{e9} / x\", \"list\": [1, 2]}";
const URL: &str = "https://example.com/hooks";

/// A captured request: signed by this secret over one body, and captured with another.
struct Capture {
    preset: Preset,
    secret: Secret,
    signed_at: i64,
    signed: String,
    captured: String,
    change: fn(String) -> String,
}

impl Capture {
    fn new(preset: Preset) -> Self {
        Self {
            preset,
            secret: Secret::decode(
                preset.key,
                if preset.key == KeyEncoding::WHSEC {
                    WHSEC
                } else {
                    SECRET
                },
            )
            .expect("a secret"),
            signed_at: NOW,
            signed: BODY.into(),
            captured: BODY.into(),
            change: |head| head,
        }
    }

    fn headers(&self) -> HeaderMap {
        let signer = Signer::new(&self.preset.scheme(), [self.secret.clone()])
            .expect("a signer")
            .with_url(URL);
        let at = Timestamp::from_secs(self.signed_at);
        let headers = signer.sign(
            at,
            Some("0f8fad5b-d9cb-469f-a165-70867728950e"),
            self.signed.as_bytes(),
        );
        headers.expect("signed").into_iter().collect()
    }

    fn text(&self) -> String {
        let mut head = String::from("POST /hooks HTTP/1.1\r\nHost: example.com\r\n");
        for (name, value) in &self.headers() {
            head.push_str(&format!("{name}: {}\r\n", value.to_str().expect("ASCII")));
        }
        format!("{}\r\n{}", (self.change)(head), self.captured)
    }

    /// Explains it from standard input, with the secret in a variable.
    fn explain(&self, more: &[&str]) -> Outcome {
        let secret = if self.preset.key == KeyEncoding::WHSEC {
            WHSEC
        } else {
            SECRET
        };
        self.explain_with(secret, more)
    }

    fn explain_with(&self, secret: &str, more: &[&str]) -> Outcome {
        let now = NOW.to_string();
        let mut arguments = vec![
            "explain",
            self.preset.name,
            "-",
            "--secret-env",
            "THE_SECRET",
            "--now",
            &now,
        ];
        arguments.extend(more);
        let outcome = run(&arguments, &[("THE_SECRET", secret)], &self.text());
        outcome.hides(&[secret, SECRET, WHSEC]);
        // Received signatures, and with them the right one for what was signed.
        for (name, value) in &self.headers() {
            if self.preset.scheme().is_signature_header(name) {
                let longest = value
                    .to_str()
                    .expect("ASCII")
                    .split([',', '=', ' '])
                    .max_by_key(|part| part.len());
                outcome.hides(&[longest.expect("a part")]);
            }
        }
        outcome
    }
}

struct Outcome {
    status: i32,
    stdout: String,
    stderr: String,
}

impl Outcome {
    fn hides(&self, texts: &[&str]) {
        for text in texts {
            assert!(
                !self.stdout.contains(text) && !self.stderr.contains(text),
                "shows {text}: {}{}",
                self.stdout,
                self.stderr
            );
        }
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|_| panic!("{}{}", self.stdout, self.stderr))
    }

    #[track_caller]
    fn is(&self, status: i32, cause: &str) -> Value {
        let json = self.json();
        assert_eq!(self.status, status, "{json}");
        assert_eq!(json["cause"].as_str().unwrap_or(""), cause, "{json}");
        json
    }
}

fn run(arguments: &[&str], env: &[(&str, &str)], stdin: &str) -> Outcome {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tower-inbox"))
        .args(arguments)
        .envs(env.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary");
    // One that wants no input has closed it.
    let _ = child
        .stdin
        .take()
        .expect("piped")
        .write_all(stdin.as_bytes());
    let output = child.wait_with_output().expect("an end");
    Outcome {
        status: output.status.code().expect("no signal"),
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

#[test]
fn what_verifies() {
    for preset in Preset::ALL.iter().filter(|preset| preset.name != "linear") {
        let more: &[&str] = if preset.scheme().needs_url() {
            &["--json", "--url", URL]
        } else {
            &["--json"]
        };
        let json = Capture::new(*preset).explain(more).is(0, "");
        assert_eq!(json["verifies"], true);
        assert_eq!(json["secret"], "secret-1");
        assert!(
            json["message"]
                .as_str()
                .expect("a message")
                .contains("evt_1"),
            "{json}"
        );
    }
    let text = Capture::new(Preset::KUDOS).explain(&[]).stdout;
    for part in [
        "VERIFIES, by secret-1",
        "signed time 1700000000, 0 s ago",
        "1 signature(s) of the right form",
        "1700000000.{\\\"event_id\\\"",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// A body that something parsed and wrote again, and what editors and proxies do to line ends.
#[test]
fn changed_bodies() {
    let compact = r#"{"event_id":"evt_1","note":"café / x","list":[1,2]}"#;
    let sorted = r#"{"event_id":"evt_1","list":[1,2],"note":"café / x"}"#;
    let spaced = r#"{"event_id": "evt_1", "note": "caf\u00e9 / x", "list": [1, 2]}"#;
    let slashes = r#"{"event_id":"evt_1","note":"café \/ x","list":[1,2]}"#;
    let pretty = "{\n  \"event_id\": \"evt_1\",\n  \"note\": \"café / x\",\n  \"list\": [\n    1,\n    2\n  ]\n}";
    for (signed, captured) in [
        (compact, pretty),
        (pretty, compact),
        (spaced, compact),
        (sorted, compact),
        (slashes, compact),
        (compact, BODY),
        (compact, &format!("{compact}\n")),
        (compact, &format!("{compact}\r\n")),
        (&format!("{compact}\n"), compact),
        ("{\n}", "{\r\n}"),
        ("{\r\n}", "{\n}"),
        (compact, &format!("\u{feff}{compact}")),
        ("", compact),
    ] {
        let mut capture = Capture::new(Preset::STRIPE);
        (capture.signed, capture.captured) = (signed.into(), captured.into());
        let json = capture.explain(&["--json"]).is(1, "changed_body");
        assert_eq!(json["refusal"], "no_match");
    }
    let mut capture = Capture::new(Preset::STRIPE);
    capture.captured = "{\"event_id\":\"evt_2\"}".into();
    capture.explain(&["--json"]).is(1, "other_secret");
}

/// What `json.dumps(json.loads(body))` makes of a body in Python: blanks, and everything that is not ASCII escaped.
#[test]
fn bodies_written_again_by_python() {
    for (signed, captured) in [
        (
            r#"{"event_id":"e1","event_type":"payment","data":{"name":"Zoë","amount":5}}"#,
            r#"{"event_id": "e1", "event_type": "payment", "data": {"name": "Zo\u00eb", "amount": 5}}"#,
        ),
        // The other way round, with a pair, and with escapes that must stay.
        (
            r#"{"name": "😀 \" \\u00eb \n", "id": 1}"#,
            r#"{"name":"\ud83d\ude00 \" \\u00eb \n","id":1}"#,
        ),
    ] {
        let mut capture = Capture::new(Preset::KUDOS);
        (capture.signed, capture.captured) = (signed.into(), captured.into());
        capture.explain(&["--json"]).is(1, "changed_body");
    }
    // An order that is not tried: not found, and it is said that this may be why.
    let mut capture = Capture::new(Preset::KUDOS);
    capture.signed = r#"{"event_id":"e1","b":2,"a":1}"#.into();
    for (captured, is_json) in [
        (r#"{"a": 1, "b": 2, "event_id": "e1"}"#, true),
        ("event_id=e1", false),
    ] {
        capture.captured = captured.into();
        let json = capture.explain(&["--json"]).is(1, "other_secret");
        let text = json["explanation"].as_str().expect("a text");
        assert_eq!(text.contains("order"), is_json, "{text}");
    }
}

#[test]
fn clocks_and_units() {
    let mut capture = Capture::new(Preset::KUDOS);
    capture.signed_at = NOW - 301;
    let json = capture.explain(&["--json"]).is(1, "clock");
    assert_eq!(json["refusal"], "too_old");
    let explanation = json["explanation"].as_str().expect("a text");
    assert!(
        explanation.contains("signature is right") && explanation.contains("301 s behind"),
        "{explanation}"
    );
    capture.explain(&["--json", "--tolerance", "301"]).is(0, "");
    capture
        .explain(&["--json", "--now", "2023-11-14T22:08:19Z"])
        .is(0, "");
    capture.signed_at = NOW + 400;
    assert_eq!(
        capture.explain(&["--json"]).is(1, "clock")["refusal"],
        "too_far_ahead"
    );
    capture.signed_at = NOW * 1_000;
    capture.explain(&["--json"]).is(1, "wrong_unit");
}

#[test]
fn other_secrets() {
    let capture = Capture::new(Preset::KUDOS);
    capture
        .explain_with("another-one", &["--json"])
        .is(1, "other_secret");
    // The producer signs with the decoded key, the receiver has the text, and the other way round.
    let mut capture = Capture::new(Preset::KUDOS);
    capture.secret = Secret::whsec(WHSEC).expect("a secret");
    capture
        .explain_with(WHSEC, &["--json"])
        .is(1, "secret_encoding");
    capture
        .explain_with(WHSEC, &["--json", "--key", "whsec"])
        .is(0, "");
    let mut capture = Capture::new(Preset::STANDARD);
    capture.secret = Secret::text(WHSEC).expect("a secret");
    capture.explain(&["--json"]).is(1, "secret_encoding");
    let hex = "68756e746572322d7468652d736563726574";
    let mut capture = Capture::new(Preset::GITHUB);
    capture.secret = Secret::hex(hex).expect("a secret");
    capture
        .explain_with(hex, &["--json"])
        .is(1, "secret_encoding");
    let capture = Capture::new(Preset::GITHUB);
    capture
        .explain_with(&format!("{SECRET}\n"), &["--json"])
        .is(1, "secret_encoding");
    // Two secrets: which one it was.
    let arguments = [
        "explain",
        "kudos",
        "-",
        "--secret-env",
        "A",
        "--secret-env",
        "B",
        "--now",
        "1700000000",
        "--json",
    ];
    let outcome = run(
        &arguments,
        &[("A", "newer"), ("B", SECRET)],
        &Capture::new(Preset::KUDOS).text(),
    );
    assert_eq!(outcome.is(0, "older_secret")["secret"], "secret-2");
}

#[test]
fn headers() {
    let mut capture = Capture::new(Preset::KUDOS);
    capture.change = |head| head.replace("x-kudos-signature", "x_kudos_signature");
    capture.explain(&["--json"]).is(1, "changed_header");
    capture.change = |head| head.replace("x-kudos-signature", "x-other");
    capture.explain(&["--json"]).is(1, "missing_header");
    capture.change = |head| format!("{head}X-Kudos-Signature: t=1,v1=00\r\n");
    capture.explain(&["--json"]).is(1, "repeated_header");
    capture.change = |head| head.replace("v1=", "v1=zz");
    capture.explain(&["--json"]).is(1, "changed_header");
    let mut capture = Capture::new(Preset::SEQUENCED);
    capture.change = |head| head.replace("x-signature", "x-kudos-signature");
    capture.explain(&["--json"]).is(1, "other_scheme");
    let capture = Capture::new(Preset::SQUARE);
    capture
        .explain(&["--json", "--url", "http://example.com/hooks/"])
        .is(1, "url");
    assert_eq!(capture.explain(&[]).status, 2, "it needs the URL");
}

/// Flags as for curl, a request in a file, secrets in a file.
#[test]
fn other_ways_to_say_it() {
    let dir = std::env::temp_dir().join(format!("inbox-explain-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let capture = Capture::new(Preset::KUDOS);
    let (request, body) = (write("request", &capture.text()), write("body", BODY));
    let (lines, json) = (
        write("secrets", &format!("newer\n{SECRET}\n")),
        write("secrets.json", &format!("[\"{SECRET}\"]")),
    );
    let signature = capture.headers()["x-kudos-signature"]
        .to_str()
        .expect("ASCII")
        .to_owned();
    let header = format!("X-Kudos-Signature: {signature}");
    let at = ["--now", "1700000000", "--json"];
    for (arguments, cause) in [
        (
            vec!["explain", "kudos", &request, "--secret-file", &lines],
            "older_secret",
        ),
        (
            vec!["explain", "kudos", &request, "--secret-file", &json],
            "",
        ),
        (vec!["explain", "kudos", &request, "--secret", SECRET], ""),
        (
            vec![
                "explain",
                "kudos",
                "--secret",
                SECRET,
                "-H",
                &header,
                "--data-binary",
                &format!("@{body}"),
            ],
            "",
        ),
        (
            vec![
                "explain", "kudos", "--secret", SECRET, "-X", "POST", "-H", &header, "-d", BODY,
            ],
            "",
        ),
    ] {
        let outcome = run(&[&arguments[..], &at].concat(), &[], "");
        outcome.hides(&[SECRET]);
        outcome.is(0, cause);
    }
    for (wrong, why) in [
        (vec![], "Usage:"),
        (vec!["explode"], "unrecognized subcommand"),
        (vec!["explain"], "no preset"),
        (
            vec!["explain", "nobody", &request, "--secret", SECRET],
            "no preset",
        ),
        (vec!["explain", "kudos", "--secret", SECRET], "no request"),
        (vec!["explain", "kudos", &request], "no secret"),
        (
            vec![
                "explain",
                "kudos",
                &request,
                "--secret-env",
                "NOT_SET_ANYWHERE",
            ],
            "is not set",
        ),
        (
            vec!["explain", "kudos", &request, "--secret-file", "/nowhere"],
            "cannot be read",
        ),
        (
            vec!["explain", "kudos", "/nowhere", "--secret", SECRET],
            "/nowhere",
        ),
        (
            vec!["explain", "kudos", &body, "--secret", SECRET],
            "line 1",
        ),
        (
            vec![
                "explain", "kudos", &request, "--secret", SECRET, "--secret", SECRET,
            ],
            "the two secrets are the same",
        ),
        (
            vec![
                "explain", "kudos", &request, "--secret", SECRET, "--now", "soon",
            ],
            "--now",
        ),
        (
            vec!["explain", "standard", &request, "--secret", SECRET],
            "not base64",
        ),
        (
            vec![
                "explain",
                "kudos",
                &request,
                "--secret",
                SECRET,
                "--nonsense",
            ],
            "--nonsense",
        ),
    ] {
        let outcome = run(&wrong, &[], "");
        assert_eq!(outcome.status, 2, "{wrong:?}");
        assert!(outcome.stderr.contains(why), "{why}: {}", outcome.stderr);
        outcome.hides(&[SECRET]);
    }
    for shown in [
        &["--help"][..],
        &["explain", "--help"],
        &["explain", "--list"],
        &["--version"],
    ] {
        assert_eq!(run(shown, &[], "").status, 0);
    }
    let _ = std::fs::remove_dir_all(dir);
}
