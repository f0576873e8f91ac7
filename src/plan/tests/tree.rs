//! Parents and children: who ends with whom, and in which order they go.

use std::time::Duration;

use super::*;
use crate::api::{DELETION_PROPAGATION, OwnerReference, Session, Uid};

/// A child with a running turn.
fn child(owner: Owner) -> Model {
    let mut model = running();
    model.owner = owner;
    let session = model.session.as_mut().unwrap();
    session.status.lineage.parent = Some("parent".into());
    let owner = |uid: &str| OwnerReference {
        api_version: "spawnlet.dev/v1alpha1".into(),
        kind: "Session".into(),
        name: uid.into(),
        uid: uid.into(),
        controller: None,
        block_owner_deletion: None,
    };
    session.metadata.owner_references = vec![owner("parent"), owner("other")];
    model
}

fn session(model: &Model) -> &Session {
    model.session.as_ref().unwrap()
}

/// Runs until the session has finished, and tells its end's reason and code.
#[track_caller]
fn ends(model: &mut Model) -> (String, Option<Code>) {
    for _ in 0..50 {
        model.pass();
        model.agent_acts();
        if let Some(session) = &model.session
            && session.status.finished_at.is_some()
        {
            let end = session.status.end.clone().unwrap();
            return (end.reason, end.code);
        }
        model.elapsed += Duration::from_millis(100);
    }
    panic!("it does not end: {:#?}", model.session);
}

#[test]
fn a_child_of_a_parent_that_is_deleted_or_gone_ends_with_it_and_its_record_goes() {
    for (owner, reason) in [
        (Owner::Deleting, "ParentDeleted"),
        (Owner::Gone, "Orphaned"),
        (Owner::Releasing, "ParentDeleted"),
    ] {
        let mut model = child(owner);
        assert_eq!(ends(&mut model), (reason.into(), Some(Code::ParentSessionDeleted)));
        let turn = &model.turns[0].status;
        assert_eq!(
            (turn.phase, turn.code),
            (TurnPhase::Cancelled, Some(Code::ParentSessionDeleted))
        );
        assert!(session(&model).metadata.is_deleting(), "watchers see it coming");
        model.converge(Duration::from_secs(1));
        assert!(model.session.is_none(), "{owner:?}");
        assert!(model.slots.is_empty());
    }
}

#[test]
fn a_child_that_does_not_stop_with_its_parent_goes_with_it_all_the_same() {
    for (owner, reason) in [(Owner::Deleting, "ParentDeleted"), (Owner::Gone, "Orphaned")] {
        let mut model = child(owner);
        model.session.as_mut().unwrap().spec.auto_stop_on_parent = false;
        assert_eq!(ends(&mut model).0, reason);
    }
}

/// The order of a sweep: no parent, its own ttl, a parent that is not there, one that has ended.
#[test]
fn a_child_whose_ttl_ended_ended_by_that_whatever_its_parent_did_meanwhile() {
    for owner in [Owner::Live, Owner::Stopped, Owner::Gone] {
        let mut model = child(owner);
        let session = model.session.as_mut().unwrap();
        session.spec.ttl = Some(crate::api::Dur::from_millis(1));
        session.metadata.creation_timestamp = Some(crate::api::Time::from_millis(0));
        assert_eq!(ends(&mut model), ("TtlExpired".into(), Some(Code::TtlExpired)), "{owner:?}");
        assert_eq!(model.turns[0].status.phase, TurnPhase::Expired, "{owner:?}");
    }
}

#[test]
fn a_finished_child_goes_with_its_parent_and_keeps_its_end() {
    let mut model = child(Owner::Live);
    model.session.as_mut().unwrap().spec.desired_state = DesiredState::Cancelled;
    assert_eq!(ends(&mut model).0, "Cancelled");
    model.owner = Owner::Deleting;
    model.pass();
    assert!(session(&model).metadata.is_deleting(), "recorded before it goes");
    assert_eq!(session(&model).status.end.as_ref().unwrap().reason, "Cancelled");
    model.converge(Duration::from_secs(1));
    assert!(model.session.is_none());
}

#[test]
fn a_child_that_is_let_go_has_no_parent_and_loses_nothing_else() {
    let mut model = child(Owner::Releasing);
    model.session.as_mut().unwrap().spec.auto_stop_on_parent = false;
    let before = session(&model).clone();
    model.pass();
    let after = session(&model);
    assert_eq!(after.status.lineage.parent, None);
    let owners: Vec<_> = after.metadata.owner_references.iter().map(|o| o.uid.clone()).collect();
    assert_eq!(owners, [Uid::from("other")]);
    assert_eq!(after.status.process, before.status.process);
    assert_eq!((after.status.end.as_ref(), after.metadata.is_deleting()), (None, false));
    assert_eq!(model.turns[0].status.phase, TurnPhase::Running);
}

