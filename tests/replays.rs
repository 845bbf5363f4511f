//! Producers' lists over HTTP (§7.5): what is asked, what is read, and that a hostile or broken server is bounded and
//! reported. Each server here is a socket that says exactly what its test wants.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower_inbox::clock::Timestamp;
use tower_inbox::reconcile::{
    HttpReplays, KudosReplays, List, Page, Query, ReplayError, ReplayErrorKind, ReplaySource,
};

const KEY: &str = "rk_very_secret";

/// What a server says to one request.
enum Say {
    /// This, and then it closes the connection.
    Bytes(Vec<u8>),
    /// A byte each 20 ms, for ever, after this.
    Slowly(Vec<u8>),
    /// This, and then more of a body for ever.
    Endless(Vec<u8>),
    /// Nothing.
    Silence,
}

fn answer(status: u16, headers: &str, body: &str) -> Say {
    let length = body.len();
    Say::Bytes(
        format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n{body}")
            .into_bytes(),
    )
}

/// A server, and the heads of the requests that came.
struct Server {
    url: String,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn start(say: impl Fn(usize) -> Say + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/list", listener.local_addr().unwrap());
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let (seen, say) = (Arc::clone(&heads), Arc::new(say));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, Arc::clone(&seen), Arc::clone(&say)));
            }
        });
        Self { url, heads }
    }

    fn replays(&self) -> HttpReplays {
        let replays = HttpReplays::new(&self.url, KEY).unwrap();
        let replays = replays.path("/hooks/acme").unwrap();
        replays
            .timeout(Duration::from_millis(500))
            .attempts(1, Duration::from_millis(1))
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

async fn serve(
    mut socket: TcpStream,
    heads: Arc<Mutex<Vec<String>>>,
    say: Arc<impl Fn(usize) -> Say>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match socket.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let n = {
        let mut heads = heads.lock().unwrap();
        heads.push(String::from_utf8(head).unwrap());
        heads.len()
    };
    match say(n) {
        Say::Bytes(bytes) => drop(socket.write_all(&bytes).await),
        Say::Slowly(bytes) => {
            let _ = socket.write_all(&bytes).await;
            while socket.write_all(b" ").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Say::Endless(bytes) => {
            let _ = socket.write_all(&bytes).await;
            while socket.write_all(&[b' '; 65_536]).await.is_ok() {}
        }
        Say::Silence => std::future::pending().await,
    }
}

async fn exhausted(from: &dyn ReplaySource) -> Result<Page, ReplayError> {
    from.page(query(None, None)).await
}

fn query<'a>(since: Option<Timestamp>, page: Option<&'a str>) -> Query<'a> {
    Query::new(List::Exhausted).since(since).page(page)
}

const EVENTS: &str = r#"{"events":[
    {"event_id":"evt_1","timestamp":"2026-05-30T08:42:11Z","headers":{"content-type":"application/json","x-a":"\u0062"},
     "body":"{\"event_id\": \"evt_1\"}"},
    {"event_id":"evt_2","timestamp":"2026-05-30T08:42:12.5Z","body_base64":"AP8="}],
  "next":"p 2&x","total":7}"#;

