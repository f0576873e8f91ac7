//! Malformed lines: whatever an agent writes, nothing panics, nothing grows, and a session goes on
//! or is broken off with one fault.

use std::time::Duration;

use serde_json::{Value, json};

use super::bench::{Bench, chunk, options, update_line};
use crate::acp::codec::{FRAME_BYTES_MAX, LineReader};
use crate::acp::event::{Event, Fault};

/// A xorshift generator: the same numbers in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit.max(1) as u64).unwrap()
    }
}

/// Two hundred messages as agents send them.
pub(super) fn recorded() -> Vec<String> {
    let mut messages = Vec::new();
    let kinds = [
        "user_message_chunk",
        "agent_message_chunk",
        "agent_thought_chunk",
        "tool_call",
        "tool_call_update",
        "plan",
        "available_commands_update",
        "current_mode_update",
        "config_option_update",
        "session_info_update",
        "usage_update",
        "subagent_update",
        "something_new",
    ];
    for n in 0..10 {
        for kind in kinds {
            let update = json!({
                "sessionUpdate": kind,
                "toolCallId": format!("call-{n}"),
                "title": "Läuft \u{1f600}",
                "kind": (["read", "edit", "other"])[n % 3],
                "status": "in_progress",
                "locations": [{"path": format!("/work/{n}"), "line": n}],
                "content": {"type": "text", "text": "word ".repeat(n * n)},
                "entries": [{"content": "a", "priority": "high", "status": "pending"}],
                "currentModeId": "auto",
                "configOptions": [{"id": "model", "name": "M", "category": "model",
                    "type": "select", "currentValue": "a", "options": [{"value": "a", "name": "A"}]}],
                "used": 12345, "size": 200_000, "cost": {"amount": 0.25, "currency": "USD"},
            });
            messages.push(update_line("s", &update));
        }
        for (method, params) in [
            (
                "session/request_permission",
                json!({"sessionId": "s",
                "toolCall": {"toolCallId": format!("call-{n}"), "kind": "edit"},
                "options": [{"optionId": "y", "name": "Y", "kind": "allow_once"},
                    {"optionId": "n", "name": "N", "kind": "reject_once"}]}),
            ),
            ("fs/read_text_file", json!({"sessionId": "s", "path": "/work/x"})),
            ("terminal/create", json!({"sessionId": "s", "command": "ls"})),
            ("_vendor/thing", json!([1, 2, 3])),
        ] {
            let request = json!({"jsonrpc": "2.0", "id": n, "method": method, "params": params});
            messages.push(request.to_string());
        }
        let notification = json!({"jsonrpc": "2.0", "method": "_vendor/note", "params": {}});
        messages.push(notification.to_string());
        let result = json!({"stopReason": "end_turn", "usage": {"totalTokens": n}});
        messages.push(json!({"jsonrpc": "2.0", "id": n, "result": result}).to_string());
        let error = json!({"code": -32603, "message": "Internal error", "data": {"x": [n]}});
        messages.push(json!({"jsonrpc": "2.0", "id": n, "error": error}).to_string());
    }
    assert_eq!(messages.len(), 200);
    messages
}

fn mutate(line: &str, numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = line.as_bytes().to_vec();
    let at = numbers.below(bytes.len());
    match numbers.below(16) {
        0 => bytes.truncate(at),
        1 => bytes[at] ^= 1 << numbers.below(8),
        2 => {
            let depth = 1 + numbers.below(3000);
            let deep = "[".repeat(depth) + &"]".repeat(depth);
            bytes = line.replacen("\"s\"", &deep, 1).into_bytes();
        }
        3 => bytes = line.replacen("\"s\"", "{\"a\":[1]}", 1).into_bytes(),
        4 => bytes = line.replace("\"id\":", "\"id\":99999999999999999999999999").into_bytes(),
        5 => bytes = line.replacen('{', "{\"jsonrpc\":\"2.0\",", 1).into_bytes(),
        6 => bytes = line.replace("word", "\\ud83d").into_bytes(),
        7 => bytes.insert(at, 0),
        8 => bytes.push(b'\r'),
        9 => bytes.splice(0..0, *b"\xef\xbb\xbf").for_each(drop),
        10 => bytes[at] = 0xff,
        11 => bytes = line.replace("\"update\":{", "\"update\":[{").into_bytes(),
        12 => bytes = line.replace(":\"", ":7,\"x\":\"").into_bytes(),
        13 => bytes = line.replacen("\"jsonrpc\"", "\"method\"", 1).into_bytes(),
        14 => {
            let other = numbers.below(bytes.len());
            bytes.swap(at, other);
        }
        _ => bytes.extend_from_slice(line.as_bytes()),
    }
    bytes
}

