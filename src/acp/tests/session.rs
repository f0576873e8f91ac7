//! What a session's life looks like on the wire.

use serde_json::{Value, json};

use super::bench::{Bench, chunk, options, update_line};
use crate::acp::connection::{Command, Open, Scope};
use crate::acp::event::{Event, FailureKind, StopReason, UpdateKind};
use crate::api::Uid;
use crate::api::agent::{AdditionalDirectories, McpServer, McpTransport};
use crate::options::OptionState;
use crate::options::settings::Setting;

fn initialize(result: Value) -> Event {
    let mut bench = Bench::new(options());
    bench.command(Command::Initialize);
    bench.result(result);
    bench.events().remove(0)
}

#[test]
fn initialize_says_what_the_agent_is_and_can() {
    let Event::Initialized(Ok(found)) = initialize(json!({
        "protocolVersion": 1,
        "agentInfo": {"name": "a", "version": "2"},
        "agentCapabilities": {
            "loadSession": true,
            "mcpCapabilities": {"http": true},
            "promptCapabilities": {"image": true, "audio": 7},
            "sessionCapabilities": {"resume": {}, "close": null, "additionalDirectories": {}},
            "new": [1],
        },
        "authMethods": [{"id": "key", "name": "Key"}, {"name": "no id"}, 7],
    })) else {
        panic!("it is initialized");
    };
    assert_eq!(found.agent_name.as_deref(), Some("a"));
    let can = found.capabilities;
    assert!(can.load && can.resume && !can.close && can.additional_directories);
    assert!(can.mcp_http && can.image && !can.audio && !can.embedded_context);
    assert_eq!(found.raw_capabilities.unwrap()["new"], json!([1]));
    assert_eq!(found.auth_methods.len(), 1);
}

#[test]
fn what_an_agent_says_of_itself_is_kept_within_bounds() {
    let said = |capabilities: Value| {
        let version = "é".repeat(1_000);
        let event = initialize(json!({"protocolVersion": 1, "agentInfo": {"version": version},
            "agentCapabilities": capabilities}));
        let Event::Initialized(Ok(found)) = event else { panic!("it is initialized") };
        assert_eq!(found.agent_version.unwrap(), "é".repeat(64));
        found.raw_capabilities
    };
    assert_eq!(said(json!({"a": 1})), Some(json!({"a": 1})));
    assert_eq!(said(json!({"a": "x".repeat(20_000)})), None);
    assert_eq!(said(json!(null)), None);
}

#[test]
fn another_protocol_version_is_refused() {
    for version in [json!(2), json!(99), json!("1"), json!(null), json!(1.5)] {
        let event = initialize(json!({"protocolVersion": version}));
        let Event::Initialized(Err(failure)) = event else { panic!("{version} is refused") };
        assert_eq!(failure.kind, FailureKind::ProtocolVersion);
    }
    let event = initialize(json!({"protocolVersion": 1}));
    assert!(matches!(event, Event::Initialized(Ok(_))));
}

