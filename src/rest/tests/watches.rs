//! Watches.

use super::*;

async fn watch(api: &Fixture, query: &str) -> Lines {
    let path = format!("{BASE}/namespaces/default/sessions?watch=1{query}");
    Lines::of(api.open("GET", &path, &[], Body::empty()).await)
}

async fn expect(lines: &mut Lines, kind: &str, name: &str) -> Value {
    let (got_kind, got_name, object) = lines.event().await;
    assert_eq!((got_kind.as_str(), got_name.as_str()), (kind, name));
    object
}

#[tokio::test]
async fn a_watch_without_a_revision_tells_everything_first() {
    let api = Fixture::new();
    api.put(Kind::Session, session("a", "Idle", json!({}))).await;
    let mut lines = watch(&api, "&resourceVersion=0").await;
    expect(&mut lines, "ADDED", "a").await;
    api.put(Kind::Session, session("b", "Idle", json!({}))).await;
    api.put(Kind::Session, session("a", "Running", json!({}))).await;
    expect(&mut lines, "ADDED", "b").await;
    let object = expect(&mut lines, "MODIFIED", "a").await;
    assert_eq!(object["metadata"]["resourceVersion"], "3");
    api.remove(session_key("b")).await;
    let object = expect(&mut lines, "DELETED", "b").await;
    assert_eq!(object["metadata"]["resourceVersion"], "4");
}

#[tokio::test]
async fn a_watch_from_a_revision_tells_what_came_after_it_and_sees_no_other_collection() {
    let api = Fixture::new();
    api.put(Kind::Session, session("a", "Idle", json!({}))).await;
    api.put(Kind::Turn, turn("t", "a", "Running")).await;
    api.put(Kind::Session, session("b", "Idle", json!({}))).await;
    let mut lines = watch(&api, "&resourceVersion=1").await;
    expect(&mut lines, "ADDED", "b").await;
}

