//! Stores that fail.

use std::time::Duration;

use serde_json::json;

use super::bench::{Bench, is_thorough};
use crate::api::Kind;
use crate::api::session::SessionPhase;
use crate::store::Error;

const AGENTS: [&str; 5] =
    ["thinks-ms=50", "endless", "crash-at=session/prompt", "late", "stubborn"];

/// A whole life over a store that fails by the seed, then one that does not.
async fn run(seed: u64) {
    let (mut bench, faults) = Bench::faulty(2, seed);
    for (number, script) in AGENTS.iter().enumerate() {
        bench.agent(&format!("a{number}"), script).await;
    }
    bench.start().await;
    let mut made = Vec::new();
    for number in 0..AGENTS.len() {
        let session = format!("s{number}");
        bench
            .session(&session, &format!("a{number}"), json!({"prompt": format!("{session}-1")}))
            .await;
        bench.turn(&format!("{session}-x"), &session, &format!("{session}-x")).await;
        made.push(session);
        bench.pass_time(Duration::from_millis(seed % 7 * 10)).await;
        restart_if_ended(&mut bench).await;
    }
    bench.cancel_turn("s1-1").await;
    bench.pass_time(Duration::from_millis(seed % 11 * 100)).await;
    bench.delete(Kind::Session, "s4").await;
    bench.pass_time(Duration::from_secs(seed % 5)).await;
    if seed.is_multiple_of(3) {
        bench.crash().await;
        bench.start().await;
    }
    restart_if_ended(&mut bench).await;
    faults.set_on(false);
    // A call that was under way when the faults went off may still fail, and end a start.
    bench.pass_time(Duration::from_secs(1)).await;
    restart_if_ended(&mut bench).await;
    bench.pass_time(Duration::from_secs(30)).await;
    for name in ["s1-1", "s1-x"] {
        bench.cancel_turn(name).await;
    }
    for name in made.iter().filter(|name| *name != "s4") {
        assert!(bench.find_session(name).await.is_some(), "seed {seed}: {name} is lost");
        assert!(bench.find_turn(&format!("{name}-x")).await.is_some(), "seed {seed}");
    }
    bench.until_all_final().await;
    bench.until_session("s4", |session| session.is_none()).await;
    bench.pass_time(Duration::from_secs(60)).await;
    bench.check_quiet().await;
    for session in bench.all_sessions().await {
        let phase = session.status.phase;
        assert!(
            matches!(phase, SessionPhase::Idle | SessionPhase::Hibernated),
            "seed {seed}: {} is {phase:?}",
            session.metadata.name
        );
        assert!(session.status.active_turn.is_none());
        assert_eq!(session.status.queued_turns, 0);
    }
}

/// A loop whose start failed at the store is started again, as whoever runs the daemon does.
async fn restart_if_ended(bench: &mut Bench) {
    while bench.has_ended() {
        bench.crash().await;
        bench.start().await;
        bench.pass_time(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_harsh_store_loses_nothing_sends_nothing_twice_and_all_converges_when_it_is_good() {
    for seed in 0..if is_thorough() { 2000 } else { 200 } {
        run(seed).await;
    }
}

/// Test catalogue C4, short.
#[tokio::test(start_paused = true)]
async fn a_store_error_at_any_one_call_is_survived() {
    let errors = [
        Error::Unavailable("injected".to_owned()),
        Error::Unknown("injected".to_owned()),
        Error::Conflict { key: crate::store::Key::new("/injected") },
    ];
    for error in errors {
        let mut call = 8;
        loop {
            let bench = Bench::with_slots(1).await;
            bench.agent("a", "answer").await;
            bench.pass_time(Duration::from_millis(1)).await;
            bench.gate.fail_at(call, error.clone());
            bench.session("s1", "a", json!({"prompt": "one"})).await;
            bench.session("s2", "a", json!({"prompt": "two"})).await;
            bench.until_all_final().await;
            bench.delete(Kind::Session, "s1").await;
            bench.until_session("s1", |session| session.is_none()).await;
            bench.pass_time(Duration::from_secs(60)).await;
            bench.check_quiet().await;
            assert_eq!(bench.ground.times_prompted("two"), 1);
            if !bench.gate.has_failed() {
                break;
            }
            call += 1;
        }
        assert!(call > 60, "only {call} calls");
    }
}
