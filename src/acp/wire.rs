//! Requests as lines, and what answers mean: our own lenient reading of the protocol's shapes.
//!
//! Invariants: an unknown field, enum value or list item never fails a whole answer; only what is
//! needed is read. Source of names: the protocol's schema, version 1, and for `models` and
//! `session/set_model` what agents still send (they are out of the schema).

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::connection::Scope;
use super::event::{
    AuthMethod, Failure, FailureKind, Initialized, NAME_BYTES_MAX, PromptEnd, StopReason, cut,
};
use crate::api::agent::{AdditionalDirectories, McpServer, McpTransport};
use crate::api::session::Capabilities;
use crate::options::{Choice, LiveOption, MODEL, Modes, OptionState, Setter, Snapshot};

/// The protocol's version that we speak.
pub(super) const PROTOCOL_VERSION: u64 = 1;

/// A request's line, with its newline.
pub(super) fn request(id: u64, method: &str, params: &Value) -> Vec<u8> {
    line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
}

/// A notification's line.
pub(super) fn notification(method: &str, params: &Value) -> Vec<u8> {
    line(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
}

fn line(message: &Value) -> Vec<u8> {
    let mut line = message.to_string().into_bytes();
    line.push(b'\n');
    line
}

/// A prompt's line. The blocks go in as they are, but for line breaks between their tokens: inside
/// of a JSON string there are none.
pub(super) fn prompt(id: u64, session: &str, blocks: &RawValue) -> Vec<u8> {
    let session = Value::from(session);
    let mut line = format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"session/prompt","params":{{"sessionId":{session},"prompt":"#
    )
    .into_bytes();
    line.extend(blocks.get().bytes().map(|b| if matches!(b, b'\n' | b'\r') { b' ' } else { b }));
    line.extend_from_slice(b"}}\n");
    line
}

/// An answer's line; the id is the text that the agent wrote.
pub(super) fn answer(id: &RawValue, outcome: Result<&Value, (i32, &str)>) -> Vec<u8> {
    let body = match outcome {
        Ok(result) => format!(r#""result":{result}"#),
        Err((code, message)) => {
            format!(r#""error":{}"#, json!({"code": code, "message": message}))
        }
    };
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{},{body}}}\n", id.get()).into_bytes()
}

/// The parameters of `initialize`. Elicitation is not offered.
pub(super) fn initialize_params() -> Value {
    json!({
        "protocolVersion": PROTOCOL_VERSION,
        "clientCapabilities": {
            "fs": {"readTextFile": true, "writeTextFile": true},
            "terminal": true,
            "session": {"configOptions": {"boolean": {}}},
        },
        "clientInfo": {"name": "spawnlet", "version": env!("CARGO_PKG_VERSION")},
    })
}

/// The parameters that `session/new`, `resume` and `load` share.
pub(super) fn scope_params(
    scope: &Scope,
    directories: AdditionalDirectories,
    declared: bool,
) -> Map<String, Value> {
    let mut params = Map::new();
    params.insert("cwd".into(), scope.cwd.clone().into());
    let servers = scope.mcp_servers.iter().map(mcp_server).collect();
    params.insert("mcpServers".into(), Value::Array(servers));
    if let Some(text) = &scope.system_prompt {
        let content = json!([{"type": "text", "text": text}]);
        params.insert("systemPrompt".into(), json!({"mode": "append", "content": content}));
    }
    let field = match directories {
        AdditionalDirectories::Auto if declared => "additionalDirectories",
        AdditionalDirectories::Extension => "additional_dirs",
        AdditionalDirectories::Auto | AdditionalDirectories::None => return params,
    };
    if !scope.additional_directories.is_empty() {
        params.insert(field.into(), scope.additional_directories.clone().into());
    }
    params
}

fn mcp_server(server: &McpServer) -> Value {
    let pairs = |map: &BTreeMap<String, String>| -> Vec<Value> {
        map.iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
    };
    match server.transport {
        McpTransport::Stdio => json!({
            "name": server.name,
            "command": server.command.as_deref().unwrap_or_default(),
            "args": server.args,
            "env": pairs(&server.env),
        }),
        McpTransport::Http => json!({
            "type": "http",
            "name": server.name,
            "url": server.url.as_deref().unwrap_or_default(),
            "headers": pairs(&server.headers),
        }),
    }
}

/// How much of an agent's capabilities is kept as it came, as JSON text: they go into a record. The
/// largest that was seen has 1 KiB.
const CAPABILITIES_BYTES_MAX: usize = 16 * 1024;

/// What an agent said of itself.
pub(super) fn initialized(result: &RawValue) -> Result<Initialized, Failure> {
    let result: Value = parse(result)?;
    let version = &result["protocolVersion"];
    if version.as_u64() != Some(PROTOCOL_VERSION) {
        let message =
            format!("the agent speaks protocol version {version}, we speak {PROTOCOL_VERSION}");
        return Err(own_failure(FailureKind::ProtocolVersion, &message));
    }
    let capabilities = &result["agentCapabilities"];
    let is = |path: &str| capabilities.pointer(path) == Some(&Value::Bool(true));
    // A capability object that is empty is declared; null and false are not.
    let has = |path: &str| {
        capabilities.pointer(path).is_some_and(|v| v.is_object() || *v == Value::Bool(true))
    };
    let info = |name: &str| {
        let text = text(&result["agentInfo"], name)?;
        Some(cut(&text, NAME_BYTES_MAX).to_owned())
    };
    let methods = result["authMethods"].as_array().into_iter().flatten();
    Ok(Initialized {
        protocol_version: PROTOCOL_VERSION,
        agent_name: info("name"),
        agent_version: info("version"),
        capabilities: Capabilities {
            load: is("/loadSession"),
            resume: has("/sessionCapabilities/resume"),
            close: has("/sessionCapabilities/close"),
            additional_directories: has("/sessionCapabilities/additionalDirectories"),
            system_prompt: has("/sessionCapabilities/systemPrompt"),
            mcp_http: is("/mcpCapabilities/http"),
            image: is("/promptCapabilities/image"),
            audio: is("/promptCapabilities/audio"),
            embedded_context: is("/promptCapabilities/embeddedContext"),
        },
        auth_methods: methods
            .filter_map(|method| {
                let id = text(method, "id")?;
                let name = text(method, "name").unwrap_or_else(|| id.clone());
                Some(AuthMethod { id, name, description: text(method, "description") })
            })
            .collect(),
        raw_capabilities: (capabilities.is_object()
            && capabilities.to_string().len() <= CAPABILITIES_BYTES_MAX)
            .then(|| capabilities.clone()),
    })
}

/// All options of an answer to `session/new`, `resume` or `load`.
pub(super) fn snapshot(result: &Value, categories: &BTreeMap<String, String>) -> Snapshot {
    let mut snapshot = Snapshot {
        options: config_options(result, categories).unwrap_or_default(),
        modes: modes(&result["modes"]),
    };
    keep_model_option(&mut snapshot, models(&result["models"]));
    snapshot
}

/// The list of config options below `configOptions`; `None` if there is no list.
pub(super) fn config_options(
    holder: &Value,
    categories: &BTreeMap<String, String>,
) -> Option<Vec<LiveOption>> {
    let list = holder.get("configOptions")?.as_array()?;
    Some(list.iter().filter_map(|option| config_option(option, categories)).collect())
}

/// Puts a synthetic model option beside a list that has none of its own.
pub(super) fn keep_model_option(snapshot: &mut Snapshot, model: Option<LiveOption>) {
    let Some(model) = model else { return };
    let taken = snapshot.option(&model.id).is_some() || snapshot.of_category(MODEL).count() > 0;
    if !taken {
        snapshot.options.push(model);
    }
}

fn config_option(option: &Value, categories: &BTreeMap<String, String>) -> Option<LiveOption> {
    let id = text(option, "id").filter(|id| !id.is_empty())?;
    let category =
        text(option, "category").map(|name| categories.get(&name).cloned().unwrap_or(name));
    let state = match option["type"].as_str()? {
        "select" => OptionState::Select {
            current: text(option, "currentValue")?,
            choices: choices(option["options"].as_array()?, "value"),
        },
        "boolean" => OptionState::Boolean { current: option["currentValue"].as_bool()? },
        _ => return None,
    };
    let name = text(option, "name").unwrap_or_else(|| id.clone());
    Some(LiveOption { id, name, category, state, setter: Setter::ConfigOption })
}

/// Choices by the name of the field that holds their value; groups are flattened.
fn choices(list: &[Value], key: &str) -> Vec<Choice> {
    let mut found = Vec::new();
    for item in list {
        if let Some(inner) = item["options"].as_array() {
            let group = text(item, "name").or_else(|| text(item, "group"));
            let of_group = |mut choice: Choice| {
                choice.group.clone_from(&group);
                choice
            };
            found.extend(inner.iter().filter_map(|item| choice(item, key)).map(of_group));
        } else {
            found.extend(choice(item, key));
        }
    }
    found
}

fn choice(item: &Value, key: &str) -> Option<Choice> {
    let value = text(item, key)?;
    let name = text(item, "name").unwrap_or_else(|| value.clone());
    Some(Choice { value, name, group: None, description: text(item, "description") })
}

fn modes(modes: &Value) -> Option<Modes> {
    let current = text(modes, "currentModeId")?;
    let available = modes["availableModes"].as_array().map_or(&[][..], Vec::as_slice);
    Some(Modes { current, available: choices(available, "id") })
}

fn models(models: &Value) -> Option<LiveOption> {
    let current = text(models, "currentModelId")?;
    let choices = choices(models["availableModels"].as_array()?, "modelId");
    Some(LiveOption {
        id: MODEL.into(),
        name: "Model".into(),
        category: Some(MODEL.into()),
        state: OptionState::Select { current, choices },
        setter: Setter::Model,
    })
}

/// How a prompt ended.
pub(super) fn prompt_end(result: &RawValue) -> Result<PromptEnd, Failure> {
    let result: Value = parse(result)?;
    let stop_reason = text(&result, "stopReason").ok_or_else(|| {
        own_failure(FailureKind::Malformed, "the answer to the prompt has no stopReason")
    })?;
    Ok(PromptEnd {
        reason: StopReason::parse(&stop_reason),
        stop_reason: cut(&stop_reason, NAME_BYTES_MAX).to_owned(),
        usage: result.get("usage").filter(|usage| usage.is_object()).cloned(),
    })
}

/// A failure that the agent did not word.
pub(super) fn own_failure(kind: FailureKind, message: &str) -> Failure {
    Failure { code: 0, message: message.to_owned(), data: None, kind }
}

/// What was asked when a failure came; decides what its code means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// To begin: `initialize`, `authenticate`, `session/new`.
    Start,
    /// To go on with a session: `session/resume`, `session/load`.
    GoOn,
    /// Something of the open session.
    Session,
}

/// How much of an agent's message is kept.
const MESSAGE_BYTES_MAX: usize = 4096;
/// How much of `data` is kept, as JSON text; more is dropped.
const DATA_BYTES_MAX: usize = 64 * 1024;

/// What an error answer means.
pub(super) fn failure(error: &RawValue, asked: Asked) -> Failure {
    let data = |error: &Value| {
        let data = error.get("data").filter(|data| !data.is_null())?;
        (error.to_string().len() <= DATA_BYTES_MAX).then(|| data.clone())
    };
    let error: Value = serde_json::from_str(error.get()).unwrap_or(Value::Null);
    let code = error["code"].as_i64().unwrap_or(0);
    let message = match text(&error, "message") {
        Some(message) => cut(&message, MESSAGE_BYTES_MAX).to_owned(),
        None => "the agent answered with an error that has no message".to_owned(),
    };
    let data = data(&error);
    let kind = match (code, asked) {
        (-32601, _) => FailureKind::MethodNotFound,
        // In a turn the code is the model server's refusal passed on, and no login of ours helps.
        (-32000, Asked::Start | Asked::GoOn) => FailureKind::AuthRequired,
        (-32002, Asked::GoOn | Asked::Session) => FailureKind::SessionLost,
        (_, Asked::GoOn | Asked::Session) if names_a_lost_session(&message, data.as_ref()) => {
            FailureKind::SessionLost
        }
        _ => FailureKind::Other,
    };
    Failure { code, message, data, kind }
}

/// What agents say, under several codes, of a session that they do not know.
fn names_a_lost_session(message: &str, data: Option<&Value>) -> bool {
    const WORDS: &[&str] = &[
        "session not found",
        "unknown session",
        "resource not found",
        "no rollout found",
        "no previous sessions found",
    ];
    let says = |text: &str| {
        let text = text.to_lowercase();
        WORDS.iter().any(|words| text.contains(words))
    };
    says(message) || data.is_some_and(|data| says(&data.to_string()))
}

pub(super) fn parse(result: &RawValue) -> Result<Value, Failure> {
    serde_json::from_str(result.get()).map_err(|_| {
        own_failure(FailureKind::Malformed, "the agent's answer could not be understood")
    })
}

pub(super) fn text(holder: &Value, name: &str) -> Option<String> {
    holder.get(name)?.as_str().map(str::to_owned)
}
