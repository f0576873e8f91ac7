//! From a taken turn to an open ACP session: launch and handshake; failed starts and their pauses.
//!
//! Each call looks at how far the process is and plans the one next thing. Nothing waits in here:
//! an unanswered request is a state, and the start's deadline bounds them all.

use std::time::Duration;

use super::configure::configure;
use crate::api::agent::LastStart;
use crate::api::session::{Capabilities, ProcessRecord, ProcessState};
use crate::api::turn::{Admission, CancelBy};
use crate::api::{AgentSpec, Code, Dur, TurnSpec};
use crate::clock::Mono;

use super::draft::Draft;
use super::turn::{Ending, start_failure_code};
use super::world::{
    Call, CallFailure, CallFailureKind, Finding, Live, OpenAs, Stage, StartFailure, StopCause,
    World,
};
use super::{Step, bounds, deadlines, ending, login, sandbox, stop};

/// The protocol version that we send and take.
pub(super) const PROTOCOL_VERSION: u64 = 1;
/// Pauses before the next start after 1, 2, 3 and 4 failed ones; after the fifth the session waits
/// for a new generation or a new prompt.
const RESTART_PAUSES_MS: [u64; 4] = [0, 500, 2000, 5000];
/// Reasons of failed starts that do not go away by themselves.
const LASTING: [&str; 3] = ["AuthRequired", "ProtocolVersion", sandbox::UNAVAILABLE];
/// How often a reference that does not resolve is looked at again without a change of it.
const UNRESOLVED_RECHECK_MAX: Duration = Duration::from_secs(60);

/// How often an agent's record tells of a start.
const START_NOTED_EVERY: Duration = Duration::from_secs(60);

/// Whether everything that a start needs is there; plans what to wait for if not.
pub(super) fn can_start(draft: &mut Draft<'_>) -> bool {
    let world = draft.world;
    let missing = match (&world.agent, &world.scope) {
        (Finding::Missing(missing), _) => Some(("AgentResolved", missing)),
        (_, Finding::Missing(missing)) => Some(("ScopeResolved", missing)),
        (Finding::Unknown, _) | (_, Finding::Unknown) => return false,
        (Finding::Found(_), Finding::Found(_)) => None,
    };
    if let Some((condition, missing)) = missing {
        let since = draft
            .session
            .status
            .conditions
            .get(condition)
            .map_or(Duration::ZERO, |found| draft.time().since(found.last_transition_time));
        draft.because(format!("waits: {}", missing.message));
        draft.wake_in(since.clamp(Duration::from_secs(1), UNRESOLVED_RECHECK_MAX));
        return false;
    }
    let restarts = &draft.session.status.restarts;
    if is_crash_looping(draft) {
        draft.because(format!(
            "CrashLoopBackOff ({}): the agent is not started again by itself: {}; a change of the \
             agent or the session, or a new prompt, tries again",
            restarts.reason, restarts.last_error
        ));
        return false;
    }
    // A wall clock that was set back between two daemons makes no pause longer.
    let is_set_back = restarts.failed_at.is_some_and(|failed| failed > draft.time());
    if let Some(at) = restarts.next_attempt_at.filter(|&at| at > draft.time() && !is_set_back) {
        draft.because(format!("waits for the next start: {}", restarts.last_error));
        draft.wake_in(at.since(draft.time()));
        return false;
    }
    true
}

