//! The vault over HTTP: operators put values in, and nobody gets one out.

use super::*;

const PATH: &str = "/secrets/providers/codex/key";
const CANARY: &str = "canary-value-0001";

async fn send(api: &Fixture, method: &str, path: &str, body: &str) -> Answer {
    let headers = [("content-type", "application/json")];
    api.send(method, path, &headers, Body::from(body.to_owned())).await
}

#[tokio::test(start_paused = true)]
async fn a_value_goes_in_and_only_its_name_comes_out() {
    let api = Fixture::new();
    let body = json!({"value": CANARY}).to_string();
    assert_eq!(send(&api, "PUT", PATH, &body).await.code, 201);
    assert_eq!(send(&api, "PUT", PATH, &body).await.code, 200);
    let listed = api.send("GET", "/secrets", &[], Body::empty()).await;
    assert_eq!(listed.json()["items"], json!([{"name": "providers/codex/key"}]));
    assert!(!String::from_utf8_lossy(&listed.bytes).contains(CANARY));
    assert_eq!(api.send("GET", PATH, &[], Body::empty()).await.code, 405);
    assert_eq!(send(&api, "DELETE", PATH, "").await.code, 200);
    assert_eq!(send(&api, "DELETE", PATH, "").await.code, 404);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_does_not_repeat_the_value() {
    let api = Fixture::new();
    for (path, body, code) in [
        ("/secrets/key", json!({"value": CANARY}), 404),
        ("/secrets/providers/a%2Fb/key", json!({"value": CANARY}), 404),
        (PATH, json!({"value": CANARY, "more": CANARY}), 400),
        (PATH, json!([CANARY]), 400),
        (PATH, json!({"value": "canary"}), 422),
        (PATH, json!({"value": format!("{CANARY}{}", "x".repeat(20_000))}), 422),
    ] {
        let answer = send(&api, "PUT", path, &body.to_string()).await;
        let text = String::from_utf8_lossy(&answer.bytes).into_owned();
        assert_eq!(answer.code, code, "{path}: {text}");
        assert!(!text.contains("canary"), "{text}");
    }
    assert_eq!(send(&api, "POST", "/secrets", "{}").await.code, 405);
}
