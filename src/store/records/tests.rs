use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::api::session::{DesiredState, EndOutcome, ProcessRecord, ProcessState, SessionEnd};
use crate::api::turn::{Delivery, TurnPhase};
use crate::api::{
    Agent, AgentSpec, Condition, ConditionStatus, MANAGED_BY, ObjectMeta, OwnerReference,
    SessionSpec, Time, TurnSpec,
};
use crate::store::memory::MemoryStore;
use crate::store::{Append, BlobId, Blobs, COMMIT_OPS_MAX, Guard, Store, Stream};

const NOW: Time = Time::from_millis(1_000);

fn meta(name: &str, namespace: &str) -> ObjectMeta {
    ObjectMeta {
        name: name.into(),
        namespace: namespace.into(),
        uid: Uid::from(format!("uid-{name}")),
        generation: 1,
        ..ObjectMeta::default()
    }
}

/// A session that was looked at and is idle.
fn session(name: &str) -> Session {
    let spec = SessionSpec { agent: "stub".to_owned(), ..SessionSpec::default() };
    let mut session = Session::new(meta(name, "default"), spec);
    session.status.observed_generation = 1;
    session
}

fn turn(name: &str, session: &Session) -> Turn {
    let mut turn = Turn::new(meta(name, "default"), TurnSpec::default());
    turn.spec.session = session.metadata.name.clone();
    turn.metadata.owner_references.push(OwnerReference {
        api_version: session.api_version.clone(),
        kind: session.kind.clone(),
        name: session.metadata.name.clone(),
        uid: session.metadata.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    });
    turn
}

fn records() -> Records {
    Records::new(Arc::new(MemoryStore::new()))
}

async fn create<S: Spec>(records: &Records, object: &Object<S>) -> Object<S> {
    Txn::new().create(object).commit(&**records.store()).await.unwrap();
    records.at(&key_of(object)).await.unwrap().unwrap()
}

fn index_keys<S: Spec>(object: &Object<S>) -> Vec<String> {
    index(object).into_iter().map(|(key, _)| key.as_str().to_owned()).collect()
}

fn is_awake(session: &Session) -> bool {
    index_keys(session).iter().any(|key| key.starts_with(keys::AWAKE))
}

fn condition(kind: &str, status: ConditionStatus) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status,
        reason: "Test".to_owned(),
        message: String::new(),
        observed_generation: 1,
        last_transition_time: NOW,
    }
}

fn set(session: &mut Session, kind: &str, status: ConditionStatus) {
    let condition = condition(kind, status);
    session.status.conditions.set(kind, status, &condition.reason, "", 1, NOW);
}

#[test]
fn what_names_its_manifest_file_is_found_without_reading_all() {
    let managed = |object: &Session| index_keys(object).contains(&"/managed/uid-s".to_owned());
    let mut session = session("s");
    assert!(!managed(&session));
    session.metadata.annotations.insert(MANAGED_BY.to_owned(), "/m/a.yaml".to_owned());
    assert!(managed(&session));
}

#[tokio::test]
async fn a_read_record_has_the_revision_of_its_last_write() {
    let records = records();
    let read = create(&records, &session("a")).await;
    assert_eq!(read.metadata.resource_version, "1");
    let value = records.get_value(Kind::Session, &"default".into(), &"a".into()).await.unwrap();
    assert_eq!(value.unwrap()["metadata"]["resourceVersion"], "1");
}

#[tokio::test]
async fn the_stored_value_holds_no_revision() {
    let records = records();
    let read = create(&records, &session("a")).await;
    let mut changed = read.clone();
    changed.spec.title = Some("b".to_owned());
    Txn::new().update(&read, &changed).commit(&**records.store()).await.unwrap();
    let stored = records.store().get(&key_of(&read)).await.unwrap().unwrap();
    let stored: Value = serde_json::from_slice(&stored.value).unwrap();
    assert_eq!(stored["metadata"].get("resourceVersion"), None);
    assert_eq!(stored["spec"]["title"], "b");
}

#[tokio::test]
async fn a_field_of_a_later_version_is_ignored_on_reading() {
    let key = keys::record(Kind::Agent, &"".into(), &"a".into());
    let value = br#"{"apiVersion":"x","kind":"Agent","metadata":{"name":"a","new":1},
        "spec":{"argv":["a"],"new":{}},"status":{"new":[]},"new":true}"#;
    let agent: Agent = decode(&key, value, Rev(7)).unwrap();
    assert_eq!(agent.spec.argv, Some(vec!["a".to_owned()]));
}

