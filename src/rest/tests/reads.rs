//! The guard, discovery, health, get, list, tables, reports.

use super::*;

const HOST: (&str, &str) = ("host", "localhost");
/// Headers, the expected status and its reason (empty: not looked at).
type Case<'a> = (&'a [(&'a str, &'a str)], u16, &'a str);
const NO_TOKEN: (&str, &str) = ("authorization", "");

#[tokio::test]
async fn the_guard_checks_host_origin_encoding_and_token_in_this_order() {
    let api = Fixture::new();
    let good = format!("Bearer {TOKEN}");
    let cases: &[Case<'_>] = &[
        (&[], 200, ""),
        (&[("host", "127.0.0.1:7420")], 200, ""),
        (&[("host", "[::1]:9")], 200, ""),
        (&[("host", "evil.example")], 421, "MisdirectedRequest"),
        (&[("host", "")], 421, "MisdirectedRequest"),
        (&[("host", "evil.example"), ("origin", "https://evil.example"), NO_TOKEN], 421, ""),
        (&[("origin", "https://evil.example")], 403, "Forbidden"),
        (&[("origin", "null")], 403, "Forbidden"),
        (&[("origin", "http://localhost:3000")], 200, ""),
        (&[("content-encoding", "gzip")], 415, "UnsupportedMediaType"),
        (&[NO_TOKEN], 401, "Unauthorized"),
        (&[("authorization", "Bearer wrong")], 401, "Unauthorized"),
        (&[("authorization", "Basic b3A6eA==")], 401, "Unauthorized"),
        (&[("authorization", "Bearer")], 401, "Unauthorized"),
        (&[("authorization", &good), ("authorization", "Bearer other")], 401, "Unauthorized"),
        (&[("impersonate-user", "root")], 403, "Forbidden"),
    ];
    for (headers, code, reason) in cases {
        let answer = api.send("GET", "/version", headers, Body::empty()).await;
        assert_eq!(answer.code, *code, "{headers:?}: {answer}");
        if !reason.is_empty() {
            assert_eq!(answer.json()["reason"], *reason);
            assert_eq!(answer.json()["kind"], "Status");
        }
        assert!(answer.headers.get("access-control-allow-origin").is_none());
    }
}

#[tokio::test]
async fn only_the_liveness_paths_are_open() {
    let api = Fixture::new();
    for (path, code) in [
        ("/healthz", 200),
        ("/livez", 200),
        ("/readyz", 401),
        ("/version", 401),
        ("/apis", 401),
        ("/nothing", 401),
        ("/healthz/x", 401),
    ] {
        let answer = api.send("GET", path, &[HOST, NO_TOKEN], Body::empty()).await;
        assert_eq!(answer.code, code, "{path}");
    }
    let answer = api.send("POST", "/healthz", &[NO_TOKEN], Body::empty()).await;
    assert_eq!(answer.code, 401);
    assert_eq!(answer.header("www-authenticate"), "Bearer");
}

#[tokio::test]
async fn readiness_tells_its_conditions() {
    let api = Fixture::new();
    let answer = api.send("GET", "/readyz?verbose", &[], Body::empty()).await;
    let text = String::from_utf8(answer.bytes.to_vec()).unwrap();
    assert_eq!(answer.code, 200);
    assert!(text.contains("[+]StoreAvailable ok: Open\n"), "{text}");
    assert!(text.contains("[+]DiskPressure none: Enough\n"), "{text}");
    api.ports.is_unready.store(true, std::sync::atomic::Ordering::SeqCst);
    let answer = api.send("GET", "/readyz", &[("accept", "application/json")], Body::empty()).await;
    assert_eq!(answer.code, 503);
    assert_eq!(answer.json()["ready"], false);
    assert_eq!(answer.json()["conditions"][0]["type"], "StoreAvailable");
}

