//! Tokens over REST, and what a caller sees of the records.

use super::*;
use crate::store::Stream;

pub(super) const SESSIONS: &str = "/apis/spawnlet.dev/v1alpha1/namespaces/default/sessions";
const JSON: (&str, &str) = ("content-type", "application/json");

pub(super) async fn api() -> Fixture {
    let api = Fixture::new();
    api.admission.ensure_default_namespace().await.unwrap();
    api
}

impl Fixture {
    /// Makes a token of a session and gives the daemon's answer.
    pub(super) async fn token(&self, session: &str, body: Value) -> Answer {
        let path = format!("{SESSIONS}/{session}/token");
        self.send("POST", &path, &[JSON], body.to_string()).await
    }

    /// A request with a token.
    pub(super) async fn by(&self, token: &str, method: &str, path: &str) -> Answer {
        let authorization = format!("Bearer {token}");
        let headers = [("authorization", authorization.as_str()), JSON];
        let body = if method == "GET" { Body::empty() } else { Body::from("{}") };
        self.send(method, path, &headers, body).await
    }
}

#[tokio::test]
async fn a_token_is_told_once_and_its_hash_never() {
    let api = api().await;
    let made = api.token("me", json!({"cwd": "/srv", "expiresIn": "1h"})).await;
    assert_eq!(made.code, 201, "{made}");
    let made = made.json();
    let keys: Vec<&str> = made.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        std::collections::BTreeSet::from_iter(keys),
        ["controlMode", "expiresAt", "id", "mcpUrl", "namespace", "session", "token", "toolsets"]
            .into()
    );
    assert_eq!((&made["namespace"], &made["session"]), (&json!("default"), &json!("me")));
    assert_eq!((&made["mcpUrl"], &made["toolsets"]), (&json!(MCP_URL), &json!(["spawn"])));
    assert_eq!(made["controlMode"], "read-only");
    let token = made["token"].as_str().unwrap();

    let one = api.get("/namespaces/default/sessions/me").await;
    let list = api.get("/sessions").await;
    let tokens = api.send("GET", &format!("{SESSIONS}/me/token"), &[], Body::empty()).await;
    let path = format!("{BASE}/sessions?watch=1");
    let mut lines = Lines::of(api.open("GET", &path, &[], Body::empty()).await);
    let watched = lines.next().await.unwrap();
    for text in [one.to_string(), list.to_string(), tokens.to_string(), watched] {
        assert!(text.contains(made["id"].as_str().unwrap()), "{text}");
        assert!(!text.contains("sha256") && !text.contains(&token[9..]), "{text}");
    }
    assert_eq!(tokens.json()["items"][0]["session"], "me");
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = api.send("GET", &format!("{SESSIONS}/me/token"), &accept, Body::empty()).await;
    let cells = table.json()["rows"][0]["cells"].clone();
    assert_eq!(cells, json!([made["id"], "me", "spawn", "read-only", "0s", "in 60m"]));
}

#[tokio::test]
async fn a_token_is_refused_with_what_is_wrong() {
    let api = api().await;
    assert_eq!(api.token("me", json!({"cwd": "/srv"})).await.code, 201);
    for (session, body, code) in [
        ("me", json!({"cwd": "/other"}), 409),
        ("me", json!({"toolsets": ["everything"]}), 400),
        ("me", json!({"controlmode": "full"}), 400),
        ("me", json!(["spawn"]), 400),
        ("me", json!({"expiresIn": "0s"}), 422),
        ("you", json!({}), 422),
    ] {
        let answer = api.token(session, body.clone()).await;
        assert_eq!(answer.code, code, "{body}: {answer}");
        assert_eq!(answer.json()["kind"], "Status");
    }
    let nowhere = SESSIONS.replace("default", "nowhere");
    let body = json!({"cwd": "/srv"}).to_string();
    let answer = api.send("POST", &format!("{nowhere}/me/token"), &[JSON], body).await;
    assert_eq!((answer.code, answer.json()["details"]["kind"].clone()), (404, json!("namespaces")));
    for (method, path, code) in [
        ("PUT", format!("{SESSIONS}/me/token"), 405),
        ("GET", format!("{SESSIONS}/me/token/x"), 405),
        ("DELETE", format!("{SESSIONS}/me/token/x"), 404),
        ("DELETE", format!("{SESSIONS}/you/token/x"), 404),
        ("GET", format!("{SESSIONS}/you/token"), 404),
        ("GET", format!("{SESSIONS}/me/token/x/y"), 404),
        ("DELETE", format!("{SESSIONS}/me/token%2Fx"), 404),
    ] {
        let answer = api.by(TOKEN, method, &path).await;
        assert_eq!(answer.code, code, "{method} {path}: {answer}");
    }
    // What opens nothing yet is made, and said.
    let made = api.token("me", json!({"toolsets": ["fleet", "spawn"]})).await;
    assert_eq!(made.code, 201);
    assert!(made.header("warning").contains("toolset fleet is not served"), "{made}");
    assert_eq!(api.token("me", json!({"toolsets": ["spawn"]})).await.header("warning"), "");
}