#[test]
fn a_child_stops_with_its_parent_unless_it_is_made_to_stay() {
    let mut model = child(Owner::Stopped);
    assert_eq!(ends(&mut model), ("ParentStopped".into(), Some(Code::TurnCancelled)));
    assert_eq!(model.turns[0].status.cancel.as_ref().unwrap().by, CancelBy::ParentStopped);
    assert!(!session(&model).metadata.is_deleting(), "its record stays");
    let mut model = child(Owner::Stopped);
    model.session.as_mut().unwrap().spec.auto_stop_on_parent = false;
    model.pass();
    assert_eq!(model.turns[0].status.phase, TurnPhase::Running);
}

#[test]
fn an_interrupted_turn_of_a_deleted_parent_is_the_parents_doing() {
    let mut model = child(Owner::Deleting);
    model.crash();
    model.pass();
    assert_eq!(model.turns[0].status.code, Some(Code::ParentSessionDeleted));
}

/// A parent with a running turn, two children, and its deletion asked for.
fn parent(propagation: Option<&str>) -> Model {
    let mut model = running();
    model.behaviour = Behaviour::Endless;
    model.children = Children { count: 2, untold: vec!["c-1".into()] };
    let session = model.session.as_mut().unwrap();
    session.spec.desired_state = DesiredState::Deleted;
    session.metadata.deletion_timestamp = Some(Time::from_millis(EPOCH_MS));
    let propagation = propagation.map(|value| (DELETION_PROPAGATION.to_owned(), value.to_owned()));
    session.metadata.annotations.extend(propagation);
    model
}

/// The session's process.
fn has_process(model: &Model) -> bool {
    session(model).status.process.is_some()
}

#[test]
fn in_the_foreground_children_go_before_the_parents_process_and_its_prompt_ends_at_once() {
    let mut model = parent(None);
    let decided = model.pass().unwrap();
    assert_eq!(decided.wakes, ["c-1".into()], "who does not know yet is woken");
    model.converge(Duration::from_secs(60));
    assert_eq!(model.turns[0].status.phase, TurnPhase::Cancelled);
    assert!(has_process(&model));
    assert_eq!(model.live_mut().unwrap().stop, None, "its process is left in peace");
    model.children = Children { count: 1, untold: Vec::new() };
    model.converge(Duration::from_secs(60));
    assert!(has_process(&model));
    model.children = Children::default();
    model.converge(Duration::from_secs(60));
    assert!(model.session.is_none());
}

#[test]
fn in_the_background_the_parents_process_goes_first_and_its_record_last() {
    let mut model = parent(Some("Background"));
    model.converge(Duration::from_secs(60));
    assert!(!has_process(&model));
    assert_eq!(session(&model).status.finished_at, None, "a child does not know yet");
    model.children.untold.clear();
    model.converge(Duration::from_secs(60));
    assert!(session(&model).status.finished_at.is_some());
    model.children = Children::default();
    model.converge(Duration::from_secs(60));
    assert!(model.session.is_none());
}

#[test]
fn a_process_does_not_outlive_the_daemon_for_its_children() {
    let mut model = parent(None);
    model.is_stopping = true;
    model.converge(Duration::from_secs(60));
    assert!(!has_process(&model));
    assert!(model.session.is_some());
}

#[test]
fn an_agent_that_dies_while_its_children_go_is_not_started_again() {
    let mut model = parent(None);
    model.pass();
    model.live_mut().unwrap().stage = Stage::Empty { status: "exit code 3".into() };
    model.converge(Duration::from_secs(60));
    assert!(!has_process(&model));
    assert_eq!(model.turns[0].status.phase, TurnPhase::Cancelled);
    model.children = Children::default();
    model.converge(Duration::from_secs(60));
    assert!(model.session.is_none());
}

#[test]
fn a_parent_that_stops_is_finished_once_its_children_know() {
    let mut model = parent(None);
    let session = model.session.as_mut().unwrap();
    session.metadata.deletion_timestamp = None;
    session.spec.desired_state = DesiredState::Cancelled;
    model.converge(Duration::from_secs(60));
    assert!(!has_process(&model), "its own process waits for nobody");
    assert_eq!(model.session.as_ref().unwrap().status.finished_at, None);
    assert_eq!(plan(&model.world().unwrap(), model.now()).wakes, ["c-1".into()]);
    model.children.untold.clear();
    model.converge(Duration::from_secs(60));
    assert_eq!(model.session.as_ref().unwrap().status.phase, SessionPhase::Stopped);
    // Its record stays as long as one of them does.
    model.elapsed += Duration::from_secs(8 * 24 * 3600);
    model.converge(Duration::from_secs(60));
    assert!(model.session.is_some());
    model.children = Children::default();
    model.converge(Duration::from_secs(60));
    assert!(model.session.is_none());
}
