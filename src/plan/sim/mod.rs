//! A seeded simulator: a whole daemon around the planner, without a daemon (test catalogue B1, B2,
//! I1). Several sessions in trees share a store, a machine with processes, and agents that answer,
//! hang, crash or do not go; the daemon dies and starts again between any two steps.
//!
//! Where it stands: the model in `model` is one session, for all worlds; this is many sessions, for
//! long random lives. What a world is made of is read as `controller::observe` does, and the rules
//! for that are the planner's own ([`Owner::of`], [`Children::of`]). The promises are checked by
//! [`judge`] at each commit and each effect, not at the end alone. A seed plays again exactly.

mod daemon;
mod judge;
mod machine;
mod play;
mod questions;
mod shelf;
mod tests;
mod users;

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::api::Time;
use crate::clock::{Mono, Now};

use self::daemon::Daemon;
use self::judge::Judge;
use self::machine::Machine;
use self::shelf::Shelf;
use super::model::EPOCH_MS;

/// A promise that was broken, with what led to it.
#[derive(Debug)]
struct Broken(String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

type Outcome<T = ()> = Result<T, Broken>;

/// A promise is broken.
fn broken<T>(what: impl Into<String>) -> Outcome<T> {
    Err(Broken(what.into()))
}

/// What a world is full of.
#[derive(Clone, Copy, Debug)]
struct Setting {
    /// Random steps before everything is left alone.
    pub(super) steps: usize,
    /// Sessions at most.
    pub(super) sessions: usize,
    /// Children of one session at most.
    pub(super) fan_out: usize,
    /// Levels below a session without a parent at most.
    pub(super) depth: u32,
    /// Whether the wall clock jumps.
    pub(super) clock_jumps: bool,
    /// Whether deletions of sessions are most of what users do.
    pub(super) is_deletion_heavy: bool,
    /// A defect that is put in on purpose.
    pub(super) defect: Option<Defect>,
}

/// A world of a few sessions where everything happens.
const ANY_LIFE: Setting = Setting {
    steps: 200,
    sessions: 6,
    fan_out: 3,
    depth: 2,
    clock_jumps: true,
    is_deletion_heavy: false,
    defect: None,
};

/// What must make a run fail: the negative controls of the judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    /// The journal is empty after a crash, and turns that were given to an agent are taken for new.
    ForgetsPrompts,
    /// Records are written whatever happened to them in between.
    WritesBlindly,
    /// A start does not kill what an earlier daemon left.
    LeavesLeftovers,
    /// A process that was killed is taken for gone at once.
    TrustsKills,
    /// A silent agent looks as if it had just spoken.
    HearsVoices,
    /// Slots are given out without looking.
    CountsNoSlots,
    /// A parent does not look for children.
    OverlooksChildren,
    /// A prompt counts as written before it is.
    SaysSentTooEarly,
    /// The daemon follows the wall clock.
    FollowsWallClock,
    /// A start does not know from when lives count that an earlier one set right.
    SetsRightAnew,
    /// A daemon does not know that an earlier one began a first start.
    StartsAgain,
    /// What a tree used is not written in the commit that says who used it.
    CountsApart,
}

/// Everything.
struct Sim {
    setting: Setting,
    random: StdRng,
    /// Time since the beginning; goes on whatever dies.
    elapsed: Duration,
    /// How far the wall clock is off by now.
    wall_off_ms: i64,
    shelf: Shelf,
    machine: Machine,
    daemon: Option<Daemon>,
    judge: Judge,
    /// Whether things go wrong by themselves.
    is_rough: bool,
    /// What happened, if somebody will read it.
    trace: Option<Vec<String>>,
    uids: u64,
}

impl Sim {
    pub(super) fn new(seed: u64, setting: Setting, keeps_trace: bool) -> Self {
        Self {
            setting,
            random: StdRng::seed_from_u64(seed),
            elapsed: Duration::ZERO,
            wall_off_ms: 0,
            shelf: Shelf::new(),
            machine: Machine::default(),
            daemon: None,
            judge: Judge::default(),
            is_rough: true,
            trace: keeps_trace.then(Vec::new),
            uids: 0,
        }
    }

    fn mono(&self) -> Mono {
        Mono(0).plus(self.elapsed)
    }

    /// What the wall clock shows.
    fn wall(&self) -> Time {
        let ms = EPOCH_MS + self.wall_off_ms;
        Time::from_millis(ms).plus(self.elapsed)
    }

    /// The clock as the daemon reads it: the wall as it stood at its start, carried on steadily.
    fn now(&self) -> Now {
        let time = match &self.daemon {
            Some(_) if self.has(Defect::FollowsWallClock) => self.wall(),
            Some(daemon) => daemon.started.time.plus(self.mono().since(daemon.started.mono)),
            None => self.wall(),
        };
        Now { time, mono: self.mono() }
    }

    fn has(&self, defect: Defect) -> bool {
        self.setting.defect == Some(defect)
    }

    /// Whether something with this chance in a hundred happens; never once things are left alone.
    fn goes_wrong(&mut self, percent: u32) -> bool {
        self.is_rough && self.random.random_range(0..100) < percent
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.random.random_range(0..count) == 0
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        let elapsed = self.elapsed;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>9} ms  {}", elapsed.as_millis(), what()));
        }
    }

    /// A uid that no other object has. Ordered, as the real ones are.
    fn next_uid(&mut self) -> crate::api::Uid {
        self.uids += 1;
        format!("0198c0de-0000-7000-8000-{:012x}", self.uids).into()
    }
}

/// Plays one life to its end, and again with a trace if a promise was broken in it.
fn live(seed: u64, setting: Setting) -> Result<judge::Seen, String> {
    let played = Sim::new(seed, setting, false).play();
    let broken = match played {
        Ok(seen) => return Ok(seen),
        Err(broken) => broken,
    };
    let mut again = Sim::new(seed, setting, true);
    let repeated = again.play_on();
    let same = repeated.is_err_and(|other| other.0 == broken.0);
    let trace = again.trace.unwrap_or_default();
    let last = trace.len().saturating_sub(60);
    Err(format!(
        "seed {seed} ({}): {broken}\n{}",
        if same { "plays again the same" } else { "DOES NOT PLAY AGAIN" },
        trace[last..].join("\n")
    ))
}
