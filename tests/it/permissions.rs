//! Requests for permission that wait for somebody, as their agents, operators and parents see them.

use serde_json::{Value, json};

use crate::harness::{Daemon, Request, path_of};

/// A daemon whose agent `plain` does what its prompts say.
fn daemon(arguments: &[&str]) -> Daemon {
    let daemon = Daemon::with(arguments);
    daemon.agent("plain", &["--cap=all"], json!({}));
    daemon
}

/// Waits until the first request of a turn's process waits, and tells its name.
fn asked(daemon: &Daemon, turn: &str) -> String {
    let turn =
        daemon.until(&format!("turns/{turn}"), |turn| turn["status"]["waitingFor"].is_object());
    turn["status"]["waitingFor"]["permission"].as_str().unwrap().to_owned()
}

fn request(daemon: &Daemon, name: &str) -> Value {
    daemon.get(&format!("permissionrequests/{name}"))
}

#[test]
fn what_an_operator_decides_is_what_the_agent_is_told() {
    let daemon = daemon(&[]);
    let path = daemon.path("work/file").display().to_string();
    // What may be read is read; what is outside is not asked for.
    let prompt =
        format!("[[ask:read:{path}]][[say: ]][[ask:edit:/etc/passwd]][[say: ]][[ask:edit:{path}]]");
    let spec = json!({"permissions": "approve-reads", "prompt": prompt});
    daemon.session("one", "plain", spec);
    let name = asked(&daemon, "one-1");
    let found = request(&daemon, &name);
    assert_eq!(found["spec"]["session"], "one");
    assert_eq!(found["spec"]["turn"], "one-1");
    let call = &found["spec"]["toolCall"];
    assert_eq!((&call["title"], &call["kind"]), (&json!("Asks"), &json!("edit")), "{found:#}");
    assert_eq!(call["locations"], json!([{"path": path}]));
    assert_eq!(found["status"]["phase"], "Pending");
    assert_eq!(found["metadata"]["ownerReferences"][0]["name"], "one");
    let session = daemon.get("sessions/one");
    assert_eq!(session["status"]["phase"], "Running");
    assert_eq!(session["status"]["reason"], "WaitingForPermission");

    // It is seen by those who look.
    for kind in ["permissionrequests", "pr", "permissionrequest"] {
        let list = daemon.ok(&["get", kind]);
        let row = list.lines().nth(1).unwrap();
        assert!(row.contains(&name) && row.contains("Pending") && row.contains("edit"), "{list}");
    }
    let described = daemon.ok(&["describe", "session", "one"]);
    assert!(
        described.contains("spawnlet approve NAME") && described.contains(&name),
        "{described}"
    );
    daemon.ok(&["describe", "pr", &name]);

    let said = daemon.ok(&["approve", &name]);
    assert_eq!(said, format!("permissionrequest/{name} is allowed, once\n"));
    assert_eq!(daemon.ended("one-1")["status"]["phase"], "Completed");
    let allow = "permission: allow_once permission: reject_once permission: allow_once";
    assert_eq!(daemon.response("one-1"), allow);
    let found = request(&daemon, &name);
    assert_eq!(
        (&found["status"]["phase"], &found["spec"]["decision"]),
        (&json!("Answered"), &json!("allow"))
    );
    // Once is once.
    assert_eq!(daemon.cli(&["approve", &name]).code, Some(0));
    let other = daemon.cli(&["deny", &name]);
    assert_eq!(other.code, Some(65), "{other:?}");
    assert!(other.err.contains("it was decided: allow"), "{other:?}");

    daemon.ok(&["prompt", "one", "[[ask:execute]]", "--detach"]);
    let second = asked(&daemon, "one-2");
    let ran = daemon.cli(&["deny", "nobody", &second]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("nobody") && ran.out.contains("is denied"), "{ran:?}");
    daemon.ended("one-2");
    assert_eq!(daemon.response("one-2"), "permission: reject_once");
    daemon.follow(&["events", "-w"]).line_with("PermissionDenied");
}

#[test]
fn nobody_makes_a_request_or_writes_more_of_it_than_a_decision() {
    let daemon = daemon(&[]);
    let spec = json!({"permissions": "ask", "prompt": "[[ask:edit]]"});
    daemon.session("one", "plain", spec);
    let name = asked(&daemon, "one-1");
    let path = path_of(&format!("permissionrequests/{name}"));
    let send = |method: &str, path: &str, body: &Value| {
        let kind =
            if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        daemon
            .request(method, path)
            .header("content-type", kind)
            .body(body.to_string().as_bytes())
            .send()
    };
    let mut copy = request(&daemon, &name);
    copy["metadata"] = json!({"name": "mine"});
    assert_eq!(send("POST", &path_of("permissionrequests"), &copy).status, 405);
    assert_eq!(send("DELETE", &path, &json!({})).status, 405);
    let patch = json!({"spec": {"toolCall": {"title": "harmless"}}});
    assert_eq!(send("PATCH", &path, &patch).status, 422);
    let status = json!({"status": {"phase": "Answered"}});
    send("PATCH", &path, &status);
    assert_eq!(request(&daemon, &name)["status"]["phase"], "Pending");
    let wrong = json!({"spec": {"decision": "always"}});
    assert_eq!(send("PATCH", &path, &wrong).status, 422);
    daemon.write_manifest(
        "mine.yaml",
        "apiVersion: spawnlet.dev/v1alpha1\nkind: PermissionRequest\n\
        metadata: {name: mine}\nspec: {decision: allow}\n",
    );
    assert_eq!(
        daemon
            .cli(&["validate", "-f", &daemon.path("manifests/mine.yaml").display().to_string()])
            .code,
        Some(65)
    );
    // They go with their session.
    daemon.ok(&["delete", "session", "one", "--wait"]);
    daemon.gone(&format!("permissionrequests/{name}"));
}

