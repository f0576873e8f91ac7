//! What admission must know of each kind beside its validation.

use crate::api::session::DesiredState;
use crate::api::turn::TurnDesiredState;
use crate::api::validate::permission::why_not_decided;
use crate::api::{
    AgentSpec, Name, NamespaceSpec, Object, PermissionRequestSpec, RoleSpec, SessionSpec, Spec,
    TurnSpec, Uid, WorkspaceSpec, naming,
};

/// A kind that users write.
pub(super) trait Admissible: Spec {
    /// The name of an object that was given none, made from the record.
    fn name_from(&self, _uid: &Uid) -> Option<Name> {
        None
    }

    /// Takes the desired state of another spec over, for comparing the rest.
    fn take_desired_state(&mut self, _from: &Self) {}

    /// Moves desired state on to at least that of `old`. Tells whether that changed anything:
    /// then the writer wanted to go back.
    fn keep_forward(&mut self, _old: &Self) -> bool {
        false
    }

    /// Whether this state is a wish for the object to go.
    fn wants_removal(&self) -> bool {
        false
    }

    /// Asks for the end of what the object stands for.
    fn ask_for_the_end(&mut self) {}

    /// The spec as a turn's, to change it.
    fn as_turn_mut(&mut self) -> Option<&mut TurnSpec> {
        None
    }

    /// Why the object, as it stands by now, cannot be changed so; the writer may have seen another.
    fn why_too_late(_old: &Object<Self>, _new: &Self) -> Option<String> {
        None
    }

    /// Whether an object with this status will never do anything again.
    fn has_ended(_status: &Self::Status) -> bool {
        false
    }
}

impl Admissible for AgentSpec {}
impl Admissible for WorkspaceSpec {}
impl Admissible for RoleSpec {}
impl Admissible for NamespaceSpec {}

impl Admissible for PermissionRequestSpec {
    fn why_too_late(old: &Object<Self>, new: &Self) -> Option<String> {
        why_not_decided(old, new)
    }
}

impl Admissible for SessionSpec {
    fn name_from(&self, uid: &Uid) -> Option<Name> {
        Some(naming::session_name(&self.agent, uid))
    }

    fn take_desired_state(&mut self, from: &Self) {
        self.desired_state = from.desired_state;
    }

    fn keep_forward(&mut self, old: &Self) -> bool {
        let wanted = self.desired_state;
        self.desired_state = wanted.max(old.desired_state);
        self.desired_state != wanted
    }

    fn wants_removal(&self) -> bool {
        self.desired_state == DesiredState::Deleted
    }

    fn ask_for_the_end(&mut self) {
        self.desired_state = DesiredState::Deleted;
    }

    fn has_ended(status: &Self::Status) -> bool {
        status.end.is_some()
    }
}

impl Admissible for TurnSpec {
    fn take_desired_state(&mut self, from: &Self) {
        self.desired_state = from.desired_state;
    }

    fn keep_forward(&mut self, old: &Self) -> bool {
        let wanted = self.desired_state;
        self.desired_state = wanted.max(old.desired_state);
        self.desired_state != wanted
    }

    fn ask_for_the_end(&mut self) {
        self.desired_state = TurnDesiredState::Cancelled;
    }

    fn as_turn_mut(&mut self) -> Option<&mut TurnSpec> {
        Some(self)
    }
}
