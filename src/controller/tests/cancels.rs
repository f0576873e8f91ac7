//! Cancels, at every moment (test catalogue E6).

use std::time::Duration;

use serde_json::json;

use super::bench::{Bench, is_thorough};
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

/// Where a turn is when its cancel comes: the script of its agent (none: there is no such agent), the
/// time until it is there, and what else holds.
struct Place {
    what: &'static str,
    script: Option<&'static str>,
    wait_ms: u64,
    /// Another turn has the only slot.
    is_full: bool,
    /// It was cancelled before.
    is_cancelling: bool,
}

const fn place(what: &'static str, script: &'static str, wait_ms: u64) -> Place {
    Place { what, script: Some(script), wait_ms, is_full: false, is_cancelling: false }
}

const PLACES: [Place; 13] = [
    Place { is_full: true, ..place("waits for a slot", "answer", 50) },
    Place { script: None, ..place("waits for its agent", "", 50) },
    place("waits for the next start", "missing", 100),
    place("is taken", "endless", 0),
    place("waits for initialize", "silent-at=initialize", 50),
    place("waits for session/new", "silent-at=session/new", 50),
    place("waits for a setting", "silent-settings", 50),
    place("is being sent", "endless", 1),
    place("runs", "endless", 400),
    place("waits for somebody to decide", "asks", 400),
    place("runs, and asks for permission when it is cancelled", "asks-on-cancel", 400),
    Place { is_cancelling: true, ..place("is being cancelled", "stubborn ignores-term", 400) },
    place("loses its agent", "crash-at=session/prompt", 1),
];

/// Cancels a turn, or its session, after so many more steps of the loop.
async fn cancel_at(place: &Place, round: usize) {
    let bench = Bench::with_slots(1).await;
    if place.is_full {
        bench.agent("busy", "endless").await;
        bench.session("busy", "busy", json!({"prompt": "busy"})).await;
        bench.until_phase("busy-1", TurnPhase::Running).await;
    }
    if let Some(script) = place.script {
        bench.agent("a", script).await;
    }
    let permissions = if place.script == Some("asks") { "ask" } else { "approve-all" };
    bench.session("s", "a", json!({"prompt": "hello", "permissions": permissions})).await;
    bench.pass_time(Duration::from_millis(place.wait_ms)).await;
    if place.is_cancelling {
        bench.cancel_turn("s-1").await;
    }
    polls(round).await;
    if round.is_multiple_of(2) {
        bench.cancel_turn("s-1").await;
    } else {
        bench.cancel_session("s").await;
    }
    let turn = bench.until_final("s-1").await;
    let what = format!("{}, {round} steps later: {turn:#?}", place.what);
    let wanted = match turn.status.phase {
        TurnPhase::Cancelled => Some(Code::TurnCancelled),
        // What waits for its session's end is given to nobody.
        TurnPhase::Discarded => {
            assert_eq!((round % 2, turn.status.delivery), (1, Delivery::NotSent), "{what}");
            Some(Code::TurnCancelled)
        }
        TurnPhase::Failed => {
            assert_eq!(place.what, "loses its agent", "{what}");
            Some(Code::AgentProcessInvalidated)
        }
        _ => panic!("{what}"),
    };
    assert_eq!(turn.status.code, wanted, "{what}");
    if place.is_full {
        bench.cancel_turn("busy-1").await;
        bench.until_final("busy-1").await;
    }
    bench.pass_time(Duration::from_secs(30)).await;
    assert_eq!(bench.times_ended("s-1").await, 1, "{what}");
    assert_eq!(bench.find_turn("s-1").await.unwrap(), turn, "{what}");
    let asked = bench.ground.notes().into_iter().filter(|note| note.starts_with("permission"));
    assert!(asked.clone().all(|note| note == "permission cancelled"), "{what}");
    let does_ask = matches!(place.script, Some("asks" | "asks-on-cancel"));
    assert_eq!(asked.count() == 1, does_ask, "{what}");
    bench.check_quiet().await;
}

/// Test catalogue E6.
#[tokio::test(start_paused = true)]
async fn a_cancel_in_each_state_of_a_turn_makes_exactly_one_end() {
    let rounds = if is_thorough() { 100 } else { 16 };
    for place in &PLACES {
        for round in 0..rounds {
            cancel_at(place, round).await;
        }
    }
}

/// Test catalogue E6.
#[tokio::test(start_paused = true)]
async fn completions_and_cancels_race_to_exactly_one_end() {
    let races: u64 = if is_thorough() { 2000 } else { 300 };
    let (mut completed, mut cancelled) = (0, 0);
    for race in 0..races {
        let bench = Bench::new().await;
        bench.agent("a", "thinks-ms=20").await;
        bench.session("s", "a", json!({"prompt": "hello"})).await;
        bench.until_phase("s-1", TurnPhase::Running).await;
        let sent_at = bench.find_turn("s-1").await.unwrap().status.dispatched_at.unwrap();
        let passed = bench.clock.now().time.since(sent_at);
        // The milliseconds around the agent's answer, and the steps of the loop in each.
        let answers_in = Duration::from_millis(20).saturating_sub(passed);
        let early = Duration::from_millis(3).saturating_sub(Duration::from_millis(race % 5));
        bench.pass_time(answers_in.saturating_sub(early)).await;
        polls(usize::try_from(race / 5 % 60).unwrap()).await;
        bench.cancel_turn("s-1").await;
        let turn = bench.until_final("s-1").await;
        match turn.status.phase {
            TurnPhase::Completed => completed += 1,
            TurnPhase::Cancelled => cancelled += 1,
            _ => panic!("race {race}: {turn:#?}"),
        }
        assert_eq!(bench.times_ended("s-1").await, 1, "race {race}");
        assert_eq!(bench.find_turn("s-1").await.unwrap(), turn, "race {race}");
        bench.check_quiet().await;
    }
    assert!(completed > races / 50 && cancelled > races / 50, "{completed} and {cancelled}");
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
