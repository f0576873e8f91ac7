//! Cancels, at every moment (test catalogue E6, short).

use std::time::Duration;

use serde_json::json;

use super::bench::Bench;
use crate::api::session::SessionPhase;
use crate::api::turn::{CancelBy, Delivery, TurnPhase};
use crate::api::{Code, Turn};

fn is_cancelled(turn: &Turn) -> bool {
    turn.status.phase == TurnPhase::Cancelled && turn.status.code == Some(Code::TurnCancelled)
}

/// Cancels a turn after so much time; the shortest steps there are fall on every await.
async fn cancel_after(script: &str, wait: Duration) -> (Bench, Turn) {
    let bench = Bench::new().await;
    bench.agent("a", script).await;
    bench.session("s", "a", json!({"prompt": "hello"})).await;
    bench.pass_time(wait).await;
    bench.cancel_turn("s-1").await;
    let turn = bench.until_final("s-1").await;
    bench.check_quiet().await;
    (bench, turn)
}

#[tokio::test(start_paused = true)]
async fn a_cancel_at_any_moment_ends_the_turn_once_and_the_session_goes_on() {
    for wait_ms in (0..12).chain([20, 50, 200, 260, 1000]) {
        let (bench, turn) = cancel_after("endless", Duration::from_millis(wait_ms)).await;
        assert!(is_cancelled(&turn), "after {wait_ms} ms: {turn:#?}");
        assert_eq!(turn.status.cancel.as_ref().unwrap().by, CancelBy::Operator);
        let prompted = bench.ground.times_prompted("hello");
        assert_eq!(prompted == 0, turn.status.delivery == Delivery::NotSent, "{wait_ms} ms");
        bench.turn("next", "s", "next").await;
        bench.until_phase("next", TurnPhase::Running).await;
        bench.cancel_turn("next").await;
        assert!(is_cancelled(&bench.until_final("next").await));
        bench.check_quiet().await;
    }
}

/// Lets the other tasks run so many times without any time passing.
async fn polls(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancel_between_any_two_steps_of_the_loop_ends_the_turn_once() {
    for count in 0..120 {
        let bench = Bench::new().await;
        bench.agent("a", "answer").await;
        bench.session("s", "a", json!({"prompt": "hello"})).await;
        polls(count).await;
        bench.cancel_turn("s-1").await;
        let turn = bench.until_final("s-1").await;
        let is_completed = turn.status.phase == TurnPhase::Completed;
        assert!(is_completed || is_cancelled(&turn), "after {count} polls: {turn:#?}");
        assert_eq!(is_completed, turn.status.cancel.is_none(), "after {count} polls");
        bench.pass_time(Duration::from_secs(10)).await;
        assert_eq!(bench.find_turn("s-1").await.unwrap(), turn, "after {count} polls");
        bench.check_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_completion_and_a_cancel_in_the_same_millisecond_make_one_end() {
    for wait_ms in 295..312 {
        let (bench, turn) = cancel_after("thinks-ms=300", Duration::from_millis(wait_ms)).await;
        let is_completed = turn.status.phase == TurnPhase::Completed;
        assert!(is_completed || is_cancelled(&turn), "after {wait_ms} ms: {turn:#?}");
        bench.pass_time(Duration::from_secs(10)).await;
        assert_eq!(bench.find_turn("s-1").await.unwrap(), turn);
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_the_agent_answers_to_a_cancel_the_turn_is_cancelled() {
    let (_, turn) = cancel_after("endless ends-on-cancel", Duration::from_millis(500)).await;
    assert!(is_cancelled(&turn));
    assert_eq!(turn.status.stop_reason.as_deref(), Some("end_turn"));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_ignores_a_cancel_loses_its_process_and_the_session_is_kept() {
    let (bench, turn) = cancel_after("stubborn ignores-term", Duration::from_secs(1)).await;
    assert!(is_cancelled(&turn));
    assert!(turn.status.message.contains("did not confirm"), "{}", turn.status.message);
    assert_eq!(bench.ground.alive(), 0);
    let session = bench.find_session("s").await.unwrap();
    assert_eq!(session.status.phase, SessionPhase::Hibernated);
    let took = turn.status.finished_at.unwrap().since(turn.status.cancel.unwrap().at);
    // cancel 5 s, close, eof 5 s, term 250 ms, kill.
    assert!(took >= Duration::from_secs(10) && took < Duration::from_secs(12), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_session_ends_at_every_stage_and_launches_nothing_more() {
    let scripts = [
        "endless",
        "silent-at=initialize",
        "silent-at=session/new",
        "crash-at=session/prompt",
        "stubborn ignores-term",
        "asks",
        "missing",
        "silent-settings",
    ];
    for script in scripts {
        for wait_ms in [0, 1, 3, 100] {
            let bench = Bench::new().await;
            bench.agent("a", script).await;
            bench.session("s", "a", json!({"prompt": "hello"})).await;
            bench.turn("queued", "s", "queued").await;
            bench.pass_time(Duration::from_millis(wait_ms)).await;
            bench.cancel_session("s").await;
            let is_finished = |session: Option<&crate::api::Session>| {
                session.unwrap().status.finished_at.is_some()
            };
            let session = bench.until_session("s", is_finished).await.unwrap();
            assert_eq!(session.status.phase, SessionPhase::Stopped, "{script} {wait_ms}");
            assert_eq!(bench.ground.alive(), 0, "{script} {wait_ms}");
            let launches = bench.ground.launches();
            bench.pass_time(Duration::from_secs(600)).await;
            assert_eq!(bench.ground.launches(), launches);
            bench.check_quiet().await;
        }
    }
}
