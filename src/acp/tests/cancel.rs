//! Cancelling a turn.

use std::time::Duration;

use serde_json::{Value, json};

use super::bench::{Bench, chunk, options};
use crate::acp::connection::Command;
use crate::acp::event::Event;
use crate::acp::permission::{Answer, Verdict};
use crate::api::agent::Permissions;

fn permission(id: u64) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": {
        "sessionId": "s", "toolCall": {"toolCallId": "c", "kind": "edit"},
        "options": [{"optionId": "y", "kind": "allow_once"}]}})
    .to_string()
}

const CANCELLED: &str = r#"{"outcome":{"outcome":"cancelled"}}"#;

fn holding() -> crate::acp::connection::Options {
    let mut options = options();
    options.permissions = Permissions::Ask;
    options
}

#[test]
fn open_requests_are_cancelled_first_and_later_ones_too() {
    let mut bench = Bench::running(holding());
    bench.line(&permission(70));
    bench.line(&permission(71));
    let waiting: Vec<_> =
        bench.asked().into_iter().map(|asked| (asked.request, asked.verdict)).collect();
    assert!(waiting.iter().all(|(_, verdict)| *verdict == Verdict::Wait));
    bench.update(chunk("x"));
    bench.events();
    let before = bench.sent.len();
    bench.command(Command::Cancel);
    bench.line(&permission(72));
    bench.result(json!({"stopReason": "end_turn"}));
    bench.line(&permission(73));
    let sent: Vec<_> = bench.sent[before..]
        .iter()
        .map(|message| match message["method"].as_str() {
            Some(method) => method.to_owned(),
            None => format!("{} {}", message["id"], message["result"]),
        })
        .collect();
    let answer = |id: u64| format!("{id} {CANCELLED}");
    assert_eq!(sent, [answer(70), answer(71), "session/cancel".into(), answer(72), answer(73)]);
    let asked = bench.asked();
    assert_eq!(asked[0].request, waiting[0].0);
    assert!(asked.iter().all(|asked| asked.verdict == Verdict::Cancelled));

    bench.prompt("next");
    bench.line(&permission(74));
    assert_eq!(bench.asked()[0].verdict, Verdict::Wait, "the next turn is not cancelled");
}

#[test]
fn a_request_that_waits_is_answered_by_its_number() {
    let mut bench = Bench::running(holding());
    bench.line(&permission(70));
    let request = bench.asked()[0].request;
    bench.command(Command::Answer { request: request + 1, answer: Answer::Allow });
    bench.command(Command::Answer { request, answer: Answer::Allow });
    bench.command(Command::Answer { request, answer: Answer::Reject });
    let answers: Vec<&Value> = bench.sent.iter().filter(|sent| sent["id"] == 70).collect();
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0]["result"]["outcome"]["optionId"], "y");
}

#[test]
fn at_most_64_requests_wait() {
    let mut bench = Bench::running(holding());
    for id in 0..70 {
        bench.line(&permission(1000 + id));
    }
    assert_eq!(bench.machine.open_requests.len(), 64);
    let refused = bench.sent.iter().filter(|sent| sent["error"]["code"] == -32603).count();
    assert_eq!(refused, 6);
}

#[test]
fn a_cancel_right_behind_a_prompt_waits_for_the_first_update_or_a_moment() {
    let mut bench = Bench::running(options());
    bench.command(Command::Cancel);
    bench.pass(Duration::from_millis(249));
    assert_eq!(bench.times("session/cancel"), 0);
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.times("session/cancel"), 1);

    let mut bench = Bench::running(options());
    bench.command(Command::Cancel);
    bench.update(json!({"sessionUpdate": "plan"}));
    assert_eq!(bench.times("session/cancel"), 1);
    let written = |event: &Event| matches!(event, Event::CancelWritten { turn: Some(_) });
    assert!(bench.events().iter().any(written));
}

#[test]
fn a_cancel_is_written_twice_at_most_in_a_turn() {
    let mut bench = Bench::running(options());
    bench.update(chunk("x"));
    bench.command(Command::Cancel);
    bench.command(Command::Cancel);
    bench.pass(Duration::from_millis(1999));
    assert_eq!(bench.times("session/cancel"), 1);
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.times("session/cancel"), 2);
    bench.command(Command::Cancel);
    bench.pass(Duration::from_secs(60));
    assert_eq!(bench.times("session/cancel"), 2);
    assert_eq!(bench.machine.deadline(), None);
}

#[test]
fn a_cancel_that_comes_too_late_is_not_sent_into_the_next_turn() {
    let mut bench = Bench::running(options());
    bench.command(Command::Cancel);
    bench.result(json!({"stopReason": "end_turn"}));
    bench.prompt("next");
    bench.pass(Duration::from_secs(10));
    bench.update(chunk("x"));
    assert_eq!(bench.times("session/cancel"), 0);
}

#[test]
fn without_a_turn_a_cancel_is_written_at_once() {
    let mut bench = Bench::open(options());
    bench.command(Command::Cancel);
    assert_eq!(bench.times("session/cancel"), 1);
    let mut bench = Bench::new(options());
    bench.command(Command::Cancel);
    assert_eq!(bench.times("session/cancel"), 0, "there is no session to cancel");
}
