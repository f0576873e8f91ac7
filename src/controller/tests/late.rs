//! What agents say too late (test catalogue E5): after a turn's end, after a cancel, after a deletion.
//! It is kept apart in the transcript of a turn that is there, changes nothing else, and brings
//! nothing back.

use std::time::Duration;

use serde_json::json;

use super::bench::{Bench, is_thorough};
use crate::api::turn::TurnPhase;
use crate::api::{Kind, Uid};
use crate::store::{Store as _, Stream};

/// How often each; `SPAWNLET_TIER` brings it to 200.
fn rounds() -> u64 {
    if is_thorough() { 200 } else { 30 }
}

/// How far apart an agent's late words are, and how long after the end something is done: every
/// round another pair, so that they meet in all orders.
fn pauses(round: u64) -> (u64, Duration) {
    ([0, 1, 3, 7, 30][usize::try_from(round % 5).unwrap()], Duration::from_millis(round * 13 % 97))
}

/// The lines of a turn's transcript that are marked as late, of all its lines.
async fn late_lines(bench: &Bench, turn: &Uid) -> (usize, usize) {
    let transcript = bench.blob(turn, Stream::Transcript).await;
    (
        transcript.lines().filter(|line| line.contains("\"late\":true")).count(),
        transcript.lines().count(),
    )
}

/// A turn that is final is the same for ever, and so is its response; the next one's has only its own.
async fn is_fenced(bench: &Bench, turn: &Uid, name: &str, what: &str) {
    let record = bench.find_turn(name).await.unwrap();
    let response = bench.blob(turn, Stream::Response).await;
    assert_eq!(response, "echo: hello", "{what}");
    bench.pass_time(Duration::from_secs(2)).await;
    assert_eq!(bench.find_turn(name).await.unwrap(), record, "{what}");
    assert_eq!(bench.blob(turn, Stream::Response).await, response, "{what}");
    assert_eq!(bench.times_ended(name).await, 1, "{what}");
    let (late, all) = late_lines(bench, turn).await;
    assert_eq!((late, all), (12, 13), "{what}: what is late is told as such");
}

/// Test catalogue E5.
#[tokio::test(start_paused = true)]
async fn words_after_a_turns_end_change_nothing_that_is_stored() {
    for round in 0..rounds() {
        let (apart, wait) = pauses(round);
        let bench = Bench::new().await;
        bench.agent("a", &format!("lingers-ms={apart}")).await;
        bench.session("s", "a", json!({})).await;
        let uid = bench.turn("t", "s", "hello").await;
        bench.until_final("t").await;
        bench.pass_time(wait).await;
        let what = format!("round {round}");
        is_fenced(&bench, &uid, "t", &what).await;
        let next = bench.turn("next", "s", "again").await;
        assert_eq!(bench.until_final("next").await.status.phase, TurnPhase::Completed, "{what}");
        assert_eq!(bench.blob(&next, Stream::Response).await, "echo: again", "{what}");
        bench.check_quiet().await;
    }
}

/// Test catalogue E5.
#[tokio::test(start_paused = true)]
async fn words_after_a_cancel_change_nothing_that_is_stored() {
    for round in 0..rounds() {
        let (apart, wait) = pauses(round);
        let bench = Bench::new().await;
        bench.agent("a", &format!("endless lingers-ms={apart}")).await;
        bench.session("s", "a", json!({})).await;
        let uid = bench.turn("t", "s", "hello").await;
        bench.until_phase("t", TurnPhase::Running).await;
        bench.pass_time(wait).await;
        bench.cancel_turn("t").await;
        let turn = bench.until_final("t").await;
        let what = format!("round {round}");
        assert_eq!(turn.status.phase, TurnPhase::Cancelled, "{what}");
        is_fenced(&bench, &uid, "t", &what).await;
        bench.check_quiet().await;
    }
}

/// Test catalogue E5: the deletion of a turn that has ended, while its agent goes on with it, and of
/// a session whose agent talks until it is killed.
#[tokio::test(start_paused = true)]
async fn words_after_a_deletion_bring_nothing_back() {
    let mut met = 0;
    for round in 0..rounds() {
        let (apart, wait) = pauses(round);
        let bench = Bench::new().await;
        let is_turn = round % 2 == 0;
        let script = match is_turn {
            true => format!("lingers-ms={apart}"),
            false => format!("talks-ms={} ignores-term", apart.max(5)),
        };
        bench.agent("a", &script).await;
        let stop = json!({"cancel": "200ms", "close": "50ms", "eof": "200ms", "term": "50ms"});
        bench.patch(Kind::Agent, "a", json!({"spec": {"stop": stop}})).await;
        bench.session("s", "a", json!({})).await;
        let uid = bench.turn("t", "s", "hello").await;
        let what = format!("round {round}");
        if is_turn {
            bench.until_final("t").await;
            bench.pass_time(wait).await;
            met += usize::from(late_lines(&bench, &uid).await.0 < 12);
            bench.delete(Kind::Turn, "t").await;
        } else {
            bench.until_phase("t", TurnPhase::Running).await;
            bench.pass_time(wait).await;
            bench.delete(Kind::Session, "s").await;
            bench.until_session("s", |session| session.is_none()).await;
            assert_eq!(bench.ground.alive(), 0, "{what}");
        }
        bench.pass_time(Duration::from_secs(5)).await;
        assert_eq!(bench.find_turn("t").await, None, "{what}");
        for stream in [Stream::Response, Stream::Transcript] {
            assert_eq!(bench.blob(&uid, stream).await, "", "{what}");
        }
        // Neither a record nor an index of it: its uid stands nowhere but in reports and events.
        let (stored, _) = bench.memory.list("/", None, 0).await.unwrap();
        let is_left = |key: &str| {
            key.contains(uid.as_str()) && !key.starts_with("/report") && !key.starts_with("/event")
        };
        let left: Vec<_> =
            stored.iter().map(|it| it.key.as_str()).filter(|it| is_left(it)).collect();
        assert_eq!(left, Vec::<&str>::new(), "{what}");
        bench.check_quiet().await;
    }
    assert!(met > 3, "only {met} deletions came in the middle of late words");
}
