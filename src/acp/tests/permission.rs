//! Requests for permission on the wire.

use serde_json::{Value, json};

use super::bench::{Bench, options};
use crate::acp::connection::Command;
use crate::acp::permission::{Answer, Verdict};
use crate::acp::roots::Roots;
use crate::api::agent::Permissions;

fn ask(bench: &mut Bench, call: Value, kinds: &[&str]) -> (Value, Verdict) {
    let offered: Vec<_> =
        kinds.iter().map(|kind| json!({"optionId": kind, "kind": kind})).collect();
    let params = json!({"sessionId": "s", "toolCall": call, "options": offered});
    let request = json!({"jsonrpc": "2.0", "id": "p", "method": "session/request_permission",
        "params": params});
    bench.line(&request.to_string());
    let outcome = bench.sent.last().unwrap()["result"]["outcome"].clone();
    (outcome, bench.asked()[0].verdict)
}

const ALL: &[&str] =
    &["allow_always", "reject_always", "reject_once", "custom", "allow_once", "reject_once"];

#[test]
fn every_cell_of_the_table_is_answered_as_it_says() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().canonicalize().unwrap();
    for policy in
        [Permissions::DenyAll, Permissions::ApproveReads, Permissions::ApproveAll, Permissions::Ask]
    {
        for kind in ["read", "search", "edit", "execute", ""] {
            for inside in [true, false] {
                let mut options = options();
                options.permissions = policy;
                options.roots = Roots::new(vec![root.clone()]);
                let mut bench = Bench::running(options);
                let base = if inside { root.display().to_string() } else { "/etc".into() };
                let path = format!("{base}/file");
                bench.update(json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "T",
                    "kind": kind, "locations": [{"path": path}]}));
                bench.events();
                let (mut outcome, verdict) = ask(&mut bench, json!({"toolCallId": "c"}), ALL);
                let reads = matches!(kind, "read" | "search");
                let asks = matches!(policy, Permissions::ApproveReads | Permissions::Ask);
                assert_eq!(verdict == Verdict::Wait, inside && asks && !reads);
                let mut allow = inside && policy != Permissions::DenyAll;
                if verdict == Verdict::Wait {
                    assert_ne!(bench.sent.last().unwrap()["id"], "p", "answered too early");
                    let answer = if kind == "edit" { Answer::Allow } else { Answer::Reject };
                    allow = answer == Answer::Allow;
                    bench.command(Command::Answer { request: 2, answer });
                    outcome = bench.sent.last().unwrap()["result"]["outcome"].clone();
                    assert_eq!(bench.asked()[0].verdict, Verdict::Answered);
                }
                let option = if allow { "allow_once" } else { "reject_once" };
                let expected = json!({"outcome": "selected", "optionId": option});
                assert_eq!(outcome, expected, "{policy:?} {kind} {inside}");
            }
        }
    }
}

#[test]
fn an_agent_that_offers_no_once_gets_cancelled() {
    let mut bench = Bench::running(options());
    let offered = &["allow_always", "reject_always", "reject_once"];
    let (outcome, verdict) = ask(&mut bench, json!({"toolCallId": "c"}), offered);
    assert_eq!((outcome, verdict), (json!({"outcome": "cancelled"}), Verdict::Allow));
    let (outcome, _) = ask(&mut bench, json!({"toolCallId": "c"}), &[]);
    assert_eq!(outcome, json!({"outcome": "cancelled"}));
}

#[test]
fn a_request_before_any_update_is_judged_on_itself() {
    let mut options = options();
    options.permissions = Permissions::ApproveReads;
    options.roots = Roots::default();
    let mut bench = Bench::running(options);
    let call = json!({"toolCallId": "c", "kind": "read", "title": null});
    assert_eq!(ask(&mut bench, call, ALL).1, Verdict::Allow);
    let waiting = ask(&mut bench, json!({"toolCallId": "d"}), ALL);
    assert_eq!(waiting.1, Verdict::Wait);
    bench.result(json!({"stopReason": "end_turn"}));
    bench.events();
    let (outcome, verdict) = ask(&mut bench, json!({"toolCallId": "e"}), ALL);
    assert_eq!(verdict, Verdict::RejectOutOfTurn, "no turn runs that it could belong to");
    assert_eq!(outcome, json!({"outcome": "selected", "optionId": "reject_once"}));
    let call = json!({"toolCallId": "c", "locations": [{"path": "/x"}]});
    assert_eq!(ask(&mut bench, call, ALL).1, Verdict::RejectOutside);
}

