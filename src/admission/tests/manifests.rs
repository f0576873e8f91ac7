use super::*;
use crate::api::MANAGED_BY;
use crate::api::session::{DesiredState, EndOutcome, SessionEnd};

async fn bench_with_applied_session() -> Bench {
    let bench = Bench::new();
    made(bench.apply(Kind::Session, session("s")).await.unwrap());
    bench
}

#[tokio::test]
async fn a_files_object_is_marked_with_its_file() {
    let bench = bench_with_applied_session().await;
    assert_eq!(bench.session("s").await.metadata.annotations[MANAGED_BY], "a.yaml");
}

#[tokio::test]
async fn a_file_makes_its_namespace() {
    let bench = Bench::new();
    let mut body = session("s");
    body["metadata"]["namespace"] = json!("n");
    made(bench.apply(Kind::Session, body).await.unwrap());
    assert!(bench.find::<NamespaceSpec>("n").await.is_some());
}

#[tokio::test]
async fn a_document_needs_a_name() {
    let bench = Bench::new();
    let body = json!({"spec": {"agent": "stub", "cwd": "/srv"}});
    assert_eq!(fields(bench.apply(Kind::Session, body).await), ["metadata.name"]);
}

#[tokio::test]
async fn the_same_document_again_is_no_write() {
    let bench = bench_with_applied_session().await;
    let before = bench.head().await;
    let again = made(bench.apply(Kind::Session, session("s")).await.unwrap());
    assert_eq!(again.outcome, Outcome::Unchanged);
    assert_eq!(bench.head().await, before);
}

#[tokio::test]
async fn a_changed_document_changes_the_object() {
    let bench = bench_with_applied_session().await;
    let mut body = session("s");
    body["spec"]["title"] = json!("t");
    let changed = made(bench.apply(Kind::Session, body).await.unwrap());
    assert_eq!(changed.outcome, Outcome::Updated);
    assert_eq!(bench.session("s").await.spec.title.as_deref(), Some("t"));
}

#[tokio::test]
async fn others_may_not_write_the_spec_of_a_files_object() {
    let bench = bench_with_applied_session().await;
    let patch = json!({"spec": {"title": "t"}});
    let refusal = bench.patch(Kind::Session, "s", patch).await.unwrap_err();
    assert_eq!((refusal.code(), refusal.reason()), (403, "Forbidden"));
    assert!(refusal.to_string().starts_with("ManagedByManifest"), "{refusal}");
}

#[tokio::test]
async fn force_takes_a_files_object_over() {
    let bench = bench_with_applied_session().await;
    let patch = json!({"spec": {"title": "t"}});
    bench.patch_with(Kind::Session, "s", patch, &FORCE).await.unwrap();
    let session = bench.session("s").await;
    assert!(session.metadata.annotations.is_empty());
    assert_eq!(session.spec.title.as_deref(), Some("t"));
}

#[tokio::test]
async fn others_may_label_cancel_and_delete_a_files_object() {
    let bench = bench_with_applied_session().await;
    let label = json!({"metadata": {"labels": {"a": "b"}, "annotations": null}});
    bench.patch(Kind::Session, "s", label).await.unwrap();
    let cancel = json!({"spec": {"desiredState": "cancelled"}});
    bench.patch(Kind::Session, "s", cancel).await.unwrap();
    bench.delete(Kind::Session, "s").await.unwrap();
    let session = bench.session("s").await;
    assert_eq!(session.metadata.labels["a"], "b");
    assert_eq!(session.metadata.annotations[MANAGED_BY], "a.yaml");
}

#[tokio::test]
async fn others_may_not_mark_an_object() {
    let bench = bench_with_session().await;
    let patch = json!({"metadata": {"annotations": {MANAGED_BY: "b.yaml"}}});
    let refused = bench.patch(Kind::Session, "s", patch).await;
    assert_eq!(fields(refused), ["metadata.annotations.spawnlet.dev/managed-by"]);
}

#[tokio::test]
async fn a_label_that_others_wrote_outlives_the_next_document() {
    let bench = bench_with_applied_session().await;
    let patch = json!({"metadata": {"labels": {"a": "b"}}});
    bench.patch(Kind::Session, "s", patch).await.unwrap();
    let again = made(bench.apply(Kind::Session, session("s")).await.unwrap());
    assert_eq!(again.outcome, Outcome::Unchanged);
    assert_eq!(bench.session("s").await.metadata.labels["a"], "b");
}

#[tokio::test]
async fn a_label_that_left_the_document_leaves_the_object() {
    let bench = Bench::new();
    let mut body = session("s");
    body["metadata"]["labels"] = json!({"a": "b", "c": "d"});
    body["metadata"]["annotations"] = json!({"note": "x"});
    made(bench.apply(Kind::Session, body.clone()).await.unwrap());
    body["metadata"]["labels"] = json!({"c": "d"});
    body["metadata"]["annotations"] = json!({});
    made(bench.apply(Kind::Session, body).await.unwrap());
    let metadata = bench.session("s").await.metadata;
    assert_eq!(metadata.labels.keys().collect::<Vec<_>>(), ["c"]);
    assert!(!metadata.annotations.contains_key("note"));
}

