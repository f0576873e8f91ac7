//! Who holds an idle process: counted by parent, so that a parent's children keep a bounded number.
//!
//! Written by the pass over each session, which knows whether it is idle, and read by the same pass;
//! nobody walks over sessions. It is in memory only, as processes are the daemon's own.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::api::{Name, Time, Uid};
use crate::plan::world::Crowd;

/// A session whose process waits for a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resident {
    /// The session's name; a parent's children are in its namespace.
    pub(super) name: Name,
    /// Since when it has no turn.
    pub(super) since: Time,
    /// Whether its agent can take it up again: those that cannot go last.
    pub(super) can_go_on: bool,
}

/// All of them, by parent.
#[derive(Default)]
pub(super) struct Idle(Mutex<HashMap<Uid, HashMap<Uid, Resident>>>);

impl Idle {
    /// A pass has seen that a session's process is idle, or (`None`) that it is not, and asks who of
    /// its siblings must go so that `max` are left.
    pub(super) fn note(
        &self,
        parent: &Uid,
        session: &Uid,
        resident: Option<Resident>,
        max: usize,
    ) -> Crowd {
        let mut parents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let siblings = parents.entry(parent.clone()).or_default();
        match resident {
            Some(resident) => siblings.insert(session.clone(), resident),
            None => siblings.remove(session),
        };
        let surplus = siblings.len().saturating_sub(max);
        let mut crowd = Crowd::default();
        if surplus > 0 {
            let mut by_age: Vec<_> = siblings.iter().collect();
            by_age.sort_by_key(|(uid, it)| (!it.can_go_on, it.since, (*uid).clone()));
            for (uid, it) in by_age.into_iter().take(surplus) {
                if uid == session {
                    crowd.includes_this = true;
                } else {
                    crowd.others.push(it.name.clone());
                }
            }
        }
        if siblings.is_empty() {
            parents.remove(parent);
        }
        crowd
    }

    /// A session's process is gone.
    pub(super) fn forget(&self, session: &Uid) {
        let mut parents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        parents.retain(|_, siblings| {
            siblings.remove(session);
            !siblings.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident(name: &str, since: i64, can_go_on: bool) -> Option<Resident> {
        Some(Resident { name: name.into(), since: Time::from_millis(since), can_go_on })
    }

    #[test]
    fn the_eldest_idle_processes_of_a_parent_are_too_many() {
        let idle = Idle::default();
        let (p, q) = (Uid::from("p"), Uid::from("q"));
        let note = |parent: &Uid, name: &str, it| idle.note(parent, &Uid::from(name), it, 2);
        assert_eq!(note(&p, "a", resident("a", 3, true)), Crowd::default());
        assert_eq!(note(&p, "b", resident("b", 1, false)), Crowd::default());
        assert_eq!(note(&q, "x", resident("x", 0, true)), Crowd::default(), "another parent's");
        let one = |name: &str| Crowd { includes_this: false, others: vec![name.into()] };
        assert_eq!(note(&p, "c", resident("c", 4, true)), one("a"), "what can go on goes first");
        let this = Crowd { includes_this: true, others: Vec::new() };
        assert_eq!(note(&p, "a", resident("a", 3, true)), this);
        // It is used again: nobody is too many.
        assert_eq!(note(&p, "a", None), Crowd::default());
        assert_eq!(note(&p, "d", resident("d", 5, true)), one("c"));
        idle.forget(&Uid::from("c"));
        assert_eq!(note(&p, "d", resident("d", 5, true)), Crowd::default());
    }
}
