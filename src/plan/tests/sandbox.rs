//! What a session shows of its agent's sandbox.

use super::*;
use crate::api::agent::{Permissions, SandboxMode};
use crate::plan::world::Confinement;

fn shown(model: &Model, kind: &str) -> Option<(String, String)> {
    let conditions = &model.session.as_ref().unwrap().status.conditions;
    let found = conditions.get(kind)?;
    Some((format!("{:?} {}", found.status, found.reason), found.message.clone()))
}

fn ask(model: &mut Model, mode: SandboxMode) {
    let Finding::Found(agent) = &mut model.agent else { panic!("the model has an agent") };
    agent.spec.sandbox.mode = mode;
}

fn rest(model: &mut Model) {
    model.converge(Duration::ZERO);
}

fn with(asked: SandboxMode, has: Option<SandboxMode>, pid: Option<u32>) -> Model {
    let mut model = running();
    model.behaviour = Behaviour::Endless;
    ask(&mut model, asked);
    let live = model.live_mut().unwrap();
    live.sandbox = has.map(|mode| Confinement { mode, abi: 7 });
    live.pid = pid;
    rest(&mut model);
    model
}

#[test]
fn a_session_tells_the_sandbox_of_the_process_that_runs_and_not_of_the_record() {
    let told = |asked, has, pid| shown(&with(asked, has, pid), "SandboxApplied");
    let (off, read_only) = (SandboxMode::Off, SandboxMode::ReadOnly);
    assert_eq!(told(off, None, Some(9)), None);
    let (status, message) = told(read_only, Some(read_only), Some(9)).unwrap();
    assert_eq!(status, "True Landlock");
    assert!(message.starts_with("read-only: ") && message.contains("ABI 7"), "{message}");
    // Not before it is executed.
    assert_eq!(told(read_only, Some(read_only), None), None);
    // The record changed since.
    let (status, message) = told(off, Some(SandboxMode::WorkspaceWrite), Some(9)).unwrap();
    assert_eq!(status, "True Landlock");
    assert!(message.starts_with("workspace-write: "), "{message}");
    assert_eq!(told(read_only, None, Some(9)).unwrap().0, "False StartedWithout");
}

#[test]
fn an_agent_that_never_asks_is_said_to_be_held_by_its_sandbox_alone() {
    let told = |has: Option<SandboxMode>| {
        let mut model = with(has.unwrap_or_default(), has, Some(9));
        model.session.as_mut().unwrap().spec.permissions = Some(Permissions::DenyAll);
        rest(&mut model);
        shown(&model, "PermissionsNotEnforced").unwrap()
    };
    let (status, message) = told(None);
    assert_eq!(status, "True NeverAsked");
    assert!(message.ends_with("nothing binds it but its own caution"), "{message}");
    let (status, message) = told(Some(SandboxMode::ReadOnly));
    assert_eq!(status, "True NeverAsked");
    assert!(message.ends_with("only the sandbox binds it"), "{message}");
}

#[test]
fn a_start_without_the_sandbox_that_is_asked_for_is_not_tried_again_by_itself() {
    let mut model = failing();
    ask(&mut model, SandboxMode::ReadOnly);
    let mut launches = 0;
    for _ in 0..10 {
        let steps = plan(&model.world().unwrap(), model.now()).steps;
        for step in steps.iter().filter(|step| !matches!(step, Step::Launch { .. })) {
            model.apply(step);
        }
        if steps.iter().any(|step| matches!(step, Step::Launch { .. })) {
            launches += 1;
            let (reason, message) = ("SandboxUnavailable", "no Landlock".to_owned());
            model.process = Process::NotStarted { failure: StartFailure { reason, message } };
        }
    }
    assert_eq!(launches, 1);
    let (status, message) = shown(&model, "SandboxApplied").unwrap();
    assert_eq!((status.as_str(), message.as_str()), ("False SandboxUnavailable", "no Landlock"));
    let restarts = &model.session.as_ref().unwrap().status.restarts;
    assert_eq!(restarts.next_attempt_at, None, "{restarts:?}");
}