#[test]
fn every_request_is_answered_and_bad_ones_are_told_why() {
    let mut bench = Bench::running(options());
    let good = json!({"sessionId": "s", "toolCall": {"toolCallId": "c"}, "options": []});
    let without = |name: &str| {
        let mut params = good.clone();
        params.as_object_mut().unwrap().remove(name);
        params
    };
    let mut foreign = good.clone();
    foreign["sessionId"] = "other".into();
    let mut unnamed = good.clone();
    unnamed["toolCall"] = json!({"toolCallId": "x".repeat(2000)});
    for (method, params, code) in [
        ("session/request_permission", without("sessionId"), -32602),
        ("session/request_permission", without("toolCall"), -32602),
        ("session/request_permission", without("options"), -32602),
        ("session/request_permission", json!([1]), -32602),
        ("session/request_permission", Value::Null, -32602),
        ("session/request_permission", foreign, -32602),
        ("session/request_permission", unnamed, -32602),
        ("fs/read_text_file", json!({}), -32602),
        ("fs/no_such_method", json!({}), -32601),
        ("terminal/no_such_method", json!({}), -32601),
        ("elicitation/create", json!({}), -32601),
        ("craft/drainMidTurnQueue", json!({}), -32601),
        ("$/anything", json!({}), -32601),
    ] {
        let line = json!({"jsonrpc": "2.0", "id": 5, "method": method, "params": params});
        bench.line(&line.to_string());
        assert_eq!(bench.sent.last().unwrap()["error"]["code"], code, "{line}");
        assert_eq!(bench.events().len(), 1, "it counts as activity");
    }
    let line = json!({"jsonrpc": "2.0", "id": 5, "method": "session/request_permission"});
    bench.line(&line.to_string());
    assert_eq!(bench.sent.last().unwrap()["error"]["code"], -32602);
    bench.events();
    bench.line(r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"id":5}}"#);
    assert!(bench.events().is_empty());
}

#[test]
fn a_request_that_waits_tells_what_is_known_of_it_and_may_be_taken_back() {
    let mut options = options();
    options.permissions = Permissions::Ask;
    let mut bench = Bench::running(options);
    bench.update(json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "Writes",
        "kind": "edit", "locations": [{"path": "/a"}]}));
    bench.events();
    let request = json!({"jsonrpc": "2.0", "id": "p", "method": "session/request_permission",
        "params": {"sessionId": "s", "toolCall": {"toolCallId": "c",
            "content": [{"type": "diff", "path": "/b"}]},
            "options": [{"optionId": "y", "kind": "allow_once", "name": "Yes"}]}});
    bench.line(&request.to_string());
    let asked = bench.asked().remove(0);
    assert_eq!((asked.verdict, asked.targets), (Verdict::Wait, vec!["/a".into(), "/b".into()]));
    assert_eq!((asked.offered[0].id.as_str(), asked.offered[0].name.as_str()), ("y", "Yes"));
    assert_eq!(asked.tool.title.as_deref(), Some("Writes"));
    let back = |id: Value| {
        json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": id}})
            .to_string()
    };
    bench.line(&back(json!("q")));
    assert!(bench.asked().is_empty(), "another request");
    bench.line(&back(json!("p")));
    assert_eq!(bench.sent.last().unwrap()["error"]["code"], -32800);
    assert_eq!(bench.asked()[0].verdict, Verdict::Cancelled);
    bench.command(Command::Answer { request: asked.request, answer: Answer::Allow });
    assert_eq!(bench.sent.iter().filter(|sent| sent["id"] == "p").count(), 1);
}
