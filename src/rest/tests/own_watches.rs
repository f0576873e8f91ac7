//! What a caller's watch tells: what is its own, and nothing of the rest, also not its end.

use super::tokens::{SESSIONS, api, family};
use super::*;

impl Fixture {
    pub(super) async fn watch_by(&self, token: &str, path: &str) -> Lines {
        let authorization = format!("Bearer {token}");
        let headers = [("authorization", authorization.as_str())];
        Lines::of(self.open("GET", path, &headers, Body::empty()).await)
    }

    async fn own_uid(&self) -> Uid {
        let own = self.get("/namespaces/default/sessions/me").await.json();
        Uid::new(own["metadata"]["uid"].as_str().unwrap())
    }

    fn child_of(parent: &Uid, name: &str, labels: Value) -> Value {
        let mut child = session(name, "Idle", labels);
        child["status"]["lineage"] = json!({"parent": parent, "root": parent});
        child
    }

    /// A child as the daemon makes it, found from its parent.
    async fn add_child(&self, parent: &Uid, name: &str, labels: Value) -> Rev {
        let key = keys::child_of(parent, &Uid::new(uid(name)));
        let ops = vec![Op::Put { key, value: Bytes::from(session_key(name).to_string()) }];
        self.store.commit(Commit { guards: Vec::new(), ops }).await.unwrap();
        self.put(Kind::Session, Self::child_of(parent, name, labels)).await
    }

    /// A session goes, with what it is found by.
    async fn drop_session(&self, parent: &Uid, name: &str) {
        let found_by = [keys::child_of(parent, &uid(name).into()), keys::uid(&uid(name).into())];
        for key in found_by.into_iter().chain([session_key(name)]) {
            self.remove(key).await;
        }
    }
}

fn turn_key(name: &str) -> Key {
    keys::record(Kind::Turn, &"default".into(), &name.into())
}

async fn expect(lines: &mut Lines, kind: &str, name: &str) -> Value {
    let (got_kind, got_name, object) = lines.event().await;
    assert_eq!((got_kind.as_str(), got_name.as_str()), (kind, name), "{object:#}");
    object
}

#[tokio::test]
async fn a_callers_watch_tells_of_itself_and_its_children_and_of_nobody_else() {
    let (api, token) = family().await;
    let me = api.own_uid().await;
    let mut lines = api.watch_by(&token, &format!("{SESSIONS}?watch=1")).await;
    expect(&mut lines, "ADDED", "child").await;
    expect(&mut lines, "ADDED", "me").await;
    api.put(Kind::Session, session("other", "Running", json!({}))).await;
    api.add_child(&me, "late", json!({})).await;
    expect(&mut lines, "ADDED", "late").await;
    api.add_child(&Uid::new(uid("other")), "nephew", json!({})).await;
    api.drop_session(&Uid::new(uid("other")), "nephew").await;
    api.remove(session_key("other")).await;
    let mut running = Fixture::child_of(&me, "child", json!({}));
    running["status"]["phase"] = json!("Running");
    api.put(Kind::Session, running).await;
    assert_eq!(expect(&mut lines, "MODIFIED", "child").await["status"]["phase"], "Running");
    api.drop_session(&me, "late").await;
    expect(&mut lines, "DELETED", "late").await;
}

#[tokio::test]
async fn a_callers_watch_of_turns_follows_children_that_come_and_go() {
    let (api, token) = family().await;
    let me = api.own_uid().await;
    let mut lines = api.watch_by(&token, &format!("{BASE}/turns?watch=1")).await;
    expect(&mut lines, "ADDED", "mine").await;
    api.put(Kind::Turn, turn("theirs", "other", "Running")).await;
    api.put(Kind::Turn, turn("theirs-2", "other", "Running")).await;
    api.remove(turn_key("theirs")).await;
    api.add_child(&me, "late", json!({})).await;
    api.put(Kind::Turn, turn("new", "late", "Running")).await;
    expect(&mut lines, "ADDED", "new").await;
    api.put(Kind::Turn, turn("new", "late", "Completed")).await;
    expect(&mut lines, "MODIFIED", "new").await;
    // The watch is read late: the child is gone by then, and the end of its turn is told all the same.
    api.remove(turn_key("new")).await;
    api.drop_session(&me, "late").await;
    api.remove(turn_key("mine")).await;
    expect(&mut lines, "DELETED", "new").await;
    expect(&mut lines, "DELETED", "mine").await;
}

