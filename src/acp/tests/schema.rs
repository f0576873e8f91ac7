//! Against the protocol's own schema: what we send parses as its types, and what its types write
//! is read by ours.

use agent_client_protocol_schema::v1;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::bench::{Bench, options};
use crate::acp::connection::{Command, Open, Scope};
use crate::acp::event::{Event, UpdateKind};
use crate::api::agent::{McpServer, McpTransport};
use crate::options::settings::Setting;
use crate::options::{MODEL, OptionState, THOUGHT_LEVEL};

/// What was sent last, as the schema's type.
fn sent<T: DeserializeOwned>(bench: &Bench, method: &str) -> T {
    let message = bench.sent.last().unwrap();
    assert_eq!(message["method"], method);
    serde_json::from_value(message["params"].clone()).unwrap()
}

fn scope() -> Scope {
    let server = |name: &str, transport| McpServer {
        name: name.into(),
        transport,
        command: Some("/bin/run".into()),
        args: vec!["x".into()],
        env: [("A".to_owned(), "1".to_owned())].into(),
        url: Some("http://127.0.0.1/mcp".into()),
        headers: [("H".to_owned(), "v".to_owned())].into(),
    };
    Scope {
        system_prompt: Some("Be brief.".to_owned()),
        cwd: "/w".into(),
        additional_directories: vec!["/x".into()],
        mcp_servers: vec![server("a", McpTransport::Stdio), server("b", McpTransport::Http)],
    }
}

#[test]
fn every_request_of_ours_is_one_of_the_schema() {
    let mut bench = Bench::new(options());
    bench.command(Command::Initialize);
    let request: v1::InitializeRequest = sent(&bench, "initialize");
    let fs = &request.client_capabilities.fs;
    assert!(request.client_capabilities.terminal && fs.read_text_file && fs.write_text_file);
    let session = request.client_capabilities.session.unwrap();
    assert!(session.config_options.unwrap().boolean.is_some());
    assert!(request.client_capabilities.elicitation.is_none());
    let capabilities = json!({"sessionCapabilities": {"additionalDirectories": {}}});
    bench.result(json!({"protocolVersion": 1, "agentCapabilities": capabilities}));
    bench.command(Command::Authenticate("key".into()));
    let request: v1::AuthenticateRequest = sent(&bench, "authenticate");
    assert_eq!(&*request.method_id.0, "key");

    let session = "s".to_owned();
    let open = Open::Load { acp_session_id: session.clone(), scope: scope() };
    bench.command(Command::Open(open));
    let request: v1::LoadSessionRequest = sent(&bench, "session/load");
    assert_eq!(request.mcp_servers.len(), 2);
    assert_eq!(request.additional_directories.len(), 1);
    bench.error(-32002, "gone");
    bench.command(Command::Open(Open::Resume { acp_session_id: session, scope: scope() }));
    let request: v1::ResumeSessionRequest = sent(&bench, "session/resume");
    assert_eq!(request.mcp_servers.len(), 2);
    bench.error(-32002, "gone");
    bench.command(Command::Open(Open::New(scope())));
    let request: v1::NewSessionRequest = sent(&bench, "session/new");
    assert!(matches!(request.mcp_servers[1], v1::McpServer::Http(_)));
    assert!(matches!(request.mcp_servers[0], v1::McpServer::Stdio(_)));
    assert_eq!(request.additional_directories.len(), 1);
    bench.result(json!({"sessionId": "s"}));

    bench.command(Command::Set(Setting::Mode("m".into())));
    let request: v1::SetSessionModeRequest = sent(&bench, "session/set_mode");
    assert_eq!(&*request.mode_id.0, "m");
    for (value, is_boolean) in [(json!("v"), false), (json!(true), true)] {
        bench.command(Command::Set(Setting::Option { id: "o".into(), value }));
        let request: v1::SetSessionConfigOptionRequest = sent(&bench, "session/set_config_option");
        assert_eq!(request.value.as_bool().is_some(), is_boolean);
    }
    bench.prompt("t");
    let request: v1::PromptRequest = sent(&bench, "session/prompt");
    assert_eq!(request.prompt.len(), 1);
    bench.update(json!({"sessionUpdate": "plan", "entries": []}));
    bench.command(Command::Cancel);
    let _: v1::CancelNotification = sent(&bench, "session/cancel");
    bench.command(Command::Close);
    let _: v1::CloseSessionRequest = sent(&bench, "session/close");
}

