//! What happens in a simulated life: users, agents, time and misfortune, in random order; then
//! everything is left alone, and must come to rest as it was wanted.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::RngExt;

use super::judge::Seen;
use super::machine::Nature;
use super::questions::asks;
use super::{Outcome, Sim, broken};
use crate::api::{Dur, Name, Session, Uid};
use crate::clock::Mono;
use crate::plan::world::{
    Call, CallFailure, CallFailureKind, Fault, Initialized, Live, Opened, Process, PromptEnd,
    Stage, StartFailure, StopReason,
};

/// Deadlines further away are not waited for.
const HORIZON: Duration = Duration::from_secs(3 * 3600);
/// Passes over one session between two moments, once nothing goes wrong any more.
const PASSES_MAX: usize = 50;
/// Five minutes, as the loop's own backstop.
const RESYNC_EVERY: usize = 40;

impl Sim {
    /// A whole life, judged.
    pub(super) fn play(mut self) -> Outcome<Seen> {
        self.play_on()?;
        Ok(std::mem::take(&mut self.judge.seen))
    }

    /// The same, and what is left of it can be looked at.
    pub(super) fn play_on(&mut self) -> Outcome {
        self.start(true);
        for number in 0..self.setting.steps {
            if self.daemon.is_none() {
                let pause = self.random.random_range(0..8000);
                self.pass_time(Duration::from_millis(pause));
                self.start(false);
            }
            if number % RESYNC_EVERY == 0 {
                self.resync();
            }
            self.happen()?;
        }
        self.come_to_rest()
    }

    fn happen(&mut self) -> Outcome {
        match self.random.random_range(0..100) {
            0..9 => self.somebody_asks(),
            9..30 => self.begin_any(),
            30..66 => self.go_on_with_any()?,
            66..90 => self.any_agent_acts(),
            90..97 => {
                let longest = [5, 300, 6000, 90_000, 700_000][self.random.random_range(0..5)];
                let pause = self.random.random_range(0..longest);
                self.pass_time(Duration::from_millis(pause));
            }
            97 if self.one_in(3) => self.die(),
            98 if self.one_in(3) => self.stop_in_order()?,
            99 => self.jump_clock(),
            _ => self.go_on_with_any()?,
        }
        Ok(())
    }

