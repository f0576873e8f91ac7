//! A caller's prompts: the order of the checks, what a child inherits, the bounds, and ends.

use std::path::PathBuf;

use super::*;
use crate::admission::spawn::{Made, PromptRequest, Prompted, SpawnRefusal};
use crate::admission::token::TokenRequest;
use crate::api::agent::Permissions;
use crate::api::session::DesiredState;
use crate::api::turn::{Admission as Mode, CancelBy, Delivery, SourceKind, TurnDesiredState};
use crate::api::{Agent, Code, Uid};
use crate::plan::capacity;
use crate::ports::Inputs;

/// A machine on which everything is there, but for what is named.
#[derive(Default)]
struct Machine {
    gone: Vec<&'static str>,
}

impl Inputs for Machine {
    fn executable(&self, agent: &Agent) -> Result<Option<PathBuf>, String> {
        match self.gone.iter().find(|gone| agent.metadata.name.as_str() == **gone) {
            Some(gone) => Err(format!("{gone} is not there")),
            None => Ok(Some("/bin/agent".into())),
        }
    }

    fn directories(&self, cwd: &str, additional: &[String]) -> Result<Vec<String>, String> {
        let all = std::iter::once(cwd).chain(additional.iter().map(String::as_str));
        match all.clone().find(|path| self.gone.contains(path)) {
            Some(path) => Err(format!("{path} is not there")),
            None => Ok(all.map(str::to_owned).collect()),
        }
    }
}

pub(super) fn ask() -> PromptRequest {
    PromptRequest {
        agent: "stub".to_owned(),
        prompt: "hello".to_owned(),
        background: true,
        ..PromptRequest::default()
    }
}

pub(super) fn on(session: &Session) -> PromptRequest {
    PromptRequest { session: Some(session.metadata.uid.clone()), ..ask() }
}

/// A bench with the agent `stub`, the workspace `w` and a way to callers.
pub(super) async fn bench(limits: Limits) -> Bench {
    let bench = Bench::with(limits);
    bench.create(Kind::Agent, agent("stub")).await.unwrap();
    let folders = json!([{"id": "one", "path": "/one"}, {"id": "two", "path": "/two"}]);
    let workspace = json!({"metadata": {"name": "w"}, "spec": {"folders": folders}});
    bench.create(Kind::Workspace, workspace).await.unwrap();
    bench
}

/// Bounds that only what a test is about can meet.
pub(super) fn wide() -> Limits {
    Limits {
        turns: capacity::Limits { max_active_turns: 1000, max_active_turns_per_parent: 1000 },
        children_per_root: 1000,
        spawns_per_minute_per_root: 1000,
        ..Limits::default()
    }
}

pub(super) async fn caller(bench: &Bench, name: &str) -> Caller {
    let request = TokenRequest { workspace: Some("w".to_owned()), ..TokenRequest::default() };
    let made = bench.admission.create_token(&"default".into(), &name.into(), &request).await;
    let token = made.map(|made| made.token).unwrap();
    bench.admission.bearer(&token).await.unwrap().unwrap().caller
}

pub(super) async fn prompt(
    bench: &Bench,
    caller: &Caller,
    request: PromptRequest,
) -> Result<Prompted, SpawnRefusal> {
    bench.admission.prompt(caller, request, &Machine::default()).await
}

pub(super) async fn made(bench: &Bench, caller: &Caller, request: PromptRequest) -> Made {
    match prompt(bench, caller, request).await.unwrap() {
        Prompted::Turn(made) => *made,
        other => panic!("{other:?}"),
    }
}

async fn refused(bench: &Bench, caller: &Caller, request: PromptRequest) -> Code {
    let head = bench.head().await;
    let refusal = prompt(bench, caller, request).await.unwrap_err();
    assert_eq!(bench.head().await, head, "{refusal}: something was written");
    refusal.code
}