#[tokio::test]
async fn a_second_creation_of_a_name_is_a_conflict() {
    let records = records();
    create(&records, &session("a")).await;
    let again = Txn::new().create(&session("a")).commit(&**records.store()).await;
    assert!(again.unwrap_err().is_conflict());
}

#[tokio::test]
async fn an_update_of_what_was_changed_since_is_a_conflict() {
    let records = records();
    let read = create(&records, &session("a")).await;
    Txn::new().update(&read, &read).commit(&**records.store()).await.unwrap();
    let again = Txn::new().update(&read, &read).commit(&**records.store()).await;
    assert!(again.unwrap_err().is_conflict());
}

#[tokio::test]
async fn an_update_of_what_was_never_read_is_refused() {
    let txn = Txn::new().update(&session("a"), &session("a"));
    let refused = txn.commit(&MemoryStore::new()).await;
    assert!(matches!(refused, Err(Error::BadRevision { .. })));
}

#[tokio::test]
async fn an_update_that_changes_no_secondary_key_writes_the_record_alone() {
    let records = records();
    let read = create(&records, &session("a")).await;
    assert_eq!(Txn::new().update(&read, &read).ops(), 1);
}

#[tokio::test]
async fn a_final_turn_leaves_the_open_index_and_stays_in_the_others() {
    let records = records();
    let session = session("s");
    let open = create(&records, &turn("s-1", &session)).await;
    let mut done = open.clone();
    done.status.phase = TurnPhase::Completed;
    Txn::new().update(&open, &done).commit(&**records.store()).await.unwrap();
    assert_eq!(records.open_turns(&session.metadata.uid).await.unwrap(), []);
    assert_eq!(records.turns_of(&session.metadata.uid).await.unwrap().len(), 1);
    assert!(records.by_uid::<TurnSpec>(&done.metadata.uid).await.unwrap().is_some());
}

