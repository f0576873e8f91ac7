//! Whether agents can run: a small loop of its own beside that of the sessions.
//!
//! A pass reads one Agent, looks for its executable, and writes the status that follows
//! (`plan::agent`) if it differs. A pass comes with the start of the daemon and with every change
//! of an Agent; what asks for a fresh look is such a change too, an annotation. Nothing polls: a
//! program that is installed later is noticed when somebody asks, or when a session starts it.
//!
//! Invariants: one pass at a time; a pass takes no hint of what changed; it starts no process.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::report::Trigger;
use crate::api::{AgentSpec, Name, Namespace};
use crate::clock::SharedClock;
use crate::plan::agent::{Lookup, status};
use crate::store::records::{self, Page, Records};

use super::act::{self, Error};
use super::process::Launcher;
use super::queue::WorkQueue;

/// A look is a few calls into the file system and one commit.
const PASS_BUDGET: Duration = Duration::from_secs(5);

/// The loop over Agents.
pub(super) struct Agents {
    records: Records,
    launcher: Arc<dyn Launcher>,
    clock: SharedClock,
    queue: WorkQueue<Name>,
}

impl Agents {
    pub(super) fn new(records: Records, launcher: Arc<dyn Launcher>, clock: SharedClock) -> Self {
        let queue = WorkQueue::new(Arc::clone(&clock));
        Self { records, launcher, clock, queue }
    }

    /// An Agent changed.
    pub(super) fn changed(&self, name: Name) {
        self.queue.add(name, Trigger::Watch);
    }

    /// Queues every Agent.
    pub(super) async fn look_at_all(&self, trigger: Trigger) -> Result<(), records::Error> {
        for agent in self.records.list::<AgentSpec>(None, &Page::ALL).await?.items {
            self.queue.add(agent.metadata.name, trigger);
        }
        Ok(())
    }

    /// Takes names and runs passes until told to stop.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            // Both are cancel safe; a pass that is under way is let go of, and the next daemon
            // looks at everything.
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.work() => {}
            }
        }
    }

    /// One pass within its budget, in a task of its own so that a panic ends that pass alone.
    async fn work(self: &Arc<Self>) {
        let (name, _) = self.queue.next().await;
        let mut pass = JoinSet::new();
        let agents = Arc::clone(self);
        let key = name.clone();
        pass.spawn(async move { tokio::time::timeout(PASS_BUDGET, agents.pass(&key)).await });
        let failure = match pass.join_next().await {
            None | Some(Ok(Ok(Ok(())))) => None,
            Some(Ok(Ok(Err(error)))) if error.is_stale_world() => {
                self.queue.add(name.clone(), Trigger::Watch);
                None
            }
            Some(Ok(Ok(Err(error)))) => Some(error.to_string()),
            Some(Ok(Err(_))) => Some("a pass took too long".to_owned()),
            Some(Err(error)) => Some(error.to_string()),
        };
        match failure {
            None => self.queue.forget(&name),
            Some(failure) => {
                let pause_ms = self.queue.retry(name.clone()).as_millis();
                tracing::warn!(agent = %name, failure, pause_ms, "a look at an agent failed");
            }
        }
        self.queue.done(&name);
    }

    async fn pass(&self, name: &Name) -> Result<(), Error> {
        let Some(seen) = self.records.get::<AgentSpec>(&Namespace::default(), name).await? else {
            return Ok(());
        };
        let lookup = match self.launcher.find_agent(&seen) {
            Ok(Some(path)) => Lookup::Found(path.display().to_string()),
            Ok(None) => Lookup::BelowSession,
            Err(error) => Lookup::Missing(error.message),
        };
        let mut wanted = seen.clone();
        wanted.status = status(&seen, &lookup, self.clock.now().time);
        if wanted.status == seen.status {
            return Ok(());
        }
        act::record_agent(&self.records, &seen, &wanted).await
    }
}
