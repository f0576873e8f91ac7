//! Questions of agents: recorded, decided, told, and what ends them.

use std::time::Duration;

use super::*;
use crate::api::agent::Permissions;
use crate::api::permission::{Decision, PermissionPhase};
use crate::plan::model::PERMISSION_TIMEOUT;
use crate::plan::permission::{Answer, KEPT_MAX};

/// A model whose agent asks so many questions in its turn.
fn asking(count: u64) -> Model {
    let mut model = running();
    model.behaviour = Behaviour::Endless;
    for request in 1..=count {
        model.ask(request);
    }
    model
}

/// Passes, and what the agent does, until nothing is planned.
fn rest(model: &mut Model) {
    model.converge(Duration::ZERO);
}

fn phases(model: &Model) -> Vec<PermissionPhase> {
    model.requests.iter().map(|request| request.status.phase).collect()
}

#[test]
fn a_question_is_recorded_and_told_of_before_anything_else() {
    let mut model = asking(1);
    rest(&mut model);
    assert_eq!(phases(&model), [PermissionPhase::Pending]);
    let request = &model.requests[0];
    assert_eq!(request.metadata.name.as_str(), "s-1-p1");
    let now = model.now().time;
    assert_eq!(request.status.expires_at, Some(now.plus(PERMISSION_TIMEOUT)));
    let waiting = model.turns[0].status.waiting_for.clone().unwrap();
    assert_eq!((waiting.permission.as_str(), waiting.tool.as_str()), ("s-1-p1", "call-1"));
    assert_eq!(model.session.as_ref().unwrap().status.reason, "WaitingForPermission");
    assert!(model.told.is_empty());
}

#[test]
fn a_decision_is_told_once_and_in_the_plan_that_records_it() {
    for (decision, answer) in [(Decision::Allow, Answer::Allow), (Decision::Deny, Answer::Reject)] {
        let mut model = asking(1);
        rest(&mut model);
        model.requests[0].spec.decision = Some(decision);
        let plan = plan(&model.world().unwrap(), model.now());
        let names: Vec<_> = plan.steps.iter().map(Step::name).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        assert!(names[0].contains("s-1-p1 Answered"), "{names:?}");
        rest(&mut model);
        assert_eq!(model.told, [(1, answer)]);
        assert_eq!(phases(&model), [PermissionPhase::Answered]);
        assert_eq!(model.turns[0].status.waiting_for, None);
        assert_eq!(model.session.as_ref().unwrap().status.reason, "");
    }
}

#[test]
fn an_answer_that_was_recorded_and_not_told_is_told_by_the_next_pass() {
    let mut model = asking(1);
    rest(&mut model);
    model.requests[0].spec.decision = Some(Decision::Allow);
    let plan = plan(&model.world().unwrap(), model.now());
    // The daemon could not carry out more of it.
    model.apply(&plan.steps[0]);
    assert!(model.told.is_empty());
    rest(&mut model);
    assert_eq!(model.told, [(1, Answer::Allow)]);
}

#[test]
fn nobody_decides_in_time_and_the_agent_is_told_no() {
    let mut model = asking(1);
    model.session.as_mut().unwrap().spec.turn_inactivity_timeout = Dur::from_secs(1);
    rest(&mut model);
    model.elapsed += PERMISSION_TIMEOUT - Duration::from_millis(1);
    rest(&mut model);
    assert_eq!(phases(&model), [PermissionPhase::Pending], "no clock of inactivity runs");
    model.elapsed += Duration::from_millis(1);
    rest(&mut model);
    assert_eq!(phases(&model), [PermissionPhase::TimedOut]);
    assert_eq!(model.told, [(1, Answer::Reject)]);
    assert!(model.session.as_ref().unwrap().status.end.is_none());
    // From now on the agent is waited for again.
    model.elapsed += Duration::from_secs(2);
    model.pass();
    let end = model.session.as_ref().unwrap().status.end.clone().unwrap();
    assert_eq!(end.reason, "Inactivity");
}

#[test]
fn whatever_ends_the_turn_cancels_its_questions() {
    let ends: [fn(&mut Model); 6] = [
        |model| model.turns[0].spec.desired_state = TurnDesiredState::Cancelled,
        |model| {
            model.session.as_mut().unwrap().spec.desired_state = DesiredState::Cancelled;
        },
        |model| model.is_stopping = true,
        |model| model.crash(),
        |model| model.live_mut().unwrap().acp.is_eof = true,
        // It takes the question back.
        |model| model.live_mut().unwrap().asks.clear(),
    ];
    for (index, end) in ends.into_iter().enumerate() {
        let mut model = asking(3);
        rest(&mut model);
        end(&mut model);
        // Too late.
        model.requests[0].spec.decision = Some(Decision::Allow);
        rest(&mut model);
        assert_eq!(phases(&model), [PermissionPhase::Cancelled; 3], "{index}");
        assert!(model.told.iter().all(|(_, answer)| *answer == Answer::Cancel), "{index}");
        assert_eq!(model.turns[0].status.waiting_for, None);
    }
}

