//! Requests for permission that wait for somebody: from an agent's question to a record, and from
//! the record back to the agent's answer.
//!
//! Planned last in a pass, when it is decided what becomes of the turns: a question belongs to a
//! turn that runs, and to no other. Invariants: the agent is told nothing before the record says
//! it; a record is ended once; a question that a record stands for is answered as the record says,
//! however often that has to be tried; no record waits without an agent that does.

use std::time::Duration;

use crate::api::agent::Permissions;
use crate::api::permission::{
    Decision, Location, PermissionOption, PermissionPhase, PermissionRequestSpec, ToolCall,
};
use crate::api::turn::{TurnPhase, WaitingFor};
use crate::api::{
    Name, ObjectMeta, OwnerReference, PermissionRequest, Session, Spec as _, Time, Uid, naming,
};
use crate::options::mode_names;

use super::draft::Draft;
use super::world::{Call, Finding, Live, Rung, Stage, World};
use super::{Step, bounds};

/// Records that have ended are kept for people to look at: so many of a session, with those that
/// wait. The oldest go when a new one is made.
pub const KEPT_MAX: usize = 64;
/// Operations that the records of one commit may take, of the 64 that it has in all.
const OPS_MAX: usize = 20;
/// What a new record takes: itself, its uid, its two owners, and that it waits.
const NEW_OPS: usize = 5;
/// What the end of one takes: itself, and that it waits no more.
const END_OPS: usize = 2;
/// What the removal of one takes at most.
const REMOVE_OPS: usize = 6;
/// Records removed in one commit.
const REMOVED_MAX: usize = 8;
/// Questions answered in one pass: half of what may wait for the connection to take it.
const TOLD_MAX: usize = 16;

/// A question of the agent that the connection holds open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Names it towards the connection; of one process no two are the same.
    pub request: u64,
    /// The turn that ran.
    pub turn: Uid,
    /// What the agent wants to do, within its bounds.
    pub tool_call: ToolCall,
    /// What it offers, within its bounds.
    pub options: Vec<PermissionOption>,
}

impl Ask {
    /// A question with the agent's words cut to what a record may hold.
    #[must_use]
    pub fn new(
        request: u64,
        turn: Uid,
        mut tool_call: ToolCall,
        targets: Vec<String>,
        mut options: Vec<PermissionOption>,
    ) -> Self {
        tool_call.locations = targets.into_iter().map(|path| Location { path }).collect();
        bounds::tool_call(&mut tool_call);
        bounds::permission_options(&mut options);
        Self { request, turn, tool_call, options }
    }
}

/// What the agent is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// `allow_once`.
    Allow,
    /// `reject_once`.
    Reject,
    /// `cancelled`.
    Cancel,
}

/// The name of the record of a question; the turn's name and uid are the session's to know.
#[must_use]
pub fn name_of(turn: &Name, ask: &Ask) -> Name {
    naming::permission_name(turn, &ask.turn, ask.request)
}

/// Whether the agent waits for an answer to something.
pub(super) fn is_waiting(live: &Live) -> bool {
    !live.asks.is_empty()
}

/// Makes records of new questions, ends those that are decided, late or of no use any more, and
/// answers the agent as they say.
pub(super) fn settle(draft: &mut Draft<'_>) {
    let world = draft.world;
    let asks = world.live().map_or(&[][..], |live| &live.asks);
    let mut room = OPS_MAX;
    let mut records: Vec<PermissionRequest> = Vec::with_capacity(world.requests.len());
    for seen in &world.requests {
        let ended = if seen.status.phase.is_pending() { end_of(draft, seen) } else { None };
        match ended {
            Some(ended) if room >= END_OPS => {
                room -= END_OPS;
                draft.change.requests.push(ended.clone());
                records.push(ended);
            }
            Some(_) => {
                // The next pass goes on.
                draft.wake_in(Duration::ZERO);
                records.push(seen.clone());
            }
            None => records.push(seen.clone()),
        }
    }
    let mut told = 0;
    for ask in asks {
        let answer = match records.iter().find(|record| is_record_of(record, ask)) {
            Some(record) => answer_of(record),
            None if is_of_running_turn(draft, ask) => {
                records.extend(begin(draft, ask, &mut room));
                None
            }
            None => Some(Answer::Cancel),
        };
        let Some(answer) = answer else { continue };
        if told == TOLD_MAX {
            draft.wake_in(Duration::ZERO);
            break;
        }
        told += tell(draft, ask, answer);
    }
    note(draft, &records);
}

/// Whether a record stands for a question.
fn is_record_of(record: &PermissionRequest, ask: &Ask) -> bool {
    is_of_turn(record, &ask.turn) && name_of(&record.spec.turn, ask) == record.metadata.name
}

