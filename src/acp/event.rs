//! What a connection tells its owner: protocol-neutral, in the order of the wire.

use serde_json::Value;
use serde_json::value::RawValue;

use super::permission::{Choice, Verdict};
use super::services::Job;
use crate::api::Uid;
use crate::api::session::Capabilities;
use crate::options::Snapshot;
use crate::options::settings::Setting;

/// Something that happened on a connection.
#[derive(Debug)]
pub enum Event {
    /// `initialize` was answered.
    Initialized(Result<Initialized, Failure>),
    /// `authenticate` was answered.
    Authenticated(Result<(), Failure>),
    /// `session/new`, `resume` or `load` was answered. Updates that came before it follow.
    Opened(Result<Opened, Failure>),
    /// A mode, an option or the model was set, or not.
    Configured {
        /// What was to be set.
        what: Setting,
        /// All options as they stand now.
        outcome: Result<Snapshot, Failure>,
    },
    /// The agent changed options by itself; follows the update that said so.
    OptionsChanged(Snapshot),
    /// The whole line of a prompt was written and flushed.
    PromptWritten {
        /// Whose prompt.
        turn: Uid,
    },
    /// `session/cancel` was written; twice at most for a turn.
    CancelWritten {
        /// The turn that ran, if one did.
        turn: Option<Uid>,
    },
    /// The agent reported something.
    Update(Update),
    /// A prompt was answered.
    PromptEnded {
        /// Whose prompt.
        turn: Uid,
        /// How.
        outcome: Result<PromptEnd, Failure>,
    },
    /// `session/close` was answered, in whichever way: the session is not open any more.
    SessionClosed,
    /// The agent asked for permission.
    PermissionAsked(PermissionAsked),
    /// The agent asked for a file or a terminal, and may have it: to be carried out.
    Service(Job),
    /// The agent sent something else that is well formed: a request that was refused, or a
    /// notification that means nothing to us. It counts as activity.
    Traffic {
        /// The method, cut.
        method: String,
        /// The error code that it was answered with, if it was a request.
        refused: Option<i32>,
    },
    /// A line that is no message of the protocol.
    Noise {
        /// Its first 4 KiB.
        line: String,
        /// How many there were, this one included.
        count: u64,
    },
    /// The connection is broken for good. Output is still read to its end, and dropped.
    Fault(Fault),
    /// Standard output ended. The last event: requests without an answer get none.
    Eof,
}

/// Why a connection is broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A line over the limit.
    #[error("the agent wrote a line of more than {limit_bytes} bytes")]
    FrameTooLarge {
        /// The limit.
        limit_bytes: usize,
    },
    /// Too much noise.
    #[error(
        "{lines} lines within a minute were no messages of the protocol, and none between them was"
    )]
    ProtocolFailure {
        /// How many.
        lines: usize,
    },
    /// Standard output could not be read.
    #[error("the agent's standard output could not be read: {message}")]
    Read {
        /// The system's words.
        message: String,
    },
    /// Standard input could not be written; the agent closed it, or ended.
    #[error("the agent's standard input could not be written: {message}")]
    Write {
        /// The system's words.
        message: String,
    },
}

/// An error answer, or the lack of a usable one.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message} ({code})")]
pub struct Failure {
    /// The JSON-RPC code; 0 where the agent sent none.
    pub code: i64,
    /// The agent's words, or ours, at most 4 KiB.
    pub message: String,
    /// The agent's `data`.
    pub data: Option<Value>,
    /// What it means to us.
    pub kind: FailureKind,
}

impl Failure {
    /// What the agent said, with what its `data` adds: at most 8 KiB. Agents word the cause there
    /// and leave the message at "Internal error" (measured: codex-acp's `data.message`).
    #[must_use]
    pub fn words(&self) -> String {
        let data = match &self.data {
            Some(Value::String(text)) => Some(text.as_str()),
            Some(data) => {
                ["message", "details", "error"].iter().find_map(|name| data[*name].as_str())
            }
            None => None,
        };
        match data.map(|text| cut(text.trim(), DATA_WORDS_BYTES_MAX)) {
            Some(text) if !text.is_empty() && !self.message.contains(text) => {
                format!("{}: {text}", self.message)
            }
            Some(_) | None => self.message.clone(),
        }
    }
}

/// How much of the cause in `data` is shown; as much as of a message.
const DATA_WORDS_BYTES_MAX: usize = 4096;

/// What a failure means to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// A login is needed.
    AuthRequired,
    /// The agent does not know the session.
    SessionLost,
    /// The agent does not know the method.
    MethodNotFound,
    /// The agent speaks another version of the protocol.
    ProtocolVersion,
    /// The answer could not be understood.
    Malformed,
    /// We did not ask: the call does not fit the connection's state.
    NotSent,
    /// Everything else.
    Other,
}

/// What an agent said of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Initialized {
    /// The version that is spoken.
    pub protocol_version: u64,
    /// `agentInfo.name`.
    pub agent_name: Option<String>,
    /// `agentInfo.version`.
    pub agent_version: Option<String>,
    /// As far as decisions need them.
    pub capabilities: Capabilities,
    /// `agentCapabilities` as they came; `None` if they are none or too large to be kept.
    pub raw_capabilities: Option<Value>,
    /// How one may log in.
    pub auth_methods: Vec<AuthMethod>,
}

/// A way to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthMethod {
    /// For `authenticate`.
    pub id: String,
    /// For people.
    pub name: String,
    /// For people.
    pub description: Option<String>,
}

