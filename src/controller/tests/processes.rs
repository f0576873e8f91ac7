//! Processes that fail, hang, crash or cannot be killed, and the clocks.

use std::time::Duration;

use serde_json::json;

use super::bench::Bench;
use crate::api::condition::ConditionStatus;
use crate::api::session::{EndOutcome, ProcessState, SessionPhase};
use crate::api::turn::{CancelBy, TurnPhase};
use crate::api::{Code, Session};

fn is_finished(session: Option<&Session>) -> bool {
    session.unwrap().status.finished_at.is_some()
}

/// Test catalogue D6.
#[tokio::test(start_paused = true)]
async fn a_tree_that_cannot_be_killed_is_unknown_and_keeps_its_slot_and_is_killed_again() {
    let bench = Bench::new().await;
    bench.agent("a", "stubborn ignores-term immortal").await;
    bench.session("s", "a", json!({"prompt": "hello"})).await;
    bench.until_phase("s-1", TurnPhase::Running).await;
    bench.cancel_session("s").await;
    bench.pass_time(Duration::from_secs(60)).await;
    let kills = bench.ground.kills();
    assert!(kills >= 2);
    for _ in 0..5 {
        bench.pass_time(Duration::from_secs(120)).await;
        let session = bench.find_session("s").await.unwrap();
        assert_eq!(session.status.finished_at, None);
        assert_eq!(session.status.phase, SessionPhase::Cancelling);
        assert_eq!(session.status.process.unwrap().state, ProcessState::Unknown);
        let condition = session.status.conditions.get("KillUnconfirmed").unwrap();
        assert_eq!(condition.status, ConditionStatus::True);
        assert_eq!(bench.slots().await.len(), 1);
        assert!(!bench.find_turn("s-1").await.unwrap().status.phase.is_final());
    }
    assert!(bench.ground.kills() > kills + 4, "it is killed again and again");
    bench.ground.mercy.cancel();
    let session = bench.until_session("s", is_finished).await.unwrap();
    assert_eq!(session.status.phase, SessionPhase::Stopped);
    assert!(session.status.conditions.get("KillUnconfirmed").is_none());
    assert_eq!(bench.find_turn("s-1").await.unwrap().status.phase, TurnPhase::Cancelled);
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_that_hangs_at_any_stage_is_killed_and_tried_again_until_it_crash_loops() {
    for script in
        ["silent-at=initialize", "silent-at=session/new", "crash-at=initialize", "missing"]
    {
        let bench = Bench::new().await;
        bench.agent("a", script).await;
        bench.session("s", "a", json!({"prompt": "hello"})).await;
        let is_stalled =
            |session: Option<&Session>| session.unwrap().status.conditions.get("Stalled").is_some();
        let session = bench.until_session("s", is_stalled).await.unwrap();
        assert_eq!(session.status.restarts.count, 5, "{script}");
        assert_eq!(session.status.phase, SessionPhase::Pending);
        let turn = bench.find_turn("s-1").await.unwrap();
        assert_eq!(turn.status.phase, TurnPhase::Pending);
        assert_eq!(bench.slots().await, Vec::new(), "{script}: no slot while it waits");
        let launches = bench.ground.launches();
        bench.pass_time(Duration::from_secs(7200)).await;
        assert_eq!(bench.ground.launches(), launches, "{script}");
        // A changed agent wipes the failures out.
        bench.patch(crate::api::Kind::Agent, "a", json!({"spec": {"command": "answer"}})).await;
        assert_eq!(bench.until_final("s-1").await.status.phase, TurnPhase::Completed, "{script}");
        bench.check_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_never_answers_a_setting_does_not_hang_the_turn() {
    let bench = Bench::new().await;
    bench.agent("a", "silent-settings").await;
    bench.session("s", "a", json!({"prompt": "hello"})).await;
    let turn = bench.until_final("s-1").await;
    assert_eq!(turn.status.code, Some(Code::SpawnAgentStartFailed), "{turn:#?}");
    assert_eq!(turn.status.reason, "StartTimeout");
    bench.until("its process is gone", |bench| bench.ground.alive() == 0).await;
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_dies_in_a_turn_fails_it_and_the_session_can_go_on() {
    let bench = Bench::new().await;
    bench.agent("a", "crash-at=session/prompt").await;
    bench.session("s", "a", json!({"prompt": "hello"})).await;
    let turn = bench.until_final("s-1").await;
    assert_eq!(turn.status.phase, TurnPhase::Failed);
    assert_eq!(turn.status.code, Some(Code::AgentProcessInvalidated));
    let session = bench.find_session("s").await.unwrap();
    assert_eq!(session.status.phase, SessionPhase::Hibernated);
    bench.patch(crate::api::Kind::Agent, "a", json!({"spec": {"command": "answer"}})).await;
    bench.turn("next", "s", "next").await;
    assert_eq!(bench.until_final("next").await.status.phase, TurnPhase::Completed);
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_agent_forgets_expires_with_its_process() {
    let bench = Bench::new().await;
    bench.agent("a", "forgetful crash-at=session/prompt").await;
    bench.session("s", "a", json!({"prompt": "hello"})).await;
    bench.until_final("s-1").await;
    let session = bench.until_session("s", is_finished).await.unwrap();
    assert_eq!(session.status.end.unwrap().outcome, EndOutcome::Expired);
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_cannot_resume_any_more_is_given_no_new_session_in_silence() {
    let bench = Bench::new().await;
    bench.agent("a", "answer").await;
    bench.session("s", "a", json!({"prompt": "hello", "idleTimeout": "1m"})).await;
    bench.until_final("s-1").await;
    bench.until("it hibernates", |bench| bench.ground.alive() == 0).await;
    bench.patch(crate::api::Kind::Agent, "a", json!({"spec": {"command": "forgetful"}})).await;
    bench.turn("next", "s", "next").await;
    let session = bench.until_session("s", is_finished).await.unwrap();
    assert_eq!(session.status.end.unwrap().reason, "SessionLost");
    assert_eq!(bench.ground.times_prompted("next"), 0);
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_turn_ends_the_session_as_inactive_after_its_time() {
    let bench = Bench::new().await;
    bench.agent("a", "endless").await;
    bench.session("s", "a", json!({"prompt": "hello", "turnInactivityTimeout": "2m"})).await;
    let turn = bench.until_final("s-1").await;
    assert_eq!(turn.status.phase, TurnPhase::Expired);
    assert_eq!(turn.status.code, Some(Code::TurnInactivityTimeout));
    assert_eq!(turn.status.cancel.unwrap().by, CancelBy::Inactivity);
    let took = turn.status.finished_at.unwrap().since(turn.status.dispatched_at.unwrap());
    assert!(took >= Duration::from_secs(120) && took < Duration::from_secs(122), "{took:?}");
    let session = bench.until_session("s", is_finished).await.unwrap();
    assert_eq!(session.status.reason, "Inactivity");
    assert_eq!(bench.ground.alive(), 0);
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_hibernates_and_comes_back_for_a_turn() {
    let bench = Bench::new().await;
    bench.agent("a", "answer").await;
    bench.session("s", "a", json!({"prompt": "hello", "idleTimeout": "1m"})).await;
    let turn = bench.until_final("s-1").await;
    bench.until("its process is gone", |bench| bench.ground.alive() == 0).await;
    let passed = bench.clock.now().time.since(turn.status.finished_at.unwrap());
    assert!(passed >= Duration::from_secs(60) && passed < Duration::from_secs(62), "{passed:?}");
    let is_hibernated =
        |session: Option<&Session>| session.unwrap().status.phase == SessionPhase::Hibernated;
    bench.until_session("s", is_hibernated).await;
    bench.turn("next", "s", "next").await;
    assert_eq!(bench.until_final("next").await.status.phase, TurnPhase::Completed);
    assert_eq!(bench.ground.launches(), 2);
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_ttl_ends_a_running_turn_and_its_record_goes_after_its_retention() {
    let bench = Bench::new().await;
    bench.agent("a", "endless").await;
    let spec = json!({"prompt": "hello", "ttl": "5m", "ttlAfterFinished": "10m"});
    bench.session("s", "a", spec).await;
    let turn = bench.until_final("s-1").await;
    assert_eq!(turn.status.phase, TurnPhase::Expired);
    assert_eq!(turn.status.code, Some(Code::TtlExpired));
    let session = bench.until_session("s", is_finished).await.unwrap();
    assert_eq!(session.status.reason, "TtlExpired");
    bench.until_session("s", |session| session.is_none()).await;
    let passed = bench.clock.now().time.since(session.status.finished_at.unwrap());
    assert!(passed >= Duration::from_secs(600) && passed < Duration::from_secs(602), "{passed:?}");
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn sessions_at_rest_cost_no_call_of_the_store() {
    let bench = Bench::new().await;
    bench.agent("a", "answer").await;
    for number in 0..20 {
        let spec = json!({"prompt": format!("p{number}"), "idleTimeout": "1m"});
        bench.session(&format!("s{number}"), "a", spec).await;
    }
    bench.until_all_final().await;
    bench.until("all hibernate", |bench| bench.ground.alive() == 0).await;
    bench.pass_time(Duration::from_secs(600)).await;
    let before = bench.gate.calls();
    bench.pass_time(Duration::from_secs(3000)).await;
    let calls = bench.gate.calls() - before;
    // Ten resyncs, of a few lists each.
    assert!(calls <= 10 * 7, "{calls} calls");
    bench.check_quiet().await;
}
