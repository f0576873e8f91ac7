//! The step `Submit`: journals a turn and gives its prompt to the agent.

use serde_json::value::RawValue;

use super::Error;
use crate::api::session::RunBudget;
use crate::api::{Turn, Uid};
use crate::controller::{Controller, output};
use crate::plan::world::{CallFailure, CallFailureKind, Prompt, PromptEnd};
use crate::plan::{World, introduction};
use crate::store::{BlobId, Stream};

/// The largest prompt: `limits.promptBytes` bounds it at admission, this bounds the read.
const PROMPT_BYTES_MAX: u64 = 16 * 1024 * 1024;

impl Controller {
    pub(super) async fn submit(
        &self,
        world: &World,
        turn: &Uid,
        budget: &RunBudget,
    ) -> Result<(), Error> {
        let entry = self.entry(&world.session.metadata.uid)?;
        let Some(open) = world.turns.iter().find(|open| open.record.metadata.uid == *turn) else {
            return Err(Error::ProcessGone);
        };
        if self.journal.contains(turn) {
            return Err(Error::InJournal);
        }
        let blocks = self.blocks(&open.record).await?;
        let capabilities = super::capabilities(&entry);
        let blocks = match introduction::as_block(&world.session, &capabilities) {
            Some(block) => preceded_by(&block, &blocks)?,
            None => blocks,
        };
        self.journal.record(turn).await.map_err(|error| Error::Journal(error.to_string()))?;
        let now = self.clock.now().mono;
        {
            let mut view = entry.view();
            view.last_activity = now;
            view.is_active_after_turn = false;
            view.last_progress = now;
            view.prompt = Some(Prompt::new(turn.clone(), budget.clone()));
        }
        *entry.activity() =
            crate::ports::LiveActivity { turn: Some(turn.clone()), ..Default::default() };
        if let Err(refused) = entry.acp.prompt(turn.clone(), blocks) {
            // Surely not written, and never will be: its uid is in the journal.
            let message = format!("the prompt could not be given to the agent: {refused}");
            let failure = CallFailure { kind: CallFailureKind::NeverWritten, code: 0, message };
            if let Some(prompt) = entry.view().prompt.as_mut().filter(|p| p.turn == *turn) {
                prompt.end =
                    Some(PromptEnd { answer: Err(failure), is_after_cancel: false, usage: None });
            }
            self.queue.add(entry.key.clone(), crate::api::report::Trigger::Process);
        }
        Ok(())
    }

    /// A turn's prompt as a JSON list of content blocks.
    async fn blocks(&self, turn: &Turn) -> Result<Box<RawValue>, Error> {
        let fault = |error: serde_json::Error| Error::Prompt(error.to_string());
        let text_block = |text: &str| serde_json::json!([{"type": "text", "text": text}]);
        let spec = &turn.spec;
        if let Some(text) = &spec.prompt {
            return serde_json::value::to_raw_value(&text_block(text)).map_err(fault);
        }
        if let Some(blocks) = &spec.prompt_blocks {
            return serde_json::value::to_raw_value(blocks).map_err(fault);
        }
        let Some(stored) = &spec.prompt_blob else {
            return Err(Error::Prompt("the turn has none".to_owned()));
        };
        let blob = BlobId { owner: turn.metadata.uid.clone(), stream: Stream::Prompt };
        let bytes =
            output::read_whole(&self.blobs, &blob, stored.bytes.min(PROMPT_BYTES_MAX)).await?;
        let text = String::from_utf8(bytes).map_err(|error| Error::Prompt(error.to_string()))?;
        if stored.blocks {
            RawValue::from_string(text).map_err(fault)
        } else {
            serde_json::value::to_raw_value(&text_block(&text)).map_err(fault)
        }
    }
}

/// A list of content blocks with one more at its beginning; the others stay as they are written.
fn preceded_by(block: &serde_json::Value, blocks: &RawValue) -> Result<Box<RawValue>, Error> {
    let rest = blocks.get().trim_start().strip_prefix('[').map(str::trim_start);
    let Some(rest) = rest else { return Err(Error::Prompt("it is no list".to_owned())) };
    let comma = if rest.starts_with(']') { "" } else { "," };
    RawValue::from_string(format!("[{block}{comma}{rest}"))
        .map_err(|error| Error::Prompt(error.to_string()))
}
