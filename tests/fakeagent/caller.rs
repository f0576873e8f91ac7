//! The agent as a caller: one tool call to the server `spawnlet` among its MCP servers, in the
//! revision of the protocol that needs no session.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

/// What a tool answers, or the status of an HTTP answer that is none.
pub(crate) fn call(servers: &Value, argument: &str) -> std::io::Result<String> {
    let (tool, arguments) = argument.split_once(':').unwrap_or((argument, "{}"));
    let own = servers.as_array().into_iter().flatten().find(|server| server["name"] == "spawnlet");
    let Some(own) = own else { return Ok("there is no server spawnlet".into()) };
    let url = own["url"].as_str().unwrap_or_default();
    let rest = url.strip_prefix("http://").unwrap_or_default();
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let headers = own["headers"].as_array().cloned().unwrap_or_default();
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": tool,
        "arguments": serde_json::from_str::<Value>(arguments)?,
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "fakeagent", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    }})
    .to_string();
    let mut head = format!(
        "POST /{path} HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\n\
         content-type: application/json\r\naccept: application/json, text/event-stream\r\n\
         mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: {tool}\r\n\
         content-length: {}\r\n",
        body.len()
    );
    for header in &headers {
        let part = |name: &str| header[name].as_str().unwrap_or_default().to_owned();
        head.push_str(&format!("{}: {}\r\n", part("name"), part("value")));
    }
    let mut stream = TcpStream::connect(authority)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(format!("{head}\r\n{body}").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    // As JSON or as an event: the message is the line that is an object.
    let message = answer.lines().find_map(|line| {
        let line = line.strip_prefix("data:").unwrap_or(line).trim();
        serde_json::from_str::<Value>(line).ok().filter(Value::is_object)
    });
    let status = answer.lines().next().unwrap_or_default().to_owned();
    Ok(message.map_or(status, |message| {
        message["result"]["content"][0]["text"]
            .as_str()
            .map_or_else(|| message.to_string(), str::to_owned)
    }))
}
