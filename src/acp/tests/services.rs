//! Files and terminals on the wire: the policy, the shapes, the bounds.

use agent_client_protocol_schema::v1;
use serde_json::{Value, json};

use super::bench::{Bench, options};
use crate::acp::connection::Command;
use crate::acp::event::Event;
use crate::acp::permission::{Answer, Verdict};
use crate::acp::roots::Roots;
use crate::acp::services::{Call, Exit, Job, Refusal, Reply};
use crate::api::Uid;
use crate::api::agent::Permissions;

fn send(bench: &mut Bench, id: u64, method: &str, params: Value) {
    let mut params = params;
    if params["sessionId"].is_null() {
        params["sessionId"] = "s".into();
    }
    let request = json!({"jsonrpc": "2.0", "id": format!("r{id}"), "method": method,
        "params": params});
    bench.line(&request.to_string());
}

/// The calls that came, and the numbers of questions that wait.
fn came(bench: &mut Bench) -> (Vec<Job>, Vec<u64>) {
    let (mut jobs, mut asks) = (Vec::new(), Vec::new());
    for event in bench.events() {
        match event {
            Event::Service(job) => jobs.push(job),
            Event::PermissionAsked(asked) if asked.verdict == Verdict::Wait => {
                assert_eq!(asked.offered.len(), 2);
                asks.push(asked.request);
            }
            _ => {}
        }
    }
    (jobs, asks)
}

fn last(bench: &Bench) -> Value {
    bench.sent.last().cloned().unwrap_or_default()
}

fn with(permissions: Permissions) -> Bench {
    let mut options = options();
    options.permissions = permissions;
    options.roots = Roots::new(vec!["/".into()]);
    Bench::running(options)
}

const METHODS: [&str; 7] = [
    "fs/read_text_file",
    "fs/write_text_file",
    "terminal/create",
    "terminal/output",
    "terminal/wait_for_exit",
    "terminal/kill",
    "terminal/release",
];

fn params() -> Value {
    json!({"path": "/file", "content": "text", "command": "true", "terminalId": "terminal-1"})
}

#[test]
fn every_cell_of_the_table_of_services_is_as_it_says() {
    use Permissions::{ApproveAll, ApproveReads, Ask, DenyAll};
    for policy in [DenyAll, ApproveReads, ApproveAll, Ask] {
        for (n, method) in METHODS.into_iter().enumerate() {
            let mut bench = with(policy);
            send(&mut bench, 1, method, params());
            let (jobs, asks) = came(&mut bench);
            let changes = n == 1 || n == 2;
            let waits = policy == Ask && changes;
            let runs =
                policy == ApproveAll || policy == Ask && !waits || policy == ApproveReads && n == 0;
            assert_eq!(
                (jobs.len(), asks.len()),
                (runs.into(), waits.into()),
                "{policy:?} {method}"
            );
            if !runs && !waits {
                assert_eq!(last(&bench)["error"]["code"], -32602, "{policy:?} {method}");
                let message = last(&bench)["error"]["message"].to_string();
                assert!(message.contains(method) && message.contains("permissions are"));
            }
        }
    }
}

