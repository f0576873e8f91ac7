//! What a whole tree of sessions has used, and how much it may.
//!
//! The sums of a tree are a record of their own (`crate::ledger`), written in the very commit that
//! writes what one of its sessions used: so nothing is counted twice or lost, whatever dies or is
//! deleted later. The uppermost session shows them (`status.treeUsage`).
//!
//! Invariants: sums only grow; a tree that has used up what it may begins no turn, and one that used
//! more has its running turns cancelled by `Budget`. Absent: what a tree's contexts hold in all; a
//! gauge has no sum. Costs in another currency than the tree's first are not summed up.

use serde_json::{Map, Value, json};

use crate::api::turn::{Cancel, CancelBy};
use crate::api::{Name, Session, Turn, Uid};

use super::draft::Draft;
use super::ending;
use super::turn::Ending;
use super::usage::{TOKEN_COUNTS, rounded};
use super::world::{Stage, StopCause, World};
use super::{launch, stop};

/// The reason of what waits for its tree's budget.
pub(super) const EXHAUSTED: &str = "TreeBudgetExhausted";
/// Bytes of a currency's name: it comes from agents.
const CURRENCY_BYTES_MAX: usize = 64;

/// What a tree may use. Absent: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Tokens, as [`tokens_of`] counts them (`limits.maxTokensPerRoot`).
    pub max_tokens: Option<u64>,
    /// Cost, in the tree's currency (`limits.maxCostPerRoot`).
    pub max_cost: Option<f64>,
}

/// A session's tree.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tree {
    /// Its uppermost session.
    pub id: Uid,
    /// The name of that, unless it is the session itself.
    pub root: Option<Name>,
    /// The sums as the store has them.
    pub used: Option<Value>,
    /// The store's revision of them.
    pub revision: Option<u64>,
    /// What it may use.
    pub limits: Limits,
}

impl Limits {
    /// Whether there is any.
    #[must_use]
    pub const fn is_set(&self) -> bool {
        self.max_tokens.is_some() || self.max_cost.is_some()
    }

    /// What a tree has used more of than it may, in a sentence.
    #[must_use]
    pub fn excess(&self, used: Option<&Value>) -> Option<String> {
        self.reached(used, |used, max| used > max, |used, max| used > max)
    }

    /// What a tree has nothing left of, in a sentence.
    #[must_use]
    pub fn exhaustion(&self, used: Option<&Value>) -> Option<String> {
        self.reached(used, |used, max| used >= max, |used, max| used >= max)
    }

    fn reached(
        &self,
        used: Option<&Value>,
        is_tokens: impl Fn(u64, u64) -> bool,
        is_cost: impl Fn(f64, f64) -> bool,
    ) -> Option<String> {
        let tokens = count(used, "tokens");
        if let Some(max) = self.max_tokens.filter(|&max| is_tokens(tokens, max)) {
            return Some(format!(
                "its tree of sessions used {tokens} tokens; limits.maxTokensPerRoot is {max}"
            ));
        }
        let (cost, _) = cost_of(used);
        let max = self.max_cost.filter(|&max| is_cost(cost, max))?;
        Some(format!("its tree of sessions cost {cost:.6}; limits.maxCostPerRoot is {max}"))
    }
}

/// The tokens that a turn's usage counts as: what its agent answered, or what its context grew by if
/// that is more.
#[must_use]
pub fn tokens_of(usage: Option<&Value>) -> u64 {
    let parts = TOKEN_COUNTS.iter().filter(|name| **name != "totalTokens");
    let answered = match count(usage, "totalTokens") {
        0 => parts.fold(0_u64, |sum, name| sum.saturating_add(count(usage, name))),
        total => total,
    };
    answered.max(count(usage, "contextGrowth"))
}

fn count(usage: Option<&Value>, name: &str) -> u64 {
    usage.and_then(|usage| usage.get(name)?.as_u64()).unwrap_or(0)
}

fn cost_of(usage: Option<&Value>) -> (f64, Option<&str>) {
    let cost = usage.and_then(|usage| usage.get("cost"));
    let amount = cost.and_then(|cost| cost.get("amount")?.as_f64()).unwrap_or(0.0);
    (amount, cost.and_then(|cost| cost.get("currency")?.as_str()))
}

/// Whether a session is the uppermost of its tree.
pub(super) const fn is_root(session: &Session) -> bool {
    session.status.lineage.parent.is_none()
}