/// Why a turn that must not wait ends instead of waiting for what keeps its agent from being
/// started. None: only a pause, which it waits out.
pub(super) fn why_never(draft: &Draft<'_>) -> Option<Ending<'static>> {
    let (code, message) = match (&draft.world.agent, &draft.world.scope) {
        (Finding::Missing(missing), _) => (Code::SpawnAgentStartFailed, missing.message.clone()),
        (_, Finding::Missing(missing)) => (Code::SessionFolderPathMissing, missing.message.clone()),
        (Finding::Found(_) | Finding::Unknown, Finding::Found(_) | Finding::Unknown)
            if is_crash_looping(draft) =>
        {
            let restarts = &draft.session.status.restarts;
            (start_failure_code(&restarts.reason), restarts.last_error.clone())
        }
        (Finding::Found(_) | Finding::Unknown, Finding::Found(_) | Finding::Unknown) => {
            return None;
        }
    };
    Some(Ending::Refused { code, message })
}

/// Whether starts have failed too often to try again by itself.
pub(super) fn is_crash_looping(draft: &Draft<'_>) -> bool {
    usize::try_from(draft.session.status.restarts.count)
        .is_ok_and(|count| count > RESTART_PAUSES_MS.len())
}

/// Counts a failed start and says when the next one may be tried.
pub(super) fn count_failed_start(draft: &mut Draft<'_>, failure: &StartFailure) {
    let now = draft.time();
    let generation = draft.session.metadata.generation;
    let agent_generation = match &draft.world.agent {
        Finding::Found(agent) => agent.metadata.generation,
        Finding::Missing(_) | Finding::Unknown => 0,
    };
    let latest_prompt = draft.turns.last().map(|turn| turn.metadata.uid.clone());
    let restarts = &mut draft.session.status.restarts;
    // A later one may have ended since.
    restarts.latest_prompt = latest_prompt.max(restarts.latest_prompt.take());
    restarts.count = if LASTING.contains(&failure.reason) {
        // Trying again changes nothing until somebody logs in, or changes the agent or the machine.
        u32::try_from(RESTART_PAUSES_MS.len()).unwrap_or(u32::MAX).saturating_add(1)
    } else {
        restarts.count.saturating_add(1)
    };
    restarts.generation = generation;
    restarts.agent_generation = agent_generation;
    restarts.failed_at = Some(now);
    failure.reason.clone_into(&mut restarts.reason);
    restarts.last_error.clone_from(&failure.message);
    let pause = usize::try_from(restarts.count)
        .ok()
        .and_then(|count| RESTART_PAUSES_MS.get(count.saturating_sub(1)));
    restarts.next_attempt_at = pause.map(|&ms| now.plus(Duration::from_millis(ms)));
    if failure.reason == "AuthRequired" {
        login::note_required(draft, &failure.message);
    }
}

/// A new generation of session or agent, or a new prompt, wipes out the failed starts.
pub(super) fn forgive(draft: &mut Draft<'_>) {
    let restarts = &draft.session.status.restarts;
    if restarts.count == 0 {
        return;
    }
    let agent_is_newer = match &draft.world.agent {
        Finding::Found(agent) => agent.metadata.generation > restarts.agent_generation,
        Finding::Missing(_) | Finding::Unknown => false,
    };
    let session_is_newer = draft.session.metadata.generation > restarts.generation;
    // The prompts that waited through the failures do not count as new. By their uids: the wall clock
    // may have been set back since.
    let newest = draft.turns.last().map(|turn| &turn.metadata.uid);
    let prompt_is_newer = is_crash_looping(draft) && newest > restarts.latest_prompt.as_ref();
    if agent_is_newer || session_is_newer || prompt_is_newer {
        draft.session.status.restarts = crate::api::session::Restarts::default();
    }
}

/// Whether a turn ends rather than waits: for a slot (it has one) or for what is missing.
pub(super) fn must_not_wait(turn: &TurnSpec) -> bool {
    turn.admission == Admission::Immediate
}

/// How far a start is.
pub(super) enum Progress<'w> {
    /// It cannot begin now.
    Blocked,
    /// The next thing of it was planned, or is waited for.
    UnderWay,
    /// The agent has opened the session.
    Open(&'w Live),
}

/// Plans the next thing on the way from the taken turn to its dispatched prompt.
pub(super) fn progress(draft: &mut Draft<'_>, index: usize) {
    match advance(draft) {
        Progress::Blocked => {
            match why_never(draft).filter(|_| must_not_wait(&draft.turns[index].spec)) {
                Some(never) => ending::turn(draft, index, &never),
                None => {
                    draft.put_back(index, "BackOff", "the agent cannot be started now".to_owned());
                }
            }
        }
        Progress::UnderWay => {}
        Progress::Open(live) => configure(draft, index, live),
    }
}

/// Plans the next thing on the way to an open ACP session.
pub(super) fn advance<'w>(draft: &mut Draft<'w>) -> Progress<'w> {
    let world = draft.world;
    let Some(live) = world.live() else {
        return if can_start(draft) {
            launch(draft);
            Progress::UnderWay
        } else {
            Progress::Blocked
        };
    };
    match &live.stage {
        Stage::Gated { identity } => {
            if let Some(process) = &mut draft.session.status.process {
                identity.write_to(process);
                process.state = ProcessState::Running;
            }
            draft.because("the agent is being started");
            draft.act(Step::OpenGate);
            draft.act(Step::Initialize);
        }
        Stage::Running => match handshake_failure(draft, live) {
            Some(failure) => stop::climb(draft, live, &StopCause::StartFailed(failure)),
            None => return handshake(draft, live),
        },
        Stage::Exited { at, .. } => stop::await_empty(draft, live, *at),
        Stage::Empty { .. } | Stage::Unprovable => {
            stop::climb(draft, live, &StopCause::Broken);
        }
    }
    Progress::UnderWay
}

