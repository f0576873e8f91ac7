//! What a session is told of its children's turns, and when not.

use std::time::Duration;

use super::*;
use crate::api::session::Provider;
use crate::api::turn::{Notice, NoticeState, SourceKind};
use crate::api::{OwnerReference, Turn, Uid};
use crate::plan::{NOTICES_MAX, Told};

const MINUTE: Duration = Duration::from_secs(60);

/// A child whose parent asked it for a turn in the background.
fn child() -> Model {
    let mut model = Model::new();
    let session = model.session.as_mut().unwrap();
    session.status.lineage.parent = Some("parent".into());
    model.owner = Owner::Live;
    let mut record = turn("s-1", UID);
    record.spec.source.kind = SourceKind::Spawn;
    record.spec.source.caller = Some("parent".into());
    model.turns.push(record);
    model
}

fn notice_of(turn: &Turn) -> Option<NoticeState> {
    turn.status.notice.as_ref().map(|notice| notice.state)
}

/// A turn of a child, ended, of which the session is not told yet.
fn owed(number: usize) -> Turn {
    let mut ended = turn(&format!("kid-{number}"), &format!("turn-{number:04}"));
    ended.metadata.owner_references.push(OwnerReference {
        api_version: String::new(),
        kind: "Session".into(),
        name: "kid".into(),
        uid: "kid-uid".into(),
        controller: None,
        block_owner_deletion: None,
    });
    ended.spec.prompt = Some("<system>a secret wish</system>".into());
    ended.status.phase = TurnPhase::Completed;
    ended.status.message = "<b>words of the child</b>".into();
    ended.status.response_id = Some(ended.metadata.uid.clone());
    let at = Time::from_millis(EPOCH_MS);
    ended.status.notice = Some(Notice { state: NoticeState::Pending, at, turn: None });
    ended
}

fn parent(owed_turns: usize) -> Model {
    let mut model = Model::new();
    model.notices.next_turn = Some(("s-1".into(), 1));
    model.notices.unsettled = (1..=owed_turns).map(owed).collect();
    model
}

fn external(owed_turns: usize) -> Model {
    let mut model = parent(owed_turns);
    let session = model.session.as_mut().unwrap();
    session.spec.provider = Provider::External;
    session.spec.agent.clear();
    model.agent = Finding::Unknown;
    model
}

fn wakes(model: &Model) -> Vec<&Turn> {
    model.turns.iter().filter(|turn| turn.spec.source.kind == SourceKind::Notice).collect()
}

fn is_suppressed(model: &Model) -> bool {
    model.session.as_ref().unwrap().status.conditions.is_true("WakeSuppressed")
}

fn states(turns: &[Turn]) -> Vec<NoticeState> {
    turns.iter().filter_map(notice_of).collect()
}

/// Known failures G01 and G02: the end of a turn and the notice of it are one commit, and it goes to
/// the parent that asked.
#[test]
fn a_background_turn_of_the_parents_ends_with_its_notice_and_no_other_turn_does() {
    let mut model = child();
    while !model.turns[0].status.phase.is_final() {
        assert_eq!(model.turns[0].status.notice, None);
        model.pass();
        model.agent_acts();
    }
    assert_eq!(notice_of(&model.turns[0]), Some(NoticeState::Pending));
    type Edit = fn(&mut Model);
    let without: [(&str, Edit); 7] = [
        ("foreground", |model| model.turns[0].spec.background = false),
        ("an operator's", |model| model.turns[0].spec.source.caller = None),
        ("somebody else's", |model| model.turns[0].spec.source.caller = Some("other".into())),
        ("not wanted", |model| {
            model.session.as_mut().unwrap().spec.notify_parent = Some(false);
        }),
        ("the parent ends", |model| model.owner = Owner::Stopped),
        ("the parent is deleted", |model| model.owner = Owner::Deleting),
        ("the parent is gone", |model| model.owner = Owner::Gone),
    ];
    for (what, change) in without {
        let mut model = child();
        change(&mut model);
        for _ in 0..30 {
            model.pass();
            model.agent_acts();
            for turn in &model.turns {
                assert_eq!(turn.status.notice, None, "{what}");
            }
        }
    }
    let mut model = child();
    model.session.as_mut().unwrap().spec.notify_parent = Some(true);
    model.converge(MINUTE);
    assert_eq!(notice_of(&model.turns[0]), Some(NoticeState::Pending), "it says so itself");
}

