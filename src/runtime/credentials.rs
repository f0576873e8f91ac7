//! The credentials of an agent with `authMode: bound-secret`: from its slots to values, at launch.
//!
//! Invariants: a failure names the slot and where its value should be, never a value; what is
//! optional and absent is left out. Every launch reads anew, so that a secret that was set again
//! counts for the next process.

use std::ffi::OsString;

use crate::api::AgentSpec;
use crate::api::agent::{AuthMode, CredentialSlot};
use crate::api::secret::SecretRef;
use crate::secret::{Secret, Vault};

/// A required credential is not there, or one cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("credential slot {slot:?} ({reference}): {problem}")]
pub struct Error {
    /// The slot's name.
    pub slot: String,
    /// Where its value should be.
    pub reference: String,
    /// What is wrong, and what to do.
    pub problem: String,
}

/// The variables of an agent's credentials. `env` reads the daemon's environment.
///
/// # Errors
///
/// The first slot that cannot be filled.
pub fn bind(
    spec: &AgentSpec,
    env: impl Fn(&str) -> Option<OsString>,
    vault: &Vault,
) -> Result<Vec<(String, Secret)>, Error> {
    if spec.auth_mode != AuthMode::BoundSecret {
        return Ok(Vec::new());
    }
    let mut bound = Vec::with_capacity(spec.credential_slots.len());
    for slot in &spec.credential_slots {
        let error = |problem: String| Error {
            slot: slot.name.clone(),
            reference: slot.secret_ref.clone(),
            problem,
        };
        match find(slot, &env, vault).map_err(error)? {
            Some(value) => bound.push((slot.target_env.clone(), value)),
            None if slot.required => return Err(error(what_to_do(slot))),
            None => {}
        }
    }
    Ok(bound)
}

fn find(
    slot: &CredentialSlot,
    env: &impl Fn(&str) -> Option<OsString>,
    vault: &Vault,
) -> Result<Option<Secret>, String> {
    match SecretRef::parse(&slot.secret_ref).map_err(str::to_owned)? {
        SecretRef::Env(name) => match env(&name).filter(|value| !value.is_empty()) {
            None => Ok(None),
            // Without the value, which the error of the conversion holds.
            Some(value) => match value.into_string() {
                Ok(text) => Ok(Some(Secret::new(text))),
                Err(_) => Err("its value is no UTF-8".to_owned()),
            },
        },
        SecretRef::Vault(name) => vault.get(&name).map_err(|error| error.to_string()),
    }
}

fn what_to_do(slot: &CredentialSlot) -> String {
    match slot.secret_ref.strip_prefix("vault:") {
        Some(name) => {
            format!(
                "it is required, and the vault has no such secret; `spawnlet secret set {name}`"
            )
        }
        None => "it is required, and the daemon's environment has no such variable".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::secret::SecretName;

    fn slot(name: &str, reference: &str, required: bool) -> CredentialSlot {
        CredentialSlot {
            name: name.to_owned(),
            target_env: name.to_uppercase(),
            secret_ref: reference.to_owned(),
            required,
        }
    }

    fn agent(slots: Vec<CredentialSlot>) -> AgentSpec {
        AgentSpec {
            auth_mode: AuthMode::BoundSecret,
            credential_slots: slots,
            ..AgentSpec::default()
        }
    }

    fn env(name: &str) -> Option<OsString> {
        (name == "GIVEN").then(|| "canary-env".into())
    }

    #[test]
    fn slots_are_filled_from_the_environment_and_the_vault() {
        let dir = tempfile::tempdir().unwrap();
        let vault = Vault::new(dir.path(), None);
        let name = SecretName::parse("providers/a/key").unwrap();
        vault.put(&name, &Secret::new("canary-vault".to_owned())).unwrap();
        let mut spec = agent(vec![
            slot("one", "env:GIVEN", true),
            slot("two", "vault:providers/a/key", true),
            slot("three", "env:ABSENT", false),
            slot("four", "vault:providers/a/absent", false),
        ]);
        let bound = bind(&spec, env, &vault).unwrap();
        let bound: Vec<(&str, &str)> =
            bound.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
        assert_eq!(bound, [("ONE", "canary-env"), ("TWO", "canary-vault")]);
        spec.auth_mode = AuthMode::NativeCli;
        assert_eq!(bind(&spec, env, &vault), Ok(Vec::new()));
    }

    #[test]
    fn a_required_one_that_is_missing_is_named_without_any_value() {
        let dir = tempfile::tempdir().unwrap();
        let vault = Vault::new(dir.path(), None);
        for (reference, says) in [
            ("env:ABSENT", "environment has no such variable"),
            ("vault:providers/a/absent", "spawnlet secret set providers/a/absent"),
        ] {
            let slots = vec![slot("one", "env:GIVEN", true), slot("two", reference, true)];
            let error = bind(&agent(slots), env, &vault).unwrap_err().to_string();
            assert!(error.contains("\"two\"") && error.contains(says), "{error}");
            assert!(!error.contains("canary"), "{error}");
        }
    }
}
