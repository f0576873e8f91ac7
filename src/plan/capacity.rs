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

    #[test]
    fn one_parent_cannot_take_what_another_may() {
        let holders = vec![holder("a", Some("p")), holder("b", Some("p"))];
        assert!(!has_free_slot(&holders, Some(&Uid::from("p")), LIMITS));
        assert!(has_free_slot(&holders, Some(&Uid::from("q")), LIMITS));
        assert!(has_free_slot(&holders, None, LIMITS));
    }
}
