//! What a caller writes over REST: children by the rules of safe spawn, and their end.

use super::tokens::{SESSIONS, api, family};
use super::*;

impl Fixture {
    /// A write of a caller.
    async fn write(&self, token: &str, method: &str, path: &str, body: Value) -> Answer {
        let authorization = format!("Bearer {token}");
        let media = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let headers = [("authorization", authorization.as_str()), ("content-type", media)];
        self.send(method, path, &headers, body.to_string()).await
    }

    /// A child that a caller asks for, with a key.
    async fn spawn(&self, token: &str, key: &str, spec: Value) -> Answer {
        let authorization = format!("Bearer {token}");
        let headers = [
            ("authorization", authorization.as_str()),
            ("content-type", "application/json"),
            ("idempotency-key", key),
        ];
        self.send("POST", SESSIONS, &headers, json!({"spec": spec}).to_string()).await
    }
}

/// A caller and an agent for its children.
async fn caller() -> (Fixture, String) {
    let api = api().await;
    let agent = json!({"metadata": {"name": "echo"}, "spec": {"argv": ["echo"]}});
    let made = api
        .send(
            "POST",
            &format!("{BASE}/agents"),
            &[("content-type", "application/json")],
            agent.to_string(),
        )
        .await;
    assert_eq!(made.code, 201, "{made}");
    let made = api.token("me", json!({"cwd": "/srv", "permissions": "approve-reads"})).await;
    let token = made.json()["token"].as_str().unwrap().to_owned();
    (api, token)
}

#[tokio::test]
async fn a_child_is_made_with_its_lineage_and_its_parents_bounds() {
    let (api, token) = caller().await;
    let body = json!({"metadata": {"name": "mine", "labels": {"team": "x"},
        "annotations": {"spawnlet.dev/managed-by": "/etc/x.yaml", "note": "y"}},
        "spec": {"agent": "echo", "ttl": "30m", "prompt": "hello", "autoStopOnParent": false}});
    let made = api.write(&token, "POST", SESSIONS, body).await;
    assert_eq!(made.code, 201, "{made}");
    let child = made.json();
    let own = api.get("/namespaces/default/sessions/me").await.json();
    let lineage = &child["status"]["lineage"];
    assert_eq!(lineage["parent"], own["metadata"]["uid"]);
    assert_eq!(lineage["root"], own["metadata"]["uid"]);
    assert_eq!((&lineage["depth"], &lineage["autoStopOnParent"]), (&json!(1), &json!(false)));
    assert!(lineage["ttlExpiresAt"].is_string(), "{child}");
    assert_eq!(child["metadata"]["labels"], json!({"team": "x"}));
    assert_eq!(child["metadata"]["annotations"], json!({"note": "y"}));
    assert_eq!(child["spec"]["cwd"], "/srv");
    assert_eq!(child["spec"]["permissions"], "approve-reads");
    // Its first turn was made with it, and both are its parent's to see.
    let seen = api.by(&token, "GET", &format!("{SESSIONS}/mine")).await;
    assert_eq!(seen.code, 200);
    let turns = api.by(&token, "GET", &format!("{BASE}/turns")).await.json();
    assert_eq!(turns["items"][0]["spec"]["session"], "mine");
    assert_eq!(turns["items"][0]["spec"]["admission"], "immediate");
    // The same name once more is taken.
    let body = json!({"metadata": {"name": "mine"}, "spec": {"agent": "echo", "ttl": "1m"}});
    assert_eq!(api.write(&token, "POST", SESSIONS, body).await.code, 409);
}

