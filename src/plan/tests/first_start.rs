//! A session that is there for one start of its agent.

use super::*;
use crate::api::FIRST_START;
use crate::api::session::SessionEnd;

fn first_start(behaviour: Behaviour) -> Model {
    let mut model = Model::new();
    model.behaviour = behaviour;
    let annotations = &mut model.session.as_mut().unwrap().metadata.annotations;
    annotations.insert(FIRST_START.to_owned(), "true".to_owned());
    model
}

fn end(model: &Model) -> SessionEnd {
    model.session.as_ref().unwrap().status.end.clone().unwrap()
}

/// Passes until nothing is planned, or a pass planned what is told; tells the launches.
fn go_on(model: &mut Model, until: impl Fn(&Step) -> bool) -> usize {
    let mut launches = 0;
    for _ in 0..50 {
        let steps = plan(&model.world().unwrap(), model.now()).steps;
        launches += steps.iter().filter(|step| matches!(step, Step::Launch { .. })).count();
        if steps.is_empty() || steps.iter().any(&until) {
            break;
        }
        steps.iter().for_each(|step| model.apply(step));
    }
    launches
}

#[test]
fn a_first_start_launches_once_opens_tells_the_agent_and_ends_with_an_empty_tree() {
    let mut model = first_start(Behaviour::Prompt);
    // A start that was told of a moment ago is told of again: it was asked for.
    let Finding::Found(agent) = &mut model.agent else { panic!("the model has an agent") };
    let told = crate::api::agent::LastStart {
        at: Time::from_millis(EPOCH_MS - 1),
        took: Dur::from_secs(9),
    };
    agent.status.last_start = Some(told);
    model.converge(Duration::from_secs(10));
    let Finding::Found(agent) = &model.agent else { panic!("the model has an agent") };
    assert_eq!(agent.status.version.as_deref(), Some("1.2"));
    assert_eq!(agent.status.last_start.as_ref().unwrap().took, Dur::ZERO);
    let end = end(&model);
    assert_eq!((end.outcome, end.reason.as_str()), (EndOutcome::Stopped, "Started"));
    let status = &model.session.as_ref().unwrap().status;
    assert!(status.finished_at.is_some() && status.process.is_none() && !status.prompted);
    assert!(matches!(model.process, Process::Absent));
    assert!(
        model.sent.is_empty() && model.slots.is_empty(),
        "a start without a turn takes no slot"
    );
}

#[test]
fn a_first_start_that_hangs_ends_after_its_time_with_the_stage_and_is_not_tried_again() {
    let mut model = first_start(Behaviour::Deaf);
    assert_eq!(go_on(&mut model, |_| false), 1);
    assert!(model.session.as_ref().unwrap().status.end.is_none());
    assert_eq!(model.session.as_ref().unwrap().status.phase, SessionPhase::Starting);
    model.elapsed = Duration::from_secs(60);
    assert_eq!(go_on(&mut model, |_| false), 0);
    let end = end(&model);
    assert_eq!((end.outcome, end.reason.as_str()), (EndOutcome::Failed, "StartupFailure"));
    assert!(end.message.contains("session/new"), "{}", end.message);
    let status = &model.session.as_ref().unwrap().status;
    assert_eq!(status.restarts.reason, "StartTimeout");
    assert_eq!(status.phase, SessionPhase::Failed);
}

#[test]
fn a_daemon_that_dies_anywhere_in_a_first_start_launches_nothing_again_and_says_so() {
    type Until = fn(&Step) -> bool;
    let stages: [Until; 5] = [
        |step| matches!(step, Step::Launch { .. }),
        |step| matches!(step, Step::OpenGate),
        |step| matches!(step, Step::Open(_)),
        |step| matches!(step, Step::Stop { .. }),
        |step| matches!(step, Step::Forget),
    ];
    for (stage, until) in stages.into_iter().enumerate() {
        let mut model = first_start(Behaviour::Prompt);
        go_on(&mut model, until);
        // Of the pass that has the effect, what it records is there, and the effect is not.
        let steps = plan(&model.world().unwrap(), model.now()).steps;
        steps.iter().filter(|step| matches!(step, Step::Record(_))).for_each(|it| model.apply(it));
        model.crash();
        assert_eq!(go_on(&mut model, |_| false), 0, "stage {stage}: launched again");
        let end = end(&model);
        let reason = if stage < 3 { "StartInterrupted" } else { "Started" };
        assert_eq!(end.reason, reason, "stage {stage}");
        assert!(model.session.as_ref().unwrap().status.finished_at.is_some(), "stage {stage}");
    }
}

#[test]
fn a_first_start_of_an_agent_that_is_not_there_fails_at_once() {
    let mut model = first_start(Behaviour::Prompt);
    let missing = Missing { reason: "AgentNotInstalled", message: "looked in /bin".into() };
    model.agent = Finding::Missing(missing);
    assert_eq!(go_on(&mut model, |_| false), 0);
    assert_eq!(end(&model).message, "looked in /bin");
    let restarts = &model.session.as_ref().unwrap().status.restarts;
    assert_eq!(restarts.reason, "AgentNotInstalled");
}

#[test]
fn a_daemon_that_stops_ends_a_first_start_as_interrupted() {
    let mut model = first_start(Behaviour::Deaf);
    go_on(&mut model, |_| false);
    model.is_stopping = true;
    for _ in 0..20 {
        go_on(&mut model, |_| false);
        model.elapsed += Duration::from_secs(10);
    }
    assert_eq!(end(&model).reason, "StartInterrupted");
    assert!(matches!(model.process, Process::Absent));
}
