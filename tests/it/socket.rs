//! The socket in the data directory: who is the operator there without a token, and who is not.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Stdio;

use serde_json::json;
use spawnlet::runtime::peers::Peer;

use crate::harness::{Daemon, Home, spawnlet};

const SESSIONS: &str = "/apis/spawnlet.dev/v1alpha1/namespaces/default/sessions";

/// The status of a GET, with these lines in its head.
fn ask(socket: &Path, head: &str) -> u16 {
    let mut stream = UnixStream::connect(socket).unwrap();
    let request =
        format!("GET {SESSIONS} HTTP/1.1\r\nHost: localhost\r\n{head}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status")
}

#[test]
fn at_the_socket_the_daemons_own_user_is_the_operator_and_an_agent_is_nobody() {
    let daemon = Daemon::start();
    let socket = daemon.path("data/spawnlet.sock");
    assert_eq!(ask(&socket, ""), 200);
    // A token counts also there, and a bad one opens nothing.
    assert_eq!(ask(&socket, &format!("Authorization: Bearer {}\r\n", daemon.token())), 200);
    assert_eq!(ask(&socket, "Authorization: Bearer x\r\n"), 401);
    assert_eq!(ask(&socket, "Authorization:\r\n"), 401);
    // The rest of the guard stands there too.
    assert_eq!(ask(&socket, "Origin: http://evil.example\r\n"), 403);
    // Over TCP nobody is known without a token.
    let path = SESSIONS.trim_start_matches('/');
    let refused = crate::harness::Request::new(daemon.address(), "GET", &format!("/{path}")).send();
    assert_eq!(refused.status, 401);

    // Without the file of the token the command line still works; inside a tree it does not.
    daemon.agent("a", &[], json!({}));
    daemon.session("s", "a", json!({}));
    let token = daemon.path("data/operator.token");
    std::fs::rename(&token, daemon.path("token")).unwrap();
    assert!(daemon.ok(&["get", "sessions"]).contains("Idle"));
    std::fs::rename(daemon.path("token"), &token).unwrap();
    let data = daemon.path("data").display().to_string();
    let program = env!("CARGO_BIN_EXE_spawnlet");
    let turn =
        daemon.turn("s", &format!("[[run:env -i {program} --data-dir {data} get sessions]]"));
    daemon.ended(&turn);
    let said = daemon.response(&turn);
    assert!(said.starts_with("exit 77\n") && said.contains("inside an agent's tree"), "{said}");
}

/// The number of a process can be another's by the time that its connection is looked at.
#[test]
fn whoever_connected_and_is_gone_is_not_taken_for_who_has_its_number_now() {
    let home = Home::new();
    let directory = home.path("listener");
    std::fs::create_dir(&directory).unwrap();
    let listener = UnixListener::bind(directory.join("spawnlet.sock")).unwrap();
    let connect = || {
        let mut command = spawnlet();
        command.arg("--data-dir").arg(&directory).args(["get", "sessions"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut client = connect();
    let (stream, _) = listener.accept().unwrap();
    let peer = Peer::of(stream.as_fd()).unwrap();
    assert!(peer.is_proven_own_user(), "{peer:?}");
    client.kill().unwrap();
    client.wait().unwrap();
    assert!(!peer.is_proven_own_user(), "{peer:?}");
    // Looked at only after it has gone: there may be nothing to know at all.
    let peer = Peer::of(stream.as_fd());
    assert!(!peer.is_some_and(|peer| peer.is_proven_own_user()));
}
