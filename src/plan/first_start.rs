//! A session that is there for one start of its agent: launched, opened, and ended, without a prompt.
//!
//! In the loop it stands in the place of the turns (`session::run`); launch, handshake and the stop
//! ladder are everybody's. So a first start that may download has its own time, and the agent's
//! record tells of it before a turn is at stake. Invariants: one launch at most, whatever comes of
//! it, and then an end that says how it went; a daemon that dies meanwhile starts nothing again.
//! Absent: turns (admission refuses them) and a turn slot, which only turns take.

use crate::api::Dur;
use crate::api::session::{EndOutcome, SessionEnd};

use super::draft::Draft;
use super::launch::{self, Progress};
use super::world::{Finding, Live, Stage, StartFailure, StopCause};
use super::{ending, stop};

/// How a session ends whose agent was started and opened it.
const STARTED: &str = "Started";
/// How it ends if the daemon stopped or died meanwhile.
const INTERRUPTED: &str = "StartInterrupted";

/// Plans the next thing of the start, or the session's end.
pub(super) fn drive(draft: &mut Draft<'_>) {
    let live = draft.world.live().filter(|live| !matches!(live.stage, Stage::Empty { .. }));
    if live.is_none() && draft.session.status.incarnation.0 > 0 {
        interrupted(draft);
        return;
    }
    match launch::advance(draft) {
        Progress::UnderWay => {}
        Progress::Open(live) => {
            opened(draft, live);
            stop::climb(draft, live, &StopCause::End);
        }
        Progress::Blocked => {
            let missing = match (&draft.world.agent, &draft.world.scope) {
                (Finding::Missing(missing), _) | (_, Finding::Missing(missing)) => missing,
                (Finding::Found(_) | Finding::Unknown, Finding::Found(_) | Finding::Unknown) => {
                    return;
                }
            };
            let failure = StartFailure { reason: missing.reason, message: missing.message.clone() };
            launch::count_failed_start(draft, &failure);
            failed(draft, &failure);
        }
    }
}

fn opened(draft: &mut Draft<'_>, live: &Live) {
    let took = draft.now.mono.since(live.launched_at);
    let took = Dur::from_millis(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
    let at = draft.time();
    draft.end_session(SessionEnd {
        outcome: EndOutcome::Stopped,
        reason: STARTED.to_owned(),
        message: format!("its agent was started and opened a session in {took}"),
        code: None,
        at,
    });
}

/// The start failed: so ends a session that was there for nothing else. Others go on.
pub(super) fn failed(draft: &mut Draft<'_>, failure: &StartFailure) {
    if !draft.session.metadata.is_first_start() {
        return;
    }
    ending::of_start(draft, failure);
}

/// The daemon stops, or another one before it died: nobody knows how the start would have gone.
pub(super) fn interrupted(draft: &mut Draft<'_>) {
    if !draft.session.metadata.is_first_start() {
        return;
    }
    let at = draft.time();
    draft.end_session(SessionEnd {
        outcome: EndOutcome::Failed,
        reason: INTERRUPTED.to_owned(),
        message: "the daemon stopped while its agent was being started; start it again".to_owned(),
        code: None,
        at,
    });
}
