//! The protocol's revisions, its sessions, and the paths.

use super::*;

const OLD: [&str; 3] = ["2025-03-26", "2025-06-18", "2025-11-25"];

/// A client of a revision with sessions.
struct Client<'a> {
    bench: &'a Bench,
    token: String,
    id: String,
}

fn initialize(version: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": version, "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }})
}

impl<'a> Client<'a> {
    async fn open(bench: &'a Bench, token: &str, version: &str) -> (Self, Value) {
        let response = bench.open(Bench::post(token, "/mcp/spawn", &initialize(version))).await;
        assert_eq!(response.status(), 200);
        let id = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        let answer = last_message(response).await;
        let client = Self { bench, token: token.to_owned(), id };
        let notice = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(client.send(&notice).await.status(), 202);
        (client, answer)
    }

    fn request(&self, body: &Value) -> Request<Body> {
        let mut request = Bench::post(&self.token, "/mcp/spawn", body);
        request.headers_mut().insert("mcp-session-id", self.id.parse().unwrap());
        request
    }

    async fn send(&self, body: &Value) -> axum::response::Response {
        self.bench.open(self.request(body)).await
    }

    async fn ask(&self, id: u32, method: &str, params: Value) -> Value {
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        last_message(self.send(&body).await).await
    }

    async fn bare(&self, method: &str) -> axum::response::Response {
        let request = Request::builder()
            .method(method)
            .uri("/mcp/spawn")
            .header("host", "localhost")
            .header("authorization", format!("Bearer {}", self.token))
            .header("accept", "text/event-stream")
            .header("mcp-session-id", &self.id)
            .body(Body::empty())
            .unwrap();
        self.bench.open(request).await
    }
}

fn prompt() -> Value {
    json!({"name": "prompt_to_agent", "arguments": {"agentId": "stub", "prompt": "p"}})
}

#[tokio::test]
async fn every_revision_in_use_is_served() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    for version in OLD {
        let (client, answer) = Client::open(&bench, &me.token, version).await;
        assert_eq!(answer["result"]["protocolVersion"], version);
        assert_eq!(answer["result"]["capabilities"]["resources"]["subscribe"], true);
        let tools = client.ask(1, "tools/list", json!({})).await;
        let names: Vec<&str> = tools["result"]["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| tool["name"].as_str().unwrap())
            .collect();
        let all = [
            "available_agents",
            "prompt_to_agent",
            "check_session_status",
            "read_response",
            "cancel_session",
        ];
        assert_eq!(names, all);
        let agents = client.ask(2, "tools/call", json!({"name": "available_agents"})).await;
        assert_eq!(agents["result"]["structuredContent"]["agents"][0]["agentId"], "stub");
    }
    let discovered = bench.ask(&me.token, "server/discover", json!({})).await;
    let versions = discovered["result"]["supportedVersions"].as_array().unwrap();
    assert_eq!(versions.len(), OLD.len() + 1, "{discovered:#}");
    assert!(versions.contains(&json!("2026-07-28")));
    let tools = bench.ask(&me.token, "tools/list", json!({})).await;
    assert_eq!(tools["result"]["tools"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn another_version_is_negotiated_or_refused() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    for asked in ["1999-01-01", "2024-11-05", "2026-07-28", "x", ""] {
        let (_, answer) = Client::open(&bench, &me.token, asked).await;
        let given = answer["result"]["protocolVersion"].as_str().unwrap();
        assert!(OLD.contains(&given), "{asked}: {answer:#}");
    }
    let (client, _) = Client::open(&bench, &me.token, "2025-06-18").await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    for unknown in ["1999-01-01", "x", "2025-06-18 "] {
        let mut request = client.request(&list);
        request.headers_mut().insert("mcp-protocol-version", unknown.parse().unwrap());
        assert_eq!(bench.open(request).await.status(), 400, "{unknown:?}");
    }
    for unknown in ["2027-01-01", "1999-01-01"] {
        let mut request = Bench::modern(&me.token, "/mcp", "tools/list", json!({"_meta": {}}));
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": {
            "io.modelcontextprotocol/protocolVersion": unknown,
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }}});
        *request.body_mut() = Body::from(body.to_string());
        request.headers_mut().insert("mcp-protocol-version", unknown.parse().unwrap());
        let response = bench.open(request).await;
        assert_eq!(response.status(), 400, "{unknown}");
        assert_eq!(last_message(response).await["error"]["code"], -32022, "{unknown}");
    }
}