fn is_of_turn(record: &PermissionRequest, turn: &Uid) -> bool {
    record.metadata.owner_references.iter().any(|owner| owner.uid == *turn)
}

/// The question that a record stands for, if the agent still asks it.
fn ask_of<'w>(draft: &Draft<'w>, record: &PermissionRequest) -> Option<&'w Ask> {
    let live = draft.world.live()?;
    live.asks.iter().find(|ask| is_record_of(record, ask))
}

/// A record that waits as it ends now, if it does.
fn end_of(draft: &mut Draft<'_>, seen: &PermissionRequest) -> Option<PermissionRequest> {
    let now = draft.time();
    let ask = ask_of(draft, seen);
    let (phase, message) = match (ask, seen.spec.decision, seen.status.expires_at) {
        (None, ..) => (PermissionPhase::Cancelled, "the agent does not ask any more".to_owned()),
        (Some(ask), ..) if !is_of_running_turn(draft, ask) => {
            (PermissionPhase::Cancelled, "its turn is cancelled or over".to_owned())
        }
        (Some(_), Some(decision), _) => {
            (PermissionPhase::Answered, format!("it was decided: {}", decision.as_str()))
        }
        (Some(_), None, Some(end)) if now >= end => {
            (PermissionPhase::TimedOut, "nobody decided in time: it is rejected".to_owned())
        }
        (Some(_), None, Some(end)) => {
            draft.wake_in(end.since(now));
            return None;
        }
        (Some(_), None, None) => return None,
    };
    let mut ended = seen.clone();
    ended.status.phase = phase;
    ended.status.message = message;
    ended.status.finished_at = Some(now);
    Some(ended)
}

/// Whether a question is of a turn that runs and goes on running.
fn is_of_running_turn(draft: &Draft<'_>, ask: &Ask) -> bool {
    let Some(live) = draft.world.live() else { return false };
    let has_prompt =
        live.prompt.as_ref().is_some_and(|prompt| prompt.turn == ask.turn && prompt.end.is_none());
    let is_heard = live.stage == Stage::Running
        && live.stop.is_none()
        && !live.acp.is_eof
        && live.acp.fault.is_none();
    let is_running = draft.turns.iter().any(|turn| {
        turn.metadata.uid == ask.turn
            && turn.status.phase == TurnPhase::Running
            && turn.status.cancel.is_none()
    });
    has_prompt
        && is_heard
        && is_running
        && draft.session.status.end.is_none()
        && !draft.world.daemon.is_stopping
}

/// What the agent is to be told of the question that a record stands for; nothing while it waits.
const fn answer_of(record: &PermissionRequest) -> Option<Answer> {
    match (record.status.phase, record.spec.decision) {
        (PermissionPhase::Pending, _) => None,
        (PermissionPhase::Answered, Some(Decision::Allow)) => Some(Answer::Allow),
        (PermissionPhase::Answered, Some(Decision::Deny) | None)
        | (PermissionPhase::TimedOut, _) => Some(Answer::Reject),
        (PermissionPhase::Cancelled, _) => Some(Answer::Cancel),
    }
}

/// Answers a question, if the agent can be told; how many steps that takes.
fn tell(draft: &mut Draft<'_>, ask: &Ask, answer: Answer) -> usize {
    let hears = draft.world.live().is_some_and(|live| {
        let is_closed = live.stop.as_ref().is_some_and(|stop| stop.rung >= Rung::Eof);
        live.stage == Stage::Running && !is_closed && !live.acp.is_eof && live.acp.fault.is_none()
    });
    // A cancel answers every open question by itself.
    if !hears || (answer == Answer::Cancel && draft.cancels()) {
        return 0;
    }
    draft.act(Step::AnswerPermission { request: ask.request, answer });
    1
}

/// Makes the record of a new question, if this commit has room for it.
fn begin(draft: &mut Draft<'_>, ask: &Ask, room: &mut usize) -> Option<PermissionRequest> {
    let Some(spent) = &draft.world.spent_requests else {
        // Looked up in the next pass, which sees the question in time.
        draft.wake_in(Duration::ZERO);
        return None;
    };
    let record = record(draft, ask)?;
    // A leftover of another turn of that name, which is gone, is in the way.
    let in_the_way = spent.iter().find(|spent| spent.metadata.name == record.metadata.name);
    let gone = draft.change.remove_requests.len();
    let waiting = draft.world.requests.iter().filter(|one| one.status.phase.is_pending()).count();
    let made = draft.change.requests.iter().filter(|one| one.metadata.uid.is_empty()).count();
    let is_too_many = spent.len() + waiting + made >= KEPT_MAX + gone;
    let oldest = spent.get(gone).filter(|_| is_too_many);
    let removed = in_the_way.or(oldest);
    let needs = NEW_OPS + if removed.is_some() { REMOVE_OPS } else { 0 };
    if *room < needs {
        draft.wake_in(Duration::ZERO);
        return None;
    }
    *room -= needs;
    draft.change.remove_requests.extend(removed.cloned());
    if in_the_way.is_some() {
        draft.wake_in(Duration::ZERO);
        return None;
    }
    draft.wake_in(draft.world.daemon.permission_timeout);
    draft.change.requests.push(record.clone());
    Some(record)
}

