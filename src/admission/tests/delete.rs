use super::*;
use crate::api::DELETION_PROPAGATION;
use crate::api::turn::TurnDesiredState;

#[tokio::test]
async fn a_session_is_asked_to_end_and_stays_until_its_finalizer_goes() {
    let bench = bench_with_session().await;
    let deleted = bench.delete(Kind::Session, "s").await.unwrap();
    assert!(!deleted.is_gone);
    let session = bench.session("s").await;
    assert!(session.spec.wants_removal());
    assert!(session.metadata.is_deleting());
    assert_eq!(session.metadata.generation, 2);
}

#[tokio::test]
async fn a_second_deletion_keeps_the_time_of_the_first() {
    let bench = bench_with_session().await;
    bench.delete(Kind::Session, "s").await.unwrap();
    let first = bench.session("s").await;
    bench.clock.advance(std::time::Duration::from_secs(1));
    bench.delete(Kind::Session, "s").await.unwrap();
    assert_eq!(bench.session("s").await, first);
}

#[tokio::test]
async fn a_final_turn_goes_at_once() {
    let bench = bench_with_session().await;
    bench.create(Kind::Turn, turn("s")).await.unwrap();
    bench.end_turn("s-1").await;
    assert!(bench.delete(Kind::Turn, "s-1").await.unwrap().is_gone);
    assert_eq!(bench.turns().await, []);
}

#[tokio::test]
async fn an_open_turn_is_cancelled_first() {
    let bench = bench_with_session().await;
    bench.create(Kind::Turn, turn("s")).await.unwrap();
    assert!(!bench.delete(Kind::Turn, "s-1").await.unwrap().is_gone);
    let turn = bench.turn("s-1").await;
    assert_eq!(turn.spec.desired_state, TurnDesiredState::Cancelled);
    assert!(turn.metadata.is_deleting());
}

#[tokio::test]
async fn an_open_turn_whose_session_is_gone_goes_at_once() {
    let bench = bench_with_session().await;
    bench.create(Kind::Turn, turn("s")).await.unwrap();
    bench.remove::<SessionSpec>("s").await;
    assert!(bench.delete(Kind::Turn, "s-1").await.unwrap().is_gone);
}

#[tokio::test]
async fn an_agent_goes_at_once() {
    let bench = Bench::new();
    bench.create(Kind::Agent, agent("a")).await.unwrap();
    assert!(bench.delete(Kind::Agent, "a").await.unwrap().is_gone);
    assert_eq!(code(bench.delete(Kind::Agent, "a").await), 404);
}

#[tokio::test]
async fn preconditions_hold_a_deletion_back() {
    let bench = bench_with_session().await;
    let uid = DeleteOptions { uid: Some("another".into()), ..DeleteOptions::default() };
    assert_eq!(code(bench.delete_with(Kind::Session, "s", &uid).await), 409);
    let version =
        DeleteOptions { resource_version: Some("0".to_owned()), ..DeleteOptions::default() };
    assert_eq!(code(bench.delete_with(Kind::Session, "s", &version).await), 409);
}

