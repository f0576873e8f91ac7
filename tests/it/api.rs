//! Files, REST and the command line as people use them.

use serde_json::{Value, json};

use crate::harness::{Daemon, path_of};

/// A file with an agent and sessions, each with a title.
fn file(daemon: &Daemon, sessions: &[(&str, &str)]) -> String {
    let mut text = format!(
        "apiVersion: spawnlet.dev/v1alpha1\nkind: Agent\nmetadata: {{name: filed}}\n\
         spec: {{argv: [{:?}, --cap=all, {:?}]}}\n",
        crate::harness::fakeagent(),
        format!("--pid-log={}", daemon.path("log/filed").display()),
    );
    for (name, title) in sessions {
        text.push_str(&format!(
            "---\napiVersion: spawnlet.dev/v1alpha1\nkind: Session\nmetadata: {{name: {name}}}\n\
             spec: {{agent: filed, cwd: {:?}, title: {title}}}\n",
            daemon.home().work(),
        ));
    }
    text
}

#[test]
fn a_file_that_changes_changes_what_it_made_and_a_removed_document_takes_it_away() {
    let daemon = Daemon::start();
    daemon.write_manifest("f.yaml", &file(&daemon, &[("one", "first"), ("two", "first")]));
    daemon.until("sessions/one", |session| session["spec"]["title"] == "first");
    let two = daemon.until("sessions/two", |session| session["status"]["phase"] == "Idle");
    // A process, so that the removal has something to end.
    let ran = daemon.cli(&["prompt", "two", "[[escape:setsid]][[say:up]]"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!daemon.processes().is_empty());

    // A field that may change keeps the object; one that may not makes a new one.
    daemon.write_manifest("f.yaml", &file(&daemon, &[("one", "second"), ("two", "first")]));
    let one = daemon.until("sessions/one", |session| session["spec"]["title"] == "second");
    let work = daemon.home().work();
    let text = file(&daemon, &[("one", "second"), ("two", "first")])
        .replace(&format!("cwd: {work:?}, title: second"), "cwd: /, title: second");
    daemon.write_manifest("f.yaml", &text);
    let new = daemon.until("sessions/one", |session| session["spec"]["cwd"] == "/");
    assert_ne!(new["metadata"]["uid"], one["metadata"]["uid"]);
    let uid = daemon.get("sessions/two")["metadata"]["uid"].clone();
    assert_eq!(uid, two["metadata"]["uid"], "what did not change is left alone");

    // Nobody else changes what a file owns; what somebody deletes is not made again.
    let answer = daemon.patch("sessions/two", &json!({"spec": {"title": "mine"}}));
    assert_eq!(answer.status, 403, "{}", answer.text());
    assert!(answer.json()["message"].as_str().unwrap().contains("ManagedByManifest"));
    daemon.write_manifest("f.yaml", &file(&daemon, &[("three", "x"), ("two", "first")]));
    daemon.until("sessions/three", |_| true);
    daemon.gone("sessions/one");
    daemon.ok(&["delete", "session", "three", "--wait"]);
    let sessions = [("one", "third"), ("three", "x"), ("two", "first")];
    daemon.write_manifest("f.yaml", &file(&daemon, &sessions));
    daemon.until("sessions/one", |session| session["spec"]["title"] == "third");
    assert!(!daemon.has("sessions/three"));

    // A removed document, then a removed file, take away what they made, and its processes.
    daemon.write_manifest("f.yaml", &file(&daemon, &[("one", "third")]));
    daemon.gone("sessions/two");
    assert_eq!(daemon.processes(), Vec::<String>::new());
    std::fs::remove_file(daemon.path("manifests/f.yaml")).unwrap();
    daemon.gone("sessions/one");
    daemon.gone("agents/filed");
}

#[test]
fn a_turn_of_a_file_is_replaced_and_put_back_under_its_idempotency_key() {
    let daemon = Daemon::start();
    daemon.agent("a", &["--cap=all"], json!({}));
    daemon.session("s", "a", json!({}));
    let turn = |prompt: &str| {
        format!(
            "apiVersion: spawnlet.dev/v1alpha1\nkind: Turn\nmetadata: {{name: t}}\n\
             spec: {{session: s, prompt: {prompt:?}, idempotencyKey: k}}\n"
        )
    };
    daemon.write_manifest("t.yaml", &turn("[[say:one]]"));
    daemon.until("turns/t", |turn| turn["status"]["phase"] == "Completed");
    daemon.write_manifest("t.yaml", &turn("[[say:two]]"));
    daemon.until("turns/t", |turn| {
        turn["status"]["phase"] == "Completed" && turn["spec"]["prompt"] == "[[say:two]]"
    });
    assert_eq!(daemon.response("t"), "two");
    std::fs::remove_file(daemon.path("manifests/t.yaml")).unwrap();
    daemon.gone("turns/t");
    // Somebody else's request under the same key is known all the same.
    let body = json!({"metadata": {"name": "u"}, "spec": {
        "session": "s", "prompt": "x", "idempotencyKey": "k",
    }});
    let refused = daemon.create("turns", &body);
    assert_eq!(refused.status, 409, "{}", refused.text());
    daemon.write_manifest("t.yaml", &turn("[[say:two]]"));
    daemon.until("turns/t", |turn| turn["status"]["phase"] == "Completed");
}

#[test]
fn objects_are_shown_watched_selected_and_patched() {
    let daemon = Daemon::start();
    daemon.agent("plain", &["--cap=all"], json!({}));
    let watch = daemon.follow(&["get", "sessions", "-w"]);
    for (name, team) in [("a1", "red"), ("a2", "red"), ("b1", "blue")] {
        let body = json!({"metadata": {"name": name, "labels": {"team": team}},
            "spec": {"agent": "plain", "cwd": daemon.home().work()}});
        assert_eq!(daemon.create("sessions", &body).status, 201);
    }
    watch.line_with("b1");
    daemon.ok(&["prompt", "a1", "[[say:hi]]"]);
    // A turn as short as this one may never be seen running.
    watch.line_with("Starting");
    watch.line_with("Idle");

    let names = |selector: &[&str]| {
        let mut arguments = vec!["get", "sessions", "-o", "name"];
        arguments.extend(selector);
        daemon.ok(&arguments).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), ["session/a1", "session/a2", "session/b1"]);
    assert_eq!(names(&["-l", "team=red"]), ["session/a1", "session/a2"]);
    assert_eq!(names(&["-l", "team!=red"]), ["session/b1"]);
    assert_eq!(names(&["-l", "team in (blue,green)"]), ["session/b1"]);
    assert_eq!(names(&["-l", "!team"]), [""; 0]);
    assert_eq!(names(&["--field-selector", "metadata.name=a2"]), ["session/a2"]);

    let object: Value =
        serde_json::from_str(&daemon.ok(&["get", "session/a1", "-o", "json"])).unwrap();
    let yaml = daemon.ok(&["get", "session/a1", "-o", "yaml"]);
    assert_eq!(serde_yaml_value(&yaml), object);
    let uid = object["metadata"]["uid"].as_str().unwrap();
    assert_eq!(daemon.ok(&["get", "session", uid, "-o", "name"]), "session/a1\n");
    let table = daemon.ok(&["get", "sessions"]);
    assert!(table.starts_with("NAME") && table.lines().count() == 4, "{table}");

    // A merge patch changes one field; a second with an old version is refused.
    let patched = daemon.patch(
        "sessions/a1",
        &json!({"spec": {"title": "new"},
        "metadata": {"labels": {"team": null, "more": "yes"}}}),
    );
    assert_eq!(patched.status, 200, "{}", patched.text());
    let patched = patched.json();
    assert_eq!(patched["spec"]["title"], "new");
    assert_eq!(patched["metadata"]["labels"], json!({"more": "yes"}));
    assert_eq!(patched["metadata"]["generation"], 2);
    let stale = json!({"spec": {"title": "newer"},
        "metadata": {"resourceVersion": object["metadata"]["resourceVersion"]}});
    assert_eq!(daemon.patch("sessions/a1", &stale).status, 409);
    let answer = daemon.patch("sessions/a1", &json!({"spec": {"agent": "other"}}));
    assert_eq!(answer.status, 422, "{}", answer.text());
    let answer = daemon.patch("sessions/a1", &json!({"metadata": {"finalizers": []}}));
    assert_eq!(answer.status, 422, "{}", answer.text());
    assert_eq!(
        daemon
            .create(
                "sessions",
                &json!({"metadata": {"name": "a1"},
        "spec": {"agent": "plain", "cwd": "/"}})
            )
            .status,
        409
    );
    assert_eq!(daemon.request("GET", &path_of("sessions/none")).send().status, 404);
    let version = daemon
        .request("GET", &format!("{}?watch=1&resourceVersion=999999999", path_of("sessions")));
    assert!(matches!(version.send().status, 200 | 410 | 504), "a version of the future");

    daemon.ok(&["delete", "session", "a1", "a2", "b1", "--wait"]);
    assert_eq!(names(&[]), [""; 0]);
}

fn serde_yaml_value(text: &str) -> Value {
    spawnlet::manifests::yaml::decode_config::<Value>(text.as_bytes()).unwrap()
}

#[test]
fn apply_makes_changes_and_tells_which() {
    let daemon = Daemon::start();
    let text = file(&daemon, &[("one", "first")]);
    let apply = |text: &str| daemon.cli_with(&["apply", "-f", "-"], text.as_bytes());
    let ran = apply(&text);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.out, "agent/filed created\nsession/one created\n");
    assert_eq!(apply(&text).out, "agent/filed unchanged\nsession/one unchanged\n");
    let ran = apply(&text.replace("title: first", "title: second"));
    assert_eq!(ran.out, "agent/filed unchanged\nsession/one configured\n");
    let ran = apply(&text.replace("title: first", "titel: second"));
    assert_eq!(ran.code, Some(65), "{ran:?}");
    assert!(ran.err.contains("titel"), "{ran:?}");
    for verb in [
        &["version"][..],
        &["doctor"],
        &["config"],
        &["completion", "bash"],
        &["wait", "session/one", "--for", "phase=Idle", "--timeout", "20s"],
    ] {
        assert!(!daemon.ok(verb).is_empty(), "{verb:?}");
    }
}
