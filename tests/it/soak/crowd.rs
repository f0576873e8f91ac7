//! Clients that are slow, large or many, while somebody else asks (F9), over real sockets.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::rig::{Rig, peak_kib};
use crate::chaos::http::Client;
use crate::chaos::tier;

/// How long somebody else's look may take, at the 99th of a hundred.
const LOOK_MAX: Duration = Duration::from_millis(250);
/// What a crowd may cost the daemon (P13).
const CROWD_KIB_MAX: u64 = 32 * 1024;
const LOOKS_MIN: usize = 200;

/// What a crowd needs to know of the daemon.
#[derive(Clone)]
struct Target {
    address: String,
    token: String,
}

impl Target {
    fn open(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(stream)
    }

    fn head(&self, path: &str, length: usize) -> String {
        format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
             MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n\
             Mcp-Name: available_agents\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n",
            self.address, self.token
        )
    }

    /// The status of the answer to a body.
    fn post(&self, path: &str, body: &str) -> io::Result<u16> {
        let mut stream = self.open()?;
        stream.write_all(self.head(path, body.len()).as_bytes())?;
        // A daemon that refuses by the length alone need not read the rest.
        let _ = stream.write_all(body.as_bytes());
        status(&mut stream)
    }
}

fn status(stream: &mut TcpStream) -> io::Result<u16> {
    let mut answer = Vec::new();
    // The other end may reset what it did not read, after its answer.
    let _ = stream.read_to_end(&mut answer);
    let line = String::from_utf8_lossy(&answer).into_owned();
    let code = line.split(' ').nth(1).and_then(|code| code.parse().ok());
    code.ok_or_else(|| io::Error::other(format!("no status: {line:?}")))
}

/// Two hundred that send a byte, and then nothing, until they are shown the door.
fn slow(target: &Target) -> Vec<u16> {
    let mut streams: Vec<TcpStream> = (0..200).map(|_| target.open().unwrap()).collect();
    for stream in &mut streams {
        stream.write_all(b"P").unwrap();
    }
    streams.iter_mut().map(|stream| status(stream).unwrap_or(0)).collect()
}

/// Bodies of 10 MiB, in and over REST and MCP.
fn large(target: &Target) -> Vec<u16> {
    let body = "x".repeat(10 << 20);
    let paths = ["/mcp", "/apis/spawnlet.dev/v1alpha1/namespaces/default/sessions"];
    (0..20).map(|number| target.post(paths[number % 2], &body).unwrap_or(413)).collect()
}

/// JSON that is 100,000 levels deep.
fn deep(target: &Target) -> Vec<u16> {
    let body = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let paths = ["/mcp", "/apis/spawnlet.dev/v1alpha1/namespaces/default/sessions"];
    (0..20).map(|number| target.post(paths[number % 2], &body).unwrap()).collect()
}

/// A thousand calls of a tool at once.
fn many(target: &Target) -> Vec<u16> {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "crowd", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({"name": "available_agents", "arguments": {}, "_meta": meta});
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
    let body = call.to_string();
    let request = format!("{}{body}", target.head("/mcp", body.len()));
    let begin = |_| {
        let mut stream = target.open().unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let mut streams: Vec<TcpStream> = (0..1000).map(begin).collect();
    streams.iter_mut().map(|stream| status(stream).unwrap()).collect()
}

/// Looks at a session for as long as a crowd is at it: the p99 of how long a look took.
fn looks_beside(client: &mut Client, crowd: &thread::JoinHandle<Vec<u16>>) -> (usize, Duration) {
    let mut looks = Vec::new();
    while looks.len() < LOOKS_MIN || !crowd.is_finished() {
        let begun = Instant::now();
        let (code, _) = client.call("GET", "namespaces/default/sessions/other", None).unwrap();
        assert_eq!(code, 200);
        looks.push(begun.elapsed());
    }
    looks.sort_unstable();
    (looks.len(), looks[looks.len() * 99 / 100])
}

#[test]
fn slow_large_deep_and_many_clients_hold_nobody_up() {
    let mut rig = Rig::new(&[]);
    rig.session("other", &json!({"prompt": "[[say:here]]"}));
    rig.end_of("other-1");
    let token = token(&mut rig);
    let target = Target { address: rig.client.address().to_owned(), token };
    // Statuses that are right for each: the door after 5 s of no head (408, or closed without a
    // word), a body over its bound, a body that is no request, an answer or "too many at once".
    type Crowd = fn(&Target) -> Vec<u16>;
    let crowds: [(&str, Crowd, &[u16]); 4] = [
        ("200 slow heads", slow, &[0, 408]),
        ("20 bodies of 10 MiB", large, &[413]),
        ("20 bodies of 100,000 levels", deep, &[400, 422]),
        ("1000 calls at once", many, &[200, 429]),
    ];
    for (name, crowd, expected) in crowds {
        let base = peak_kib(rig.daemon.pid());
        let its_target = target.clone();
        let crowd = thread::spawn(move || crowd(&its_target));
        let (looks, p99) = looks_beside(&mut rig.client, &crowd);
        let codes = crowd.join().unwrap();
        assert!(codes.iter().all(|code| expected.contains(code)), "{name}: {codes:?}");
        let grown = peak_kib(rig.daemon.pid()).saturating_sub(base);
        println!("F9 {name}: {looks} looks of another, p99 {p99:?}; peak memory +{grown} KiB");
        assert!(grown < CROWD_KIB_MAX, "{name}: +{grown} KiB");
        assert!(tier() == 0 || p99 < LOOK_MAX, "{name}: {p99:?}");
        if expected.contains(&200) {
            assert!(codes.contains(&200), "{name}: nobody was answered");
        }
    }
    rig.stop();
}

/// A caller's token, so that the crowd shares neither rate nor places with who looks.
fn token(rig: &mut Rig) -> String {
    let path = "namespaces/default/sessions";
    let spec = json!({"provider": "external", "cwd": rig.world.text("work")});
    let body = json!({"metadata": {"name": "crowd"}, "spec": spec});
    let (code, answer) = rig.client.call("POST", path, Some(&body)).unwrap();
    assert_eq!(code, 201, "{answer}");
    let made: (u16, Value) =
        rig.client.call("POST", &format!("{path}/crowd/token"), Some(&json!({}))).unwrap();
    made.1["token"].as_str().unwrap_or_else(|| panic!("no token: {}", made.1)).to_owned()
}
