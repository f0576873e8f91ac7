//! Questions of agents, through the whole loop (test catalogue E6, and C08, C13 and F16 of the known
//! failures).

use std::time::Duration;

use serde_json::json;

use super::bench::{Bench, is_thorough};
use crate::api::permission::{Decision, PermissionPhase};
use crate::api::session::SessionPhase;
use crate::api::turn::TurnPhase;
use crate::api::{Kind, PermissionRequest, Turn};
use crate::store::Stream;

/// A bench with a session whose agent asks as its script says, in a turn that runs.
async fn asking(script: &str, more: serde_json::Value) -> Bench {
    let bench = Bench::new().await;
    bench.agent("a", script).await;
    let mut spec = json!({"prompt": "hello", "permissions": "ask"});
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    bench.session("s", "a", spec).await;
    bench
}

async fn decide(bench: &Bench, request: &PermissionRequest, decision: Decision) {
    let name = request.metadata.name.as_str();
    bench.patch(Kind::PermissionRequest, name, json!({"spec": {"decision": decision}})).await;
}

/// What the agent was told, in order.
fn told(bench: &Bench) -> Vec<String> {
    let notes = bench.ground.notes().into_iter();
    notes.filter_map(|note| note.strip_prefix("permission ").map(str::to_owned)).collect()
}

