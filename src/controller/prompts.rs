//! The port to the journal of prompts, as a trait: its file is written by a thread of its own,
//! which a test with paused time cannot wait for.

use async_trait::async_trait;

use crate::api::Uid;
use crate::store::journal::{Error, Journal};

/// Which turns' prompts may have been given to an agent.
#[async_trait]
pub trait PromptLog: Send + Sync {
    /// Puts a turn's uid on disk. The prompt may be sent after this has returned `Ok`.
    ///
    /// # Errors
    ///
    /// It is there already, or not known to be on disk: the prompt must not be sent.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped the uid may be recorded, and its prompt then counts as sent.
    async fn record(&self, turn: &Uid) -> Result<(), Error>;

    /// Whether the prompt of this turn may have been sent.
    fn contains(&self, turn: &Uid) -> bool;

    /// Tells that a turn is final in the store.
    ///
    /// # Errors
    ///
    /// What is not needed any more could not be removed; that does no harm.
    async fn settle(&self, turn: &Uid) -> Result<(), Error>;
}

#[async_trait]
impl PromptLog for Journal {
    async fn record(&self, turn: &Uid) -> Result<(), Error> {
        Self::record(self, turn).await
    }

    fn contains(&self, turn: &Uid) -> bool {
        Self::contains(self, turn)
    }

    async fn settle(&self, turn: &Uid) -> Result<(), Error> {
        Self::settle(self, turn).await
    }
}
