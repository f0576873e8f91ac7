//! The machine of a simulated life: its processes, whatever daemon started them, and how each
//! agent behaves.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::Uid;
use crate::clock::Mono;

/// How an agent behaves, for its whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nature {
    /// It answers, sooner or later.
    Answers,
    /// It answers a prompt only once it is cancelled.
    Endless,
    /// It answers nothing after `initialize`, and only a kill ends it.
    Deaf,
    /// It ends in the middle of a turn.
    Crashes,
    /// It answers, but neither the end of its input nor SIGTERM ends it.
    Stubborn,
}

pub(super) const NATURES: [Nature; 5] =
    [Nature::Answers, Nature::Endless, Nature::Deaf, Nature::Crashes, Nature::Stubborn];

/// A tree of processes.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    pub(super) nature: Nature,
    /// Kills that it survives: its processes hang in the kernel.
    pub(super) survives: u32,
    /// When a shim kills it: the daemon is gone, or the agent has ended.
    pub(super) dies_at: Option<Mono>,
    /// Whether its shim is gone: nobody kills it but the next daemon's start.
    pub(super) has_no_shim: bool,
    /// When its agent last said something, really.
    pub(super) spoke_at: Mono,
}

/// All trees, by session. One session has one at most: a second one is a broken promise.
#[derive(Default)]
pub(super) struct Machine {
    pub(super) trees: BTreeMap<Uid, Tree>,
}

impl Machine {
    pub(super) fn is_alive(&self, session: &Uid) -> bool {
        self.trees.contains_key(session)
    }

    /// The daemon is gone: shims kill what they hold, within five seconds.
    pub(super) fn lose_daemon(&mut self, now: Mono, takes: Duration, shims_too: bool) {
        for tree in self.trees.values_mut() {
            tree.has_no_shim |= shims_too;
            if !tree.has_no_shim {
                tree.dies_at.get_or_insert(now.plus(takes));
            }
        }
    }

    /// What shims have done by now.
    pub(super) fn pass_time(&mut self, now: Mono) {
        self.trees.retain(|_, tree| tree.has_no_shim || tree.dies_at.is_none_or(|at| at > now));
    }

    /// A start kills everything that carries the store's mark.
    pub(super) fn sweep(&mut self) {
        self.trees.clear();
    }
}
