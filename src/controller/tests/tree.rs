//! Trees of sessions: what ends or is deleted above reaches everything below, in order.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use super::bench::{Bench, is_thorough};
use super::gate::Side;
use crate::admission::Propagation;
use crate::api::session::SessionPhase;
use crate::api::turn::{CancelBy, TurnPhase};
use crate::api::{Code, Kind, Name, Session, SessionSpec, TurnSpec, Uid};
use crate::store::records::{Txn, decode};
use crate::store::{BlobId, Blobs, Change, Rev, Store, Stream};

/// A caller and three generations below it, one child each, with a running turn each.
async fn line(bench: &Bench, script: &str) {
    bench.agent("a", script).await;
    bench.external("c0").await;
    for depth in 1..=3 {
        let (name, parent) = (format!("c{depth}"), format!("c{}", depth - 1));
        bench.child(&name, &parent, "a", json!({"prompt": format!("hello {depth}")})).await;
    }
    for depth in 1..=3 {
        bench.until_phase(&format!("c{depth}-1"), TurnPhase::Running).await;
    }
}

async fn until_gone(bench: &Bench, name: &str) {
    bench.until_session(name, |session| session.is_none()).await;
}

/// The names of the sessions whose records went since `from`, in order.
async fn removed_since(bench: &Bench, from: Rev) -> Vec<String> {
    let name = |change| match change {
        Change::Delete { key, .. } => Some(key.as_str().rsplit('/').next().unwrap().to_owned()),
        _ => None,
    };
    bench.changes_since(Kind::Session, from).await.into_iter().filter_map(name).collect()
}

