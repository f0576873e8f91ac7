//! Answers that answer nothing: counted, ignored, and never taken for another's.

use serde_json::json;

use super::bench::{Bench, options};
use crate::api::Uid;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Stray,
    Noise,
    Unaddressed,
}

/// `ID` stands for the running prompt's id.
const GAMES: &[(&str, Taken)] = &[
    (r#"{"jsonrpc":"2.0","id":"ID","result":{"stopReason":"end_turn"}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":ID.0,"result":{"stopReason":"end_turn"}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":IDe0,"result":{"stopReason":"end_turn"}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":ID.5,"result":{"stopReason":"end_turn"}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":-ID,"result":{"stopReason":"end_turn"}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":ID0,"result":{"stopReason":"end_turn"}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":ID00000000000000000000,"result":{}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":0ID,"result":{"stopReason":"end_turn"}}"#, Taken::Noise),
    (r#"{"jsonrpc":"2.0","id":+ID,"result":{"stopReason":"end_turn"}}"#, Taken::Noise),
    (r#"{"jsonrpc":"2.0","id":0xID,"result":{"stopReason":"end_turn"}}"#, Taken::Noise),
    (r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":2,"result":{"sessionId":"other"}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"x"}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":0,"result":{}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":-1,"result":{}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":999999,"result":{"stopReason":"end_turn"}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":18446744073709551615,"result":{}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":18446744073709551616,"result":{}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":1e308,"result":{}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":1e999,"result":{}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":"","result":{}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":"s","result":{"stopReason":"end_turn"}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":"\u0031","result":{}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":"other","error":{"code":1,"message":"x"}}"#, Taken::Stray),
    (r#"{"jsonrpc":"2.0","id":null,"result":{"stopReason":"end_turn"}}"#, Taken::Noise),
    (r#"{"jsonrpc":"2.0","id":true,"result":{"stopReason":"end_turn"}}"#, Taken::Noise),
    (r#"{"jsonrpc":"2.0","id":[ID],"result":{"stopReason":"end_turn"}}"#, Taken::Noise),
    (r#"{"jsonrpc":"2.0","id":{"id":ID},"result":{"stopReason":"end_turn"}}"#, Taken::Noise),
    (r#"{"jsonrpc":"2.0","result":{"stopReason":"end_turn"}}"#, Taken::Noise),
    (r#"{"jsonrpc":"2.0","id":ID}"#, Taken::Noise),
    (r#"{"jsonrpc":"2.0","id":ID,"result":{},"error":{}}"#, Taken::Noise),
    (r#"{"jsonrpc":"2.0","id":ID,"id":ID,"result":{}}"#, Taken::Noise),
    (r#"{"jsonrpc":"2.0","id":ID,"result":{},"result":{}}"#, Taken::Noise),
    (r#"{"jsonrpc":"2.0","id":ID,"method":"x","result":{}}"#, Taken::Noise),
    (r#"{"jsonrpc":"1.0","id":ID,"result":{"stopReason":"end_turn"}}"#, Taken::Noise),
    (r#"{"id":ID,"result":{"stopReason":"end_turn"}}"#, Taken::Noise),
    (r#"{"level":"info","id":ID,"error":{"message":"x"}}"#, Taken::Noise),
    (r#"[{"jsonrpc":"2.0","id":ID,"result":{"stopReason":"end_turn"}}]"#, Taken::Noise),
    (r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"Parse error"}}"#, Taken::Unaddressed),
    (r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}"#, Taken::Unaddressed),
];

#[test]
fn only_the_exact_answer_ends_a_turn_and_only_once() {
    assert_eq!(GAMES.len(), 40);
    let mut bench = Bench::open(options());
    for round in 0..50 {
        for (game, taken) in GAMES {
            let turn = format!("{round}-{taken:?}");
            bench.prompt(&turn);
            bench.events();
            let before = bench.counts();
            let id = bench.last_id().to_string();
            bench.line(&game.replace("ID", &id));
            let after = bench.counts();
            let moved = (
                after.stray_answers - before.stray_answers,
                after.noise - before.noise,
                after.unaddressed - before.unaddressed,
            );
            let expected = match taken {
                Taken::Stray => (1, 0, 0),
                Taken::Noise => (0, 1, 0),
                Taken::Unaddressed => (0, 0, 1),
            };
            assert_eq!(moved, expected, "{game}");
            assert!(bench.ends().is_empty(), "{game}");
            bench.result(json!({"stopReason": "end_turn"}));
            let ends = bench.ends();
            assert!(matches!(&ends[..], [(ended, Ok(_))] if *ended == Uid::from(&*turn)));
            // The same again, between two turns.
            bench.result(json!({"stopReason": "cancelled"}));
            assert!(bench.ends().is_empty());
        }
    }
    assert!(!bench.machine.is_broken);
}

#[test]
fn an_answer_that_comes_before_its_question_was_written_is_no_answer() {
    let mut bench = Bench::open(options());
    let next = bench.last_id() + 1;
    let answer = json!({"jsonrpc": "2.0", "id": next, "result": {"stopReason": "end_turn"}});
    bench.line(&answer.to_string());
    assert_eq!(bench.counts().stray_answers, 1);
    let turn = Uid::from("t");
    let blocks = super::bench::blocks("hi");
    let command = crate::acp::connection::Command::Prompt { turn, blocks };
    bench.machine.on_command(command, bench.now);
    bench.machine.on_line(answer.to_string().as_bytes(), bench.now);
    assert_eq!(bench.counts().stray_answers, 2);
    assert!(bench.ends().is_empty());
}

#[test]
fn requests_are_answered_under_the_id_that_was_written() {
    let mut bench = Bench::running(options());
    for id in ["123456789012345678901234567890", "1.50", "1e3", "\"\\u0041\"", "null", "-7", "1"] {
        let params = json!({"sessionId": "s", "path": "/x"});
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"fs/no_such_method","params":{params}}}"#
        );
        bench.machine.on_line(line.as_bytes(), bench.now);
        let answer = bench.machine.lines.pop().unwrap().bytes;
        let expected = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"#);
        assert!(answer.starts_with(expected.as_bytes()), "{}", String::from_utf8_lossy(&answer));
    }
    assert!(bench.ends().is_empty());
}
