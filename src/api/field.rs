//! Faults in a record: where, what stands there, what was expected.

use std::fmt;

use serde::Serialize;

/// A path to a field, `spec.folders[0].path`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct FieldPath(String);

impl FieldPath {
    /// A path as given, `spec.agent`.
    pub fn new(path: impl Into<String>) -> Self {
        Self(path.into())
    }

    /// The path of a field below this one.
    #[must_use]
    pub fn field(&self, name: &str) -> Self {
        if self.0.is_empty() { Self(name.to_owned()) } else { Self(format!("{}.{name}", self.0)) }
    }

    /// The path of an element of this list.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a field is refused; the words are Kubernetes' cause reasons (`metav1.CauseType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum FieldErrorReason {
    /// The value is malformed or out of range.
    FieldValueInvalid,
    /// The value is none of an enumeration.
    FieldValueNotSupported,
    /// The field must be set.
    FieldValueRequired,
    /// The field must not be set (immutable, exclusive, or not supported yet).
    FieldValueForbidden,
    /// The value stands twice in a list that is a set.
    FieldValueDuplicate,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldError {
    /// Where.
    pub field: FieldPath,
    /// Of which sort.
    pub reason: FieldErrorReason,
    /// What stands there and what was expected, in a sentence.
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// All faults of a record, never empty where it is returned as an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct FieldErrors(pub Vec<FieldError>);

impl FieldErrors {
    /// Adds a fault.
    pub fn push(&mut self, field: FieldPath, reason: FieldErrorReason, message: impl Into<String>) {
        self.0.push(FieldError { field, reason, message: message.into() });
    }

    /// A field whose effect comes in a later version: refused, never ignored.
    pub fn not_supported_yet(&mut self, field: FieldPath) {
        self.push(field, FieldErrorReason::FieldValueForbidden, "not supported yet");
    }

    /// The value if nothing was found.
    ///
    /// # Errors
    ///
    /// Everything that was found.
    pub fn into_result(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }
}

impl fmt::Display for FieldErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for FieldErrors {}
