//! Catalogue A5: random admissions against a model of the bounds.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::spawn::{ask, bench, caller, finish, on, prompt, wide};
use super::*;
use crate::admission::spawn::{Made, Prompted};
use crate::api::Code;
use crate::plan::capacity;

const CALLERS: usize = 4;
/// Sessions that a caller goes on with.
const CHILDREN: usize = 7;
/// Operations of every run, and of the slow tiers (an operation takes 0.8 ms unoptimised).
const OPERATIONS: usize = 6_000;
const OPERATIONS_SLOW: usize = 100_000;
const SEED: u64 = 5;

/// A caller, its children, and the unfinished turn of each.
struct Parent {
    caller: Caller,
    children: Vec<(Session, Option<Made>)>,
}

impl Parent {
    fn running(&self) -> usize {
        self.children.iter().filter(|(_, turn)| turn.is_some()).count()
    }
}

/// What the bounds say of one more turn of a parent, in the order of the checks.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Turn,
    Children,
    Busy,
    Full,
}

fn judge(parents: &[Parent], parent: usize, is_busy: bool, children_max: usize) -> Verdict {
    let all: usize = parents.iter().map(Parent::running).sum();
    let own = parents[parent].running();
    if own >= children_max {
        Verdict::Children
    } else if is_busy {
        Verdict::Busy
    } else if all >= 8 || own >= 4 {
        Verdict::Full
    } else {
        Verdict::Turn
    }
}

#[tokio::test]
async fn random_admissions_keep_every_bound_and_refuse_nothing_below_it() {
    let turns = capacity::Limits { max_active_turns: 8, max_active_turns_per_parent: 4 };
    let bench = bench(Limits { turns, ..wide() }).await;
    let mut rng = StdRng::seed_from_u64(SEED);
    let mut parents = Vec::new();
    for number in 0..CALLERS {
        let caller = caller(&bench, &format!("p{number}")).await;
        parents.push(Parent { caller, children: Vec::new() });
    }
    // The last one may have fewer children than turns at the same time, so that this bound is met.
    let tight = bench.session("p3").await;
    bench.write(&tight, |tight| tight.spec.delegation.max_children = 3).await;
    let mut met = [0_usize; 4];
    let is_slow = std::env::var("SPAWNLET_TIER").is_ok_and(|tier| tier == "1" || tier == "2");
    for step in 0..if is_slow { OPERATIONS_SLOW } else { OPERATIONS } {
        let at = rng.random_range(0..CALLERS);
        let running: Vec<usize> = (0..parents[at].children.len())
            .filter(|&child| parents[at].children[child].1.is_some())
            .collect();
        if !running.is_empty() && rng.random_bool(0.4) {
            let child = running[rng.random_range(0..running.len())];
            let turn = parents[at].children[child].1.take().unwrap();
            finish(&bench, &turn).await;
            continue;
        }
        let known = parents[at].children.len();
        let child = (known == CHILDREN || (known > 0 && rng.random_bool(0.9)))
            .then(|| rng.random_range(0..known));
        let is_busy = child.is_some_and(|child| parents[at].children[child].1.is_some());
        let expected = judge(&parents, at, is_busy, if at == 3 { 3 } else { 5 });
        let request = child.map_or_else(ask, |child| on(&parents[at].children[child].0));
        let found = match prompt(&bench, &parents[at].caller, request).await {
            Ok(Prompted::Turn(made)) => {
                match child {
                    Some(child) => parents[at].children[child].1 = Some(*made),
                    None => parents[at].children.push((made.session.clone(), Some(*made))),
                }
                Verdict::Turn
            }
            Ok(Prompted::Busy(_)) => Verdict::Busy,
            Ok(Prompted::Full) => Verdict::Full,
            Err(refusal) if refusal.code == Code::SpawnChildrenExceeded => Verdict::Children,
            other => panic!("step {step} of seed {SEED}: {other:?}"),
        };
        assert_eq!(found, expected, "step {step} of seed {SEED}");
        met[expected as usize] += 1;
    }
    assert!(met.iter().all(|&times| times > 30), "not every verdict was met: {met:?}");
}