#[tokio::test]
async fn headers_of_the_new_revision_say_what_the_body_says() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    let mut checked = 0;
    for (number, tool) in crate::mcp::spawn::tools().into_iter().enumerate() {
        // One of its own for each, so that no rate is met.
        let me = bench.holder(&format!("caller-{number}")).await;
        for (header, values) in [
            ("mcp-method", ["tools/list", "TOOLS/CALL", "initialize", "", "ping", "tools/call,x"]),
            ("mcp-name", ["prompt_to_agent", "READ_RESPONSE", "*", "", "x", "available_agent"]),
            ("mcp-protocol-version", ["2025-11-25", "2025-06-18", "1999-01-01", "", "x", "2026-7"]),
        ] {
            let values = values.into_iter().filter(|value| *value != tool.name);
            for value in values.map(Some).chain([None]) {
                for path in ["/mcp", "/mcp/spawn"] {
                    let call = json!({"name": tool.name, "arguments": {}});
                    let mut request = Bench::modern(&me.token, path, "tools/call", call);
                    match value {
                        Some(value) => {
                            request.headers_mut().insert(header, value.parse().unwrap());
                        }
                        None => {
                            request.headers_mut().remove(header);
                        }
                    }
                    let status = bench.open(request).await.status();
                    assert_eq!(status, StatusCode::BAD_REQUEST, "{header}: {value:?}");
                    checked += 1;
                }
            }
        }
    }
    // Test catalogue F2.
    assert!(checked >= 200, "{checked}");
    // What nobody tampered with is answered.
    assert!(bench.call(&me.token, "available_agents", json!({})).await["isError"] != json!(true));
}

#[tokio::test]
async fn a_session_id_of_another_token_does_not_exist() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    let other = bench.holder("other").await;
    let second = bench.holder("me").await;
    let (client, _) = Client::open(&bench, &me.token, "2025-06-18").await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let mut bodies = Vec::new();
    for token in [other.token.as_str(), &second.token, OPERATOR] {
        for id in [client.id.as_str(), "made-up"] {
            let thief = Client { bench: &bench, token: token.to_owned(), id: id.to_owned() };
            for body in [&list, &initialize("2025-06-18")] {
                let response = thief.send(body).await;
                assert_eq!(response.status(), 404);
                bodies.push(last_message(response).await.to_string());
            }
            for method in ["GET", "DELETE"] {
                let response = thief.bare(method).await;
                assert_eq!(response.status(), 404, "{method}");
                bodies.push(last_message(response).await.to_string());
            }
        }
    }
    bodies.dedup();
    assert_eq!(bodies.len(), 1, "{bodies:?}");
    assert!(
        client.ask(2, "tools/list", json!({})).await["result"].is_object(),
        "it is still there"
    );
    assert_eq!(client.bare("DELETE").await.status(), 202);
    assert_eq!(client.send(&list).await.status(), 404);
}

#[tokio::test]
async fn a_session_ends_with_its_token() {
    let mut bench = Bench::new().await;
    let service = bench.service.take().unwrap();
    let running = tokio::task::JoinSet::from_iter([service.run(bench.shutdown.clone())]);
    let me = bench.holder("me").await;
    let (client, _) = Client::open(&bench, &me.token, "2025-06-18").await;
    let mut stream = client.bare("GET").await.into_body().into_data_stream();
    let id = bench.admission.bearer(&me.token).await.unwrap().unwrap().id;
    bench.admission.revoke_token(&"default".into(), &"me".into(), &id).await.unwrap();
    let end = async { while stream.next().await.is_some_and(|chunk| chunk.is_ok()) {} };
    tokio::time::timeout(PATIENCE, end).await.unwrap();
    bench.shutdown.cancel();
    running.join_all().await;
}

#[tokio::test]
async fn paths_and_toolsets() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    let fleet = bench.holder_of("fleet", "default", &[Toolset::Fleet]).await;
    let status = async |token: &str, path: &str| {
        bench.open(Bench::modern(token, path, "tools/list", json!({}))).await.status().as_u16()
    };
    assert_eq!(status(&me.token, "/mcp").await, 200);
    assert_eq!(status(&me.token, "/mcp/spawn").await, 200);
    assert_eq!(status(OPERATOR, "/mcp/spawn").await, 200);
    assert_eq!(status(&fleet.token, "/mcp/spawn").await, 403);
    assert_eq!(status("no-token", "/mcp/spawn").await, 401);
    for path in ["/mcp/orchestrate", "/mcp/x", "/mcp/Spawn"] {
        assert_eq!(status(OPERATOR, path).await, 404, "{path}");
    }
    let listed = last_message(
        bench.open(Bench::modern(&fleet.token, "/mcp", "tools/list", json!({}))).await,
    )
    .await;
    assert_eq!(listed["result"]["tools"], json!([]), "no tool of a toolset that it does not have");
    let call = Bench::modern(&fleet.token, "/mcp", "tools/call", prompt());
    assert_eq!(last_message(bench.open(call).await).await["error"]["code"], -32602);
    let call =
        Bench::modern(&me.token, "/mcp", "tools/call", json!({"name": "rm", "arguments": {}}));
    assert_eq!(last_message(bench.open(call).await).await["error"]["code"], -32602);
}

#[tokio::test]
async fn a_body_that_is_no_message_is_refused() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for (body, code) in [
        ("", -32700),
        ("{", -32700),
        (deep.as_str(), -32600),
        ("[]", -32600),
        ("5", -32600),
        ("{}", -32600),
        (r#"{"jsonrpc":"1.0","id":1,"method":"tools/list"}"#, -32600),
    ] {
        let mut request = Bench::post(&me.token, "/mcp", &json!({}));
        *request.body_mut() = Body::from(body.to_owned());
        let response = bench.open(request).await;
        assert_eq!(response.status(), 400, "{}", &body[..body.len().min(40)]);
        assert_eq!(last_message(response).await["error"]["code"], code);
    }
    let mut request = Bench::post(&me.token, "/mcp", &json!({}));
    *request.body_mut() = Body::from("x".repeat(3 * 1024 * 1024));
    assert_eq!(bench.open(request).await.status(), 413);
}

