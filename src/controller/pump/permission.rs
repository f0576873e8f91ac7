//! What the pump makes of an agent's questions: the planner sees those that wait, the transcript has
//! all of them, with what was picked.

use super::Pump;
use crate::acp::event::PermissionAsked;
use crate::acp::permission::{Choice, Verdict};
use crate::api::Time;
use crate::api::permission::{PermissionOption, ToolCall};
use crate::plan::permission::Ask;
use crate::secret::Redactor;

impl Pump {
    pub(super) fn on_permission(&mut self, asked: PermissionAsked, now: Time) {
        // While it waits there is nothing to tell of an answer; it comes again with one.
        let waits = asked.verdict == Verdict::Wait;
        if let Some(output) = self.state.output.as_mut().filter(|_| !waits) {
            let mut shown = serde_json::json!({"tool": asked.tool.title, "option": asked.option});
            self.redactor.json(&mut shown);
            output.line(now, "permission", &shown.to_string(), false);
        }
        self.note_activity("permission", asked.tool.title.as_deref());
        let request = asked.request;
        {
            let mut view = self.entry.view();
            view.has_asked = true;
            match asked.verdict {
                Verdict::Wait => view.asks.extend(ask(asked, &self.redactor)),
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
/// What is shown of it holds no secret; what is answered goes by the request's own number.
fn ask(asked: PermissionAsked, redactor: &Redactor) -> Option<Ask> {
    let clean = |text: String| redactor.text(&text).into_owned();
    let call = ToolCall {
        id: clean(asked.tool.id),
        title: asked.tool.title.map(clean),
        kind: asked.tool.kind.map(clean),
        ..ToolCall::default()
    };
    let option = |choice: Choice| PermissionOption {
        option_id: clean(choice.id),
        kind: choice.kind,
        name: clean(choice.name),
    };
    let options = asked.offered.into_iter().map(option).collect();
    let targets = asked.targets.into_iter().map(clean).collect();
    Some(Ask::new(asked.request, asked.turn?, call, targets, options))
}
