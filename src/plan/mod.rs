//! Pure decisions: from one [`World`] and one reading of the clock to one [`Plan`].
//!
//! Every decision of the loop is here; `controller::act` only carries out. No async, no I/O, no
//! clock of its own, no randomness, no logging, so that every world can be enumerated in a test.
//!
//! Invariants, each held by a test over all enumerated worlds:
//! - total: every world has a plan;
//! - a plan records its intention ([`Step::Record`], always first) before the one effect that
//!   cannot be repeated ([`Step::Launch`], [`Step::Submit`], [`Step::Tell`]), and has at most one of
//!   those;
//! - planning and acting again and again reaches a world that plans no step;
//! - a session that ends, or is being deleted, never starts a process nor sends a prompt;
//! - nothing decides by `status.phase`: [`status`] derives it last, from the rest.

// A new variant has to be thought of everywhere that decides.
#![deny(clippy::wildcard_enum_match_arm)]

pub mod agent;
mod bounds;
pub mod budget;
pub mod capacity;
mod cascade;
mod configure;
pub mod deadlines;
mod draft;
mod ending;
mod first_start;
pub mod introduction;
mod launch;
pub mod line;
mod login;
mod notice;
pub mod permission;
mod sandbox;
mod session;
mod signs;
pub mod spending;
pub mod status;
mod stop;
mod turn;
pub mod usage;
pub mod world;

#[cfg(test)]
mod enumeration;
#[cfg(test)]
mod model;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::api::report::Outcome;
use crate::api::session::RunBudget;
use crate::api::{Agent, Incarnation, Name, PermissionRequest, Session, Turn, Uid};
use crate::clock::Now;
use crate::options::settings::{Setting, Wanted};

pub use cascade::must_tell_children;
pub use draft::{holds_slot, is_taken, next_turn};
pub use launch::instance;
pub use notice::{NOTICES_MAX, Notices, Told, text as notice_text};
pub use world::{OpenAs, Rung, StopCause, World};

/// What one pass does.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// In this order; the first failure ends the pass.
    pub steps: Vec<Step>,
    /// When the session is looked at again, if nothing happens before.
    pub requeue: Requeue,
    /// Whether a turn waits for one of the daemon's slots.
    pub waits_for_slot: bool,
    /// Sessions that must look at their world: it changes with this session's. Children, and the
    /// uppermost session of the tree.
    pub wakes: Vec<Name>,
    /// Whether every session with a process must: their tree has used more than it may by now.
    pub wakes_processes: bool,
    /// How the session stands after the pass, if every step is done.
    pub standing: Outcome,
    /// What is waited for or was decided, in a sentence.
    pub why: String,
    /// What differs from the desired state.
    pub diff: Vec<String>,
}

/// When a session is looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// When something changes.
    AwaitChange,
    /// When its earliest deadline ends.
    After(Duration),
}

/// One effect. Its doc says what must hold before, what it does, and how a second run sees that it
/// is done.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Writes records, all or none, each by compare-and-swap on the version that the world holds.
    /// A second run fails with a conflict and does nothing.
    Record(Box<Change>),
    /// Before: the record says `Launching` with this incarnation. Starts the shim, which waits at
    /// its gate. A second run finds the incarnation in the daemon's hands and does nothing.
    Launch {
        /// Which run.
        incarnation: Incarnation,
    },
    /// Before: the shim's identity is recorded. Lets the shim start the agent. A second opening of
    /// a gate does nothing.
    OpenGate,
    /// Before: the gate is open. Sends `initialize`, once a process.
    Initialize,
    /// Before: opening the session failed for want of a login. Logs in by one of the agent's
    /// methods, once a process; done, the session counts as not opened yet.
    Authenticate {
        /// Its id.
        method: String,
    },
    /// Before: `initialize` was answered. Opens the ACP session, once a process and once more after
    /// a login.
    Open(OpenAs),
    /// Before: the session is open and no setting is under way. Sets one option or mode.
    Set {
        /// For which turn.
        turn: Uid,
        /// What is set.
        setting: Setting,
        /// What the turn wants in all, to judge the outcome by.
        wanted: Box<Wanted>,
    },
    /// Before: the turn is recorded as `Starting` with delivery `Unknown`. Writes its uid to the
    /// journal, then the prompt to the agent. A second run finds the uid in the journal and fails.
    Submit {
        /// Which turn.
        turn: Uid,
        /// What it may use: a change of the session's counts from the next turn on.
        budget: Box<RunBudget>,
    },
    /// Before: the turn is recorded as `Cancelling`. Answers open permission requests with
    /// `cancelled`, then sends `session/cancel`.
    CancelPrompt {
        /// Which turn.
        turn: Uid,
    },
    /// Before: the record of the question says so, or its turn is over and it has none. Answers the
    /// agent; a question that it does not ask any more is left alone.
    AnswerPermission {
        /// Which question.
        request: u64,
        /// What the agent is told.
        answer: permission::Answer,
    },
    /// Takes a rung of the stop ladder. Each may be taken again without harm.
    Stop {
        /// Which rung.
        rung: Rung,
        /// Why, kept with the process until it is gone.
        cause: StopCause,
    },
    /// Before: the record says that there is no process. Lets go of what is known of it.
    Forget,
    /// Before: the notices of these turns are recorded as `dispatched`. Writes them to the open
    /// streams of the external session. A second run finds them told and does nothing.
    Tell(Vec<Turn>),
}