#[tokio::test]
async fn turns_come_oldest_first_and_of_their_session_alone() {
    let records = records();
    let (one, two) = (session("one"), session("two"));
    for turn in [turn("b", &one), turn("a", &one), turn("c", &two)] {
        create(&records, &turn).await;
    }
    let turns = records.open_turns(&one.metadata.uid).await.unwrap();
    let names: Vec<_> = turns.iter().map(|turn| turn.metadata.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
}

#[tokio::test]
async fn children_are_found_by_their_parent() {
    let records = records();
    let parent = session("parent");
    let mut child = session("child");
    child.status.lineage.parent = Some(parent.metadata.uid.clone());
    create(&records, &child).await;
    let children = records.children_of(&parent.metadata.uid).await.unwrap();
    assert_eq!(children[0].metadata.name.as_str(), "child");
}

#[tokio::test]
async fn removal_takes_every_key_and_blob_of_the_record_along() {
    let store = Arc::new(MemoryStore::new());
    let records = Records::new(store.clone());
    let turn = create(&records, &turn("s-1", &session("s"))).await;
    let blob = BlobId { owner: turn.metadata.uid.clone(), stream: Stream::Response };
    let bytes = Bytes::from_static(b"hello");
    store.append(vec![Append { blob: blob.clone(), offset: 0, bytes }]).await.unwrap();
    Txn::new().remove(&turn).commit(&*store).await.unwrap();
    assert_eq!(store.list("/", None, 0).await.unwrap().0, []);
    assert_eq!(Blobs::len(&*store, &blob).await.unwrap(), 0);
}

/// A turn of the session `s` with an idempotency key, made at [`NOW`].
fn keyed_turn(name: &str) -> Turn {
    let mut turn = turn(name, &session("s"));
    turn.metadata.creation_timestamp = Some(NOW);
    turn.spec.idempotency_key = Some(name.to_owned());
    turn.spec.source.request_sha256 = Some("asked".to_owned());
    turn.status.phase = TurnPhase::Completed;
    turn.status.delivery = Delivery::Sent;
    turn
}

#[tokio::test]
async fn a_key_outlives_its_turn_until_it_is_a_day_old_and_then_leaves_nothing() {
    let records = records();
    let turn = create(&records, &keyed_turn("s-1")).await;
    let key = idempotency_key(&turn).unwrap();
    let look = async |now| records.keyed::<TurnSpec>(&key, now).await.unwrap();
    assert_eq!(look(NOW).await, Keyed::Made(Box::new(turn.clone())));

    Txn::new().retire(&turn, NOW).commit(&**records.store()).await.unwrap();
    let until = NOW.plus(spent::KEPT);
    let spent = Spent {
        uid: "uid-s-1".into(),
        name: "s-1".into(),
        session: "uid-s".into(),
        request_sha256: Some("asked".to_owned()),
        until,
    };
    let last = Time::from_millis(until.as_millis() - 1);
    assert_eq!(look(last).await, Keyed::Spent(spent));
    assert_eq!(records.store().list("/", None, 0).await.unwrap().0.len(), 2);
    assert_eq!(look(until).await, Keyed::Unused);
    assert_eq!(records.store().list("/", None, 0).await.unwrap().0, []);

    let again = create(&records, &keyed_turn("s-1")).await;
    Txn::new().retire(&again, until).commit(&**records.store()).await.unwrap();
    assert_eq!(records.store().list("/", None, 0).await.unwrap().0, []);
}

#[tokio::test]
async fn a_key_goes_with_a_turn_that_nobody_was_given() {
    let records = records();
    let mut turn = keyed_turn("s-1");
    (turn.status.phase, turn.status.delivery) = (TurnPhase::Cancelled, Delivery::NotSent);
    let turn = create(&records, &turn).await;
    Txn::new().retire(&turn, NOW).commit(&**records.store()).await.unwrap();
    assert_eq!(records.store().list("/", None, 0).await.unwrap().0, []);
}

#[tokio::test]
async fn a_key_that_is_freed_leaves_nothing_that_would_free_it_again() {
    let records = records();
    let turn = create(&records, &keyed_turn("s-1")).await;
    Txn::new().retire(&turn, NOW).commit(&**records.store()).await.unwrap();
    let key = idempotency_key(&turn).unwrap();
    let Keyed::Spent(spent) = records.keyed::<TurnSpec>(&key, NOW).await.unwrap() else {
        panic!("it is known")
    };
    records.free_key(&spent).await.unwrap();
    assert_eq!(records.store().list("/", None, 0).await.unwrap().0, []);
    records.free_key(&spent).await.unwrap();
}

#[tokio::test]
async fn keys_past_their_time_go_with_those_that_come_and_others_stay() {
    let records = records();
    let count = async || records.store().list(keys::SPENT, None, 0).await.unwrap().0.len();
    for number in 0..40 {
        let turn = create(&records, &keyed_turn(&format!("s-{number}"))).await;
        Txn::new().retire(&turn, NOW).commit(&**records.store()).await.unwrap();
    }
    let mut late = keyed_turn("late");
    late.metadata.creation_timestamp = Some(NOW.plus(spent::KEPT));
    let late = create(&records, &late).await;
    Txn::new().retire(&late, NOW).commit(&**records.store()).await.unwrap();
    let other = idempotency_key(&keyed_turn("other")).unwrap();
    let look = async |now| records.keyed::<TurnSpec>(&other, now).await.unwrap();
    assert_eq!((look(NOW).await, count().await), (Keyed::Unused, 41));
    let over = NOW.plus(spent::KEPT);
    assert_eq!((look(over).await, count().await), (Keyed::Unused, 9));
    assert_eq!((look(over).await, count().await), (Keyed::Unused, 1));
    assert_eq!((look(over).await, count().await), (Keyed::Unused, 1));
    let kept = records.keyed::<TurnSpec>(&idempotency_key(&late).unwrap(), over).await.unwrap();
    assert!(matches!(kept, Keyed::Spent(_)), "{kept:?}");
}

#[tokio::test]
async fn several_records_change_in_one_commit_or_none() {
    let records = records();
    let a = create(&records, &session("a")).await;
    let txn = Txn::new().update(&a, &a).create(&session("b")).create(&session("a"));
    assert!(txn.commit(&**records.store()).await.unwrap_err().is_conflict());
    assert!(records.get::<SessionSpec>(&"default".into(), &"b".into()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_transaction_over_the_limit_is_refused_before_the_store_is_asked() {
    let mut txn = Txn::new();
    for number in 0..=COMMIT_OPS_MAX {
        txn = txn.put_raw(Key::new(format!("/x/{number}")), "");
    }
    let refused = txn.commit(&MemoryStore::new()).await;
    assert_eq!(refused, Err(Error::TooManyOps { ops: COMMIT_OPS_MAX + 1 }));
}

#[tokio::test]
async fn a_guard_on_another_key_holds_the_commit_back() {
    let records = records();
    let held = Txn::new()
        .guard(Guard::RevIs(keys::quota_global(), Rev(1)))
        .put_raw(Key::new("/x"), "1")
        .delete_raw(Key::new("/y"));
    assert!(held.commit(&**records.store()).await.unwrap_err().is_conflict());
}

#[tokio::test]
async fn pages_of_a_list_are_of_one_namespace_and_know_whether_more_follow() {
    let records = records();
    for name in ["a", "b", "c"] {
        create(&records, &session(name)).await;
    }
    create(&records, &Session::new(meta("d", "default2"), SessionSpec::default())).await;
    let page = Page { after: None, limit: 2 };
    let first = records.list::<SessionSpec>(Some(&"default".into()), &page).await.unwrap();
    assert_eq!((first.items.len(), first.rev), (2, Rev(4)));
    let page = Page { after: first.next, limit: 2 };
    let second = records.list::<SessionSpec>(Some(&"default".into()), &page).await.unwrap();
    assert_eq!((second.items.len(), second.next), (1, None));
    let all = records.list_values(Kind::Session, None, &Page::ALL).await.unwrap();
    assert_eq!(all.items.len(), 4);
}

#[tokio::test]
async fn a_uid_finds_no_record_of_another_kind() {
    let records = records();
    let agent = create(&records, &Agent::new(meta("a", ""), AgentSpec::default())).await;
    assert!(records.by_uid::<SessionSpec>(&agent.metadata.uid).await.unwrap().is_none());
    assert!(records.by_uid::<AgentSpec>(&agent.metadata.uid).await.unwrap().is_some());
}

#[tokio::test]
async fn an_object_that_two_keys_point_at_is_found_once() {
    let records = records();
    let store = records.store();
    let txn = Txn::new().put_raw(Key::new("/awake/1"), "/s").put_raw(Key::new("/awake/2"), "/s");
    txn.commit(&**store).await.unwrap();
    assert_eq!(records.pointed_at(keys::AWAKE).await.unwrap(), [Key::new("/s")]);
}

#[test]
fn an_idle_session_that_was_looked_at_is_at_rest() {
    assert!(!is_awake(&session("a")));
}

#[test]
fn a_session_with_something_to_do_is_awake() {
    let process = ProcessRecord {
        state: ProcessState::Launching,
        attempt: 1,
        boot_id: String::new(),
        instance: String::new(),
        shim_pid: None,
        pid: None,
        start_time: None,
        pidfd_inode: None,
        cgroup: None,
    };
    let changes: [fn(&mut Session, ProcessRecord); 8] = [
        |session, process| session.status.process = Some(process),
        |session, _| session.status.active_turn = Some("t".into()),
        |session, _| session.status.queued_turns = 1,
        |session, _| session.metadata.deletion_timestamp = Some(NOW),
        |session, _| session.metadata.generation = 2,
        |session, _| session.spec.desired_state = DesiredState::Cancelled,
        |session, _| set(session, "AgentResolved", ConditionStatus::False),
        |session, _| session.status.end = Some(ended()),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut session = session("a");
        change(&mut session, process.clone());
        assert!(is_awake(&session), "change {number}");
    }
}

fn ended() -> SessionEnd {
    SessionEnd {
        outcome: EndOutcome::Stopped,
        reason: "Cancelled".to_owned(),
        message: String::new(),
        code: None,
        at: NOW,
    }
}

#[test]
fn a_session_whose_end_is_complete_is_at_rest() {
    let mut session = session("a");
    session.spec.desired_state = DesiredState::Cancelled;
    session.status.end = Some(ended());
    session.status.finished_at = Some(NOW);
    assert!(!is_awake(&session));
}

#[test]
fn a_deadline_is_indexed_by_its_time() {
    let mut session = session("a");
    session.status.next_deadline = Some(NOW);
    assert!(index_keys(&session).contains(&"/deadline/000000000001000/uid-a".to_owned()));
}

#[tokio::test]
async fn the_newest_end_is_that_of_the_sessions_that_are_there() {
    let records = records();
    assert_eq!(records.newest_end().await.unwrap(), None);
    let mut session = session("a");
    session.status.finished_at = Some(NOW);
    let keys = index(&session).into_iter();
    let txn = keys.fold(Txn::new(), |txn, (key, value)| txn.put_raw(key, value));
    txn.commit(records.store().as_ref()).await.unwrap();
    assert_eq!(records.newest_end().await.unwrap(), Some(NOW));
}

#[test]
fn a_session_is_found_by_what_it_waits_for_only_while_it_waits() {
    let mut session = session("a");
    session.spec.workspace = Some("w".to_owned());
    set(&mut session, "AgentResolved", ConditionStatus::False);
    set(&mut session, "ScopeResolved", ConditionStatus::False);
    let keys = index_keys(&session);
    assert!(keys.contains(&"/waiting/agent/_/stub/uid-a".to_owned()));
    assert!(keys.contains(&"/waiting/workspace/default/w/uid-a".to_owned()));
    set(&mut session, "AgentResolved", ConditionStatus::True);
    set(&mut session, "ScopeResolved", ConditionStatus::Unknown);
    assert!(!index_keys(&session).iter().any(|key| key.starts_with("/waiting/")));
}
