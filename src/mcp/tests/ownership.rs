//! Foreign equals missing: every tool, every foreign id, every principal.

use super::*;

const MISSING: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// Every tool that takes an id, with its arguments.
fn calls(session: &str, response: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("prompt_to_agent", json!({"agentId": "stub", "prompt": "p", "sessionId": session})),
        (
            "prompt_to_agent",
            json!({
                "agentId": "stub", "prompt": "p", "sessionId": session, "background": false,
            }),
        ),
        ("check_session_status", json!({"sessionId": session})),
        ("read_response", json!({"sessionId": session, "responseId": response})),
        ("cancel_session", json!({"sessionId": session})),
    ]
}

#[tokio::test]
async fn what_is_somebody_elses_is_answered_as_what_is_not_there() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    bench.create(Kind::Namespace, json!({"metadata": {"name": "elsewhere"}})).await;
    let made = bench.made(&me).await;
    bench.answer(&made.turn.metadata.uid, "secret").await;
    let own = made.session.metadata.uid.to_string();
    let answer = made.turn.metadata.uid.to_string();
    let other = bench.holder("other").await;
    let elsewhere = bench.holder_of("me", "elsewhere", &[Toolset::Spawn]).await;
    let ended = bench.holder("ended").await;
    bench
        .session(&ended.caller.session, |session| {
            session.spec.desired_state = crate::api::session::DesiredState::Cancelled;
        })
        .await;
    // Ids of every kind of record that there is: none of them is a session of these callers.
    let me_uid = me.caller.session.to_string();
    let ids = [own.as_str(), me_uid.as_str(), answer.as_str(), "x", "%2e%2e", "😀"];
    for token in [OPERATOR, &other.token, &elsewhere.token, &ended.token] {
        for id in ids {
            for (index, (tool, arguments)) in calls(id, &answer).into_iter().enumerate() {
                let missing = calls(MISSING, &answer).swap_remove(index).1;
                let foreign = bench.call(token, tool, arguments).await;
                let missing = bench.call(token, tool, missing).await;
                let bytes =
                    |result: &Value| result.to_string().replace(id, "ID").replace(MISSING, "ID");
                assert_eq!(bytes(&foreign), bytes(&missing), "{tool} {id}");
                assert!(!foreign.to_string().contains("secret"));
            }
        }
    }
    // The same for a session's own parent that names a response of another one.
    let second = bench.made(&me).await.session.metadata.uid.to_string();
    for response in [answer.as_str(), own.as_str(), me_uid.as_str()] {
        let arguments = json!({"sessionId": second, "responseId": response});
        let foreign = bench.refused(&me.token, "read_response", arguments).await;
        let arguments = json!({"sessionId": second, "responseId": MISSING});
        assert_eq!(foreign, bench.refused(&me.token, "read_response", arguments).await);
        assert_eq!(foreign["code"], "SPAWN_NOT_FOUND");
    }
    // And it is there for whom it belongs to.
    let arguments = json!({"sessionId": own, "responseId": answer});
    assert_eq!(bench.told(&me.token, "read_response", arguments).await["content"], "secret");
}

#[tokio::test]
async fn a_token_says_who_calls_and_whether_it_may() {
    let bench = Bench::new().await;
    let code = |error: Value| error["code"].as_str().unwrap().to_owned();
    for (tool, arguments) in calls(MISSING, MISSING) {
        let refused = bench.refused(OPERATOR, tool, arguments).await;
        assert_eq!(code(refused), "SPAWN_PARENT_SESSION_REQUIRED", "{tool}");
    }
    let ended = bench.holder("ended").await;
    bench
        .session(&ended.caller.session, |session| {
            session.spec.desired_state = crate::api::session::DesiredState::Cancelled;
        })
        .await;
    let mut all = calls(MISSING, MISSING);
    all.push(("available_agents", json!({})));
    for (tool, arguments) in all {
        let refused = bench.refused(&ended.token, tool, arguments).await;
        assert_eq!(code(refused), "SPAWN_PARENT_SESSION_NOT_FOUND", "{tool}");
    }
}

#[tokio::test]
async fn no_field_of_an_input_says_who_calls() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    let head = bench.store.head().await.unwrap();
    let mut all = calls(MISSING, MISSING);
    all.push(("available_agents", json!({})));
    for (tool, arguments) in all {
        for field in [
            "workspaceId",
            "parentSession",
            "caller",
            "depth",
            "parent",
            "namespace",
            "session",
            "token",
            "scope",
            "cwd",
            "permissions",
            "_meta",
        ] {
            let mut arguments = arguments.clone();
            arguments[field] = me.caller.session.to_string().into();
            let error = bench.refused(&me.token, tool, arguments).await;
            assert_eq!(error["code"], "SPAWN_INVALID_REQUEST", "{tool} {field}");
            assert!(error["message"].as_str().unwrap().starts_with(&format!("{field}: ")));
        }
    }
    assert_eq!(bench.store.head().await.unwrap(), head, "nothing was written");
}

