//! Points at which a test ends the daemon: test catalogue C2.
//!
//! A build with the feature `failpoints` looks, at each call of `reach`, whether the environment's
//! `FAILPOINT` names this very point (`NAME`, or `NAME:N` for the Nth time), and if so aborts the process there: no destructor, no flush, no
//! answer. Any other build does nothing at all, and that is what is shipped.
//!
//! Invariants: [`Point`] and [`ALL`] hold the same points (the match in [`Point::name`] is
//! exhaustive), and `tests/it/failpoints.rs` demands that each was hit. Nothing is decided here.
//!
//! Absent on purpose: points that return errors. A store that fails is a port of its own
//! (`store/fault.rs`).

macro_rules! points {
    ($($(#[$doc:meta])* $point:ident = $name:literal,)*) => {
        /// A place in the code where the daemon may be made to die.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Point { $($(#[$doc])* $point,)* }

        /// All of them.
        pub const ALL: &[Point] = &[$(Point::$point,)*];

        impl Point {
            /// Its name, as `FAILPOINT` has it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$point => $name,)* }
            }
        }
    };
}

points! {
    /// The tables are made, and not committed.
    MigrationBefore = "migration.before",
    /// The tables are committed.
    MigrationAfter = "migration.after",
    /// The start is about to look for what an earlier daemon left running.
    SweepBefore = "sweep.before",
    /// Leftovers are gone; nothing else was done yet.
    SweepAfter = "sweep.after",
    /// The journal is read and settled, orphaned blobs are gone.
    Recovered = "recovered",
    /// A document of a file is about to be applied.
    ManifestBefore = "manifest.before",
    /// It is applied, and the ledger does not say so yet.
    ManifestAfter = "manifest.after",
    /// A new record of the API (a session, a turn) is about to be committed.
    AdmitBefore = "admit.before",
    /// It is committed, and nobody was told.
    AdmitAfter = "admit.after",
    /// A child and its first turn are about to be committed.
    ChildBefore = "child.before",
    /// They are committed, and the caller was not told.
    ChildAfter = "child.after",
    /// The end of a session is about to be asked for.
    DeleteBefore = "delete.before",
    /// It is recorded, and nobody was told.
    DeleteAfter = "delete.after",
    /// The record `Launching` is about to be committed.
    LaunchingBefore = "launching.before",
    /// It is committed; nothing was started.
    LaunchingAfter = "launching.after",
    /// A shim is about to be started.
    LaunchBefore = "launch.before",
    /// The shim waits at its gate, and no record names it.
    LaunchAfter = "launch.after",
    /// The shim's identity is about to be committed.
    GateBefore = "gate.before",
    /// It is committed; the gate is shut.
    GateAfter = "gate.after",
    /// The gate is open: the agent starts.
    GateOpen = "gate.open",
    /// Delivery `Unknown` is about to be committed.
    DispatchBefore = "dispatch.before",
    /// It is committed; the journal has nothing of the turn.
    DispatchAfter = "dispatch.after",
    /// The journal has the turn; nothing was given to the agent.
    Journalled = "journalled",
    /// The prompt is on its way to the agent.
    Submitted = "submitted",
    /// Delivery `Sent` is about to be committed.
    SentBefore = "sent.before",
    /// It is committed.
    SentAfter = "sent.after",
    /// A turn's cancel is about to be committed.
    CancelBefore = "cancel.before",
    /// It is committed; the agent was not told.
    CancelAfter = "cancel.after",
    /// The final state of a turn is about to be committed.
    TurnEndBefore = "turn-end.before",
    /// It is committed.
    TurnEndAfter = "turn-end.after",
    /// An agent's process has exited, and nothing says so yet.
    ExitNoticed = "exit.noticed",
    /// That a session has no process any more is about to be committed.
    GoneBefore = "gone.before",
    /// It is committed.
    GoneAfter = "gone.after",
    /// That a child follows its parent's end is about to be committed.
    CascadeBefore = "cascade.before",
    /// It is committed; nothing of the child was stopped.
    CascadeAfter = "cascade.after",
    /// A session's record is about to be removed with its finalizer.
    RemovalBefore = "removal.before",
    /// It is removed.
    RemovalAfter = "removal.after",
}

/// Ends the process here if the environment says so. Without the feature `failpoints`: nothing.
#[cfg(not(feature = "failpoints"))]
pub(crate) const fn reach(_: Point) {}

/// Ends the process here if the environment says so.
#[cfg(feature = "failpoints")]
pub(crate) fn reach(point: Point) {
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::process::{Resource, Rlimit, setrlimit};

    static LEFT: AtomicU64 = AtomicU64::new(u64::MAX);
    let Ok(wanted) = std::env::var("FAILPOINT") else { return };
    let (name, which) = wanted.split_once(':').unwrap_or((&wanted, "1"));
    if name != point.name() {
        return;
    }
    let which = which.parse().unwrap_or(1);
    let _ = LEFT.compare_exchange(u64::MAX, which, Ordering::SeqCst, Ordering::SeqCst);
    if LEFT.fetch_sub(1, Ordering::SeqCst) == 1 {
        // Whatever the machine says of core files: it is no accident.
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = ALL.iter().map(|point| point.name()).collect();
        assert_eq!(names.len(), ALL.len());
        assert!(ALL.len() >= 25, "the catalogue wants about 25");
    }
}
