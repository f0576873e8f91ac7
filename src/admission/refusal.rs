//! Why desired state was not taken. The API makes a Kubernetes `Status` of it, the manifests a
//! fault of a file; both say the same words.

use crate::api::{FieldError, FieldErrors, FieldPath, Kind, Name};
use crate::store::{self, records};

/// Why a write was refused. Nothing of it was done, unless a variant says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such object.
    #[error("{} \"{name}\" not found", resource(*kind))]
    NotFound {
        /// Of which kind.
        kind: Kind,
        /// Which.
        name: Name,
    },
    /// The name is taken.
    #[error("{} \"{name}\" already exists", resource(*kind))]
    AlreadyExists {
        /// Of which kind.
        kind: Kind,
        /// Which.
        name: Name,
    },
    /// The object is not in the state that the write is for.
    #[error("Operation cannot be fulfilled on {}{}: {why}", resource(*kind), quoted(name))]
    Conflict {
        /// Of which kind.
        kind: Kind,
        /// Which.
        name: Name,
        /// What the state is and what to do.
        why: String,
    },
    /// Fields that the daemon cannot carry out, or a change that is not allowed.
    #[error("{}{} is invalid: {errors}", qualified(*kind), quoted(name))]
    Invalid {
        /// Of which kind.
        kind: Kind,
        /// Which; empty if it has no name yet.
        name: Name,
        /// Every fault that was found.
        errors: FieldErrors,
    },
    /// Fields that no kind of ours has, under strict validation.
    #[error("strict decoding error: {}", unknown(fields))]
    UnknownFields {
        /// Their paths.
        fields: Vec<FieldPath>,
    },
    /// The request itself is malformed.
    #[error("{why}")]
    BadRequest {
        /// What is wrong and what was expected.
        why: String,
    },
    /// The object belongs to a manifest file: its spec is written there.
    #[error(
        "ManagedByManifest: {} \"{name}\" belongs to {source_path}; change the file, or take the \
         object over with force",
        resource(*kind)
    )]
    ManagedByManifest {
        /// Of which kind.
        kind: Kind,
        /// Which.
        name: Name,
        /// The file.
        source_path: String,
    },
    /// It is never allowed.
    #[error("{}{} is forbidden: {why}", resource(*kind), quoted(name))]
    Forbidden {
        /// Of which kind.
        kind: Kind,
        /// Which.
        name: Name,
        /// Why.
        why: String,
    },
    /// Users do not write this kind.
    #[error("{} are written by the daemon alone", resource(*kind))]
    MethodNotAllowed {
        /// Which kind.
        kind: Kind,
    },
    /// A limit is reached; it may be different later.
    #[error("{why}")]
    TooManyRequests {
        /// Of which kind.
        kind: Kind,
        /// Which; empty if it has no name yet.
        name: Name,
        /// Which limit, and what to do.
        why: String,
    },
    /// The object is larger than a record may be.
    #[error("{why}")]
    TooLarge {
        /// What, and the limit.
        why: String,
    },
    /// The store did not take it.
    #[error("the store is unavailable: {why}")]
    Unavailable {
        /// What the store said.
        why: String,
        /// Whether it is certain that nothing was written. Otherwise read back before trying again.
        is_surely_not_applied: bool,
    },
    /// The store holds what this program cannot read.
    #[error("{why}")]
    Internal {
        /// What was read.
        why: String,
    },
}

/// `sessions.spawnlet.dev`; core kinds have no group.
fn resource(kind: Kind) -> String {
    match kind.group() {
        "" => kind.plural().to_owned(),
        group => format!("{}.{group}", kind.plural()),
    }
}

/// ` "name"`; nothing where the daemon would have made up the name.
fn quoted(name: &Name) -> String {
    if name.as_str().is_empty() { String::new() } else { format!(" \"{name}\"") }
}

/// `Session.spawnlet.dev`; core kinds have no group.
fn qualified(kind: Kind) -> String {
    match kind.group() {
        "" => kind.as_str().to_owned(),
        group => format!("{kind}.{group}"),
    }
}

fn unknown(fields: &[FieldPath]) -> String {
    let fields: Vec<String> = fields.iter().map(unknown_field).collect();
    fields.join(", ")
}

/// `unknown field "spec.titel"`, as Kubernetes writes it in errors and warnings.
pub(super) fn unknown_field(field: &FieldPath) -> String {
    format!("unknown field \"{field}\"")
}

/// `details` of a Kubernetes `Status`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// The object's name.
    pub name: String,
    /// Its group; empty for core kinds.
    pub group: &'static str,
    /// The kind, or the plural where Kubernetes has it so (`NotFound`, `AlreadyExists`).
    pub kind: &'static str,
    /// The fields at fault.
    pub causes: Vec<FieldError>,
    /// When to try again, in seconds; only where surely nothing was done.
    pub retry_after_secs: Option<u32>,
}

impl Refusal {
    /// One fault of one field.
    pub(super) fn field(kind: Kind, name: &Name, error: FieldError) -> Self {
        Self::Invalid { kind, name: name.clone(), errors: FieldErrors(vec![error]) }
    }

    /// Somebody else was faster.
    pub(super) fn modified(kind: Kind, name: &Name) -> Self {
        Self::Conflict {
            kind,
            name: name.clone(),
            why: "the object has been modified; please apply your changes to the latest version \
                  and try again"
                .to_owned(),
        }
    }

