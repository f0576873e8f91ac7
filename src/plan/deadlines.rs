//! The clocks of a session that runs: each a deadline of its own.
//!
//! When a pass comes late and several are over, the one that ended first counts: a settled session
//! whose idle time ended before its ttl did is idle, not timed out.

use std::time::Duration;

use crate::api::session::{DesiredState, EndOutcome, SessionEnd};
use crate::api::turn::TurnPhase;
use crate::api::{Code, Dur, Session, Time, Turn};
use crate::clock::{Mono, Now};

use super::draft::Draft;
use super::permission;
use super::status::is_active_after_turn;
use super::stop::is_prompt_open;
use super::world::{Call, Live, Stage, World};
use super::{budget, launch};

/// How long a daemon that was stopped reads before it says that an agent said nothing.
pub const READ_FIRST: Duration = Duration::from_secs(2);
/// How long after a deadline the look may come that was asked for by a pass: as long as that took.
const LOOK_LATE: Duration = Duration::from_secs(1);
/// What was recorded while a pass looked is not ahead of it.
const AHEAD_MIN: Duration = Duration::from_secs(1);

/// A clock of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Clock {
    /// No turn for too long.
    Idle,
    /// An agent did not start in time.
    Start,
    /// A turn has used what it may.
    Budget,
    /// The session's whole life.
    Ttl,
    /// No traffic in a turn for too long.
    Inactivity,
}

/// How a deadline stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// It ends in so long.
    In(Duration),
    /// It ended so long ago.
    Over(Duration),
}

impl Due {
    pub(super) fn at(deadline: Time, now: Time) -> Self {
        if now >= deadline {
            Self::Over(now.since(deadline))
        } else {
            Self::In(deadline.since(now))
        }
    }

    /// Of two deadlines the one that ends last.
    fn later(self, other: Self) -> Self {
        match (self, other) {
            (Self::In(one), Self::In(two)) => Self::In(one.max(two)),
            (Self::Over(one), Self::Over(two)) => Self::Over(one.min(two)),
            (Self::In(left), Self::Over(_)) | (Self::Over(_), Self::In(left)) => Self::In(left),
        }
    }

    fn at_mono(deadline: Mono, now: Mono) -> Self {
        if now >= deadline {
            Self::Over(now.since(deadline))
        } else {
            Self::In(deadline.since(now))
        }
    }
}

/// What this daemon's clock has yet to come to did not happen then: an earlier daemon recorded it, and
/// the wall clock was set back since. It counts as now, the latest that it can have been, so that
/// nothing lasts longer than its whole time from here. Who has a deadline is looked at for this when
/// the daemon starts; written down, it is the same after the next start.
pub(super) fn set_right(draft: &mut Draft<'_>) {
    let now = draft.time();
    let is_ahead = |at: Option<Time>| at.is_some_and(|at| at > now.plus(AHEAD_MIN));
    let created = draft.session.metadata.creation_timestamp;
    let status = &mut draft.session.status;
    if is_ahead(status.ttl_counts_from.or(created)) {
        status.ttl_counts_from = Some(now);
    }
    for at in [&mut status.idle_since, &mut status.finished_at] {
        if is_ahead(*at) {
            *at = Some(now);
        }
    }
}

