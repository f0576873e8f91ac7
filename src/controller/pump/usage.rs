//! What the pump makes of an agent's reports of tokens and cost, and of what a turn has used.

use super::Pump;
use crate::acp::event::{Update, UpdateKind};
use crate::api::Uid;
use crate::clock::Mono;
use crate::plan::budget;
use crate::plan::usage::{Report, Spent};
use crate::plan::world::OpenAs;

impl Pump {
    /// Takes a report of tokens and cost in.
    pub(super) fn note_usage(&mut self, update: &Update) {
        if update.kind != UpdateKind::UsageUpdate {
            return;
        }
        let Some(told) = crate::acp::usage::read(&update.raw) else { return };
        let currency = told.currency.map(|text| self.redactor.text(&text).into_owned());
        let report = Report { used: told.used, size: told.size, cost: told.cost, currency };
        let mut view = self.entry.view();
        let is_new = matches!(view.acp.opened_as, Some(OpenAs::New));
        let spent = view.usage.take(report, is_new);
        let is_of_turn = |turn: &Uid| match &update.turn {
            Some(of) => of == turn,
            None => update.late && self.state.held.as_ref().is_some_and(|held| held.turn == *turn),
        };
        let prompt = view.prompt.as_mut().filter(|it| is_of_turn(&it.turn));
        if let Some(prompt) = prompt {
            prompt.spent.tokens = prompt.spent.tokens.saturating_add(spent.tokens);
            prompt.spent.cost += spent.cost;
        }
        drop(view);
        if self.tells_use && spent != Spent::default() {
            self.poke();
        }
        // Many agents report right behind their answer: once a turn that is worth a look.
        if update.late && !self.state.is_late_usage_told {
            self.state.is_late_usage_told = true;
            self.poke();
        }
    }

    /// The turn may have used more than its budget by now: the planner is told once.
    pub(super) fn note_excess(&self, turn: &Uid, now: Mono) {
        let mut is_new = false;
        self.with_prompt(turn, |prompt| {
            if prompt.over_budget_since.is_none() && budget::excess(prompt).is_some() {
                prompt.over_budget_since = Some(now);
                is_new = true;
            }
        });
        if is_new {
            self.poke();
        }
    }
}