#[test]
fn who_is_asked_decides_and_a_cancel_ends_the_question() {
    let mut bench = with(Permissions::Ask);
    for id in 1..4 {
        send(&mut bench, id, METHODS[1], params());
    }
    send(&mut bench, 4, METHODS[2], json!({"command": "ls", "args": ["-l"]}));
    let (jobs, asks) = came(&mut bench);
    assert!(jobs.is_empty() && asks.len() == 4);
    bench.command(Command::Answer { request: asks[0], answer: Answer::Allow });
    let (jobs, _) = came(&mut bench);
    assert!(
        matches!(&jobs[0].call, Call::Write { path, content } if path == "/file" && content == "text")
    );
    bench.machine.served(jobs[0].request, Ok(Reply::Done));
    bench.command(Command::Answer { request: asks[1], answer: Answer::Reject });
    assert_eq!(last(&bench)["error"], json!({"code": -32602, "message": "it was denied"}));
    assert_eq!(
        bench.sent[bench.sent.len() - 2],
        json!({"jsonrpc": "2.0", "id": "r1", "result": {}})
    );
    bench.line(r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"r3"}}"#);
    assert_eq!(last(&bench)["error"]["code"], -32800);
    bench.command(Command::Cancel);
    assert_eq!(
        (&last(&bench)["id"], &last(&bench)["error"]["code"]),
        (&json!("r4"), &json!(-32800))
    );
    // What comes later in it changes nothing either; it may still be read.
    for (id, method) in METHODS.into_iter().enumerate().take(3) {
        send(&mut bench, 10 + id as u64, method, params());
    }
    let (jobs, asks) = came(&mut bench);
    assert!(asks.is_empty() && jobs.len() == 1 && matches!(jobs[0].call, Call::Read { .. }));
}

#[test]
fn nothing_is_asked_or_started_outside_of_a_turn_or_of_the_directories() {
    let mut options = options();
    options.permissions = Permissions::Ask;
    options.roots = Roots::new(vec!["/nowhere".into()]);
    let mut bench = Bench::running(options);
    send(&mut bench, 1, METHODS[1], params());
    assert!(last(&bench)["error"]["message"].to_string().contains("outside"));
    send(&mut bench, 2, METHODS[2], json!({"command": "ls", "cwd": "/tmp"}));
    assert!(last(&bench)["error"]["message"].to_string().contains("outside"));
    for policy in [Permissions::Ask, Permissions::ApproveAll] {
        let mut bench = with(policy);
        send(&mut bench, 1, METHODS[2], params());
        let (jobs, asks) = came(&mut bench);
        bench.result(json!({"stopReason": "end_turn"}));
        send(&mut bench, 2, METHODS[2], params());
        assert_eq!(last(&bench)["error"]["code"], -32602, "{policy:?}");
        // What is allowed when its turn is over is not begun.
        bench.command(Command::Prompt { turn: Uid::from("u"), blocks: super::bench::blocks("x") });
        for request in &asks {
            bench.command(Command::Answer { request: *request, answer: Answer::Allow });
            assert_eq!(last(&bench)["error"]["code"], -32800);
        }
        assert_eq!((jobs.len(), asks.len()), if asks.is_empty() { (1, 0) } else { (0, 1) });
        assert!(came(&mut bench).0.is_empty());
    }
}