#[tokio::test]
async fn discovery_has_both_forms() {
    let api = Fixture::new();
    let version = api.send("GET", "/version/", &[], Body::empty()).await.json();
    let text = version["gitVersion"].as_str().unwrap();
    assert_eq!(text, "v1.37.0+spawnlet.0.1.0");

    let versions = api.send("GET", "/api", &[], Body::empty()).await.json();
    assert_eq!(versions["versions"], json!(["v1"]));
    let groups = api.send("GET", "/apis/", &[], Body::empty()).await.json();
    assert_eq!(groups["groups"][0]["preferredVersion"]["version"], "v1alpha1");
    let list = api.send("GET", BASE, &[], Body::empty()).await.json();
    let names: Vec<&str> = list["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|resource| resource["name"].as_str().unwrap())
        .collect();
    for name in ["sessions", "sessions/status", "turns", "agents", "reconcilereports"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(!names.contains(&"events"));

    let media = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let accept = format!("{media},application/json");
    let answer = api.send("GET", "/apis", &[("accept", &accept)], Body::empty()).await;
    assert_eq!(answer.header("content-type"), media);
    let group = &answer.json()["items"][0];
    assert_eq!(group["metadata"]["name"], "spawnlet.dev");
    assert_eq!(group["versions"][0]["freshness"], "Current");
    let resources = group["versions"][0]["resources"].as_array().unwrap();
    assert!(resources.iter().all(|one| !one["verbs"].as_array().unwrap().is_empty()));
    let answer = api.send("GET", "/api", &[("accept", &accept)], Body::empty()).await;
    assert_eq!(answer.json()["items"][0]["metadata"], json!({}));
}

#[tokio::test]
async fn wrong_paths_verbs_and_media_are_status_objects() {
    let api = Fixture::new();
    for (method, path, code, reason) in [
        ("GET", "/", 404, "NotFound"),
        ("GET", "/apis/apps/v1/deployments", 404, "NotFound"),
        ("GET", "/apis/spawnlet.dev/v1alpha1/pods", 404, "NotFound"),
        ("GET", "/apis/spawnlet.dev/v1alpha1/namespaces/default/sessions/x", 404, "NotFound"),
        ("GET", "/apis/spawnlet.dev/v1alpha1/namespaces/default/sessions/x/scale", 404, "NotFound"),
        ("POST", "/version", 405, "MethodNotAllowed"),
        ("POST", "/apis/spawnlet.dev/v1alpha1/sessions", 405, "MethodNotAllowed"),
        (
            "DELETE",
            "/apis/spawnlet.dev/v1alpha1/namespaces/default/sessions",
            405,
            "MethodNotAllowed",
        ),
        ("POST", "/api/v1/namespaces/default/events", 405, "MethodNotAllowed"),
        ("DELETE", "/api/v1/namespaces/default/events/x", 405, "MethodNotAllowed"),
        (
            "PUT",
            "/apis/spawnlet.dev/v1alpha1/namespaces/default/sessions/x/status",
            403,
            "Forbidden",
        ),
        ("GET", "/apis/spawnlet.dev/v1alpha1/sessions?limit=many", 400, "BadRequest"),
        ("GET", "/apis/spawnlet.dev/v1alpha1/sessions?fieldSelector=a=b", 400, "BadRequest"),
        ("GET", "/apis/spawnlet.dev/v1alpha1/sessions?resourceVersion=99", 410, "Expired"),
        ("GET", "/apis/spawnlet.dev/v1alpha1/sessions?watch=1&resourceVersion=99", 410, "Expired"),
        ("GET", "/apis/spawnlet.dev/v1alpha1/sessions?continue=00", 400, "BadRequest"),
    ] {
        let answer = api.send(method, path, &[], Body::empty()).await;
        assert_eq!(answer.code, code, "{method} {path}: {answer}");
        let status = answer.json();
        assert_eq!(status["kind"], "Status", "{path}");
        assert_eq!(status["apiVersion"], "v1");
        assert_eq!(status["status"], "Failure");
        assert_eq!(status["reason"], reason, "{path}");
        assert_eq!(status["code"], code);
        assert_eq!(status["metadata"], json!({}));
    }
    let accept = [("accept", "application/yaml")];
    let answer = api.send("GET", &format!("{BASE}/sessions"), &accept, Body::empty()).await;
    assert_eq!(answer.code, 406);
}

#[tokio::test]
async fn an_object_is_found_by_name_and_by_uid_in_its_own_namespace() {
    let api = Fixture::new();
    let rev = api.put(Kind::Session, session("a", "Idle", json!({}))).await;
    let answer = api.get("/namespaces/default/sessions/a").await;
    assert_eq!(answer.json()["metadata"]["resourceVersion"], rev.to_string());
    let by_uid = api.get(&format!("/namespaces/default/sessions/{}", uid("a"))).await;
    assert_eq!(by_uid.bytes, answer.bytes);
    for path in [
        format!("/namespaces/other/sessions/{}", uid("a")),
        format!("/namespaces/default/turns/{}", uid("a")),
        "/namespaces/default/sessions/b".to_owned(),
    ] {
        assert_eq!(api.get(&path).await.code, 404, "{path}");
    }
    let missing = api.get("/namespaces/default/sessions/b").await.json();
    assert_eq!(missing["message"], "sessions.spawnlet.dev \"b\" not found");
    assert_eq!(
        missing["details"],
        json!({"name": "b", "group": "spawnlet.dev", "kind": "sessions"})
    );
    let status = api.get("/namespaces/default/sessions/a/status").await;
    assert_eq!(status.json()["status"]["phase"], "Idle");
}

#[tokio::test]
async fn what_the_controller_holds_in_memory_is_shown_over_the_record() {
    let api = Fixture::new();
    api.put(Kind::Session, session("s", "Running", json!({}))).await;
    api.put(Kind::Turn, turn("t", "s", "Running")).await;
    *api.ports.activity.lock().unwrap() = Some(LiveActivity {
        turn: Some(Uid::new(uid("t"))),
        last_activity_at: Some(crate::api::Time::from_millis(0)),
        ..LiveActivity::default()
    });
    for path in ["sessions/s", "turns/t"] {
        let object = api.get(&format!("/namespaces/default/{path}")).await.json();
        assert_eq!(object["status"]["lastActivityAt"], "1970-01-01T00:00:00.000Z", "{path}");
    }
}

#[tokio::test]
async fn lists_are_narrowed_and_paged() {
    let api = Fixture::new();
    for index in 0..7 {
        let phase = if index % 2 == 0 { "Idle" } else { "Running" };
        let labels = json!({"n": index.to_string()});
        api.put(Kind::Session, session(&format!("s{index}"), phase, labels)).await;
    }
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap();
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let list = api.get("/sessions").await.json();
    assert_eq!(names(&list).len(), 7);
    assert_eq!(list["kind"], "SessionList");
    assert_eq!(list["metadata"]["resourceVersion"], "7");
    assert!(list["metadata"].get("continue").is_none());
    for (query, wanted) in [
        ("labelSelector=n%20in%20(1,3)", &["s1", "s3"][..]),
        ("fieldSelector=status.phase=Running", &["s1", "s3", "s5"]),
        ("fieldSelector=metadata.name=s2", &["s2"]),
        ("fieldSelector=metadata.name=s", &[]),
        ("fieldSelector=metadata.namespace!=default", &[]),
        ("labelSelector=!n", &[]),
    ] {
        for path in ["/sessions", "/namespaces/default/sessions"] {
            let list = api.get(&format!("{path}?{query}")).await.json();
            assert_eq!(names(&list), wanted, "{query}");
        }
    }
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let query = format!("/sessions?fieldSelector=status.phase=Idle&limit=2&continue={token}");
        let page = api.get(&query).await.json();
        assert_eq!(page["metadata"]["resourceVersion"], "7");
        seen.extend(names(&page));
        match page["metadata"]["continue"].as_str() {
            Some(next) => token = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(seen, ["s0", "s2", "s4", "s6"]);
}

#[tokio::test]
async fn tables_and_partial_metadata_are_served_to_those_who_ask() {
    let api = Fixture::new();
    api.put(Kind::Session, session("a", "Idle", json!({"k": "v"}))).await;
    let path = format!("{BASE}/namespaces/default/sessions");
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let table = api.send("GET", &path, &[("accept", accept)], Body::empty()).await.json();
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["metadata"]["resourceVersion"], "1");
    assert_eq!(table["rows"][0]["cells"][2], "Idle");
    assert_eq!(table["rows"][0]["object"]["metadata"]["labels"]["k"], "v");
    assert!(table["rows"][0]["object"].get("spec").is_none());
    let one = format!("{path}/a?includeObject=Object");
    let table = api.send("GET", &one, &[("accept", accept)], Body::empty()).await.json();
    assert_eq!(table["rows"][0]["object"]["spec"]["agent"], "echo");
    let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let list = api.send("GET", &path, &[("accept", accept)], Body::empty()).await.json();
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["kind"], "PartialObjectMetadata");
}

#[tokio::test]
async fn core_events_are_found_by_the_object_that_they_are_about() {
    let api = Fixture::new();
    for (name, about) in [("e1", "a"), ("e2", "b")] {
        let event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": name, "namespace": "default"},
            "involvedObject": {"kind": "Session", "name": about, "namespace": "default"},
            "type": "Normal", "reason": "Started", "message": "m", "count": 1,
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
            "source": {"component": "spawnlet"},
        });
        api.put(Kind::Event, event).await;
    }
    let path = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=a,\
                involvedObject.kind=Session,involvedObject.namespace=default";
    let list = api.send("GET", path, &[], Body::empty()).await.json();
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert_eq!(list["items"][0]["metadata"]["name"], "e1");
    assert_eq!(list["apiVersion"], "v1");
}

