//! The spawn toolset from outside: the built daemon, scripted agents, and clients of every kind.

mod client;
mod work;

use serde_json::{Value, json};

use crate::harness::{Answer, Daemon, Request};

/// A caller: a session with a token.
#[derive(Clone)]
pub(crate) struct Caller {
    address: String,
    token: String,
}

impl Caller {
    /// A new token of an external session.
    pub(crate) fn new(daemon: &Daemon, session: &str) -> Self {
        let path =
            format!("/apis/spawnlet.dev/v1alpha1/namespaces/default/sessions/{session}/token");
        let body = json!({"cwd": daemon.home().work()});
        let answer = daemon.request("POST", &path).json_body(&body).send();
        assert_eq!(answer.status, 201, "{}", answer.text());
        let token = answer.json()["token"].as_str().unwrap().to_owned();
        // The loop settles its directories before anything can be spawned there.
        daemon.until(&format!("sessions/{session}"), |session| {
            session["status"]["scope"]["cwd"].is_string()
        });
        Self { address: daemon.address().to_owned(), token }
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// The same caller at the next daemon.
    pub(crate) fn at(&self, daemon: &Daemon) -> Self {
        Self { address: daemon.address().to_owned(), token: self.token.clone() }
    }

    /// A message in the revision without sessions.
    pub(crate) fn request(&self, method: &str, params: Value) -> Request {
        let mut params = params;
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
        params["_meta"]["io.modelcontextprotocol/clientInfo"] =
            json!({"name": "it", "version": "1"});
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let mut request = Request::new(&self.address, "POST", "/mcp/spawn")
            .bearer(&self.token)
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", "2026-07-28")
            .header("mcp-method", method)
            .json_body(&body);
        if let Some(name) = params["name"].as_str().or(params["uri"].as_str()) {
            request = request.header("mcp-name", name);
        }
        request
    }

    pub(crate) fn tool(&self, tool: &str, arguments: &Value) -> Request {
        self.request("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// A tool's result.
    pub(crate) fn call(&self, tool: &str, arguments: &Value) -> Value {
        let answer = messages(&self.tool(tool, arguments).send()).pop().unwrap();
        assert!(answer["result"].is_object(), "{answer:#}");
        answer["result"].clone()
    }

    /// What a tool says.
    pub(crate) fn told(&self, tool: &str, arguments: &Value) -> Value {
        let result = self.call(tool, arguments);
        assert!(result["isError"] != json!(true), "{result:#}");
        result["structuredContent"].clone()
    }

    /// The code of a refusal.
    pub(crate) fn refused(&self, tool: &str, arguments: &Value) -> String {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], true, "{result:#}");
        let text = result["content"][0]["text"].as_str().unwrap();
        let error: Value = serde_json::from_str(text).unwrap();
        error["error"]["code"].as_str().unwrap().to_owned()
    }

    /// Prompts the agent `a` and waits for the answer.
    pub(crate) fn ask(&self, prompt: &str) -> Value {
        let arguments = json!({"agentId": "a", "prompt": prompt, "background": false});
        let told = self.told("prompt_to_agent", &arguments);
        assert_eq!(told["status"], "completed", "{told:#}");
        told
    }

    /// Prompts the agent `a` in the background.
    pub(crate) fn begin(&self, prompt: &str) -> Value {
        let told = self.told("prompt_to_agent", &json!({"agentId": "a", "prompt": prompt}));
        assert_eq!(told["status"], "accepted", "{told:#}");
        told
    }

    pub(crate) fn status(&self, session: &Value) -> Value {
        self.told("check_session_status", &json!({"sessionId": session}))
    }

    /// A whole response, piece by piece.
    pub(crate) fn read(&self, session: &Value, response: &Value, max: usize) -> String {
        let mut arguments = json!({"sessionId": session, "responseId": response, "maxBytes": max});
        let mut joined = String::new();
        loop {
            let piece = self.told("read_response", &arguments);
            let content = piece["content"].as_str().unwrap();
            assert!(content.len() <= max);
            joined.push_str(content);
            if piece["done"] == true {
                return joined;
            }
            arguments["cursor"] = piece["nextCursor"].clone();
        }
    }
}

/// Every JSON-RPC message of an answer, be it JSON or a stream.
pub(crate) fn messages(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    if !answer.head.contains("text/event-stream") {
        return vec![answer.json()];
    }
    answer
        .text()
        .lines()
        .filter_map(|line| line.strip_prefix("data:"))
        .filter(|data| !data.trim().is_empty())
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

/// The name of the record with this uid.
pub(crate) fn name_of(daemon: &Daemon, collection: &str, uid: &Value) -> String {
    let path = format!("/apis/spawnlet.dev/v1alpha1/namespaces/default/{collection}");
    let list = daemon.request("GET", &path).send().json();
    let items = list["items"].as_array().unwrap();
    let found = items.iter().find(|item| item["metadata"]["uid"] == *uid);
    found.unwrap_or_else(|| panic!("no {uid} in {list:#}"))["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned()
}
