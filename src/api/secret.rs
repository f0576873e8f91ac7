//! Where a secret is, by name: `env:NAME` or `vault:providers/<agent>/<slot>`. Never a value.

/// The longest name of a variable that a reference may give.
const VARIABLE_CHARS_MAX: usize = 256;
/// What the daemon's own variables begin with: no agent gets one of them as a credential.
const OWN_PREFIX: &str = "SPAWNLET_";

/// The name of a secret in the vault: `providers/<agent>/<slot>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretName(String);

impl SecretName {
    /// Reads a name.
    ///
    /// # Errors
    ///
    /// What was expected.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let is_part = |part: &str| {
            (1..=63).contains(&part.len())
                && part.starts_with(|first: char| first.is_ascii_alphanumeric())
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        match text.split('/').collect::<Vec<_>>().as_slice() {
            ["providers", agent, slot] if is_part(agent) && is_part(slot) => {
                Ok(Self(text.to_owned()))
            }
            _ => Err("expected providers/<agent>/<slot>, agent and slot each of 1 to 63 letters, \
                      digits, `-`, `_` or `.`, beginning with a letter or digit"),
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Where a secret is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretRef {
    /// A variable of the daemon's environment, read at each launch.
    Env(String),
    /// An entry of the vault.
    Vault(SecretName),
}

impl SecretRef {
    /// Reads a reference.
    ///
    /// # Errors
    ///
    /// What was expected.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if let Some(name) = text.strip_prefix("env:") {
            let is_name = !name.is_empty()
                && name.len() <= VARIABLE_CHARS_MAX
                && !name.starts_with(|first: char| first.is_ascii_digit())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if name.starts_with(OWN_PREFIX) {
                return Err("SPAWNLET_ variables are the daemon's own; expected another one");
            }
            return if is_name {
                Ok(Self::Env(name.to_owned()))
            } else {
                Err("expected env:NAME, a variable's name of letters, digits and `_`")
            };
        }
        match text.strip_prefix("vault:") {
            Some(name) => SecretName::parse(name).map(Self::Vault),
            None => Err("expected env:NAME or vault:providers/<agent>/<slot>"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_names_a_variable_or_an_entry_of_the_vault() {
        assert_eq!(SecretRef::parse("env:A_KEY"), Ok(SecretRef::Env("A_KEY".to_owned())));
        let name = SecretName::parse("providers/codex/key.1").unwrap();
        assert_eq!(SecretRef::parse("vault:providers/codex/key.1"), Ok(SecretRef::Vault(name)));
        for wrong in [
            "",
            "sk-12345678",
            "env:",
            "env:1A",
            "env:A B",
            "env:SPAWNLET_VAULT_KEY",
            "vault:key",
            "vault:providers/a",
            "vault:providers/../b",
            "vault:providers/a/b/c",
        ] {
            assert!(SecretRef::parse(wrong).is_err(), "{wrong}");
        }
    }
}
