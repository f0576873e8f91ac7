//! Sessions that are told of their children's turns: woken, or on a stream; and daemons that die
//! while they tell.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::sync::broadcast;

use super::bench::{Bench, is_thorough};
use super::gate::Side;
use crate::api::turn::{NoticeState, SourceKind};
use crate::api::{Name, Namespace, Session, Turn, Uid};
use crate::ports::{self, StreamNotice};

/// A client's stream that keeps what is written to it.
struct Wire {
    is_open: Mutex<bool>,
    told: Mutex<Vec<(Uid, StreamNotice)>>,
    opened: broadcast::Sender<(Namespace, Name)>,
}

impl Wire {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            is_open: Mutex::new(false),
            told: Mutex::default(),
            opened: broadcast::channel(8).0,
        })
    }

    fn open(&self, caller: &str) {
        *self.is_open.lock().unwrap() = true;
        let _ = self.opened.send(("default".into(), caller.into()));
    }

    fn told(&self) -> Vec<Uid> {
        self.told.lock().unwrap().iter().map(|(_, notice)| notice.turn.clone()).collect()
    }
}

#[async_trait::async_trait]
impl ports::Streams for Wire {
    fn is_open(&self, _: &Uid) -> bool {
        *self.is_open.lock().unwrap()
    }

    async fn tell(&self, session: &Uid, notice: &StreamNotice) -> bool {
        self.told.lock().unwrap().push((session.clone(), notice.clone()));
        true
    }

    fn opened(&self) -> broadcast::Receiver<(Namespace, Name)> {
        self.opened.subscribe()
    }
}

fn state(turn: &Turn) -> Option<NoticeState> {
    turn.status.notice.as_ref().map(|notice| notice.state)
}

fn is_settled(turn: &Turn) -> bool {
    state(turn).is_some_and(NoticeState::is_final)
}

fn is_suppressed(session: Option<&Session>) -> bool {
    session.unwrap().status.conditions.is_true("WakeSuppressed")
}

async fn wakes(bench: &Bench) -> Vec<Turn> {
    let mut turns = bench.all_turns().await;
    turns.retain(|turn| turn.spec.source.kind == SourceKind::Notice);
    turns
}

/// How often each turn of a child is told of, in all wakes.
async fn mentions(bench: &Bench) -> BTreeMap<Uid, usize> {
    let wakes = wakes(bench).await;
    let owed = bench.all_turns().await.into_iter().filter(|turn| turn.status.notice.is_some());
    owed.map(|turn| {
        let uid = turn.metadata.uid;
        let is_in = |wake: &&Turn| {
            wake.spec.prompt.as_ref().is_some_and(|prompt| prompt.contains(uid.as_str()))
        };
        let count = wakes.iter().filter(is_in).count();
        (uid, count)
    })
    .collect()
}

async fn family(bench: &mut Bench) {
    bench.notifies = true;
    bench.agent("boss", "answer").await;
    bench.agent("worker", "thinks-ms=20").await;
    bench.session("p", "boss", json!({})).await;
}

