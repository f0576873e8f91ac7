//! Start and stop of the daemon, in order.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::admission::{self, Admission};
use crate::api::config::{Config, Key, Loaded, LogFormat};
use crate::api::{FieldErrors, SessionSpec, TurnSpec, Uid};
use crate::cli::ServeOptions;
use crate::clock::{SharedClock, SystemClock};
use crate::controller::{self, Controller};
use crate::failpoint::{self, Point};
use crate::guard::{self, Guard};
use crate::manifests;
use crate::mcp;
use crate::plan::capacity::Limits;
use crate::plan::spending;
use crate::ports::Health as _;
use crate::rest;
use crate::runtime::{self, leftovers};
use crate::secret::{Lease, Redactor, Secret};
use crate::slots::{SharedSlots, Slots};
use crate::store::journal::Journal;
use crate::store::records::Records;
use crate::store::sqlite::{self, SqliteStore};
use crate::store::{SharedBlobs, SharedStore, keys};

use super::admit::{self, SharedHooks};
use super::health::{Machine, Status};
use super::hooks::Programs;
use super::listen::listen;
use super::{files, launcher, log};

/// How often the backstops look.
const BACKSTOP_EVERY: Duration = Duration::from_secs(5);

/// Why the daemon did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value of the configuration is wrong.
    #[error("the configuration is wrong: {0}")]
    Config(FieldErrors),
    /// The configuration file cannot be read.
    #[error("the configuration file {} cannot be used: {problem}", .path.display())]
    ConfigFile {
        /// Which.
        path: PathBuf,
        /// What is wrong, with its place.
        problem: String,
    },
    /// Neither a flag nor the environment tells where the data directory is.
    #[error("no data directory: set --data-dir, XDG_STATE_HOME or HOME")]
    NoDataDir,
    /// The store was not opened.
    #[error(transparent)]
    Open(#[from] sqlite::OpenError),
    /// The store failed during the start.
    #[error("the store failed during the start: {0}")]
    Store(#[from] crate::store::Error),
    /// The records failed during the start.
    #[error("the records could not be read during the start: {0}")]
    Records(#[from] crate::store::records::Error),
    /// The journal of prompts cannot be opened.
    #[error("the journal of prompts cannot be opened: {0}")]
    Journal(#[from] crate::store::journal::Error),
    /// Admission could not look at the store, or make the default namespace.
    #[error("the store could not be made ready for new records: {0}")]
    Admission(admission::Refusal),
    /// Something of the machine is missing.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// Processes cannot be started.
    #[error(transparent)]
    Launch(#[from] runtime::launch::Error),
}

pub(super) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |source| Error::System { what, source }
}

/// Runs the daemon until SIGTERM or SIGINT.
pub(super) async fn run(options: ServeOptions) -> Result<(), Error> {
    let loaded = load_config(&options)?;
    let redactor = Redactor::default();
    log::start(&loaded.config, &redactor);
    let data_dir = data_dir(&options, &loaded.config)?;
    // From here on: a hang-up must not end a daemon that has not come to listen for it.
    let hangup = signal(SignalKind::hangup()).map_err(system("SIGHUP"))?;
    runtime::become_subreaper().map_err(system("the daemon cannot adopt orphans"))?;
    let clock: SharedClock = Arc::new(SystemClock::new());
    let (store, opened) = {
        let data_dir = data_dir.clone();
        tokio::task::spawn_blocking(move || sqlite::open(&data_dir, sqlite::Options::default()))
            .await
            .map_err(|error| system("the store's thread failed")(io::Error::other(error)))??
    };
    let store = Arc::new(store);
    tracing::info!(data_dir = %data_dir.display(), ?opened, "the store is open");
    let config = loaded.config.clone();
    let daemon =
        Daemon::assemble(&options, config, data_dir, clock, &store, opened, redactor).await?;
    let reload = CancellationToken::new();
    let mut reloader = JoinSet::new();
    let guard = Arc::clone(&daemon.guard);
    reloader.spawn(follow_config(options, loaded, guard, hangup, reload.clone()));
    let outcome = daemon.serve().await;
    reload.cancel();
    while reloader.join_next().await.is_some() {}
    store.close().await;
    outcome
}

fn load_config(options: &ServeOptions) -> Result<Loaded, Error> {
    let file = match &options.config {
        None => None,
        Some(path) => {
            let fault = |problem: String| Error::ConfigFile { path: path.clone(), problem };
            let bytes = std::fs::read(path).map_err(|error| fault(error.to_string()))?;
            let value =
                manifests::yaml::decode_config::<serde_json::Value>(&bytes).map_err(|faults| {
                    fault(faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
                })?;
            Some(value)
        }
    };
    let mut sets = options.sets.clone();
    // Flags of their own stand above the file like `--set`.
    sets.extend(options.listen.iter().map(|listen| format!("listen={listen}")));
    sets.extend(options.log_level.iter().map(|level| format!("log.level={level}")));
    let mut loaded = crate::api::config::load(file.as_ref(), &sets).map_err(Error::Config)?;
    let config = &mut loaded.config;
    match options.log_format {
        Some(crate::cli::serve::LogFormat::Json) => config.log.format = LogFormat::Json,
        Some(crate::cli::serve::LogFormat::Text) => config.log.format = LogFormat::Text,
        None => {}
    }
    Ok(loaded)
}

fn data_dir(options: &ServeOptions, config: &Config) -> Result<PathBuf, Error> {
    let configured = config.data_dir.as_ref().map(PathBuf::from);
    configured.or_else(|| options.data_dir.clone()).ok_or(Error::NoDataDir)
}

/// Everything that runs.
struct Daemon {
    controller: controller::Service,
    manifests: manifests::Service,
    manifests_handle: manifests::Handle,
    listeners: Vec<rest::Listener>,
    router: axum::Router,
    facade: mcp::Service,
    guard: Arc<Guard>,
    connections_max: usize,
    programs: Arc<Programs>,
    address: SocketAddr,
    health: Arc<Status>,
    launcher: Arc<launcher::RuntimeLauncher>,
    live: controller::Handle,
    admission: Arc<Admission>,
    store: SharedStore,
    /// Ends the API's streams.
    api_stop: CancellationToken,
    /// The operator's token is a secret for as long as the daemon runs.
    _operator: Lease,
}

impl Daemon {
    async fn assemble(
        options: &ServeOptions,
        config: Config,
        data_dir: PathBuf,
        clock: SharedClock,
        sqlite: &Arc<SqliteStore>,
        opened: sqlite::Opened,
        redactor: Redactor,
    ) -> Result<Self, Error> {
        let (store, blobs): (SharedStore, SharedBlobs) = (sqlite.clone(), sqlite.clone());
        let records = Records::new(store.clone());
        let store_id = store.identity().await?;
        clear_leftovers(&records, &store_id).await?;
        let journal = recover(&records, &blobs, &data_dir, &clock, opened.was_unclean).await?;
        let slots = SharedSlots::new(tokio::sync::Mutex::new(Slots::load(&store).await?));
        let (launcher, vault) =
            launcher::RuntimeLauncher::with_vault(&store_id, &data_dir, &redactor, &config).await?;
        let programs = Arc::new(Programs::new(config.hooks.clone(), Arc::clone(&launcher)));
        let held = admit::Held { store: &store, blobs: &blobs, clock: &clock, slots: &slots };
        let admission = Arc::new(held.admission(&data_dir, &config, Arc::clone(&programs) as _));
        admission.begin().await.map_err(Error::Admission)?;
        // Before anything is started: an agent finds the daemon at this address.
        let (listeners, address, reach) = listen(&config, &data_dir, store_id.clone()).await?;
        let streams = Arc::new(mcp::Streams::default());
        let parts = controller::Parts {
            records,
            blobs: Arc::clone(&blobs),
            journal,
            launcher: Arc::clone(&launcher) as Arc<dyn controller::process::Launcher>,
            clock: Arc::clone(&clock),
            hooks: Some(Arc::clone(&programs) as SharedHooks),
            slots,
            streams: Some(Arc::clone(&streams) as Arc<dyn crate::ports::Streams>),
        };
        let how = loop_options(&config, store_id, opened, reach.clone())?;
        let (controller, live) = Controller::build(how, parts).await?;
        let watched = watched(options, &config);
        let (manifests, manifests_handle) = watch_files(watched, &admission, &store, &clock);
        let machine = Machine::of(&launcher, &data_dir, address);
        let health = Status::new(sqlite, &manifests_handle, &clock, machine);
        let token = files::operator_token(&data_dir).map_err(system("the operator's token"))?;
        let operator = redactor.hold([Secret::new(token.clone())]);
        let guard = guard(&token, &admission, &config, &clock);
        let api_stop = CancellationToken::new();
        let api = rest::State {
            store: Arc::clone(&store),
            blobs,
            admission: Arc::clone(&admission),
            live: live.live(),
            inputs: Arc::clone(&launcher) as Arc<dyn crate::ports::Inputs>,
            manifests: Arc::new(manifests_handle.clone()),
            secrets: vault,
            health: Arc::clone(&health) as Arc<dyn crate::ports::Health>,
            clock,
            mcp_url: reach.mcp_url,
            shutdown: api_stop.clone(),
        };
        let (tools, facade) = facade(&api, streams, Arc::clone(&launcher), &config, token);
        let router = guard::protect(rest::router(api).merge(tools), Arc::clone(&guard));
        Ok(Self {
            controller,
            manifests,
            manifests_handle,
            listeners,
            router,
            facade,
            guard,
            connections_max: config.http.connections as usize,
            address,
            health,
            launcher,
            programs,
            live,
            admission,
            store,
            api_stop,
            _operator: operator,
        })
    }

    /// Serves until a signal. The API goes on answering while the sessions stop; a second signal
    /// does not wait for them.
    async fn serve(self) -> Result<(), Error> {
        let mut terminate = signal(SignalKind::terminate()).map_err(system("SIGTERM"))?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(system("SIGINT"))?;
        let stop = CancellationToken::new();
        let mut services = JoinSet::new();
        services.spawn(rest::serve(
            self.listeners,
            self.router,
            self.connections_max,
            self.api_stop.clone(),
        ));
        services.spawn(self.facade.run(self.api_stop.clone()));
        services.spawn(self.manifests.run(stop.clone()));
        services.spawn(self.programs.run(self.api_stop.clone()));
        let store = Arc::clone(&self.store);
        services.spawn(backstops(self.launcher, self.live.clone(), store, stop.clone()));
        let mut looper = JoinSet::new();
        looper.spawn(self.controller.run(stop.clone()));
        let announce = announce(self.manifests_handle, self.live, self.health, self.address);
        services.spawn(announce);
        services.spawn(tend_namespaces(self.admission, stop.clone()));
        let asked = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        tokio::select! {
            () = asked => tracing::info!("stopping; a second signal does not wait"),
            ended = looper.join_next() => return Err(ended_early(ended)),
        }
        stop.cancel();
        let again = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        tokio::select! {
            _ = looper.join_next() => {}
            () = again => tracing::warn!("stopping at once"),
        }
        self.api_stop.cancel();
        let orderly = async { while services.join_next().await.is_some() {} };
        if tokio::time::timeout(Duration::from_secs(3), orderly).await.is_err() {
            tracing::warn!("some requests were cut off");
        }
        Ok(())
    }
}

fn guard(
    token: &str,
    admission: &Arc<Admission>,
    config: &Config,
    clock: &SharedClock,
) -> Arc<Guard> {
    let rules = guard::Rules::from(config);
    Arc::new(Guard::new(token, Arc::clone(admission), rules, Arc::clone(clock)))
}

/// What MCP is served by: the same as the API, and a look at the machine.
fn facade(
    api: &rest::State,
    streams: Arc<mcp::Streams>,
    launcher: Arc<launcher::RuntimeLauncher>,
    config: &Config,
    operator_token: String,
) -> (axum::Router, mcp::Service) {
    mcp::build(mcp::State {
        store: Arc::clone(&api.store),
        blobs: Arc::clone(&api.blobs),
        admission: Arc::clone(&api.admission),
        live: Arc::clone(&api.live),
        inputs: launcher,
        streams,
        clock: Arc::clone(&api.clock),
        options: mcp::Options::from(config),
        secret: operator_token.into_bytes(),
        shutdown: api.shutdown.clone(),
    })
}

fn loop_options(
    config: &Config,
    store_id: String,
    opened: sqlite::Opened,
    reach: controller::Reach,
) -> Result<controller::Options, Error> {
    Ok(controller::Options {
        store_id,
        boot_id: runtime::boot_id().map_err(system("the boot id cannot be read"))?,
        stopped_cleanly: !opened.is_new && !opened.was_unclean,
        permission_timeout: config.permission_timeout.get(),
        limits: turn_limits(config),
        tree_limits: tree_limits(config),
        idle_processes_per_parent_max: config.limits.max_idle_processes_per_parent as usize,
        mcp_servers: config.mcp_servers.clone(),
        retention: controller::Retention {
            reports_per_object: config.retention.reports_per_object as usize,
            reports: config.retention.reports as usize,
            events: config.retention.events.get(),
        },
        reach,
    })
}

pub(super) fn turn_limits(config: &Config) -> Limits {
    Limits {
        max_active_turns: config.limits.max_active_turns as usize,
        max_active_turns_per_parent: config.limits.max_active_turns_per_parent as usize,
    }
}

pub(super) fn tree_limits(config: &Config) -> spending::Limits {
    let limits = &config.limits;
    spending::Limits { max_tokens: limits.max_tokens_per_root, max_cost: limits.max_cost_per_root }
}

type Ended = Result<Result<(), crate::store::records::Error>, tokio::task::JoinError>;

fn ended_early(ended: Option<Ended>) -> Error {
    match ended {
        Some(Ok(Err(error))) => Error::Records(error),
        Some(Ok(Ok(()))) | None => system("the loop ended by itself")(io::Error::other("a defect")),
        Some(Err(error)) => system("the loop failed")(io::Error::other(error)),
    }
}

/// Takes over, at each SIGHUP, what of the configuration may change while the daemon runs: whom the
/// API answers and how fast. A wrong configuration changes nothing.
async fn follow_config(
    options: ServeOptions,
    mut loaded: Loaded,
    guard: Arc<Guard>,
    mut hangup: Signal,
    stop: CancellationToken,
) {
    loop {
        // Both lose nothing: signals that come together count as one.
        tokio::select! {
            () = stop.cancelled() => return,
            received = hangup.recv() => if received.is_none() { return },
        }
        match load_config(&options) {
            Err(error) => tracing::error!(%error, "SIGHUP: the configuration stays as it was"),
            Ok(newer) => {
                let changed = loaded.changes(&newer);
                let (later, now): (Vec<_>, Vec<_>) =
                    changed.iter().partition(|key| key.needs_restart);
                let paths = |keys: Vec<&Key>| keys.iter().map(|key| key.path).collect::<Vec<_>>();
                guard.reload(guard::Rules::from(&newer.config));
                tracing::info!(taken = ?paths(now), after_a_restart = ?paths(later), "SIGHUP");
                loaded = newer;
            }
        }
    }
}

/// Says that the daemon is ready, once it is.
#[expect(clippy::print_stdout, reason = "scripts and service managers wait for this line")]
async fn announce(
    mut manifests: manifests::Handle,
    live: controller::Handle,
    health: Arc<Status>,
    address: SocketAddr,
) {
    live.booted().await;
    if !manifests.synced().await {
        return;
    }
    health.set_ready();
    if health.is_ready() {
        println!("listening on http://{address}");
    }
}

fn watched(options: &ServeOptions, config: &Config) -> manifests::Options {
    manifests::Options {
        directories: manifest_directories(options, config),
        prune: options.prune,
        native: true,
    }
}

fn manifest_directories(options: &ServeOptions, config: &Config) -> Vec<PathBuf> {
    if !options.manifests.is_empty() {
        return options.manifests.clone();
    }
    match &config.manifests {
        Some(directories) => directories.iter().map(PathBuf::from).collect(),
        None => files::default_manifests(),
    }
}

fn watch_files(
    watched: manifests::Options,
    admission: &Arc<Admission>,
    store: &SharedStore,
    clock: &SharedClock,
) -> (manifests::Service, manifests::Handle) {
    let admission = Arc::clone(admission);
    manifests::Service::new(watched, admission, Arc::clone(store), Arc::clone(clock))
}

/// Kills what daemons before this one left running, before anything else is done.
async fn clear_leftovers(records: &Records, store_id: &str) -> Result<(), Error> {
    failpoint::reach(Point::SweepBefore);
    let mut recorded = Vec::new();
    for key in records.pointed_at(keys::AWAKE).await? {
        if let Some(session) = records.at::<SessionSpec>(&key).await? {
            recorded.extend(session.status.process);
        }
    }
    let report = leftovers::clear(recorded, store_id.to_owned())
        .await
        .map_err(system("leftovers of an earlier daemon cannot be looked for"))?;
    if !report.killed.is_empty() {
        tracing::warn!(pids = ?report.killed, "processes that an earlier daemon left were killed");
    }
    for other in &report.untouched {
        tracing::warn!(pid = other.pid, why = other.why, "a process was left alone");
    }
    if report.outcomes.contains(&leftovers::Outcome::Unconfirmed) {
        let source = io::Error::other("see the log; end it, then start again");
        return Err(system("a process of an earlier daemon could not be killed")(source));
    }
    failpoint::reach(Point::SweepAfter);
    Ok(())
}

/// Removes blobs whose turn is gone: prompts whose admission never happened. Only an unclean stop
/// can have left any.
async fn sweep_blobs(
    records: &Records,
    blobs: &SharedBlobs,
    was_unclean: bool,
) -> Result<(), Error> {
    if !was_unclean {
        return Ok(());
    }
    let (known, _) = records.store().list(keys::UIDS, None, 0).await?;
    let known: std::collections::HashSet<Uid> = known
        .iter()
        .filter_map(|record| record.key.as_str().strip_prefix(keys::UIDS).map(Uid::from))
        .collect();
    let removed = blobs.sweep(&|uid: &Uid| known.contains(uid)).await?;
    if removed > 0 {
        tracing::info!(removed, "blobs without an owner were removed");
    }
    Ok(())
}

/// Takes over what an earlier daemon left: its journal, blobs that nobody owns, and idempotency keys
/// that are past their time.
async fn recover(
    records: &Records,
    blobs: &SharedBlobs,
    data_dir: &Path,
    clock: &SharedClock,
    was_unclean: bool,
) -> Result<Arc<Journal>, Error> {
    let journal = Journal::open(data_dir)?;
    settle_journal(records, &journal).await?;
    sweep_blobs(records, blobs, was_unclean).await?;
    while records.free_spent(clock.now().time).await? > 0 {}
    failpoint::reach(Point::Recovered);
    Ok(Arc::new(journal))
}

/// Tells the journal which of its turns have ended: what it no longer needs it drops.
async fn settle_journal(records: &Records, journal: &Journal) -> Result<(), Error> {
    for turn in journal.open_turns() {
        let found = records.by_uid::<TurnSpec>(&turn).await?;
        if found.is_none_or(|found| found.status.phase.is_final()) {
            journal.settle(&turn).await?;
        }
    }
    Ok(())
}

/// Removes namespaces that are being deleted when their last session has gone.
async fn tend_namespaces(admission: Arc<Admission>, stop: CancellationToken) {
    while let Err(error) = admission.watch_namespaces(&stop).await {
        tracing::warn!(%error, "namespaces that are being deleted cannot be followed");
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(BACKSTOP_EVERY) => {}
        }
    }
}

/// The backstops, every five seconds: what carries this store's mark and belongs to no live process
/// is killed (shims that died unseen), and a store that an I/O error made read-only is opened again.
/// While there is neither a process nor a fault, a tick looks at two flags and does nothing.
async fn backstops(
    launcher: Arc<launcher::RuntimeLauncher>,
    live: controller::Handle,
    store: SharedStore,
    stop: CancellationToken,
) {
    let mut had_processes = false;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(BACKSTOP_EVERY) => {}
        }
        if let Some(fault) = store.fault() {
            match store.reset().await {
                Ok(()) => tracing::warn!(fault, "the store is open again"),
                Err(error) => tracing::error!(fault, %error, "the store cannot be opened again"),
            }
        }
        // One sweep more after the last process: what it left behind is found too.
        let has_processes = !live.sessions_with_process().is_empty();
        if !has_processes && !had_processes {
            continue;
        }
        had_processes = has_processes;
        match launcher.sweep().await {
            Ok(report) if report.killed.is_empty() => {}
            Ok(report) => {
                tracing::warn!(pids = ?report.killed, "orphans were killed that events missed")
            }
            Err(error) => tracing::warn!(%error, "the sweep for orphans failed"),
        }
    }
}