#[tokio::test]
async fn a_revoked_token_is_refused_from_then_on() {
    let api = api().await;
    let made = api.token("me", json!({"cwd": "/srv"})).await.json();
    let token = made["token"].as_str().unwrap();
    let own = format!("{SESSIONS}/me");
    assert_eq!(api.by(token, "GET", &own).await.code, 200);
    let path = format!("{own}/token/{}", made["id"].as_str().unwrap());
    let revoked = api.by(TOKEN, "DELETE", &path).await;
    assert_eq!((revoked.code, revoked.json()["status"].clone()), (200, json!("Success")));
    let refused = api.by(token, "GET", &own).await;
    assert_eq!((refused.code, refused.header("www-authenticate")), (401, "Bearer"));
}

/// Records of a caller, of its child and of a stranger.
pub(super) async fn family() -> (Fixture, String) {
    let api = api().await;
    let made = api.token("me", json!({"cwd": "/srv"})).await.json();
    let own = api.get("/namespaces/default/sessions/me").await.json();
    let lineage = json!({"parent": own["metadata"]["uid"], "root": own["metadata"]["uid"]});
    let parent = Uid::new(own["metadata"]["uid"].as_str().unwrap());
    let mut child = session("child", "Idle", json!({}));
    child["status"]["lineage"] = lineage;
    api.put(Kind::Session, child).await;
    let value = Bytes::from(session_key("child").to_string());
    let key = keys::child_of(&parent, &Uid::new(uid("child")));
    let ops = vec![Op::Put { key, value }];
    api.store.commit(Commit { guards: Vec::new(), ops }).await.unwrap();
    api.put(Kind::Session, session("other", "Idle", json!({}))).await;
    for (name, of) in [("mine", "child"), ("theirs", "other")] {
        let mut turn = turn(name, of, "Completed");
        turn["status"]["responseId"] = json!(uid(&format!("r{name}")));
        api.put(Kind::Turn, turn).await;
        api.append(&uid(name), Stream::Response, format!("answer of {name}").as_bytes()).await;
    }
    let token = made["token"].as_str().unwrap().to_owned();
    (api, token)
}

#[tokio::test]
async fn a_caller_reads_itself_its_children_and_their_turns() {
    let (api, token) = family().await;
    let names = |list: Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap().clone();
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let list = |path: String| {
        let (api, token) = (&api, &token);
        async move { names(api.by(token, "GET", &path).await.json()) }
    };
    assert_eq!(list(format!("{BASE}/sessions")).await, ["child", "me"]);
    assert_eq!(list(SESSIONS.to_owned()).await, ["child", "me"]);
    assert_eq!(list(format!("{BASE}/turns")).await, ["mine"]);
    assert_eq!(list(format!("{SESSIONS}?limit=1")).await, ["child"]);
    assert_eq!(list(SESSIONS.replace("default", "elsewhere")).await, [""; 0]);
    assert_eq!(names(api.get("/sessions").await.json()).len(), 3);

    let turns = format!("{BASE}/namespaces/default/turns");
    for path in [
        format!("{SESSIONS}/me"),
        format!("{SESSIONS}/child"),
        format!("{SESSIONS}/{}", uid("child")),
        format!("{SESSIONS}/child/status"),
        format!("{SESSIONS}/child/transcript"),
        format!("{SESSIONS}/child/transcript?turn=mine"),
        format!("{turns}/mine"),
        format!("{turns}/{}", uid("mine")),
    ] {
        assert_eq!(api.by(&token, "GET", &path).await.code, 200, "{path}");
    }
    for id in ["mine".to_owned(), uid("rmine")] {
        let answer = api.by(&token, "GET", &format!("{turns}/{id}/response")).await;
        assert_eq!((answer.code, &answer.bytes[..]), (200, &b"answer of mine"[..]), "{id}");
    }
}

