//! create, update, patch, delete, and the `Status` objects that say no.

use super::*;

const SESSIONS: &str = "/apis/spawnlet.dev/v1alpha1/namespaces/default/sessions";
const MERGE: (&str, &str) = ("content-type", "application/merge-patch+json");

async fn api() -> Fixture {
    let api = Fixture::new();
    api.admission.ensure_default_namespace().await.unwrap();
    api
}

fn document(name: &str) -> Value {
    json!({
        "apiVersion": "spawnlet.dev/v1alpha1", "kind": "Session",
        "metadata": {"name": name}, "spec": {"agent": "echo", "cwd": "/tmp"},
    })
}

impl Fixture {
    async fn post(&self, path: &str, body: &Value) -> Answer {
        let headers = [("content-type", "application/json")];
        self.send("POST", path, &headers, body.to_string()).await
    }

    async fn patch(&self, path: &str, body: &Value) -> Answer {
        self.send("PATCH", path, &[MERGE], body.to_string()).await
    }
}

#[tokio::test]
async fn an_object_is_created_read_patched_replaced_and_deleted() {
    let api = api().await;
    let made = api.post(SESSIONS, &document("a")).await;
    assert_eq!(made.code, 201, "{made}");
    let made = made.json();
    assert_eq!(made["metadata"]["namespace"], "default");
    assert_eq!(made["metadata"]["generation"], 1);
    let path = format!("{SESSIONS}/a");

    let patched = api.patch(&path, &json!({"spec": {"title": "t"}})).await;
    assert_eq!(patched.code, 200, "{patched}");
    assert_eq!(patched.json()["spec"]["title"], "t");
    let same = api.patch(&path, &json!({"spec": {"title": "t"}})).await.json();
    assert_eq!(same["metadata"]["resourceVersion"], patched.json()["metadata"]["resourceVersion"]);

    let mut whole = document("a");
    whole["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"].clone();
    let stale = api.send("PUT", &path, &[], whole.to_string()).await;
    assert_eq!((stale.code, stale.json()["reason"].clone()), (409, json!("Conflict")));
    whole["metadata"]["resourceVersion"] = same["metadata"]["resourceVersion"].clone();
    let replaced = api.send("PUT", &path, &[], whole.to_string()).await;
    assert_eq!(replaced.code, 200, "{replaced}");
    assert!(replaced.json()["spec"].get("title").is_none());

    // By uid, with kubectl's body: a session goes by its finalizer.
    let uid = made["metadata"]["uid"].as_str().unwrap();
    let body = json!({"kind": "DeleteOptions", "apiVersion": "v1",
                      "propagationPolicy": "Background", "preconditions": {"uid": uid}});
    let gone = api.send("DELETE", &format!("{SESSIONS}/{uid}"), &[], body.to_string()).await;
    assert_eq!(gone.code, 200, "{gone}");
    assert!(gone.json()["metadata"]["deletionTimestamp"].is_string());
}

#[tokio::test]
async fn what_goes_at_once_answers_with_a_status() {
    let api = api().await;
    let agents = format!("{BASE}/agents");
    let agent = json!({"metadata": {"name": "echo"}, "spec": {"argv": ["echo"]}});
    let made = api.post(&agents, &agent).await;
    assert_eq!(made.code, 201, "{made}");
    let path = format!("{agents}/echo");
    let dry = api.send("DELETE", &path, &[], json!({"dryRun": ["All"]}).to_string()).await;
    assert_eq!(dry.json()["kind"], "Agent");
    let gone = api.send("DELETE", &path, &[], Body::empty()).await.json();
    assert_eq!(gone["status"], "Success");
    assert_eq!(gone["details"]["uid"], made.json()["metadata"]["uid"]);
    assert_eq!(api.send("DELETE", &path, &[], Body::empty()).await.code, 404);
}

#[tokio::test]
async fn dry_runs_write_nothing() {
    let api = api().await;
    let made = api.post(&format!("{SESSIONS}?dryRun=All"), &document("a")).await;
    assert_eq!(made.code, 201, "{made}");
    assert!(made.json()["metadata"].get("resourceVersion").is_none());
    assert_eq!(api.get("/namespaces/default/sessions/a").await.code, 404);
}

#[tokio::test]
async fn refusals_are_status_objects_with_their_details() {
    let api = api().await;
    api.post(SESSIONS, &document("a")).await;
    let taken = api.post(SESSIONS, &document("a")).await.json();
    assert_eq!((&taken["code"], &taken["reason"]), (&json!(409), &json!("AlreadyExists")));
    assert_eq!(taken["message"], "sessions.spawnlet.dev \"a\" already exists");
    assert_eq!(taken["details"], json!({"name": "a", "group": "spawnlet.dev", "kind": "sessions"}));

    let mut wrong = document("b");
    wrong["spec"]["cwd"] = json!("relative");
    let invalid = api.post(SESSIONS, &wrong).await.json();
    assert_eq!((&invalid["code"], &invalid["reason"]), (&json!(422), &json!("Invalid")));
    assert_eq!(invalid["details"]["kind"], "Session");
    let cause = &invalid["details"]["causes"][0];
    assert_eq!(cause["field"], "spec.cwd");
    assert!(cause["reason"].as_str().unwrap().starts_with("FieldValue"));
    assert!(!cause["message"].as_str().unwrap().is_empty());

    let unknown_namespace = SESSIONS.replace("default", "nowhere");
    let missing = api.post(&unknown_namespace, &document("b")).await.json();
    assert_eq!(missing["code"], 404);
    assert_eq!(missing["details"]["kind"], "namespaces");
}