    /// The backstop looks at everything.
    fn resync(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            daemon.due.extend(self.shelf.sessions.keys().cloned());
        }
    }

    fn begin_any(&mut self) {
        let Some(daemon) = &self.daemon else { return };
        let due: Vec<_> = daemon.due.iter().filter(|key| self.may_begin(key)).cloned().collect();
        if !due.is_empty() {
            let index = self.random.random_range(0..due.len());
            self.begin_pass(&due[index]);
        }
    }

    fn go_on_with_any(&mut self) -> Outcome {
        let passes = self.daemon.as_ref().map_or(0, |daemon| daemon.passes.len());
        if passes == 0 {
            self.begin_any();
            return Ok(());
        }
        let index = self.random.random_range(0..passes);
        self.go_on(index)
    }

    pub(super) fn pass_time(&mut self, duration: Duration) {
        self.elapsed += duration;
        let mono = self.mono();
        self.machine.pass_time(mono);
        if let Some(daemon) = &mut self.daemon {
            let over: Vec<_> = daemon
                .timers
                .iter()
                .filter(|(_, at)| **at <= mono)
                .map(|(k, _)| k.clone())
                .collect();
            for key in over {
                daemon.timers.remove(&key);
                daemon.due.insert(key);
            }
        }
        self.notice_deaths();
    }

    /// What became of processes reaches the daemon.
    fn notice_deaths(&mut self) {
        let at = self.mono();
        let Some(daemon) = &mut self.daemon else { return };
        let mut woken = Vec::new();
        for (uid, process) in &mut daemon.registry {
            if self.machine.trees.contains_key(uid) {
                continue;
            }
            match process {
                Process::Live(live) => match live.stage {
                    Stage::Empty { .. } => continue,
                    Stage::Exited { .. } | Stage::Unprovable => {
                        live.stage = Stage::Empty { status: "exit code 1".into() };
                    }
                    Stage::Gated { .. } | Stage::Running => {
                        live.stage = Stage::Exited { status: "exit code 1".into(), at };
                    }
                },
                Process::Unproven => {
                    let message = "the launch took too long".to_owned();
                    let failure = StartFailure { reason: "LaunchTimeout", message };
                    *process = Process::NotStarted { failure };
                }
                Process::Absent | Process::NotStarted { .. } => continue,
            }
            woken.push(uid.clone());
        }
        for uid in woken {
            self.wake_uid(&uid);
        }
    }

    pub(super) fn wake_uid(&mut self, uid: &Uid) {
        if let Some(key) = self.shelf.by_uid(uid).map(|session| session.metadata.name.clone()) {
            self.wake(&key);
        }
    }

    fn any_agent_acts(&mut self) {
        self.notice_deaths();
        let uids: Vec<_> = self.machine.trees.keys().cloned().collect();
        if uids.is_empty() {
            return;
        }
        let uid = uids[self.random.random_range(0..uids.len())].clone();
        if self.misfortune(&uid) || self.agent_acts(&uid) {
            self.wake_uid(&uid);
        }
    }

    /// What agents and shims do that nobody asked for. `true`: something happened.
    fn misfortune(&mut self, uid: &Uid) -> bool {
        let (mono, dice) = (self.mono(), self.random.random_range(0..100));
        let soon = mono.plus(Duration::from_millis(30));
        let Some(tree) = self.machine.trees.get_mut(uid) else { return false };
        let Some(live) = self.daemon.as_mut().and_then(|daemon| daemon.live_mut(uid)) else {
            return false;
        };
        if live.stage != Stage::Running {
            return false;
        }
        match dice {
            0..3 => {
                live.stage = Stage::Exited { status: "exit code 1".into(), at: mono };
                tree.dies_at.get_or_insert(soon);
            }
            3 => live.acp.is_eof = true,
            4 => live.acp.fault = Some(Fault::FrameTooLarge),
            5 => {
                tree.has_no_shim = true;
                live.stage = Stage::Unprovable;
            }
            6 if live.prompt.as_ref().is_some_and(|prompt| prompt.end.is_some()) => {
                live.is_active_after_turn = true;
                live.last_activity = mono;
                tree.spoke_at = mono;
            }
            7..15 if tree.nature != Nature::Deaf => {
                live.last_activity = mono;
                tree.spoke_at = mono;
                live.last_progress = mono;
                live.tool_heard = (dice % 2 == 0).then_some(mono);
                return false;
            }
            _ => return false,
        }
        true
    }

    /// The next thing that an agent does by its nature. `true`: something happened.
    fn agent_acts(&mut self, uid: &Uid) -> bool {
        let mono = self.mono();
        let (dice, is_rough) = (self.random.random_range(0..100), self.is_rough);
        let Some(nature) = self.machine.trees.get(uid).map(|tree| tree.nature) else {
            return false;
        };
        let Some(live) = self.daemon.as_mut().and_then(|daemon| daemon.live_mut(uid)) else {
            return false;
        };
        if live.stage != Stage::Running || live.acp.is_eof || live.acp.fault.is_some() {
            return false;
        }
        if live.prompt.as_ref().is_some_and(|prompt| prompt.written_at.is_none()) {
            let turn = live.prompt.as_mut().map(|prompt| {
                prompt.written_at = Some(mono);
                prompt.turn.clone()
            });
            turn.iter().for_each(|turn| self.judge.given(turn));
            return true;
        }
        let may_fail = is_rough && dice < 10;
        let acted = answers_call(live, nature, may_fail)
            || (is_rough && asks(live, nature, dice))
            || answers_prompt(live, nature, dice);
        if acted {
            live.last_activity = mono;
        }
        let crashes = nature == Nature::Crashes
            && live.prompt.as_ref().is_some_and(|prompt| prompt.end.is_none());
        if let Some(tree) = self.machine.trees.get_mut(uid) {
            if acted {
                tree.spoke_at = mono;
            }
            if crashes {
                tree.dies_at.get_or_insert(mono);
            }
        }
        acted
    }

    /// The daemon stops in order: it tells its agents and waits for them, or is killed meanwhile.
    fn stop_in_order(&mut self) -> Outcome {
        self.note(|| "the daemon is told to stop".to_owned());
        if let Some(daemon) = &mut self.daemon {
            daemon.is_stopping = true;
        }
        self.resync();
        for _ in 0..60 {
            let is_done = self.daemon.as_ref().is_none_or(|daemon| {
                let is_gone = |process: &Process| match process {
                    Process::Live(live) => matches!(live.stage, Stage::Empty { .. }),
                    Process::Absent | Process::NotStarted { .. } => true,
                    Process::Unproven => false,
                };
                daemon.registry.values().all(is_gone) && daemon.passes.is_empty()
            });
            if is_done {
                break;
            }
            match self.random.random_range(0..10) {
                0..6 => self.go_on_with_any()?,
                6..8 => self.any_agent_acts(),
                _ => self.pass_time(Duration::from_millis(1500)),
            }
        }
        if self.daemon.is_some() {
            self.die();
            let pause = self.random.random_range(0..8000);
            self.pass_time(Duration::from_millis(pause));
            self.start(true);
        }
        Ok(())
    }

    fn jump_clock(&mut self) {
        if !self.setting.clock_jumps || !self.is_rough {
            return;
        }
        let hour = 3_600_000_i64;
        let jumps = [hour, -hour, 365 * 24 * hour, -365 * 24 * hour];
        let jump = jumps[self.random.random_range(0..jumps.len())];
        // Not before 1970 nor out of any calendar, however often.
        self.wall_off_ms =
            (self.wall_off_ms + jump).clamp(-20 * 365 * 24 * hour, 100 * 365 * 24 * hour);
        self.judge.seen.clock_jumps += 1;
        self.note(|| format!("the wall clock jumps by {jump} ms"));
    }

    /// Nothing goes wrong any more, nobody asks for anything: within bounded work everything is as
    /// it was wanted.
    fn come_to_rest(&mut self) -> Outcome {
        self.is_rough = false;
        self.note(|| "everything is left alone".to_owned());
        if self.daemon.is_none() {
            self.start(false);
        }
        self.resync();
        let until = self.elapsed + HORIZON;
        loop {
            self.work_off()?;
            let mono = self.mono();
            let timers = self.daemon.iter().flat_map(|daemon| daemon.timers.values());
            let deaths = self.machine.trees.values().filter_map(|tree| tree.dies_at);
            // Years away, once the wall clock has jumped.
            let last = Mono(0).plus(until);
            let next = timers.copied().chain(deaths).filter(|at| *at <= last).min();
            let Some(next) = next else { break };
            self.pass_time(next.since(mono).max(Duration::from_millis(1)));
        }
        self.check_rest()
    }

    /// Everything that can be done without time passing.
    fn work_off(&mut self) -> Outcome {
        let mut passes: BTreeMap<Name, usize> = BTreeMap::new();
        loop {
            while self.daemon.as_ref().is_some_and(|daemon| !daemon.passes.is_empty()) {
                self.go_on(0)?;
            }
            if let Some(key) = self.daemon.as_ref().and_then(|d| d.due.first().cloned()) {
                let count = passes.entry(key.clone()).or_default();
                *count += 1;
                self.judge.seen.passes_at_once = self.judge.seen.passes_at_once.max(*count);
                if *count > PASSES_MAX {
                    return broken(format!("{key} does not come to rest"));
                }
                self.begin_pass(&key);
                continue;
            }
            self.notice_deaths();
            let uids: Vec<_> = self.machine.trees.keys().cloned().collect();
            let acted: Vec<_> = uids.into_iter().filter(|uid| self.agent_acts(uid)).collect();
            acted.iter().for_each(|uid| self.wake_uid(uid));
            if acted.is_empty() && self.daemon.as_ref().is_none_or(|d| d.due.is_empty()) {
                return Ok(());
            }
        }
    }

    /// What must be so once everything is at rest.
    fn check_rest(&mut self) -> Outcome {
        self.judge.slots(&self.shelf)?;
        if let Some(holder) = self.shelf.holders.first() {
            return broken(format!("{} holds a slot for ever", holder.turn));
        }
        let now = self.now();
        for (name, session) in &self.shelf.sessions {
            let status = &session.status;
            if session.metadata.is_deleting() {
                return broken(format!("{name} was deleted and stays: {}", status.reason));
            }
            let is_over = status.lineage.ttl_expires_at.is_some_and(|at| at <= now.time);
            let must_end = is_over
                || crate::plan::must_tell_children(session)
                || session.metadata.is_first_start();
            if must_end && status.finished_at.is_none() {
                return broken(format!("{name} must end and does not: {}", status.reason));
            }
            let has_children = !self.shelf.children_of(&session.metadata.uid).is_empty();
            check_deadlines(session, has_children)?;
            let tree = self.shelf.ledgers.get(&session.metadata.uid).map(|(used, _)| used);
            if status.lineage.parent.is_none() && status.tree_usage.as_ref() != tree {
                return broken(format!("H11: {name} does not show what its tree used"));
            }
            let is_alive = self.machine.is_alive(&session.metadata.uid);
            if is_alive != status.process.is_some() || (must_end && is_alive) {
                return broken(format!(
                    "P6: {name}: a process is there: {is_alive}; told otherwise"
                ));
            }
        }
        if let Some(request) =
            self.shelf.requests.values().find(|one| one.status.phase.is_pending())
        {
            return broken(format!("{} waits for ever", request.metadata.name));
        }
        for turn in self.shelf.turns.values().filter(|turn| !turn.status.phase.is_final()) {
            let session = self.shelf.sessions.get(&turn.spec.session);
            // Starts that failed too often wait for somebody.
            if session.is_none_or(|session| session.status.restarts.count <= 4) {
                let (name, reason) = (&turn.metadata.name, &turn.status.reason);
                return broken(format!("{name} waits for ever: {reason}"));
            }
        }
        Ok(())
    }
}