/// The clocks that run now. `session` and `turns`: the record and its open turns, as they stand by now.
#[must_use]
pub fn running(world: &World, session: &Session, turns: &[Turn], now: Now) -> Vec<(Clock, Due)> {
    let mut clocks = Vec::new();
    let has_turn = turns.iter().any(|turn| !turn.status.phase.is_final());
    let spec = &session.spec;
    if let Some(deadline) = session.ttl_ends_at() {
        clocks.push((Clock::Ttl, Due::at(deadline, now.time)));
    }
    let Some(live) = world.live() else { return clocks };
    if !has_turn
        && !spec.idle_timeout.is_zero()
        && let Some(since) = session.status.idle_since
    {
        let idle = spec.idle_timeout.get();
        let mut due = Due::at(since.plus(idle), now.time);
        if is_active_after_turn(live) {
            // It works on by itself: idle is what was quiet for as long.
            due = due.later(Due::at_mono(live.last_activity.plus(idle), now.mono));
        }
        clocks.push((Clock::Idle, due));
    }
    if let Some(deadline) = start_deadline(world, live, turns) {
        clocks.push((Clock::Start, Due::at_mono(deadline, now.mono)));
    }
    if let Some((due, _)) = budget::due(live, turns, now) {
        clocks.push((Clock::Budget, due));
    }
    if let Some(deadline) = silence_deadline(world, live) {
        let deadline = once_heard(world, deadline);
        clocks.push((Clock::Inactivity, Due::at_mono(deadline, now.mono)));
    }
    clocks
}

/// A deadline for something that an agent should have said. A daemon that was stopped finds it over
/// before it has read what the agent said meanwhile: it reads first. What was over before that was
/// looked at in time, and stays over.
pub(super) fn once_heard(world: &World, deadline: Mono) -> Mono {
    match world.daemon.standstill {
        Some(stood) if deadline.plus(LOOK_LATE) >= stood.from => {
            deadline.max(stood.to.plus(READ_FIRST))
        }
        Some(_) | None => deadline,
    }
}

/// When the running start has taken too long.
fn start_deadline(world: &World, live: &Live, turns: &[Turn]) -> Option<Mono> {
    let is_starting = turns.iter().any(|turn| turn.status.phase == TurnPhase::Starting);
    let is_hung = is_starting
        && live.stop.is_none()
        && matches!(live.stage, Stage::Running)
        && !matches!(live.acp.open, Call::Done(_));
    is_hung.then(|| once_heard(world, live.launched_at.plus(launch::start_timeout(world))))
}

/// How long an agent may be silent: in a turn, and while a tool call of it is in progress. `None`:
/// for ever.
fn silence_allowed(world: &World) -> (Option<Duration>, Option<Duration>) {
    let spec = &world.session.spec;
    let allowed = |timeout: Dur| (!timeout.is_zero()).then(|| timeout.get());
    let turn = spec.turn_inactivity_timeout;
    (allowed(turn), allowed(spec.tool_inactivity_timeout.unwrap_or(turn)))
}

/// Whether the agent has a prompt that nobody cancelled, and is not waiting for an answer itself: a
/// cancel has a clock of its own, and so has what an agent asks.
fn is_turn_watched(live: &Live) -> bool {
    is_prompt_open(live)
        && !permission::is_waiting(live)
        && live.prompt.as_ref().is_some_and(|it| it.cancel_asked_at.is_none())
}

/// When the agent last told of a tool call that counts.
///
/// A tool call that is in progress has a clock of its own, from what was last told of it. Once that
/// has ended while the agent went on with other things, the call's completion was lost, and the
/// call counts no more: a turn is never without its watchdog because of it.
pub(super) fn call_in_progress(world: &World, live: &Live) -> Option<Mono> {
    let (_, tool) = silence_allowed(world);
    let is_lost = |call: &Mono| tool.is_some_and(|tool| live.last_activity >= call.plus(tool));
    live.tool_heard.filter(|call| !is_lost(call))
}

/// When the agent has been silent for too long.
fn silence_deadline(world: &World, live: &Live) -> Option<Mono> {
    if !is_turn_watched(live) {
        return None;
    }
    let (turn, tool) = silence_allowed(world);
    let heard = live.last_activity;
    let Some(call) = call_in_progress(world, live) else {
        return turn.map(|turn| heard.plus(turn));
    };
    let tool = tool?;
    let after_traffic = heard.plus(turn.map_or(tool, |turn| turn.min(tool)));
    Some(after_traffic.max(call.plus(tool)))
}

