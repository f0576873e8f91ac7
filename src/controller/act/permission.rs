//! The step that answers an agent's question, and the end of the questions of a turn that is gone.

use super::Error;
use crate::acp::connection::Refused;
use crate::acp::permission as acp;
use crate::api::Uid;
use crate::controller::Controller;
use crate::plan::permission::Answer;
use crate::store::records::{self, Records, removals};

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

/// Removes the requests of a turn that is gone. What fails here goes with the session.
pub(super) async fn drop_of(records: Records, turn: Uid) {
    let outcome = async {
        for txn in removals(&records.requests_of(&turn).await?) {
            txn.commit(records.store().as_ref()).await?;
        }
        Ok::<_, records::Error>(())
    };
    if let Err(error) = outcome.await {
        tracing::warn!(%turn, %error, "the requests of a turn that is gone could not be removed");
    }
}