/// The tree's sums after what a pass records; `None`: it records no use.
pub(super) fn after(world: &World, session: &Session, turns: &[Turn]) -> Option<Value> {
    let (seen, wanted) = (world.session.status.usage.as_ref(), session.status.usage.as_ref());
    let tree = world.tree.used.as_ref();
    let mut sums = match tree {
        Some(Value::Object(sums)) => sums.clone(),
        Some(_) | None => Map::new(),
    };
    let mut add = |name: &str, more: u64| {
        if more > 0 {
            sums.insert(name.to_owned(), json!(count(tree, name).saturating_add(more)));
        }
    };
    for name in TOKEN_COUNTS {
        add(name, count(wanted, name).saturating_sub(count(seen, name)));
    }
    let grown = world.turns.iter().zip(turns).fold(0_u64, |sum, (seen, wanted)| {
        let before = tokens_of(seen.record.status.usage.as_ref());
        sum.saturating_add(tokens_of(wanted.status.usage.as_ref()).saturating_sub(before))
    });
    add("tokens", grown);
    let (before, _) = cost_of(seen);
    let (now, currency) = cost_of(wanted);
    let (spent, kept) = cost_of(tree);
    let is_same = spent == 0.0 || kept == currency;
    if now > before && is_same && currency.is_none_or(|name| name.len() <= CURRENCY_BYTES_MAX) {
        let amount = rounded(spent + (now - before));
        sums.insert("cost".to_owned(), json!({"amount": amount, "currency": currency}));
    }
    let sums = Value::Object(sums);
    (tree != Some(&sums) && sums != json!({})).then_some(sums)
}

/// The running turn of a tree that used more than it may is cancelled; its session goes on.
pub(super) fn cancel_if_over(draft: &mut Draft<'_>) {
    let tree = &draft.world.tree;
    let Some(reason) = tree.limits.excess(tree.used.as_ref()) else { return };
    let Some(index) = draft.active_turn() else { return };
    let at = draft.time();
    let cancel = &mut draft.turns[index].status.cancel;
    cancel.get_or_insert(Cancel { by: CancelBy::Budget, reason, at });
}

/// A tree with nothing left takes no turn. What must not wait ends; the rest waits until there is a
/// higher limit, without a process if the agent can go on later. `false`: there is enough.
pub(super) fn holds_back(draft: &mut Draft<'_>, index: usize) -> bool {
    let tree = &draft.world.tree;
    let Some(why) = tree.limits.exhaustion(tree.used.as_ref()) else { return false };
    draft.because(why.clone());
    if launch::must_not_wait(&draft.turns[index].spec) {
        let at = draft.time();
        let cancel = &mut draft.turns[index].status.cancel;
        cancel.get_or_insert(Cancel { by: CancelBy::Budget, reason: why, at });
        ending::turn(draft, index, &Ending::NeverSent);
        draft.wake_in(std::time::Duration::ZERO);
        return true;
    }
    let status = &mut draft.turns[index].status;
    EXHAUSTED.clone_into(&mut status.reason);
    status.message = why;
    park(draft);
    true
}

/// An idle process goes if its agent can take the session up again.
fn park(draft: &mut Draft<'_>) {
    let found = draft.session.status.capabilities.as_ref();
    let can_go_on =
        !draft.session.status.prompted || found.is_some_and(|found| found.resume || found.load);
    let live = draft.world.live().filter(|live| live.stage == Stage::Running);
    if let Some(live) = live.filter(|_| can_go_on) {
        stop::climb(draft, live, &StopCause::Idle);
    }
}

/// Why a session shows that its tree's budget is used up, if it does: the uppermost one always, the
/// others if something waits for it.
pub(super) fn shown(session: &Session, world: &World) -> Option<String> {
    let concerns = is_root(session) || session.status.queued_turns > 0;
    if !concerns || session.status.end.is_some() {
        return None;
    }
    world.tree.limits.exhaustion(world.tree.used.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turns_tokens_are_what_was_answered_or_what_its_context_grew_by() {
        for (usage, tokens) in [
            (json!({"totalTokens": 7, "inputTokens": 100}), 7),
            (json!({"inputTokens": 3, "outputTokens": 4, "mood": 9}), 7),
            (json!({"totalTokens": 7, "contextGrowth": 9}), 9),
            (json!({"cost": {"amount": 1.0}}), 0),
        ] {
            assert_eq!(tokens_of(Some(&usage)), tokens, "{usage}");
        }
        assert_eq!(tokens_of(None), 0);
    }

    #[test]
    fn what_reaches_a_limit_is_used_up_and_not_over() {
        let limits = Limits { max_tokens: Some(10), max_cost: Some(0.5) };
        let used = |tokens: u64, cost: f64| json!({"tokens": tokens, "cost": {"amount": cost}});
        assert_eq!(limits.exhaustion(Some(&used(9, 0.4))), None);
        for (tokens, cost, word) in [(10, 0.0, "maxTokensPerRoot"), (0, 0.5, "maxCostPerRoot")] {
            assert!(limits.exhaustion(Some(&used(tokens, cost))).unwrap().contains(word));
            assert_eq!(limits.excess(Some(&used(tokens, cost))), None);
        }
        assert!(limits.excess(Some(&used(11, 0.0))).unwrap().contains("11 tokens"));
        assert!(limits.excess(Some(&used(0, 0.6))).unwrap().contains("maxCostPerRoot is 0.5"));
        assert_eq!(Limits::default().exhaustion(Some(&used(u64::MAX, 1e9))), None);
    }
}