#[tokio::test]
async fn a_dry_deletion_writes_nothing() {
    let bench = bench_with_session().await;
    let before = bench.head().await;
    let dry = DeleteOptions { dry_run: true, ..DeleteOptions::default() };
    let deleted = bench.delete_with(Kind::Session, "s", &dry).await.unwrap();
    assert!(deleted.object["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(bench.head().await, before);
}

#[tokio::test]
async fn the_order_of_a_deletion_is_written_down() {
    let bench = bench_with_session().await;
    let background =
        DeleteOptions { propagation: Propagation::Background, ..DeleteOptions::default() };
    bench.delete_with(Kind::Session, "s", &background).await.unwrap();
    let annotations = bench.session("s").await.metadata.annotations;
    assert_eq!(annotations[DELETION_PROPAGATION], "Background");
}

#[tokio::test]
async fn children_that_stop_with_their_parent_are_not_orphaned() {
    let bench = bench_with_session().await;
    bench.create(Kind::Session, session("child")).await.unwrap();
    let (parent, child) = (bench.session("s").await, bench.session("child").await);
    bench.write(&child, |child| child.status.lineage.parent = Some(parent.metadata.uid)).await;
    let orphan = DeleteOptions { propagation: Propagation::Orphan, ..DeleteOptions::default() };
    let refused = bench.delete_with(Kind::Session, "s", &orphan).await;
    assert_eq!(fields(refused), ["propagationPolicy"]);
}

#[tokio::test]
async fn the_default_namespace_cannot_go() {
    let bench = Bench::new();
    bench.admission.ensure_default_namespace().await.unwrap();
    assert_eq!(code(bench.delete(Kind::Namespace, "default").await), 403);
}

/// A bench with a namespace `n` that holds a session and a workspace.
async fn bench_with_namespace() -> Bench {
    let bench = Bench::new();
    bench.create(Kind::Namespace, json!({"metadata": {"name": "n"}})).await.unwrap();
    let mut body = session("s");
    body["metadata"]["namespace"] = json!("n");
    bench.create(Kind::Session, body).await.unwrap();
    let workspace = json!({"metadata": {"name": "w", "namespace": "n"},
        "spec": {"folders": [{"id": "main", "path": "/srv"}]}});
    bench.create(Kind::Workspace, workspace).await.unwrap();
    bench
}

async fn session_in_n(bench: &Bench) -> Option<Session> {
    bench.admission.records().get::<SessionSpec>(&"n".into(), &"s".into()).await.unwrap()
}

#[tokio::test]
async fn a_namespace_takes_what_is_in_it_along_and_goes_last() {
    let bench = bench_with_namespace().await;
    assert!(!bench.delete(Kind::Namespace, "n").await.unwrap().is_gone);
    let session = session_in_n(&bench).await.unwrap();
    assert!(session.metadata.is_deleting());
    let workspaces = bench.admission.records().list::<WorkspaceSpec>(None, &Page::ALL).await;
    assert_eq!(workspaces.unwrap().items, []);
    bench.admission.finish_namespaces().await.unwrap();
    assert!(bench.find::<NamespaceSpec>("n").await.is_some());
    Txn::new().remove(&session).commit(&*bench.store).await.unwrap();
    bench.admission.finish_namespaces().await.unwrap();
    assert!(bench.find::<NamespaceSpec>("n").await.is_none());
}

#[tokio::test]
async fn an_empty_namespace_goes_at_once() {
    let bench = Bench::new();
    bench.create(Kind::Namespace, json!({"metadata": {"name": "n"}})).await.unwrap();
    assert!(bench.delete(Kind::Namespace, "n").await.unwrap().is_gone);
}

#[tokio::test]
async fn nothing_new_comes_into_a_namespace_that_ends() {
    let bench = bench_with_namespace().await;
    bench.delete(Kind::Namespace, "n").await.unwrap();
    let mut body = session("t");
    body["metadata"]["namespace"] = json!("n");
    assert_eq!(code(bench.create(Kind::Session, body).await), 403);
}

#[tokio::test]
async fn the_namespace_watch_finishes_a_namespace_when_its_last_session_goes() {
    use crate::store::Store as _;
    let bench = bench_with_namespace().await;
    bench.delete(Kind::Namespace, "n").await.unwrap();
    let session = session_in_n(&bench).await.unwrap();
    let shutdown = tokio_util::sync::CancellationToken::new();
    let prefix = crate::store::keys::kind_prefix(Kind::Namespace);
    let mut changes = bench.store.watch(&prefix, bench.store.head().await.unwrap()).await.unwrap();
    let ending = async {
        Txn::new().remove(&session).commit(&*bench.store).await.unwrap();
        let change = changes.next().await;
        shutdown.cancel();
        change
    };
    let (watched, change) = tokio::join!(bench.admission.watch_namespaces(&shutdown), ending);
    watched.unwrap();
    assert!(matches!(change, Some(crate::store::Change::Delete { .. })));
}