#[tokio::test]
async fn every_constraint_is_refused_with_its_status_and_code() {
    let (api, token) = caller().await;
    let head = api.store.head().await.unwrap();
    for (spec, status, code) in [
        (json!({}), 422, "SPAWN_INVALID_REQUEST"),
        (json!({"ttl": "0s"}), 422, "SPAWN_INVALID_REQUEST"),
        (json!({"ttl": "25h"}), 422, "SPAWN_INVALID_REQUEST"),
        (json!({"desiredState": "cancelled"}), 422, "SPAWN_INVALID_REQUEST"),
        (json!({"agent": "nobody"}), 422, "SPAWN_AGENT_NOT_FOUND"),
        (json!({"role": "coordinator"}), 403, "SPAWN_PERMISSION_DENIED"),
        (json!({"role": " CoOrdinator "}), 403, "SPAWN_PERMISSION_DENIED"),
        (json!({"provider": "external"}), 403, "SPAWN_PERMISSION_DENIED"),
        (json!({"parent": "other"}), 403, "SPAWN_PERMISSION_DENIED"),
        (json!({"workspace": "other"}), 403, "SPAWN_PERMISSION_DENIED"),
        (json!({"folder": "other"}), 403, "SESSION_FOLDER_REMOVED"),
        (json!({"cwd": "/etc"}), 403, "SPAWN_PERMISSION_DENIED"),
        (json!({"cwd": "/srv/../etc"}), 403, "SPAWN_PERMISSION_DENIED"),
        (json!({"additionalDirectories": ["/srvx"]}), 403, "SPAWN_PERMISSION_DENIED"),
        (json!({"permissions": "ask"}), 403, "SPAWN_PERMISSION_DENIED"),
        (json!({"permissions": "approve-all"}), 403, "SPAWN_PERMISSION_DENIED"),
        (json!({"mcpServers": [{"name": "x"}]}), 403, "SPAWN_PERMISSION_DENIED"),
        (json!({"delegation": {"enabled": true, "maxDepth": 2}}), 403, "SPAWN_PERMISSION_DENIED"),
        (
            json!({"delegation": {"enabled": true, "toolsets": ["spawn", "fleet"]}}),
            403,
            "SPAWN_PERMISSION_DENIED",
        ),
        (
            json!({"delegation": {"enabled": true, "controlMode": "full"}}),
            403,
            "SPAWN_PERMISSION_DENIED",
        ),
    ] {
        let mut whole = json!({"agent": "echo", "ttl": "1m"});
        if spec == json!({}) {
            whole = json!({"agent": "echo"});
        }
        for (field, value) in spec.as_object().unwrap() {
            whole[field] = value.clone();
        }
        let answer = api.spawn(&token, "k", whole).await;
        assert_eq!(answer.code, status, "{spec}: {answer}");
        let told = answer.json();
        assert_eq!(told["details"]["causes"][0]["reason"], code, "{spec}: {answer}");
        assert!(told["message"].as_str().unwrap().starts_with(code), "{answer}");
    }
    // Not a rule of the tree: any such record is refused so.
    for spec in [
        json!({"agent": "echo", "ttl": "1m", "role": "reviewer"}),
        json!({"agent": "echo", "ttl": "1m", "toolFilter": {"allow": ["read"]}}),
        json!({"agent": "echo", "ttl": "1m", "prompt": " "}),
    ] {
        assert_eq!(api.spawn(&token, "k", spec).await.code, 422);
    }
    assert_eq!(api.store.head().await.unwrap(), head, "something was written");
    // What is exactly the parent's, or less, is taken.
    let spec = json!({"agent": "echo", "ttl": "1m", "cwd": "/srv/sub", "permissions": "deny-all",
        "parent": "me", "delegation": {"enabled": true}});
    let made = api.spawn(&token, "k", spec).await;
    assert_eq!(made.code, 201, "{made}");
}

