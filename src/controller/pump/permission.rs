//! What the pump makes of an agent's questions: the planner sees those that wait, the transcript has
//! all of them, with what was picked.

use super::Pump;
use crate::acp::event::PermissionAsked;
use crate::acp::permission::{Choice, Verdict};
use crate::api::Time;
use crate::api::permission::{PermissionOption, ToolCall};
use crate::plan::permission::Ask;

impl Pump {
    pub(super) fn on_permission(&mut self, asked: PermissionAsked, now: Time) {
        // While it waits there is nothing to tell of an answer; it comes again with one.
        let waits = asked.verdict == Verdict::Wait;
        if let Some(output) = self.state.output.as_mut().filter(|_| !waits) {
            let shown = serde_json::json!({"tool": asked.tool.title, "option": asked.option});
            output.line(now, "permission", &shown.to_string(), false);
        }
        self.note_activity("permission", asked.tool.title.as_deref());
        let request = asked.request;
        {
            let mut view = self.entry.view();
            view.has_asked = true;
            match asked.verdict {
                Verdict::Wait => view.asks.extend(ask(asked)),
                Verdict::Answered | Verdict::Cancelled => {
                    view.asks.retain(|ask| ask.request != request);
                }
                // Answered at once, by the policy.
                Verdict::Allow
                | Verdict::Reject
                | Verdict::RejectOutside
                | Verdict::RejectOutOfTurn => return,
            }
        }
        self.poke();
    }
}

/// A question that waits; the connection lets none wait outside a turn.
fn ask(asked: PermissionAsked) -> Option<Ask> {
    let call = ToolCall {
        id: asked.tool.id,
        title: asked.tool.title,
        kind: asked.tool.kind,
        ..ToolCall::default()
    };
    let option = |choice: Choice| PermissionOption {
        option_id: choice.id,
        kind: choice.kind,
        name: choice.name,
    };
    let options = asked.offered.into_iter().map(option).collect();
    Some(Ask::new(asked.request, asked.turn?, call, asked.targets, options))
}
