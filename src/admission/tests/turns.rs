use super::*;
use crate::api::session::{DesiredState, EndOutcome, Provider, SessionEnd};
use crate::api::turn::Delivery;
use crate::store::{BlobId, Blobs as _, Store as _, Stream, keys};

#[tokio::test]
async fn turns_are_numbered_and_owned_by_their_session() {
    let bench = bench_with_session().await;
    for _ in 0..2 {
        bench.create(Kind::Turn, turn("s")).await.unwrap();
    }
    let session = bench.session("s").await;
    let turns = bench.admission.records().open_turns(&session.metadata.uid).await.unwrap();
    let names: Vec<_> = turns.iter().map(|turn| turn.metadata.name.as_str()).collect();
    assert_eq!(names, ["s-1", "s-2"]);
    assert_eq!(session.status.turns_made, 2);
}

#[tokio::test]
async fn a_turn_wakes_its_session_in_the_same_commit() {
    let bench = bench_with_session().await;
    let session = bench.session("s").await;
    bench.write(&session, |session| session.status.observed_generation = 1).await;
    let awake = keys::awake(&session.metadata.uid);
    assert_eq!(bench.store.get(&awake).await.unwrap(), None);
    bench.create(Kind::Turn, turn("s")).await.unwrap();
    assert!(bench.store.get(&awake).await.unwrap().is_some());
}

#[tokio::test]
async fn a_number_that_a_user_took_is_left_out() {
    let bench = bench_with_session().await;
    let mut named = turn("s");
    named["metadata"] = json!({"name": "s-1"});
    bench.create(Kind::Turn, named).await.unwrap();
    let made = bench.create(Kind::Turn, turn("s")).await.unwrap();
    assert_eq!(made.object["metadata"]["name"], "s-2");
}

#[tokio::test]
async fn a_removed_turns_name_is_not_given_again() {
    let bench = bench_with_session().await;
    bench.create(Kind::Turn, turn("s")).await.unwrap();
    bench.remove::<TurnSpec>("s-1").await;
    let made = bench.create(Kind::Turn, turn("s")).await.unwrap();
    assert_eq!(made.object["metadata"]["name"], "s-2");
}

#[tokio::test]
async fn a_turn_of_no_session_is_invalid() {
    let bench = Bench::new();
    assert_eq!(fields(bench.create(Kind::Turn, turn("s")).await), ["spec.session"]);
}

#[tokio::test]
async fn a_turn_in_an_unknown_namespace_is_not_found() {
    let bench = Bench::new();
    let mut body = turn("s");
    body["metadata"] = json!({"namespace": "other"});
    assert_eq!(code(bench.create(Kind::Turn, body).await), 404);
}

#[tokio::test]
async fn a_session_that_takes_no_turns_says_what_to_do() {
    let ended = SessionEnd {
        outcome: EndOutcome::Stopped,
        reason: "TtlExpired".to_owned(),
        message: String::new(),
        code: None,
        at: crate::api::Time::from_millis(0),
    };
    let changes: [fn(&mut Session, SessionEnd); 3] = [
        |session, _| session.spec.desired_state = DesiredState::Cancelled,
        |session, end| session.metadata.deletion_timestamp = Some(end.at),
        |session, end| session.status.end = Some(end),
    ];
    for change in changes {
        let bench = bench_with_session().await;
        let session = bench.session("s").await;
        bench.write(&session, |session| change(session, ended.clone())).await;
        let refusal = bench.create(Kind::Turn, turn("s")).await.unwrap_err();
        assert_eq!(refusal.code(), 409);
        assert!(refusal.to_string().ends_with("make a new session"), "{refusal}");
    }
}

#[tokio::test]
async fn an_external_session_takes_no_turns() {
    let bench = bench_with_session().await;
    let session = bench.session("s").await;
    bench.write(&session, |session| session.spec.provider = Provider::External).await;
    assert_eq!(fields(bench.create(Kind::Turn, turn("s")).await), ["spec.session"]);
}

