//! What others get wrong: agents, files, clients, and whoever starts a daemon. Each is told clearly
//! and harms nobody else.

use serde_json::{Value, json};

use crate::harness::{Daemon, Home, Request, path_of};

#[test]
fn what_an_agent_writes_wrongly_harms_no_other_session() {
    let daemon = Daemon::start();
    daemon.agent("plain", &["--cap=all"], json!({}));
    daemon.agent("banner", &["--cap=all", "--banner=Welcome!"], json!({}));
    daemon.session("good", "plain", json!({}));
    let running = daemon.turn("good", "[[say:before,]][[sleep:2000]][[say: and after]]");
    daemon.said("good", &running, "before,");

    // Lines that are no protocol are skipped, and a condition tells of them.
    daemon.session("noisy", "banner", json!({}));
    let prompt =
        r#"[[garbage:20]][[raw:{"half":]][[raw:[1,2]]][[raw:{"jsonrpc":"2.0"}]][[say:fine]]"#;
    let turn = daemon.ask("noisy", prompt);
    assert_eq!(turn["status"]["phase"], "Completed", "{turn:#}");
    assert!(daemon.response(turn["metadata"]["name"].as_str().unwrap()).ends_with("fine"));
    let session = daemon.until("sessions/noisy", |session| {
        session["status"]["conditions"].to_string().contains("StdoutNoise")
    });
    assert_eq!(session["status"]["phase"], "Idle");

    // Updates for a session that is not ours, and answers that nobody asked for.
    let turn = daemon.ask("noisy", "[[foreign]][[answer:\"x\"]][[answer:99]][[twice]][[say:fine]]");
    assert_eq!(turn["status"]["phase"], "Completed", "{turn:#}");
    assert_eq!(daemon.response(turn["metadata"]["name"].as_str().unwrap()), "fine");
    let turn = daemon.ask("noisy", r#"[[update:{"sessionUpdate":"of_the_future"}]][[say:fine]]"#);
    assert_eq!(daemon.response(turn["metadata"]["name"].as_str().unwrap()), "fine");

    // A line without an end, and lines without number: that session fails, and says why.
    for (name, prompt, reason) in [
        ("endless", "[[say:a]][[flood:12000000]][[never]]", "FrameTooLarge"),
        ("babbling", "[[say:a]][[garbage:3000]][[never]]", "ProtocolFailure"),
    ] {
        daemon.session(name, "plain", json!({}));
        let turn = daemon.ask(name, prompt);
        assert_eq!(turn["status"]["phase"], "Failed", "{turn:#}");
        assert_eq!(turn["status"]["code"], "TURN_FAILED", "{turn:#}");
        let session = daemon.phase(name, "Failed");
        assert_eq!(session["status"]["reason"], reason, "{session:#}");
        assert!(session["status"]["process"].is_null());
    }
    let turn = daemon.ended(&running);
    assert_eq!(turn["status"]["phase"], "Completed", "{turn:#}");
    assert_eq!(daemon.response(&running), "before, and after");

    // Requests for what is not there are answered, and standard error without end is bounded.
    let ran = daemon.cli(&["prompt", "good", "[[request:fs/no_such_method]][[stderr:5000000]]"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "fs/no_such_method: -32601\n"), "{ran:?}");
    assert!(daemon.ok(&["logs", "good", "--stderr"]).len() <= 1024 * 1024);
}

#[test]
fn a_manifest_in_disorder_is_told_by_its_place_and_keeps_what_it_made() {
    let daemon = Daemon::start();
    let good = "apiVersion: spawnlet.dev/v1alpha1
kind: Agent
metadata: {name: kept}
spec: {command: 'true', displayName: one}
";
    daemon.write_manifest("a.yaml", good);
    daemon.until("agents/kept", |agent| agent["spec"]["displayName"] == "one");
    for (text, place, words) in [
        (good.replace("displayName: one", "displayNam: one"), "a.yaml:4:", "displayNam"),
        (good.replace("name: kept", "name: 'Not a name'"), "a.yaml:3:", "name"),
        (good.replace("displayName: one", "startTimeout: soon"), "a.yaml:4:", "startTimeout"),
        (good.replace("kind: Agent", "kind: Gent"), "a.yaml:2:", "Gent"),
        (format!("{good}---\nkind: [\n"), "a.yaml:7:", ""),
        (good.replace("spec:", "metadata: {name: b}\nspec:"), "a.yaml:4:", "metadata"),
    ] {
        daemon.write_manifest("a.yaml", &text);
        let line = daemon.log_line("a.yaml:");
        assert!(line.contains(place) && line.contains(words), "{place} {words}: {line}");
        assert_eq!(daemon.get("agents/kept")["spec"]["displayName"], "one");
        let shown = daemon.ok(&["get", "manifests", "-o", "yaml"]);
        assert!(shown.contains(place), "{shown}");
        // `validate` says the same without a daemon.
        let file = daemon.path("manifests/a.yaml").display().to_string();
        let ran = daemon.cli(&["validate", "-f", &file]);
        assert_eq!(ran.code, Some(65), "{ran:?}");
        assert!(format!("{}{}", ran.out, ran.err).contains(place), "{ran:?}");
    }
    daemon.write_manifest("a.yaml", &good.replace("one", "two"));
    daemon.until("agents/kept", |agent| agent["spec"]["displayName"] == "two");
}

#[test]
fn wrong_records_and_callers_are_refused_each_in_its_way() {
    let daemon = Daemon::start();
    daemon.agent("plain", &["--cap=all"], json!({}));
    let spec = json!({"agent": "plain", "cwd": daemon.home().work()});
    let with = |key: &str, value: Value| {
        let mut spec = spec.clone();
        spec[key] = value;
        json!({"metadata": {"name": "wrong"}, "spec": spec})
    };
    for (body, status, words) in [
        (with("ttl", json!("soon")), 422, "spec.ttl"),
        (with("workspace", json!("both")), 422, "exactly one of workspace and cwd"),
        (with("cwd", json!("relative")), 422, "spec.cwd"),
        (with("role", json!("the reviewer")), 422, "spec.role"),
        (with("provider", json!("fork")), 422, "not supported yet"),
        (with("toolFilter", json!({"allow": ["read"]})), 422, "not supported yet"),
        (with("desiredState", json!("paused")), 422, "spec.desiredState"),
    ] {
        let answer = daemon.create("sessions", &body);
        assert_eq!(answer.status, status, "{body}: {}", answer.text());
        let answer = answer.json();
        assert!(answer["message"].as_str().unwrap().contains(words), "{words}: {answer:#}");
        let causes = answer["details"]["causes"].as_array().unwrap();
        assert!(causes[0]["field"].as_str().unwrap().starts_with("spec."), "{answer:#}");
    }
    let answer = daemon.create("sessions?fieldValidation=Strict", &with("agentt", json!("x")));
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.text().contains("agentt"), "{}", answer.text());
    let path = path_of("sessions");
    for (body, status) in [(&b"{"[..], 400), (b"[]", 400), (b"\"x\"", 400), (b"", 400)] {
        let request = daemon.request("POST", &path).header("content-type", "application/json");
        let answer = request.body(body).send();
        assert_eq!(answer.status, status, "{body:?}: {}", answer.text());
        assert_eq!(answer.json()["kind"], "Status");
    }
    assert!(!daemon.has("sessions/wrong"));
    let answer = daemon.create("turns", &json!({"spec": {"session": "nobody", "prompt": "x"}}));
    assert_eq!(answer.status, 422, "{}", answer.text());

    // Callers.
    let to = |path: &str| Request::new(daemon.address(), "GET", path);
    assert_eq!(to(&path).send().status, 401);
    assert_eq!(to(&path).bearer("wrong").send().status, 401);
    assert_eq!(to(&path).bearer(&daemon.token()).host("evil.example").send().status, 421);
    let origin = to(&path).bearer(&daemon.token()).header("origin", "https://evil.example");
    assert_eq!(origin.send().status, 403);
    assert_eq!(to("/healthz").send().status, 200);
    assert_eq!(to("/healthz").host("evil.example").send().status, 421);
    let body = vec![b'x'; 3 * 1024 * 1024];
    assert_eq!(daemon.request("POST", &path).body(&body).send().status, 413);
    let ran = daemon.cli(&["get", "sessions", "--token", "wrong"]);
    assert_eq!(ran.code, Some(77), "{ran:?}");
    let ran = daemon.cli(&["get", "sessions", "--server", "http://127.0.0.1:1"]);
    assert_eq!(ran.code, Some(69), "{ran:?}");
    assert!(!ran.err.contains(daemon.token().trim()));
}

