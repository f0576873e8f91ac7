//! A real client of the protocol, and what clients in use do beside it.

use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, ClientConfig, ResourceUpdatedNotificationParam, SubscribeRequestParams,
};
use rmcp::service::{NotificationContext, RoleClient, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, ServiceExt};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Caller;
use crate::harness::{DEADLINE, Daemon, Request};

/// Keeps what it is told of.
#[derive(Clone)]
struct Listener(Arc<mpsc::Sender<String>>);

impl ClientHandler for Listener {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::default()
    }

    async fn on_resource_updated(
        &self,
        notice: ResourceUpdatedNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.0.send(notice.uri).await.unwrap();
    }
}

async fn connect(
    caller: &Caller,
    daemon: &Daemon,
) -> (RunningService<RoleClient, Listener>, mpsc::Receiver<String>) {
    const NOTICES_MAX: usize = 64;
    let url = format!("http://{}/mcp", daemon.address());
    let config = StreamableHttpClientTransportConfig::with_uri(url).auth_header(caller.token());
    let transport = StreamableHttpClientTransport::from_config(config);
    let (sender, receiver) = mpsc::channel(NOTICES_MAX);
    let client = Listener(Arc::new(sender)).serve(transport).await.unwrap();
    (client, receiver)
}

async fn call(
    client: &RunningService<RoleClient, Listener>,
    tool: &'static str,
    arguments: &Value,
) -> Value {
    let request =
        CallToolRequestParams::new(tool).with_arguments(arguments.as_object().unwrap().clone());
    let result = client.call_tool(request).await.unwrap();
    let result = serde_json::to_value(result).unwrap();
    result["structuredContent"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_client_prompts_is_told_of_the_end_and_reads() {
    let daemon = Daemon::start();
    daemon.agent("a", &["--cap=all"], json!({}));
    let me = Caller::new(&daemon, "me");
    let (client, mut notices) = connect(&me, &daemon).await;
    let tools = client.list_all_tools().await.unwrap();
    assert_eq!(tools.len(), 5);
    let first = json!({"agentId": "a", "prompt": "[[say:done]]"});
    let begun = call(&client, "prompt_to_agent", &first).await;
    assert_eq!(begun["status"], "accepted", "{begun:#}");
    let session = begun["sessionId"].as_str().unwrap();
    daemon.phase(&super::name_of(&daemon, "sessions", &begun["sessionId"]), "Idle");
    let uri = format!("spawnlet://sessions/{session}");
    #[expect(deprecated, reason = "clients of the revisions with sessions subscribe this way")]
    client.subscribe(SubscribeRequestParams::new(uri.clone())).await.unwrap();
    let again = json!({"agentId": "a", "prompt": "again", "sessionId": session});
    assert_eq!(call(&client, "prompt_to_agent", &again).await["status"], "accepted");
    // The end of the first turn may have been told only now; that of the second is still to come.
    let status = loop {
        let told = tokio::time::timeout(DEADLINE, notices.recv()).await.unwrap().unwrap();
        assert_eq!(told, uri);
        let status = call(&client, "check_session_status", &json!({"sessionId": session})).await;
        if status["status"] != "running" {
            break status;
        }
    };
    assert_eq!(status["status"], "idle", "{status:#}");
    let read = json!({"sessionId": session, "responseId": status["latestResponseId"]});
    assert_eq!(call(&client, "read_response", &read).await["content"], "echo: again");
    client.cancel().await.unwrap();
    drop(daemon);
}

/// A client of a revision with sessions, by hand.
struct Old {
    caller: Caller,
    session: String,
}

impl Old {
    fn open(caller: &Caller) -> Self {
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "it", "version": "1"},
        }});
        let answer = request(caller, &body).send();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let session = answer.head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        let old = Self { caller: caller.clone(), session: session.unwrap().trim().to_owned() };
        let notice = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(old.request(&notice).send().status, 202);
        old
    }

    fn request(&self, body: &Value) -> Request {
        request(&self.caller, body).header("mcp-session-id", &self.session)
    }
}

fn request(caller: &Caller, body: &Value) -> Request {
    Request::new(&caller.address, "POST", "/mcp/spawn")
        .bearer(&caller.token)
        .header("accept", "application/json, text/event-stream")
        .json_body(body)
}

