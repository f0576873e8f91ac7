//! Secrets: values that nobody may read back, where they are kept, and how they are kept out of
//! what the daemon writes.
//!
//! Stands beside `runtime` (which binds them to an agent's environment) and `controller` (which
//! writes what an agent says). Invariants: a [`Secret`] has no `Debug` or `Display` that shows it
//! and is zeroized when it goes; no value is logged; the vault gives values to the launch of an
//! agent alone, no API has a way to them. Absent on purpose: secrets of callers' tokens (they are
//! hashed) and any desktop key service.

pub mod redact;
pub mod vault;

use zeroize::Zeroizing;

pub use redact::{Lease, Redactor};
pub use vault::Vault;

/// A value that is not shown. Zeroized when it is dropped; what the system or a library copied of
/// it is not.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes a value in.
    #[must_use]
    pub fn new(value: String) -> Self {
        Self(Zeroizing::new(value))
    }

    /// The value, for the one who must have it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::hash::Hash for Secret {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.expose().hash(state);
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_show_itself() {
        assert_eq!(format!("{:?}", Secret::new("hunter2hunter2".to_owned())), "Secret");
    }
}
