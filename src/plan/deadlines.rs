//! The clocks of a session that runs: each a deadline of its own.
//!
//! When a pass comes late and several are over, the one that ended first counts: a settled session
//! whose idle time ended before its ttl did is idle, not timed out.

use std::time::Duration;

use crate::api::session::{DesiredState, EndOutcome, SessionEnd};
use crate::api::{Code, Time};
use crate::clock::{Mono, Now};

use super::draft::Draft;
use super::stop::is_prompt_open;
use super::world::{Live, World};

/// A clock of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Clock {
    /// No turn for too long.
    Idle,
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
    fn at(deadline: Time, now: Time) -> Self {
        if now >= deadline {
            Self::Over(now.since(deadline))
        } else {
            Self::In(deadline.since(now))
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

/// The clocks that run now. `has_turn`: whether a turn has or waits for the session.
#[must_use]
pub fn running(
    world: &World,
    idle_since: Option<Time>,
    has_turn: bool,
    now: Now,
) -> Vec<(Clock, Due)> {
    let mut clocks = Vec::new();
    let spec = &world.session.spec;
    if let Some(deadline) = ttl_deadline(world) {
        clocks.push((Clock::Ttl, Due::at(deadline, now.time)));
    }
    let Some(live) = world.live() else { return clocks };
    if !has_turn
        && !spec.idle_timeout.is_zero()
        && let Some(since) = idle_since
    {
        clocks.push((Clock::Idle, Due::at(since.plus(spec.idle_timeout.get()), now.time)));
    }
    if let Some(allowed) = inactivity_allowed(world, live)
        && is_prompt_open(live)
    {
        clocks.push((Clock::Inactivity, Due::at_mono(live.last_activity.plus(allowed), now.mono)));
    }
    clocks
}

fn inactivity_allowed(world: &World, live: &Live) -> Option<Duration> {
    let spec = &world.session.spec;
    let allowed = match spec.tool_inactivity_timeout {
        Some(tool) if live.is_tool_running => tool,
        Some(_) | None => spec.turn_inactivity_timeout,
    };
    (!allowed.is_zero()).then(|| allowed.get())
}

/// When the session's life ends, from its creation.
#[must_use]
pub fn ttl_deadline(world: &World) -> Option<Time> {
    let ttl = world.session.spec.ttl.filter(|ttl| !ttl.is_zero())?;
    let created = world.session.metadata.creation_timestamp?;
    Some(created.plus(ttl.get()))
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
pub fn next_durable(session: &crate::api::Session, has_turn: bool) -> Option<Time> {
    let spec = &session.spec;
    let status = &session.status;
    if let Some(finished_at) = status.finished_at {
        return (!spec.ttl_after_finished.is_zero())
            .then(|| finished_at.plus(spec.ttl_after_finished.get()));
    }
    if status.end.is_some() || spec.desired_state != DesiredState::Running {
        return None;
    }
    let ttl = spec
        .ttl
        .filter(|ttl| !ttl.is_zero())
        .and_then(|ttl| session.metadata.creation_timestamp.map(|created| created.plus(ttl.get())));
    let idle = match status.idle_since {
        Some(since) if status.process.is_some() && !has_turn && !spec.idle_timeout.is_zero() => {
            Some(since.plus(spec.idle_timeout.get()))
        }
        Some(_) | None => None,
    };
    let restart = status.restarts.next_attempt_at.filter(|_| has_turn);
    [ttl, idle, restart].into_iter().flatten().min()
}
