use super::*;

#[tokio::test]
async fn a_patch_that_changes_nothing_is_no_write() {
    let bench = bench_with_session().await;
    let before = bench.head().await;
    let patched = bench.patch(Kind::Session, "s", json!({"spec": {"agent": "stub"}})).await;
    assert_eq!(patched.unwrap().outcome, Outcome::Unchanged);
    assert_eq!(bench.head().await, before);
}

#[tokio::test]
async fn the_generation_counts_changes_of_the_spec_alone() {
    let bench = bench_with_session().await;
    bench.patch(Kind::Session, "s", json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    assert_eq!(bench.session("s").await.metadata.generation, 1);
    bench.patch(Kind::Session, "s", json!({"spec": {"title": "t"}})).await.unwrap();
    assert_eq!(bench.session("s").await.metadata.generation, 2);
}

#[tokio::test]
async fn a_put_sets_what_it_leaves_out_back_to_the_default() {
    let bench = bench_with_session().await;
    let patch = json!({"spec": {"title": "t"}, "metadata": {"labels": {"a": "b"}}});
    bench.patch(Kind::Session, "s", patch).await.unwrap();
    bench.put(Kind::Session, "s", session("s")).await.unwrap();
    let session = bench.session("s").await;
    assert_eq!(session.spec.title, None);
    assert!(session.metadata.labels.is_empty());
}

#[tokio::test]
async fn a_put_that_leaves_finalizer_and_owner_out_keeps_them() {
    let bench = bench_with_session().await;
    bench.create(Kind::Turn, turn("s")).await.unwrap();
    bench.put(Kind::Session, "s", session("s")).await.unwrap();
    assert_eq!(bench.session("s").await.metadata.finalizers, [PROCESS_FINALIZER]);
    bench.put(Kind::Turn, "s-1", turn("s")).await.unwrap();
    assert_eq!(bench.turn("s-1").await.metadata.owner_references.len(), 1);
}

#[tokio::test]
async fn a_patch_that_removes_the_finalizer_or_the_owner_is_refused() {
    let bench = bench_with_session().await;
    bench.create(Kind::Turn, turn("s")).await.unwrap();
    for value in [json!(null), json!([])] {
        let patch = json!({"metadata": {"finalizers": value}});
        assert_eq!(fields(bench.patch(Kind::Session, "s", patch).await), ["metadata.finalizers"]);
        let patch = json!({"metadata": {"ownerReferences": value}});
        let refused = bench.patch(Kind::Turn, "s-1", patch).await;
        assert_eq!(fields(refused), ["metadata.ownerReferences"]);
    }
}

#[tokio::test]
async fn status_in_a_patch_is_ignored() {
    let bench = bench_with_session().await;
    let patch = json!({"status": {"phase": "Running"}});
    let patched = bench.patch(Kind::Session, "s", patch).await.unwrap();
    assert_eq!(patched.outcome, Outcome::Unchanged);
}

#[tokio::test]
async fn a_stale_resource_version_is_a_conflict() {
    let bench = bench_with_session().await;
    let stale = bench.session("s").await.metadata.resource_version;
    bench.patch(Kind::Session, "s", json!({"spec": {"title": "t"}})).await.unwrap();
    let patch = json!({"metadata": {"resourceVersion": stale}, "spec": {"title": "u"}});
    assert_eq!(code(bench.patch(Kind::Session, "s", patch.clone()).await), 409);
    let mut body = session("s");
    body["metadata"]["resourceVersion"] = json!(stale);
    assert_eq!(code(bench.put(Kind::Session, "s", body).await), 409);
}

#[tokio::test]
async fn a_present_resource_version_passes() {
    let bench = bench_with_session().await;
    let version = bench.session("s").await.metadata.resource_version;
    let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"title": "t"}});
    bench.patch(Kind::Session, "s", patch).await.unwrap();
    assert_eq!(bench.session("s").await.spec.title.as_deref(), Some("t"));
}

#[tokio::test]
async fn another_uid_is_a_conflict() {
    let bench = bench_with_session().await;
    let patch = json!({"metadata": {"uid": "another"}, "spec": {"title": "t"}});
    assert_eq!(code(bench.patch(Kind::Session, "s", patch).await), 409);
}

#[tokio::test]
async fn an_immutable_field_is_refused_by_name() {
    let bench = bench_with_session().await;
    let refused = bench.patch(Kind::Session, "s", json!({"spec": {"cwd": "/other"}})).await;
    assert_eq!(fields(refused), ["spec.cwd"]);
}

#[tokio::test]
async fn desired_state_does_not_go_back() {
    let bench = bench_with_session().await;
    let cancel = json!({"spec": {"desiredState": "cancelled"}});
    bench.patch(Kind::Session, "s", cancel).await.unwrap();
    let refused = bench.patch(Kind::Session, "s", json!({"spec": {"desiredState": "running"}}));
    assert_eq!(fields(refused.await), ["spec.desiredState"]);
}

#[tokio::test]
async fn desired_state_deleted_is_a_deletion() {
    let bench = bench_with_session().await;
    let patch = json!({"spec": {"desiredState": "deleted"}});
    bench.patch(Kind::Session, "s", patch).await.unwrap();
    assert!(bench.session("s").await.metadata.is_deleting());
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let bench = Bench::new();
    assert_eq!(code(bench.patch(Kind::Session, "s", json!({})).await), 404);
    assert_eq!(code(bench.put(Kind::Session, "s", session("s")).await), 404);
}

#[tokio::test]
async fn a_name_cannot_be_changed() {
    let bench = bench_with_session().await;
    let patch = json!({"metadata": {"name": "t"}});
    assert_eq!(code(bench.patch(Kind::Session, "s", patch).await), 400);
}

#[tokio::test]
async fn a_merge_patch_that_is_no_object_is_a_bad_request() {
    let bench = bench_with_session().await;
    assert_eq!(code(bench.patch(Kind::Session, "s", json!([])).await), 400);
}

#[tokio::test]
async fn a_dry_patch_shows_the_change_and_writes_nothing() {
    let bench = bench_with_session().await;
    let before = bench.head().await;
    let patch = json!({"spec": {"title": "t"}});
    let patched = bench.patch_with(Kind::Session, "s", patch, &DRY).await.unwrap();
    assert_eq!(patched.object["spec"]["title"], "t");
    assert_eq!(bench.head().await, before);
}

#[tokio::test]
async fn a_patch_without_a_precondition_survives_concurrent_writers() {
    let bench = bench_with_session().await;
    let patches = (0..8).map(|number| {
        let labels = json!({format!("l{number}"): "x"});
        bench.patch(Kind::Session, "s", json!({"metadata": {"labels": labels}}))
    });
    for patched in futures::future::join_all(patches).await {
        patched.unwrap();
    }
    assert_eq!(bench.session("s").await.metadata.labels.len(), 8);
}