/// Ends a turn as the controller does: its slot is given back in the same commit.
pub(super) async fn finish(bench: &Bench, made: &Made) {
    let turn = bench.turn(made.turn.metadata.name.as_str()).await;
    let session = bench.session(made.session.metadata.name.as_str()).await;
    let (mut ended, mut idle) = (turn.clone(), session.clone());
    ended.status.phase = TurnPhase::Completed;
    (idle.status.queued_turns, idle.status.prompted) = (0, true);
    let mut slots = bench.admission.slots.lock().await;
    let free = [turn.metadata.uid.clone()];
    let holders = slots.after(None, &free, None).unwrap();
    let txn = slots.write(Txn::new().update(&turn, &ended).update(&session, &idle), &holders);
    slots.begin();
    let rev = txn.commit(&*bench.store).await.unwrap();
    slots.written(holders, rev);
}

async fn holders(bench: &Bench) -> Vec<Uid> {
    bench.admission.slots.lock().await.holders().iter().map(|one| one.turn.clone()).collect()
}

#[tokio::test]
async fn a_child_is_made_with_its_turn_and_its_slot_in_one_commit() {
    let bench = bench(wide()).await;
    let caller = caller(&bench, "me").await;
    let head = bench.head().await;
    let made = made(&bench, &caller, ask()).await;
    assert_eq!(bench.head().await, head + 1, "one commit");
    let (session, turn) = (&made.session, &made.turn);
    assert!(made.is_new_session && !made.is_repeat);
    assert_eq!(session.status.lineage.parent, Some(caller.session.clone()));
    assert_eq!(session.status.lineage.root, Some(caller.session.clone()));
    assert_eq!(session.status.lineage.depth, 1);
    assert_eq!(session.metadata.owner_references[0].uid, caller.session);
    assert_eq!(session.spec.cwd.as_deref(), Some("/one"));
    assert_eq!(session.spec.additional_directories, ["/two"]);
    assert_eq!(session.spec.ttl, Some("24h".parse().unwrap()));
    assert_eq!(turn.spec.admission, Mode::Immediate);
    assert_eq!(turn.spec.source.kind, SourceKind::Spawn);
    assert_eq!(turn.metadata.owner_references[0].uid, session.metadata.uid);
    assert_eq!(holders(&bench).await, std::slice::from_ref(&turn.metadata.uid));
    let stored = bench.session(session.metadata.name.as_str()).await;
    assert_eq!((stored.status.queued_turns, stored.status.turns_made), (1, 1));
    assert_eq!(bench.admission.children(&caller).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_folder_is_one_of_the_scope_as_it_was_when_the_caller_was_made() {
    let bench = bench(wide()).await;
    let caller = caller(&bench, "me").await;
    let later = json!({"spec": {"folders": [{"id": "new", "path": "/new"}]}});
    bench.patch(Kind::Workspace, "w", later).await.unwrap();
    let folder = |id: &str| PromptRequest { folder: Some(id.to_owned()), ..ask() };
    let child = made(&bench, &caller, folder("two")).await.session;
    assert_eq!(child.spec.cwd.as_deref(), Some("/two"));
    assert!(child.spec.additional_directories.is_empty());
    assert_eq!(refused(&bench, &caller, folder("new")).await, Code::SessionFolderRemoved);
    let machine = Machine { gone: vec!["/two"] };
    let refusal = bench.admission.prompt(&caller, folder("two"), &machine).await.unwrap_err();
    assert_eq!(refusal.code, Code::SessionFolderPathMissing);
}

#[tokio::test]
async fn what_is_wrong_in_itself_is_named_by_the_tools_field() {
    let bench = bench(wide()).await;
    let caller = caller(&bench, "me").await;
    let known = made(&bench, &caller, ask()).await;
    finish(&bench, &known).await;
    let on = on(&known.session);
    let ttl = Some("1h".parse().unwrap());
    for (field, request) in [
        ("prompt", PromptRequest { prompt: " ".to_owned(), ..ask() }),
        ("prompt", PromptRequest { prompt: "x".repeat(768 * 1024 + 1), ..ask() }),
        ("thought_level", PromptRequest { thought_level: Some(String::new()), ..ask() }),
        ("folderId", PromptRequest { folder: Some("one".to_owned()), ..on.clone() }),
        ("ttl", PromptRequest { ttl, ..on.clone() }),
        ("ttl", PromptRequest { ttl: Some("25h".parse().unwrap()), ..ask() }),
        ("ttl", PromptRequest { ttl: Some("0s".parse().unwrap()), ..ask() }),
        ("agentId", PromptRequest { agent: "other".to_owned(), ..on }),
    ] {
        let refusal = prompt(&bench, &caller, request).await.unwrap_err();
        assert_eq!(refusal.code, Code::SpawnInvalidRequest, "{refusal}");
        assert!(refusal.message.starts_with(field), "{refusal}");
    }
}

#[tokio::test]
async fn only_what_can_be_used_is_listed_and_taken() {
    let bench = bench(wide()).await;
    let caller = caller(&bench, "me").await;
    let off = json!({"metadata": {"name": "off"}, "spec": {"argv": ["a"], "enabled": false}});
    bench.create(Kind::Agent, off).await.unwrap();
    bench.create(Kind::Agent, agent("gone")).await.unwrap();
    let machine = Machine { gone: vec!["gone"] };
    let listed = bench.admission.available_agents(&caller, &machine).await.unwrap();
    assert_eq!(listed.iter().map(|a| a.metadata.name.as_str()).collect::<Vec<_>>(), ["stub"]);
    for name in ["off", "gone", "nobody", "No Name"] {
        let request = PromptRequest { agent: name.to_owned(), ..ask() };
        let refusal = bench.admission.prompt(&caller, request, &machine).await.unwrap_err();
        assert_eq!(refusal.code, Code::SpawnAgentNotFound, "{name}");
    }
}

#[tokio::test]
async fn a_session_of_another_caller_is_as_one_that_is_not_there() {
    let bench = bench(wide()).await;
    let (mine, other) = (caller(&bench, "me").await, caller(&bench, "other").await);
    let child = made(&bench, &mine, ask()).await;
    let missing = PromptRequest { session: Some("nobody".into()), ..ask() };
    assert_eq!(
        prompt(&bench, &other, on(&child.session)).await,
        not_found(&child.session.metadata.uid)
    );
    assert_eq!(prompt(&bench, &mine, missing).await, not_found(&"nobody".into()));
    let head = bench.head().await;
    let uid = &child.session.metadata.uid;
    assert_eq!(bench.admission.child(&other, uid).await, Ok(None));
    assert_eq!(bench.admission.cancel_child(&other, uid).await, Ok(false));
    assert_eq!(bench.admission.withdraw(&other, &child).await, Ok(false));
    // The caller itself, and a turn, are no children.
    assert_eq!(bench.admission.child(&mine, &mine.session).await, Ok(None));
    assert_eq!(bench.admission.child(&mine, &child.turn.metadata.uid).await, Ok(None));
    assert_eq!(bench.head().await, head, "nothing was written");
}

#[tokio::test]
async fn one_turn_at_a_time_then_the_session_goes_on() {
    let bench = bench(wide()).await;
    let caller = caller(&bench, "me").await;
    let first = made(&bench, &caller, ask()).await;
    let busy = prompt(&bench, &caller, on(&first.session)).await.unwrap();
    assert!(matches!(busy, Prompted::Busy(_)), "{busy:?}");
    finish(&bench, &first).await;
    let second = made(&bench, &caller, on(&first.session)).await;
    assert!(!second.is_new_session);
    assert_eq!(second.session.metadata.uid, first.session.metadata.uid);
    finish(&bench, &second).await;
    bench
        .patch(
            Kind::Session,
            first.session.metadata.name.as_str(),
            json!({"spec": {"desiredState": "cancelled"}}),
        )
        .await
        .unwrap();
    let expired = prompt(&bench, &caller, on(&first.session)).await.unwrap();
    assert!(matches!(expired, Prompted::Expired(_)), "{expired:?}");
}

#[tokio::test]
async fn the_same_key_answers_with_the_same_turn_and_another_input_is_a_conflict() {
    let bench = bench(wide()).await;
    let (mine, other) = (caller(&bench, "me").await, caller(&bench, "other").await);
    let keyed = PromptRequest { idempotency_key: Some("k".to_owned()), ..ask() };
    let first = made(&bench, &mine, keyed.clone()).await;
    let head = bench.head().await;
    let again = made(&bench, &mine, keyed.clone()).await;
    assert!(again.is_repeat);
    assert_eq!(again.turn.metadata.uid, first.turn.metadata.uid);
    assert_eq!(bench.head().await, head);
    let changed = PromptRequest { prompt: "other".to_owned(), ..keyed.clone() };
    assert_eq!(refused(&bench, &mine, changed).await, Code::SpawnIdempotencyConflict);
    let foreground = PromptRequest { background: false, ..keyed.clone() };
    assert_eq!(refused(&bench, &mine, foreground).await, Code::SpawnIdempotencyConflict);
    // Keys are each caller's own.
    assert!(!made(&bench, &other, keyed).await.is_repeat);
}

fn not_found(session: &Uid) -> Result<Prompted, SpawnRefusal> {
    Ok(Prompted::NotFound(session.clone()))
}

#[tokio::test]
async fn a_key_is_known_for_a_day_though_its_child_was_deleted() {
    let bench = bench(wide()).await;
    let caller = caller(&bench, "me").await;
    let keyed = PromptRequest { idempotency_key: Some("k".to_owned()), ..ask() };
    let first = made(&bench, &caller, keyed.clone()).await;
    let turn = bench.turn(first.turn.metadata.name.as_str()).await;
    bench.write(&turn, |turn| turn.status.delivery = Delivery::Sent).await;
    finish(&bench, &first).await;
    bench.remove::<TurnSpec>(first.turn.metadata.name.as_str()).await;
    bench.remove::<SessionSpec>(first.session.metadata.name.as_str()).await;
    let gone = not_found(&first.session.metadata.uid);

    bench.clock.advance(Duration::from_secs(24 * 3600 - 1));
    assert_eq!(prompt(&bench, &caller, keyed.clone()).await, gone);
    let changed = PromptRequest { prompt: "other".to_owned(), ..keyed.clone() };
    assert_eq!(refused(&bench, &caller, changed).await, Code::SpawnIdempotencyConflict);

    bench.clock.advance(Duration::from_secs(1));
    let second = made(&bench, &caller, keyed).await;
    assert!(second.is_new_session && !second.is_repeat);
    assert_ne!(second.session.metadata.uid, first.session.metadata.uid);
}

#[tokio::test]
async fn a_large_prompt_is_a_blob_and_goes_when_the_turn_is_refused() {
    let limits = Limits {
        turns: capacity::Limits { max_active_turns: 1, max_active_turns_per_parent: 1 },
        ..wide()
    };
    let bench = bench(limits).await;
    let caller = caller(&bench, "me").await;
    let large = PromptRequest { prompt: "x".repeat(100_000), ..ask() };
    let first = made(&bench, &caller, large.clone()).await;
    assert_eq!(first.turn.spec.prompt_blob.as_ref().map(|blob| blob.bytes), Some(100_000));
    assert_eq!(prompt(&bench, &caller, large).await, Ok(Prompted::Full));
    use crate::store::Blobs as _;
    let known = first.turn.metadata.uid.clone();
    let removed = bench.store.sweep(&|uid: &Uid| *uid == known).await;
    assert_eq!(removed, Ok(0), "the refused prompt was dropped already");
}

#[tokio::test]
async fn every_bound_refuses_with_its_own_code() {
    let few = |per_parent, all| Limits {
        turns: capacity::Limits { max_active_turns: all, max_active_turns_per_parent: per_parent },
        ..wide()
    };
    let bench_a = bench(few(2, 3)).await;
    let (a, b) = (caller(&bench_a, "a").await, caller(&bench_a, "b").await);
    for caller in [&a, &a, &b] {
        made(&bench_a, caller, ask()).await;
    }
    let head = bench_a.head().await;
    assert_eq!(prompt(&bench_a, &a, ask()).await, Ok(Prompted::Full), "per parent");
    assert_eq!(prompt(&bench_a, &b, ask()).await, Ok(Prompted::Full), "in all");
    assert_eq!(bench_a.head().await, head, "nothing was written");

    let bench_b = bench(wide()).await;
    let c = caller(&bench_b, "c").await;
    for _ in 0..5 {
        made(&bench_b, &c, ask()).await;
    }
    assert_eq!(refused(&bench_b, &c, ask()).await, Code::SpawnChildrenExceeded);

    let bench_c = bench(Limits { spawns_per_minute_per_root: 2, ..wide() }).await;
    let d = caller(&bench_c, "d").await;
    let first = made(&bench_c, &d, ask()).await;
    made(&bench_c, &d, ask()).await;
    assert_eq!(refused(&bench_c, &d, ask()).await, Code::SpawnRateExceeded);
    finish(&bench_c, &first).await;
    made(&bench_c, &d, on(&first.session)).await;
}

#[tokio::test]
async fn sessions_that_ended_or_hibernated_leave_their_place_in_the_tree() {
    let bench = bench(Limits { children_per_root: 2, ..wide() }).await;
    let caller = caller(&bench, "me").await;
    let first = made(&bench, &caller, ask()).await;
    made(&bench, &caller, ask()).await;
    assert_eq!(refused(&bench, &caller, ask()).await, Code::SpawnChildrenExceeded);
    // Prompted, no process, no turn: hibernated.
    finish(&bench, &first).await;
    made(&bench, &caller, ask()).await;
    assert_eq!(refused(&bench, &caller, ask()).await, Code::SpawnChildrenExceeded);
}

#[tokio::test]
async fn a_child_may_do_no_more_and_lives_no_longer_than_its_parent() {
    let bench = bench(wide()).await;
    let request = TokenRequest {
        cwd: Some("/srv".to_owned()),
        permissions: Some(Permissions::DenyAll),
        ..TokenRequest::default()
    };
    let token =
        bench.admission.create_token(&"default".into(), &"narrow".into(), &request).await.unwrap();
    let caller = bench.admission.bearer(&token.token).await.unwrap().unwrap().caller;
    let child = made(&bench, &caller, ask()).await.session;
    assert_eq!(child.spec.permissions, Some(Permissions::DenyAll));

    // The child may delegate one level further, and has an hour to live.
    let uid = child.metadata.uid.clone();
    bench
        .write(&bench.session(child.metadata.name.as_str()).await, |child| {
            child.spec.delegation.enabled = true;
            child.spec.delegation.max_depth = 2;
            child.spec.ttl = Some("1h".parse().unwrap());
        })
        .await;
    let child_caller = Caller {
        session: uid.clone(),
        name: child.metadata.name.clone(),
        namespace: "default".into(),
    };
    let ttl = |text: &str| PromptRequest { ttl: Some(text.parse().unwrap()), ..ask() };
    let grandchild = made(&bench, &child_caller, ask()).await.session;
    assert_eq!(grandchild.status.lineage.depth, 2);
    assert_eq!(grandchild.status.lineage.root, Some(caller.session.clone()));
    assert_eq!(grandchild.spec.ttl, Some("1h".parse().unwrap()), "cut to what is left");
    assert_eq!(refused(&bench, &child_caller, ttl("2h")).await, Code::SpawnInvalidRequest);
    bench
        .write(&bench.session(child.metadata.name.as_str()).await, |child| {
            child.spec.delegation.max_depth = 1;
        })
        .await;
    assert_eq!(refused(&bench, &child_caller, ask()).await, Code::SpawnDepthExceeded);
}

#[tokio::test]
async fn a_caller_that_ends_asks_for_nothing_more() {
    let bench = bench(wide()).await;
    let caller = caller(&bench, "me").await;
    let child = made(&bench, &caller, ask()).await;
    bench.delete(Kind::Session, "me").await.unwrap();
    assert_eq!(refused(&bench, &caller, ask()).await, Code::SpawnParentSessionNotFound);
    assert_eq!(
        refused(&bench, &caller, on(&child.session)).await,
        Code::SpawnParentSessionNotFound
    );
    let uid = &child.session.metadata.uid;
    let cancelled = bench.admission.cancel_child(&caller, uid).await.unwrap_err();
    assert_eq!(cancelled.code, Code::SpawnParentSessionNotFound);
}

#[tokio::test]
async fn a_cancel_is_the_parents_and_only_of_an_unfinished_turn() {
    let bench = bench(wide()).await;
    let caller = caller(&bench, "me").await;
    let child = made(&bench, &caller, ask()).await;
    let uid = &child.session.metadata.uid;
    assert_eq!(bench.admission.cancel_child(&caller, uid).await, Ok(true));
    let session = bench.session(child.session.metadata.name.as_str()).await;
    assert_eq!(session.spec.desired_state, DesiredState::Cancelled);
    assert_eq!(session.status.cancel.map(|cancel| cancel.by), Some(CancelBy::Parent));
    assert_eq!(session.metadata.generation, 2);
    let head = bench.head().await;
    assert_eq!(bench.admission.cancel_child(&caller, uid).await, Ok(true), "still unfinished");
    assert_eq!(bench.head().await, head);
    finish(&bench, &child).await;
    assert_eq!(bench.admission.cancel_child(&caller, uid).await, Ok(false));
}

#[tokio::test]
async fn a_call_is_taken_back_only_before_its_prompt_is_on_its_way() {
    let bench = bench(wide()).await;
    let caller = caller(&bench, "me").await;
    let child = made(&bench, &caller, ask()).await;
    assert_eq!(bench.admission.withdraw(&caller, &child).await, Ok(true));
    let turn = bench.turn(child.turn.metadata.name.as_str()).await;
    assert_eq!(turn.spec.desired_state, TurnDesiredState::Cancelled);
    assert_eq!(turn.status.cancel.map(|cancel| cancel.by), Some(CancelBy::CallCancelled));
    let session = bench.session(child.session.metadata.name.as_str()).await;
    assert_eq!(session.spec.desired_state, DesiredState::Deleted);
    assert!(session.metadata.is_deleting());

    let known = made(&bench, &caller, ask()).await;
    finish(&bench, &known).await;
    let second = made(&bench, &caller, on(&known.session)).await;
    let turn = bench.turn(second.turn.metadata.name.as_str()).await;
    bench.write(&turn, |turn| turn.status.delivery = Delivery::Unknown).await;
    let head = bench.head().await;
    assert_eq!(bench.admission.withdraw(&caller, &second).await, Ok(false));
    assert_eq!(bench.head().await, head);
    let turn = bench.turn(second.turn.metadata.name.as_str()).await;
    bench.write(&turn, |turn| turn.status.delivery = Delivery::NotSent).await;
    assert_eq!(bench.admission.withdraw(&caller, &second).await, Ok(true));
    let session = bench.session(known.session.metadata.name.as_str()).await;
    assert_eq!(session.spec.desired_state, DesiredState::Running, "it was there before the call");
}

#[tokio::test]
async fn an_operators_immediate_turn_takes_a_slot_or_is_refused() {
    let limits = Limits {
        turns: capacity::Limits { max_active_turns: 1, max_active_turns_per_parent: 1 },
        ..wide()
    };
    let bench = bench(limits).await;
    for name in ["s", "t"] {
        bench.create(Kind::Session, session(name)).await.unwrap();
    }
    let immediate = |session: &str| json!({"spec": {"session": session, "prompt": "x", "admission": "immediate"}});
    bench.create(Kind::Turn, immediate("s")).await.unwrap();
    assert_eq!(holders(&bench).await.len(), 1);
    assert_eq!(code(bench.create(Kind::Turn, immediate("s")).await), 429, "busy");
    assert_eq!(code(bench.create(Kind::Turn, immediate("t")).await), 429, "no slot");
    bench.create(Kind::Turn, turn("t")).await.unwrap();
    let own = json!({"spec": {"session": "t", "prompt": "x", "source": {"kind": "spawn"}}});
    assert_eq!(fields(bench.create(Kind::Turn, own).await), ["spec.source"]);
}

#[tokio::test]
async fn a_parent_of_an_operators_session_is_there_and_bounds_its_permissions() {
    let bench = bench(wide()).await;
    let child = |permissions: Value| {
        json!({"metadata": {"name": "c"}, "spec": {"agent": "stub", "cwd": "/srv", "parent": "p",
            "permissions": permissions}})
    };
    assert_eq!(fields(bench.create(Kind::Session, child(json!(null))).await), ["spec.parent"]);
    let parent = json!({"metadata": {"name": "p"}, "spec": {"provider": "external", "cwd": "/srv",
        "permissions": "deny-all"}});
    bench.create(Kind::Session, parent).await.unwrap();
    let wider = bench.create(Kind::Session, child(json!("approve-all"))).await;
    assert_eq!(fields(wider), ["spec.permissions"]);
    bench.create(Kind::Session, child(json!(null))).await.unwrap();
    let made = bench.session("c").await;
    assert_eq!(made.spec.permissions, Some(Permissions::DenyAll));
    assert_eq!(made.status.lineage.depth, 1);
    let parent = bench.session("p").await;
    assert_eq!(made.metadata.owner_references[0].uid, parent.metadata.uid);
}
