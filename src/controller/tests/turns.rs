//! Turns from prompt to response, and their cancels.

use std::time::Duration;

use serde_json::json;

use super::bench::Bench;
use crate::api::session::SessionPhase;
use crate::api::turn::TurnPhase;
use crate::api::{Code, Kind};
use crate::store::Stream;

#[tokio::test(start_paused = true)]
async fn a_turn_runs_to_its_end_with_response_and_transcript() {
    let bench = Bench::new().await;
    bench.agent("a", "answer").await;
    bench.session("s", "a", json!({})).await;
    let uid = bench.turn("t", "s", "hello").await;
    let turn = bench.until_final("t").await;
    assert_eq!(turn.status.phase, TurnPhase::Completed);
    assert_eq!(turn.status.stop_reason.as_deref(), Some("end_turn"));
    assert_eq!(bench.blob(&uid, Stream::Response).await, "echo: hello");
    assert_eq!(turn.status.response_bytes, 11);
    let transcript = bench.blob(&uid, Stream::Transcript).await;
    assert_eq!(transcript.lines().count(), 1, "{transcript}");
    let session = bench.find_session("s").await.unwrap();
    assert_eq!(session.status.phase, SessionPhase::Idle);
    assert_eq!(session.status.latest_turn.as_ref().unwrap().as_str(), "t");
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn two_sessions_run_at_once() {
    let bench = Bench::new().await;
    bench.agent("slow", "thinks-ms=1000").await;
    bench.session("s1", "slow", json!({"prompt": "one"})).await;
    bench.session("s2", "slow", json!({"prompt": "two"})).await;
    bench.until_phase("s1-1", TurnPhase::Running).await;
    bench.until_phase("s2-1", TurnPhase::Running).await;
    assert_eq!(bench.ground.alive(), 2);
    assert_eq!(bench.slots().await.len(), 2);
    for turn in bench.until_all_final().await {
        assert_eq!(turn.status.phase, TurnPhase::Completed);
    }
    bench.check_quiet().await;
}

/// More turns than one commit has operations: the session could not be ended any more.
#[tokio::test(start_paused = true)]
async fn a_full_inbox_ends_with_its_session_and_goes_with_it() {
    let bench = Bench::new().await;
    bench.agent("a", "endless").await;
    bench.session("s", "a", json!({"prompt": "first"})).await;
    bench.until_phase("s-1", TurnPhase::Running).await;
    let waiting: Vec<_> = (0..60).map(|number| format!("t{number:02}")).collect();
    for name in &waiting {
        bench.turn(name, "s", "later").await;
    }
    bench.cancel_session("s").await;
    for name in &waiting {
        assert_eq!(bench.until_final(name).await.status.phase, TurnPhase::Discarded);
    }
    let has_finished = |s: Option<&crate::api::Session>| s.unwrap().status.finished_at.is_some();
    bench.until_session("s", has_finished).await;
    bench.delete(Kind::Session, "s").await;
    bench.until_session("s", |session| session.is_none()).await;
    assert!(bench.all_turns().await.is_empty());
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn turns_of_one_session_run_one_after_the_other_in_one_process() {
    let bench = Bench::new().await;
    bench.agent("a", "answer").await;
    bench.session("s", "a", json!({})).await;
    for number in 0..5 {
        bench.turn(&format!("t{number}"), "s", &format!("prompt {number}")).await;
    }
    let turns = bench.until_all_final().await;
    assert!(turns.iter().all(|turn| turn.status.phase == TurnPhase::Completed));
    let started: Vec<_> = turns.iter().map(|turn| turn.status.started_at.unwrap()).collect();
    assert!(started.is_sorted());
    assert_eq!(bench.ground.launches(), 1);
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn late_words_are_marked_in_the_transcript_and_change_nothing_else() {
    let bench = Bench::new().await;
    bench.agent("a", "late").await;
    bench.session("s", "a", json!({})).await;
    let uid = bench.turn("t", "s", "hello").await;
    let turn = bench.until_final("t").await;
    bench.pass_time(Duration::from_secs(2)).await;
    assert_eq!(bench.find_turn("t").await.unwrap(), turn);
    assert_eq!(bench.blob(&uid, Stream::Response).await, "echo: hello");
    let transcript = bench.blob(&uid, Stream::Transcript).await;
    assert_eq!(transcript.lines().filter(|line| line.contains("\"late\":true")).count(), 4);
    assert_eq!(transcript.lines().count(), 5);
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn late_words_bring_no_deleted_turn_back() {
    for wait_ms in [0, 1, 20, 100, 490] {
        let bench = Bench::new().await;
        bench.agent("a", "late").await;
        bench.session("s", "a", json!({})).await;
        let uid = bench.turn("t", "s", "hello").await;
        bench.until_final("t").await;
        bench.pass_time(Duration::from_millis(wait_ms)).await;
        bench.delete(Kind::Turn, "t").await;
        bench.pass_time(Duration::from_secs(2)).await;
        assert_eq!(bench.find_turn("t").await, None);
        assert_eq!(bench.blob(&uid, Stream::Transcript).await, "", "after {wait_ms} ms");
        assert_eq!(bench.blob(&uid, Stream::Response).await, "");
        bench.check_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_deleted_session_goes_with_all_that_it_had() {
    let bench = Bench::new().await;
    bench.agent("a", "endless late").await;
    bench.session("s", "a", json!({})).await;
    let uid = bench.turn("t", "s", "hello").await;
    bench.turn("next", "s", "never").await;
    bench.until_phase("t", TurnPhase::Running).await;
    bench.delete(Kind::Session, "s").await;
    bench.until_session("s", |session| session.is_none()).await;
    assert_eq!(bench.all_turns().await, Vec::new());
    assert_eq!(bench.ground.alive(), 0);
    assert_eq!(bench.ground.times_prompted("never"), 0);
    bench.pass_time(Duration::from_secs(5)).await;
    assert_eq!(bench.blob(&uid, Stream::Transcript).await, "");
    assert_eq!(bench.handle().sessions_with_process(), Vec::new());
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn permission_requests_are_answered_by_the_ceiling() {
    let bench = Bench::new().await;
    bench.agent("a", "asks").await;
    bench.session("s", "a", json!({"permissions": "deny-all", "prompt": "one"})).await;
    let turn = bench.until_final("s-1").await;
    assert_eq!(turn.status.phase, TurnPhase::Completed, "{turn:#?}");
    assert!(bench.ground.notes().contains(&"permission n".to_owned()));
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn waiting_sessions_get_the_freed_slot_in_their_order_and_none_starves() {
    let bench = Bench::with_slots(1).await;
    bench.agent("slow", "thinks-ms=1000").await;
    for number in 0..6 {
        bench.session(&format!("s{number}"), "slow", json!({"prompt": format!("p{number}")})).await;
        bench.pass_time(Duration::from_millis(20)).await;
    }
    let waiting = bench.find_turn("s3-1").await.unwrap();
    assert_eq!(waiting.status.reason, "WaitingForCapacity");
    // Two more turns of the first session: they wait behind those who came before.
    bench.turn("late-1", "s0", "late 1").await;
    bench.turn("late-2", "s0", "late 2").await;
    let mut turns = bench.until_all_final().await;
    turns.sort_by_key(|turn| turn.status.started_at);
    let names: Vec<_> = turns.iter().map(|turn| turn.metadata.name.as_str()).collect();
    let wanted = ["s0-1", "s1-1", "s2-1", "s3-1", "s4-1", "s5-1", "late-1", "late-2"];
    assert_eq!(names, wanted);
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_waiting_turn_that_is_cancelled_passes_its_place_on() {
    let bench = Bench::with_slots(1).await;
    bench.agent("slow", "endless").await;
    for name in ["s0", "s1", "s2"] {
        bench.session(name, "slow", json!({"prompt": name})).await;
        bench.pass_time(Duration::from_millis(20)).await;
    }
    bench.cancel_turn("s1-1").await;
    bench.cancel_turn("s0-1").await;
    bench.until_phase("s2-1", TurnPhase::Running).await;
    bench.cancel_turn("s2-1").await;
    bench.until_all_final().await;
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_refused_in_the_pass_that_takes_it_gives_its_slot_back() {
    let bench = Bench::with_slots(1).await;
    bench.agent("a", "answer").await;
    bench.session("s", "a", json!({"prompt": "first"})).await;
    bench.until_final("s-1").await;
    let body = json!({"metadata": {"name": "t"}, "spec": {"session": "s", "promptBlocks":
        [{"type": "image", "data": "", "mimeType": "image/png"}]}});
    bench.try_create(Kind::Turn, body).await.unwrap();
    let turn = bench.until_final("t").await;
    assert_eq!(turn.status.code, Some(Code::PromptCapabilityMismatch));
    bench.check_quiet().await;
    bench.turn("next", "s", "next").await;
    assert_eq!(bench.until_final("next").await.status.phase, TurnPhase::Completed);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_deleted_while_it_is_in_use_goes_on() {
    let bench = Bench::new().await;
    bench.agent("a", "thinks-ms=1000").await;
    bench.session("s", "a", json!({"prompt": "first"})).await;
    bench.until_phase("s-1", TurnPhase::Running).await;
    bench.delete(Kind::Agent, "a").await;
    bench.turn("t", "s", "second").await;
    assert_eq!(bench.until_final("s-1").await.status.phase, TurnPhase::Completed);
    assert_eq!(bench.until_final("t").await.status.phase, TurnPhase::Completed);
    bench.check_quiet().await;
}
