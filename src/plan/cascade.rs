//! What a session's place in the tree means: it follows the end of its parent, and its own end
//! waits for its children.
//!
//! Both sides are states of records. A child reads its parent's state in every pass; a parent that
//! ends wakes the children that have not recorded yet what that means for them, and is not finished
//! before all have. So a daemon that dies between the two finds the parent awake, which wakes the
//! children again.
//!
//! Invariants: a parent's record never goes before the last record below it; a child whose parent is
//! being deleted, or gone, goes too, unless it was let go (`Orphan`), and then it has no parent.

use crate::api::session::{DesiredState, EndOutcome, SessionEnd};
use crate::api::turn::CancelBy;
use crate::api::{Code, DELETION_PROPAGATION, Session};

use super::draft::Draft;
use super::stop::is_prompt_open;
use super::world::{Children, Live, Owner, Stage};
use super::{Step, deadlines};

/// The value of [`DELETION_PROPAGATION`] by which a session's own process goes first.
const BACKGROUND: &str = "Background";
/// The value of it by which children that do not stop with a session are let go.
const ORPHAN: &str = "Orphan";

impl Owner {
    /// What a parent does, from its record; `None`: that is gone.
    #[must_use]
    pub fn of(parent: Option<&Session>) -> Self {
        let Some(parent) = parent else { return Self::Gone };
        let propagation = parent.metadata.annotations.get(DELETION_PROPAGATION);
        match (is_removal_wanted(parent), has_stopped(parent)) {
            (true, _) if propagation.is_some_and(|value| value == ORPHAN) => Self::Releasing,
            (true, _) => Self::Deleting,
            (false, true) => Self::Stopped,
            (false, false) => Self::Live,
        }
    }
}

impl Children {
    /// The children of a session that ends: how many, and who must still take note of it.
    #[must_use]
    pub fn of(parent: &Session, children: &[Session]) -> Self {
        let is_deleted = is_removal_wanted(parent);
        let must_note = |child: &&Session| {
            if is_deleted {
                !child.metadata.is_deleting()
            } else {
                child.spec.auto_stop_on_parent && child.status.end.is_none()
            }
        };
        let untold = children.iter().filter(must_note).map(|child| child.metadata.name.clone());
        Self { untold: untold.collect(), count: children.len() }
    }
}

/// Whether a session's children must be looked at: it ends, or was asked to.
#[must_use]
pub fn must_tell_children(session: &Session) -> bool {
    is_removal_wanted(session) || has_stopped(session)
}

/// Whether a session has ended, or was asked to.
fn has_stopped(session: &Session) -> bool {
    session.status.end.is_some() || session.spec.desired_state != DesiredState::Running
}

/// Takes over what the parent's deletion means: the child is deleted with it, or let go.
pub(super) fn follow_owner(draft: &mut Draft<'_>) {
    match draft.world.owner {
        Owner::None | Owner::Live | Owner::Stopped => {}
        Owner::Releasing if !draft.session.spec.auto_stop_on_parent => release(&mut draft.session),
        Owner::Deleting | Owner::Releasing | Owner::Gone => {
            let now = draft.time();
            draft.session.metadata.deletion_timestamp.get_or_insert(now);
        }
    }
}

/// Cuts the link to the parent, so that the parent may go without this session. All else stays.
fn release(session: &mut Session) {
    if let Some(parent) = session.status.lineage.parent.take() {
        session.metadata.owner_references.retain(|owner| owner.uid != parent);
    }
}

/// Whether the session goes for no reason but its parent's deletion.
pub(super) fn goes_with_owner(draft: &Draft<'_>) -> bool {
    is_removal_wanted(&draft.session) && !is_removal_wanted(&draft.world.session)
}

/// Whether the record shall go as soon as it may.
pub(super) fn is_removal_wanted(session: &Session) -> bool {
    session.metadata.is_deleting() || session.spec.desired_state == DesiredState::Deleted
}

/// How the session ends by what its parent does, if it does.
pub(super) fn end_by_owner(draft: &Draft<'_>) -> Option<SessionEnd> {
    let end = |reason: &str, message: &str, code| SessionEnd {
        outcome: EndOutcome::Stopped,
        reason: reason.to_owned(),
        message: message.to_owned(),
        code: Some(code),
        at: draft.time(),
    };
    let is_over = draft.session.ttl_ends_at().is_some_and(|at| draft.time() >= at);
    if is_over && matches!(draft.world.owner, Owner::Gone | Owner::Stopped) {
        // What the session's own clock ended before is not its parent's doing.
        return Some(deadlines::ttl_end(draft.time()));
    }
    if goes_with_owner(draft) && draft.world.owner == Owner::Gone {
        let message = "its parent's record is gone";
        return Some(end("Orphaned", message, Code::ParentSessionDeleted));
    }
    if goes_with_owner(draft) {
        let message = "its parent was deleted";
        return Some(end("ParentDeleted", message, Code::ParentSessionDeleted));
    }
    let stops = draft.world.owner == Owner::Stopped && draft.session.spec.auto_stop_on_parent;
    stops.then(|| end("ParentStopped", "its parent ended", Code::TurnCancelled))
}

/// Who asked for the end that the session's record wants.
pub(super) fn asked_by(draft: &Draft<'_>) -> CancelBy {
    if goes_with_owner(draft) {
        return CancelBy::ParentDeleted;
    }
    draft.session.status.cancel.as_ref().map_or(CancelBy::Operator, |cancel| cancel.by)
}

/// Wakes the children that have not recorded yet what the session's end means for them. `false`:
/// there are some, or nobody has looked.
pub(super) fn has_told_children(draft: &mut Draft<'_>) -> bool {
    let Some(children) = &draft.world.children else { return false };
    draft.wakes.extend(children.untold.iter().cloned());
    children.untold.is_empty()
}

/// Whether a child is left; unknown counts as yes.
pub(super) fn has_children(draft: &Draft<'_>) -> bool {
    draft.world.children.as_ref().is_none_or(|children| children.count > 0)
}

/// Whether the session's process stays until its children have gone: a deletion in the foreground.
/// A process that is on its way out anyway, or must not outlive the daemon, is not held.
pub(super) fn holds_process(draft: &Draft<'_>, live: &Live) -> bool {
    let session = &draft.session;
    let propagation = session.metadata.annotations.get(DELETION_PROPAGATION);
    let is_foreground = propagation.is_none_or(|value| value != BACKGROUND);
    let is_well = match live.stage {
        Stage::Gated { .. } | Stage::Running => {
            live.stop.is_none() && !live.acp.is_eof && live.acp.fault.is_none()
        }
        Stage::Exited { .. } | Stage::Empty { .. } | Stage::Unprovable => false,
    };
    is_removal_wanted(session)
        && is_foreground
        && is_well
        && !draft.world.daemon.is_stopping
        && has_children(draft)
}

/// While the process stays, its agent is told at once that its prompt is cancelled.
pub(super) fn cancel_prompt(draft: &mut Draft<'_>, live: &Live) {
    draft.because("waits for its children to go before its own process");
    let Some(prompt) = live.prompt.as_ref().filter(|_| is_prompt_open(live)) else { return };
    if prompt.cancel_asked_at.is_none() && draft.active_turn().is_some() {
        draft.act(Step::CancelPrompt { turn: prompt.turn.clone() });
    }
}