/// An open session.
#[derive(Clone, Debug, PartialEq)]
pub struct Opened {
    /// The agent's id of the session.
    pub acp_session_id: String,
    /// Its options.
    pub options: Snapshot,
}

/// What an agent reported.
#[derive(Debug)]
pub struct Update {
    /// The turn that runs, if one does.
    pub turn: Option<Uid>,
    /// Of which sort.
    pub kind: UpdateKind,
    /// `params.update`, as it came.
    pub raw: Box<RawValue>,
    /// The text of an agent message's chunk.
    pub text: Option<String>,
    /// What is said of a tool call.
    pub tool: Option<ToolUpdate>,
    /// Whether it repeats history: it came before the answer to `load` or `resume`.
    pub replay: bool,
    /// Whether it came after the end of a turn and before the next one.
    pub late: bool,
}

/// What an update says of a tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolUpdate {
    /// The call's id.
    pub id: String,
    /// Its title, if the update has one.
    pub title: Option<String>,
    /// Its status, if the update has one.
    pub status: Option<String>,
    /// Its kind, if the update has one.
    pub kind: Option<String>,
}

macro_rules! update_kinds {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)*) => {
        /// The sort of an update.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum UpdateKind {
            $($(#[$doc])* $variant,)*
            /// One that this version does not know, cut. It counts as activity.
            Unknown(String),
        }

        impl UpdateKind {
            /// The sort by its name in `sessionUpdate`.
            #[must_use]
            pub fn parse(text: &str) -> Self {
                match text {
                    $($text => Self::$variant,)*
                    other => Self::Unknown(cut(other, NAME_BYTES_MAX).to_owned()),
                }
            }

            /// The name in `sessionUpdate`.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $text,)*
                    Self::Unknown(text) => text,
                }
            }
        }
    };
}

update_kinds! {
    /// The user's message, echoed or replayed.
    UserMessageChunk = "user_message_chunk",
    /// The answer.
    AgentMessageChunk = "agent_message_chunk",
    /// Reasoning.
    AgentThoughtChunk = "agent_thought_chunk",
    /// A tool call began.
    ToolCall = "tool_call",
    /// A tool call changed.
    ToolCallUpdate = "tool_call_update",
    /// The plan.
    Plan = "plan",
    /// Slash commands.
    AvailableCommandsUpdate = "available_commands_update",
    /// The mode changed.
    CurrentModeUpdate = "current_mode_update",
    /// Options changed.
    ConfigOptionUpdate = "config_option_update",
    /// Title and times.
    SessionInfoUpdate = "session_info_update",
    /// Tokens and cost.
    UsageUpdate = "usage_update",
    /// A child session of the agent's own.
    SubagentUpdate = "subagent_update",
    /// A message to the user that is no answer.
    Notice = "notice",
    /// The context was compacted.
    CompactionUpdate = "compaction_update",
    /// The summary of a compaction.
    CompactionSummaryChunk = "compaction_summary_chunk",
}

/// What a `usage_update` tells; what was not in it, or made no sense, is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// Tokens in the context.
    pub used: Option<u64>,
    /// Tokens that the context may hold.
    pub size: Option<u64>,
    /// What the session has cost so far.
    pub cost: Option<f64>,
    /// In what.
    pub currency: Option<String>,
}

/// How a prompt ended.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptEnd {
    /// As the agent wrote it, cut.
    pub stop_reason: String,
    /// What that means.
    pub reason: StopReason,
    /// The agent's `usage`.
    pub usage: Option<Value>,
}

/// Why an agent stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// It was done.
    EndTurn,
    /// Its model's limit.
    MaxTokens,
    /// Its own limit.
    MaxTurnRequests,
    /// It would not go on.
    Refusal,
    /// It was cancelled.
    Cancelled,
    /// A reason that this version does not know.
    Unknown,
}

impl StopReason {
    /// The reason by its name.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text {
            "end_turn" => Self::EndTurn,
            "max_tokens" => Self::MaxTokens,
            "max_turn_requests" => Self::MaxTurnRequests,
            "refusal" => Self::Refusal,
            "cancelled" => Self::Cancelled,
            _ => Self::Unknown,
        }
    }
}

/// A request for permission and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermissionAsked {
    /// Names the request in `Handle::answer`.
    pub request: u64,
    /// The turn that runs, if one does.
    pub turn: Option<Uid>,
    /// What is known of the tool call.
    pub tool: ToolUpdate,
    /// What was decided, and why.
    pub verdict: Verdict,
    /// The option that was picked; `None`: `cancelled`, or (while it waits) nothing yet.
    pub option: Option<String>,
    /// While it waits: the paths that the tool call is about.
    pub targets: Vec<String>,
    /// While it waits: what the agent offers.
    pub offered: Vec<Choice>,
}

/// How much of a name from an agent is kept.
pub(super) const NAME_BYTES_MAX: usize = 128;

/// The longest prefix of at most `bytes_max` bytes that ends at a character's end.
pub(super) fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_failures_words_hold_the_cause_that_is_in_its_data() {
        let words = |data: Value| {
            let message = "Internal error".to_owned();
            let kind = FailureKind::Other;
            Failure { code: -32603, message, data: Some(data), kind }.words()
        };
        assert_eq!(words(json!({"message": "busy"})), "Internal error: busy");
        assert_eq!(words(json!("busy")), "Internal error: busy");
        assert_eq!(words(json!({"details": " busy\n", "code": 7})), "Internal error: busy");
        for silent in [json!(7), json!(["busy"]), json!({"message": "Internal error"}), json!({})] {
            assert_eq!(words(silent), "Internal error");
        }
    }
}
