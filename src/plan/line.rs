//! Who is next when one of the daemon's turn slots becomes free.
//!
//! Sessions wait in one line and are served round robin over their parents: of those whose parent
//! was served longest ago, the one that waits longest. A slot that is free is offered to one
//! session, which looks at its world again; until it has looked, the slot counts as taken, so that
//! nobody who came later takes it.
//!
//! Pure, and in memory only: after a start everybody who waits joins again.

use std::collections::{BTreeMap, VecDeque};

use crate::api::Uid;

use super::capacity::{Holder, Limits, has_free_slot};

/// The sessions that wait for a slot.
#[derive(Debug)]
pub struct Line<K> {
    waiting: VecDeque<(K, Option<Uid>)>,
    offered: Vec<(K, Option<Uid>)>,
    /// When a parent was last served, counted in offers; only of parents that wait.
    served: BTreeMap<Option<Uid>, u64>,
    offers: u64,
}

impl<K> Default for Line<K> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), offered: Vec::new(), served: BTreeMap::new(), offers: 0 }
    }
}

impl<K: Clone + PartialEq> Line<K> {
    /// A session waits. One that was offered a slot and could not take it stands first again.
    pub fn join(&mut self, key: &K, parent: Option<&Uid>) {
        let offer = self.offered.iter().position(|(other, _)| other == key);
        if let Some(offer) = offer {
            self.waiting.push_front(self.offered.remove(offer));
        } else if !self.waiting.iter().any(|(other, _)| other == key) {
            self.waiting.push_back((key.clone(), parent.cloned()));
        }
    }

    /// A session waits no longer.
    pub fn leave(&mut self, key: &K) {
        self.offered.retain(|(other, _)| other != key);
        self.waiting.retain(|(other, _)| other != key);
    }

    /// Whether a session may take a slot now: it was offered one, or nobody waits before it.
    #[must_use]
    pub fn may_take(
        &self,
        key: &K,
        parent: Option<&Uid>,
        holders: &[Holder],
        limits: Limits,
    ) -> bool {
        let is_offered = self.offered.iter().any(|(other, _)| other == key);
        let others = self.offered.iter().filter(|(other, _)| other != key);
        (is_offered || self.waiting.is_empty())
            && has_free_slot(&with_offers(holders, others), parent, limits)
    }

    /// Offers what is free to those whose turn it is, and tells whom.
    pub fn offer(&mut self, holders: &[Holder], limits: Limits) -> Vec<K> {
        let mut served = Vec::new();
        while !self.waiting.is_empty() {
            let holders = with_offers(holders, self.offered.iter());
            let eligible = self
                .waiting
                .iter()
                .enumerate()
                .filter(|(_, (_, parent))| has_free_slot(&holders, parent.as_ref(), limits));
            let next = eligible
                .min_by_key(|(index, (_, parent))| (self.served.get(parent).copied(), *index))
                .map(|(index, _)| index);
            let Some(entry) = next.and_then(|index| self.waiting.remove(index)) else { break };
            self.offers += 1;
            self.served.insert(entry.1.clone(), self.offers);
            served.push(entry.0.clone());
            self.offered.push(entry);
        }
        if self.waiting.is_empty() {
            self.served.clear();
        }
        served
    }
}

/// The holders, and those whose slot is as good as taken.
fn with_offers<'a, K: 'a>(
    holders: &[Holder],
    offered: impl Iterator<Item = &'a (K, Option<Uid>)>,
) -> Vec<Holder> {
    let offer =
        |(_, parent): &(K, Option<Uid>)| Holder { turn: Uid::default(), parent: parent.clone() };
    holders.iter().cloned().chain(offered.map(offer)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { max_active_turns: 2, max_active_turns_per_parent: 1 };

    fn holder(turn: &str, parent: Option<&str>) -> Holder {
        Holder { turn: turn.into(), parent: parent.map(Uid::from) }
    }

    fn line(waiting: &[(&'static str, Option<&str>)]) -> Line<&'static str> {
        let mut line = Line::default();
        for (key, parent) in waiting {
            line.join(key, parent.map(Uid::from).as_ref());
        }
        line
    }

    #[test]
    fn those_who_came_first_are_served_first_and_nobody_beyond_the_slots() {
        let mut line = line(&[("a", None), ("b", None), ("c", None)]);
        assert_eq!(line.offer(&[holder("x", None)], LIMITS), ["a"]);
        assert_eq!(line.offer(&[holder("x", None)], LIMITS), Vec::<&str>::new());
        line.leave(&"a");
        assert_eq!(line.offer(&[], LIMITS), ["b", "c"]);
    }

    #[test]
    fn a_parent_at_its_bound_does_not_hold_up_the_others() {
        let mut line = line(&[("a", Some("p")), ("b", Some("q"))]);
        assert_eq!(line.offer(&[holder("x", Some("p"))], LIMITS), ["b"]);
    }

    #[test]
    fn parents_are_served_in_turn() {
        let limits = Limits { max_active_turns: 1, max_active_turns_per_parent: 1 };
        let mut line =
            line(&[("p1", Some("p")), ("p2", Some("p")), ("p3", Some("p")), ("q1", Some("q"))]);
        let mut order = Vec::new();
        while let Some(next) = line.offer(&[], limits).first() {
            order.push(*next);
            line.leave(next);
        }
        assert_eq!(order, ["p1", "q1", "p2", "p3"]);
    }

    #[test]
    fn who_comes_later_takes_nothing_from_those_who_wait() {
        let mut line = line(&[("a", None)]);
        assert!(!line.may_take(&"late", None, &[], LIMITS));
        line.offer(&[holder("x", None)], LIMITS);
        assert!(line.may_take(&"a", None, &[holder("x", None)], LIMITS));
        assert!(!line.may_take(&"late", None, &[holder("x", None)], LIMITS));
        assert!(line.may_take(&"late", None, &[], LIMITS));
    }

    #[test]
    fn who_could_not_take_what_was_offered_stands_first_again() {
        let mut line = line(&[("a", None), ("b", None)]);
        assert_eq!(line.offer(&[holder("x", None)], LIMITS), ["a"]);
        line.join(&"a", None);
        assert_eq!(line.offer(&[holder("x", None)], LIMITS), ["a"]);
    }
}