    /// The HTTP status code.
    #[must_use]
    pub const fn code(&self) -> u16 {
        match self {
            Self::UnknownFields { .. } | Self::BadRequest { .. } => 400,
            Self::ManagedByManifest { .. } | Self::Forbidden { .. } => 403,
            Self::NotFound { .. } => 404,
            Self::MethodNotAllowed { .. } => 405,
            Self::AlreadyExists { .. } | Self::Conflict { .. } => 409,
            Self::TooLarge { .. } => 413,
            Self::Invalid { .. } => 422,
            Self::TooManyRequests { .. } => 429,
            Self::Internal { .. } => 500,
            Self::Unavailable { .. } => 503,
        }
    }

    /// The reason in a `Status` (`metav1.StatusReason`).
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::UnknownFields { .. } | Self::BadRequest { .. } => "BadRequest",
            Self::ManagedByManifest { .. } | Self::Forbidden { .. } => "Forbidden",
            Self::NotFound { .. } => "NotFound",
            Self::MethodNotAllowed { .. } => "MethodNotAllowed",
            Self::AlreadyExists { .. } => "AlreadyExists",
            Self::Conflict { .. } => "Conflict",
            Self::TooLarge { .. } => "RequestEntityTooLarge",
            Self::Invalid { .. } => "Invalid",
            Self::TooManyRequests { .. } => "TooManyRequests",
            Self::Internal { .. } => "InternalError",
            Self::Unavailable { .. } => "ServiceUnavailable",
        }
    }

    /// What a `Status` tells beside code, reason and message (`to_string()`).
    #[must_use]
    pub fn details(&self) -> Details {
        match self {
            Self::NotFound { kind, name } | Self::AlreadyExists { kind, name } => {
                Details { kind: kind.plural(), ..of(*kind, name) }
            }
            Self::Invalid { kind, name, errors } => {
                Details { causes: errors.0.clone(), ..of(*kind, name) }
            }
            Self::Conflict { kind, name, .. }
            | Self::ManagedByManifest { kind, name, .. }
            | Self::Forbidden { kind, name, .. }
            | Self::TooManyRequests { kind, name, .. } => of(*kind, name),
            Self::MethodNotAllowed { kind } => of(*kind, &Name::default()),
            Self::Unavailable { is_surely_not_applied, .. } => Details {
                retry_after_secs: is_surely_not_applied.then_some(RETRY_AFTER_SECS),
                ..Details::default()
            },
            Self::UnknownFields { .. }
            | Self::BadRequest { .. }
            | Self::TooLarge { .. }
            | Self::Internal { .. } => Details::default(),
        }
    }

    /// The fields at fault, for a fault of a file that names their places.
    #[must_use]
    pub fn field_errors(&self) -> Vec<FieldError> {
        match self {
            Self::Invalid { errors, .. } => errors.0.clone(),
            Self::UnknownFields { fields } => fields
                .iter()
                .map(|field| FieldError {
                    field: field.clone(),
                    reason: crate::api::field::FieldErrorReason::FieldValueForbidden,
                    message: "unknown field".to_owned(),
                })
                .collect(),
            Self::NotFound { .. }
            | Self::AlreadyExists { .. }
            | Self::Conflict { .. }
            | Self::BadRequest { .. }
            | Self::ManagedByManifest { .. }
            | Self::Forbidden { .. }
            | Self::MethodNotAllowed { .. }
            | Self::TooManyRequests { .. }
            | Self::TooLarge { .. }
            | Self::Unavailable { .. }
            | Self::Internal { .. } => Vec::new(),
        }
    }

    /// Whether the same write may be taken later without anything being changed in it.
    #[must_use]
    pub const fn may_pass_later(&self) -> bool {
        match self {
            Self::Conflict { .. } | Self::TooManyRequests { .. } | Self::Unavailable { .. } => true,
            Self::NotFound { .. }
            | Self::AlreadyExists { .. }
            | Self::Invalid { .. }
            | Self::UnknownFields { .. }
            | Self::BadRequest { .. }
            | Self::ManagedByManifest { .. }
            | Self::Forbidden { .. }
            | Self::MethodNotAllowed { .. }
            | Self::TooLarge { .. }
            | Self::Internal { .. } => false,
        }
    }
}

/// A store that is down (a full disk, a reset) is looked at again within a second.
const RETRY_AFTER_SECS: u32 = 1;

fn of(kind: Kind, name: &Name) -> Details {
    Details {
        name: name.as_str().to_owned(),
        group: kind.group(),
        kind: kind.as_str(),
        causes: Vec::new(),
        retry_after_secs: None,
    }
}

impl From<records::Error> for Refusal {
    fn from(error: records::Error) -> Self {
        match error {
            records::Error::Store(error) => error.into(),
            records::Error::TooManyOps { .. } => Self::TooLarge { why: error.to_string() },
            records::Error::Decode { .. }
            | records::Error::Encode { .. }
            | records::Error::BadRevision { .. } => Self::Internal { why: error.to_string() },
        }
    }
}

impl From<store::Error> for Refusal {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::TooLarge { .. } => Self::TooLarge { why: error.to_string() },
            store::Error::Unavailable(why) => {
                Self::Unavailable { why, is_surely_not_applied: true }
            }
            // A conflict is answered where the write is made; what is left of it is one that
            // repeated tries did not get past.
            store::Error::Unknown(_)
            | store::Error::Conflict { .. }
            | store::Error::Unsupported(_) => {
                Self::Unavailable { why: error.to_string(), is_surely_not_applied: false }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_without_a_name_yet_is_told_without_one() {
        let refused = |name: &str| Refusal::modified(Kind::Turn, &Name::from(name)).to_string();
        assert!(refused("").starts_with("Operation cannot be fulfilled on turns.spawnlet.dev: "));
        assert!(refused("t").contains("on turns.spawnlet.dev \"t\": "));
    }
}
