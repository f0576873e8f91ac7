//! Why a verb failed, and the exit code that says so. The codes are sysexits' (BSD sysexits.h)
//! where those fit; they are part of the interface.

use serde_json::Value;

/// How Kubernetes, and we with it, say that somebody else was faster.
const MODIFIED: &str = "the object has been modified";
/// How Kubernetes, and we with it, say that a path is not served.
const NO_RESOURCE: &str = "could not find the requested resource";
/// How the daemon says that a session takes no more turns.
const NO_SESSION: &str = "make a new session";

/// Why a verb failed.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A file or field is wrong.
    #[error("{0}")]
    Data(String),
    /// The daemon said no.
    #[error("{message}")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// The reason of the `Status`.
        reason: String,
        /// What the daemon said.
        message: String,
    },
    /// Nobody answers.
    #[error("{0}")]
    Unreachable(String),
    /// What was waited for did not come.
    #[error("{0}")]
    TryAgain(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
    /// Whoever read our output went away: nobody is there to be told.
    #[error("nobody reads the output any more")]
    NobodyReads,
}

impl Failure {
    /// What the daemon's `Status` says; the body if it is none.
    pub(super) fn of_status(code: u16, body: &[u8]) -> Self {
        let status: Value = serde_json::from_slice(body).unwrap_or_default();
        let part = |name: &str| status.get(name).and_then(Value::as_str).unwrap_or_default();
        let message = match part("message") {
            "" => format!("HTTP {code}: {}", String::from_utf8_lossy(body).trim()),
            message => message.to_owned(),
        };
        Self::Refused { code, reason: part("reason").to_owned(), message }
    }

    /// The process's exit code.
    pub(super) const fn exit_code(&self) -> u8 {
        match self {
            Self::NobodyReads => 0,
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::Data(_) => 65,
            Self::Unreachable(_) => 69,
            Self::TryAgain(_) => 75,
            Self::Refused { code, .. } => match *code {
                400 | 409 | 413 | 415 | 422 => 65,
                401 | 403 | 421 => 77,
                408 | 410 | 429 | 503 | 504 => 75,
                _ => 1,
            },
        }
    }

    /// Whether nothing is printed.
    pub(super) const fn is_silent(&self) -> bool {
        matches!(self, Self::NobodyReads)
    }

    /// What to do next, where the message does not say it.
    pub(super) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Refused { code: 401, .. } => Some(
                "give the token with --token or SPAWNLET_TOKEN, or name the daemon's data \
                 directory with --data-dir",
            ),
            // A path, not an object.
            Self::Refused { code: 404, message, .. } if message.contains(NO_RESOURCE) => Some(
                "a caller's token opens its own sessions, turns and permission requests; all else \
                 needs the operator's (--data-dir, or --token). An older daemon may lack it too: \
                 compare `spawnlet version`",
            ),
            Self::Refused { code: 404, reason, .. } if reason == "NotFound" => {
                Some("`spawnlet get KIND -A` lists what there is")
            }
            Self::Refused { code: 410, .. } => Some("run the command again"),
            // `Conflict` has many causes; only the sentence tells them apart.
            Self::Refused { code: 409, message, .. } if message.contains(MODIFIED) => {
                Some("somebody else was faster; look at the object and run the command again")
            }
            Self::Refused { code: 409, message, .. } if message.contains(NO_SESSION) => {
                Some("`spawnlet prompt --agent AGENT` makes a new session and prompts it")
            }
            _ => None,
        }
    }

    /// Whether the daemon says that there is no such thing.
    pub(super) const fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }

    /// Whether the daemon has forgotten the history that was asked for.
    pub(super) const fn is_expired(&self) -> bool {
        matches!(self, Self::Refused { code: 410, .. })
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            Self::NobodyReads
        } else {
            Self::Failed(format!("the output cannot be written: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_stable() {
        for (code, exit) in [
            (400, 65),
            (401, 77),
            (403, 77),
            (404, 1),
            (409, 65),
            (410, 75),
            (415, 65),
            (422, 65),
            (429, 75),
            (500, 1),
            (503, 75),
        ] {
            assert_eq!(Failure::of_status(code, b"{}").exit_code(), exit, "{code}");
        }
        assert_eq!(Failure::Usage(String::new()).exit_code(), 2);
        assert_eq!(Failure::Unreachable(String::new()).exit_code(), 69);
    }

    #[test]
    fn the_message_of_a_status_is_shown_and_so_is_a_body_that_is_none() {
        let failure = Failure::of_status(422, br#"{"message":"m","reason":"Invalid"}"#);
        assert_eq!(failure.to_string(), "m");
        assert_eq!(Failure::of_status(502, b"bad\n").to_string(), "HTTP 502: bad");
    }
}
