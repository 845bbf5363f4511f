//! Chromium, driven by chromedriver: as much of the WebDriver protocol as the tests of the console need. It is JSON over
//! HTTP, of which these tests have all already; a client crate would bring thirty others.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use serde_json::{Value, json};

/// How long a page may take to show something.
const LIMIT: Duration = Duration::from_secs(30);
/// The key under which the protocol has an element's id.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Where chromedriver is: what tests/run says, or what is in the path; none if there is none, which is told.
pub(crate) fn chromedriver() -> Option<PathBuf> {
    let found = match std::env::var_os("TOWER_INBOX_TEST_CHROMEDRIVER") {
        // Left out on purpose.
        Some(path) if path.is_empty() => None,
        // What was said to be there and is not is a failure, never a skip.
        Some(path) => Some(PathBuf::from(path)),
        None => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let mut files = std::env::split_paths(&path).map(|folder| folder.join("chromedriver"));
            files.find(|file| file.exists())
        }
    };
    if found.is_none() {
        eprintln!(
            "\n*** NOT TESTED: the console in a real browser, without chromedriver. tests/run installs it. ***\n"
        );
    }
    found
}

/// A browser with a profile of its own, which is gone when this is dropped.
pub(crate) struct Browser {
    driver: Child,
    address: SocketAddr,
    /// `/session/<id>`, once there is one.
    session: String,
    profile: PathBuf,
}

/// Something on the page.
pub(crate) struct Element<'a> {
    browser: &'a Browser,
    path: String,
}