#[tokio::test]
async fn an_object_that_the_api_made_becomes_the_files() {
    let bench = bench_with_session().await;
    made(bench.apply(Kind::Session, session("s")).await.unwrap());
    assert_eq!(bench.session("s").await.metadata.annotations[MANAGED_BY], "a.yaml");
}

#[tokio::test]
async fn a_document_does_not_revive_what_was_cancelled() {
    let bench = bench_with_applied_session().await;
    let cancel = json!({"spec": {"desiredState": "cancelled"}});
    bench.patch(Kind::Session, "s", cancel).await.unwrap();
    let again = made(bench.apply(Kind::Session, session("s")).await.unwrap());
    assert_eq!(again.outcome, Outcome::Unchanged);
    assert_eq!(again.warnings.len(), 1);
    assert_eq!(bench.session("s").await.spec.desired_state, DesiredState::Cancelled);
}

#[tokio::test]
async fn a_changed_immutable_field_replaces_the_object() {
    let bench = bench_with_applied_session().await;
    let old = bench.session("s").await.metadata.uid;
    let mut body = session("s");
    body["spec"]["cwd"] = json!("/other");
    let applied = bench.apply(Kind::Session, body.clone()).await.unwrap();
    assert_eq!(applied, Applied::Replacing { uid: old.clone() });
    assert!(bench.session("s").await.metadata.is_deleting());
    // The controller is not done yet.
    let applied = bench.apply(Kind::Session, body.clone()).await.unwrap();
    assert_eq!(applied, Applied::Replacing { uid: old.clone() });
    bench.remove::<SessionSpec>("s").await;
    assert_eq!(made(bench.apply(Kind::Session, body).await.unwrap()).outcome, Outcome::Created);
    assert_ne!(bench.session("s").await.metadata.uid, old);
}

#[tokio::test]
async fn a_dry_run_says_that_an_object_would_be_replaced() {
    let bench = bench_with_applied_session().await;
    let mut body = session("s");
    body["spec"]["cwd"] = json!("/other");
    let applied = bench.apply_with(Kind::Session, body, &DRY).await.unwrap();
    assert!(matches!(applied, Applied::Replacing { .. }));
    assert!(!bench.session("s").await.metadata.is_deleting());
}

#[tokio::test]
async fn an_invalid_document_replaces_nothing() {
    let bench = bench_with_applied_session().await;
    let mut body = session("s");
    body["spec"]["cwd"] = json!("other");
    assert_eq!(fields(bench.apply(Kind::Session, body).await), ["spec.cwd"]);
    assert!(!bench.session("s").await.metadata.is_deleting());
}

#[tokio::test]
async fn a_session_that_has_ended_is_made_again_only_when_its_document_changes() {
    let bench = bench_with_applied_session().await;
    let session_now = bench.session("s").await;
    let end = SessionEnd {
        outcome: EndOutcome::Stopped,
        reason: "TtlExpired".to_owned(),
        message: String::new(),
        code: None,
        at: crate::api::Time::from_millis(0),
    };
    bench.write(&session_now, |session| session.status.end = Some(end)).await;
    let again = made(bench.apply(Kind::Session, session("s")).await.unwrap());
    assert_eq!(again.outcome, Outcome::Unchanged);
    let mut body = session("s");
    body["spec"]["title"] = json!("t");
    let applied = bench.apply(Kind::Session, body).await.unwrap();
    assert!(matches!(applied, Applied::Replacing { .. }));
}

#[tokio::test]
async fn a_final_turn_with_another_prompt_is_replaced_in_one_go() {
    let bench = bench_with_applied_session().await;
    let body = |prompt: &str| json!({"metadata": {"name": "t"}, "spec": {"session": "s", "prompt": prompt}});
    made(bench.apply(Kind::Turn, body("one")).await.unwrap());
    bench.end_turn("t").await;
    let applied = made(bench.apply(Kind::Turn, body("two")).await.unwrap());
    assert_eq!(applied.outcome, Outcome::Created);
    assert_eq!(bench.turn("t").await.spec.prompt.as_deref(), Some("two"));
}

#[tokio::test]
async fn a_large_prompt_in_a_file_is_the_same_document_again() {
    let bench = bench_with_applied_session().await;
    let prompt = "x".repeat(70_000);
    let body = json!({"metadata": {"name": "t"}, "spec": {"session": "s", "prompt": prompt}});
    made(bench.apply(Kind::Turn, body.clone()).await.unwrap());
    let again = made(bench.apply(Kind::Turn, body).await.unwrap());
    assert_eq!(again.outcome, Outcome::Unchanged);
}
