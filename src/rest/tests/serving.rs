//! The server on real sockets: patience, bounds, the end. Time is paused and moves on when nothing
//! else happens, so that no test waits.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::*;

const GET: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

async fn started(connections_max: usize) -> (Fixture, SocketAddr, JoinSet<()>) {
    let api = Fixture::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut server = JoinSet::new();
    let listeners = vec![Listener::Tcp(listener)];
    server.spawn(serve(listeners, api.router.clone(), connections_max, api.shutdown.clone()));
    (api, address, server)
}

/// Reads until the text ends in a whole answer to [`GET`].
async fn answer(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !text.ends_with("\r\n\r\nok") {
        let count = stream.read(&mut buffer).await.unwrap();
        assert!(count > 0, "closed after {text:?}");
        text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
    }
    text
}

#[tokio::test(start_paused = true)]
async fn a_connection_serves_many_requests_and_is_closed_when_idle() {
    let (_api, address, _server) = started(4).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    for _ in 0..3 {
        stream.write_all(GET.as_bytes()).await.unwrap();
        assert!(answer(&mut stream).await.starts_with("HTTP/1.1 200 OK\r\n"));
    }
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_header_that_does_not_come_costs_its_connection_only() {
    let (_api, address, _server) = started(2).await;
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"GET /healthz HTTP/1.1\r\nhost: loc").await.unwrap();
    let mut good = TcpStream::connect(address).await.unwrap();
    good.write_all(GET.as_bytes()).await.unwrap();
    answer(&mut good).await;
    let mut rest = Vec::new();
    // Closed, with or without a 408, once the time is over.
    let _ = slow.read_to_end(&mut rest).await;
    assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
}

/// 200 clients that send a byte and nothing more, 40 that promise a body of 10 MiB, and one that
/// only wants an answer. Bounds of time are those of the server; time is paused.
#[tokio::test(start_paused = true)]
async fn two_hundred_slow_clients_and_large_bodies_hold_nobody_up() {
    let (_api, address, _server) = started(256).await;
    let mut slow = Vec::new();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"G").await.unwrap();
        slow.push(stream);
    }
    for _ in 0..40 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\
             content-type: application/json\r\ncontent-length: 10485760\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut all = String::new();
        // Refused by its length: nothing of the body was sent or read.
        stream.read_to_string(&mut all).await.unwrap();
        assert!(all.starts_with("HTTP/1.1 413"), "{all}");
    }
    let asked = async {
        let mut good = TcpStream::connect(address).await.unwrap();
        good.write_all(GET.as_bytes()).await.unwrap();
        answer(&mut good).await
    };
    let answer = tokio::time::timeout(Duration::from_secs(2), asked).await;
    assert!(answer.expect("held up by slow clients").starts_with("HTTP/1.1 200 OK"));
    // The slow ones lose their places.
    for mut stream in slow {
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut rest));
        let _ = closed.await.expect("a slow client keeps its place");
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    }
}

#[tokio::test]
async fn a_deep_body_and_a_thousand_calls_at_once_are_answered_within_the_bounds() {
    let api = Fixture::new();
    api.admission.ensure_default_namespace().await.unwrap();
    let mut rules = Rules::default();
    rules.http.per_token_rate = "100/s".parse().unwrap();
    api.guard.reload(rules);
    let path = format!("{BASE}/namespaces/default/sessions");
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let headers = [("content-type", "application/json")];
    assert_eq!(api.send("POST", &path, &headers, deep).await.code, 400);
    let one = || api.send("GET", "/version", &[], Body::empty());
    let answers = futures::future::join_all((0..1000).map(|_| one())).await;
    let count = |code: u16| answers.iter().filter(|answer| answer.code == code).count();
    assert_eq!((count(200), count(429)), (99, 901));
}

#[tokio::test(start_paused = true)]
async fn a_header_over_its_bound_is_refused() {
    let (_api, address, _server) = started(2).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let large = format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n", "y".repeat(80 * 1024));
    // The server may close before all of it is written.
    let _ = stream.write_all(large.as_bytes()).await;
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
}

