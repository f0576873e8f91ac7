//! The MCP facade: tools for the sessions that may delegate, over streamable HTTP.
//!
//! Stands before the loop, beside `rest`: it puts desired state into the store through `admission`
//! alone, and says what the daemon saw in words that a model can use. `/mcp` serves every toolset of
//! the token, `/mcp/<toolset>` one of them. The protocol's revisions with `initialize` and sessions
//! and the one without are served on the same paths.
//!
//! Invariants: who calls comes from the verified token and from nothing else; every read of a
//! session takes the caller; a turn's life is in its record, never in a call or a connection; no
//! call waits longer than `mcp.maxWait`; sessions, calls, bodies and answers are bounded.
//!
//! Absent on purpose: checks of Host, Origin and token (the guard stands before this), what is
//! decided about a prompt (`admission`), and for now the other toolsets.

mod call;
mod failure;
mod http;
mod input;
mod server;
mod session;
mod spawn;
mod streams;
#[cfg(test)]
mod tests;
mod updates;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::any;
use tokio_util::sync::CancellationToken;

pub use streams::Streams;
pub use updates::Service;

use crate::admission::Admission;
use crate::api::config::Config;
use crate::boundary::cursor::Cursors;
use crate::clock::SharedClock;
use crate::ports::{Inputs, Live};
use crate::store::records::Records;
use crate::store::{SharedBlobs, SharedStore};
use session::Sessions;
use updates::Updates;

/// What the configuration says about calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The longest that a call waits; zero: no limit.
    pub max_wait: Duration,
    /// How often a waiting call tells of its progress.
    pub progress_every: Duration,
}

impl From<&Config> for Options {
    fn from(config: &Config) -> Self {
        Self {
            max_wait: config.mcp.max_wait.get(),
            progress_every: config.mcp.progress_every.get(),
        }
    }
}

/// What the facade is built on.
pub struct State {
    /// Records are read here; nothing here writes them.
    pub store: SharedStore,
    /// Responses are read here.
    pub blobs: SharedBlobs,
    /// The one way in for desired state, and for reads of a caller's sessions.
    pub admission: Arc<Admission>,
    /// What the controller holds in memory.
    pub live: Arc<dyn Live>,
    /// What a launch would find on this machine.
    pub inputs: Arc<dyn Inputs>,
    /// Where callers are told of their children; the controller tells.
    pub streams: Arc<Streams>,
    /// For idle sessions.
    pub clock: SharedClock,
    /// Waits and bounds.
    pub options: Options,
    /// What only this daemon knows, and knows again after a restart: cursors are made with it.
    pub secret: Vec<u8>,
    /// Ends streams and waits.
    pub shutdown: CancellationToken,
}

/// What every call can use.
struct Shared {
    records: Records,
    blobs: SharedBlobs,
    admission: Arc<Admission>,
    live: Arc<dyn Live>,
    inputs: Arc<dyn Inputs>,
    options: Options,
    cursors: Cursors,
    sessions: Arc<Sessions>,
    updates: Arc<Updates>,
    streams: Arc<Streams>,
    shutdown: CancellationToken,
}

/// The facade as routes, to be put behind the guard, and as the service that follows the store.
pub fn build(state: State) -> (Router, Service) {
    let sessions = Arc::new(Sessions::new(state.clock));
    let updates = Arc::new(Updates::new());
    let service = Service {
        store: Arc::clone(&state.store),
        sessions: Arc::clone(&sessions),
        updates: Arc::clone(&updates),
    };
    let shared = Arc::new(Shared {
        records: Records::new(state.store),
        blobs: state.blobs,
        admission: state.admission,
        live: state.live,
        inputs: state.inputs,
        options: state.options,
        cursors: Cursors::new(&state.secret),
        sessions,
        updates,
        streams: state.streams,
        shutdown: state.shutdown,
    });
    let endpoint = Arc::new(http::Endpoint::new(shared));
    let router = Router::new()
        .route("/mcp", any(http::answer))
        .route("/mcp/{toolset}", any(http::answer))
        .with_state(endpoint);
    (router, service)
}
