use super::*;
use crate::store::Blobs as _;
use crate::store::fault::{Fault, Plan};
use crate::store::{BlobId, Stream};

#[tokio::test]
async fn a_write_of_unknown_outcome_that_was_done_is_taken() {
    let (bench, faults) = Bench::faulty();
    faults.script(Fault::UnknownApplied);
    let made = bench.create(Kind::Session, session("s")).await.unwrap();
    let stored = bench.session("s").await;
    assert_eq!(made.object, serde_json::to_value(stored).unwrap());
    faults.script(Fault::UnknownApplied);
    bench.patch(Kind::Session, "s", json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    assert_eq!(bench.session("s").await.metadata.labels["a"], "b");
}

#[tokio::test]
async fn a_write_of_unknown_outcome_that_was_not_done_is_told_as_unknown() {
    let (bench, faults) = Bench::faulty();
    faults.script(Fault::UnknownNotApplied);
    let refusal = bench.create(Kind::Session, session("s")).await.unwrap_err();
    assert_eq!((refusal.code(), refusal.details().retry_after_secs), (503, None));
    bench.create(Kind::Session, session("s")).await.unwrap();
    faults.script(Fault::UnknownNotApplied);
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(code(bench.patch(Kind::Session, "s", label).await), 503);
}

#[tokio::test]
async fn a_turn_that_cannot_be_read_back_is_told_as_unknown_and_keeps_its_prompt() {
    let (bench, faults) = Bench::faulty();
    bench.create(Kind::Session, session("s")).await.unwrap();
    // The conflict is the commit's first try; the second is done and can not be read back.
    for fault in [Fault::Conflict, Fault::UnknownApplied, Fault::Unavailable] {
        faults.script(fault);
    }
    let body = json!({"spec": {"session": "s", "prompt": "x".repeat(70_000)}});
    let refusal = bench.create(Kind::Turn, body).await.unwrap_err();
    assert_eq!((refusal.code(), refusal.details().retry_after_secs), (503, None));
    let turn = bench.turns().await.remove(0);
    let blob = BlobId { owner: turn.metadata.uid, stream: Stream::Prompt };
    assert_eq!(bench.store.len(&blob).await.unwrap(), 70_000);
}

#[tokio::test]
async fn a_store_that_is_down_says_when_to_come_back() {
    let (bench, faults) = Bench::faulty();
    faults.script(Fault::Unavailable);
    let refusal = bench.create(Kind::Session, session("s")).await.unwrap_err();
    assert_eq!(refusal.reason(), "ServiceUnavailable");
    assert_eq!(refusal.details().retry_after_secs, Some(1));
    assert!(refusal.may_pass_later());
}

#[tokio::test]
async fn a_conflict_that_is_none_is_tried_again() {
    let (bench, faults) = Bench::faulty();
    faults.script(Fault::Conflict);
    bench.create(Kind::Session, session("s")).await.unwrap();
    faults.script(Fault::Conflict);
    bench.create(Kind::Turn, turn("s")).await.unwrap();
    faults.script(Fault::Conflict);
    bench.patch(Kind::Session, "s", json!({"spec": {"title": "t"}})).await.unwrap();
    faults.script(Fault::Conflict);
    bench.delete(Kind::Session, "s").await.unwrap();
    assert_eq!(bench.turns().await.len(), 1);
    assert!(bench.session("s").await.metadata.is_deleting());
}

#[tokio::test]
async fn a_storm_of_conflicts_is_told_and_leaves_no_blob() {
    let (bench, faults) = Bench::faulty();
    bench.create(Kind::Session, session("s")).await.unwrap();
    for _ in 0..ATTEMPTS_MAX {
        faults.script(Fault::Conflict);
    }
    let body = json!({"spec": {"session": "s", "prompt": "x".repeat(70_000)}});
    assert_eq!(code(bench.create(Kind::Turn, body).await), 409);
    assert_eq!(bench.store.sweep(&|_| false).await.unwrap(), 0);
}

#[tokio::test]
async fn a_turn_of_unknown_outcome_that_was_done_keeps_its_prompt() {
    let (bench, faults) = Bench::faulty();
    bench.create(Kind::Session, session("s")).await.unwrap();
    // The append of the prompt does not answer. The conflict is the commit's: an append has none,
    // so its repetition passes. The commit is tried again and does not answer.
    for fault in [Fault::UnknownApplied, Fault::Conflict, Fault::UnknownApplied] {
        faults.script(fault);
    }
    let body = json!({"spec": {"session": "s", "prompt": "x".repeat(70_000)}});
    bench.create(Kind::Turn, body).await.unwrap();
    let turn = bench.turns().await.remove(0);
    let blob = BlobId { owner: turn.metadata.uid, stream: Stream::Prompt };
    assert_eq!(bench.store.len(&blob).await.unwrap(), 70_000);
}

/// A client that asks until it is told.
async fn make_turn(bench: &Bench, number: usize, prompt: &str) -> Value {
    let key = format!("key-{number}");
    let body = json!({"spec": {"session": "s", "prompt": prompt, "idempotencyKey": key}});
    loop {
        match bench.create(Kind::Turn, body.clone()).await {
            Ok(made) => return made.object["metadata"]["uid"].clone(),
            Err(refusal) => assert!(refusal.may_pass_later(), "{refusal}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_asks_again_makes_each_turn_once_over_any_store() {
    for seed in 0..8 {
        let (bench, faults) = Bench::with_faults(Plan::harsh(), seed);
        faults.set_on(false);
        bench.create(Kind::Session, session("s")).await.unwrap();
        faults.set_on(true);
        let prompts: Vec<String> =
            (0..24).map(|number| format!("{number}").repeat(1 + (number % 3) * 40_000)).collect();
        let clients = prompts.iter().enumerate();
        let clients = clients.map(|(number, prompt)| make_turn(&bench, number, prompt));
        let told = futures::future::join_all(clients).await;

        faults.set_on(false);
        let turns = bench.turns().await;
        assert_eq!(turns.len(), prompts.len(), "seed {seed}");
        for (number, prompt) in prompts.iter().enumerate() {
            let key = format!("key-{number}");
            let is_it = |turn: &&Turn| turn.spec.idempotency_key.as_ref() == Some(&key);
            let turn = turns.iter().find(is_it).unwrap();
            assert_eq!(told[number], turn.metadata.uid.as_str(), "seed {seed}");
            let blob = BlobId { owner: turn.metadata.uid.clone(), stream: Stream::Prompt };
            let stored = bench.store.read(&blob, 0, usize::MAX).await.unwrap();
            let is_whole = match turn.spec.prompt_blob {
                Some(_) => stored == *prompt,
                None => turn.spec.prompt.as_ref() == Some(prompt),
            };
            assert!(is_whole, "seed {seed}");
        }
    }
}