#[tokio::test]
async fn a_cancelled_call_of_an_older_client_is_taken_back_and_a_lost_connection_is_not() {
    let bench = Bench::new().await;
    let me = bench.holder("me").await;
    let (client, _) = Client::open(&bench, &me.token, "2025-11-25").await;
    let call = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": prompt()});
    // The stream is closed at once: that cancels nothing.
    drop(client.send(&call).await);
    let first = bench.open_turn(&me).await;
    // A cancel of a call that is over, as some clients send it after each one.
    let cancel = |id: u32| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    assert_eq!(client.ask(4, "tools/call", json!({"name": "available_agents"})).await["id"], 4);
    assert_eq!(client.send(&cancel(4)).await.status(), 202);
    assert!(client.ask(6, "tools/list", json!({})).await["result"].is_object());
    let first = bench.records.by_uid::<TurnSpec>(&first.metadata.uid).await.unwrap().unwrap();
    assert!(first.status.cancel.is_none());
    // One of this call.
    let mut watch = bench.store.watch("/turn/", bench.store.head().await.unwrap()).await.unwrap();
    assert_eq!(client.send(&cancel(5)).await.status(), 202);
    let change = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
    let crate::store::Change::Put(record) = change else { panic!("{change:?}") };
    let turn: Turn = crate::store::records::decode(&record.key, &record.value, record.rev).unwrap();
    assert_eq!(turn.metadata.uid, first.metadata.uid);
    assert_eq!(turn.status.cancel.unwrap().by, crate::api::turn::CancelBy::CallCancelled);
}

/// The next notice of a stream.
async fn notice(stream: &mut axum::body::BodyDataStream) -> Value {
    let mut text = String::new();
    loop {
        let chunk = tokio::time::timeout(PATIENCE, stream.next()).await.unwrap().unwrap().unwrap();
        text.push_str(std::str::from_utf8(&chunk).unwrap());
        let data = text.lines().rev().filter_map(|line| line.strip_prefix("data:"));
        if let Some(notice) = data.filter_map(|data| serde_json::from_str(data).ok()).next() {
            return notice;
        }
    }
}

#[tokio::test]
async fn who_subscribed_is_told_once_that_a_turn_ended() {
    let mut bench = Bench::new().await;
    let service = bench.service.take().unwrap();
    let running = tokio::task::JoinSet::from_iter([service.run(bench.shutdown.clone())]);
    let me = bench.holder("me").await;
    let other = bench.holder("other").await;
    let (mine, theirs) = (bench.made(&me).await, bench.made(&other).await);
    let uri = |made: &crate::admission::spawn::Made| {
        format!("spawnlet://sessions/{}", made.session.metadata.uid)
    };
    // A client with a session.
    let (client, _) = Client::open(&bench, &me.token, "2025-06-18").await;
    let answer = client.ask(1, "resources/subscribe", json!({"uri": uri(&mine)})).await;
    assert!(answer["result"].is_object(), "{answer:#}");
    let answer = client.ask(2, "resources/subscribe", json!({"uri": uri(&theirs)})).await;
    assert!(answer["error"].is_object(), "{answer:#}");
    let mut old = client.bare("GET").await.into_body().into_data_stream();
    // A client without.
    let listen = Bench::modern(
        &me.token,
        "/mcp",
        "subscriptions/listen",
        json!({
            "notifications": {"resourceSubscriptions": [uri(&theirs), uri(&mine)]},
        }),
    );
    let mut new = bench.open(listen).await.into_body().into_data_stream();
    let acknowledged = notice(&mut new).await;
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");

    // What is not theirs, and what is not over, is not told of.
    bench.answer(&theirs.turn.metadata.uid, "theirs").await;
    bench
        .turn(&mine.turn.metadata.uid, |turn| {
            turn.status.phase = crate::api::turn::TurnPhase::Running;
        })
        .await;
    bench.answer(&mine.turn.metadata.uid, "mine").await;
    bench.turn(&mine.turn.metadata.uid, |turn| turn.status.steps = 1).await;
    let second = bench.made(&me).await;
    for stream in [&mut old, &mut new] {
        let told = notice(stream).await;
        assert_eq!(told["method"], "notifications/resources/updated", "{told:#}");
        assert_eq!(told["params"]["uri"], uri(&mine));
    }
    // Once: the next that each is told of is the next turn's end.
    let answer = client.ask(3, "resources/subscribe", json!({"uri": uri(&second)})).await;
    assert!(answer["result"].is_object(), "{answer:#}");
    bench.answer(&second.turn.metadata.uid, "second").await;
    assert_eq!(notice(&mut old).await["params"]["uri"], uri(&second));
    bench.shutdown.cancel();
    running.join_all().await;
}