#[tokio::test]
async fn to_a_caller_what_is_foreign_is_missing() {
    let (api, token) = family().await;
    let turns = format!("{BASE}/namespaces/default/turns");
    // The same answer, but for the name that was asked for.
    for (path, name) in [
        (format!("{SESSIONS}/NAME"), "other"),
        (format!("{SESSIONS}/NAME"), &*uid("other")),
        (format!("{SESSIONS}/NAME/transcript"), "other"),
        (format!("{SESSIONS}/NAME/status"), "other"),
        (format!("{SESSIONS}/child/transcript?turn=NAME"), "theirs"),
        (format!("{turns}/NAME"), "theirs"),
        (format!("{turns}/NAME/response"), "theirs"),
        (format!("{turns}/NAME/response"), &*uid("rtheirs")),
    ] {
        let missing = if name.contains('-') { uid("nobody") } else { "nobody".to_owned() };
        let foreign = api.by(&token, "GET", &path.replace("NAME", name)).await;
        let absent = api.by(&token, "GET", &path.replace("NAME", &missing)).await;
        assert_eq!((foreign.code, absent.code), (404, 404), "{path}");
        assert_eq!(foreign.to_string().replace(name, &missing), absent.to_string(), "{path}");
        // For an operator it is there, but for a turn that is asked of another session.
        let code = if path.contains("turn=") { 404 } else { 200 };
        assert_eq!(api.by(TOKEN, "GET", &path.replace("NAME", name)).await.code, code, "{path}");
    }
}

#[tokio::test]
async fn a_caller_writes_nothing_but_its_children_and_sees_nothing_else() {
    let (api, token) = family().await;
    let turns = format!("{BASE}/namespaces/default/turns");
    let head = api.store.head().await.unwrap();
    for (method, path) in [
        ("POST", SESSIONS.replace("default", "elsewhere")),
        ("POST", turns.clone()),
        ("PUT", format!("{SESSIONS}/child")),
        ("PUT", format!("{turns}/mine")),
        ("DELETE", format!("{SESSIONS}/me")),
        ("DELETE", format!("{SESSIONS}/other")),
        ("DELETE", format!("{turns}/mine")),
        ("POST", format!("{SESSIONS}/me/token")),
        ("GET", format!("{SESSIONS}/me/token")),
        ("DELETE", format!("{SESSIONS}/me/token/x")),
        ("GET", format!("{SESSIONS}/child/logs?stderr=1")),
        ("GET", format!("{SESSIONS}/child/processes")),
        ("GET", format!("{BASE}/agents?watch=1")),
        ("GET", format!("{BASE}/agents")),
        ("GET", format!("{BASE}/workspaces")),
        ("GET", format!("{BASE}/reconcilereports")),
        ("GET", format!("{BASE}/manifests")),
        ("GET", "/api/v1/namespaces".to_owned()),
        ("GET", "/api/v1/events".to_owned()),
        ("GET", "/apis".to_owned()),
        ("GET", "/version".to_owned()),
        ("GET", "/readyz".to_owned()),
        ("GET", "/metrics".to_owned()),
    ] {
        let answer = api.by(&token, method, &path).await;
        assert_eq!(answer.code, 404, "{method} {path}: {answer}");
        assert_eq!(answer.json()["reason"], "NotFound");
    }
    assert_eq!(api.store.head().await.unwrap(), head, "something was written");
}

#[tokio::test]
async fn a_router_without_its_guard_lets_nobody_in() {
    let api = api().await;
    let bare = router(State {
        secrets: Arc::clone(&api.ports) as Arc<dyn Secrets>,
        admission: Arc::clone(&api.admission),
        store: Arc::clone(&api.store) as SharedStore,
        blobs: Arc::clone(&api.store) as SharedBlobs,
        live: Arc::clone(&api.ports) as Arc<dyn Live>,
        inputs: Arc::clone(&api.ports) as Arc<dyn Inputs>,
        manifests: Arc::clone(&api.ports) as Arc<dyn Manifests>,
        health: Arc::clone(&api.ports) as Arc<dyn Health>,
        clock: Arc::new(ManualClock::default()),
        mcp_url: MCP_URL.to_owned(),
        shutdown: CancellationToken::new(),
    });
    for (path, code) in [("/healthz", 200), ("/version", 401), (SESSIONS, 401)] {
        let request =
            Request::builder().uri(path).header("authorization", format!("Bearer {TOKEN}"));
        let response = bare.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), code, "{path}");
    }
}
