//! Turns that an agent waits for, from their admission to their end.

use std::time::Duration;

use serde_json::json;

use super::bench::Bench;
use crate::api::session::SessionPhase;
use crate::api::turn::{CancelBy, Delivery, TurnPhase};
use crate::api::{Code, Session};

fn is_finished(session: Option<&Session>) -> bool {
    session.unwrap().status.finished_at.is_some()
}

#[tokio::test(start_paused = true)]
async fn a_callers_turn_runs_in_the_slot_that_it_was_admitted_with() {
    let bench = Bench::with_slots(1).await;
    bench.agent("a", "thinks-ms=50").await;
    bench.external("caller").await;
    bench.child("c", "caller", "a", json!({"prompt": "hello"})).await;
    let turn = bench.find_turn("c-1").await.unwrap();
    let holders = vec![turn.metadata.uid];
    assert_eq!(bench.slots().await, holders, "before the loop took it");
    bench.until_phase("c-1", TurnPhase::Running).await;
    assert_eq!(bench.slots().await, holders);
    assert_eq!(bench.until_final("c-1").await.status.phase, TurnPhase::Completed);
    assert_eq!(bench.slots().await.len(), 0);
    bench.ask("c-2", "c", "again").await;
    assert_eq!(bench.until_final("c-2").await.status.phase, TurnPhase::Completed);
    assert_eq!(bench.ground.launches(), 1);
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_turn_with_its_slot_goes_before_those_that_wait_for_one() {
    let bench = Bench::with_slots(2).await;
    bench.agent("a", "thinks-ms=100").await;
    bench.agent("endless", "endless").await;
    bench.external("caller").await;
    bench.session("busy", "endless", json!({"prompt": "busy"})).await;
    bench.until_phase("busy-1", TurnPhase::Running).await;
    bench.child("c", "caller", "a", json!({"prompt": "hello"})).await;
    bench.session("late", "a", json!({"prompt": "late"})).await;
    bench.until_phase("c-1", TurnPhase::Running).await;
    assert_eq!(bench.find_turn("late-1").await.unwrap().status.reason, "WaitingForCapacity");
    assert_eq!(bench.until_final("late-1").await.status.phase, TurnPhase::Completed);
    bench.cancel_turn("busy-1").await;
    bench.until_all_final().await;
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_turn_admitted_before_the_first_pass_is_this_daemons() {
    let mut bench = Bench::still(2);
    bench.agent("a", "answer").await;
    bench.external("caller").await;
    bench
        .start_after(async |bench| {
            // The loop is built and does not run yet; the API is open.
            bench.child("c", "caller", "a", json!({"prompt": "hello"})).await;
        })
        .await;
    assert_eq!(bench.until_final("c-1").await.status.phase, TurnPhase::Completed);
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_callers_turn_is_interrupted_by_the_daemons_end_wherever_it_is() {
    // Before the loop takes it; while its agent starts; while the agent has it.
    for (script, wait_ms, wanted) in [
        ("answer", None, Delivery::NotSent),
        ("silent-at=initialize", Some(100), Delivery::NotSent),
        ("endless", Some(100), Delivery::Sent),
    ] {
        for in_order in [false, true] {
            let mut bench = Bench::still(1);
            bench.agent("a", script).await;
            bench.external("caller").await;
            if wait_ms.is_some() {
                bench.start().await;
            }
            bench.child("c", "caller", "a", json!({"prompt": "hello"})).await;
            if let Some(wait_ms) = wait_ms {
                bench.pass_time(Duration::from_millis(wait_ms)).await;
                if in_order {
                    bench.stop().await;
                } else {
                    bench.crash().await;
                }
            }
            bench.start().await;
            let turn = bench.until_final("c-1").await;
            let code =
                if in_order && wait_ms.is_some() { Code::AppShutdown } else { Code::AppRestarted };
            assert_eq!(turn.status.phase, TurnPhase::Interrupted, "{script}: {turn:#?}");
            assert_eq!((turn.status.code, turn.status.delivery), (Some(code), wanted), "{script}");
            bench.check_quiet().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_failed_start_ends_a_callers_session_and_no_second_is_tried() {
    for script in
        ["missing", "crash-at=initialize", "silent-at=initialize", "silent-at=session/new"]
    {
        let bench = Bench::new().await;
        bench.agent("a", script).await;
        bench.external("caller").await;
        bench.child("c", "caller", "a", json!({"prompt": "hello"})).await;
        let turn = bench.until_final("c-1").await;
        assert_eq!(turn.status.phase, TurnPhase::Failed, "{script}");
        assert_eq!(turn.status.code, Some(Code::SpawnAgentStartFailed), "{script}");
        let session = bench.until_session("c", is_finished).await.unwrap();
        assert_eq!(session.status.phase, SessionPhase::Failed, "{script}");
        assert_eq!(session.status.reason, "StartupFailure", "{script}");
        let launches = bench.ground.launches();
        bench.pass_time(Duration::from_secs(600)).await;
        assert_eq!((bench.ground.launches(), bench.ground.alive()), (launches, 0), "{script}");
        bench.check_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_parents_cancel_ends_turn_and_session_at_every_stage() {
    for script in ["endless", "silent-at=initialize", "stubborn ignores-term", "asks"] {
        for wait_ms in [0, 1, 2, 3, 5, 100] {
            let bench = Bench::new().await;
            bench.agent("a", script).await;
            bench.external("caller").await;
            bench.child("c", "caller", "a", json!({"prompt": "hello"})).await;
            bench.pass_time(Duration::from_millis(wait_ms)).await;
            if bench.find_turn("c-1").await.unwrap().status.phase.is_final() {
                continue; // An agent that asks is answered at once.
            }
            bench.cancel_by_parent("c").await;
            let session = bench.until_session("c", is_finished).await.unwrap();
            let turn = bench.find_turn("c-1").await.unwrap();
            assert_eq!(turn.status.phase, TurnPhase::Cancelled, "{script} {wait_ms}");
            assert_eq!(turn.status.code, Some(Code::TurnCancelledByParent), "{script} {wait_ms}");
            assert_eq!(session.status.phase, SessionPhase::Stopped);
            assert_eq!(session.status.reason, "Cancelled");
            assert_eq!(bench.ground.alive(), 0);
            bench.check_quiet().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_takes_its_turn_back_before_it_is_sent_and_never_after() {
    let mut taken_back = 0;
    for polls in 0..60 {
        let bench = Bench::new().await;
        bench.agent("a", "answer").await;
        bench.external("caller").await;
        bench.child("c", "caller", "a", json!({"prompt": "hello"})).await;
        for _ in 0..polls {
            tokio::task::yield_now().await;
        }
        let is_taken_back = bench.cancel_call("c-1").await;
        let turn = bench.until_final("c-1").await;
        if is_taken_back {
            taken_back += 1;
            assert_eq!(turn.status.phase, TurnPhase::Cancelled, "{polls}: {turn:#?}");
            assert_eq!(turn.status.cancel.unwrap().by, CancelBy::CallCancelled);
            assert_eq!(bench.ground.times_prompted("hello"), 0, "{polls}");
        } else {
            assert_eq!(turn.status.phase, TurnPhase::Completed, "{polls}: {turn:#?}");
        }
        bench.ask("c-2", "c", "again").await;
        assert_eq!(bench.until_final("c-2").await.status.phase, TurnPhase::Completed, "{polls}");
        bench.check_quiet().await;
    }
    assert!(taken_back > 0 && taken_back < 60, "{taken_back} of 60: both were met");
}

/// Test catalogue C6: what never gets as far as the prompt is never said to run.
#[tokio::test(start_paused = true)]
async fn an_agent_that_dies_or_is_silent_at_a_stage_is_never_said_to_have_the_prompt() {
    let stages = [
        ("missing", false),
        ("crash-at=initialize", false),
        ("silent-at=initialize", false),
        ("crash-at=session/new", false),
        ("silent-at=session/new", false),
        ("silent-settings", false),
        ("crash-at=session/set_mode silent-settings", false),
        ("crash-at=session/prompt", true),
    ];
    // The start's time is the agent's; the times between a look and the next do not matter to it.
    let rounds = if super::bench::is_thorough() { 50 } else { 5 };
    for (script, gets_prompt) in stages {
        for round in 0..rounds {
            let bench = Bench::new().await;
            bench.agent("a", script).await;
            bench.external("caller").await;
            bench.pass_time(Duration::from_millis(round)).await;
            let begun = bench.clock.now().mono;
            bench.child("c", "caller", "a", json!({"prompt": "hello"})).await;
            let turn = loop {
                let turn = bench.find_turn("c-1").await.unwrap();
                let is_said = turn.status.dispatched_at.is_some()
                    || turn.status.phase == TurnPhase::Running
                    || turn.status.delivery == Delivery::Sent;
                assert!(!is_said || bench.ground.has_reached_prompt(), "{script}: {turn:#?}");
                if turn.status.phase.is_final() {
                    break turn;
                }
                tokio::task::yield_now().await;
                if bench.clock.now().mono.since(begun) < Duration::from_secs(1) {
                    bench.pass_time(Duration::from_millis(1)).await;
                } else {
                    bench.pass_time(Duration::from_secs(1)).await;
                }
            };
            assert_eq!(turn.status.phase, TurnPhase::Failed, "{script}");
            let code = if gets_prompt {
                Code::AgentProcessInvalidated
            } else {
                Code::SpawnAgentStartFailed
            };
            assert_eq!(turn.status.code, Some(code), "{script}");
            let took = bench.clock.now().mono.since(begun);
            // startTimeout is 60 s, the look is a second late at most.
            assert!(took <= Duration::from_secs(62), "{script}: {took:?}");
            bench.until("its process is gone", |bench| bench.ground.alive() == 0).await;
            bench.check_quiet().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_callers_turn_does_not_wait_for_an_agent_that_went() {
    let bench = Bench::new().await;
    bench.external("caller").await;
    bench.child("c", "caller", "nobody", json!({"prompt": "hello"})).await;
    let turn = bench.until_final("c-1").await;
    assert_eq!(turn.status.phase, TurnPhase::Failed);
    assert_eq!(turn.status.code, Some(Code::SpawnAgentStartFailed));
    assert!(turn.status.message.contains("nobody"), "{}", turn.status.message);
    bench.agent("nobody", "answer").await;
    bench.ask("c-2", "c", "again").await;
    assert_eq!(bench.until_final("c-2").await.status.phase, TurnPhase::Completed);
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn an_external_session_is_idle_ends_when_asked_and_goes_after_its_retention() {
    let bench = Bench::new().await;
    bench.external("caller").await;
    let is_idle = |session: Option<&Session>| session.unwrap().status.phase == SessionPhase::Idle;
    let session = bench.until_session("caller", is_idle).await.unwrap();
    assert!(session.status.conditions.is_true("SessionReady"));
    bench.pass_time(Duration::from_secs(48 * 3600)).await;
    assert!(is_idle(bench.find_session("caller").await.as_ref()), "it has no idle time");
    bench.cancel_session("caller").await;
    let session = bench.until_session("caller", is_finished).await.unwrap();
    assert_eq!(session.status.phase, SessionPhase::Stopped);
    bench.pass_time(session.spec.ttl_after_finished.get() + Duration::from_secs(2)).await;
    assert!(bench.find_session("caller").await.is_none());
    bench.external("other").await;
    bench.delete(crate::api::Kind::Session, "other").await;
    bench.until_session("other", |session| session.is_none()).await;
    assert_eq!(bench.ground.launches(), 0);
    bench.check_quiet().await;
}
