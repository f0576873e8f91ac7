//! An MCP client of the daemon: the protocol library's own, over HTTP, as any program uses it.

use rmcp::model::{CallToolRequestParams, ClientCapabilities, ClientConfig, Implementation};
use rmcp::service::{RoleClient, RunningService, ServiceExt as _};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::Value;
use tokio::time::timeout;

use super::DEADLINE;

/// A connected client.
pub(crate) struct Caller {
    token: String,
    service: RunningService<RoleClient, ClientConfig>,
}

impl Caller {
    /// Connects to an address with a token.
    pub(crate) async fn connect(url: &str, token: &str) -> Self {
        // The daemon is on this machine, whatever proxy the machine has.
        let http = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap();
        let config = StreamableHttpClientTransportConfig::with_uri(url).auth_header(token.trim());
        let transport = StreamableHttpClientTransport::with_client(http, config);
        let own = Implementation::new("spawnlet-it", "1");
        let client = ClientConfig::new(ClientCapabilities::default(), own);
        let service = timeout(DEADLINE, Box::pin(client.serve(transport))).await;
        let service = service.expect("no connection in time").unwrap();
        Self { token: token.trim().to_owned(), service }
    }

    /// A session that calls, and its client.
    pub(crate) async fn of(daemon: &super::Daemon, session: &str) -> Self {
        let work = daemon.home().work();
        let arguments = ["token", "create", "--session", session, "--cwd", &work, "-o", "json"];
        let made: Value = serde_json::from_str(&daemon.ok(&arguments)).unwrap();
        daemon.phase(session, "Idle");
        let token = made["token"].as_str().unwrap();
        Self::connect(made["mcpUrl"].as_str().unwrap(), token).await
    }

    /// The same caller at another daemon, or at the next one on its directory.
    pub(crate) async fn at(&self, daemon: &super::Daemon) -> Self {
        Self::connect(&format!("http://{}/mcp", daemon.address()), &self.token).await
    }

    /// The names of the tools.
    pub(crate) async fn tools(&self) -> Vec<String> {
        let tools = timeout(DEADLINE, self.service.list_all_tools()).await.unwrap().unwrap();
        tools.into_iter().map(|tool| tool.name.into_owned()).collect()
    }

    /// Whether it failed, and what was said: the text, which has to be JSON.
    async fn call(&self, tool: &'static str, arguments: &Value) -> (bool, Value) {
        let request =
            CallToolRequestParams::new(tool).with_arguments(arguments.as_object().unwrap().clone());
        let result = timeout(DEADLINE, self.service.call_tool(request)).await;
        let result = result.unwrap_or_else(|_| panic!("{tool} was not answered: {arguments}"));
        let result = serde_json::to_value(result.unwrap()).unwrap();
        let text = result["content"][0]["text"].as_str().unwrap();
        let said: Value = serde_json::from_str(text).unwrap();
        let is_error = result["isError"] == true;
        if !is_error {
            assert_eq!(result["structuredContent"], said, "{tool} says two things");
        }
        (is_error, said)
    }

    /// What a tool says, which must not fail.
    pub(crate) async fn told(&self, tool: &'static str, arguments: &Value) -> Value {
        let (is_error, said) = self.call(tool, arguments).await;
        assert!(!is_error, "{tool} {arguments}: {said}");
        said
    }

    /// The code of the failure that a tool must end with.
    pub(crate) async fn refused(&self, tool: &'static str, arguments: &Value) -> String {
        let (is_error, said) = self.call(tool, arguments).await;
        assert!(is_error, "{tool} {arguments}: {said}");
        said["error"]["code"].as_str().unwrap().to_owned()
    }

    /// A prompt, whatever it is answered with, but for a refusal.
    pub(crate) async fn prompt(&self, arguments: &Value) -> Value {
        self.told("prompt_to_agent", arguments).await
    }

    /// What is said of a session.
    pub(crate) async fn status(&self, session: &Value) -> Value {
        self.told("check_session_status", &serde_json::json!({"sessionId": session})).await
    }

    /// A whole response, in pieces of at most so many bytes.
    pub(crate) async fn read(&self, session: &Value, response: &Value, max: usize) -> String {
        let mut arguments =
            serde_json::json!({"sessionId": session, "responseId": response, "maxBytes": max});
        let mut joined = String::new();
        loop {
            let piece = self.told("read_response", &arguments).await;
            let content = piece["content"].as_str().unwrap();
            assert!(content.len() <= max, "{} bytes", content.len());
            joined.push_str(content);
            if piece["done"] == true {
                return joined;
            }
            arguments["cursor"] = piece["nextCursor"].clone();
        }
    }

    /// Says goodbye.
    pub(crate) async fn close(mut self) {
        timeout(DEADLINE, self.service.close()).await.unwrap().unwrap();
    }
}