#[tokio::test(start_paused = true)]
async fn deleting_the_uppermost_takes_all_generations_along_from_below() {
    for propagation in [Propagation::Foreground, Propagation::Background] {
        for script in ["endless", "stubborn ignores-term"] {
            let bench = Bench::new().await;
            line(&bench, script).await;
            let from = bench.memory.head().await.unwrap();
            let uids: Vec<Uid> =
                bench.all_turns().await.into_iter().map(|turn| turn.metadata.uid).collect();
            bench.delete_session("c0", propagation).await;
            until_gone(&bench, "c0").await;
            assert_eq!(removed_since(&bench, from).await, ["c3", "c2", "c1", "c0"]);
            assert_eq!(bench.ground.alive(), 0);
            assert!(bench.all_turns().await.is_empty());
            // Nothing comes back.
            bench.pass_time(Duration::from_secs(3600)).await;
            assert!(bench.all_sessions().await.is_empty());
            for uid in uids {
                let blob = BlobId { owner: uid, stream: Stream::Transcript };
                assert_eq!(bench.memory.len(&blob).await.unwrap(), 0);
            }
            bench.check_quiet().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn turns_of_a_deleted_parent_are_cancelled_for_it_and_watchers_see_the_deletion_coming() {
    let bench = Bench::new().await;
    line(&bench, "endless").await;
    let from = bench.memory.head().await.unwrap();
    bench.delete_session("c0", Propagation::Foreground).await;
    until_gone(&bench, "c0").await;
    let mut ends = BTreeMap::new();
    for change in bench.changes_since(Kind::Turn, from).await {
        if let Change::Put(record) = change {
            let turn = decode::<TurnSpec>(&record.key, &record.value, record.rev).unwrap();
            ends.insert(turn.metadata.name, (turn.status.phase, turn.status.code));
        }
    }
    let mut announced = BTreeMap::new();
    for change in bench.changes_since(Kind::Session, from).await {
        if let Change::Put(record) = change {
            let session = decode::<SessionSpec>(&record.key, &record.value, record.rev).unwrap();
            announced.insert(session.metadata.name.clone(), session.metadata.is_deleting());
        }
    }
    let deleted = (TurnPhase::Cancelled, Some(Code::ParentSessionDeleted));
    for depth in 1..=3 {
        assert_eq!(ends[&Name::from(format!("c{depth}-1"))], deleted);
        assert!(announced[&Name::from(format!("c{depth}"))], "c{depth}");
    }
}

/// A parent with a process and a child that is slow to go.
async fn slow_child(bench: &Bench) {
    bench.agent("a", "endless").await;
    bench.agent("slow", "stubborn ignores-term").await;
    bench.external("c0").await;
    bench.child("p", "c0", "a", json!({"prompt": "parent"})).await;
    bench.child("c", "p", "slow", json!({"prompt": "child"})).await;
    bench.until_phase("p-1", TurnPhase::Running).await;
    bench.until_phase("c-1", TurnPhase::Running).await;
}

#[tokio::test(start_paused = true)]
async fn the_order_of_a_deletion_says_whose_process_goes_first() {
    for (propagation, is_parent_first) in
        [(Propagation::Foreground, false), (Propagation::Background, true)]
    {
        let bench = Bench::new().await;
        slow_child(&bench).await;
        bench.delete_session("p", propagation).await;
        // The child's ladder takes ten seconds and more, the parent's none.
        bench.pass_time(Duration::from_secs(3)).await;
        let parent = bench.find_session("p").await.unwrap();
        assert_eq!(parent.status.process.is_none(), is_parent_first, "{propagation:?}");
        assert_eq!(parent.status.phase, SessionPhase::Terminating);
        assert_eq!(bench.find_session("c").await.unwrap().status.phase, SessionPhase::Terminating);
        let turn = bench.find_turn("p-1").await;
        assert!(turn.is_none_or(|turn| turn.status.phase == TurnPhase::Cancelled));
        until_gone(&bench, "p").await;
        assert!(bench.find_session("c").await.is_none());
        assert_eq!(bench.ground.alive(), 0);
        bench.check_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_parent_that_stops_stops_those_below_that_stop_with_it() {
    let bench = Bench::new().await;
    line(&bench, "endless").await;
    bench.child("free", "c1", "a", json!({"prompt": "free", "autoStopOnParent": false})).await;
    bench.child("idle", "c1", "a", json!({})).await;
    bench.until_phase("free-1", TurnPhase::Running).await;
    bench.cancel_session("c1").await;
    for name in ["c1", "c2", "c3", "idle"] {
        let is_stopped =
            |session: Option<&Session>| session.unwrap().status.phase == SessionPhase::Stopped;
        let session = bench.until_session(name, is_stopped).await.unwrap();
        let wanted = if name == "c1" { "Cancelled" } else { "ParentStopped" };
        assert_eq!(session.status.reason, wanted, "{name}");
    }
    let turn = bench.until_final("c3-1").await;
    assert_eq!(turn.status.cancel.unwrap().by, CancelBy::ParentStopped);
    bench.pass_time(Duration::from_secs(60)).await;
    assert_eq!(bench.find_turn("free-1").await.unwrap().status.phase, TurnPhase::Running);
    assert_eq!(bench.ground.alive(), 1);
    bench.cancel_session("free").await;
    bench.until_all_final().await;
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_child_that_is_let_go_lives_on_and_its_parent_goes() {
    let bench = Bench::new().await;
    bench.agent("a", "thinks-ms=5000").await;
    bench.external("c0").await;
    bench.child("c", "c0", "a", json!({"prompt": "hello", "autoStopOnParent": false})).await;
    bench.until_phase("c-1", TurnPhase::Running).await;
    bench.delete_session("c0", Propagation::Orphan).await;
    until_gone(&bench, "c0").await;
    let child = bench.find_session("c").await.unwrap();
    assert_eq!(child.status.lineage.parent, None);
    assert!(child.metadata.owner_references.is_empty());
    assert_eq!(bench.until_final("c-1").await.status.phase, TurnPhase::Completed);
    bench.turn("c-2", "c", "again").await;
    assert_eq!(bench.until_final("c-2").await.status.phase, TurnPhase::Completed);
    assert_eq!(bench.ground.launches(), 1, "in the same process");
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_child_whose_parent_is_gone_goes_too() {
    let bench = Bench::new().await;
    bench.agent("a", "endless").await;
    bench.external("c0").await;
    bench.child("c", "c0", "a", json!({"prompt": "hello"})).await;
    bench.until_phase("c-1", TurnPhase::Running).await;
    // As in a store that was put back to an older state.
    let parent = bench.find_session("c0").await.unwrap();
    Txn::new().remove(&parent).commit(bench.memory.as_ref()).await.unwrap();
    until_gone(&bench, "c").await;
    assert_eq!(bench.ground.alive(), 0);
    bench.check_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_dies_anywhere_in_a_cascade_goes_on_with_it() {
    let mut died = 0;
    for commit in 0..40 {
        let side = if commit % 2 == 0 { Side::Before } else { Side::After };
        let is_deletion = commit % 4 < 2;
        let mut bench = Bench::new().await;
        line(&bench, "endless").await;
        bench.child("idle", "c2", "a", json!({})).await;
        bench.pass_time(Duration::from_secs(1)).await;
        bench.die_at(commit / 2, side);
        if is_deletion {
            bench.delete_session("c0", Propagation::Foreground).await;
        } else {
            bench.cancel_session("c0").await;
        }
        let stood = bench.gate.stood.clone();
        tokio::select! {
            () = stood.cancelled() => died += 1,
            () = bench.pass_time(Duration::from_secs(60)) => {}
        }
        bench.crash().await;
        bench.start().await;
        if is_deletion {
            until_gone(&bench, "c0").await;
            assert!(bench.all_sessions().await.is_empty(), "{commit}");
        }
        bench.until_all_final().await;
        bench.pass_time(Duration::from_secs(60)).await;
        for session in bench.all_sessions().await {
            assert_eq!(session.status.phase, SessionPhase::Stopped, "{commit}: {session:#?}");
        }
        assert_eq!(bench.ground.alive(), 0);
        bench.check_quiet().await;
    }
    assert!(died > 20, "only {died} daemons died: the run is too short");
}

/// One tree: its sessions' names, and the parent of each.
struct Tree {
    parents: BTreeMap<String, String>,
    random: StdRng,
}

impl Tree {
    async fn grow(bench: &Bench, seed: u64) -> Self {
        let mut tree = Self { parents: BTreeMap::new(), random: StdRng::seed_from_u64(seed) };
        bench.external("root").await;
        let mut generation = vec!["root".to_owned()];
        for depth in 1..=4 {
            let mut next = Vec::new();
            for parent in &generation {
                for number in 0..tree.random.random_range(0..3) {
                    if tree.parents.len() >= 12 {
                        break;
                    }
                    let name = format!("{parent}-{depth}{number}");
                    let agent = ["endless", "answer", "slow"][tree.random.random_range(0..3)];
                    let prompt =
                        tree.random.random_range(0..2) == 0 && bench.slots().await.len() < 8;
                    let more = if prompt { json!({"prompt": name.clone()}) } else { json!({}) };
                    bench.child(&name, parent, agent, more).await;
                    tree.parents.insert(name.clone(), parent.clone());
                    next.push(name);
                }
            }
            generation = next;
        }
        tree
    }

    /// New children meet a deletion: some below what goes, without knowing it yet.
    async fn race(&mut self, bench: &Bench) {
        for _ in 0..3 {
            for _ in 0..self.random.random_range(0..40) {
                tokio::task::yield_now().await;
            }
            let (parent, name) = (self.any(), format!("new-{}", self.parents.len()));
            let is_deep = self.ancestors(&parent).len() >= 4;
            if !is_deep && bench.try_child(&name, &parent, "answer", json!({})).await {
                self.parents.insert(name, parent);
            }
        }
    }

    fn any(&mut self) -> String {
        let names: Vec<_> = self.parents.keys().collect();
        if names.is_empty() {
            return "root".to_owned();
        }
        names[self.random.random_range(0..names.len())].clone()
    }

    fn ancestors(&self, name: &str) -> Vec<String> {
        let above = |name: &String| self.parents.get(name).cloned();
        std::iter::successors(above(&name.to_owned()), above).collect()
    }
}

/// Test catalogue B2, short.
#[tokio::test(start_paused = true)]
async fn in_random_trees_nobody_outlives_what_it_was_deleted_with() {
    let trees = if is_thorough() { 400 } else { 25 };
    for seed in 0..trees {
        let bench = Bench::new().await;
        for (name, script) in
            [("endless", "endless"), ("answer", "answer"), ("slow", "stubborn ignores-term")]
        {
            bench.agent(name, script).await;
        }
        let mut tree = Tree::grow(&bench, seed).await;
        let from = bench.memory.head().await.unwrap();
        let mut deleted = Vec::new();
        for _ in 0..2 {
            let name = tree.any();
            let wait = tree.random.random_range(0..50);
            bench.pass_time(Duration::from_millis(wait)).await;
            let order =
                [Propagation::Foreground, Propagation::Background][tree.random.random_range(0..2)];
            if bench.find_session(&name).await.is_some() {
                bench.delete_session(&name, order).await;
                deleted.push(name);
            }
            tree.race(&bench).await;
        }
        for name in &deleted {
            until_gone(&bench, name).await;
        }
        let left: Vec<String> =
            bench.all_sessions().await.iter().map(|s| s.metadata.name.to_string()).collect();
        let removed = removed_since(&bench, from).await;
        for name in tree.parents.keys() {
            let above = tree.ancestors(name);
            let goes = deleted.contains(name) || above.iter().any(|name| deleted.contains(name));
            assert_eq!(!goes, left.contains(name), "tree {seed}: {name} of {deleted:?}");
            let place = |name: &String| removed.iter().position(|other| other == name);
            for ancestor in above.iter().filter(|ancestor| removed.contains(ancestor)) {
                assert!(place(name) < place(ancestor), "tree {seed}: {ancestor} before {name}");
            }
        }
        if !deleted.contains(&"root".to_owned()) {
            bench.delete_session("root", Propagation::Foreground).await;
            until_gone(&bench, "root").await;
        }
        assert!(bench.all_sessions().await.is_empty(), "tree {seed}");
        assert_eq!(bench.ground.alive(), 0, "tree {seed}");
        bench.check_quiet().await;
    }
}