#[tokio::test]
async fn what_is_wrong_with_an_input_is_said_by_its_field() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    let long = "x".repeat(257);
    for (tool, arguments, field) in [
        ("prompt_to_agent", json!({"prompt": "p"}), "agentId"),
        ("prompt_to_agent", json!({"agentId": "", "prompt": "p"}), "agentId"),
        ("prompt_to_agent", json!({"agentId": "stub", "prompt": ""}), "prompt"),
        ("prompt_to_agent", json!({"agentId": "stub", "prompt": 5}), "prompt"),
        ("prompt_to_agent", json!({"agentId": "stub", "prompt": "p", "model": ""}), "model"),
        (
            "prompt_to_agent",
            json!({"agentId": "stub", "prompt": "p", "thought_level": 1}),
            "thought_level",
        ),
        (
            "prompt_to_agent",
            json!({"agentId": "stub", "prompt": "p", "config": {"a": 1}}),
            "config.a",
        ),
        (
            "prompt_to_agent",
            json!({"agentId": "stub", "prompt": "p", "background": "no"}),
            "background",
        ),
        ("prompt_to_agent", json!({"agentId": "stub", "prompt": "p", "ttl": "soon"}), "ttl"),
        ("prompt_to_agent", json!({"agentId": "stub", "prompt": "p", "ttl": "9999h"}), "ttl"),
        (
            "prompt_to_agent",
            json!({"agentId": "stub", "prompt": "p", "idempotencyKey": "k".repeat(129)}),
            "idempotencyKey",
        ),
        (
            "prompt_to_agent",
            json!({"agentId": "stub", "prompt": "p", "sessionId": MISSING, "folderId": "f"}),
            "folderId",
        ),
        ("check_session_status", json!({}), "sessionId"),
        ("check_session_status", json!({"sessionId": long}), "sessionId"),
        ("check_session_status", json!({"sessionId": "a/b"}), "sessionId"),
        ("check_session_status", json!({"sessionId": null}), "sessionId"),
        ("read_response", json!({"sessionId": MISSING}), "responseId"),
        ("read_response", json!({"sessionId": MISSING, "responseId": "a\\b"}), "responseId"),
        (
            "read_response",
            json!({"sessionId": MISSING, "responseId": MISSING, "maxBytes": 3}),
            "maxBytes",
        ),
        (
            "read_response",
            json!({"sessionId": MISSING, "responseId": MISSING, "maxBytes": 65_537}),
            "maxBytes",
        ),
        (
            "read_response",
            json!({"sessionId": MISSING, "responseId": MISSING, "cursor": ""}),
            "cursor",
        ),
        (
            "read_response",
            json!({"sessionId": MISSING, "responseId": MISSING, "cursor": long}),
            "cursor",
        ),
        ("cancel_session", json!({"sessionId": "a\u{0}b"}), "sessionId"),
    ] {
        let error = bench.refused(&me.token, tool, arguments.clone()).await;
        assert_eq!(error["code"], "SPAWN_INVALID_REQUEST", "{tool} {arguments}");
        assert_eq!(error["retryable"], false);
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("{field}: ")), "{tool} {field}: {message}");
    }
}

#[tokio::test]
async fn resources_are_the_callers_sessions_and_nobody_elses() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    let other = bench.holder("other").await;
    let made = bench.made(&me).await;
    let uid = &made.session.metadata.uid;
    let uri = format!("spawnlet://sessions/{uid}");
    let listed = bench.ask(&me.token, "resources/list", json!({})).await;
    assert_eq!(listed["result"]["resources"].as_array().unwrap().len(), 1, "{listed:#}");
    assert_eq!(listed["result"]["resources"][0]["uri"], uri.as_str());
    let listed = bench.ask(&other.token, "resources/list", json!({})).await;
    assert_eq!(listed["result"]["resources"], json!([]));
    let read = bench.ask(&me.token, "resources/read", json!({"uri": uri})).await;
    let text = read["result"]["contents"][0]["text"].as_str().unwrap();
    let told: Value = serde_json::from_str(text).unwrap();
    assert_eq!((&told["status"], &told["sessionId"]), (&json!("running"), &json!(uid)));
    let foreign = bench.ask(&other.token, "resources/read", json!({"uri": uri})).await;
    let missing = format!("spawnlet://sessions/{MISSING}");
    let missing = bench.ask(&other.token, "resources/read", json!({"uri": missing})).await;
    assert!(foreign["error"].is_object(), "{foreign:#}");
    // But for the uri that was asked for, not a byte tells them apart.
    let bytes = |answer: &Value, uid: &str| answer.to_string().replace(uid, "ID");
    assert_eq!(bytes(&foreign, uid.as_str()), bytes(&missing, MISSING));
}
