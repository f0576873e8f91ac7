//! Why the demonstration did not come to its end.

use std::io;

/// Why the demonstration did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Something that it needs is not there.
    #[error("{0}")]
    Missing(String),
    /// Something around it failed: a directory, a program that does not start.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A step came out differently.
    #[error("{step}\n  expected: {expected}\n  and came: {came}")]
    Unexpected {
        /// The step.
        step: String,
        /// What should have come.
        expected: String,
        /// What came.
        came: String,
    },
    /// A signal asked it to end.
    #[error("stopped by {0}")]
    Interrupted(&'static str),
    /// What it says cannot be written.
    #[error("nobody reads the output any more")]
    NobodyReads(#[from] io::Error),
}

impl Failure {
    pub(super) fn system(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |source| Self::System { doing: doing.into(), source }
    }

    pub(super) fn unexpected(
        step: impl Into<String>,
        expected: impl Into<String>,
        came: impl Into<String>,
    ) -> Self {
        Self::Unexpected { step: step.into(), expected: expected.into(), came: came.into() }
    }
}