#[tokio::test]
async fn a_hundred_thousand_mutated_lines_break_nothing() {
    let recorded = recorded();
    let mut numbers = Numbers(0x5eed_1234_abcd_0001);
    // 100,000 for each commit, 5 million at tier 2.
    let is_nightly = std::env::var("SPAWNLET_TIER").is_ok_and(|tier| tier == "2");
    for round in 0..if is_nightly { 10_000 } else { 200 } {
        let mut options = options();
        if round % 2 == 0 {
            options.permissions = crate::api::agent::Permissions::Ask;
        }
        let mut bench = Bench::running(options);
        let mut stream = Vec::new();
        for _ in 0..500 {
            let line = &recorded[numbers.below(recorded.len())];
            stream.extend(mutate(line, &mut numbers));
            stream.push(b'\n');
        }
        let mut reader = LineReader::new(&stream[..], FRAME_BYTES_MAX);
        while let Some(line) = reader.next_line().await.unwrap() {
            bench.bytes(line);
            assert!(bench.machine.open_requests.len() <= 64);
            assert!(bench.events().len() <= 110);
            bench.now = bench.now.plus(Duration::from_millis(1));
        }
        assert!(!bench.machine.is_broken, "there are good lines between");
        bench.update(chunk("still here"));
        assert_eq!(bench.updates()[0].text.as_deref(), Some("still here"));
    }
}

fn faults(bench: &mut Bench) -> Vec<Fault> {
    let fault = |event| match event {
        Event::Fault(fault) => Some(fault),
        _ => None,
    };
    bench.events().into_iter().filter_map(fault).collect()
}

#[test]
fn noise_is_counted_and_kept_in_part() {
    let mut bench = Bench::running(options());
    bench.line("Welcome!");
    bench.bytes(&[b"\xff".as_slice(), &[b'x'; 100_000]].concat());
    let events = bench.events();
    let [Event::Noise { line, count: 1 }, Event::Noise { line: long, count: 2 }] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert_eq!(line, "Welcome!");
    assert!(long.starts_with('\u{fffd}') && long.chars().count() == 4096);
}

#[test]
fn a_thousand_bad_lines_in_a_minute_without_a_good_one_are_a_fault() {
    let mut bench = Bench::running(options());
    for _ in 0..999 {
        bench.line("noise");
    }
    assert_eq!(faults(&mut bench), []);
    bench.update(chunk("good"));
    for _ in 0..999 {
        bench.line("noise");
    }
    assert_eq!(faults(&mut bench), []);
    bench.line("noise");
    assert_eq!(faults(&mut bench), [Fault::ProtocolFailure { lines: 1000 }]);
    bench.line("noise");
    assert_eq!(faults(&mut bench), [], "it is said once");
}

#[test]
fn noise_that_comes_slowly_is_no_fault() {
    let mut bench = Bench::running(options());
    for _ in 0..5000 {
        bench.line("noise");
        bench.pass(Duration::from_millis(61));
    }
    assert_eq!(faults(&mut bench), []);
    let value: Value = json!({"sessionUpdate": "plan"});
    bench.update(value);
    assert_eq!(bench.updates().len(), 1);
}
