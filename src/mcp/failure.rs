//! How a tool says no: a code, a sentence, and whether the same call may be tried again.
//!
//! Refused calls have stored nothing. The text goes to a model: it says what to do, and never what
//! the caller must not know. It is text content alone: `structuredContent` is for what the tool's
//! `outputSchema` tells of.

use std::borrow::Cow;

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::json;

use crate::admission::spawn::SpawnRefusal;
use crate::api::Code;
use crate::boundary::escape::{TEXT_BYTES_MAX, escape};
use crate::store::{Error as StoreError, records};

/// Why a call was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: Code,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A field of the input is wrong; the text names it.
    pub(super) fn field(name: &str, what: impl std::fmt::Display) -> Self {
        Self::new(Code::SpawnInvalidRequest, format!("{name}: {what}"))
    }

    /// No such session or response, whoever's it is: one text for all.
    pub(super) fn not_found() -> Self {
        Self::new(
            Code::SpawnNotFound,
            "you have no such session, or it has no such response; use the ids that \
             prompt_to_agent and check_session_status gave you",
        )
    }

    /// Whether the same call may be tried again, unchanged.
    pub(super) const fn is_retryable(&self) -> bool {
        matches!(
            self.code,
            Code::SpawnUnavailable
                | Code::SpawnStoreUnavailable
                | Code::SpawnCapacityExceeded
                | Code::SpawnRateExceeded
                | Code::SpawnChildrenExceeded
        )
    }

    /// The sentence as it is told. It may quote what an agent offers, or what its caller wrote.
    pub(super) fn text(&self) -> Cow<'_, str> {
        escape(&self.message, TEXT_BYTES_MAX)
    }

    pub(super) fn into_result(self) -> CallToolResult {
        let error = json!({"error": {
            "code": self.code,
            "message": self.text(),
            "retryable": self.is_retryable(),
        }});
        CallToolResult::error(vec![ContentBlock::text(error.to_string())])
    }
}

impl From<SpawnRefusal> for Failure {
    fn from(refusal: SpawnRefusal) -> Self {
        Self::new(refusal.code, refusal.message)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        tracing::warn!(%error, "a call cannot read the store");
        Self::new(
            Code::SpawnStoreUnavailable,
            "the daemon's store does not answer now; nothing was done, try again",
        )
    }
}

impl From<records::Error> for Failure {
    fn from(error: records::Error) -> Self {
        match error {
            records::Error::Store(error) => error.into(),
            records::Error::Decode { .. }
            | records::Error::Encode { .. }
            | records::Error::TooManyOps { .. }
            | records::Error::BadRevision { .. } => {
                tracing::error!(%error, "a record cannot be read");
                Self::new(
                    Code::SpawnInternalError,
                    "the daemon failed on this call; its log says more",
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_text_only_and_says_whether_to_try_again() {
        let told = |code| {
            let result = Failure::new(code, "why").into_result();
            assert_eq!(result.is_error, Some(true));
            assert_eq!(result.structured_content, None);
            let [ContentBlock::Text(text)] = result.content.as_slice() else {
                panic!("{result:?}")
            };
            serde_json::from_str::<serde_json::Value>(&text.text).unwrap()
        };
        assert_eq!(
            told(Code::SpawnInvalidRequest),
            json!({"error": {
                "code": "SPAWN_INVALID_REQUEST", "message": "why", "retryable": false,
            }})
        );
        assert_eq!(told(Code::SpawnUnavailable)["error"]["retryable"], true);
        assert_eq!(told(Code::SpawnStoreUnavailable)["error"]["retryable"], true);
    }

    #[test]
    fn what_a_failure_quotes_is_escaped() {
        for quoted in crate::boundary::escape::corpus::strings() {
            let result = Failure::field("config", &quoted).into_result();
            let [ContentBlock::Text(text)] = result.content.as_slice() else {
                panic!("{result:?}")
            };
            let told: serde_json::Value = serde_json::from_str(&text.text).unwrap();
            let message = told["error"]["message"].as_str().unwrap();
            assert_eq!(crate::boundary::escape::corpus::fault(message), None);
        }
    }

    #[test]
    fn what_the_store_says_of_itself_is_not_told() {
        let failure = Failure::from(StoreError::Unavailable("/home/me/spawnlet.db: EIO".into()));
        assert_eq!(failure.code, Code::SpawnStoreUnavailable);
        assert!(!failure.message.contains("/home"), "{}", failure.message);
    }
}
