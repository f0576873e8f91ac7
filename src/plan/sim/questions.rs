//! Questions of agents in a simulated life: asked at random, decided by somebody or nobody.

use rand::RngExt;

use super::daemon::Done;
use super::machine::Nature;
use super::shelf::Shelf;
use super::{Outcome, Sim, broken};
use crate::api::permission::{Decision, PermissionPhase, ToolCall};
use crate::api::{Name, PermissionRequest, Session, Uid};
use crate::plan::Change;
use crate::plan::permission::{Answer, Ask, name_of};
use crate::plan::world::{Live, Process};

impl Shelf {
    /// As the loop reads them: those that wait, and those that the agent's questions stand for.
    pub(super) fn requests_in_world(
        &self,
        session: &Session,
        process: Option<&Process>,
    ) -> Vec<PermissionRequest> {
        let asks = match process {
            Some(Process::Live(live)) => &live.asks[..],
            Some(Process::Absent | Process::NotStarted { .. } | Process::Unproven) | None => &[],
        };
        let stands_for = |request: &PermissionRequest| {
            asks.iter().any(|ask| name_of(&request.spec.turn, ask) == request.metadata.name)
        };
        let of_session = self.requests.values().filter(|request| {
            request.spec.session == session.metadata.name
                && (request.status.phase.is_pending() || stands_for(request))
        });
        of_session.cloned().collect()
    }

    pub(super) fn spent_requests(&self, session: &Name) -> Vec<PermissionRequest> {
        let is_spent = |request: &&PermissionRequest| {
            request.spec.session == *session && !request.status.phase.is_pending()
        };
        self.requests.values().filter(is_spent).cloned().collect()
    }
}

impl Sim {
    pub(super) fn write_requests(&mut self, change: &Change) {
        for request in &change.requests {
            let mut request = request.clone();
            if request.metadata.uid.is_empty() {
                request.metadata.uid = self.next_uid();
            }
            request.metadata.resource_version = self.shelf.next_revision();
            self.shelf.requests.insert(request.metadata.name.clone(), request);
        }
        for request in &change.remove_requests {
            self.shelf.requests.remove(&request.metadata.name);
        }
    }

    /// The agent is told; it hears what stands in its record, or `cancelled`.
    pub(super) fn answer_question(
        &mut self,
        session: &Uid,
        number: u64,
        answer: Answer,
    ) -> Outcome<Done> {
        let mono = self.mono();
        let Some(live) = self.daemon.as_mut().and_then(|daemon| daemon.live_mut(session)) else {
            return Ok(Done::Stale);
        };
        let Some(at) = live.asks.iter().position(|ask| ask.request == number) else {
            return Ok(Done::Yes);
        };
        let ask = live.asks.remove(at);
        live.last_activity = mono;
        let record = self.shelf.requests.values().find(|request| {
            name_of(&request.spec.turn, &ask) == request.metadata.name
                && request.metadata.owner_references.iter().any(|owner| owner.uid == ask.turn)
        });
        let says = record.map(|record| (record.status.phase, record.spec.decision));
        let is_true = match answer {
            Answer::Allow => says == Some((PermissionPhase::Answered, Some(Decision::Allow))),
            Answer::Reject => matches!(
                says,
                Some(
                    (PermissionPhase::Answered, Some(Decision::Deny))
                        | (PermissionPhase::TimedOut, _)
                )
            ),
            Answer::Cancel => says.is_none_or(|(phase, _)| !phase.is_pending()),
        };
        if !is_true {
            return broken(format!("an agent is told {answer:?}, its record says {says:?}"));
        }
        self.judge.seen.answers += 1;
        // The agent goes on: it is quiet from now.
        if let Some(tree) = self.machine.trees.get_mut(session) {
            tree.spoke_at = mono;
        }
        Ok(Done::Yes)
    }

    /// Somebody decides on something that waits, perhaps too late.
    pub(super) fn ask_decision(&mut self) {
        let open: Vec<_> = self
            .shelf
            .requests
            .values()
            .filter(|request| request.status.phase.is_pending() && request.spec.decision.is_none())
            .map(|request| (request.metadata.name.clone(), request.spec.session.clone()))
            .collect();
        if open.is_empty() {
            return;
        }
        let (name, session) = open[self.random.random_range(0..open.len())].clone();
        let decision = [Decision::Allow, Decision::Deny][self.random.random_range(0..2)];
        let revision = self.shelf.next_revision();
        if let Some(request) = self.shelf.requests.get_mut(&name) {
            request.spec.decision = Some(decision);
            request.metadata.resource_version = revision;
        }
        self.note(|| format!("{name} is decided: {decision:?}"));
        self.wake(&session);
    }
}

/// An agent asks in its turn, or takes a question back. `true`: it did.
pub(super) fn asks(live: &mut Live, nature: Nature, dice: u32) -> bool {
    let Some(prompt) = live.prompt.as_ref().filter(|prompt| prompt.end.is_none()) else {
        return false;
    };
    if prompt.cancel_asked_at.is_some() || nature == Nature::Deaf || live.stop.is_some() {
        return false;
    }
    match dice {
        80..90 => {
            let number = u64::from(prompt.steps) + 1;
            let turn = prompt.turn.clone();
            let call = ToolCall { id: format!("c{number}"), ..ToolCall::default() };
            live.asks.push(Ask::new(number, turn, call, Vec::new(), Vec::new()));
            live.has_asked = true;
            if let Some(prompt) = &mut live.prompt {
                prompt.steps += 1;
            }
            true
        }
        90..92 => live.asks.pop().is_some(),
        _ => false,
    }
}