/// How long a turn has to be without progress, whatever else the agent sends, to be shown as
/// stalled. `None`: nobody watches.
pub(super) fn is_stalled(world: &World, live: &Live, now: Mono) -> Option<Due> {
    let (turn, _) = silence_allowed(world);
    let turn = turn.filter(|_| is_turn_watched(live))?;
    Some(Due::at_mono(live.last_progress.plus(turn), now))
}

/// When a turn is to be looked at although no clock of it ends: it is stalled then; or a tool call
/// may have begun, of which nobody is told, and whose clock is the shorter one.
pub(super) fn next_look(world: &World, now: Mono) -> Option<Duration> {
    let live = world.live()?;
    let stalled = match is_stalled(world, live, now) {
        Some(Due::In(wait)) => Some(wait),
        Some(Due::Over(_)) | None => None,
    };
    let (turn, tool) = silence_allowed(world);
    let tool = tool.filter(|&tool| is_turn_watched(live) && turn.is_none_or(|turn| tool < turn));
    stalled.into_iter().chain(tool).min()
}

/// How a session ends by its ttl.
pub(super) fn ttl_end(at: Time) -> SessionEnd {
    SessionEnd {
        outcome: EndOutcome::Stopped,
        reason: "TtlExpired".to_owned(),
        message: "its ttl ended".to_owned(),
        code: Some(Code::TtlExpired),
        at,
    }
}

/// The clock that ended first of those that are over; of equals, the mildest.
#[must_use]
pub fn first_over(clocks: &[(Clock, Due)]) -> Option<Clock> {
    clocks
        .iter()
        .filter_map(|(clock, due)| match due {
            Due::Over(ago) => Some((*clock, *ago)),
            Due::In(_) => None,
        })
        .min_by_key(|(clock, ago)| (std::cmp::Reverse(*ago), *clock))
        .map(|(clock, _)| clock)
}

/// The time until the next clock ends.
#[must_use]
pub fn next_in(clocks: &[(Clock, Due)]) -> Option<Duration> {
    clocks
        .iter()
        .filter_map(|(_, due)| match due {
            Due::In(duration) => Some(*duration),
            Due::Over(_) => None,
        })
        .min()
}

/// Whether an ended session's record has stayed long enough; plans the wait if not.
pub(super) fn is_retention_over(draft: &mut Draft<'_>) -> bool {
    let keep = draft.session.spec.ttl_after_finished;
    let Some(finished_at) = draft.session.status.finished_at else { return false };
    if keep.is_zero() {
        return false;
    }
    match Due::at(finished_at.plus(keep.get()), draft.time()) {
        Due::Over(_) => true,
        Due::In(duration) => {
            draft.wake_in(duration);
            false
        }
    }
}

/// The earliest durable deadline, for the index that a start of the daemon reads.
#[must_use]
pub fn next_durable(session: &Session, turns: &[Turn]) -> Option<Time> {
    let has_turn = turns.iter().any(|turn| !turn.status.phase.is_final());
    let spec = &session.spec;
    let status = &session.status;
    if let Some(finished_at) = status.finished_at {
        return (!spec.ttl_after_finished.is_zero())
            .then(|| finished_at.plus(spec.ttl_after_finished.get()));
    }
    if status.end.is_some() || spec.desired_state != DesiredState::Running {
        return None;
    }
    let idle = match status.idle_since {
        Some(since) if status.process.is_some() && !has_turn && !spec.idle_timeout.is_zero() => {
            Some(since.plus(spec.idle_timeout.get()))
        }
        Some(_) | None => None,
    };
    let restart = status.restarts.next_attempt_at.filter(|_| has_turn);
    let budget = turns.iter().filter(|turn| !turn.status.phase.is_final()).find_map(|turn| {
        let budget = budget::of_turn(&spec.run_budget, turn.spec.run_budget.as_ref());
        let timeout = budget.timeout.filter(|timeout| !timeout.is_zero())?;
        Some(turn.status.dispatched_at?.plus(timeout.get()))
    });
    [session.ttl_ends_at(), idle, restart, budget].into_iter().flatten().min()
}
