//! The step `Launch`: starts a process and takes it into the daemon's hands.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::Error;
use crate::acp::connection::{self, connect};
use crate::acp::roots::Roots;
use crate::api::session::Scope;
use crate::api::token::SecretToken;
use crate::api::{Agent, Incarnation, Uid};
use crate::controller::live::{Entry, Registry};
use crate::controller::process::{
    Access, LaunchError, LaunchRequest, Launched, Launcher, ProcessEvent,
};
use crate::controller::pump::{Pump, State};
use crate::controller::services::Desk;
use crate::controller::{Controller, ObjectKey, Queue};
use crate::failpoint::{self, Point};
use crate::plan::World;
use crate::plan::usage::Meter;
use crate::plan::world::{Acp, Finding, Live, Stage, StartFailure};

/// How far reading runs ahead of the pump. Small: a waiting event may hold a line of 10 MiB.
const ACP_EVENTS_MAX: usize = 16;

impl Controller {
    pub(super) async fn launch(
        &self,
        key: &ObjectKey,
        world: &World,
        incarnation: Incarnation,
        token: Option<SecretToken>,
    ) -> Result<(), Error> {
        let session = &world.session;
        let uid = &session.metadata.uid;
        if self.registry.knows(uid, incarnation) {
            return Ok(());
        }
        let (Finding::Found(agent), Finding::Found(scope)) = (&world.agent, &world.scope) else {
            return Err(Error::ProcessGone);
        };
        let instance = crate::plan::instance(&world.daemon.store_id, uid.as_str(), incarnation.0);
        let mut session = session.clone();
        session.status.incarnation = incarnation;
        let url = self.options.reach.url.clone();
        let request = LaunchRequest {
            session,
            agent: (**agent).clone(),
            scope: (**scope).clone(),
            instance,
            access: token.clone().map(|token| Access { url, token }),
        };
        self.registry.starting(uid.clone(), incarnation);
        failpoint::reach(Point::LaunchBefore);
        // A start goes on if the pass is given up: what it brings is claimed, or killed and waited
        // for. Until then a process may exist, and the planner is told so.
        let (sender, started) = oneshot::channel();
        let start = Start {
            launcher: Arc::clone(&self.launcher),
            registry: Arc::clone(&self.registry),
            queue: Arc::clone(&self.queue),
            key: key.clone(),
            session: uid.clone(),
        };
        self.spawn(start.run(request, sender));
        match started.await {
            Ok(Ok(launched)) => {
                failpoint::reach(Point::LaunchAfter);
                self.adopt(key, world, incarnation, agent, scope, Taken { launched, token });
            }
            Ok(Err(error)) => {
                let failure = StartFailure { reason: error.reason, message: error.message };
                self.registry.not_started(uid.clone(), failure);
            }
            // It panicked: nothing is known of a process.
            Err(_) => tracing::error!(session = %key, "a start ended without an outcome"),
        }
        self.queue.add(key.clone(), crate::api::report::Trigger::Process);
        Ok(())
    }

    /// How the connection to an agent behaves.
    fn options_of(&self, world: &World, agent: &Agent, scope: &Scope) -> connection::Options {
        let asked = world.session.spec.permissions.unwrap_or(agent.spec.permissions);
        let mut roots = vec![std::path::PathBuf::from(&scope.cwd)];
        roots.extend(scope.additional_directories.iter().map(Into::into));
        connection::Options {
            permissions: asked.min(agent.spec.permissions),
            roots: Roots::new(roots),
            category_map: agent.spec.category_map.clone(),
            additional_directories: agent.spec.additional_directories,
            clock: Arc::clone(&self.clock),
        }
    }

    /// Takes a started process into the daemon's hands.
    fn adopt(
        &self,
        key: &ObjectKey,
        world: &World,
        incarnation: Incarnation,
        agent: &Agent,
        scope: &Scope,
        Taken { launched, token }: Taken,
    ) {
        let now = self.clock.now();
        let options = self.options_of(world, agent, scope);
        let (events, acp_events) = mpsc::channel(ACP_EVENTS_MAX);
        let (handle, service) = connect(launched.stdin, launched.stdout, options, events);
        let (desk, work) = Desk::new(launched.services, handle.clone());
        let redactor = self.launcher.redactor();
        let stderr = crate::runtime::stderr::Ring::without_secrets(redactor.clone());
        let view = Live {
            incarnation,
            stage: Stage::Gated { identity: launched.identity },
            pid: None,
            launched_at: now.mono,
            acp: Acp::default(),
            prompt: None,
            asks: Vec::new(),
            has_asked: false,
            stop: None,
            last_activity: now.mono,
            last_progress: now.mono,
            tool_heard: None,
            usage: Meter::of_record(world.session.status.usage.as_ref()),
            is_active_after_turn: false,
            stderr_tail: String::new(),
            noise_lines: 0,
            sandbox: launched.sandbox,
        };
        let entry = Arc::new(Entry::new(
            key.clone(),
            agent.clone(),
            view,
            handle,
            launched.control,
            stderr.clone(),
            token,
        ));
        self.registry.insert(world.session.metadata.uid.clone(), Arc::clone(&entry));
        let stderr_end = CancellationToken::new();
        let pump = Pump {
            key: key.clone(),
            tells_use: self.options.tree_limits.is_set(),
            entry,
            registry: Arc::clone(&self.registry),
            queue: Arc::clone(&self.queue),
            blobs: Arc::clone(&self.blobs),
            records: self.records.clone(),
            clock: Arc::clone(&self.clock),
            acp: acp_events,
            process: launched.events,
            desk,
            stderr_end: stderr_end.clone(),
            redactor,
            state: State::default(),
        };
        let drain = async move {
            if let Err(error) = stderr.drain(launched.stderr).await {
                tracing::debug!(%error, "standard error could not be read to its end");
            }
            stderr_end.cancel();
        };
        self.spawn(async move {
            tokio::join!(service.run(), pump.run(), work.run(), drain);
        });
    }
}

/// A started process and the token that it has.
struct Taken {
    launched: Launched,
    token: Option<SecretToken>,
}

/// A start of a process, which outlives the pass that asked for it.
struct Start {
    launcher: Arc<dyn Launcher>,
    registry: Arc<Registry>,
    queue: Arc<Queue>,
    key: ObjectKey,
    session: Uid,
}

impl Start {
    async fn run(
        self,
        request: LaunchRequest,
        claimed_by: oneshot::Sender<Result<Launched, LaunchError>>,
    ) {
        let unclaimed = match claimed_by.send(self.launcher.launch(request).await) {
            Ok(()) => return,
            Err(outcome) => outcome,
        };
        let message = match unclaimed {
            Ok(mut launched) => {
                launched.control.kill_tree();
                loop {
                    match launched.events.next().await {
                        Some(ProcessEvent::TreeEmpty) => break,
                        Some(_) => {}
                        // Not proven gone, and nobody left to tell: it counts as running.
                        None => return,
                    }
                }
                "the launch took too long; what it started was killed".to_owned()
            }
            Err(error) => error.message,
        };
        let failure = StartFailure { reason: "LaunchTimeout", message };
        self.registry.not_started(self.session, failure);
        self.queue.add(self.key, crate::api::report::Trigger::Process);
    }
}
