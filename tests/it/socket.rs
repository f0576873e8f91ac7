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
    if has_no_new_privileges() {
        println!(
            "!! skipped: these tests run without new privileges, so nobody here is an operator"
        );
        assert_eq!(ask(&socket, ""), 401);
        return;
    }
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
    assert!(daemon.ok(&["get", "sessions", "-o", "name"]).contains("session/s"));
    std::fs::rename(daemon.path("token"), &token).unwrap();
    let data = daemon.path("data").display().to_string();
    let program = env!("CARGO_BIN_EXE_spawnlet");
    let turn =
        daemon.turn("s", &format!("[[run:env -i {program} --data-dir {data} get sessions]]"));
    daemon.ended(&turn);
    let said = daemon.response(&turn);
    assert!(said.starts_with("exit 77\n") && said.contains("inside an agent's tree"), "{said}");
}

/// Whether this process gave up new privileges, as a container or a service may have it do.
fn has_no_new_privileges() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    !status.lines().any(|line| line == "NoNewPrivs:\t0")
}

/// What every process below a shim is, whatever it did to its parents and its environment, and though
/// neither its daemon nor its shim lives any more: it gave up new privileges.
#[test]
fn whoever_gave_up_new_privileges_is_not_the_operator_and_needs_a_token() {
    let daemon = Daemon::start();
    let data = daemon.path("data").display().to_string();
    let get = |token: Option<&str>| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--no-new-privs", "env", "-i", env!("CARGO_BIN_EXE_spawnlet")]);
        command.args(["--data-dir", &data]);
        command.args(token.into_iter().flat_map(|token| ["--token", token]));
        command.args(["get", "sessions"]).output().unwrap().status.code()
    };
    // The command line has the operator's token at hand, which is what a sandbox keeps away.
    let token = daemon.path("data/operator.token");
    std::fs::rename(&token, daemon.path("token")).unwrap();
    assert_eq!(get(None), Some(77));
    std::fs::rename(daemon.path("token"), &token).unwrap();
    assert_eq!(get(Some(&daemon.token())), Some(0));
}

/// A daemon does not know the marks of another one's store, and need not.
#[test]
fn an_agent_of_another_daemon_is_not_the_operator() {
    let (ours, theirs) = (Daemon::start(), Daemon::start());
    let data = ours.path("data").display().to_string();
    theirs.agent("a", &[], json!({}));
    theirs.session("s", "a", json!({}));
    let token = ours.path("data/operator.token");
    std::fs::rename(&token, ours.path("token")).unwrap();
    let program = env!("CARGO_BIN_EXE_spawnlet");
    for environment in ["env -u SPAWNLET_URL -u SPAWNLET_TOKEN", "env -i"] {
        let line = format!("[[run:{environment} {program} --data-dir {data} get sessions]]");
        let turn = theirs.turn("s", &line);
        theirs.ended(&turn);
        let said = theirs.response(&turn);
        assert!(said.starts_with("exit 77\n") && said.contains("Unauthorized"), "{said}");
    }
    std::fs::rename(ours.path("token"), &token).unwrap();
}

/// Agents that hold the socket by hundreds of connections keep no operator out.
#[test]
fn agents_that_crowd_the_socket_keep_no_operator_out() {
    if has_no_new_privileges() {
        println!(
            "!! skipped: these tests run without new privileges, so nobody here is an operator"
        );
        return;
    }
    // Whoever looks all the time is not to be held back.
    let daemon = Daemon::with(&["--set", "http.perTokenRate=100000/s"]);
    let socket = daemon.path("data/spawnlet.sock");
    daemon.agent("a", &[], json!({}));
    daemon.session("s", "a", json!({}));
    let script = daemon.path("hog.py");
    let program = "import socket, sys, time\nheld = []\nfor _ in range(600):\n    \
                   s = socket.socket(socket.AF_UNIX)\n    s.connect(sys.argv[1])\n    held.append(s)\n\
                   open(sys.argv[2], 'w').close()\ntime.sleep(60)\n";
    std::fs::write(&script, program).unwrap();
    let held = daemon.path("held");
    let hog = format!(
        "[[run:timeout 60 python3 {} {} {}]]",
        script.display(),
        socket.display(),
        held.display()
    );
    let turn = daemon.turn("s", &hog);
    daemon.until(&format!("turns/{turn}"), |turn| turn["status"]["delivery"] == "Sent");
    let mut slowest = std::time::Duration::ZERO;
    let (mut looks, started) = (0, std::time::Instant::now());
    // While the crowd comes, and then a hundred times while it is there.
    while looks < 100 {
        looks += usize::from(held.exists());
        assert!(started.elapsed() < crate::harness::DEADLINE, "no crowd came");
        let begun = std::time::Instant::now();
        assert_eq!(ask(&socket, ""), 200);
        slowest = slowest.max(begun.elapsed());
    }
    assert!(slowest < std::time::Duration::from_secs(4), "an operator waited {slowest:?}");
    daemon.ok(&["cancel", "s"]);
    daemon.ended(&turn);
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
    assert_eq!(peer.is_proven_own_user(), !has_no_new_privileges(), "{peer:?}");
    client.kill().unwrap();
    client.wait().unwrap();
    assert!(!peer.is_proven_own_user(), "{peer:?}");
    // Looked at only after it has gone: there may be nothing to know at all.
    let peer = Peer::of(stream.as_fd());
    assert!(!peer.is_some_and(|peer| peer.is_proven_own_user()));
}
