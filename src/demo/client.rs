//! The MCP client: what an agent has of the daemon, over HTTP, with an address and a token.
//!
//! It is the protocol library's client as any program would use it, in revision 2026-07-28. That a
//! resource has changed is a hint: whoever waited for it asks afterwards how things are.

use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, Implementation,
    ProtocolVersion, SubscriptionFilter,
};
use rmcp::service::{
    ClientLifecycleMode, ClientServiceExt as _, RoleClient, RunningService, Subscription,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::Value;

use super::failure::Failure;
use super::process::STEP_MAX;

/// How long an update is waited for before the question is asked all the same.
const HINT_MAX: Duration = Duration::from_secs(10);

/// A connected client.
pub(super) struct Client {
    service: RunningService<RoleClient, ClientConfig>,
}

impl Client {
    /// Connects to the address with a token.
    pub(super) async fn connect(url: &str, token: &str) -> Result<Self, Failure> {
        let step = || format!("connecting an MCP client to {url}");
        // Without a proxy of the user's: the daemon is on this machine.
        let http = reqwest::Client::builder()
            .no_proxy()
            // As the library's own default client: waiting connections cost 40 ms each.
            .pool_max_idle_per_host(0)
            .build()
            .map_err(|error| Failure::unexpected(step(), "an HTTP client", error.to_string()))?;
        let config = StreamableHttpClientTransportConfig::with_uri(url).auth_header(token);
        let transport = StreamableHttpClientTransport::with_client(http, config);
        let own = Implementation::new("spawnlet-demo", env!("CARGO_PKG_VERSION"));
        let client = ClientConfig::new(ClientCapabilities::default(), own);
        let versions = vec![ProtocolVersion::V_2026_07_28];
        let lifecycle = ClientLifecycleMode::Discover { preferred_versions: versions };
        // Boxed, because it is large.
        let serving = Box::pin(client.serve_with_lifecycle(transport, lifecycle));
        let service = bounded(&step(), serving).await?;
        Ok(Self { service })
    }

    /// Who answers, and by which revision of the protocol.
    pub(super) fn server(&self) -> String {
        let Some(server) = self.service.peer_info() else { return String::new() };
        let name = server
            .server_info
            .as_ref()
            .map_or_else(String::new, |server| format!("{} {}, ", server.name, server.version));
        format!("{name}MCP {}", server.protocol_version)
    }

    /// The names of the tools.
    pub(super) async fn tools(&self) -> Result<Vec<String>, Failure> {
        let tools = bounded("tools/list", self.service.list_all_tools()).await?;
        Ok(tools.into_iter().map(|tool| tool.name.into_owned()).collect())
    }

    /// Calls a tool, which must not fail, and gives its result.
    pub(super) async fn call(&self, tool: &str, arguments: &Value) -> Result<Value, Failure> {
        let arguments = arguments.as_object().cloned().unwrap_or_default();
        let request = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let result = bounded(tool, self.service.call_tool(request)).await?;
        content(tool, result)
    }

    /// Subscribes to a resource; when this returns, nothing is missed any more.
    pub(super) async fn subscribe(&self, uri: &str) -> Result<Updates, Failure> {
        let filter = SubscriptionFilter::builder().resource_subscriptions([uri]).build();
        let step = format!("subscribing to {uri}");
        let subscription = bounded(&step, self.service.listen(filter)).await?;
        Ok(Updates { subscription, step })
    }

    /// Says goodbye.
    pub(super) async fn close(mut self) -> Result<(), Failure> {
        bounded("closing the MCP client", self.service.close()).await.map(|_| ())
    }
}

/// The updates of one resource.
pub(super) struct Updates {
    subscription: Subscription,
    step: String,
}

impl Updates {
    /// Waits for the next one. Whether there was one: it is a hint, and one may have gone by before
    /// the daemon listened for it, so nobody waits for it alone.
    pub(super) async fn next(&mut self) -> Result<bool, Failure> {
        match tokio::time::timeout(HINT_MAX, self.subscription.next()).await {
            Ok(Ok(Some(_))) => Ok(true),
            Ok(Ok(None)) => {
                Err(Failure::unexpected(&self.step, "an update", "the end of the stream"))
            }
            Ok(Err(error)) => Err(Failure::unexpected(&self.step, "an update", error.to_string())),
            Err(_) => Ok(false),
        }
    }
}

/// The structured content of a result; the text beside it has to say the same.
fn content(tool: &str, result: CallToolResult) -> Result<Value, Failure> {
    let text = result
        .content
        .first()
        .and_then(|block| block.as_text())
        .map_or("", |text| text.text.as_str());
    if result.is_error == Some(true) {
        return Err(Failure::unexpected(tool, "a result", text));
    }
    match result.structured_content {
        Some(structured)
            if serde_json::from_str(text).is_ok_and(|same: Value| same == structured) =>
        {
            Ok(structured)
        }
        structured => Err(Failure::unexpected(
            tool,
            "the same JSON as text and as structured content",
            format!("{text} and {}", structured.unwrap_or_default()),
        )),
    }
}

/// Nothing here is waited for without an end.
async fn bounded<T, E: std::fmt::Display>(
    step: &str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(STEP_MAX, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(Failure::unexpected(step, "an answer", error.to_string())),
        Err(_) => Err(Failure::unexpected(step, "an answer", format!("none within {STEP_MAX:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::ContentBlock;
    use serde_json::json;

    use super::*;

    fn result(text: &str, structured: Option<Value>) -> CallToolResult {
        let mut result = CallToolResult::success(vec![ContentBlock::text(text.to_owned())]);
        result.structured_content = structured;
        result
    }

    #[test]
    fn a_result_says_the_same_twice_or_is_none() {
        let answer = json!({"cancelled": true});
        let told = content("t", result(r#"{"cancelled": true}"#, Some(answer.clone())));
        assert_eq!(told.unwrap(), answer);
        for (text, structured) in [
            (r#"{"cancelled": false}"#, Some(answer.clone())),
            ("cancelled", Some(answer.clone())),
            (r#"{"cancelled": true}"#, None),
        ] {
            let failure = content("t", result(text, structured)).unwrap_err().to_string();
            assert!(failure.contains("structured content") && failure.contains(text), "{failure}");
        }
    }

    #[test]
    fn a_failure_of_a_tool_is_told_in_its_own_words() {
        let mut failed = result(r#"{"error":{"code":"SPAWN_NOT_FOUND"}}"#, None);
        failed.is_error = Some(true);
        let failure = content("read_response", failed).unwrap_err().to_string();
        assert!(failure.starts_with("read_response\n  expected: a result"), "{failure}");
        assert!(failure.contains("SPAWN_NOT_FOUND"), "{failure}");
    }
}