fn launch(draft: &mut Draft<'_>) {
    let world = draft.world;
    let Finding::Found(scope) = &world.scope else { return };
    let status = &mut draft.session.status;
    status.incarnation = status.incarnation.next();
    if status.scope.is_none() {
        status.scope = Some((**scope).clone());
    }
    let incarnation = status.incarnation;
    status.process = Some(ProcessRecord {
        state: ProcessState::Launching,
        attempt: incarnation.0,
        boot_id: world.daemon.boot_id.clone(),
        instance: instance(
            &world.daemon.store_id,
            draft.session.metadata.uid.as_str(),
            incarnation.0,
        ),
        shim_pid: None,
        pid: None,
        start_time: None,
        pidfd_inode: None,
        cgroup: None,
    });
    // What earlier runs had is worth nothing from here on.
    draft.session.status.tokens.retain(|token| token.incarnation.is_none());
    if draft.session.spec.delegation.enabled {
        draft.change.new_token = Some(incarnation);
    }
    draft.because("the agent is being started");
    draft.act(Step::Launch { incarnation });
}

/// The nonce of a process tree: it names store, session and run, so that a leftover tells whose it
/// was.
#[must_use]
pub fn instance(store_id: &str, session: &str, incarnation: u64) -> String {
    format!("{store_id}.{session}.{incarnation}")
}

/// Why the start has failed, if it has.
fn handshake_failure(draft: &Draft<'_>, live: &Live) -> Option<StartFailure> {
    if let Call::Done(initialized) = &live.acp.initialize
        && initialized.protocol_version != PROTOCOL_VERSION
    {
        return Some(StartFailure {
            reason: "ProtocolVersion",
            message: format!(
                "the agent speaks protocol version {}, expected {PROTOCOL_VERSION}",
                initialized.protocol_version
            ),
        });
    }
    if let Call::Failed(failure) = &live.acp.initialize {
        return Some(refused(draft, "initialize", failure, live));
    }
    if let Call::Failed(failure) = &live.acp.open
        && failure.kind != CallFailureKind::SessionLost
        && login::method(draft, live).is_none()
    {
        return Some(refused(draft, "opening the session", failure, live));
    }
    if let Call::Done(opened) = &live.acp.open
        && opened.acp_session_id.len() > bounds::ACP_SESSION_ID_BYTES_MAX
    {
        return Some(StartFailure {
            reason: "HandshakeFailed",
            message: format!(
                "the agent's id of the session has {} bytes; at most {} are kept",
                opened.acp_session_id.len(),
                bounds::ACP_SESSION_ID_BYTES_MAX
            ),
        });
    }
    if live.acp.is_eof || live.acp.fault.is_some() {
        return Some(StartFailure {
            reason: "AgentClosedOutput",
            message: with_stderr(
                format!(
                    "the agent closed its standard output before it was ready{}",
                    unanswered(live)
                ),
                live,
            ),
        });
    }
    let allowed = start_timeout(draft.world);
    if let Some(call) = &live.acp.setting
        && time_left(draft, call.asked_at).is_zero()
    {
        let allowed = humantime::format_duration(allowed);
        let message = format!("the agent did not set {} within {allowed}", call.setting);
        return Some(StartFailure { reason: "StartTimeout", message: with_stderr(message, live) });
    }
    if !matches!(live.acp.open, Call::Done(_)) && time_left(draft, live.launched_at).is_zero() {
        let (stage, allowed) = (late_stage(live), humantime::format_duration(allowed));
        let message = match stage {
            None => format!("launch: the agent's process did not run within {allowed}"),
            Some(call) => format!("the agent did not answer {call} within {allowed}"),
        };
        return Some(StartFailure { reason: "StartTimeout", message: with_stderr(message, live) });
    }
    None
}