/// The record of a question; its uid is given to it with the commit.
fn record(draft: &Draft<'_>, ask: &Ask) -> Option<PermissionRequest> {
    let turn = draft.turns.iter().find(|turn| turn.metadata.uid == ask.turn)?;
    let session = &draft.session;
    let now = draft.time();
    let owner = |api_version: &str, kind: &str, of: &ObjectMeta, controls| OwnerReference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: of.name.clone(),
        uid: of.uid.clone(),
        controller: Some(controls),
        block_owner_deletion: Some(true),
    };
    let metadata = ObjectMeta {
        name: name_of(&turn.metadata.name, ask),
        namespace: session.metadata.namespace.clone(),
        generation: 1,
        creation_timestamp: Some(now),
        // The session first: who may see the record is decided by it.
        owner_references: vec![
            owner(&session.api_version, &session.kind, &session.metadata, true),
            owner(&turn.api_version, &turn.kind, &turn.metadata, false),
        ],
        ..ObjectMeta::default()
    };
    let spec = PermissionRequestSpec {
        session: session.metadata.name.clone(),
        turn: turn.metadata.name.clone(),
        tool_call: ask.tool_call.clone(),
        options: ask.options.clone(),
        decision: None,
    };
    debug_assert!(spec.validate().is_ok(), "a record of the daemon's own is valid");
    let mut record = PermissionRequest::new(metadata, spec);
    record.status.expires_at = Some(now.plus(draft.world.daemon.permission_timeout));
    Some(record)
}

/// Says on the turns what they wait for.
fn note(draft: &mut Draft<'_>, records: &[PermissionRequest]) {
    for turn in &mut draft.turns {
        let is_its = |record: &&PermissionRequest| {
            record.status.phase.is_pending() && is_of_turn(record, &turn.metadata.uid)
        };
        let oldest = records
            .iter()
            .filter(is_its)
            .filter(|_| !turn.status.phase.is_final())
            .min_by_key(|record| record.metadata.creation_timestamp);
        turn.status.waiting_for = oldest.map(waiting_for);
    }
}

fn waiting_for(record: &PermissionRequest) -> WaitingFor {
    let call = &record.spec.tool_call;
    let tool = call.title.as_ref().or(call.kind.as_ref()).unwrap_or(&call.id);
    WaitingFor {
        permission: record.metadata.name.clone(),
        tool: tool.clone(),
        since: record.metadata.creation_timestamp.unwrap_or(Time::from_millis(0)),
    }
}

/// Removes the records of a session that is removed; whether none is left.
pub(super) fn remove(draft: &mut Draft<'_>) -> bool {
    // Unknown counts as "something is left".
    let Some(spent) = &draft.world.spent_requests else { return false };
    draft.change.remove_requests.extend(spent.iter().take(REMOVED_MAX).cloned());
    spent.is_empty() && draft.world.requests.iter().all(|record| !record.status.phase.is_pending())
}

/// Whether nothing shows that the policy has any hold on the agent: it may do less than everything,
/// it stands in no mode that says so, and it has not asked once. `None`: cannot be told now.
pub(super) fn is_not_enforced(session: &Session, world: &World) -> Option<bool> {
    let (Some(live), Finding::Found(agent)) = (world.live(), &world.agent) else { return None };
    let is_prompted = live.prompt.is_some() && matches!(live.acp.open, Call::Done(_));
    let spec = &agent.spec;
    let policy = session.spec.permissions.unwrap_or(spec.permissions).min(spec.permissions);
    if policy == Permissions::ApproveAll || live.has_asked {
        return Some(false);
    }
    let stands = live.acp.options.mode();
    let modes = mode_names(policy, &spec.mode_map);
    let is_in_mode =
        stands.is_some_and(|mode| modes.iter().any(|name| name.eq_ignore_ascii_case(mode)));
    if is_in_mode {
        return Some(false);
    }
    is_prompted.then_some(true)
}

/// What binds an agent that is not bound by its policy, in a sentence.
pub(super) fn not_enforced(world: &World) -> &'static str {
    match world.live().and_then(|live| live.sandbox) {
        None => {
            "it may do less than everything, but its agent offers no mode for that and has not asked \
             for any permission: nothing binds it but its own caution"
        }
        Some(_) => {
            "it may do less than everything, but its agent offers no mode for that and has not asked \
             for any permission: only the sandbox binds it"
        }
    }
}
