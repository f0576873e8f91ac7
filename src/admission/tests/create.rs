use super::*;

#[tokio::test]
async fn a_new_object_has_what_the_daemon_sets() {
    let bench = Bench::new();
    let object = bench.create(Kind::Session, session("s")).await.unwrap().object;
    let metadata = &object["metadata"];
    assert_eq!(metadata["namespace"], "default");
    assert_eq!(metadata["generation"], 1);
    assert_eq!(metadata["creationTimestamp"], "2026-01-01T00:00:00.000Z");
    assert_eq!(metadata["finalizers"], json!([PROCESS_FINALIZER]));
    assert_eq!(metadata["uid"].as_str().unwrap().len(), 36);
    let stored = bench.session("s").await;
    assert_eq!(serde_json::to_value(stored).unwrap(), object);
}

#[tokio::test]
async fn defaults_are_in_the_object() {
    let bench = Bench::new();
    let object = bench.create(Kind::Session, session("s")).await.unwrap().object;
    assert_eq!(object["spec"]["idleTimeout"], "15m");
    assert_eq!(object["spec"]["desiredState"], "running");
}

#[tokio::test]
async fn a_session_without_a_name_is_named_after_its_agent_and_uid() {
    let bench = Bench::new();
    let body = json!({"spec": {"agent": "stub", "cwd": "/srv"}});
    let object = bench.create(Kind::Session, body).await.unwrap().object;
    let uid = object["metadata"]["uid"].as_str().unwrap();
    assert_eq!(object["metadata"]["name"], format!("stub-{}", &uid[24..]));
}

#[tokio::test]
async fn generate_name_is_a_prefix() {
    let bench = Bench::new();
    let body = json!({"metadata": {"generateName": "try-"}, "spec": {"argv": ["a"]}});
    let object = bench.create(Kind::Agent, body).await.unwrap().object;
    assert!(object["metadata"]["name"].as_str().unwrap().starts_with("try-"));
}

#[tokio::test]
async fn an_agent_needs_a_name() {
    let bench = Bench::new();
    let body = json!({"spec": {"argv": ["a"]}});
    assert_eq!(fields(bench.create(Kind::Agent, body).await), ["metadata.name"]);
}

#[tokio::test]
async fn every_fault_of_metadata_and_spec_is_told_at_once() {
    let bench = Bench::new();
    let body = json!({"metadata": {"name": "A", "finalizers": ["x/y"]},
        "spec": {"agent": "stub", "cwd": "srv"}});
    let found = fields(bench.create(Kind::Session, body).await);
    assert_eq!(found, ["metadata.name", "metadata.finalizers[0]", "spec.cwd"]);
}

#[tokio::test]
async fn a_taken_name_is_refused() {
    let bench = bench_with_session().await;
    let refusal = bench.create(Kind::Session, session("s")).await.unwrap_err();
    assert_eq!(refusal.reason(), "AlreadyExists");
    assert_eq!(refusal.to_string(), "sessions.spawnlet.dev \"s\" already exists");
    assert_eq!(refusal.details().kind, "sessions");
}

#[tokio::test]
async fn a_dry_run_tells_what_would_be_and_writes_nothing() {
    let bench = Bench::new();
    let admission = &bench.admission;
    let writer = Writer::Operator;
    let made = admission.create(Kind::Session, None, session("s"), &DRY, &writer).await.unwrap();
    assert_eq!(made.object["metadata"].get("resourceVersion"), None);
    assert_eq!(made.outcome, Outcome::Created);
    assert_eq!(bench.head().await, 0);
}

#[tokio::test]
async fn a_dry_run_sees_that_the_name_is_taken() {
    let bench = bench_with_session().await;
    let writer = Writer::Operator;
    let refused = bench.admission.create(Kind::Session, None, session("s"), &DRY, &writer).await;
    assert_eq!(code(refused), 409);
}

#[tokio::test]
async fn status_stale_metadata_and_marks_of_a_read_back_object_are_ignored() {
    let bench = Bench::new();
    let body = json!({
        "metadata": {"name": "s", "uid": "x", "resourceVersion": "9", "generation": 7,
            "deletionTimestamp": "2020-01-01T00:00:00Z",
            "annotations": {"spawnlet.dev/managed-by": "a.yaml"}},
        "spec": {"agent": "stub", "cwd": "/srv"},
        "status": {"phase": "Running", "turnsMade": 9},
    });
    bench.create(Kind::Session, body).await.unwrap();
    let session = bench.session("s").await;
    assert_eq!(session.metadata.generation, 1);
    assert_eq!(session.metadata.deletion_timestamp, None);
    assert!(session.metadata.annotations.is_empty());
    assert_eq!(session.status, crate::api::SessionStatus::default());
}