/// The request that a start hangs at; `None`: the process itself does not run yet.
const fn late_stage(live: &Live) -> Option<&'static str> {
    match (&live.acp.initialize, &live.acp.opened_as) {
        (Call::Done(_), Some(OpenAs::Resume(_))) => Some("session/resume"),
        (Call::Done(_), Some(OpenAs::Load(_))) => Some("session/load"),
        (Call::Done(_), Some(OpenAs::New) | None) => Some("session/new"),
        (Call::NotMade | Call::InFlight | Call::Failed(_), _) if live.pid.is_none() => None,
        (Call::NotMade | Call::InFlight | Call::Failed(_), _) => Some("initialize"),
    }
}

/// The same as the end of a sentence, where the agent was asked anything.
pub(super) fn unanswered(live: &Live) -> String {
    late_stage(live).map(|call| format!(", without an answer to {call}")).unwrap_or_default()
}

fn refused(draft: &Draft<'_>, what: &str, failure: &CallFailure, live: &Live) -> StartFailure {
    if failure.kind == CallFailureKind::AuthRequired {
        return login::required(draft, failure, live);
    }
    if failure.kind == CallFailureKind::ProtocolVersion {
        return StartFailure { reason: "ProtocolVersion", message: failure.message.clone() };
    }
    StartFailure {
        reason: "HandshakeFailed",
        message: with_stderr(
            format!("{what} failed with error {}: {}", failure.code, failure.message),
            live,
        ),
    }
}

pub(super) fn with_stderr(message: String, live: &Live) -> String {
    if live.stderr_tail.is_empty() {
        message
    } else {
        format!("{message}; last standard error: {}", live.stderr_tail)
    }
}

/// How long launch, `initialize` and opening may take together.
pub(super) fn start_timeout(world: &World) -> Duration {
    let Finding::Found(agent) = &world.agent else {
        return AgentSpec::default().start_timeout.get();
    };
    agent.spec.effective_start_timeout(agent.status.last_start.is_some()).get()
}

/// How long what began then may still take.
pub(super) fn time_left(draft: &Draft<'_>, since: Mono) -> Duration {
    let deadline = since.plus(start_timeout(draft.world));
    deadlines::once_heard(draft.world, deadline).since(draft.now.mono)
}

fn handshake<'w>(draft: &mut Draft<'w>, live: &'w Live) -> Progress<'w> {
    let left = time_left(draft, live.launched_at);
    match (&live.acp.initialize, &live.acp.open) {
        (Call::NotMade, _) => {
            draft.act(Step::Initialize);
            draft.wake_in(left);
        }
        (Call::InFlight | Call::Failed(_), _) => {
            draft.because("waits for the agent's answer to initialize");
            draft.wake_in(left);
        }
        (Call::Done(initialized), Call::NotMade) => {
            draft.session.status.capabilities = Some(initialized.capabilities.clone());
            open(draft, live, &initialized.capabilities);
            draft.wake_in(left);
        }
        (Call::Done(_), Call::InFlight) => {
            draft.because("waits for the agent to open the session");
            draft.wake_in(left);
        }
        (Call::Done(_), Call::Failed(failure)) => match login::method(draft, live) {
            Some(method) => {
                login::answer(draft, live, method);
                draft.wake_in(left);
            }
            None => lost(draft, live, &failure.message),
        },
        (Call::Done(_), Call::Done(opened)) => {
            draft.session.status.acp_session_id = Some(opened.acp_session_id.clone());
            note_start(draft, live);
            return Progress::Open(live);
        }
    }
    Progress::UnderWay
}