#[test]
fn requests_and_answers_are_those_of_the_schema() {
    let mut bench = with(Permissions::ApproveAll);
    let request: v1::CreateTerminalRequest = serde_json::from_value(json!({"sessionId": "s",
        "command": "ls", "args": ["-l"], "env": [{"name": "A", "value": "b"}], "cwd": "/w",
        "outputByteLimit": 1_000_000}))
    .unwrap();
    send(&mut bench, 1, METHODS[2], serde_json::to_value(request).unwrap());
    let (jobs, _) = came(&mut bench);
    let Call::Create(new) = &jobs[0].call else { panic!("{jobs:?}") };
    assert_eq!((&*new.command, &*new.args[0], new.cwd.as_deref()), ("ls", "-l", Some("/w")));
    assert_eq!((new.env[0].0.as_str(), new.output_bytes_max), ("A", 64 * 1024));
    bench.machine.served(jobs[0].request, Ok(Reply::Created("terminal-1".into())));
    let mut results = Vec::new();
    let exit = || Exit::Signal("SIGKILL".to_owned());
    for (method, reply) in [
        (METHODS[0], Reply::Text("x".into())),
        (METHODS[1], Reply::Done),
        (METHODS[3], Reply::Output { text: "o".into(), is_cut: true, exit: Some(Exit::Code(3)) }),
        (METHODS[4], Reply::Exited(exit())),
        (METHODS[5], Reply::Done),
        (METHODS[6], Reply::Done),
    ] {
        send(&mut bench, 2, method, params());
        let (jobs, _) = came(&mut bench);
        bench.machine.served(jobs[0].request, Ok(reply.clone()));
        // A second answer is none.
        bench.machine.served(jobs[0].request, Ok(reply));
    }
    // Nothing else is due: this only writes what waits.
    bench.pass(std::time::Duration::ZERO);
    results.extend(bench.sent.iter().filter(|sent| !sent["result"].is_null()));
    assert_eq!(results.len(), 7, "{results:?}");
    let result = |n: usize| results[n]["result"].clone();
    let created: v1::CreateTerminalResponse = serde_json::from_value(result(0)).unwrap();
    assert_eq!(&*created.terminal_id.0, "terminal-1");
    let read: v1::ReadTextFileResponse = serde_json::from_value(result(1)).unwrap();
    assert_eq!(read.content, "x");
    serde_json::from_value::<v1::WriteTextFileResponse>(result(2)).unwrap();
    let output: v1::TerminalOutputResponse = serde_json::from_value(result(3)).unwrap();
    assert!(output.truncated && output.exit_status.unwrap().exit_code == Some(3));
    let ended: v1::WaitForTerminalExitResponse = serde_json::from_value(result(4)).unwrap();
    assert_eq!(ended.exit_status.signal.as_deref(), Some("SIGKILL"));
    serde_json::from_value::<v1::KillTerminalResponse>(result(5)).unwrap();
    serde_json::from_value::<v1::ReleaseTerminalResponse>(result(6)).unwrap();
}

#[test]
fn refusals_have_their_codes_and_what_is_malformed_is_refused() {
    let mut bench = with(Permissions::ApproveAll);
    for (refusal, code) in [
        (Refusal::Refused("why".into()), -32602),
        (Refusal::NotFound("why".into()), -32002),
        (Refusal::Failed("why".into()), -32603),
    ] {
        send(&mut bench, 1, METHODS[0], params());
        let (jobs, _) = came(&mut bench);
        bench.machine.served(jobs[0].request, Err(refusal));
        bench.pass(std::time::Duration::ZERO);
        assert_eq!(last(&bench)["error"], json!({"code": code, "message": "why"}));
    }
    for (method, params) in [
        (METHODS[0], json!({})),
        (METHODS[0], json!({"path": 7})),
        (METHODS[0], json!({"path": "/x", "line": -1})),
        (METHODS[0], json!({"path": "/x", "sessionId": "other"})),
        (METHODS[1], json!({"path": "/x"})),
        (METHODS[2], json!({"command": ""})),
        (METHODS[2], json!({"command": "x", "args": "x"})),
        (METHODS[3], json!({})),
    ] {
        send(&mut bench, 2, method, params);
        assert_eq!(last(&bench)["error"]["code"], -32602, "{method}");
    }
    send(&mut bench, 3, "fs/delete", json!({}));
    assert_eq!(last(&bench)["error"]["code"], -32601);
    assert!(came(&mut bench).0.is_empty());
}

#[test]
fn unanswered_requests_are_bounded_by_number_and_by_bytes() {
    let mut bench = with(Permissions::ApproveAll);
    for id in 0..65 {
        send(&mut bench, id, METHODS[0], params());
    }
    assert_eq!(last(&bench)["error"]["code"], -32603);
    assert_eq!(came(&mut bench).0.len(), 64);
    let mut bench = with(Permissions::Ask);
    let content = "x".repeat(9 * 1024 * 1024);
    for id in 0..3 {
        send(&mut bench, id, METHODS[1], json!({"path": "/file", "content": content}));
    }
    assert_eq!(last(&bench)["error"]["code"], -32603);
    let (_, asks) = came(&mut bench);
    assert_eq!(asks.len(), 2);
    // What is answered makes room.
    bench.command(Command::Answer { request: asks[0], answer: Answer::Reject });
    send(&mut bench, 4, METHODS[1], params());
    assert_eq!(came(&mut bench).1.len(), 1);
}