#[test]
fn answers_to_permission_requests_are_ones_of_the_schema() {
    let mut bench = Bench::running(options());
    for kinds in [&[v1::PermissionOptionKind::AllowOnce][..], &[]] {
        let offer = |kind| v1::PermissionOption::new("id", "Name", kind);
        let call = v1::ToolCallUpdate::new("c", v1::ToolCallUpdateFields::new());
        let offered = kinds.iter().copied().map(offer).collect();
        let params = v1::RequestPermissionRequest::new("s", call, offered);
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": "session/request_permission",
            "params": params});
        bench.line(&request.to_string());
        let result = bench.sent.last().unwrap()["result"].clone();
        let answer: v1::RequestPermissionResponse = serde_json::from_value(result).unwrap();
        let is_selected = matches!(answer.outcome, v1::RequestPermissionOutcome::Selected(_));
        assert_eq!(is_selected, !kinds.is_empty());
    }
}

#[test]
fn options_of_the_schema_are_read() {
    let choice = |id: &'static str| v1::SessionConfigSelectOption::new(id, id.to_uppercase());
    let group = v1::SessionConfigSelectGroup::new("g", "Group", vec![choice("low")]);
    let response = v1::NewSessionResponse::new("s").config_options(vec![
        v1::SessionConfigOption::select("m", "Model", "a", vec![choice("a"), choice("b")])
            .category(v1::SessionConfigOptionCategory::Model),
        v1::SessionConfigOption::select("t", "Level", "low", vec![group])
            .category(v1::SessionConfigOptionCategory::ThoughtLevel),
        v1::SessionConfigOption::boolean("f", "Fast", true),
    ]);
    let mut bench = Bench::new(options());
    bench.command(Command::Open(Open::New(Scope::default())));
    bench.result(serde_json::to_value(response).unwrap());
    let Event::Opened(Ok(opened)) = bench.events().remove(0) else { panic!("it is open") };
    let options = opened.options;
    assert_eq!(options.options.len(), 3);
    assert_eq!(options.of_category(MODEL).next().unwrap().current(), json!("a"));
    let level = options.of_category(THOUGHT_LEVEL).next().unwrap();
    let OptionState::Select { choices, .. } = &level.state else { panic!("a select") };
    assert_eq!(choices[0].group.as_deref(), Some("Group"));
    assert_eq!(options.option("f").unwrap().current(), json!(true));
}

#[test]
fn updates_of_the_schema_are_known() {
    let text = || v1::ContentChunk::new("text".into());
    let updates = [
        v1::SessionUpdate::AgentMessageChunk(text()),
        v1::SessionUpdate::UserMessageChunk(text()),
        v1::SessionUpdate::AgentThoughtChunk(text()),
        v1::SessionUpdate::ToolCall(v1::ToolCall::new("c", "Title")),
        v1::SessionUpdate::Plan(v1::Plan::new(vec![])),
        v1::SessionUpdate::CurrentModeUpdate(v1::CurrentModeUpdate::new("m")),
        v1::SessionUpdate::ConfigOptionUpdate(v1::ConfigOptionUpdate::new(vec![])),
        v1::SessionUpdate::UsageUpdate(v1::UsageUpdate::new(1, 2)),
        v1::SessionUpdate::SessionInfoUpdate(v1::SessionInfoUpdate::new()),
    ];
    let mut bench = Bench::running(options());
    for update in updates {
        let value: Value = serde_json::to_value(&update).unwrap();
        bench.update(value.clone());
        let read = bench.updates().remove(0);
        assert!(!matches!(read.kind, UpdateKind::Unknown(_)), "{value}");
        assert_eq!(Value::from(read.kind.as_str()), value["sessionUpdate"]);
        let is_answer = matches!(update, v1::SessionUpdate::AgentMessageChunk(_));
        assert_eq!(read.text.as_deref(), is_answer.then_some("text"));
        let back: v1::SessionUpdate = serde_json::from_str(read.raw.get()).unwrap();
        assert_eq!(back, update);
    }
}
