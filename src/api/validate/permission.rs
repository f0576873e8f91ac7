//! What may be changed of a `PermissionRequest`: its decision. That this is done once, and only
//! while the agent waits, needs the record's status: admission holds it.

use super::column::{self, Change};
use crate::api::permission::PermissionRequestSpec;
use crate::api::{FieldErrors, PermissionRequest};

/// The column "M".
pub(super) const COLUMN: &[(&str, Change)] = &[
    ("session", Change::Immutable),
    ("turn", Change::Immutable),
    ("toolCall", Change::Immutable),
    ("options", Change::Immutable),
    ("decision", Change::Forward),
];

/// Every fault of the change.
pub(crate) fn update(
    old: &PermissionRequestSpec,
    new: &PermissionRequestSpec,
) -> Result<(), FieldErrors> {
    let mut errors = FieldErrors::default();
    column::refuse_changes(&mut errors, old, new, COLUMN);
    errors.into_result()
}

/// Why a decision cannot be taken (back), in a sentence; `None` if it can, or stands already.
#[must_use]
pub fn why_not_decided(old: &PermissionRequest, new: &PermissionRequestSpec) -> Option<String> {
    if new.decision == old.spec.decision {
        return None;
    }
    match old.spec.decision {
        Some(decision) => Some(format!("it was decided: {}", decision.as_str())),
        None if old.status.phase.is_pending() => None,
        None => Some(format!("nobody waits for it any more: it is {:?}", old.status.phase)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::permission::{Decision, PermissionPhase};
    use crate::api::{ObjectMeta, Spec as _};

    fn decided(decision: Option<Decision>) -> PermissionRequestSpec {
        PermissionRequestSpec { decision, ..PermissionRequestSpec::default() }
    }

    #[test]
    fn only_the_decision_can_be_written() {
        let old = decided(None);
        assert!(decided(Some(Decision::Allow)).validate_update(&old).is_ok());
        let mut other = old.clone();
        other.tool_call.title = Some("harmless".to_owned());
        other.turn = "other".into();
        let errors = other.validate_update(&old).unwrap_err();
        let fields: Vec<_> = errors.0.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, ["spec.turn", "spec.toolCall"]);
    }

    #[test]
    fn a_decision_is_taken_once_and_while_the_agent_waits() {
        let record = |decision, phase| {
            let mut record = PermissionRequest::new(ObjectMeta::default(), decided(decision));
            record.status.phase = phase;
            record
        };
        let why = |old: &PermissionRequest, decision| why_not_decided(old, &decided(decision));
        let (allow, deny) = (Some(Decision::Allow), Some(Decision::Deny));
        let open = record(None, PermissionPhase::Pending);
        assert_eq!(why(&open, allow), None);
        let answered = record(allow, PermissionPhase::Answered);
        assert_eq!(why(&answered, allow), None, "the same again is no change");
        assert!(why(&answered, deny).unwrap().contains("allow"));
        assert!(why(&answered, None).is_some(), "not taken back");
        for phase in [PermissionPhase::TimedOut, PermissionPhase::Cancelled] {
            assert!(why(&record(None, phase), deny).is_some());
        }
    }
}
