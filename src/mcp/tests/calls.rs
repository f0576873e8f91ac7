//! What the tools say of records, and how calls wait and end.

use super::*;
use crate::api::turn::{Delivery, TurnPhase};

fn sent(turn: &mut Turn) {
    turn.status.phase = TurnPhase::Running;
    turn.status.delivery = Delivery::Sent;
}

#[tokio::test]
async fn the_agents_are_listed_by_name() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    let told = bench.told(&me.token, "available_agents", json!({})).await;
    let stub = json!({"agentId": "stub", "name": "A stub", "description": "For tests."});
    assert_eq!(told, json!({"agents": [stub]}));
}

#[tokio::test]
async fn accepted_is_said_only_once_the_agent_has_the_prompt() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    let call = bench.told(&me.token, "prompt_to_agent", json!({"agentId": "stub", "prompt": "p"}));
    tokio::pin!(call);
    let script = async {
        let turn = bench.open_turn(&me).await.metadata.uid;
        bench.turn(&turn, |turn| turn.status.phase = TurnPhase::Starting).await;
        bench.turn(&turn, |turn| turn.status.delivery = Delivery::Unknown).await;
        turn
    };
    let turn = tokio::select! {
        biased;
        told = &mut call => panic!("said before the prompt was written: {told:#}"),
        turn = script => turn,
    };
    bench.turn(&turn, sent).await;
    let told = call.await;
    assert_eq!(told["status"], "accepted");
    assert_eq!(told["turnId"], json!(turn));
}

#[tokio::test]
async fn a_call_that_waits_for_the_end_gets_the_answer_and_reads_on() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    let text = "äöü€😀 ".repeat(20_000);
    let arguments = json!({"agentId": "stub", "prompt": "p", "background": false});
    let call = bench.told(&me.token, "prompt_to_agent", arguments);
    let script = async {
        let turn = bench.open_turn(&me).await;
        assert!(!turn.spec.background);
        bench.turn(&turn.metadata.uid, sent).await;
        bench.answer(&turn.metadata.uid, &text).await;
    };
    let (told, ()) = tokio::join!(call, script);
    assert_eq!(told["status"], "completed");
    assert_eq!(told["stopReason"], "end_turn");
    assert_eq!(told["truncated"], true);
    let mut joined = told["content"].as_str().unwrap().to_owned();
    assert!(joined.len() <= 24 * 1024 && joined.len() > 24 * 1024 - 4);
    let mut cursor = told["nextCursor"].clone();
    let mut sizes = [4, 5, 6, 7, 65_536].into_iter().cycle();
    while !cursor.is_null() {
        let max = sizes.next().unwrap();
        let piece = bench
            .told(
                &me.token,
                "read_response",
                json!({
                    "sessionId": told["sessionId"], "responseId": told["responseId"],
                    "cursor": cursor, "maxBytes": max,
                }),
            )
            .await;
        let content = piece["content"].as_str().unwrap();
        assert!(!content.is_empty() && content.len() <= max, "{max}: {}", content.len());
        joined.push_str(content);
        cursor = piece.get("nextCursor").cloned().unwrap_or_default();
        assert_eq!(piece["done"], cursor.is_null());
    }
    assert!(joined == text, "{} of {} bytes", joined.len(), text.len());
}

