//! Which point of a test a commit of the loop is: `failpoint` before and after each kind of it.
//!
//! One commit may be several of them (a turn ends and its process is gone): all are reached. Nothing
//! is decided here, and a build without the feature `failpoints` does nothing with it.

use crate::api::session::ProcessState;
use crate::api::turn::{Delivery, TurnPhase};
use crate::failpoint::{Point, reach};
use crate::plan::{Change, World};

/// To be called before the commit of a change.
pub(super) fn before(world: &World, change: &Change) {
    for (point, _) in of(world, change).filter(|_| cfg!(feature = "failpoints")) {
        reach(point);
    }
}

/// To be called once it is committed.
pub(super) fn after(world: &World, change: &Change) {
    for (_, point) in of(world, change) {
        reach(point);
    }
}

/// What a change is, as the points before and after it.
fn of(world: &World, change: &Change) -> impl Iterator<Item = (Point, Point)> {
    let process = |session: &crate::api::Session| session.status.process.clone();
    let was = process(&world.session);
    let is = change.session.as_ref().map_or_else(|| was.clone(), process);
    let launches = is.as_ref().is_some_and(|process| {
        process.state == ProcessState::Launching
            && was.as_ref().is_none_or(|was| was.attempt != process.attempt)
    });
    let is_gated = |process: &Option<crate::api::session::ProcessRecord>| {
        process.as_ref().is_some_and(|process| process.shim_pid.is_some())
    };
    let any = |is_so: &dyn Fn(TurnPhase, Delivery) -> bool| {
        change.turns.iter().any(|turn| is_so(turn.status.phase, turn.status.delivery))
    };
    let starting = |phase| phase == TurnPhase::Starting;
    let ends = |session: &crate::api::Session| session.status.end.is_some();
    let has_parent = world.session.status.lineage.parent.is_some();
    let follows = has_parent && !ends(&world.session) && change.session.as_ref().is_some_and(ends);
    [
        (launches, (Point::LaunchingBefore, Point::LaunchingAfter)),
        (is_gated(&is) && !is_gated(&was), (Point::GateBefore, Point::GateAfter)),
        (
            any(&|phase, delivery| starting(phase) && delivery == Delivery::Unknown),
            (Point::DispatchBefore, Point::DispatchAfter),
        ),
        (any(&|phase, _| phase == TurnPhase::Running), (Point::SentBefore, Point::SentAfter)),
        (
            any(&|phase, _| phase == TurnPhase::Cancelling),
            (Point::CancelBefore, Point::CancelAfter),
        ),
        (any(&|phase, _| phase.is_final()), (Point::TurnEndBefore, Point::TurnEndAfter)),
        (is.is_none() && was.is_some(), (Point::GoneBefore, Point::GoneAfter)),
        (follows, (Point::CascadeBefore, Point::CascadeAfter)),
        (change.removes_session, (Point::RemovalBefore, Point::RemovalAfter)),
    ]
    .into_iter()
    .filter_map(|(is_so, points)| is_so.then_some(points))
}
