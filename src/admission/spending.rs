//! New turns of a tree that has used up what it may: refused, where the turn would not wait.

use super::spawn::SpawnRefusal;
use super::{Admission, Refusal};
use crate::api::{Code, Session};
use crate::ledger;

impl Admission {
    /// What a session's tree has nothing left of, in a sentence.
    pub(super) async fn tree_exhaustion(
        &self,
        session: &Session,
    ) -> Result<Option<String>, Refusal> {
        if !self.limits.tree.is_set() {
            return Ok(None);
        }
        let found = ledger::read(&self.records, session).await?;
        Ok(self.limits.tree.exhaustion(found.used.as_ref()))
    }

    /// A caller makes no turn in a tree that has used up what it may.
    pub(super) async fn check_tree_budget(&self, parent: &Session) -> Result<(), SpawnRefusal> {
        match self.tree_exhaustion(parent).await? {
            None => Ok(()),
            Some(why) => Err(SpawnRefusal::new(Code::TurnBudgetExhausted, refused(&why))),
        }
    }
}

/// Why a turn is refused, and what to do.
pub(super) fn refused(why: &str) -> String {
    format!("{why}; no turn of the tree begins before an operator raises the limit")
}