#[tokio::test]
async fn a_full_inbox_refuses_until_a_turn_ends() {
    let bench = Bench::with(Limits { inbox: 2, ..Limits::default() });
    bench.create(Kind::Session, session("s")).await.unwrap();
    bench.create(Kind::Turn, turn("s")).await.unwrap();
    bench.create(Kind::Turn, turn("s")).await.unwrap();
    let refusal = bench.create(Kind::Turn, turn("s")).await.unwrap_err();
    assert_eq!((refusal.code(), refusal.reason()), (429, "TooManyRequests"));
    bench.end_turn("s-1").await;
    bench.create(Kind::Turn, turn("s")).await.unwrap();
}

#[tokio::test]
async fn concurrent_turns_do_not_overfill_the_inbox() {
    let bench = Bench::with(Limits { inbox: 5, ..Limits::default() });
    bench.create(Kind::Session, session("s")).await.unwrap();
    let creations = (0..20).map(|_| bench.create(Kind::Turn, turn("s")));
    let results = futures::future::join_all(creations).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 5);
    assert_eq!(bench.turns().await.len(), 5);
}

fn turn_of(bytes: usize) -> Value {
    json!({"spec": {"session": "s", "prompt": "x".repeat(bytes)}})
}

#[tokio::test]
async fn a_prompt_of_64_kib_stands_in_the_record() {
    let bench = bench_with_session().await;
    bench.create(Kind::Turn, turn_of(64 * 1024)).await.unwrap();
    assert_eq!(bench.turn("s-1").await.spec.prompt.unwrap().len(), 64 * 1024);
}

#[tokio::test]
async fn a_larger_prompt_is_a_blob_of_the_turn() {
    let bench = bench_with_session().await;
    bench.create(Kind::Turn, turn_of(700 * 1024)).await.unwrap();
    let turn = bench.turn("s-1").await;
    assert_eq!(turn.spec.prompt, None);
    assert_eq!(turn.spec.prompt_blob.unwrap().bytes, 700 * 1024);
    let blob = BlobId { owner: turn.metadata.uid, stream: Stream::Prompt };
    let stored = bench.store.read(&blob, 0, usize::MAX).await.unwrap();
    assert_eq!(stored, "x".repeat(700 * 1024));
}

#[tokio::test]
async fn large_blocks_are_a_blob_of_json() {
    let bench = bench_with_session().await;
    let blocks = json!([{"type": "text", "text": "x".repeat(70 * 1024)}]);
    let body = json!({"spec": {"session": "s", "promptBlocks": blocks}});
    bench.create(Kind::Turn, body).await.unwrap();
    let turn = bench.turn("s-1").await;
    assert!(turn.spec.prompt_blob.unwrap().blocks);
    let blob = BlobId { owner: turn.metadata.uid, stream: Stream::Prompt };
    let stored = bench.store.read(&blob, 0, usize::MAX).await.unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&stored).unwrap(), blocks);
}

#[tokio::test]
async fn a_prompt_that_json_makes_large_is_a_blob_too() {
    let bench = bench_with_session().await;
    let body = json!({"spec": {"session": "s", "prompt": "\u{1}".repeat(60 * 1024)}});
    bench.create(Kind::Turn, body).await.unwrap();
    assert_eq!(bench.turn("s-1").await.spec.prompt_blob.unwrap().bytes, 60 * 1024);
}

#[tokio::test]
async fn a_prompt_over_the_limit_is_refused() {
    let bench = bench_with_session().await;
    assert_eq!(fields(bench.create(Kind::Turn, turn_of(768 * 1024 + 1)).await), ["spec.prompt"]);
    bench.create(Kind::Turn, turn_of(768 * 1024)).await.unwrap();
}

#[tokio::test]
async fn a_users_prompt_blob_is_refused() {
    let bench = bench_with_session().await;
    let body = json!({"spec": {"session": "s", "promptBlob": {"bytes": 1}}});
    assert_eq!(fields(bench.create(Kind::Turn, body).await), ["spec.promptBlob"]);
}