#[test]
fn slips_that_would_pass_without_a_word_are_told() {
    let daemon = Daemon::start();
    let spec = json!({"agent": "plain", "cwd": daemon.home().work()});
    // A key that nobody would look at.
    for (collection, body) in [
        ("sessions", json!({"metadata": {"name": "keyed"}, "spec": spec})),
        ("turns", json!({"spec": {"session": "nobody", "prompt": "x"}})),
    ] {
        let path = path_of(collection);
        let request = daemon.request("POST", &path).header("idempotency-key", "k");
        let answer = request.json_body(&body).send();
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains("Idempotency-Key"), "{}", answer.text());
    }
    assert!(!daemon.has("sessions/keyed"));

    // An empty name is nobody's.
    for verb in [
        &["cancel", ""][..],
        &["stop", ""],
        &["extend", "", "1m"],
        &["delete", "session", ""],
        &["get", "session", ""],
        &["approve", ""],
        &["logs", ""],
    ] {
        let ran = daemon.cli(verb);
        assert_eq!(ran.code, Some(2), "{verb:?}: {ran:?}");
        assert!(ran.err.contains("is empty"), "{verb:?}: {ran:?}");
    }

    // Flow style is YAML on standard input too.
    let flow = b"{apiVersion: spawnlet.dev/v1alpha1, kind: Agent, metadata: {name: f}, spec: {argv: [x]}}\n";
    let ran = daemon.cli_with(&["validate", "-f", "-"], flow);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let two = br#"{"apiVersion": "spawnlet.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "f"}, "spec": {"argv": ["x"]}}
