//! Stop and deletion: what stays, what goes, and that no process is left.

use serde_json::json;

use crate::harness::Daemon;

#[test]
fn a_stopped_session_keeps_its_record_and_no_process() {
    let daemon = Daemon::start();
    daemon.agent("plain", &["--cap=all"], json!({}));
    daemon.session("running", "plain", json!({}));
    let turn = daemon.turn("running", "[[say:part]][[escape:plain]][[say:begun]][[never]]");
    daemon.said("running", &turn, "begun");
    let waiting = daemon.turn("running", "[[say:never]]");
    assert!(!daemon.processes().is_empty());
    daemon.ok(&["stop", "running"]);
    let session = daemon.phase("running", "Stopped");
    assert_eq!(session["status"]["reason"], "Cancelled");
    assert!(session["status"]["process"].is_null(), "{session:#}");
    assert_eq!(daemon.processes(), Vec::<String>::new());
    let ended = daemon.get(&format!("turns/{turn}"));
    assert_eq!(ended["status"]["phase"], "Cancelled", "{ended:#}");
    assert_eq!(ended["status"]["code"], "TURN_CANCELLED");
    assert_eq!(daemon.response(&turn), "partbegun");
    assert_eq!(daemon.get(&format!("turns/{waiting}"))["status"]["phase"], "Discarded");
    // It never runs again, and only goes forward.
    let ran = daemon.cli(&["prompt", "running", "again"]);
    assert_ne!(ran.code, Some(0), "{ran:?}");
    let answer = daemon.patch("sessions/running", &json!({"spec": {"desiredState": "running"}}));
    assert_eq!(answer.status, 422, "{}", answer.text());
}

#[test]
fn an_external_session_is_idle_has_no_process_and_goes_at_once() {
    let daemon = Daemon::start();
    let spec = json!({"provider": "external", "cwd": daemon.home().work()});
    let body = json!({"metadata": {"name": "editor"}, "spec": spec});
    let answer = daemon.create("sessions", &body);
    assert_eq!(answer.status, 201, "{}", answer.text());
    let session = daemon.phase("editor", "Idle");
    assert_eq!(session["status"]["reason"], "External", "{session:#}");
    assert!(session["status"]["process"].is_null(), "{session:#}");
    daemon.ok(&["stop", "editor"]);
    daemon.phase("editor", "Stopped");
    daemon.ok(&["delete", "session", "editor", "--wait"]);
    assert!(!daemon.has("sessions/editor"));
    assert_eq!(daemon.processes(), Vec::<String>::new());
}

#[test]
fn a_deleted_session_goes_only_after_its_whole_process_tree() {
    let daemon = Daemon::start();
    let stop = json!({"stop": {"cancel": "300ms", "close": "100ms", "eof": "100ms",
        "term": "100ms"}});
    daemon.agent(
        "stays",
        &["--cap=all", "--ignore-term", "--on-eof=ignore", "--on-cancel=ignore"],
        stop,
    );
    daemon.session("tree", "stays", json!({}));
    let prompt = "[[escape:plain]][[escape:setpgid]][[escape:setsid]][[escape:double]]\
                  [[escape:scrub]][[escape:hold]][[say:begun]][[never]]";
    let turn = daemon.turn("tree", prompt);
    daemon.said("tree", &turn, "begun");
    let answer = daemon.request("DELETE", &crate::harness::path_of("sessions/tree")).send();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.json()["metadata"]["deletionTimestamp"].is_string(), "{}", answer.text());
    daemon.gone("sessions/tree");
    // Not "soon": with the record nothing is left to tell of them.
    assert_eq!(daemon.processes(), Vec::<String>::new());
    assert!(!daemon.has(&format!("turns/{turn}")));
    assert_eq!(
        daemon
            .request(
                "GET",
                &format!("{}/response", crate::harness::path_of(&format!("turns/{turn}")))
            )
            .send()
            .status,
        404
    );
}