fn failed(open: Open, code: i64, message: &str) -> FailureKind {
    let mut bench = Bench::new(options());
    bench.command(Command::Open(open));
    bench.error(code, message);
    match bench.events().remove(0) {
        Event::Opened(Err(failure)) => failure.kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn failures_to_open_are_told_apart() {
    let new = || Open::New(Scope::default());
    let load = || Open::Load { acp_session_id: "x".into(), scope: Scope::default() };
    assert_eq!(failed(new(), -32000, "log in"), FailureKind::AuthRequired);
    assert_eq!(failed(new(), -32002, "no such directory"), FailureKind::Other);
    assert_eq!(failed(load(), -32002, "x"), FailureKind::SessionLost);
    assert_eq!(failed(load(), -32601, "x"), FailureKind::MethodNotFound);
    assert_eq!(failed(load(), -32603, "something else"), FailureKind::Other);
    for message in [
        "Session not found: 7",
        "Resource not found",
        "no rollout found for thread id 7",
        "No previous sessions found for this project",
    ] {
        assert_eq!(failed(load(), -32603, message), FailureKind::SessionLost, "{message}");
    }
}

#[test]
fn after_a_failed_open_another_one_may_follow() {
    let mut bench = Bench::new(options());
    bench.command(Command::Open(Open::Load {
        acp_session_id: "old".into(),
        scope: Scope::default(),
    }));
    bench.command(Command::Open(Open::New(Scope::default())));
    bench.error(-32002, "gone");
    bench.command(Command::Open(Open::New(Scope::default())));
    bench.result(json!({"sessionId": "new"}));
    bench.command(Command::Open(Open::New(Scope::default())));
    let outcomes: Vec<_> = bench
        .events()
        .into_iter()
        .map(|event| match event {
            Event::Opened(outcome) => outcome.map(|o| o.acp_session_id).map_err(|e| e.kind),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        Err(FailureKind::NotSent),
        Err(FailureKind::SessionLost),
        Ok("new".to_owned()),
        Err(FailureKind::NotSent),
    ];
    assert_eq!(outcomes, expected);
    assert_eq!(bench.times("session/new"), 1);
}

#[test]
fn directories_are_sent_as_the_agent_understands_them() {
    for (directories, declared, field) in [
        (AdditionalDirectories::Auto, true, Some("additionalDirectories")),
        (AdditionalDirectories::Auto, false, None),
        (AdditionalDirectories::Extension, false, Some("additional_dirs")),
        (AdditionalDirectories::None, true, None),
    ] {
        let mut options = options();
        options.additional_directories = directories;
        let mut bench = Bench::new(options);
        bench.command(Command::Initialize);
        let session = if declared { json!({"additionalDirectories": {}}) } else { json!({}) };
        let capabilities = json!({"sessionCapabilities": session});
        bench.result(json!({"protocolVersion": 1, "agentCapabilities": capabilities}));
        let server = |name: &str, transport| McpServer {
            name: name.into(),
            transport,
            command: Some("run".into()),
            args: vec!["x".into()],
            env: [("B".to_owned(), "2".to_owned()), ("A".to_owned(), "1".to_owned())].into(),
            url: Some("http://h".into()),
            headers: [("H".to_owned(), "v".to_owned())].into(),
        };
        bench.command(Command::Open(Open::New(Scope {
            system_prompt: None,
            cwd: "/w".into(),
            additional_directories: vec!["/x".into()],
            mcp_servers: vec![
                server("one", McpTransport::Stdio),
                server("two", McpTransport::Http),
            ],
        })));
        let params = &bench.sent.last().unwrap()["params"];
        for name in ["additionalDirectories", "additional_dirs"] {
            let expected = (field == Some(name)).then(|| json!(["/x"]));
            assert_eq!(params.get(name), expected.as_ref());
        }
        let servers = json!([
            {"name": "one", "command": "run", "args": ["x"],
             "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            {"type": "http", "name": "two", "url": "http://h",
             "headers": [{"name": "H", "value": "v"}]},
        ]);
        assert_eq!(params["mcpServers"], servers);
    }
}

#[test]
fn updates_before_the_answer_to_new_are_held_for_it() {
    let mut bench = Bench::new(options());
    bench.command(Command::Open(Open::New(Scope::default())));
    for n in 0..120 {
        let session = if n % 2 == 0 { "s" } else { "other" };
        bench.line(&update_line(session, &chunk(&n.to_string())));
    }
    assert!(bench.events().is_empty());
    bench.result(json!({"sessionId": "s"}));
    let events = bench.events();
    assert!(matches!(events[0], Event::Opened(Ok(_))));
    assert_eq!(events.len(), 1 + 50);
    for (n, event) in events[1..].iter().enumerate() {
        let Event::Update(update) = event else { panic!("{event:?}") };
        assert_eq!(update.text.as_deref(), Some(&*(2 * n).to_string()));
        assert!(!update.replay && !update.late && update.turn.is_none());
    }
    assert_eq!(bench.counts().dropped_updates, 20 + 50);
}

#[test]
fn what_comes_before_the_answer_to_load_is_replay() {
    let mut bench = Bench::new(options());
    bench
        .command(Command::Open(Open::Load { acp_session_id: "s".into(), scope: Scope::default() }));
    bench.update(chunk("old"));
    bench.line(&update_line("foreign", &chunk("x")));
    bench.result(json!(null));
    bench.update(chunk("new"));
    let events = bench.events();
    let shape: Vec<_> = events
        .iter()
        .map(|event| match event {
            Event::Update(update) => (update.text.as_deref(), update.replay),
            Event::Opened(Ok(_)) => (Some("opened"), false),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(shape, [(Some("old"), true), (Some("opened"), false), (Some("new"), false)]);
    assert_eq!(bench.counts().dropped_updates, 1);
}

#[test]
fn updates_belong_to_the_turn_that_runs_and_later_ones_are_late() {
    let mut bench = Bench::open(options());
    bench.update(chunk("before"));
    bench.prompt("one");
    bench.update(chunk("in"));
    bench.update(json!({"sessionUpdate": "tool_call", "toolCallId": "1", "title": "T"}));
    bench.result(json!({"stopReason": "end_turn", "usage": {"totalTokens": 3}}));
    bench.update(chunk("late"));
    bench.prompt("two");
    bench.update(chunk("again"));
    let seen: Vec<_> = bench
        .events()
        .into_iter()
        .map(|event| match event {
            Event::Update(u) => {
                let turn = u.turn.map(|turn| turn.to_string()).unwrap_or_default();
                format!(
                    "{} {turn} {}",
                    u.text.unwrap_or(u.tool.map_or("?".into(), |t| t.id)),
                    u.late
                )
            }
            Event::PromptWritten { turn } => format!("written {turn}"),
            Event::PromptEnded { turn, outcome } => {
                let end = outcome.unwrap();
                assert_eq!(end.reason, StopReason::EndTurn);
                assert_eq!(end.usage, Some(json!({"totalTokens": 3})));
                format!("ended {turn}")
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        "before  false",
        "written one",
        "in one false",
        "1 one false",
        "ended one",
        "late  true",
        "written two",
        "again two false",
    ];
    assert_eq!(seen, expected);
}

#[test]
fn unknown_kinds_and_stop_reasons_are_kept_as_they_came() {
    let mut bench = Bench::running(options());
    let strange = json!({"sessionUpdate": "hologram", "depth": 3});
    bench.update(strange.clone());
    bench.result(json!({"stopReason": "bored"}));
    let mut events = bench.events().into_iter();
    let Some(Event::Update(update)) = events.next() else { panic!("an update") };
    assert_eq!(update.kind, UpdateKind::Unknown("hologram".into()));
    assert_eq!(update.raw.get(), strange.to_string());
    assert_eq!(update.turn, Some(Uid::from("t")));
    let Some(Event::PromptEnded { outcome: Ok(end), .. }) = events.next() else { panic!("an end") };
    assert_eq!((end.stop_reason.as_str(), end.reason), ("bored", StopReason::Unknown));
}

#[test]
fn one_prompt_runs_at_a_time() {
    let mut bench = Bench::new(options());
    bench.prompt("early");
    assert!(matches!(&bench.ends()[..], [(_, Err(_))]));
    let mut bench = Bench::running(options());
    bench.prompt("second");
    let ends = bench.ends();
    assert!(matches!(&ends[..], [(turn, Err(_))] if *turn == Uid::from("second")));
    assert_eq!(bench.times("session/prompt"), 1);
    bench.result(json!({"stopReason": "end_turn"}));
    assert!(matches!(&bench.ends()[..], [(turn, Ok(_))] if *turn == Uid::from("t")));
}

#[test]
fn options_follow_what_the_agent_says() {
    let mut options = options();
    options.category_map.insert("thinking".into(), "thought_level".into());
    let mut bench = Bench::new(options);
    bench.command(Command::Open(Open::New(Scope::default())));
    let level = |current: &str| {
        json!({"id": "t", "name": "T", "category": "thinking", "type": "select",
            "currentValue": current, "options": [
                {"group": "g", "name": "G", "options": [{"value": "low", "name": "Low"}]},
                {"value": "high", "name": "High"}]})
    };
    bench.result(json!({
        "sessionId": "s",
        "configOptions": [level("low"), {"id": "odd", "type": "slider"}, 7,
            {"id": "fast", "name": "Fast", "type": "boolean", "currentValue": false}],
        "modes": {"currentModeId": "a", "availableModes": [{"id": "a", "name": "A"}, {"id": "b"}]},
        "models": {"currentModelId": "m1", "availableModels": [{"modelId": "m1"}, {"modelId": "m2"}]},
    }));
    let Event::Opened(Ok(opened)) = bench.events().remove(0) else { panic!("it is open") };
    let ids: Vec<_> = opened.options.options.iter().map(|option| option.id.as_str()).collect();
    assert_eq!(ids, ["t", "fast", "model"]);
    let option = opened.options.option("t").unwrap();
    assert_eq!(option.category.as_deref(), Some("thought_level"));
    let OptionState::Select { choices, .. } = &option.state else { panic!("a select") };
    assert_eq!(choices[0].group.as_deref(), Some("G"));

    bench.command(Command::Set(Setting::Option { id: "fast".into(), value: json!(true) }));
    let params = &bench.sent.last().unwrap()["params"];
    let expected = json!({"sessionId": "s", "configId": "fast", "value": true, "type": "boolean"});
    assert_eq!(*params, expected);
    bench.result(json!({"configOptions": [level("high")]}));
    bench.command(Command::Set(Setting::Mode("b".into())));
    bench.result(json!({}));
    bench.command(Command::Set(Setting::Model("m2".into())));
    bench.result(json!(null));
    bench.update(json!({"sessionUpdate": "current_mode_update", "currentModeId": "a"}));
    bench.command(Command::Set(Setting::Option { id: "t".into(), value: json!("low") }));
    bench.result(json!({}));
    bench.command(Command::Set(Setting::Mode("c".into())));
    bench.error(-32602, "no such mode");

    let state = |snapshot: &crate::options::Snapshot| {
        let option = |id: &str| snapshot.option(id).map(|option| option.current());
        format!("{:?} {:?}", option("t"), option("model"))
            + &snapshot.modes.as_ref().unwrap().current
    };
    let seen: Vec<_> = bench
        .events()
        .iter()
        .filter_map(|event| match event {
            Event::Configured { outcome: Ok(snapshot), .. } => Some(state(snapshot)),
            Event::Configured { outcome: Err(failure), .. } => Some(format!("{:?}", failure.kind)),
            Event::OptionsChanged(snapshot) => Some(state(snapshot)),
            _ => None,
        })
        .collect();
    let at = |model: &str, mode: &str| {
        format!("{:?} {:?}{mode}", Some(json!("high")), Some(json!(model)))
    };
    let failures = ["Malformed".to_owned(), "Other".to_owned()];
    let good = [at("m1", "a"), at("m1", "b"), at("m2", "b"), at("m2", "a")];
    assert_eq!(seen, [&good[..], &failures[..]].concat());
}