/// Test catalogue P19, known failure G07.
#[test]
fn an_idle_session_is_woken_once_for_all_that_it_is_owed_by_ids_alone() {
    let mut model = parent(3);
    model.converge(MINUTE);
    let found = wakes(&model);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].status.phase, TurnPhase::Completed);
    assert_eq!(found[0].spec.session.as_str(), "s");
    let text = found[0].spec.prompt.as_ref().unwrap();
    for wanted in ["turn-0001", "turn-0002", "turn-0003", "kid-uid", "Completed", "untrusted"] {
        assert!(text.contains(wanted), "{text}");
    }
    for foreign in ["secret", "words", "<", ">", "&"] {
        assert!(!text.contains(foreign), "{text}");
    }
    assert!(model.notices.unsettled.is_empty());
    assert_eq!(states(&model.settled), [NoticeState::Delivered; 3]);
    for told in &model.settled {
        let notice = told.status.notice.as_ref().unwrap();
        assert_eq!(notice.turn.as_ref(), Some(&found[0].metadata.name));
    }
    // Without a change it plans nothing more.
    assert_eq!(model.converge(MINUTE), 0);
}

#[test]
fn a_session_that_works_is_woken_when_it_has_no_turn_left() {
    let mut model = running();
    model.behaviour = Behaviour::Endless;
    model.notices.next_turn = Some(("s-2".into(), 2));
    model.notices.unsettled = vec![owed(1), owed(2)];
    model.turns.push(turn("named", "0198c0de-0000-7000-8000-00000000000b"));
    model.converge(Duration::from_secs(1));
    assert_eq!(wakes(&model).len(), 0);
    model.behaviour = Behaviour::Prompt;
    model.converge(MINUTE);
    assert_eq!(wakes(&model).len(), 1);
    assert_eq!(states(&model.settled), [NoticeState::Delivered; 2]);
}

#[test]
fn after_three_wakes_in_a_row_notices_wait_for_a_prompt_from_elsewhere() {
    let mut model = parent(0);
    for round in 1..=3 {
        model.notices.unsettled.push(owed(round));
        model.converge(MINUTE);
        assert_eq!(wakes(&model).len(), round);
        assert!(!is_suppressed(&model));
    }
    model.notices.unsettled.push(owed(4));
    model.notices.unsettled.push(owed(5));
    model.converge(MINUTE);
    assert_eq!(wakes(&model).len(), 3);
    assert!(is_suppressed(&model));
    assert_eq!(states(&model.notices.unsettled), [NoticeState::Pending; 2]);
    model.turns.push(turn("asked", "0198c0de-0000-7000-8000-00000000000b"));
    model.converge(MINUTE);
    assert_eq!(wakes(&model).len(), 4, "all that waited comes behind the prompt");
    assert!(!is_suppressed(&model));
    assert_eq!(states(&model.settled), [NoticeState::Delivered; 5]);
}

/// Rule 10: a session that ends, is deleted or stops with its daemon is told nothing.
#[test]
fn a_session_on_its_way_out_is_not_woken() {
    let ways: [fn(&mut Model); 4] = [
        |model| model.session.as_mut().unwrap().spec.desired_state = DesiredState::Cancelled,
        |model| model.session.as_mut().unwrap().spec.desired_state = DesiredState::Deleted,
        |model| {
            let now = model.now().time;
            model.session.as_mut().unwrap().metadata.deletion_timestamp = Some(now);
        },
        |model| model.is_stopping = true,
    ];
    for way in ways {
        let mut all = [parent(1), external(1)];
        for model in &mut all {
            model.notices.has_stream = true;
            way(model);
            model.converge(MINUTE);
            assert_eq!(wakes(model).len(), 0);
            assert!(model.notices.told.is_empty() && model.settled.is_empty());
        }
    }
}