#[tokio::test]
async fn a_key_makes_one_child_and_a_token_without_the_toolset_none() {
    let (api, token) = caller().await;
    let spec = json!({"agent": "echo", "ttl": "1m"});
    let first = api.spawn(&token, "k", spec.clone()).await;
    assert_eq!(first.code, 201, "{first}");
    let again = api.spawn(&token, "k", spec.clone()).await;
    assert_eq!(again.code, 200, "{again}");
    assert_eq!(first.json()["metadata"]["uid"], again.json()["metadata"]["uid"]);
    let other = api.spawn(&token, "k", json!({"agent": "echo", "ttl": "2m"})).await;
    assert_eq!(other.code, 409);
    assert_eq!(other.json()["details"]["causes"][0]["reason"], "SPAWN_IDEMPOTENCY_CONFLICT");
    // Another caller's keys are its own.
    let you = api.token("you", json!({"cwd": "/srv"})).await.json();
    let you = you["token"].as_str().unwrap();
    assert_eq!(api.spawn(you, "k", spec.clone()).await.code, 201);
    assert_eq!(api.spawn(&token, &"k".repeat(129), spec.clone()).await.code, 422);

    let made = api.token("me", json!({"toolsets": ["fleet"]})).await.json();
    let fleet = made["token"].as_str().unwrap();
    assert_eq!(api.spawn(fleet, "k", spec.clone()).await.code, 403);
    // An operator's token is nobody's parent.
    let path = format!("{SESSIONS}?spawn=true");
    let refused = api.write(TOKEN, "POST", &path, json!({"spec": spec})).await;
    assert_eq!(refused.code, 403);
    assert_eq!(refused.json()["details"]["causes"][0]["reason"], "SPAWN_PARENT_SESSION_REQUIRED");
}

#[tokio::test]
async fn a_caller_whose_session_ends_changes_nothing_any_more() {
    let (api, token) = caller().await;
    let child = api.spawn(&token, "k", json!({"agent": "echo", "ttl": "1m"})).await.json();
    let child = child["metadata"]["name"].as_str().unwrap().to_owned();
    let wish = json!({"spec": {"desiredState": "cancelled"}});
    let stopped = api.write(TOKEN, "PATCH", &format!("{SESSIONS}/me"), wish.clone()).await;
    assert_eq!(stopped.code, 200, "{stopped}");
    let spec = json!({"agent": "echo", "ttl": "1m"});
    for answer in [
        api.spawn(&token, "l", spec).await,
        api.write(&token, "PATCH", &format!("{SESSIONS}/{child}"), wish).await,
        api.by(&token, "DELETE", &format!("{SESSIONS}/{child}")).await,
    ] {
        assert_eq!(answer.code, 403, "{answer}");
        let reason = &answer.json()["details"]["causes"][0]["reason"];
        assert_eq!(reason, "SPAWN_PARENT_SESSION_NOT_FOUND");
    }
}

#[tokio::test]
async fn a_caller_ends_its_children_and_their_turns_and_says_so() {
    let (api, token) = caller().await;
    let spec = json!({"agent": "echo", "ttl": "1m", "prompt": "hello"});
    let child = api.spawn(&token, "k", spec).await.json();
    let child = child["metadata"]["name"].as_str().unwrap().to_owned();
    let wish = json!({"spec": {"desiredState": "cancelled"}});
    let turns = format!("{BASE}/namespaces/default/turns");
    for path in [format!("{turns}/{child}-1"), format!("{SESSIONS}/{child}")] {
        // Nothing but the wish is the caller's to write.
        let more =
            json!({"spec": {"desiredState": "cancelled"}, "metadata": {"labels": {"a": "b"}}});
        assert_eq!(api.write(&token, "PATCH", &path, more).await.code, 403, "{path}");
        let done = api.write(&token, "PATCH", &path, wish.clone()).await;
        assert_eq!(done.code, 200, "{path}: {done}");
        let object = done.json();
        assert_eq!(object["spec"]["desiredState"], "cancelled");
        assert_eq!(object["status"]["cancel"]["by"], "Parent", "{object}");
    }
    let gone = api.by(&token, "DELETE", &format!("{SESSIONS}/{child}")).await;
    assert_eq!(gone.code, 200, "{gone}");
}