#[tokio::test]
async fn a_call_waits_as_long_as_it_may_and_tells_of_progress() {
    // Real time: a stream's keep-alive has a clock of its own, which pausing does not stop.
    let bench = Bench::with(Options {
        max_wait: Duration::from_secs(1),
        progress_every: Duration::from_millis(20),
    })
    .await;
    let me = bench.holder("me").await;
    let request = Bench::modern(
        &me.token,
        "/mcp",
        "tools/call",
        json!({
            "name": "prompt_to_agent",
            "arguments": {"agentId": "stub", "prompt": "p", "background": false},
            "_meta": {"progressToken": "tell me"},
        }),
    );
    let all = messages(bench.open(request).await).await;
    let (last, told) = all.split_last().unwrap();
    assert_eq!(last["result"]["structuredContent"]["status"], "running", "{last:#}");
    assert_eq!(last["result"]["structuredContent"]["phase"], "Pending");
    assert!((1..=50).contains(&told.len()), "{told:#?}");
    for (index, notice) in told.iter().enumerate() {
        assert_eq!(notice["method"], "notifications/progress");
        assert_eq!(notice["params"]["progressToken"], "tell me");
        assert_eq!(notice["params"]["progress"].as_f64(), Some((index + 1) as f64));
    }
    // The turn goes on.
    let open = bench.open_turn(&me).await;
    assert_eq!(open.status.phase, TurnPhase::Pending);
    assert!(open.status.cancel.is_none());
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_a_call_waits_for_the_end() {
    let options = Options { max_wait: Duration::ZERO, progress_every: Duration::from_secs(10) };
    let bench = Bench::with(options).await;
    let me = bench.holder("me").await;
    let arguments = json!({"agentId": "stub", "prompt": "p", "background": false});
    let call = bench.told(&me.token, "prompt_to_agent", arguments);
    let script = async {
        let turn = bench.open_turn(&me).await.metadata.uid;
        tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
        bench.answer(&turn, "at last").await;
    };
    let (told, ()) = tokio::join!(call, script);
    assert_eq!(told["content"], "at last");
}

#[tokio::test]
async fn ends_of_turns_are_told_as_what_they_are() {
    let issue = json!({
        "parameter": "model", "reason": "ambiguous", "requested": "x",
        "candidates": [{"value": "a", "name": "A"}, {"value": "b", "name": "B"}],
    });
    for (background, status, expected) in [
        (
            true,
            json!({"phase": "Discarded", "code": "SPAWN_CONFIGURATION_REQUIRED", "issues": [issue]}),
            json!({"status": "configuration_required", "promptDispatched": false, "issues": [issue]}),
        ),
        (
            true,
            json!({"phase": "Discarded", "code": "SPAWN_CONFIG_FAILED", "message": "why"}),
            json!({"status": "error", "code": "SPAWN_CONFIG_FAILED", "message": "why"}),
        ),
        (
            true,
            json!({"phase": "Failed", "code": "SPAWN_AGENT_START_FAILED", "message": "why"}),
            json!({"status": "error", "code": "SPAWN_AGENT_START_FAILED", "message": "why"}),
        ),
        (
            true,
            json!({"phase": "Interrupted", "code": "APP_SHUTDOWN", "delivery": "Unknown"}),
            json!({"status": "error", "code": "APP_SHUTDOWN"}),
        ),
        // The prompt was written: that is what a background call is about.
        (
            true,
            json!({"phase": "Failed", "code": "TURN_FAILED", "delivery": "Sent"}),
            json!({"status": "accepted"}),
        ),
        (
            false,
            json!({"phase": "Failed", "code": "TURN_FAILED", "delivery": "Sent", "message": "why"}),
            json!({"status": "error", "code": "TURN_FAILED", "message": "why"}),
        ),
        (
            false,
            json!({"phase": "Cancelled", "code": "TURN_CANCELLED_BY_PARENT", "delivery": "Sent"}),
            json!({"status": "error", "code": "TURN_CANCELLED_BY_PARENT"}),
        ),
        (false, json!({"phase": "Completed", "delivery": "Sent"}), json!({"status": "completed"})),
    ] {
        let bench = Bench::new().await;
        let me = bench.holder("me").await;
        let arguments = json!({"agentId": "stub", "prompt": "p", "background": background});
        let call = bench.told(&me.token, "prompt_to_agent", arguments);
        let script = async {
            let turn = bench.open_turn(&me).await.metadata.uid;
            let status: crate::api::turn::TurnStatus = serde_json::from_value(status).unwrap();
            bench.turn(&turn, |turn| turn.status = status.clone()).await;
        };
        let (told, ()) = tokio::join!(call, script);
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(&told[field], value, "{told:#}");
        }
    }
}

#[tokio::test]
async fn a_session_at_work_is_busy_and_what_cannot_go_on_expired() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    let made = bench.made(&me).await;
    let session = made.session.metadata.uid.clone();
    let again = json!({"agentId": "stub", "prompt": "p", "sessionId": session});
    let told = bench.told(&me.token, "prompt_to_agent", again.clone()).await;
    assert_eq!(told["status"], "busy");
    assert_eq!(told["sessionId"], json!(session));
    let status = bench.told(&me.token, "check_session_status", json!({"sessionId": session})).await;
    assert_eq!((&status["status"], &status["phase"]), (&json!("running"), &json!("Pending")));

    bench.answer(&made.turn.metadata.uid, "done").await;
    let name = made.turn.metadata.name.clone();
    bench
        .session(&session, |session| {
            session.status.queued_turns = 0;
            session.status.latest_turn = Some(name.clone());
            session.status.prompted = true;
        })
        .await;
    let status = bench.told(&me.token, "check_session_status", json!({"sessionId": session})).await;
    assert_eq!(status["status"], "idle");
    assert_eq!(status["latestResponseId"], json!(made.turn.metadata.uid));

    bench
        .session(&session, |session| {
            session.status.end = Some(
                serde_json::from_value(json!({
                    "outcome": "Expired", "reason": "SessionLost", "message": "it is lost",
                    "code": "AGENT_PROCESS_INVALIDATED", "at": "2026-01-01T00:00:00Z",
                }))
                .unwrap(),
            );
        })
        .await;
    let told = bench.told(&me.token, "prompt_to_agent", again).await;
    assert_eq!(
        told,
        json!({
            "status": "expired", "sessionId": session, "code": "AGENT_PROCESS_INVALIDATED",
            "message": "it is lost",
        })
    );
}

