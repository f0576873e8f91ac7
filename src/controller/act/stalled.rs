//! A pass hung or panicked: its session says so, since no pass of its own can.
//!
//! Written beside the pass, which was given up by then. The next pass that comes through takes the
//! condition off. The event counts how often.

use crate::api::SessionSpec;
use crate::controller::{Controller, ObjectKey, PASS_BUDGET};
use crate::plan::status;
use crate::store::records::Txn;

impl Controller {
    /// Shows on a session that the daemon does not get on with it. What cannot be written is said
    /// with the next failure.
    pub(in crate::controller) async fn tell_stalled(&self, key: &ObjectKey, why: &str) {
        let written = tokio::time::timeout(PASS_BUDGET, self.write_stalled(key, why)).await;
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(session = %key, %error, "a stalled session cannot be told of");
            }
            Err(_) => tracing::warn!(session = %key, "a stalled session cannot be told of in time"),
        }
    }

    async fn write_stalled(&self, key: &ObjectKey, why: &str) -> Result<(), super::Error> {
        let found = self.records.get::<SessionSpec>(&key.namespace, &key.name).await?;
        let Some(seen) = found else { return Ok(()) };
        let now = self.clock.now().time;
        self.reporter.stalled(&seen.metadata, why, now);
        let wanted = status::stalled(&seen, why, now);
        if wanted != seen {
            Txn::new().update(&seen, &wanted).commit(self.records.store().as_ref()).await?;
        }
        Ok(())
    }
}