#[tokio::test]
async fn a_caller_lets_nothing_go_from_its_tree() {
    let (api, token) = caller().await;
    let spec = json!({"agent": "echo", "ttl": "1m", "delegation": {"enabled": true}});
    let child = api.spawn(&token, "k", spec).await.json();
    let path = format!("{SESSIONS}/{}", child["metadata"]["name"].as_str().unwrap());
    let orphan = json!({"propagationPolicy": "Orphan"});
    let head = api.store.head().await.unwrap();
    for (query, body) in [
        ("", orphan.clone()),
        ("", json!({"propagationPolicy": "Orphan", "dryRun": ["All"]})),
        ("", json!({"orphanDependents": true})),
        ("?propagationPolicy=Orphan", json!({})),
        ("?orphanDependents=true", json!({})),
    ] {
        let refused = api.write(&token, "DELETE", &format!("{path}{query}"), body.clone()).await;
        assert_eq!(refused.code, 403, "{query} {body}: {refused}");
        let told = refused.json();
        assert_eq!(told["details"]["causes"][0]["reason"], "SPAWN_PERMISSION_DENIED", "{refused}");
        assert!(told["message"].as_str().unwrap().contains("children end with it"), "{refused}");
    }
    // Nor does it cut the link by hand.
    for body in [
        json!({"metadata": {"ownerReferences": null}, "spec": {"desiredState": "deleted"}}),
        json!({"metadata": {"finalizers": []}, "spec": {"desiredState": "deleted"}}),
        json!({"metadata": {"annotations": {"spawnlet.dev/deletion-propagation": "Orphan"}},
               "spec": {"desiredState": "deleted"}}),
        json!({"status": {"lineage": null}, "spec": {"desiredState": "deleted"}}),
    ] {
        assert_eq!(api.write(&token, "PATCH", &path, body.clone()).await.code, 403, "{body}");
    }
    assert_eq!(api.store.head().await.unwrap(), head, "something was written");
    // What is foreign stays missing, and both words at once are none.
    api.put(Kind::Session, session("other", "Idle", json!({}))).await;
    let other = format!("{SESSIONS}/other");
    assert_eq!(api.write(&token, "DELETE", &other, orphan.clone()).await.code, 404);
    let both = json!({"propagationPolicy": "Foreground", "orphanDependents": true});
    assert_eq!(api.write(TOKEN, "DELETE", &path, both).await.code, 400);
    // An operator may, and the caller may end its child.
    let dry = json!({"orphanDependents": true, "dryRun": ["All"]});
    for body in [dry, orphan] {
        let taken = api.write(TOKEN, "DELETE", &path, body).await;
        assert_eq!(taken.code, 200, "{taken}");
        let annotations = &taken.json()["metadata"]["annotations"];
        assert_eq!(annotations["spawnlet.dev/deletion-propagation"], "Orphan", "{taken}");
    }
    let body = json!({"propagationPolicy": "Background"});
    assert_eq!(api.write(&token, "DELETE", &path, body).await.code, 200);
}

/// F6 over REST: whatever a verb is, what is foreign is answered as what was never there.
#[tokio::test]
async fn no_verb_tells_a_foreign_object_from_a_missing_one() {
    let (api, token) = family().await;
    let turns = format!("{BASE}/namespaces/default/turns");
    let head = api.store.head().await.unwrap();
    let wish = json!({"spec": {"desiredState": "cancelled"}});
    for (path, name) in [
        (format!("{SESSIONS}/NAME"), "other"),
        (format!("{SESSIONS}/NAME"), &*uid("other")),
        (format!("{turns}/NAME"), "theirs"),
        (format!("{turns}/NAME"), &*uid("theirs")),
    ] {
        let missing = if name.contains('-') { uid("nobody") } else { "nobody".to_owned() };
        for method in ["GET", "PUT", "PATCH", "DELETE", "POST"] {
            for body in [wish.clone(), json!({}), json!({"spec": {"title": "x"}})] {
                let ask = |name: &str| {
                    let path = path.replace("NAME", name);
                    let (api, token, body) = (&api, &token, body.clone());
                    async move { api.write(token, method, &path, body).await }
                };
                let (foreign, absent) = (ask(name).await, ask(&missing).await);
                assert_eq!((foreign.code, absent.code), (404, 404), "{method} {path}: {foreign}");
                let foreign = foreign.to_string().replace(name, &missing);
                assert_eq!(foreign, absent.to_string(), "{method} {path}");
            }
        }
    }
    assert_eq!(api.store.head().await.unwrap(), head, "something was written");
    // Negative control: the same request about what is the caller's own is looked at.
    let done = api.write(&token, "PATCH", &format!("{SESSIONS}/child"), json!({})).await;
    assert_eq!(done.code, 403, "{done}");
}