---
{"apiVersion": "spawnlet.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "g"}, "spec": {"argv": ["x"]}}
"#;
    let ran = daemon.cli_with(&["validate", "-f", "-"], two);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn a_daemon_that_must_not_start_says_why_and_harms_nothing() {
    let home = Home::new();
    for (arguments, words) in [
        (&["--listen", "0.0.0.0:0"][..], "insecureListen"),
        (&["--set", "limits.maxActiveTurn=1"], "limits.maxActiveTurn"),
        (&["--listen", "nowhere"], "listen"),
        (&["--config", "/no/such/file"], "/no/such/file"),
    ] {
        let output = home.serve_refused(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(2 | 78)), "{arguments:?}: {output:?}");
        assert!(text.contains(words), "{text}");
    }

    // A second daemon on the directory.
    let daemon = home.serve(&[]);
    daemon.agent("plain", &["--cap=all"], json!({}));
    daemon.session("one", "plain", json!({}));
    let turn = daemon.turn("one", "[[say:a]][[sleep:300]][[say:b]]");
    let output = daemon.home().serve_refused(&[]);
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(&format!("pid {}", daemon.pid())), "{text}");
    assert_eq!(daemon.ended(&turn)["status"]["phase"], "Completed");
    assert_eq!(daemon.response(&turn), "ab");

    // A store that a newer spawnlet has written: the version stands big-endian at byte 60 of the
    // file (SQLite file format, 1.3).
    let (_, home) = daemon.stop();
    let database = home.path("data/store.db");
    let good = std::fs::read(&database).unwrap();
    let mut newer = good.clone();
    newer[60..64].copy_from_slice(&999_u32.to_be_bytes());
    std::fs::write(&database, &newer).unwrap();
    let output = home.serve_refused(&[]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text.contains("schema version 999"), "{text}");
    // But for SQLite's own counters in the header, it is not touched.
    assert!(std::fs::read(&database).unwrap()[100..] == newer[100..], "it was written to");
    std::fs::write(&database, good).unwrap();
    let daemon = home.serve(&[]);
    assert_eq!(daemon.response(&turn), "ab");
}