/// §7.5
#[tokio::test]
async fn a_page_is_asked_for_with_the_key_and_read_byte_for_byte() {
    let server = Server::start(|_| answer(200, "", EVENTS)).await;
    let since = Timestamp::from_secs(1_700_000_000);
    let replays = server.replays();
    let asked = query(Some(since), Some("p 1&x")).event_type(Some("a&b"));
    let page = replays.page(asked).await.unwrap();
    let head = server.heads()[0].to_ascii_lowercase();
    let line = "get /list?list=exhausted&limit=100&since=2023-11-14t22%3a13%3a20z&event_type=a%26b&page=p+1%26x http/1.1\r\n";
    assert!(head.starts_with(line), "{head}");
    assert!(
        head.contains(&format!("\r\nauthorization: bearer {KEY}\r\n")),
        "{head}"
    );
    assert!(
        !head.contains("accept-encoding"),
        "nothing is to be decompressed: {head}"
    );
    assert_eq!(
        (page.next.as_deref(), page.announced),
        (Some("p 2&x"), Some(7))
    );
    let [one, two] = &page.items[..] else {
        panic!("{page:?}")
    };
    assert_eq!(one.at, Timestamp::from_secs(1_780_130_531));
    let request = one.request.as_ref().unwrap();
    assert_eq!(request.uri(), "/hooks/acme");
    assert_eq!(request.headers()["x-a"], "b");
    assert_eq!(&request.body()[..], br#"{"event_id": "evt_1"}"#);
    assert_eq!(&two.request.as_ref().unwrap().body()[..], b"\0\xff");
}

/// §6.5 is about secrets; a key is one.
#[tokio::test]
async fn the_key_is_never_shown() {
    let server = Server::start(|_| answer(401, "", KEY)).await;
    let replays = server.replays();
    let error = exhausted(&replays).await.unwrap_err();
    assert_eq!(error.kind(), ReplayErrorKind::Unauthorized);
    let kudos = KudosReplays::new(&server.url, KEY, "/x").unwrap();
    for shown in [
        format!("{replays:?}"),
        format!("{kudos:?}"),
        format!("{error:?} {error}"),
    ] {
        assert!(!shown.contains(KEY), "{shown}");
    }
    assert_eq!(server.heads().len(), 1, "a refused key is not tried again");
}

/// §7.5
#[tokio::test]
async fn what_would_show_the_key_is_refused() {
    for bad in [
        "http://producer.example/list",
        "ftp://producer.example/list",
        "https://user:pw@producer.example/list",
        "https://producer.example/list?key=x",
        "https:///list",
        "",
    ] {
        assert!(HttpReplays::new(bad, KEY).is_err(), "{bad:?}");
    }
    assert!(HttpReplays::insecure_plain_http("http://producer.example/list", KEY).is_ok());
    for key in ["", "a\nb"] {
        assert!(
            HttpReplays::new("http://localhost/list", key).is_err(),
            "{key:?}"
        );
    }
    let replays = HttpReplays::new("http://localhost/list", KEY).unwrap();
    assert!(replays.path("no path").is_err());
}

/// §7.5
#[tokio::test]
async fn a_redirect_is_an_error_and_not_followed() {
    let other = Server::start(|_| answer(200, "", EVENTS)).await;
    for status in [301, 302, 303, 307, 308] {
        let location = format!("Location: {}\r\n", other.url);
        let server = Server::start(move |_| answer(status, &location, "")).await;
        let error = exhausted(&server.replays()).await.unwrap_err();
        assert_eq!(error.kind(), ReplayErrorKind::Refused, "{error}");
    }
    assert!(other.heads().is_empty());
}

/// §7.5
#[tokio::test]
async fn a_huge_body_is_cut_off() {
    let announced = "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n";
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFF\r\n";
    let unframed = "HTTP/1.1 200 OK\r\n\r\n";
    for head in [announced, chunked, unframed] {
        let server = Server::start(move |_| Say::Endless(head.into())).await;
        let replays = server
            .replays()
            .body_limit(1_000_000)
            .timeout(Duration::from_secs(20));
        let error = exhausted(&replays).await.unwrap_err();
        assert_eq!(error.kind(), ReplayErrorKind::TooBig, "{error}");
    }
}

/// §7.5
#[tokio::test]
async fn endless_headers_end() {
    let server = Server::start(|_| Say::Endless(b"HTTP/1.1 200 OK\r\nX: ".into())).await;
    let replays = server.replays().timeout(Duration::from_secs(20));
    let error = exhausted(&replays).await.unwrap_err();
    assert_eq!(error.kind(), ReplayErrorKind::Unavailable, "{error}");
}

/// §7.5
#[tokio::test]
async fn slow_bytes_and_silence_end_with_the_time() {
    let says: [fn() -> Say; 3] = [
        || Say::Silence,
        || Say::Slowly(b"HTTP/1.1 200 OK\r\nX-Slow: ".into()),
        || Say::Slowly(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n".into()),
    ];
    for say in says {
        let server = Server::start(move |_| say()).await;
        let began = Instant::now();
        let error = exhausted(&server.replays()).await.unwrap_err();
        assert_eq!(error.kind(), ReplayErrorKind::Unavailable, "{error}");
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "{:?}",
            began.elapsed()
        );
    }
}

/// §7.5
#[tokio::test]
async fn what_may_pass_is_tried_again_and_retry_after_honoured() {
    let server = Server::start(|n| match n {
        1 => answer(503, "", ""),
        2 => answer(429, "Retry-After: 1\r\n", ""),
        3 => Say::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{".into()),
        _ => answer(200, "", EVENTS),
    })
    .await;
    let replays = server.replays().attempts(4, Duration::from_millis(1));
    let began = Instant::now();
    assert_eq!(exhausted(&replays).await.unwrap().items.len(), 2);
    assert_eq!(server.heads().len(), 4);
    assert!(began.elapsed() >= Duration::from_secs(1), "Retry-After");
    // One that is long is not waited for here.
    let server = Server::start(|_| answer(429, "Retry-After: 3600\r\n", "")).await;
    let replays = server.replays().attempts(4, Duration::from_millis(1));
    let error = exhausted(&replays).await.unwrap_err();
    assert_eq!(error.wait(), Some(Duration::from_secs(3_600)));
    assert_eq!(server.heads().len(), 1);
    // What will not pass is not tried again.
    let server = Server::start(|_| answer(404, "", "")).await;
    let replays = server.replays().attempts(4, Duration::from_millis(1));
    assert_eq!(
        exhausted(&replays).await.unwrap_err().kind(),
        ReplayErrorKind::Refused
    );
    assert_eq!(server.heads().len(), 1);
    let server = Server::start(|_| answer(410, "", "")).await;
    let error = exhausted(&server.replays()).await.unwrap_err();
    assert_eq!(error.kind(), ReplayErrorKind::PageGone);
}

/// §7.5
#[tokio::test]
async fn nobody_there_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/list", listener.local_addr().unwrap());
    drop(listener);
    let replays = HttpReplays::new(&url, KEY).unwrap();
    let replays = replays.attempts(2, Duration::from_millis(1));
    assert_eq!(
        exhausted(&replays).await.unwrap_err().kind(),
        ReplayErrorKind::Unavailable
    );
}

/// §7.5
#[tokio::test]
async fn garbage_is_reported_item_by_item_or_whole() {
    for whole in [
        "",
        "null",
        "[]",
        "{",
        "{\"events\":7}",
        "{\"events\":[1,}",
        "<html>",
        "{\"events\":[],\"next\":7}",
    ] {
        let server = Server::start(move |_| answer(200, "", whole)).await;
        let error = exhausted(&server.replays()).await.unwrap_err();
        assert_eq!(
            error.kind(),
            ReplayErrorKind::Unreadable,
            "{whole}: {error}"
        );
    }
    let items = r#"{"events":[7, null, {}, {"event_id":"evt_1","timestamp":"yesterday","body":"x"},
        {"event_id":"evt_2","timestamp":"2026-05-30T08:42:11Z"},
        {"event_id":"evt_3","timestamp":"2026-05-30T08:42:11Z","body":"x","headers":{"a b":"c"}},
        {"event_id":"evt_4","timestamp":"2026-05-30T08:42:11Z","body":"x","headers":{"a":"c\r\nd: e"}},
        {"event_id":"evt_5","timestamp":"2026-05-30T08:42:11Z","body":"x","body_base64":"eA=="},
        {"event_id":"evt_6","timestamp":"2026-05-30T08:42:11Z","body_base64":"%"},
        {"event_id":"evt_7","timestamp":"2026-05-30T08:42:11Z","body":"good"}]}"#;
    let server = Server::start(move |_| answer(200, "", items)).await;
    let page = exhausted(&server.replays()).await.unwrap();
    assert_eq!(page.items.len(), 1, "{page:?}");
    let named: Vec<_> = page
        .unreadable
        .iter()
        .map(|bad| bad.what.as_str())
        .collect();
    let expected = [
        "item 1 of a page",
        "item 2 of a page",
        "item 3 of a page",
        "evt_1",
        "evt_2",
        "evt_3",
        "evt_4",
        "evt_5",
        "evt_6",
    ];
    assert_eq!(named, expected);
    assert!(page.unreadable[4].at.is_some());
    // Ten thousand and one of them, and a depth that would cost a recursive reader its stack.
    for body in [
        format!("{{\"events\":[{}1]}}", "1,".repeat(10_000)),
        "[".repeat(200_000),
    ] {
        let server = Server::start(move |_| answer(200, "", &body)).await;
        let error = exhausted(&server.replays()).await.unwrap_err();
        assert_eq!(error.kind(), ReplayErrorKind::Unreadable, "{error}");
    }
}

