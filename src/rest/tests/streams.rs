//! Transcripts, logs, responses.

use super::tokens::{SESSIONS, family};
use super::*;
use crate::store::Stream;

fn said(text: &str) -> Vec<u8> {
    let update = json!({
        "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text},
    });
    format!("{update}\n").into_bytes()
}

async fn with_two_turns() -> Fixture {
    let api = Fixture::new();
    api.put(Kind::Session, session("s", "Idle", json!({}))).await;
    for (name, text) in [("t1", "one"), ("t2", "two")] {
        api.put(Kind::Turn, turn(name, "s", "Completed")).await;
        api.append(&uid(name), Stream::Transcript, &said(text)).await;
    }
    api
}

#[tokio::test]
async fn a_transcript_shows_all_turns_or_one_in_each_form() {
    let api = with_two_turns().await;
    let path = "/namespaces/default/sessions/s/transcript";
    assert_eq!(api.get(path).await.bytes, "one\ntwo\n");
    assert_eq!(api.get(&format!("{path}?turn=t2")).await.bytes, "two\n");
    assert_eq!(api.get(&format!("{path}?turn={}", uid("t1"))).await.bytes, "one\n");
    assert_eq!(api.get("/namespaces/default/sessions/s/logs?turn=t1").await.bytes, "one\n");
    let json = api.get(&format!("{path}?turn=t1&format=json")).await;
    assert_eq!(json.header("content-type"), "application/x-ndjson");
    assert_eq!(json.json()["turn"], "t1");
    let acp = api.get(&format!("{path}?turn=t1&format=acp")).await;
    assert_eq!(acp.bytes, said("one"));
    assert_eq!(api.get(&format!("{path}?format=xml")).await.code, 400);
    assert_eq!(api.get(&format!("{path}?turn=t9")).await.code, 404);
    api.put(Kind::Session, session("other", "Idle", json!({}))).await;
    let foreign = "/namespaces/default/sessions/other/transcript?turn=t1";
    assert_eq!(api.get(foreign).await.code, 404);
}

#[tokio::test]
async fn a_followed_turn_is_read_as_it_grows_and_ends_with_it() {
    let api = Fixture::new();
    api.put(Kind::Session, session("s", "Running", json!({}))).await;
    api.put(Kind::Turn, turn("t", "s", "Pending")).await;
    let path =
        format!("{BASE}/namespaces/default/sessions/s/transcript?turn=t&follow=1&format=json");
    let mut lines = Lines::of(api.open("GET", &path, &[], Body::empty()).await);
    let grow = async {
        let length = api.append(&uid("t"), Stream::Transcript, &said("one")).await;
        let (sender, receiver) = tokio::sync::watch::channel(length);
        api.ports.transcripts.lock().unwrap().insert(Uid::new(uid("t")), receiver);
        api.put(Kind::Turn, turn("t", "s", "Running")).await;
        sender
    };
    let (sender, first) = tokio::join!(grow, lines.next());
    assert!(first.unwrap().contains("one"));
    let length = api.append(&uid("t"), Stream::Transcript, &said("two")).await;
    sender.send(length).unwrap();
    assert!(lines.next().await.unwrap().contains("two"));
    api.append(&uid("t"), Stream::Transcript, &said("three")).await;
    drop(sender);
    assert!(lines.next().await.unwrap().contains("three"));
    assert_eq!(lines.next().await, None);
}

#[tokio::test]
async fn a_followed_session_goes_on_with_later_turns_until_it_ends() {
    let api = with_two_turns().await;
    let path = format!("{BASE}/namespaces/default/sessions/s/logs?follow=true");
    let mut lines = Lines::of(api.open("GET", &path, &[], Body::empty()).await);
    assert_eq!(lines.next().await.unwrap(), "one");
    assert_eq!(lines.next().await.unwrap(), "two");
    let more = async {
        api.append(&uid("t3"), Stream::Transcript, &said("three")).await;
        api.put(Kind::Turn, turn("t3", "s", "Completed")).await;
    };
    let ((), line) = tokio::join!(more, lines.next());
    assert_eq!(line.unwrap(), "three");
    let end = async {
        let mut ended = session("s", "Stopped", json!({}));
        ended["status"]["finishedAt"] = json!("2026-01-01T00:00:00Z");
        api.put(Kind::Session, ended).await;
    };
    let ((), line) = tokio::join!(end, lines.next());
    assert_eq!(line, None);
}