fn prompt(id: u32) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {
        "name": "prompt_to_agent", "arguments": {"agentId": "a", "prompt": "x"},
    }})
}

#[test]
fn an_older_client_cancels_by_saying_so_and_not_by_hanging_up() {
    let daemon = Daemon::start();
    daemon.agent("a", &["--silent=new"], json!({}));
    let me = Caller::new(&daemon, "me");
    let client = Old::open(&me);
    // The stream is open, so the call has begun.
    drop(client.request(&prompt(7)).stream());
    let path = "/apis/spawnlet.dev/v1alpha1/namespaces/default/turns?watch=true";
    let mut watch = daemon.request("GET", path).stream();
    let first = watch.next_json().unwrap()["object"].clone();
    let turn = first["metadata"]["name"].as_str().unwrap();
    let session = first["spec"]["session"].as_str().unwrap();
    daemon.until(&format!("turns/{turn}"), |turn| turn["status"]["phase"] == "Starting");
    assert!(daemon.get(&format!("turns/{turn}"))["status"]["cancel"].is_null());
    let cancel = |id: u32| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    // One that cancels a call that there is not: nothing happens.
    assert_eq!(client.request(&cancel(8)).send().status, 202);
    assert!(daemon.get(&format!("turns/{turn}"))["status"]["cancel"].is_null());
    assert_eq!(client.request(&cancel(7)).send().status, 202);
    daemon.gone(&format!("sessions/{session}"));
}

#[test]
fn a_call_that_was_taken_back_can_be_made_again_with_its_key() {
    let daemon = Daemon::start();
    daemon.agent("a", &["--silent=new"], json!({}));
    let me = Caller::new(&daemon, "me");
    let client = Old::open(&me);
    let mut keyed = prompt(7);
    keyed["params"]["arguments"]["idempotencyKey"] = "once".into();
    drop(client.request(&keyed).stream());
    let path = "/apis/spawnlet.dev/v1alpha1/namespaces/default/turns?watch=true";
    let mut watch = daemon.request("GET", path).stream();
    let first = watch.next_json().unwrap()["object"].clone();
    let session = first["spec"]["session"].as_str().unwrap();
    let cancel =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}});
    assert_eq!(client.request(&cancel).send().status, 202);
    // At once, and again when nothing is left of the first call.
    let log = format!("--prompt-log={}", daemon.path("prompts").display());
    daemon.agent("b", &["--cap=all", &log], json!({}));
    daemon.gone(&format!("sessions/{session}"));
    let mut again = keyed["params"]["arguments"].clone();
    again["agentId"] = "b".into();
    again["background"] = false.into();
    let told = me.told("prompt_to_agent", &again);
    assert_eq!(told["status"], "completed", "{told:#}");
    assert_eq!(me.told("prompt_to_agent", &again), told);
    let prompts = std::fs::read_to_string(daemon.path("prompts")).unwrap();
    assert_eq!(prompts.lines().count(), 1, "{prompts}");
}

#[test]
fn a_session_id_is_no_authentication() {
    let daemon = Daemon::start();
    let me = Caller::new(&daemon, "me");
    let other = Caller::new(&daemon, "other");
    let client = Old::open(&me);
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let thief = Old { caller: other, session: client.session.clone() };
    assert_eq!(thief.request(&list).send().status, 404);
    assert_eq!(client.request(&list).send().status, 200);
    // The session of the token goes, and all with it.
    daemon.ok(&["delete", "session", "me"]);
    daemon.gone("sessions/me");
    assert_eq!(client.request(&list).send().status, 401);
}

#[test]
fn a_thousand_calls_and_a_slow_client_hold_nobody_up() {
    let daemon = Daemon::with(&["--set", "http.perTokenRate=100000/s"]);
    let me = Caller::new(&daemon, "me");
    // Clients that never finish their request.
    let mut slow = Vec::new();
    for _ in 0..200 {
        use std::io::Write as _;
        let mut stream = std::net::TcpStream::connect(daemon.address()).unwrap();
        stream.write_all(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\n").unwrap();
        slow.push(stream);
    }
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..125 {
                    assert!(me.told("available_agents", &json!({}))["agents"].is_array());
                }
            });
        }
    });
    assert!(daemon.peak_kib() < 256 * 1024, "{} KiB", daemon.peak_kib());
    drop(slow);
}