/// §7.5
#[tokio::test]
async fn a_place_in_a_stream_is_asked_for() {
    let server = Server::start(|n| match n {
        1 => answer(200, "", EVENTS),
        _ => answer(200, "", "{\"events\":[]}"),
    })
    .await;
    let replays = server.replays();
    assert!(!replays.knows_sequences());
    let replays = replays.with_sequences();
    assert!(replays.knows_sequences());
    assert!(replays.by_sequence("acct 7", 3).await.unwrap().is_some());
    assert!(replays.by_sequence("acct 7", 4).await.unwrap().is_none());
    let line = "GET /list?correlation_id=acct+7&sequence=3 HTTP/1.1\r\n";
    assert!(server.heads()[0].starts_with(line), "{:?}", server.heads());
}

/// §7.5
#[tokio::test]
async fn kudos_delivery_log_is_read_and_replays_are_ordered() {
    let log = r#"{"deliveries":[
        {"id":"del_1","event_id":"evt_1","status":"failed","created_at":"2026-05-30T08:42:11Z","updated_at":"2026-05-30T09:42:11Z",
         "payload":{"event_id": "evt_1",  "data": {}}, "attempts":[{"response_code":503}]},
        {"id":"del_2","event_id":"evt_2","status":"failed","created_at":"2026-05-30T08:42:11Z","payload":"{\"event_id\":\"evt_2\"}"},
        {"id":"del_3","event_id":"evt_3","status":"failed","created_at":"2026-05-30T08:42:11Z"},
        {"id":"del_4","event_id":"evt_4","status":"delivered","created_at":"2026-05-30T08:42:11Z"}],
      "next_cursor":null,"total":3}"#;
    let server = Server::start(move |_| answer(200, "", log)).await;
    let url = server
        .url
        .replace("/list", "/webhook_subscriptions/sub_1/deliveries/");
    let kudos = KudosReplays::new(&url, KEY, "/hooks/acme").unwrap();
    let page = exhausted(&kudos).await.unwrap();
    let line = "GET /webhook_subscriptions/sub_1/deliveries?status=failed&limit=100 HTTP/1.1\r\n";
    assert!(server.heads()[0].starts_with(line), "{:?}", server.heads());
    let ids: Vec<_> = page
        .items
        .iter()
        .map(|item| item.event_id.as_str())
        .collect();
    assert_eq!(
        ids,
        ["evt_1", "evt_2", "evt_3"],
        "what was delivered is left out"
    );
    // The text as it stands: a producer's own bytes.
    let body = |n: usize| {
        page.items[n]
            .request
            .as_ref()
            .map(|request| request.body().clone())
    };
    assert_eq!(body(0).unwrap(), r#"{"event_id": "evt_1",  "data": {}}"#);
    assert_eq!(body(1).unwrap(), r#"{"event_id":"evt_2"}"#);
    assert_eq!(body(2), None);
    assert_eq!(page.items[0].at, Timestamp::from_secs(1_780_134_131));
    kudos.send_again(&page.items[2]).await.unwrap();
    let line = "POST /webhook_subscriptions/sub_1/deliveries/del_3/replay HTTP/1.1\r\n";
    assert!(server.heads()[1].starts_with(line), "{:?}", server.heads());
    // An id that would lead elsewhere.
    let mut item = page.items[2].clone();
    for id in ["../../secrets", "a/b", "", "a?b", "a%2fb"] {
        item.reference = id.into();
        assert!(kudos.send_again(&item).await.is_err(), "{id}");
    }
    assert_eq!(server.heads().len(), 2);
}