#[tokio::test]
async fn unknown_fields_are_refused_warned_of_or_ignored() {
    let api = api().await;
    for (query, code, warnings) in
        [("fieldValidation=Strict", 400, 0), ("", 201, 1), ("fieldValidation=Ignore", 201, 0)]
    {
        let mut document = document(&format!("s{code}{warnings}"));
        document["spec"]["titel"] = json!("x");
        let answer = api.post(&format!("{SESSIONS}?{query}"), &document).await;
        assert_eq!(answer.code, code, "{answer}");
        let told: Vec<_> = answer.headers.get_all("warning").iter().collect();
        assert_eq!(told.len(), warnings, "{query}");
        if warnings > 0 {
            assert_eq!(told[0], "299 - \"unknown field \\\"spec.titel\\\"\"");
        }
        if code == 400 {
            let message = answer.json()["message"].clone();
            assert_eq!(message, "strict decoding error: unknown field \"spec.titel\"");
        }
    }
    let wrong = api.post(&format!("{SESSIONS}?fieldValidation=Some"), &document("x")).await;
    assert_eq!(wrong.code, 400);
}

#[tokio::test]
async fn bodies_of_the_wrong_kind_size_or_shape_are_refused() {
    let api = api().await;
    api.post(SESSIONS, &document("a")).await;
    let path = format!("{SESSIONS}/a");
    let large = "x".repeat(Rules::default().body_bytes + 1);
    let deep = "[".repeat(100_000);
    let cases: &[(&str, &str, &str, &str, u16)] = &[
        ("POST", SESSIONS, "application/yaml", "{}", 415),
        ("POST", SESSIONS, "application/vnd.kubernetes.protobuf", "k8s", 415),
        ("POST", SESSIONS, "application/json", "", 400),
        ("POST", SESSIONS, "application/json", "{", 400),
        ("POST", SESSIONS, "application/json", "[]", 400),
        ("POST", SESSIONS, "application/json", &deep, 400),
        ("POST", SESSIONS, "application/json", &large, 413),
        ("POST", SESSIONS, "application/json; charset=utf-8", r#"{"kind":"Turn"}"#, 400),
        ("PATCH", &path, "application/json-patch+json", "[]", 415),
        ("PATCH", &path, "application/strategic-merge-patch+json", "{}", 415),
        ("PATCH", &path, "application/apply-patch+yaml", "{}", 415),
        ("PATCH", &path, "", "{}", 415),
        ("PATCH", &path, "application/merge-patch+json", "[]", 400),
        ("PUT", &path, "application/json", r#"{"metadata":{"name":"b"}}"#, 400),
        ("DELETE", &path, "", r#"{"propagationPolicy":"Sideways"}"#, 400),
        ("DELETE", &path, "", r#"{"dryRun":["Some"]}"#, 400),
        ("DELETE", &path, "", r#"{"preconditions":{"uid":"other"}}"#, 409),
        ("DELETE", &path, "", "nonsense", 400),
    ];
    for (method, uri, media, body, code) in cases {
        let headers = [("content-type", *media)];
        let answer = api.send(method, uri, &headers, (*body).to_owned()).await;
        let shown = body.get(..20).unwrap_or(body);
        assert_eq!(answer.code, *code, "{method} {media} {shown}: {answer}");
        assert_eq!(answer.json()["kind"], "Status");
    }
    assert!(
        api.get("/namespaces/default/sessions/a").await.json()["metadata"]
            .get("deletionTimestamp")
            .is_none()
    );
}

#[tokio::test]
async fn a_write_is_shown_as_a_table_to_those_who_ask() {
    let api = api().await;
    let headers = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let made = api.send("POST", SESSIONS, &headers, document("a").to_string()).await;
    assert_eq!(made.code, 201);
    assert_eq!(made.json()["rows"][0]["cells"][0], "a");
}

#[tokio::test]
async fn turns_are_admitted_with_large_prompts_and_repeated_by_their_key() {
    let api = api().await;
    api.post(SESSIONS, &document("a")).await;
    let turns = format!("{BASE}/namespaces/default/turns");
    let turn = json!({"spec": {
        "session": "a", "prompt": "p".repeat(700 * 1024), "idempotencyKey": "k",
    }});
    let made = api.post(&turns, &turn).await;
    assert_eq!(made.code, 201, "{}", made.json()["message"]);
    assert_eq!(made.json()["spec"]["promptBlob"]["bytes"], 700 * 1024);
    let again = api.post(&turns, &turn).await;
    assert_eq!(again.code, 200);
    assert_eq!(again.json()["metadata"]["uid"], made.json()["metadata"]["uid"]);
    let name = made.json()["metadata"]["name"].as_str().unwrap().to_owned();
    let selector = format!("{turns}?fieldSelector=spec.session=a");
    let list = api.send("GET", &selector, &[], Body::empty()).await.json();
    assert_eq!(list["items"][0]["metadata"]["name"], name.as_str());
    let path = format!("{turns}/{name}");
    let cancelled = api.patch(&path, &json!({"spec": {"desiredState": "cancelled"}})).await;
    assert_eq!(cancelled.code, 200);
    let back = api.patch(&path, &json!({"spec": {"desiredState": "running"}})).await;
    assert_eq!(back.code, 422);
}
