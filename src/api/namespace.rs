//! `Namespace`: the isolation boundary (core/v1). Nothing is desired of one but that it exists.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FieldErrors, Kind, Object, Spec};

/// A `Namespace` record.
pub type NamespaceRecord = Object<NamespaceSpec>;

/// The namespace that always exists.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Desired state of a `Namespace`: none. The Kubernetes field `finalizers` is not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceSpec {}

/// Observed state of a `Namespace`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceStatus {
    /// `Terminating` while what is in it goes.
    pub phase: NamespacePhase,
}

/// Whether a namespace takes new records (core/v1 `NamespacePhase`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum NamespacePhase {
    /// It does.
    #[default]
    Active,
    /// It is being deleted.
    Terminating,
}

impl Spec for NamespaceSpec {
    type Status = NamespaceStatus;
    const KIND: Kind = Kind::Namespace;

    fn validate(&self) -> Result<(), FieldErrors> {
        Ok(())
    }

    fn validate_update(&self, _old: &Self) -> Result<(), FieldErrors> {
        Ok(())
    }
}
