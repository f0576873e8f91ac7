//! What an agent wrote, through every answer that has it: escaped in all of them but its response
//! (P19, G1).

use super::*;
use crate::api::config::Http;
use crate::boundary::escape::{corpus, unescape};

/// Every text of an answer but the agent's response.
fn texts<'a>(answer: &'a Value, into: &mut Vec<&'a str>) {
    match answer {
        Value::String(text) => into.push(text),
        Value::Array(items) => items.iter().for_each(|item| texts(item, into)),
        Value::Object(fields) => {
            fields.iter().filter(|(name, _)| *name != "content").for_each(|(_, value)| {
                texts(value, into);
            });
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The answer has this text so many times at least, and nothing raw.
fn check(answer: &Value, text: &str, times: usize) {
    let mut found = Vec::new();
    texts(answer, &mut found);
    let faults: Vec<_> = found.iter().filter_map(|found| corpus::fault(found)).collect();
    assert_eq!(faults, Vec::<String>::new(), "{answer:#}");
    let told = found.iter().filter(|found| unescape(found).as_deref() == Some(text)).count();
    assert!(told >= times, "{text:?} is told {told} times: {answer:#}");
}

/// The corpus: in each attack once, with other words each time, or whole where there is time for
/// thousands of calls (`SPAWNLET_TIER`). All of it goes through the escape itself in each run.
fn strings() -> Vec<String> {
    let whole = corpus::strings();
    if std::env::var("SPAWNLET_TIER").is_ok_and(|tier| tier == "2") {
        return whole;
    }
    whole.chunks(15).enumerate().map(|(attack, words)| words[attack % 15].clone()).collect()
}

/// States of a turn with an agent's words wherever they can be, and how often `check_session_status`
/// and the answer to its prompt have them.
fn states(text: &str) -> Vec<(Value, usize, usize)> {
    let at = "2026-01-01T00:00:00Z";
    let config = json!([{"id": text, "name": text, "type": "select", "currentValue": text}]);
    let candidate = json!({"value": text, "name": text, "group": text, "description": text});
    let issue = json!({
        "parameter": "model", "reason": "ambiguous", "requested": "x", "optionId": text,
        "category": text, "candidates": [candidate],
    });
    vec![
        (
            json!({
                "phase": "Running", "delivery": "Sent", "startedAt": at, "config": config,
                "warnings": [{"optionId": text, "message": text}],
                "recentActivity": [{"kind": "tool", "at": at, "message": text}],
                "waitingFor": {"permission": "p-1", "tool": text, "since": at},
            }),
            2,
            5,
        ),
        (json!({"phase": "Failed", "code": "TURN_FAILED", "message": text}), 1, 1),
        (json!({"phase": "Interrupted", "code": "APP_RESTARTED", "message": text}), 1, 1),
        (
            json!({
                "phase": "Discarded", "code": "SPAWN_CONFIGURATION_REQUIRED", "message": text,
                "issues": [issue], "config": config,
            }),
            7,
            9,
        ),
        (json!({"phase": "Completed", "stopReason": text, "delivery": "Sent"}), 1, 0),
    ]
}

#[tokio::test]
async fn what_an_agent_wrote_is_escaped_in_every_answer_that_has_it() {
    // Thousands of calls of one caller.
    let http = Http { per_token_rate: "100000/s".parse().unwrap(), ..Http::default() };
    let options =
        Options { max_wait: Duration::from_secs(50), progress_every: Duration::from_secs(10) };
    let bench = Bench::under(options, Rules { http, ..Rules::default() }).await;
    let me = bench.holder("me").await;
    // A repetition of the call is answered with what its turn is now.
    let prompt = json!({"agentId": "stub", "prompt": "p", "idempotencyKey": "k"});
    let call = bench.told(&me.token, "prompt_to_agent", prompt.clone());
    let script = async {
        let turn = bench.open_turn(&me).await;
        let status = states("x").remove(0).0;
        let status: crate::api::turn::TurnStatus = serde_json::from_value(status).unwrap();
        bench.turn(&turn.metadata.uid, |turn| turn.status = status.clone()).await
    };
    let (told, turn) = tokio::join!(call, script);
    let session = Uid::from(told["sessionId"].as_str().unwrap());
    let name = turn.metadata.name.clone();
    bench.session(&session, |session| session.status.latest_turn = Some(name.clone())).await;
    let uri = format!("spawnlet://sessions/{session}");
    let id = json!({"sessionId": session});
    for text in strings() {
        for (status, in_status, in_prompt) in states(&text) {
            let status: crate::api::turn::TurnStatus = serde_json::from_value(status).unwrap();
            bench.turn(&turn.metadata.uid, |turn| turn.status = status.clone()).await;
            let told = bench.told(&me.token, "check_session_status", id.clone()).await;
            check(&told, &text, in_status);
            let told = bench.told(&me.token, "prompt_to_agent", prompt.clone()).await;
            check(&told, &text, in_prompt);
            let read = bench.ask(&me.token, "resources/read", json!({"uri": uri})).await;
            let contents = read["result"]["contents"][0]["text"].as_str().unwrap();
            check(&serde_json::from_str(contents).unwrap(), &text, in_status);
        }
    }
    // The end of a session quotes the last words of its process.
    let again = json!({"agentId": "stub", "prompt": "p", "sessionId": session});
    for text in strings() {
        let end = json!({
            "outcome": "Expired", "reason": "SessionLost", "message": text, "at": "2026-01-01T00:00:00Z",
        });
        let end: crate::api::session::SessionEnd = serde_json::from_value(end).unwrap();
        bench
            .session(&session, |session| {
                session.status.queued_turns = 0;
                session.status.end = Some(end.clone());
            })
            .await;
        check(&bench.told(&me.token, "check_session_status", id.clone()).await, &text, 1);
        check(&bench.told(&me.token, "prompt_to_agent", again.clone()).await, &text, 1);
    }
}

#[tokio::test]
async fn a_response_is_the_agents_own_words_byte_for_byte() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    let whole = corpus::strings().concat();
    let arguments = json!({"agentId": "stub", "prompt": "p", "background": false});
    let call = bench.told(&me.token, "prompt_to_agent", arguments);
    let script = async {
        let turn = bench.open_turn(&me).await.metadata.uid;
        bench.answer(&turn, &whole).await;
    };
    let (told, ()) = tokio::join!(call, script);
    let content = told["content"].as_str().unwrap();
    assert!(!content.is_empty() && whole.starts_with(content));
    let read = json!({
        "sessionId": told["sessionId"], "responseId": told["responseId"], "maxBytes": 65_536,
    });
    let piece = bench.told(&me.token, "read_response", read).await;
    assert!(piece["done"] == true && piece["content"] == json!(whole));
}

#[tokio::test]
async fn what_was_shown_escaped_is_taken_as_what_it_stands_for() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    for (given, meant) in [
        ("R&amp;D &lt;fast&gt;", "R&D <fast>"),
        // Never shown so: taken as it is.
        ("R&D <fast>", "R&D <fast>"),
        ("plain/model-1", "plain/model-1"),
    ] {
        let arguments = json!({
            "agentId": "stub", "prompt": "p", "model": given, "thought_level": given,
            "config": {given: given, "flag": true},
        });
        let call = bench.told(&me.token, "prompt_to_agent", arguments);
        let script = async {
            let turn = bench.open_turn(&me).await;
            bench.answer(&turn.metadata.uid, "done").await;
            turn
        };
        let (_, turn) = tokio::join!(call, script);
        let spec = serde_json::to_value(&turn.spec).unwrap();
        assert_eq!(spec["model"], meant, "{spec:#}");
        assert_eq!(spec["thoughtLevel"], meant, "{spec:#}");
        assert_eq!(spec["config"], json!({meant: meant, "flag": true}), "{spec:#}");
        bench.free().await;
    }
}