#[tokio::test(start_paused = true)]
async fn a_parent_is_woken_by_the_ends_of_its_childrens_turns_and_after_three_wakes_waits() {
    let mut bench = Bench::new().await;
    family(&mut bench).await;
    bench.child("c", "p", "worker", json!({"prompt": "first"})).await;
    let turn = bench.until_turn("c-1", is_settled).await;
    assert_eq!(state(&turn), Some(NoticeState::Delivered));
    let wake = bench.until_final("p-1").await;
    assert_eq!(wake.spec.source.kind, SourceKind::Notice);
    assert_eq!(turn.status.notice.unwrap().turn.unwrap().as_str(), "p-1");
    for round in 2..=3 {
        let name = format!("c-{round}");
        bench.ask(&name, "c", &name).await;
        bench.until_turn(&name, is_settled).await;
    }
    bench.until_all_final().await;
    bench.ask("c-4", "c", "fourth").await;
    bench.until_session("p", is_suppressed).await;
    assert_eq!(state(&bench.find_turn("c-4").await.unwrap()), Some(NoticeState::Pending));
    bench.pass_time(Duration::from_secs(3600)).await;
    assert_eq!(wakes(&bench).await.len(), 3);
    bench.turn("mine", "p", "go on").await;
    let turn = bench.until_turn("c-4", is_settled).await;
    assert_eq!(state(&turn), Some(NoticeState::Delivered));
    bench.until_session("p", |session| !is_suppressed(session)).await;
    bench.until_all_final().await;
    assert!(mentions(&bench).await.values().all(|&count| count == 1));
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_parent_that_ends_or_does_not_want_to_be_told_is_not_woken() {
    let mut bench = Bench::new().await;
    family(&mut bench).await;
    bench.agent("endless", "endless").await;
    bench.child("quiet", "p", "worker", json!({"prompt": "x", "notifyParent": false})).await;
    assert_eq!(state(&bench.until_final("quiet-1").await), None);
    bench.child("c", "p", "endless", json!({"prompt": "y", "autoStopOnParent": false})).await;
    bench.child("d", "p", "endless", json!({"prompt": "z"})).await;
    bench.until_phase("d-1", crate::api::turn::TurnPhase::Running).await;
    bench.cancel_session("p").await;
    bench.cancel_turn("c-1").await;
    bench.until_all_final().await;
    bench.pass_time(Duration::from_secs(60)).await;
    for turn in bench.all_turns().await {
        assert_eq!(state(&turn), None, "{turn:#?}");
    }
    assert_eq!(wakes(&bench).await.len(), 0);
    bench.check_quiet().await;
}

/// Test catalogue P2 for notices: whatever a daemon dies at, nothing is told twice.
#[tokio::test(start_paused = true)]
async fn a_daemon_that_dies_at_any_commit_tells_of_no_turn_twice() {
    let mut died = 0;
    for commit in 0..40 {
        let sides = if is_thorough() {
            vec![Side::Before, Side::After]
        } else {
            vec![if commit % 2 == 0 { Side::Before } else { Side::After }]
        };
        for side in sides {
            let mut bench = Bench::still(4);
            family(&mut bench).await;
            let wire = Wire::new();
            wire.open("x");
            bench.streams = Some(wire.clone());
            bench.external("x").await;
            bench.die_at(commit, side);
            bench.start().await;
            bench.child("c", "p", "worker", json!({"prompt": "c"})).await;
            bench.child("d", "p", "worker", json!({"prompt": "d"})).await;
            bench.child("e", "x", "worker", json!({"prompt": "e"})).await;
            let stood = bench.gate.stood.clone();
            tokio::select! {
                () = stood.cancelled() => died += 1,
                () = bench.pass_time(Duration::from_secs(30)) => {}
            }
            bench.crash().await;
            bench.start().await;
            bench.until_all_final().await;
            bench.pass_time(Duration::from_secs(60)).await;
            bench.until_all_final().await;
            for name in ["c-1", "d-1", "e-1"] {
                let turn = bench.find_turn(name).await.unwrap();
                assert!(is_settled(&turn), "{commit} {side:?}: {turn:#?}");
            }
            let told = wire.told();
            assert!(told.len() <= 1, "{commit} {side:?}: {told:?}");
            for (turn, count) in mentions(&bench).await {
                assert!(count <= 1, "{commit} {side:?}: {turn} is told of {count} times");
            }
            for wake in wakes(&bench).await {
                let prompt = wake.spec.prompt.unwrap();
                assert!(bench.ground.times_prompted(&prompt) <= 1, "{commit} {side:?}");
            }
            bench.check_quiet().await;
        }
    }
    assert!(died > 15, "only {died} daemons died: the run is too short");
}

#[tokio::test(start_paused = true)]
async fn an_external_caller_is_told_once_and_only_when_a_stream_is_open() {
    let mut bench = Bench::still(4);
    let wire = Wire::new();
    bench.streams = Some(wire.clone());
    bench.notifies = true;
    bench.start().await;
    bench.agent("worker", "answer").await;
    bench.external("x").await;
    bench.child("c", "x", "worker", json!({"prompt": "c"})).await;
    let turn = bench.until_final("c-1").await;
    bench.pass_time(Duration::from_secs(60)).await;
    assert_eq!(state(&bench.find_turn("c-1").await.unwrap()), Some(NoticeState::Pending));
    assert!(wire.told().is_empty());
    wire.open("x");
    let told = bench.until_turn("c-1", is_settled).await;
    assert_eq!(state(&told), Some(NoticeState::Delivered));
    assert_eq!(wire.told(), std::slice::from_ref(&turn.metadata.uid));
    let (caller, notice) = wire.told.lock().unwrap()[0].clone();
    assert_eq!(caller, bench.find_session("x").await.unwrap().metadata.uid);
    assert_eq!(notice.data["turnId"], json!(turn.metadata.uid));
    assert!(notice.data["message"].as_str().unwrap().contains("untrusted"));
    // More than one pass reads.
    for number in 2..=40 {
        let name = format!("c-{number}");
        bench.ask(&name, "c", &name).await;
        bench.until_final(&name).await;
    }
    bench.until_turn("c-40", is_settled).await;
    bench.pass_time(Duration::from_secs(1)).await;
    assert_eq!(wire.told().len(), 40);
    bench.check_quiet().await;
}