async fn phases(bench: &Bench) -> Vec<PermissionPhase> {
    bench.all_requests().await.iter().map(|request| request.status.phase).collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_decided_is_what_the_agent_is_told() {
    for (decision, option) in [(Decision::Allow, "y"), (Decision::Deny, "n")] {
        let bench = asking("asks", json!({})).await;
        let request = bench.until_asked(1).await.remove(0);
        assert_eq!(request.spec.tool_call.title.as_deref(), Some("writes file 1"));
        assert_eq!(request.spec.options.len(), 2);
        let waits = |turn: &Turn| turn.status.waiting_for.is_some();
        let waiting = bench.until_turn("s-1", waits).await.status.waiting_for.unwrap();
        assert_eq!(waiting.permission, request.metadata.name);
        assert_eq!(waiting.tool, "writes file 1");
        let session = bench.find_session("s").await.unwrap();
        assert_eq!(session.status.phase, SessionPhase::Running);
        assert_eq!(session.status.reason, "WaitingForPermission");
        assert!(told(&bench).is_empty());
        decide(&bench, &request, decision).await;
        let turn = bench.until_phase("s-1", TurnPhase::Completed).await;
        assert_eq!(told(&bench), [option]);
        assert_eq!(phases(&bench).await, [PermissionPhase::Answered]);
        let said = bench.blob(&turn.metadata.uid, Stream::Transcript).await;
        assert!(said.contains(&format!("\"option\":\"{option}\"")), "{said}");
        bench.check_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_that_nobody_decides_is_rejected_in_its_time_and_no_other_clock_runs() {
    let bench = asking("asks", json!({"turnInactivityTimeout": "20s"})).await;
    let request = bench.until_asked(1).await.remove(0);
    let asked_at = request.metadata.creation_timestamp.unwrap();
    assert_eq!(request.status.expires_at, Some(asked_at.plus(Duration::from_secs(300))));
    bench.pass_time(Duration::from_secs(290)).await;
    assert_eq!(phases(&bench).await, [PermissionPhase::Pending]);
    let turn = bench.until_final("s-1").await;
    assert_eq!(turn.status.phase, TurnPhase::Completed, "rejected, not cancelled: {turn:#?}");
    assert_eq!(told(&bench), ["n"]);
    let request = bench.all_requests().await.remove(0);
    assert_eq!(request.status.phase, PermissionPhase::TimedOut);
    let waited = request.status.finished_at.unwrap().since(asked_at);
    assert!(waited >= Duration::from_secs(300) && waited < Duration::from_secs(301), "{waited:?}");
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_question_ends_cancelled_with_its_turn_its_session_and_its_process() {
    for how in ["turn", "session", "delete", "stop", "crash"] {
        let mut bench = asking("asks=3", json!({})).await;
        bench.until_asked(3).await;
        match how {
            "turn" => bench.cancel_turn("s-1").await,
            "session" => bench.cancel_session("s").await,
            "delete" => bench.delete(Kind::Session, "s").await,
            "stop" => {
                bench.stop().await;
                bench.start().await;
            }
            _ => {
                bench.crash().await;
                bench.start().await;
                bench.handle().booted().await;
                // None is left that waits for what nobody can answer.
                assert_eq!(phases(&bench).await, [PermissionPhase::Cancelled; 3]);
            }
        }
        if how == "delete" {
            bench.until_session("s", |session| session.is_none()).await;
            assert_eq!(phases(&bench).await, [], "they go with their session");
        } else {
            bench.until_final("s-1").await;
            bench.pass_time(Duration::from_secs(1)).await;
            assert_eq!(phases(&bench).await, [PermissionPhase::Cancelled; 3], "{how}");
        }
        assert!(told(&bench).iter().all(|answer| answer == "cancelled"), "{how}");
        bench.pass_time(Duration::from_secs(600)).await;
        bench.check_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_that_is_taken_back_waits_no_more_and_cannot_be_decided() {
    let bench = asking("asks withdraws-ms=500", json!({})).await;
    let request = bench.until_asked(1).await.remove(0);
    bench.until_phase("s-1", TurnPhase::Completed).await;
    bench.until_asked(0).await;
    assert_eq!(phases(&bench).await, [PermissionPhase::Cancelled]);
    assert_eq!(told(&bench), ["nothing"]);
    let (namespace, name) = ("default".into(), request.metadata.name);
    let patch = json!({"spec": {"decision": "allow"}});
    let refused = bench
        .admission
        .patch(
            Kind::PermissionRequest,
            &namespace,
            &name,
            patch,
            &crate::admission::WriteOptions::default(),
            &crate::admission::Writer::Operator,
        )
        .await
        .unwrap_err();
    assert_eq!((refused.code(), refused.to_string().contains("Cancelled")), (409, true));
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn more_questions_than_may_wait_are_refused_and_the_others_are_answered() {
    let bench = asking("asks=70", json!({})).await;
    for request in bench.until_asked(64).await {
        decide(&bench, &request, Decision::Allow).await;
    }
    bench.until_phase("s-1", TurnPhase::Completed).await;
    let told = told(&bench);
    assert_eq!(told.iter().filter(|answer| *answer == "y").count(), 64);
    assert_eq!(told.iter().filter(|answer| *answer == "nothing").count(), 6);
    // The next turn's questions push out the oldest, and a turn takes its own along.
    bench.turn("next", "s", "next").await;
    for request in bench.until_asked(64).await {
        decide(&bench, &request, Decision::Deny).await;
    }
    bench.until_phase("next", TurnPhase::Completed).await;
    assert!(bench.all_requests().await.len() <= 64);
    bench.delete(Kind::Turn, "next").await;
    let left = bench.all_requests().await;
    assert!(left.iter().all(|request| request.spec.turn.as_str() == "s-1"), "{left:#?}");
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_deleted_while_it_asks_takes_its_questions_along() {
    let bench = asking("asks=2", json!({})).await;
    bench.until_asked(2).await;
    bench.delete(Kind::Turn, "s-1").await;
    bench
        .until("the turn is gone", |bench| bench.ground.notes().contains(&"cancel".to_owned()))
        .await;
    bench.pass_time(Duration::from_secs(5)).await;
    assert!(bench.find_turn("s-1").await.is_none());
    assert_eq!(phases(&bench).await, []);
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_turn_of_the_same_name_left_is_not_in_the_way() {
    let bench = asking("asks", json!({})).await;
    let mut left = bench.until_asked(1).await.remove(0);
    bench.delete(Kind::Session, "s").await;
    bench.until_session("s", |session| session.is_none()).await;
    // As if the daemon had died before it removed the record.
    left.metadata.uid = "0198c0de-0000-7000-8000-0000000000ff".into();
    left.status.phase = PermissionPhase::TimedOut;
    let txn = crate::store::records::Txn::new().create(&left);
    txn.commit(bench.admission.records().store().as_ref()).await.unwrap();
    bench.session("s", "a", json!({"prompt": "again", "permissions": "ask"})).await;
    let request = bench.until_asked(1).await.remove(0);
    assert_eq!(request.metadata.name, left.metadata.name);
    assert_ne!(request.metadata.owner_references, left.metadata.owner_references);
    decide(&bench, &request, Decision::Allow).await;
    bench.until_phase("s-1", TurnPhase::Completed).await;
    bench.check_quiet().await;
}

/// Test catalogue E6: a decision, a cancel and the end of the question's time in the same moments.
#[tokio::test(start_paused = true)]
async fn decisions_cancels_and_times_race_to_one_answer_that_the_record_has() {
    let races: usize = if is_thorough() { 600 } else { 90 };
    for race in 0..races {
        let bench = asking("asks", json!({})).await;
        let request = bench.until_asked(1).await.remove(0);
        let left = request.status.expires_at.unwrap().since(bench.clock.now().time);
        if race % 3 == 0 {
            bench.pass_time(left.saturating_sub(Duration::from_millis((race % 4) as u64))).await;
        }
        for _ in 0..race % 50 {
            tokio::task::yield_now().await;
        }
        let patch = json!({"spec": {"decision": "allow"}});
        let (namespace, name) = ("default".into(), request.metadata.name.clone());
        // It may come too late.
        let _ = bench
            .admission
            .patch(
                Kind::PermissionRequest,
                &namespace,
                &name,
                patch,
                &crate::admission::WriteOptions::default(),
                &crate::admission::Writer::Operator,
            )
            .await;
        for _ in 0..race / 3 % 40 {
            tokio::task::yield_now().await;
        }
        bench.cancel_turn("s-1").await;
        let turn = bench.until_final("s-1").await;
        bench.pass_time(Duration::from_secs(10)).await;
        let request = bench.all_requests().await.remove(0);
        let expected = match request.status.phase {
            PermissionPhase::Answered => "y",
            PermissionPhase::TimedOut => "n",
            PermissionPhase::Cancelled => "cancelled",
            PermissionPhase::Pending => panic!("race {race}: {request:#?}"),
        };
        let told = told(&bench);
        // A cancel answers what is open at once: it may overtake an answer that was just recorded.
        let is_overtaken = told == ["cancelled"] && turn.status.phase == TurnPhase::Cancelled;
        assert!(told == [expected] || is_overtaken, "race {race}: {told:?} {request:#?}");
        bench.check_quiet().await;
    }
}