#[tokio::test]
async fn a_dry_run_of_a_large_prompt_leaves_no_blob() {
    let bench = bench_with_session().await;
    let writer = Writer::Operator;
    let made = bench.admission.create(Kind::Turn, None, turn_of(70_000), &DRY, &writer).await;
    let uid = made.unwrap().object["metadata"]["uid"].as_str().unwrap().into();
    let blob = BlobId { owner: uid, stream: Stream::Prompt };
    assert_eq!(bench.store.len(&blob).await.unwrap(), 0);
}

#[tokio::test]
async fn a_put_of_the_same_large_prompt_changes_nothing() {
    let bench = bench_with_session().await;
    bench.create(Kind::Turn, turn_of(70_000)).await.unwrap();
    let put = bench.put(Kind::Turn, "s-1", turn_of(70_000)).await.unwrap();
    assert_eq!(put.outcome, Outcome::Unchanged);
    assert_eq!(fields(bench.put(Kind::Turn, "s-1", turn_of(70_001)).await).len(), 2);
}

fn keyed(key: &str, prompt: &str) -> Value {
    json!({"spec": {"session": "s", "prompt": prompt, "idempotencyKey": key}})
}

#[tokio::test]
async fn the_same_key_and_body_is_the_same_turn() {
    for prompt in ["hello".to_owned(), "x".repeat(70_000)] {
        let bench = bench_with_session().await;
        let first = bench.create(Kind::Turn, keyed("k", &prompt)).await.unwrap();
        bench.end_turn("s-1").await;
        let again = bench.create(Kind::Turn, keyed("k", &prompt)).await.unwrap();
        assert_eq!(again.outcome, Outcome::Unchanged);
        assert_eq!(again.object["metadata"]["uid"], first.object["metadata"]["uid"]);
        assert_eq!(again.object["status"]["phase"], "Completed");
        assert_eq!(bench.turns().await.len(), 1);
    }
}

#[tokio::test]
async fn the_same_key_with_another_body_is_a_conflict() {
    let long = "x".repeat(70_000);
    for (first, second) in [("hello", "bye"), (&*long, &*long.replace("xx", "xy"))] {
        let bench = bench_with_session().await;
        bench.create(Kind::Turn, keyed("k", first)).await.unwrap();
        assert_eq!(code(bench.create(Kind::Turn, keyed("k", second)).await), 409);
    }
}

#[tokio::test]
async fn a_key_is_free_again_a_day_after_its_request_at_the_earliest() {
    for is_removed in [true, false] {
        let bench = bench_with_session().await;
        bench.create(Kind::Turn, keyed("k", "hello")).await.unwrap();
        let turn = bench.turn("s-1").await;
        bench.write(&turn, |turn| turn.status.delivery = Delivery::Sent).await;
        bench.end_turn("s-1").await;
        if is_removed {
            let deleted = bench.delete(Kind::Turn, "s-1").await.unwrap();
            assert!(deleted.is_gone);
            assert_eq!(code(bench.create(Kind::Turn, keyed("k", "hello")).await), 409);
        }
        bench.clock.advance(std::time::Duration::from_secs(24 * 3600));
        let again = bench.create(Kind::Turn, keyed("k", "hello")).await.unwrap();
        let expected = if is_removed { Outcome::Created } else { Outcome::Unchanged };
        assert_eq!(again.outcome, expected);
    }
}

#[tokio::test]
async fn concurrent_requests_with_one_key_make_one_turn() {
    let bench = bench_with_session().await;
    let creations = (0..8).map(|_| bench.create(Kind::Turn, keyed("k", "hello")));
    let results = futures::future::join_all(creations).await;
    let made = results.iter().filter(|made| made.as_ref().unwrap().outcome == Outcome::Created);
    assert_eq!(made.count(), 1);
    assert_eq!(bench.turns().await.len(), 1);
}

#[tokio::test]
async fn uids_follow_the_clock() {
    let bench = bench_with_session().await;
    bench.create(Kind::Turn, turn("s")).await.unwrap();
    bench.clock.advance(std::time::Duration::from_secs(1));
    bench.create(Kind::Turn, turn("s")).await.unwrap();
    let turns = bench.turns().await;
    assert!(turns[0].metadata.uid < turns[1].metadata.uid);
    assert!(turns[0].metadata.creation_timestamp < turns[1].metadata.creation_timestamp);
}