#[tokio::test]
async fn a_child_that_is_let_go_is_told_as_deleted_by_name_alone_and_then_no_more() {
    let (api, token) = family().await;
    let me = api.own_uid().await;
    let mut sessions = api.watch_by(&token, &format!("{SESSIONS}?watch=1")).await;
    let mut turns = api.watch_by(&token, &format!("{BASE}/turns?watch=1")).await;
    expect(&mut sessions, "ADDED", "child").await;
    expect(&mut sessions, "ADDED", "me").await;
    expect(&mut turns, "ADDED", "mine").await;
    api.remove(keys::child_of(&me, &uid("child").into())).await;
    let mut free = session("child", "Running", json!({"whose": "nobody's"}));
    free["spec"]["prompt"] = json!("what others ask of it");
    for _ in 0..2 {
        api.put(Kind::Session, free.clone()).await;
        api.put(Kind::Turn, turn("mine", "child", "Running")).await;
    }
    api.put(Kind::Turn, turn("later", "child", "Running")).await;
    let told = expect(&mut sessions, "DELETED", "child").await;
    assert_eq!(told["metadata"]["uid"], uid("child"));
    assert!(told.get("spec").is_none() && told.get("status").is_none(), "{told:#}");
    assert!(told["metadata"].get("labels").is_none(), "{told:#}");
    let told = expect(&mut turns, "DELETED", "mine").await;
    assert!(told.get("spec").is_none(), "{told:#}");
    // Nothing more of either, though both go on.
    api.remove(session_key("child")).await;
    api.remove(turn_key("mine")).await;
    api.add_child(&me, "next", json!({})).await;
    api.put(Kind::Turn, turn("next-1", "next", "Running")).await;
    expect(&mut sessions, "ADDED", "next").await;
    expect(&mut turns, "ADDED", "next-1").await;
}