#[test]
fn a_question_of_a_turn_that_is_over_gets_no_record() {
    let mut model = running();
    model.turns[0].status.phase = TurnPhase::Completed;
    model.live_mut().unwrap().prompt.as_mut().unwrap().end =
        Some(PromptEnd { answer: Ok(StopReason::EndTurn), is_after_cancel: false, usage: None });
    model.ask(1);
    rest(&mut model);
    assert!(model.requests.is_empty());
    assert_eq!(model.told, [(1, Answer::Cancel)]);
}

#[test]
fn as_many_as_an_agent_may_ask_are_recorded_told_and_kept_within_bounds() {
    let mut model = asking(64);
    rest(&mut model);
    assert_eq!(model.requests.len(), 64);
    let names: std::collections::BTreeSet<_> =
        model.requests.iter().map(|request| &request.metadata.name).collect();
    assert_eq!(names.len(), 64);
    for request in &mut model.requests {
        request.spec.decision = Some(Decision::Deny);
    }
    rest(&mut model);
    assert_eq!(model.told.len(), 64);
    for request in 65..=70 {
        model.ask(request);
    }
    rest(&mut model);
    assert_eq!(model.requests.len(), KEPT_MAX, "the oldest went");
    assert_eq!(model.requests.last().unwrap().metadata.name.as_str(), "s-1-p70");
    model.session.as_mut().unwrap().spec.desired_state = DesiredState::Deleted;
    model.session.as_mut().unwrap().metadata.deletion_timestamp = Some(model.now().time);
    model.converge(Duration::from_secs(60));
    assert!(model.session.is_none() && model.requests.is_empty());
}

#[test]
fn no_commit_of_questions_is_larger_than_the_store_takes() {
    let mut model = asking(64);
    for _ in 0..200 {
        let decided = model.pass().unwrap();
        for step in &decided.steps {
            if let Step::Record(change) = step {
                let is_new = |one: &&crate::api::PermissionRequest| one.metadata.uid.is_empty();
                let new = change.requests.iter().filter(is_new).count();
                let ops =
                    5 * new + 2 * (change.requests.len() - new) + 6 * change.remove_requests.len();
                assert!(ops <= 20, "{ops} operations");
            }
        }
        let answers = decided.steps.iter().filter(|step| step.name().starts_with("Answer"));
        assert!(answers.count() <= 16);
        if decided.steps.is_empty() {
            break;
        }
    }
    assert_eq!(phases(&model), [PermissionPhase::Pending; 64]);
}

#[test]
fn a_crash_or_a_decision_between_any_two_passes_tells_each_question_once_and_as_recorded() {
    for crash_at in 0..8 {
        for decide_at in 0..8 {
            let mut model = asking(2);
            for pass in 0..20 {
                if pass == decide_at {
                    for request in &mut model.requests {
                        if request.status.phase.is_pending() {
                            request.spec.decision = Some(Decision::Allow);
                        }
                    }
                }
                if pass == crash_at {
                    model.crash();
                }
                model.pass();
                model.agent_acts();
                model.elapsed += Duration::from_secs(1);
            }
            assert!(phases(&model).iter().all(|phase| !phase.is_pending()));
            let mut told = model.told.clone();
            told.dedup_by_key(|(request, _)| *request);
            assert_eq!(told, model.told, "told twice: {crash_at} {decide_at}");
            let allowed = model.told.iter().filter(|(_, answer)| *answer == Answer::Allow).count();
            let answered = |phase: &&PermissionPhase| **phase == PermissionPhase::Answered;
            assert_eq!(phases(&model).iter().filter(answered).count(), allowed);
        }
    }
}

#[test]
fn a_session_tells_when_nothing_shows_that_its_policy_has_any_hold_on_its_agent() {
    let shown = |policy, has_asked, mode: Option<&str>| {
        let mut model = running();
        model.behaviour = Behaviour::Endless;
        model.session.as_mut().unwrap().spec.permissions = Some(policy);
        let live = model.live_mut().unwrap();
        live.has_asked = has_asked;
        live.acp.options.modes = mode
            .map(|mode| crate::options::Modes { current: mode.to_owned(), available: Vec::new() });
        rest(&mut model);
        let session = model.session.unwrap();
        session.status.conditions.get("PermissionsNotEnforced").map(|one| one.reason.clone())
    };
    let never = Some("NeverAsked".to_owned());
    for policy in [Permissions::DenyAll, Permissions::ApproveReads, Permissions::Ask] {
        assert_eq!(shown(policy, false, None), never, "{policy:?}");
        assert_eq!(shown(policy, false, Some("yolo")), never, "{policy:?}");
        assert_eq!(shown(policy, true, None), None, "{policy:?}");
        assert_eq!(shown(policy, false, Some("Ask")), None, "{policy:?}");
    }
    assert_eq!(shown(Permissions::ApproveAll, false, None), None);
}