#[tokio::test(start_paused = true)]
async fn connections_over_the_bound_wait_for_a_free_one() {
    let (_api, address, _server) = started(1).await;
    let mut first = TcpStream::connect(address).await.unwrap();
    first.write_all(GET.as_bytes()).await.unwrap();
    answer(&mut first).await;
    let mut second = TcpStream::connect(address).await.unwrap();
    second.write_all(GET.as_bytes()).await.unwrap();
    let mut buffer = [0; 1];
    let early = tokio::time::timeout(Duration::from_millis(10), second.read(&mut buffer)).await;
    assert!(early.is_err(), "served over the bound");
    drop(first);
    answer(&mut second).await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_given_up() {
    let api = Fixture::new();
    let body = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
    let path = format!("{BASE}/namespaces/default/sessions");
    let answer = api.send("POST", &path, &[("content-type", "application/json")], body).await;
    assert_eq!((answer.code, answer.json()["reason"].clone()), (408, json!("Timeout")));
}

#[tokio::test]
async fn a_connection_goes_on_after_a_refused_request_whose_body_comes_late() {
    let (_api, address, _server) = started(4).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /apis/nobody/v1/things HTTP/1.1\r\nhost: localhost\r\n\
         authorization: Bearer {TOKEN}\r\ncontent-length: 5\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    tokio::task::yield_now().await;
    stream.write_all(format!("12345{GET}").as_bytes()).await.unwrap();
    let both = answer(&mut stream).await;
    assert!(both.starts_with("HTTP/1.1 404"), "{both}");
    // Without the token the body is not read, and the client is told that this is the end.
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = "POST /x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).await.unwrap();
    assert!(all.starts_with("HTTP/1.1 401"), "{all}");
    assert!(all.contains("connection: close"), "{all}");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_streams_and_then_the_server() {
    let (api, address, mut server) = started(4).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET {BASE}/sessions?watch=1 HTTP/1.1\r\nhost: localhost\r\n\
         authorization: Bearer {TOKEN}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    api.shutdown.cancel();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    server.join_next().await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn other_rules_hold_from_the_next_request_on() {
    let api = Fixture::new();
    let host = [("host", "spawnlet.example:1")];
    assert_eq!(api.send("GET", "/version", &host, Body::empty()).await.code, 421);
    let mut rules = Rules { hosts: vec!["spawnlet.example".to_owned()], ..Rules::default() };
    api.guard.reload(rules.clone());
    assert_eq!(api.send("GET", "/version", &host, Body::empty()).await.code, 200);
    rules.http.per_token_rate = "1/m".parse().unwrap();
    api.guard.reload(rules);
    let answer = api.send("GET", "/version", &host, Body::empty()).await;
    assert_eq!((answer.code, answer.header("retry-after")), (429, "1"));
    // Without the token the limit is not reached, and tells nothing.
    let stranger = [host[0], ("authorization", "Bearer wrong")];
    assert_eq!(api.send("GET", "/version", &stranger, Body::empty()).await.code, 401);
}

#[tokio::test]
async fn a_large_response_is_read_in_bounded_pieces() {
    let api = Fixture::new();
    api.put(Kind::Session, session("s", "Idle", json!({}))).await;
    api.put(Kind::Turn, turn("t", "s", "Completed")).await;
    let size: u64 = 4 * 1024 * 1024;
    let text = vec![b'x'; usize::try_from(size).unwrap()];
    assert_eq!(api.append(&uid("t"), crate::store::Stream::Response, &text).await, size);
    let path = format!("{BASE}/namespaces/default/turns/t/response");
    let mut body = api.open("GET", &path, &[], Body::empty()).await.into_body();
    let mut count = 0;
    while let Some(frame) = body.frame().await {
        let bytes = frame.unwrap().into_data().unwrap();
        assert!(bytes.len() <= 64 * 1024);
        count += bytes.len() as u64;
    }
    assert_eq!(count, size);
}
