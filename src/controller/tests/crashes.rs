//! Daemons that die at every commit, and start again.

use std::time::Duration;

use serde_json::json;

use super::bench::{Bench, is_thorough};
use super::gate::Side;
use crate::api::session::SessionPhase;
use crate::api::turn::TurnPhase;
use crate::api::{Code, Session};

/// What goes on while the daemon dies: turns that end, one that is cancelled, a session that is
/// deleted.
async fn work(bench: &Bench) {
    bench.agent("a", "thinks-ms=20").await;
    bench.agent("endless", "endless").await;
    bench.session("s1", "a", json!({"prompt": "s1 first"})).await;
    bench.turn("t1", "s1", "s1 second").await;
    bench.session("s2", "endless", json!({"prompt": "s2 first"})).await;
    bench.session("s3", "endless", json!({"prompt": "s3 first"})).await;
}

async fn more_work(bench: &Bench) {
    bench.pass_time(Duration::from_millis(15)).await;
    bench.cancel_turn("s2-1").await;
    bench.pass_time(Duration::from_millis(15)).await;
    bench.delete(crate::api::Kind::Session, "s3").await;
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_dies_at_any_commit_sends_no_prompt_twice_and_ends_each_turn_once() {
    let mut died = 0;
    for commit in 0..60 {
        let sides = if is_thorough() {
            vec![Side::Before, Side::After]
        } else {
            vec![if commit % 2 == 0 { Side::Before } else { Side::After }]
        };
        for side in sides {
            let mut bench = Bench::still(2);
            work(&bench).await;
            bench.die_at(commit, side);
            bench.start().await;
            more_work(&bench).await;
            let stood = bench.gate.stood.clone();
            tokio::select! {
                () = stood.cancelled() => died += 1,
                () = bench.pass_time(Duration::from_secs(30)) => {}
            }
            bench.crash().await;
            bench.start().await;
            let turns = bench.until_all_final().await;
            assert!(turns.iter().any(|turn| turn.metadata.name.as_str() == "t1"));
            bench.until_session("s3", |session| session.is_none()).await;
            bench.pass_time(Duration::from_secs(60)).await;
            bench.check_quiet().await;
        }
    }
    assert!(died > 20, "only {died} daemons died: the run is too short");
}

#[tokio::test(start_paused = true)]
async fn a_turn_in_which_the_daemon_died_is_interrupted_and_its_session_goes_on() {
    let mut bench = Bench::new().await;
    bench.agent("a", "thinks-ms=60000").await;
    bench.session("s", "a", json!({"prompt": "hello"})).await;
    bench.turn("queued", "s", "queued").await;
    bench.until_phase("s-1", TurnPhase::Running).await;
    bench.crash().await;
    bench.start().await;
    let turn = bench.until_final("s-1").await;
    assert_eq!(turn.status.phase, TurnPhase::Interrupted);
    assert_eq!(turn.status.code, Some(Code::AppRestarted));
    assert_eq!(bench.until_final("queued").await.status.phase, TurnPhase::Completed);
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn an_orderly_stop_interrupts_what_runs_and_keeps_what_waits() {
    let mut bench = Bench::with_slots(2).await;
    bench.agent("a", "endless").await;
    bench.agent("deaf", "stubborn ignores-term").await;
    bench.session("s", "a", json!({"prompt": "hello"})).await;
    bench.session("d", "deaf", json!({"prompt": "deaf"})).await;
    bench.turn("queued", "s", "queued").await;
    bench.until_phase("s-1", TurnPhase::Running).await;
    bench.until_phase("d-1", TurnPhase::Running).await;
    let begun = bench.clock.now().time;
    bench.stop().await;
    assert!(bench.clock.now().time.since(begun) <= Duration::from_secs(15));
    bench.pass_time(Duration::from_millis(1)).await;
    assert_eq!(bench.ground.alive(), 0);
    for name in ["s-1", "d-1"] {
        let turn = bench.find_turn(name).await.unwrap();
        assert_eq!(turn.status.phase, TurnPhase::Interrupted, "{turn:#?}");
        assert_eq!(turn.status.code, Some(Code::AppShutdown));
    }
    assert_eq!(bench.find_turn("queued").await.unwrap().status.phase, TurnPhase::Pending);
    bench.start().await;
    bench.until_phase("queued", TurnPhase::Running).await;
    bench.cancel_turn("queued").await;
    bench.until_all_final().await;
    let session = bench.find_session("s").await.unwrap();
    assert_eq!(session.status.phase, SessionPhase::Idle);
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn an_orderly_stop_does_not_wait_for_a_backlog_without_processes() {
    let mut bench = Bench::still(2);
    bench.agent("a", "endless").await;
    for number in 0..100 {
        bench.session(&format!("s{number}"), "a", json!({})).await;
    }
    bench.start().await;
    bench.stop().await;
    let mut observed = 0;
    for number in 0..100 {
        let session = bench.find_session(&format!("s{number}")).await.unwrap();
        observed += usize::from(session.status.observed_generation > 0);
    }
    assert_eq!(observed, 0, "the stop waited for passes that end nothing");
    // The next daemon looks at them.
    bench.start().await;
    for number in 0..100 {
        let name = format!("s{number}");
        let is_observed = |session: Option<&Session>| {
            session.is_some_and(|session| session.status.observed_generation > 0)
        };
        bench.until_session(&name, is_observed).await;
    }
}

/// Test catalogue D11.
#[tokio::test(start_paused = true)]
async fn an_orderly_stop_ends_the_turns_in_every_slot_as_shut_down() {
    let mut bench = Bench::with_slots(8).await;
    let scripts = ["endless", "stubborn", "stubborn ignores-term", "asks-on-cancel"];
    bench.external("caller").await;
    for (number, script) in scripts.iter().cycle().take(8).enumerate() {
        let (agent, name) = (format!("a{number}"), format!("s{number}"));
        bench.agent(&agent, script).await;
        let spec = json!({"prompt": name.clone()});
        if number < 4 {
            bench.child(&name, "caller", &agent, spec).await;
        } else {
            bench.session(&name, &agent, spec).await;
        }
    }
    for number in 0..8 {
        bench.until_phase(&format!("s{number}-1"), TurnPhase::Running).await;
    }
    let begun = bench.clock.now().time;
    bench.stop().await;
    assert!(bench.clock.now().time.since(begun) <= Duration::from_secs(15));
    bench.pass_time(Duration::from_millis(1)).await;
    assert_eq!(bench.ground.alive(), 0);
    for turn in bench.all_turns().await {
        assert_eq!(turn.status.phase, TurnPhase::Interrupted, "{turn:#?}");
        assert_eq!(turn.status.code, Some(Code::AppShutdown), "{turn:#?}");
    }
    bench.start().await;
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_slot_of_a_turn_that_is_gone_is_free_after_the_next_start() {
    use crate::plan::capacity::Holder;
    use crate::store::{Commit, Op, Store, keys};
    let mut bench = Bench::still(1);
    let holders = vec![Holder { turn: "nobody".into(), parent: None }];
    let value = serde_json::to_vec(&holders).unwrap().into();
    let ops = vec![Op::Put { key: keys::quota_global(), value }];
    bench.memory.commit(Commit { guards: Vec::new(), ops }).await.unwrap();
    bench.start().await;
    bench.agent("a", "answer").await;
    bench.session("s", "a", json!({"prompt": "hello"})).await;
    assert_eq!(bench.until_final("s-1").await.status.phase, TurnPhase::Completed);
    bench.check_quiet().await;
}