#[tokio::test]
async fn a_session_with_a_prompt_is_made_with_its_first_turn() {
    let bench = Bench::new();
    let mut body = session("s");
    body["spec"]["prompt"] = json!("hello");
    let revision = bench.create(Kind::Session, body).await.unwrap().object;
    let turn = bench.turn("s-1").await;
    assert_eq!(turn.spec.prompt.as_deref(), Some("hello"));
    assert_eq!(turn.metadata.resource_version, revision["metadata"]["resourceVersion"]);
    let session = bench.session("s").await;
    assert_eq!(turn.metadata.owner_references[0].uid, session.metadata.uid);
    assert_eq!(session.status.turns_made, 1);
}

#[tokio::test]
async fn a_namespace_that_is_not_there_is_not_found() {
    let bench = Bench::new();
    let mut body = session("s");
    body["metadata"]["namespace"] = json!("other");
    let refusal = bench.create(Kind::Session, body).await.unwrap_err();
    assert_eq!(refusal.to_string(), "namespaces \"other\" not found");
    assert_eq!(refusal.code(), 404);
}

#[tokio::test]
async fn the_requests_namespace_is_the_objects() {
    let bench = Bench::new();
    let name = json!({"metadata": {"name": "other"}});
    bench.create(Kind::Namespace, name).await.unwrap();
    let (namespace, writer) = ("other".into(), Writer::Operator);
    let admission = &bench.admission;
    let create = |body| admission.create(Kind::Session, Some(&namespace), body, &PLAIN, &writer);
    let made = create(session("s")).await.unwrap();
    assert_eq!(made.object["metadata"]["namespace"], "other");
    let mut body = session("t");
    body["metadata"]["namespace"] = json!("default");
    assert_eq!(code(create(body).await), 400);
}

#[tokio::test]
async fn the_default_namespace_is_made_once() {
    let bench = Bench::new();
    bench.admission.ensure_default_namespace().await.unwrap();
    bench.admission.ensure_default_namespace().await.unwrap();
    assert_eq!(bench.head().await, 1);
    assert!(bench.find::<NamespaceSpec>("default").await.is_some());
}

#[tokio::test]
async fn unknown_fields_are_refused_warned_of_or_ignored() {
    let bench = Bench::new();
    let mut body = agent("a");
    body["spec"]["titel"] = json!("x");
    let refusal = bench.create(Kind::Agent, body.clone()).await.unwrap_err();
    assert_eq!(refusal.to_string(), "strict decoding error: unknown field \"spec.titel\"");
    let lax = WriteOptions { field_validation: FieldValidation::Warn, ..PLAIN };
    let writer = Writer::Operator;
    let made = bench.admission.create(Kind::Agent, None, body, &lax, &writer).await.unwrap();
    assert_eq!(made.warnings, ["unknown field \"spec.titel\""]);
}

#[tokio::test]
async fn events_are_not_written_by_users() {
    let bench = Bench::new();
    assert_eq!(code(bench.create(Kind::Event, json!({})).await), 405);
}

#[tokio::test]
async fn a_full_disk_refuses_what_is_new_and_still_takes_cancel_and_delete() {
    let bench = Bench::new();
    bench.create(Kind::Session, session("s")).await.unwrap();
    bench.store.set_full(true);
    let refused = bench.create(Kind::Session, session("t")).await.unwrap_err();
    assert_eq!(refused.code(), 503);
    assert!(refused.to_string().contains("disk"), "{refused}");
    assert_eq!(bench.create(Kind::Turn, turn("s")).await.unwrap_err().code(), 503);
    let stop = json!({"spec": {"desiredState": "cancelled"}});
    bench.patch(Kind::Session, "s", stop).await.unwrap();
    bench.delete(Kind::Session, "s").await.unwrap();
    bench.store.set_full(false);
    bench.create(Kind::Session, session("t")).await.unwrap();
}

#[tokio::test]
async fn what_is_made_after_a_start_sorts_behind_what_an_earlier_daemon_made() {
    let bench = bench_with_session().await;
    bench.clock.advance(std::time::Duration::from_secs(90_000));
    bench.create(Kind::Turn, turn("s")).await.unwrap();
    // The next daemon's wall clock is right again.
    let clock = Arc::new(ManualClock::default());
    let (store, blobs) = (bench.store.clone(), bench.store.clone());
    let next = Admission::new(store, blobs, clock, SharedSlots::default(), Limits::default());
    next.begin().await.unwrap();
    next.create(Kind::Turn, None, turn("s"), &PLAIN, &Writer::Operator).await.unwrap();
    let session = bench.session("s").await;
    let open = next.records().open_turns(&session.metadata.uid).await.unwrap();
    let names: Vec<&str> = open.iter().map(|turn| turn.metadata.name.as_str()).collect();
    assert_eq!(names, ["s-1", "s-2"]);
}
