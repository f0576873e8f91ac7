//! What a session's tree has used: read into its world, written with what it uses itself.

use crate::api::Session;
use crate::ledger;
use crate::plan::spending::Tree;
use crate::plan::{Change, World};
use crate::store::records::{self, Txn};
use crate::store::{Rev, keys};

use super::feed::object_key;
use super::{Controller, ObjectKey};

impl Controller {
    /// The tree of a session.
    pub(super) async fn tree(&self, session: &Session) -> Result<Tree, records::Error> {
        let found = ledger::read(&self.records, session).await?;
        let root = if found.tree == session.metadata.uid {
            None
        } else {
            self.records.key_by_uid(&found.tree).await?.as_ref().and_then(object_key)
        };
        Ok(Tree {
            id: found.tree,
            root: root.map(|key| key.name),
            used: found.used,
            revision: found.rev.map(|rev| rev.0),
            limits: self.options.tree_limits,
        })
    }

    /// Sessions that do not show yet what those below them used.
    pub(super) async fn roots_untold(&self) -> Result<Vec<ObjectKey>, records::Error> {
        self.sessions_at(keys::QUOTA_UNTOLD).await
    }
}

/// What a change uses is counted in its own commit; a session at the top that shows the sums says so.
pub(super) fn write(txn: Txn, world: &World, change: &Change) -> Txn {
    let tree = &world.tree;
    let rev = tree.revision.map(Rev);
    if let Some(used) = &change.tree_used {
        let namespace = &world.session.metadata.namespace;
        let told = tree.root.as_ref().map(|root| (namespace, root));
        return ledger::write(txn, &tree.id, rev, used, told);
    }
    let seen = &world.session.status.tree_usage;
    match &change.session {
        Some(session) if session.status.tree_usage != *seen => ledger::shown(txn, &tree.id, rev),
        Some(_) | None => txn,
    }
}