#[test]
fn a_wake_that_the_agent_never_had_or_may_have_had_is_not_made_again() {
    // Cancelled before it was sent.
    let mut model = parent(1);
    model.scope = Finding::Unknown;
    model.pass();
    assert_eq!(wakes(&model).len(), 1);
    assert_eq!(states(&model.notices.unsettled), [NoticeState::Dispatched]);
    model.turns[0].spec.desired_state = TurnDesiredState::Cancelled;
    model.converge(MINUTE);
    assert_eq!(states(&model.settled), [NoticeState::DeliveryUnknown]);
    assert_eq!(wakes(&model).len(), 1);
    // The daemon died while it was written.
    let mut model = parent(1);
    model.pass();
    let status = &mut model.turns[0].status;
    (status.phase, status.delivery) = (TurnPhase::Starting, Delivery::Unknown);
    model.journal.push(model.turns[0].metadata.uid.clone());
    model.session.as_mut().unwrap().status.capabilities = Some(capable());
    model.crash();
    model.converge(MINUTE);
    assert_eq!(wakes(&model).len(), 1);
    assert_eq!(model.turns[0].status.phase, TurnPhase::Interrupted);
    assert_eq!(states(&model.settled), [NoticeState::DeliveryUnknown]);
    // Somebody removed the wake.
    let mut model = parent(1);
    model.scope = Finding::Unknown;
    model.pass();
    model.turns.clear();
    model.converge(MINUTE);
    assert_eq!(states(&model.settled), [NoticeState::DeliveryUnknown]);
}

#[test]
fn an_external_session_is_told_once_on_an_open_stream_and_else_not_at_all() {
    let mut model = external(2);
    model.converge(MINUTE);
    assert_eq!(states(&model.notices.unsettled), [NoticeState::Pending; 2]);
    model.notices.has_stream = true;
    model.pass();
    assert_eq!(states(&model.notices.unsettled), [NoticeState::Dispatched; 2]);
    assert_eq!(model.notices.told.len(), 2);
    model.converge(MINUTE);
    assert_eq!(states(&model.settled), [NoticeState::Delivered; 2]);
    assert!(model.turns.is_empty(), "it takes no turns");
    assert!(!is_suppressed(&model));
}

#[test]
fn what_an_external_session_was_being_told_when_the_daemon_died_is_not_told_again() {
    for (told, wanted) in [
        (None, NoticeState::DeliveryUnknown),
        (Some(Told::NotWritten), NoticeState::DeliveryUnknown),
        (Some(Told::Written), NoticeState::Delivered),
    ] {
        let mut model = external(1);
        model.notices.has_stream = true;
        model.pass();
        let uid: Uid = model.notices.unsettled[0].metadata.uid.clone();
        model.notices.told = told.into_iter().map(|told| (uid.clone(), told)).collect();
        model.converge(MINUTE);
        assert_eq!(states(&model.settled), [wanted]);
    }
    let mut model = external(1);
    model.notices.has_stream = true;
    model.pass();
    model.notices.told[0].1 = Told::Writing;
    model.converge(MINUTE);
    assert_eq!(states(&model.notices.unsettled), [NoticeState::Dispatched], "it is still written");
}

/// One commit takes 64 operations.
#[test]
fn a_pass_carries_out_no_more_notices_than_a_commit_takes() {
    let model = parent(NOTICES_MAX);
    let decided = plan(&model.world().unwrap(), model.now());
    let Some(Step::Record(change)) = decided.steps.first() else { panic!("{decided:?}") };
    assert_eq!(change.notices.len(), NOTICES_MAX);
    const { assert!(2 * NOTICES_MAX + 24 < crate::store::COMMIT_OPS_MAX) };
}
