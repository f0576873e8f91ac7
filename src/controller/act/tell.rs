//! What the operator's programs are told of children as the loop records it. Waits for nothing.

use crate::plan::{Change, World};
use crate::ports::{Hooks, SPAWN_PARENT_STOPPED, SPAWN_REAPED, SPAWN_TTL_EXPIRED, of_child};

/// Tells what a commit that happened means for a child: that it ends by its parent or its ttl, and
/// that no process of it is left.
pub(super) fn of_change(hooks: &dyn Hooks, world: &World, change: &Change) {
    let seen = &world.session;
    if seen.status.lineage.parent.is_none() {
        return;
    }
    let wanted = change.session.as_ref().unwrap_or(seen);
    let tell = |event| hooks.tell(event, of_child(event, wanted));
    if let (None, Some(end)) = (&seen.status.end, &wanted.status.end) {
        match end.reason.as_str() {
            "ParentStopped" | "ParentDeleted" | "Orphaned" => tell(SPAWN_PARENT_STOPPED),
            "TtlExpired" => tell(SPAWN_TTL_EXPIRED),
            _ => {}
        }
    }
    let is_reaped = wanted.status.finished_at.is_some() || change.removes_session;
    if seen.status.finished_at.is_none() && is_reaped {
        tell(SPAWN_REAPED);
    }
}