#[tokio::test]
async fn a_callers_watch_goes_on_from_its_list_as_an_operators_does() {
    let (api, token) = family().await;
    let me = api.own_uid().await;
    api.add_child(&me, "red", json!({"c": "red"})).await;
    api.put(Kind::Session, session("stranger", "Idle", json!({"c": "red"}))).await;
    let list = api.by(&token, "GET", &format!("{SESSIONS}?labelSelector=c%3Dred")).await.json();
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    let rev = list["metadata"]["resourceVersion"].as_str().unwrap();
    // Before the watch begins: a stranger leaves the selection, another goes, and so does a child.
    api.put(Kind::Session, session("stranger", "Idle", json!({}))).await;
    api.put(Kind::Session, session("brief", "Idle", json!({"c": "red"}))).await;
    api.remove(session_key("brief")).await;
    api.put(Kind::Session, Fixture::child_of(&me, "red", json!({"c": "blue"}))).await;
    let query = format!("labelSelector=c%3Dred&resourceVersion={rev}");
    let mut lines = api.watch_by(&token, &format!("{SESSIONS}?watch=1&{query}")).await;
    expect(&mut lines, "DELETED", "red").await;
    let head = api.add_child(&me, "rose", json!({"c": "red"})).await;
    let rose = expect(&mut lines, "ADDED", "rose").await;
    assert_eq!(rose["metadata"]["resourceVersion"], head.to_string());

    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=1";
    let mut lines = api.watch_by(&token, &format!("{SESSIONS}?watch=1&{query}")).await;
    for name in ["child", "me", "red", "rose"] {
        expect(&mut lines, "ADDED", name).await;
    }
    let bookmark = expect(&mut lines, "BOOKMARK", "").await;
    assert_eq!(bookmark["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    let ahead = format!("{SESSIONS}?watch=1&resourceVersion=99999");
    assert_eq!(api.by(&token, "GET", &ahead).await.code, 410);
}

#[tokio::test]
async fn a_callers_watch_ends_with_its_token_and_with_its_session() {
    for by_token in [true, false] {
        let api = api().await;
        let made = api.token("me", json!({"cwd": "/srv"})).await.json();
        let token = made["token"].as_str().unwrap();
        let other = api.token("me", json!({})).await.json();
        // A session whose name begins with the caller's is another one.
        api.put(Kind::Session, session("me-too", "Idle", json!({}))).await;
        let mut lines = api.watch_by(token, &format!("{SESSIONS}?watch=1")).await;
        expect(&mut lines, "ADDED", "me").await;
        let revoke = |id: &Value| format!("{SESSIONS}/me/token/{}", id.as_str().unwrap());
        api.by(TOKEN, "DELETE", &revoke(&other["id"])).await;
        expect(&mut lines, "MODIFIED", "me").await;
        api.remove(session_key("me-too")).await;
        if by_token {
            api.by(TOKEN, "DELETE", &revoke(&made["id"])).await;
        } else {
            api.remove(session_key("me")).await;
        }
        assert_eq!(lines.next().await, None);
    }
}

#[tokio::test]
async fn a_callers_watch_with_a_new_token_goes_on_from_before_the_token_was_made() {
    let api = api().await;
    let former = api.token("me", json!({"cwd": "/srv"})).await.json();
    let list = api.by(TOKEN, "GET", SESSIONS).await.json();
    let rev = list["metadata"]["resourceVersion"].as_str().unwrap();
    let labels = json!({"metadata": {"labels": {"a": "b"}}}).to_string();
    let media = [("content-type", "application/merge-patch+json")];
    let path = format!("{SESSIONS}/me");
    assert_eq!(api.send("PATCH", &path, &media, labels).await.code, 200);
    let made = api.token("me", json!({})).await.json();
    let id = |token: &Value| format!("{path}/token/{}", token["id"].as_str().unwrap());
    assert_eq!(api.by(TOKEN, "DELETE", &id(&former)).await.code, 200);
    let query = format!("{SESSIONS}?watch=1&resourceVersion={rev}");
    let mut lines = api.watch_by(made["token"].as_str().unwrap(), &query).await;
    // The labels, the new token, the end of the former one.
    for _ in 0..3 {
        expect(&mut lines, "MODIFIED", "me").await;
    }
    let me = api.own_uid().await;
    api.add_child(&me, "late", json!({})).await;
    expect(&mut lines, "ADDED", "late").await;
    assert_eq!(api.by(TOKEN, "DELETE", &id(&made)).await.code, 200);
    assert_eq!(lines.next().await, None);

    // Nor is the end of a former session of that name its own.
    let rev = api.store.head().await.unwrap();
    api.remove(session_key("me")).await;
    let made = api.token("me", json!({"cwd": "/srv"})).await.json();
    let query = format!("{SESSIONS}?watch=1&resourceVersion={rev}");
    let mut lines = api.watch_by(made["token"].as_str().unwrap(), &query).await;
    expect(&mut lines, "ADDED", "me").await;
}

#[tokio::test]
async fn of_foreign_kinds_and_of_what_cannot_be_read_a_caller_watches_nothing() {
    let (api, token) = family().await;
    for path in ["agents", "workspaces"] {
        let answer = api.by(&token, "GET", &format!("{BASE}/{path}?watch=1")).await;
        assert_eq!(answer.code, 404, "{path}");
    }
    let mut lines = api.watch_by(&token, &format!("{SESSIONS}?watch=1")).await;
    expect(&mut lines, "ADDED", "child").await;
    expect(&mut lines, "ADDED", "me").await;
    let broken = vec![Op::Put { key: session_key("secret-plan"), value: Bytes::from("{") }];
    api.store.commit(Commit { guards: Vec::new(), ops: broken }).await.unwrap();
    let me = api.own_uid().await;
    api.add_child(&me, "next", json!({})).await;
    expect(&mut lines, "ADDED", "next").await;
}