#[test]
fn a_question_that_nobody_decides_is_rejected_in_its_time() {
    let daemon = daemon(&["--set", "permissionTimeout=700ms"]);
    // No other clock runs while it waits.
    let spec = json!({"permissions": "ask", "turnInactivityTimeout": "300ms",
        "prompt": "[[ask:edit]]"});
    daemon.session("one", "plain", spec);
    let name = asked(&daemon, "one-1");
    let turn = daemon.ended("one-1");
    assert_eq!(turn["status"]["phase"], "Completed", "{turn:#}");
    assert_eq!(daemon.response("one-1"), "permission: reject_once");
    assert_eq!(request(&daemon, &name)["status"]["phase"], "TimedOut");
    let late = daemon.cli(&["approve", &name]);
    assert_eq!(late.code, Some(65), "{late:?}");
    assert!(late.err.contains("TimedOut"), "{late:?}");
    daemon.follow(&["events", "-w"]).line_with("PermissionTimedOut");

    // Who waits for the answer is told what is asked, and how to say yes.
    let ran = daemon.cli(&["prompt", "one", "[[ask:edit]]"]);
    let told = format!("waiting: the agent asks for: Asks; `spawnlet approve {}`", "one-2-p");
    assert!(ran.err.contains(told.trim_end_matches('`')), "{ran:?}");
    assert_eq!(ran.out, "permission: reject_once\n", "{ran:?}");
}

#[test]
fn a_cancel_and_the_end_of_the_daemon_cancel_what_is_asked() {
    let daemon = daemon(&[]);
    for name in ["one", "two"] {
        let spec = json!({"permissions": "ask", "prompt": "[[ask:edit]]"});
        daemon.session(name, "plain", spec);
    }
    let (one, two) = (asked(&daemon, "one-1"), asked(&daemon, "two-1"));
    daemon.ok(&["cancel", "one"]);
    assert_eq!(daemon.ended("one-1")["status"]["phase"], "Cancelled");
    daemon.until(&format!("permissionrequests/{one}"), |found| {
        found["status"]["phase"] == "Cancelled"
    });
    let daemon = daemon.kill9().serve(&[]);
    assert_eq!(request(&daemon, &two)["status"]["phase"], "Cancelled");
    assert_eq!(daemon.ended("two-1")["status"]["phase"], "Interrupted");
    assert_eq!(daemon.cli(&["approve", &two]).code, Some(65));
}

#[test]
fn a_parent_decides_what_its_child_asks_and_nobody_elses() {
    let daemon = daemon(&[]);
    let work = daemon.home().work();
    let token = |name: &str| {
        let made = daemon.ok(&["token", "create", "--session", name, "--cwd", &work, "-o", "json"]);
        serde_json::from_str::<Value>(&made).unwrap()["token"].as_str().unwrap().to_owned()
    };
    let (parent, stranger) = (token("parent"), token("stranger"));
    let spec = json!({"permissions": "ask", "parent": "parent", "prompt": "[[ask:edit]]"});
    daemon.session("child", "plain", spec);
    let name = asked(&daemon, "child-1");
    let path = path_of(&format!("permissionrequests/{name}"));
    let patch = |token: &str, path: &str, body: &Value| {
        Request::new(daemon.address(), "PATCH", path)
            .bearer(token)
            .header("content-type", "application/merge-patch+json")
            .body(body.to_string().as_bytes())
            .send()
    };
    let deny = json!({"spec": {"decision": "deny"}});
    // To a stranger it is as if it were not there.
    let foreign = patch(&stranger, &path, &deny);
    let missing = patch(&stranger, &path_of("permissionrequests/none"), &deny);
    assert_eq!((foreign.status, missing.status), (404, 404));
    assert_eq!(foreign.text().replace(&name, "none"), missing.text());
    let list = |token: &str| {
        let found = Request::new(daemon.address(), "GET", &path_of("permissionrequests"));
        found.bearer(token).send().json()["items"].as_array().unwrap().len()
    };
    assert_eq!((list(&parent), list(&stranger)), (1, 0));
    // The parent writes its decision and nothing else.
    let more = json!({"spec": {"decision": "deny"}, "metadata": {"labels": {"a": "b"}}});
    assert_eq!(patch(&parent, &path, &more).status, 403);
    assert_eq!(patch(&parent, &path_of("sessions/child"), &deny).status, 403);
    let ran = daemon.cli(&["--token", &parent, "deny", &name]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    daemon.ended("child-1");
    assert_eq!(daemon.response("child-1"), "permission: reject_once");
    let allow = json!({"spec": {"decision": "allow"}});
    assert_eq!(patch(&parent, &path, &allow).status, 409);
}