/// A start that succeeded is told on the agent, with what the agent said of itself, at most once a
/// minute: from then on a start that may download first has no more time than others.
fn note_start(draft: &mut Draft<'_>, live: &Live) {
    let Finding::Found(agent) = &draft.world.agent else { return };
    let took = draft.now.mono.since(live.launched_at);
    let is_news = agent.status.last_start.as_ref().is_none_or(|last| {
        last.at < draft.time() && draft.time().since(last.at) >= START_NOTED_EVERY
    });
    let was_locked_out = login::is_required(agent);
    let was_asked_for = draft.session.metadata.is_first_start();
    if (is_news || was_locked_out || was_asked_for) && live.prompt.is_none() {
        let mut agent = (**agent).clone();
        login::note_open(&mut agent, draft.time());
        let took = Dur::from_millis(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        agent.status.last_start = Some(LastStart { at: draft.time(), took });
        if let Call::Done(told) = &live.acp.initialize {
            agent.status.version.clone_from(&told.version);
            agent.status.capabilities.clone_from(&told.declared);
        }
        draft.change.agent = Some(agent);
    }
}

fn open(draft: &mut Draft<'_>, live: &Live, capabilities: &Capabilities) {
    let status = &draft.session.status;
    let how = match &status.acp_session_id {
        // Agents cannot load a session that was never prompted; a new one loses nothing.
        Some(id) if status.prompted && capabilities.resume => OpenAs::Resume(id.clone()),
        Some(id) if status.prompted && capabilities.load => OpenAs::Load(id.clone()),
        // It could when the session was prompted: a new one would forget without a word.
        Some(_) if status.prompted => {
            lost(draft, live, "it can neither resume nor load sessions any more");
            return;
        }
        Some(_) | None => OpenAs::New,
    };
    draft.because("the session is being opened");
    draft.act(Step::Open(how));
}

/// The agent no longer knows the session.
fn lost(draft: &mut Draft<'_>, live: &Live, why: &str) {
    let had_memory = draft.session.status.prompted;
    draft.session.status.acp_session_id = None;
    let may_begin_anew = !had_memory
        || draft.session.spec.on_session_lost == crate::api::session::OnSessionLost::New;
    if may_begin_anew {
        draft.session.status.prompted = false;
        draft.session.status.introduced = false;
        draft.session.status.has_lost_memory |= had_memory;
        draft.because("the agent no longer knows the session; a new one takes its place");
        draft.act(Step::Open(OpenAs::New));
        return;
    }
    let message = format!(
        "the agent no longer knows the session ({why}); with onSessionLost: new it would go on without memory"
    );
    draft.because(message.clone());
    ending::expire(draft, "SessionLost", message);
    stop::climb(draft, live, &StopCause::End);
}

/// Who asked, as a sentence.
pub(super) const fn asked_by(by: CancelBy) -> &'static str {
    match by {
        CancelBy::Parent => "the parent session cancelled it",
        CancelBy::Operator => "it was cancelled by an operator",
        CancelBy::FleetCancel => "another session cancelled it",
        CancelBy::Interrupt => "a steer interrupted it",
        CancelBy::CallCancelled => "the call that made it was cancelled",
        CancelBy::ParentStopped => "the parent session stopped",
        CancelBy::ParentDeleted => "the parent session was deleted",
        CancelBy::Ttl => "the session's ttl ended",
        CancelBy::Budget => "its budget is used up",
        CancelBy::Inactivity => "the agent sent nothing for too long",
        CancelBy::Agent => "the agent ended it",
    }
}
