//! Time in the loop: a daemon that was stopped, a wall clock that jumps, agents that changed while
//! nobody looked, and responses that are held open.

use std::time::Duration;

use serde_json::json;

use super::bench::{Bench, is_thorough};
use crate::api::session::SessionPhase;
use crate::api::turn::TurnPhase;
use crate::api::{Code, Event, Kind, Session};
use crate::store::{Store as _, Stream, keys};

/// Test catalogue I3, in paused time: the whole daemon stands still for ten minutes. Ten times with
/// `SPAWNLET_TIER`; `tests/it/standstill.rs` stops the real one.
#[tokio::test(start_paused = true)]
async fn a_daemon_that_stood_still_ends_nobody_who_was_talking() {
    // With 21 s the deadlines of those who talked came in its last second or so.
    for stood_s in [30, 600, 21].repeat(if is_thorough() { 10 } else { 1 }) {
        let bench = Bench::new().await;
        bench.agent("talks", "talks-ms=5000").await;
        bench.agent("silent", "endless").await;
        bench.agent("a", "answer").await;
        let patience = json!({"turnInactivityTimeout": "20s", "prompt": "hello"});
        for name in ["t0", "t1", "t2", "t3"] {
            let mut spec = patience.clone();
            spec["prompt"] = json!(name);
            bench.session(name, "talks", spec).await;
        }
        bench.session("silent", "silent", patience).await;
        bench.session("old", "a", json!({"ttl": "25s", "prompt": "old"})).await;
        for turn in ["t0-1", "t1-1", "t2-1", "t3-1", "silent-1"] {
            bench.until_phase(turn, TurnPhase::Running).await;
        }
        bench.until_final("old-1").await;
        tokio::time::advance(Duration::from_secs(stood_s)).await;
        // What is due is done, and nobody else's end comes with it.
        let silent = bench.until_final("silent-1").await;
        assert_eq!(silent.status.code, Some(Code::TurnInactivityTimeout), "{stood_s}");
        let is_stopped =
            |session: Option<&Session>| session.unwrap().status.phase == SessionPhase::Stopped;
        let old = bench.until_session("old", is_stopped).await.unwrap();
        assert_eq!(old.status.reason, "TtlExpired");
        bench.pass_time(Duration::from_secs(60)).await;
        for turn in ["t0-1", "t1-1", "t2-1", "t3-1"] {
            let turn = bench.find_turn(turn).await.unwrap();
            assert_eq!(turn.status.phase, TurnPhase::Running, "after {stood_s} s");
        }
    }
}

async fn jumps_told(bench: &Bench) -> u32 {
    // Events are written in batches, a moment later.
    bench.pass_time(Duration::from_secs(1)).await;
    let prefix = keys::kind_prefix(Kind::Event);
    let (stored, _) = bench.memory.list(&prefix, None, 0).await.unwrap();
    let events = stored.iter().map(|it| serde_json::from_slice::<Event>(&it.value).unwrap());
    events.filter(|event| event.reason == "ClockJumped").map(|event| event.count).sum()
}

#[tokio::test(start_paused = true)]
async fn a_jump_of_the_wall_clock_is_told_once_and_ends_nothing() {
    let bench = Bench::new().await;
    bench.agent("a", "answer").await;
    bench.session("s", "a", json!({"ttl": "1h", "idleTimeout": "30m", "prompt": "first"})).await;
    bench.until_final("s-1").await;
    assert_eq!(jumps_told(&bench).await, 0);
    let jumps: [i64; 3] = [4000, 7_200_000, -31_536_000_000];
    for (number, jump_ms) in jumps.into_iter().enumerate() {
        bench.wall.jump(jump_ms);
        // Whatever sets the passes off, the jump is told with the first of them.
        for again in ["a", "b"] {
            let name = format!("t{number}{again}");
            bench.turn(&name, "s", &name).await;
            bench.until_final(&name).await;
        }
        assert_eq!(jumps_told(&bench).await, u32::try_from(number).unwrap(), "{jump_ms} ms");
    }
    assert_eq!(bench.find_session("s").await.unwrap().status.phase, SessionPhase::Idle);
    bench.check_quiet().await;
}

/// Test catalogue H7.
#[tokio::test(start_paused = true)]
async fn an_agent_that_changed_while_the_daemon_was_down_is_tried_five_times() {
    for round in 0..20 {
        let mut bench = Bench::new().await;
        bench.agent("a", "answer").await;
        bench.session("s", "a", json!({"prompt": "first"})).await;
        bench.until_final("s-1").await;
        bench.crash().await;
        let script = ["crash-at=initialize", "crash-at=session/resume", "missing"][round % 3];
        bench.patch(Kind::Agent, "a", json!({"spec": {"command": script}})).await;
        bench.turn("t", "s", "second").await;
        bench.start().await;
        let begun = bench.clock.now().mono;
        // It had a session: each failed start ends a turn, and the next waits for its pause.
        let failed = bench.until_final("t").await;
        assert_eq!(failed.status.code, Some(Code::SpawnAgentStartFailed), "{script}");
        for number in 0..4 {
            let name = format!("more-{number}");
            bench.turn(&name, "s", &name).await;
            bench.until_final(&name).await;
        }
        let spent = bench.clock.now().mono.since(begun);
        assert!(spent >= Duration::from_millis(7500), "{script}: the pauses took {spent:?}");
        let session = bench.find_session("s").await.unwrap();
        let stalled = session.status.conditions.get("Stalled").unwrap();
        assert_eq!(stalled.reason, "CrashLoopBackOff", "{script}");
        let launches = bench.ground.launches();
        bench.pass_time(Duration::from_secs(1200)).await;
        assert_eq!(bench.ground.launches(), launches, "{script}: nothing is tried by itself");
        // A new generation, with a new prompt, clears it; what each clears alone is the planner's test
        // `a_new_generation_or_a_new_prompt_clears_a_crash_loop_and_time_does_not`.
        bench.patch(Kind::Agent, "a", json!({"spec": {"command": "answer"}})).await;
        bench.turn("cured", "s", "cured").await;
        assert_eq!(bench.until_final("cured").await.status.phase, TurnPhase::Completed);
        let session = bench.find_session("s").await.unwrap();
        assert!(session.status.conditions.get("Stalled").is_none());
        bench.check_quiet().await;
    }
}