/// No clock of an earlier daemon keeps anything (P11): whatever it showed, what has a shorter time than
/// the one that everything was left alone for has come to its end.
fn check_deadlines(session: &Session, has_children: bool) -> Outcome {
    let (name, status) = (&session.metadata.name, &session.status);
    let is_waited_for = |time: Dur| !time.is_zero() && time.get() < HORIZON;
    let keep = session.spec.ttl_after_finished;
    match (status.finished_at, session.spec.ttl) {
        // A parent's record stays for as long as one below it does.
        (Some(_), _) if is_waited_for(keep) && !has_children => {
            broken(format!("P11: {name} is kept for longer than {keep}"))
        }
        (None, Some(ttl)) if is_waited_for(ttl) => {
            broken(format!("P11: {name} lives for longer than {ttl}"))
        }
        (Some(_), _) | (None, _) => Ok(()),
    }
}

/// An agent answers what is asked of it beside prompts.
fn answers_call(live: &mut Live, nature: Nature, may_fail: bool) -> bool {
    let capabilities = crate::plan::model::capable();
    if live.acp.initialize == Call::InFlight {
        live.acp.initialize = Call::Done(Initialized {
            protocol_version: 1,
            capabilities,
            auth_methods: Vec::new(),
            version: None,
            declared: None,
        });
        return true;
    }
    if live.acp.close == Call::InFlight {
        live.acp.close = Call::Done(());
        return true;
    }
    if live.acp.open != Call::InFlight || nature == Nature::Deaf {
        return false;
    }
    let is_new = matches!(live.acp.opened_as, Some(crate::plan::OpenAs::New) | None);
    let kind = if is_new { CallFailureKind::Other } else { CallFailureKind::SessionLost };
    live.acp.open = if may_fail {
        Call::Failed(CallFailure { kind, code: -32_000, message: "no".to_owned() })
    } else {
        Call::Done(Opened { acp_session_id: "acp".into() })
    };
    true
}

