//! The step that answers an agent's question.

use super::Error;
use crate::acp::connection::Refused;
use crate::acp::permission as acp;
use crate::api::Uid;
use crate::controller::Controller;
use crate::plan::permission::Answer;

impl Controller {
    /// A question that the connection does not hold any more is left alone there.
    pub(super) fn answer(&self, session: &Uid, request: u64, answer: Answer) -> Result<(), Error> {
        let entry = self.entry(session)?;
        let answer = match answer {
            Answer::Allow => acp::Answer::Allow,
            Answer::Reject => acp::Answer::Reject,
            Answer::Cancel => acp::Answer::Cancel,
        };
        match entry.acp.answer(request, answer) {
            // Nobody can be told any more: the question goes with the process.
            Ok(()) | Err(Refused::Closed) => {}
            Err(refused @ Refused::Full) => return Err(refused.into()),
        }
        let now = self.clock.now().mono;
        let mut view = entry.view();
        view.asks.retain(|ask| ask.request != request);
        // From here on it is the agent that is waited for.
        view.last_activity = now;
        Ok(())
    }
}