#[tokio::test]
async fn a_streaming_list_ends_with_its_bookmark() {
    let api = Fixture::new();
    api.put(Kind::Session, session("a", "Idle", json!({}))).await;
    let query = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                 &allowWatchBookmarks=true&timeoutSeconds=300&fieldSelector=metadata.name=a";
    let mut lines = watch(&api, query).await;
    expect(&mut lines, "ADDED", "a").await;
    let object = expect(&mut lines, "BOOKMARK", "").await;
    assert_eq!(object["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(object["metadata"]["resourceVersion"], "1");
    assert_eq!(object["kind"], "Session");
    api.put(Kind::Session, session("ab", "Idle", json!({}))).await;
    api.remove(session_key("a")).await;
    expect(&mut lines, "DELETED", "a").await;
}

#[tokio::test]
async fn a_watch_that_wants_no_initial_events_starts_now() {
    let api = Fixture::new();
    api.put(Kind::Session, session("a", "Idle", json!({}))).await;
    let mut lines = watch(&api, "&sendInitialEvents=false").await;
    api.put(Kind::Session, session("b", "Idle", json!({}))).await;
    expect(&mut lines, "ADDED", "b").await;
}

#[tokio::test]
async fn what_starts_or_ceases_to_match_is_added_or_deleted() {
    let api = Fixture::new();
    api.put(Kind::Session, session("a", "Idle", json!({"k": "1"}))).await;
    api.put(Kind::Session, session("b", "Idle", json!({}))).await;
    let mut lines = watch(&api, "&labelSelector=k%3D1&resourceVersion=2").await;
    api.put(Kind::Session, session("b", "Running", json!({}))).await;
    api.put(Kind::Session, session("b", "Running", json!({"k": "1"}))).await;
    expect(&mut lines, "ADDED", "b").await;
    api.put(Kind::Session, session("a", "Running", json!({"k": "1"}))).await;
    expect(&mut lines, "MODIFIED", "a").await;
    api.put(Kind::Session, session("a", "Running", json!({}))).await;
    expect(&mut lines, "DELETED", "a").await;
    api.remove(session_key("a")).await;
    api.remove(session_key("b")).await;
    expect(&mut lines, "DELETED", "b").await;
}

#[tokio::test]
async fn a_watch_that_starts_late_does_not_lose_who_left_the_selection() {
    let api = Fixture::new();
    api.put(Kind::Session, session("a", "Idle", json!({}))).await;
    api.put(Kind::Session, session("b", "Running", json!({}))).await;
    api.put(Kind::Session, session("a", "Running", json!({}))).await;
    api.put(Kind::Session, session("c", "Running", json!({}))).await;
    // At revision 2, a matched; it has left since.
    let mut lines = watch(&api, "&fieldSelector=status.phase=Idle&resourceVersion=2").await;
    expect(&mut lines, "DELETED", "a").await;
    api.put(Kind::Session, session("c", "Idle", json!({}))).await;
    expect(&mut lines, "ADDED", "c").await;
}

#[tokio::test]
async fn a_watch_that_starts_late_does_not_lose_what_was_deleted_meanwhile() {
    let api = Fixture::new();
    api.put(Kind::Session, session("a", "Idle", json!({}))).await;
    api.put(Kind::Session, session("b", "Running", json!({}))).await;
    // At revision 2, a matched and b did not; both are gone by the time that the watch begins. What
    // came and went in between is told of too.
    api.remove(session_key("a")).await;
    api.remove(session_key("b")).await;
    api.put(Kind::Session, session("c", "Idle", json!({}))).await;
    api.remove(session_key("c")).await;
    let mut lines = watch(&api, "&fieldSelector=status.phase=Idle&resourceVersion=2").await;
    expect(&mut lines, "DELETED", "a").await;
    expect(&mut lines, "ADDED", "c").await;
    expect(&mut lines, "DELETED", "c").await;
}

#[tokio::test]
async fn a_forgotten_revision_ends_in_an_expired_error() {
    let api = Fixture::new();
    for _ in 0..3 {
        api.put(Kind::Session, session("a", "Idle", json!({}))).await;
    }
    api.store.compact(Rev(2)).await.unwrap();
    let mut lines = watch(&api, "&resourceVersion=1").await;
    let object = expect(&mut lines, "ERROR", "").await;
    assert_eq!(object["reason"], "Expired");
    assert_eq!(object["code"], 410);
    assert_eq!(lines.next().await, None);
}

#[tokio::test]
async fn every_event_of_a_table_watch_carries_its_columns() {
    let api = Fixture::new();
    api.put(Kind::Session, session("a", "Idle", json!({}))).await;
    let path = format!("{BASE}/sessions?watch=1");
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let mut lines = Lines::of(api.open("GET", &path, &accept, Body::empty()).await);
    for phase in ["Idle", "Running"] {
        let (_, _, table) = lines.event().await;
        assert_eq!(table["kind"], "Table");
        assert_eq!(table["columnDefinitions"][2]["name"], "Phase");
        assert_eq!(table["rows"][0]["cells"][2], phase);
        api.put(Kind::Session, session("a", "Running", json!({}))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_at_its_timeout_after_a_last_bookmark() {
    let api = Fixture::new();
    api.put(Kind::Session, session("a", "Idle", json!({}))).await;
    let query = "&resourceVersion=1&timeoutSeconds=10&allowWatchBookmarks=true\
                 &fieldSelector=metadata.name=ab";
    let mut lines = watch(&api, query).await;
    api.put(Kind::Session, session("abc", "Idle", json!({}))).await;
    let object = expect(&mut lines, "BOOKMARK", "").await;
    assert_eq!(object["metadata"]["resourceVersion"], "2");
    assert_eq!(lines.next().await, None);
    let mut silent = watch(&api, "&resourceVersion=2&timeoutSeconds=10").await;
    assert_eq!(silent.next().await, None);
}

#[tokio::test]
async fn a_shutdown_ends_every_watch() {
    let api = Fixture::new();
    let mut lines = watch(&api, "&resourceVersion=0").await;
    api.shutdown.cancel();
    assert_eq!(lines.next().await, None);
}