/// An agent answers its prompt, if it is one that does.
fn answers_prompt(live: &mut Live, nature: Nature, dice: u32) -> bool {
    let Some(prompt) = live.prompt.as_mut().filter(|prompt| prompt.end.is_none()) else {
        return false;
    };
    let is_after_cancel = prompt.cancel_asked_at.is_some();
    // A context that grows as the agent works.
    prompt.spent.tokens += u64::from(dice % 3);
    // Who waits for an answer seldom ends by itself.
    if !live.asks.is_empty() && dice > 2 {
        return false;
    }
    let answers = match nature {
        Nature::Answers | Nature::Stubborn => dice < 60,
        Nature::Endless => is_after_cancel,
        Nature::Deaf | Nature::Crashes => false,
    };
    if answers {
        let answer = match (is_after_cancel, dice % 10) {
            (true, 0..8) => Ok(StopReason::Cancelled),
            (_, 8) => Ok(StopReason::Refusal),
            (false, 0..8) => Ok(StopReason::EndTurn),
            _ => Err(CallFailure {
                kind: CallFailureKind::Other,
                code: -32_603,
                message: "broken".to_owned(),
            }),
        };
        prompt.end = Some(PromptEnd {
            answer,
            is_after_cancel,
            usage: Some(serde_json::json!({"totalTokens": u64::from(dice % 7)})),
        });
    }
    answers
}