impl Browser {
    pub(crate) fn start(chromedriver: &Path, javascript: bool) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("chromium-{}-{number}", std::process::id());
        let profile = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&profile);
        std::fs::create_dir_all(&profile).expect("a directory for the profile");
        let mut driver = Command::new(chromedriver)
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", chromedriver.display()));
        let port = port_of(&mut driver);
        let mut browser = Self {
            driver,
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            session: String::new(),
            profile,
        };
        let profile = format!("--user-data-dir={}", browser.profile.display());
        // No sandbox: it does not work for root, and what is visited is the test's own.
        let args = [
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--hide-scrollbars",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--window-size=1280,900",
            &profile,
        ];
        let mut options = json!({ "args": args });
        if !javascript {
            options["prefs"] = json!({ "profile.managed_default_content_settings.javascript": 2 });
        }
        let wanted = json!({ "browserName": "chrome", "goog:chromeOptions": options });
        let begun = browser.ask(
            "POST",
            "/session",
            &json!({ "capabilities": { "alwaysMatch": wanted } }),
        );
        let id = begun["sessionId"]
            .as_str()
            .unwrap_or_else(|| panic!("no session: {begun}"));
        browser.session = format!("/session/{id}");
        browser
    }

    /// One request of the protocol; what it says is a failure fails the test.
    #[track_caller]
    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        self.try_ask(method, path, body)
            .unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    fn try_ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let path = format!("{}{path}", self.session);
        let body = if method == "POST" {
            body.to_string()
        } else {
            String::new()
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        let answer =
            exchange(self.address, request.as_bytes()).map_err(|error| error.to_string())?;
        let value = answer["value"].clone();
        match value["error"].as_str() {
            Some(error) => Err(format!("{error}: {}", value["message"])),
            None => Ok(value),
        }
    }

    #[track_caller]
    pub(crate) fn open(&self, url: &str) {
        self.ask("POST", "/url", &json!({ "url": url }));
    }

    #[track_caller]
    pub(crate) fn url(&self) -> String {
        self.ask("GET", "/url", &Value::Null)
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// The first element that a CSS selector finds, as soon as there is one.
    #[track_caller]
    pub(crate) fn find(&self, css: &str) -> Element<'_> {
        self.find_by("css selector", css)
    }

    /// A link by its whole text.
    #[track_caller]
    pub(crate) fn link(&self, text: &str) -> Element<'_> {
        self.find_by("link text", text)
    }

    /// A button by its text.
    #[track_caller]
    pub(crate) fn button(&self, text: &str) -> Element<'_> {
        self.find_by("xpath", &format!("//button[normalize-space()='{text}']"))
    }

    #[track_caller]
    fn find_by(&self, using: &str, value: &str) -> Element<'_> {
        let wanted = json!({ "using": using, "value": value });
        let began = Instant::now();
        loop {
            match self.try_ask("POST", "/element", &wanted) {
                Ok(found) => {
                    let id = found[ELEMENT].as_str().expect("an element");
                    let path = format!("/element/{id}");
                    return Element {
                        browser: self,
                        path,
                    };
                }
                Err(error) if began.elapsed() > LIMIT => {
                    panic!("{value}: {error}\n{}\n{}", self.url(), self.text())
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// All that the page shows.
    #[track_caller]
    pub(crate) fn text(&self) -> String {
        match self.try_ask(
            "POST",
            "/element",
            &json!({ "using": "css selector", "value": "body" }),
        ) {
            Ok(body) => {
                let path = format!(
                    "/element/{}/text",
                    body[ELEMENT].as_str().unwrap_or_default()
                );
                let text = self.try_ask("GET", &path, &Value::Null).unwrap_or_default();
                text.as_str().unwrap_or_default().to_owned()
            }
            Err(error) => format!("no page: {error}"),
        }
    }

    /// Waits until the page shows this.
    #[track_caller]
    pub(crate) fn sees(&self, text: &str) {
        let began = Instant::now();
        while !self.text().contains(text) {
            assert!(
                began.elapsed() < LIMIT,
                "{text:?} is not on {}:\n{}",
                self.url(),
                self.text()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Loads the page again and again until it shows this.
    #[track_caller]
    pub(crate) fn sees_in_time(&self, text: &str) {
        let began = Instant::now();
        while !self.text().contains(text) {
            assert!(
                began.elapsed() < LIMIT,
                "{text:?} is not on {}:\n{}",
                self.url(),
                self.text()
            );
            std::thread::sleep(Duration::from_millis(200));
            self.ask("POST", "/refresh", &json!({}));
        }
    }

    #[track_caller]
    pub(crate) fn script(&self, script: &str) -> Value {
        self.ask(
            "POST",
            "/execute/sync",
            &json!({ "script": script, "args": [] }),
        )
    }

    /// A command of the browser's own protocol.
    #[track_caller]
    pub(crate) fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.ask(
            "POST",
            "/goog/cdp/execute",
            &json!({ "cmd": command, "params": parameters }),
        )
    }

    /// Whether a window of the page's own is open, such as `alert` opens.
    pub(crate) fn has_alert(&self) -> bool {
        self.try_ask("GET", "/alert/text", &Value::Null).is_ok()
    }

    /// The whole page as a picture.
    #[track_caller]
    pub(crate) fn picture(&self) -> Vec<u8> {
        let picture = self.devtools(
            "Page.captureScreenshot",
            json!({ "captureBeyondViewport": true }),
        );
        let data = picture["data"].as_str().expect("a picture");
        base64::engine::general_purpose::STANDARD
            .decode(data)
            .expect("base64")
    }
}

impl Element<'_> {
    #[track_caller]
    pub(crate) fn click(&self) {
        self.browser
            .ask("POST", &format!("{}/click", self.path), &json!({}));
    }

    #[track_caller]
    pub(crate) fn write(&self, text: &str) {
        self.browser.ask(
            "POST",
            &format!("{}/value", self.path),
            &json!({ "text": text }),
        );
    }

    #[track_caller]
    pub(crate) fn text(&self) -> String {
        let text = self
            .browser
            .ask("GET", &format!("{}/text", self.path), &Value::Null);
        text.as_str().unwrap_or_default().to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            // Ends the browser; the driver does not when it is killed.
            let _ = self.try_ask("DELETE", "", &Value::Null);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}

/// What the driver says when it listens: `… started successfully on port 40123.`
fn port_of(driver: &mut Child) -> u16 {
    let mut lines = BufReader::new(driver.stdout.take().expect("its output"));
    let mut said = String::new();
    loop {
        let mut line = String::new();
        let read = lines.read_line(&mut line).expect("its output");
        assert!(read > 0, "chromedriver ended:\n{said}");
        if let Some((_, port)) = line.split_once("successfully on port ") {
            let port = port
                .trim_matches(|c: char| !c.is_ascii_digit())
                .parse()
                .expect("a port");
            // It may go on talking: nobody must keep it waiting.
            std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
            return port;
        }
        said.push_str(&line);
    }
}

fn exchange(to: SocketAddr, request: &[u8]) -> std::io::Result<Value> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(LIMIT * 2))?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    let mut buffer = [0; 64 * 1024];
    // Its length says where it ends: the connection may stay open.
    loop {
        let read = stream.read(&mut buffer)?;
        answer.extend_from_slice(&buffer[..read]);
        let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else {
            if read == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            continue;
        };
        let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length
            .and_then(|length| length.trim().parse().ok())
            .unwrap_or(0);
        let body = &answer[end + 4..];
        if body.len() >= length || read == 0 {
            return serde_json::from_slice(body).map_err(std::io::Error::other);
        }
    }
}
