//! Who may take one of the daemon's turn slots.
//!
//! Pure: the holders are a value that the controller reads and writes in the commit that takes a
//! turn, so that a slot is never given twice.

use crate::api::Uid;

/// Bounds on turns that run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// In the whole daemon.
    pub max_active_turns: usize,
    /// Of the children of one session.
    pub max_active_turns_per_parent: usize,
}

/// A turn that holds a slot.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Holder {
    /// The turn.
    pub turn: Uid,
    /// The parent of its session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Uid>,
}

/// Whether one more turn may run.
#[must_use]
pub fn has_free_slot(holders: &[Holder], parent: Option<&Uid>, limits: Limits) -> bool {
    let of_parent =
        holders.iter().filter(|holder| parent.is_some() && holder.parent.as_ref() == parent);
    holders.len() < limits.max_active_turns
        && of_parent.count() < limits.max_active_turns_per_parent
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn holder(turn: &str, parent: Option<&str>) -> Holder {
        Holder { turn: turn.into(), parent: parent.map(Uid::from) }
    }

    const LIMITS: Limits = Limits { max_active_turns: 3, max_active_turns_per_parent: 2 };

    #[test]
    fn the_last_slot_is_given_and_no_more() {
        let mut holders = vec![holder("a", None), holder("b", None)];
        assert!(has_free_slot(&holders, None, LIMITS));
        holders.push(holder("c", None));
        assert!(!has_free_slot(&holders, None, LIMITS));
    }

    /// Test catalogue A5, of slots: 8 in all and 4 a parent, and none is refused below that.
    #[test]
    fn random_admissions_fill_every_slot_and_no_more() {
        let limits = Limits { max_active_turns: 8, max_active_turns_per_parent: 4 };
        let mut random = StdRng::seed_from_u64(11);
        let mut holders: Vec<Holder> = Vec::new();
        let mut running: BTreeMap<Option<u8>, usize> = BTreeMap::new();
        let mut full = 0;
        for number in 0..100_000 {
            let parent = [None, Some(1), Some(2), Some(3)][random.random_range(0..4)];
            if random.random_range(0..5) < 2 && !holders.is_empty() {
                let gone = holders.swap_remove(random.random_range(0..holders.len()));
                let parent = gone.parent.map(|uid| uid.as_str().parse().unwrap());
                *running.get_mut(&parent).unwrap() -= 1;
                continue;
            }
            let uid = parent.map(|parent: u8| Uid::from(parent.to_string()));
            let of_parent = running.entry(parent).or_default();
            let may = holders.len() < 8 && (parent.is_none() || *of_parent < 4);
            assert_eq!(has_free_slot(&holders, uid.as_ref(), limits), may, "{number}");
            if may {
                *of_parent += 1;
                holders.push(Holder { turn: number.to_string().into(), parent: uid });
            } else {
                full += 1;
            }
        }
        assert!(full > 1000, "only {full} met a bound");
    }

    #[test]
    fn one_parent_cannot_take_what_another_may() {
        let holders = vec![holder("a", Some("p")), holder("b", Some("p"))];
        assert!(!has_free_slot(&holders, Some(&Uid::from("p")), LIMITS));
        assert!(has_free_slot(&holders, Some(&Uid::from("q")), LIMITS));
        assert!(has_free_slot(&holders, None, LIMITS));
    }
}