#[tokio::test]
async fn a_full_daemon_says_so_in_a_result() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    for _ in 0..4 {
        bench.made(&me).await;
    }
    let arguments = json!({"agentId": "stub", "prompt": "p"});
    let told = bench.told(&me.token, "prompt_to_agent", arguments).await;
    let code = "SPAWN_CAPACITY_EXCEEDED";
    assert_eq!(told, json!({"status": "capacity_exceeded", "code": code, "retryable": true}));
}

#[tokio::test]
async fn a_client_that_hangs_up_before_dispatch_takes_its_call_back() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    let arguments = json!({"agentId": "stub", "prompt": "p"});
    let call = bench.told(&me.token, "prompt_to_agent", arguments);
    let turn = tokio::select! {
        told = call => panic!("{told:#}"),
        turn = bench.open_turn(&me) => turn,
    };
    // The call is dropped: in 2026-07-28 that is a cancel.
    let mut watch = bench.store.watch("/turn/", crate::store::Rev(0)).await.unwrap();
    loop {
        let change = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
        let crate::store::Change::Put(record) = change else { continue };
        let turn: Turn =
            crate::store::records::decode(&record.key, &record.value, record.rev).unwrap();
        if let Some(cancel) = turn.status.cancel {
            assert_eq!(cancel.by, crate::api::turn::CancelBy::CallCancelled);
            break;
        }
    }
    let session = turn.metadata.owner_references[0].uid.clone();
    let session = bench.records.by_uid::<SessionSpec>(&session).await.unwrap().unwrap();
    assert!(session.metadata.is_deleting(), "the call had made it");
}

#[tokio::test]
async fn a_client_that_hangs_up_after_dispatch_takes_nothing_back() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    for _ in 0..20 {
        let arguments = json!({"agentId": "stub", "prompt": "p", "background": false});
        let call = bench.told(&me.token, "prompt_to_agent", arguments);
        let script = async {
            let turn = bench.open_turn(&me).await.metadata.uid;
            bench.turn(&turn, sent).await;
            turn
        };
        let turn = tokio::select! {
            told = call => panic!("{told:#}"),
            turn = script => turn,
        };
        // What is asked later is answered after the cancelled call has been dealt with.
        bench.told(&me.token, "available_agents", json!({})).await;
        bench.answer(&turn, "done").await;
        let turn = bench.records.by_uid::<TurnSpec>(&turn).await.unwrap().unwrap();
        assert_eq!(turn.status.phase, TurnPhase::Completed);
        assert!(turn.status.cancel.is_none());
        // Gives the slot back, as the loop does.
        bench.free().await;
    }
}

#[tokio::test]
async fn cancelling_asks_for_the_end_once_it_is_durable() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    let made = bench.made(&me).await;
    let session = made.session.metadata.uid.clone();
    let told = bench.told(&me.token, "cancel_session", json!({"sessionId": session})).await;
    assert_eq!(told, json!({"cancelled": true}));
    let record = bench.records.by_uid::<SessionSpec>(&session).await.unwrap().unwrap();
    assert_eq!(record.spec.desired_state, crate::api::session::DesiredState::Cancelled);
    bench.answer(&made.turn.metadata.uid, "done").await;
    bench.session(&session, |session| session.status.queued_turns = 0).await;
    let told = bench.told(&me.token, "cancel_session", json!({"sessionId": session})).await;
    assert_eq!(told, json!({"cancelled": false, "reason": "Session not found"}));
}

#[tokio::test]
async fn a_cursor_that_was_not_given_out_is_refused() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    let mut cursors = Vec::new();
    for _ in 0..2 {
        let made = bench.made(&me).await;
        bench.answer(&made.turn.metadata.uid, &"x".repeat(100)).await;
        let arguments = json!({
            "sessionId": made.session.metadata.uid, "responseId": made.turn.metadata.uid,
            "maxBytes": 10,
        });
        let piece = bench.told(&me.token, "read_response", arguments.clone()).await;
        cursors.push((arguments, piece["nextCursor"].as_str().unwrap().to_owned()));
    }
    let (arguments, own) = &cursors[0];
    let foreign = &cursors[1].1;
    let mut texts = std::collections::BTreeSet::new();
    for forged in
        [foreign.clone(), own.to_uppercase(), format!(" {own}"), own[1..].to_owned(), "x".into()]
    {
        let mut arguments = arguments.clone();
        arguments["cursor"] = forged.clone().into();
        if forged == *own {
            continue;
        }
        let error = bench.refused(&me.token, "read_response", arguments).await;
        assert_eq!(error["code"], "SPAWN_INVALID_REQUEST", "{forged}");
        texts.insert(error.to_string());
    }
    assert_eq!(texts.len(), 1, "one text for all: {texts:?}");
    let mut arguments = arguments.clone();
    arguments["cursor"] = own.clone().into();
    assert_eq!(bench.told(&me.token, "read_response", arguments).await["content"], "x".repeat(10));
}