#[tokio::test]
async fn what_a_caller_follows_ends_with_its_token() {
    for path in ["transcript?follow=true", "logs?follow=true", "transcript?turn=next&follow=true"] {
        let (api, token) = family().await;
        let tokens = api.by(TOKEN, "GET", &format!("{SESSIONS}/me/token")).await.json();
        let id = tokens["items"][0]["id"].as_str().unwrap().to_owned();
        let length = api.append(&uid("next"), Stream::Transcript, &said("one\n")).await;
        let (sender, receiver) = tokio::sync::watch::channel(length);
        api.ports.transcripts.lock().unwrap().insert(Uid::new(uid("next")), receiver);
        api.put(Kind::Turn, turn("next", "child", "Running")).await;
        let path = format!("{SESSIONS}/child/{path}");
        let mut lines = api.watch_by(&token, &path).await;
        assert_eq!(lines.next().await.unwrap(), "one", "{path}");
        let mut operator = api.watch_by(TOKEN, &path).await;
        assert_eq!(operator.next().await.unwrap(), "one", "{path}");
        let revoked = api.by(TOKEN, "DELETE", &format!("{SESSIONS}/me/token/{id}")).await;
        assert_eq!(revoked.code, 200, "{revoked}");
        // The turn goes on, for others.
        let length = api.append(&uid("next"), Stream::Transcript, &said("secret\n")).await;
        sender.send(length).unwrap();
        assert_eq!(lines.next().await, None, "{path}");
        assert_eq!(operator.next().await.unwrap(), "secret", "{path}");
    }
}

#[tokio::test]
async fn what_a_caller_reads_whole_is_cut_off_with_its_token() {
    let (api, token) = family().await;
    api.append(&uid("mine"), Stream::Transcript, &said(&"x\n".repeat(100_000))).await;
    let authorization = format!("Bearer {token}");
    let headers = [("authorization", authorization.as_str())];
    let path = format!("{SESSIONS}/child/transcript");
    let mut body = api.open("GET", &path, &headers, Body::empty()).await.into_body();
    let tokens = api.by(TOKEN, "GET", &format!("{SESSIONS}/me/token")).await.json();
    let id = tokens["items"][0]["id"].as_str().unwrap();
    api.by(TOKEN, "DELETE", &format!("{SESSIONS}/me/token/{id}")).await;
    assert!(body.frame().await.unwrap().is_err());
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn standard_error_is_shown_while_it_is_known() {
    let api = with_two_turns().await;
    let path = "/namespaces/default/sessions/s/logs?stderr=1";
    let missing = api.get(path).await;
    assert_eq!(missing.code, 404);
    assert!(missing.json()["message"].as_str().unwrap().contains("standard error"));
    *api.ports.stderr.lock().unwrap() = Some(Bytes::from_static(b"boom\n"));
    assert_eq!(api.get(path).await.bytes, "boom\n");
}

#[tokio::test]
async fn a_response_is_read_whole_in_ranges_and_by_its_id() {
    let api = Fixture::new();
    api.put(Kind::Session, session("s", "Idle", json!({}))).await;
    let mut object = turn("t", "s", "Completed");
    object["status"]["responseId"] = json!(uid("response"));
    api.put(Kind::Turn, object).await;
    let text: Vec<u8> = (0..200_000_u32).map(|index| b'a' + (index % 26) as u8).collect();
    api.append(&uid("t"), Stream::Response, &text).await;
    for name in ["t".to_owned(), uid("t"), uid("response")] {
        let answer = api.get(&format!("/namespaces/default/turns/{name}/response")).await;
        assert_eq!(answer.code, 200);
        assert_eq!(answer.bytes, text);
        assert_eq!(answer.header("content-length"), "200000");
        assert_eq!(answer.header("spawnlet-response-complete"), "true");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
    }
    let path = format!("{BASE}/namespaces/default/turns/t/response");
    let part = api.send("GET", &path, &[("range", "bytes=65530-65545")], Body::empty()).await;
    assert_eq!(part.code, 206);
    assert_eq!(part.bytes, text[65530..65546]);
    assert_eq!(part.header("content-range"), "bytes 65530-65545/200000");
    let beyond = api.send("GET", &path, &[("range", "bytes=200000-")], Body::empty()).await;
    assert_eq!(beyond.code, 416);
    assert_eq!(beyond.header("content-range"), "bytes */200000");
    let missing = api.get("/namespaces/default/turns/nobody/response").await;
    assert_eq!(missing.json()["reason"], "NotFound");
    assert_eq!(api.send("POST", &path, &[], Body::empty()).await.code, 405);
}