#[tokio::test]
async fn reports_are_newest_first_and_failing_ones_can_be_asked_for() {
    let api = Fixture::new();
    for name in ["a", "b", "w", "k", "p"] {
        api.put(Kind::Session, session(name, "Idle", json!({}))).await;
    }
    for (name, sequence, outcome) in [
        ("a", 1, "BackOff"),
        ("a", 2, "Converged"),
        ("b", 1, "Progressing"),
        ("b", 2, "Failed"),
        ("w", 1, "Waiting"),
        ("k", 0, "BackOff"),
        ("p", 0, "Progressing"),
        ("deleted", 1, "Failed"),
    ] {
        let report = json!({
            "object": {"apiVersion": "v", "kind": "Session", "namespace": "default", "name": name},
            "uid": uid(name), "generation": 1, "sequence": sequence, "trigger": "watch",
            "observed": "o", "outcome": outcome, "startedAt": format!("2026-01-01T00:00:0{sequence}Z"),
            "durationMs": 3,
        });
        let key = keys::report(&Uid::new(uid(name)), sequence);
        let ops = vec![Op::Put { key, value: report.to_string().into() }];
        api.store.commit(Commit { guards: Vec::new(), ops }).await.unwrap();
    }
    let outcomes = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap();
        items.iter().map(|item| item["outcome"].as_str().unwrap().to_owned()).collect()
    };
    let of_a = api.get("/reconcilereports?object=Session/default/a").await.json();
    assert_eq!(outcomes(&of_a), ["Converged", "BackOff"]);
    assert_eq!(of_a["items"][0]["kind"], "ReconcileReport");
    assert_eq!(of_a["items"][0]["metadata"]["namespace"], "default");
    let by_uid = api.get(&format!("/reconcilereports?object={}&limit=1", uid("b"))).await.json();
    assert_eq!(outcomes(&by_uid), ["Failed"]);
    let failing = api.get("/reconcilereports?failing=true").await.json();
    assert_eq!(outcomes(&failing), ["Failed", "Waiting", "BackOff"]);
    let selected = api.get("/reconcilereports?fieldSelector=object.name=a,outcome!=BackOff").await;
    assert_eq!(outcomes(&selected.json()), ["Converged"]);
    let none = api.get("/namespaces/other/reconcilereports").await.json();
    assert!(outcomes(&none).is_empty());
    assert_eq!(api.get("/reconcilereports?object=Session/default/c").await.code, 404);
    assert_eq!(api.get("/reconcilereports?object=nonsense").await.code, 400);
}

#[tokio::test]
async fn reports_and_manifests_refuse_selectors_that_they_do_not_know() {
    let api = Fixture::new();
    for resource in ["reconcilereports", "manifests"] {
        for selector in ["fieldSelector=spec.color=red", "fieldSelector=x", "labelSelector=a=b"] {
            let answer = api.get(&format!("/{resource}?{selector}")).await;
            assert_eq!(answer.code, 400, "{resource} {selector}: {answer}");
        }
        let answer = api.get(&format!("/{resource}?fieldSelector=&labelSelector=")).await;
        assert_eq!(answer.code, 200, "{resource}: {answer}");
    }
}

#[tokio::test]
async fn manifest_files_are_listed_with_their_errors() {
    let api = Fixture::new();
    api.ports.manifests.lock().unwrap().push(Manifest {
        path: "a.yaml".to_owned(),
        documents: 2,
        objects: vec!["Session/default/a".to_owned()],
        error: Some("a.yaml:1:2: spec.x: unknown".to_owned()),
        applied_at: None,
    });
    let list = api.get("/manifests").await.json();
    assert_eq!(list["items"][0]["error"], "a.yaml:1:2: spec.x: unknown");
    assert_eq!(list["kind"], "ManifestList");
}
