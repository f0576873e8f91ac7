//! The closed table of public codes. Each has a page in `docs/errors/`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)*) => {
        /// A public code of a turn's or a request's failure.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $text)] $variant,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The code as users see it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

codes! {
    /// The agent sent nothing for too long and confirmed the cancel.
    TurnInactivityTimeout = "TURN_INACTIVITY_TIMEOUT",
    /// The agent did not confirm a cancel; its process tree was stopped.
    TurnCancelUnconfirmed = "TURN_CANCEL_UNCONFIRMED",
    /// The agent answered with an error, a refusal or an unknown stop reason.
    TurnFailed = "TURN_FAILED",
    /// The store could not take the turn's output.
    TurnPersistFailed = "TURN_PERSIST_FAILED",
    /// The turn used up its budget.
    TurnBudgetExhausted = "TURN_BUDGET_EXHAUSTED",
    /// The session's ttl ended in the turn.
    TtlExpired = "TTL_EXPIRED",
    /// The agent's process ended in the turn.
    AgentProcessInvalidated = "AGENT_PROCESS_INVALIDATED",
    /// The daemon was stopped in the turn.
    AppShutdown = "APP_SHUTDOWN",
    /// The daemon crashed in the turn.
    AppRestarted = "APP_RESTARTED",
    /// The parent session cancelled the turn.
    TurnCancelledByParent = "TURN_CANCELLED_BY_PARENT",
    /// Somebody other than the parent cancelled the turn.
    TurnCancelled = "TURN_CANCELLED",
    /// The parent session was deleted.
    ParentSessionDeleted = "PARENT_SESSION_DELETED",
    /// The agent could not be started.
    SpawnAgentStartFailed = "SPAWN_AGENT_START_FAILED",
    /// The agent needs a login.
    SpawnAgentAuthRequired = "SPAWN_AGENT_AUTH_REQUIRED",
    /// A semantic option has no or several candidates.
    SpawnConfigurationRequired = "SPAWN_CONFIGURATION_REQUIRED",
    /// An option could not be set.
    SpawnConfigFailed = "SPAWN_CONFIG_FAILED",
    /// A field of the request is wrong.
    SpawnInvalidRequest = "SPAWN_INVALID_REQUEST",
    /// A folder of the session's scope is gone from disk.
    SessionFolderPathMissing = "SESSION_FOLDER_PATH_MISSING",
    /// A content kind that the agent does not declare.
    PromptCapabilityMismatch = "PROMPT_CAPABILITY_MISMATCH",
    /// An operator's token at a toolset that needs a session's.
    SpawnParentSessionRequired = "SPAWN_PARENT_SESSION_REQUIRED",
    /// The caller's session is ending or gone.
    SpawnParentSessionNotFound = "SPAWN_PARENT_SESSION_NOT_FOUND",
    /// The caller has no such session or response.
    SpawnNotFound = "SPAWN_NOT_FOUND",
    /// No agent of that id is listed.
    SpawnAgentNotFound = "SPAWN_AGENT_NOT_FOUND",
    /// The idempotency key was used with another input.
    SpawnIdempotencyConflict = "SPAWN_IDEMPOTENCY_CONFLICT",
    /// Every turn slot is taken.
    SpawnCapacityExceeded = "SPAWN_CAPACITY_EXCEEDED",
    /// Others were faster again and again.
    SpawnUnavailable = "SPAWN_UNAVAILABLE",
    /// The call was cancelled before the agent got the prompt.
    SpawnCancelled = "SPAWN_CANCELLED",
    /// The caller may not have children at this depth.
    SpawnDepthExceeded = "SPAWN_DEPTH_EXCEEDED",
    /// The caller, or its whole tree, has as many children as it may have.
    SpawnChildrenExceeded = "SPAWN_CHILDREN_EXCEEDED",
    /// The tree made as many sessions in a minute as it may make.
    SpawnRateExceeded = "SPAWN_RATE_EXCEEDED",
    /// More was asked for than the caller itself may do.
    SpawnPermissionDenied = "SPAWN_PERMISSION_DENIED",
    /// The store takes nothing new.
    SpawnStoreUnavailable = "SPAWN_STORE_UNAVAILABLE",
    /// A defect of the daemon.
    SpawnInternalError = "SPAWN_INTERNAL_ERROR",
    /// The folder is not in the scope of the caller.
    SessionFolderRemoved = "SESSION_FOLDER_REMOVED",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_code_has_a_page_and_every_page_a_code() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/errors");
        let pages: BTreeSet<String> = std::fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let codes: BTreeSet<String> = Code::ALL.iter().map(|code| format!("{code}.md")).collect();
        assert_eq!(pages, codes, "docs/errors");
        for code in Code::ALL {
            let page = std::fs::read_to_string(directory.join(format!("{code}.md"))).unwrap();
            for part in [&format!("# {code}\n"), "## What it means\n\n", "## What to do\n\n- "] {
                assert!(page.contains(part), "docs/errors/{code}.md lacks {part:?}");
            }
        }
    }

    #[test]
    fn a_code_is_stored_as_users_see_it() {
        for code in Code::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }
}