/// Test catalogue H7: removed, and made again.
#[tokio::test(start_paused = true)]
async fn an_agent_that_was_removed_while_the_daemon_was_down_is_waited_for() {
    let mut bench = Bench::new().await;
    bench.agent("a", "answer").await;
    bench.session("s", "a", json!({"prompt": "first"})).await;
    bench.until_final("s-1").await;
    bench.crash().await;
    bench.delete(Kind::Agent, "a").await;
    bench.turn("t", "s", "second").await;
    bench.start().await;
    let launches = bench.ground.launches();
    bench.pass_time(Duration::from_secs(600)).await;
    assert_eq!(bench.ground.launches(), launches);
    let session = bench.find_session("s").await.unwrap();
    assert_eq!(session.status.conditions.get("AgentResolved").unwrap().reason, "AgentNotFound");
    bench.agent("a", "answer").await;
    assert_eq!(bench.until_final("t").await.status.phase, TurnPhase::Completed);
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_response_is_held_open_for_late_chunks_as_long_as_its_agents_record_says() {
    for (grace, wanted) in [
        ("0s", "echo: hello"),
        ("100ms", "echo: hellolate 0late 1late 2"),
        ("2s", "echo: hellolate 0late 1late 2much later"),
    ] {
        let bench = Bench::new().await;
        bench.agent("a", "late").await;
        bench.patch(Kind::Agent, "a", json!({"spec": {"lateUpdateGrace": grace}})).await;
        bench.session("s", "a", json!({})).await;
        let uid = bench.turn("t", "s", "hello").await;
        let turn = bench.until_final("t").await;
        assert_eq!(turn.status.phase, TurnPhase::Completed);
        assert_eq!(bench.blob(&uid, Stream::Response).await, wanted, "{grace}");
        assert_eq!(turn.status.response_bytes, wanted.len() as u64);
        bench.pass_time(Duration::from_secs(2)).await;
        let transcript = bench.blob(&uid, Stream::Transcript).await;
        let late = transcript.lines().filter(|line| line.contains("\"late\":true")).count();
        assert_eq!(late, 4, "{grace}: late is late, whatever it is counted to");
        bench.check_quiet().await;
    }
}

/// What is held open ends with its process.
#[tokio::test(start_paused = true)]
async fn a_response_that_is_held_open_ends_when_its_session_does() {
    let bench = Bench::new().await;
    bench.agent("a", "late").await;
    bench.patch(Kind::Agent, "a", json!({"spec": {"lateUpdateGrace": "1h"}})).await;
    bench.session("s", "a", json!({"prompt": "hello", "ttl": "10s"})).await;
    let turn = bench.until_final("s-1").await;
    assert_eq!(turn.status.response_bytes, "echo: hellolate 0late 1late 2much later".len() as u64);
    bench.check_quiet().await;
}

/// Promise P11: what is kept after its end is not kept for as much longer as the clock was set back, where
/// nothing was made since that shows that it was.
#[tokio::test(start_paused = true)]
async fn what_ended_ahead_of_the_next_daemons_clock_goes_in_its_time() {
    let mut bench = Bench::new().await;
    bench.agent("a", "answer").await;
    bench.session("s", "a", json!({"ttlAfterFinished": "1h"})).await;
    bench.pass_time(Duration::from_secs(10 * 3600)).await;
    bench.cancel_session("s").await;
    bench.until_session("s", |it| it.is_some_and(|it| it.status.finished_at.is_some())).await;
    bench.crash().await;
    bench.wall.set_back(Duration::from_secs(5 * 3600));
    bench.start().await;
    bench.pass_time(Duration::from_secs(3500)).await;
    assert!(bench.find_session("s").await.is_some(), "it is kept for its whole time");
    bench.pass_time(Duration::from_secs(200)).await;
    assert!(bench.find_session("s").await.is_none(), "and no longer");
}

/// Promise P11, for a session at rest: nobody looks at it but for its deadline.
#[tokio::test(start_paused = true)]
async fn a_ttl_from_a_clock_that_was_ahead_is_looked_at_by_the_next_daemon() {
    let mut bench = Bench::new().await;
    bench.agent("a", "answer").await;
    bench.session("s", "a", json!({"ttl": "1h", "idleTimeout": "10s", "prompt": "hello"})).await;
    bench.until_final("s-1").await;
    bench.until_session("s", |it| it.unwrap().status.phase == SessionPhase::Hibernated).await;
    bench.crash().await;
    bench.wall.set_back(Duration::from_secs(86_400));
    bench.start().await;
    bench.pass_time(Duration::from_secs(3500)).await;
    let session = bench.find_session("s").await.unwrap();
    assert_eq!(session.status.phase, SessionPhase::Hibernated, "its whole time once more");
    assert_eq!(session.status.lineage.ttl_expires_at, session.status.next_deadline);
    bench.pass_time(Duration::from_secs(200)).await;
    assert_eq!(bench.find_session("s").await.unwrap().status.reason, "TtlExpired");
}