impl Step {
    /// The step's name, as it stands in reports.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Record(change) => change.name(),
            Self::Launch { .. } => "Launch".to_owned(),
            Self::OpenGate => "OpenGate".to_owned(),
            Self::Initialize => "Initialize".to_owned(),
            Self::Authenticate { method } => format!("Authenticate({method})"),
            Self::Open(OpenAs::New) => "OpenNew".to_owned(),
            Self::Open(OpenAs::Resume(_)) => "OpenResume".to_owned(),
            Self::Open(OpenAs::Load(_)) => "OpenLoad".to_owned(),
            Self::Set { setting, .. } => format!("Set({setting})"),
            Self::Submit { .. } => "Submit".to_owned(),
            Self::CancelPrompt { .. } => "CancelPrompt".to_owned(),
            Self::AnswerPermission { answer, .. } => format!("AnswerPermission({answer:?})"),
            Self::Stop { rung, .. } => format!("Stop({rung:?})"),
            Self::Forget => "Forget".to_owned(),
            Self::Tell(turns) => format!("Tell({} turns)", turns.len()),
        }
    }

    /// Whether the effect cannot be taken back or repeated: its intention is recorded before.
    #[must_use]
    pub const fn is_once(&self) -> bool {
        match self {
            Self::Launch { .. } | Self::Submit { .. } | Self::Tell(_) => true,
            Self::Record(_)
            | Self::OpenGate
            | Self::Initialize
            | Self::Authenticate { .. }
            | Self::Open(_)
            | Self::Set { .. }
            | Self::CancelPrompt { .. }
            | Self::AnswerPermission { .. }
            | Self::Stop { .. }
            | Self::Forget => false,
        }
    }
}

/// Records written in one commit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// The session as it shall stand.
    pub session: Option<Session>,
    /// The agent, with its newest start.
    pub agent: Option<Agent>,
    /// Turns as they shall stand.
    pub turns: Vec<Turn>,
    /// A new turn of the session, by which it is told of turns of its children. It gets its uid with
    /// the commit; its name must be free.
    pub wake: Option<Turn>,
    /// Ended turns of its children, as the session's being told of them shall stand.
    pub notices: Vec<Turn>,
    /// Turns that go, with their transcripts and responses.
    pub remove_turns: Vec<Turn>,
    /// Requests for permission as they shall stand. One without a uid is new, and gets it with the
    /// commit; its name must be free.
    pub requests: Vec<PermissionRequest>,
    /// Requests for permission that go.
    pub remove_requests: Vec<PermissionRequest>,
    /// Whether the session goes. Only once no process and no turn of it is left.
    pub removes_session: bool,
    /// What the session's tree has used, as it shall stand; only if this very change uses something.
    pub tree_used: Option<serde_json::Value>,
    /// A turn that is taken and needs one of the daemon's slots; the commit fails if it holds none
    /// and none is free.
    pub take_slot: Option<Uid>,
    /// Turns that give back the slot that they may hold.
    pub free_slots: Vec<Uid>,
    /// The run of the session's process that gets a token: it is made, and its hash becomes part of
    /// the session, in the same commit. The process is launched in the same pass or never.
    pub new_token: Option<Incarnation>,
}

impl Change {
    /// What the change does, for reports.
    #[must_use]
    pub fn name(&self) -> String {
        let mut parts = Vec::new();
        if self.removes_session {
            parts.push("removeSession".to_owned());
        } else if self.session.is_some() {
            parts.push("session".to_owned());
        }
        for turn in &self.turns {
            parts.push(format!("{} {:?}", turn.metadata.name, turn.status.phase));
        }
        for request in &self.requests {
            parts.push(format!("{} {:?}", request.metadata.name, request.status.phase));
        }
        if let Some(wake) = &self.wake {
            parts.push(format!("wake {}", wake.metadata.name));
        }
        for turn in &self.notices {
            let state = turn.status.notice.as_ref().map(|notice| notice.state);
            parts.push(format!("notice of {} {state:?}", turn.metadata.name));
        }
        if !self.remove_requests.is_empty() {
            parts.push(format!("remove {} requests", self.remove_requests.len()));
        }
        if !self.remove_turns.is_empty() {
            parts.push(format!("remove {} turns", self.remove_turns.len()));
        }
        format!("Record({})", parts.join(", "))
    }
}

/// Decides what one pass over a session does.
#[must_use]
pub fn plan(world: &World, now: Now) -> Plan {
    session::plan(world, now)
}
