//! The fuzz target `mcp_request`: whatever a caller with a good token sends as a body, it is
//! answered, never by a defect, and nobody is let in by it.

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt as _;
use serde_json::json;

use super::{Bench, Duration, Options};
use crate::fuzz::{drive, shape};

fn request(token: &str, body: &[u8]) -> Request<Body> {
    Request::builder()
        .method("POST")
        .uri("/mcp/spawn")
        .header("host", "localhost")
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "tools/call")
        .header("mcp-name", "check_session_status")
        .body(Body::from(body.to_vec()))
        .unwrap()
}

#[test]
fn fuzz_mcp_request() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (bench, token) = runtime.block_on(async {
        let mut rules = crate::guard::Rules::default();
        rules.http.per_token_rate = crate::api::quantity::Rate::per_second(1_000_000_000);
        let times = Duration::from_secs(1);
        let options = Options { max_wait: times, progress_every: times };
        let bench = Bench::under(options, rules).await;
        let token = bench.holder("caller").await.token;
        (bench, token)
    });
    let call = |arguments: serde_json::Value| {
        let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "f", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {}});
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": "check_session_status", "_meta": meta, "arguments": arguments}})
        .to_string()
        .into_bytes()
    };
    let seeds = [
        call(json!({"sessionId": "0190a5c0-0000-7000-8000-000000000001"})),
        call(json!({})),
        br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#.to_vec(),
        br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_vec(),
    ];
    drive("mcp_request", &seeds, [2_000, 20_000, 200_000], &|input| {
        runtime.block_on(async {
            let answer = bench.open(request(&token, input)).await;
            let status = answer.status();
            assert!(!status.is_server_error() && status != 429, "{status}");
            let body = tokio::time::timeout(super::PATIENCE, answer.into_body().collect()).await;
            let body = body.expect("an answer ends").unwrap().to_bytes();
            let text = String::from_utf8_lossy(&body);
            assert!(!text.contains("SPAWN_INTERNAL_ERROR"), "{text}");
            let words: String = text.chars().filter(|c| c.is_alphabetic()).take(60).collect();
            shape((status.as_u16(), words))
        })
    });
}
