//! Carries out what agents ask of us, beside everything else: neither the connection nor the pump
//! waits for a file or a terminal.
//!
//! Invariants: a call begins in the order in which it came, so that a terminal is of the turn that
//! asked for it; few files are at work at once, and what was read is held until the connection has
//! taken it. How many calls there are is bounded by the connection.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::process::Services;
use crate::acp::connection::Handle;
use crate::acp::services::{Call, Job, Refusal, Reply};

/// How many calls may be begun and not taken up: more than a connection leaves unanswered.
const BEGUN_MAX: usize = 128;
/// How many files of one agent are read or written at once.
const FILES_MAX: usize = 4;

/// A call that has begun.
struct Begun {
    request: u64,
    is_file: bool,
    outcome: BoxFuture<'static, Result<Reply, Refusal>>,
}

/// Takes calls of one agent.
pub(super) struct Desk {
    services: Box<dyn Services>,
    begun: mpsc::Sender<Begun>,
}

/// Does the work of a [`Desk`].
pub(super) struct Work {
    begun: mpsc::Receiver<Begun>,
    acp: Handle,
}

impl Desk {
    /// For one agent, with the task that has to be run beside it.
    pub(super) fn new(services: Box<dyn Services>, acp: Handle) -> (Self, Work) {
        let (sender, begun) = mpsc::channel(BEGUN_MAX);
        (Self { services, begun: sender }, Work { begun, acp })
    }

    /// Begins a call.
    pub(super) fn begin(&self, Job { request, call }: Job) {
        let is_file = matches!(call, Call::Read { .. } | Call::Write { .. });
        let outcome = self.services.serve(call);
        if self.begun.try_send(Begun { request, is_file, outcome }).is_err() {
            tracing::error!(request, "a call of an agent was dropped (a defect)");
        }
    }

    /// The turn is cancelled.
    pub(super) fn cancel(&self) {
        self.services.kill_terminals();
    }

    /// The turn is over.
    pub(super) fn end_turn(&self) {
        self.services.release_terminals();
    }
}

impl Work {
    /// Works until the desk is gone; what is unanswered then stays so.
    pub(super) async fn run(mut self) {
        let files = Arc::new(Semaphore::new(FILES_MAX));
        let mut calls: JoinSet<()> = JoinSet::new();
        while let Some(Begun { request, is_file, outcome }) = self.begun.recv().await {
            while calls.try_join_next().is_some() {}
            let (files, acp) = (Arc::clone(&files), self.acp.clone());
            calls.spawn(async move {
                // It is never closed.
                let permit = if is_file { files.acquire().await.ok() } else { None };
                let outcome = outcome.await;
                acp.serve(request, outcome).await;
                drop(permit);
            });
        }
    }
}
