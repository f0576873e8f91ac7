//! The HTTP/1.1 server: connections, their number and their patience.
//!
//! One task a connection, all in one set that ends with the server. `axum::serve` is not used
//! because it bounds neither the number of connections nor the time a header may take.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::status::Failure;
use crate::guard::AtSocket;

/// How long a request's line and headers may take, and an idle connection is kept.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Line and headers of one request; a browser's are below 16 KiB.
const HEADER_BYTES_MAX: usize = 64 * 1024;
/// How long running requests have after the shutdown was asked for.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// What an agent at the operator's socket gets: so many answers at a time, each with so long for the
/// question. More are hung up on, so that none of them keeps an operator out.
const AGENTS_AT_ONCE: usize = 16;
const AGENT_HEADER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long nothing is accepted after accepting failed (usually: no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who is at the other end of the socket, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Of the daemon's own user, and in no tree of any daemon: the operator, without a token.
    Operator,
    /// Another user, or one that cannot be proved: it has to have a token.
    Other,
    /// Inside an agent's tree: refused, whatever it sends.
    Agent,
}

/// Judges who is at the other end of a connection.
pub type Judge = Arc<dyn Fn(BorrowedFd<'_>) -> Peer + Send + Sync>;

/// Where connections come from.
pub enum Listener {
    /// TCP, loopback by default.
    Tcp(TcpListener),
    /// The socket in the data directory, and who is who there.
    Unix(UnixListener, Judge),
}

/// An accepted connection.
enum Accepted {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream, Peer),
}

impl Listener {
    /// # Cancel safety
    ///
    /// No connection is lost if the future is dropped (tokio's `accept`).
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Small answers would wait for the client's delayed acknowledgement.
                stream.set_nodelay(true)?;
                Ok(Accepted::Tcp(stream))
            }
            Self::Unix(listener, judge) => {
                let (stream, _) = listener.accept().await?;
                let peer = judge(stream.as_fd());
                Ok(Accepted::Unix(stream, peer))
            }
        }
    }
}

/// Places for connections. Operators at the socket have their own, which nobody else can fill.
struct Slots {
    all: Arc<Semaphore>,
    operators: Arc<Semaphore>,
    agents: Arc<Semaphore>,
}

impl Slots {
    /// Whose places the connections of a listener take before anybody knows who they are.
    fn of(&self, listener: &Listener) -> &Arc<Semaphore> {
        match listener {
            Listener::Tcp(_) => &self.all,
            Listener::Unix(..) => &self.operators,
        }
    }
}

/// Serves until `shutdown`, then lets running requests end for a few seconds. At most
/// `connections_max` (`http.connections`) are open at a time, and as many of operators at the socket;
/// more wait in the kernel's queue. Others at the socket are hung up on if there is no place.
///
/// Streams (watches, followed logs) must end by the same token, else they are cut off.
/// A listener that cannot accept is tried again and logged.
pub async fn serve(
    listeners: Vec<Listener>,
    router: Router,
    connections_max: usize,
    shutdown: CancellationToken,
) {
    let slots = Arc::new(Slots {
        all: Arc::new(Semaphore::new(connections_max)),
        operators: Arc::new(Semaphore::new(connections_max)),
        agents: Arc::new(Semaphore::new(AGENTS_AT_ONCE)),
    });
    let mut servers = JoinSet::new();
    for listener in listeners {
        let (router, slots, shutdown) = (router.clone(), Arc::clone(&slots), shutdown.clone());
        servers.spawn(accept_all(listener, router, slots, shutdown));
    }
    while let Some(ended) = servers.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a listener's task failed");
        }
    }
}

async fn accept_all(
    listener: Listener,
    router: Router,
    slots: Arc<Slots>,
    shutdown: CancellationToken,
) {
    let mut connections = JoinSet::new();
    loop {
        // All branches are cancel-safe: a slot or a connection is taken whole or not at all.
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            next = next_connection(&listener, slots.of(&listener)) => match next {
                Ok(Some((accepted, slot))) => {
                    connect(&mut connections, accepted, (slot, &slots), &router, &shutdown);
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "no connection could be accepted; trying again");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_TIMEOUT, drained).await.is_err() {
        tracing::warn!(left = connections.len(), "connections were cut off at the shutdown");
    }
}

/// A connection and the slot that it takes; `None` once the slots are closed.
async fn next_connection(
    listener: &Listener,
    slots: &Arc<Semaphore>,
) -> io::Result<Option<(Accepted, OwnedSemaphorePermit)>> {
    let Ok(slot) = Arc::clone(slots).acquire_owned().await else { return Ok(None) };
    Ok(Some((listener.accept().await?, slot)))
}

fn connect(
    connections: &mut JoinSet<()>,
    accepted: Accepted,
    (slot, slots): (OwnedSemaphorePermit, &Slots),
    router: &Router,
    shutdown: &CancellationToken,
) {
    let (router, shutdown) = (router.clone(), shutdown.clone());
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX);
    match accepted {
        Accepted::Tcp(stream) => {
            connections.spawn(converse(stream, slot, router, http, shutdown));
        }
        Accepted::Unix(stream, Peer::Operator) => {
            let router = router.layer(Extension(AtSocket));
            connections.spawn(converse(stream, slot, router, http, shutdown));
        }
        Accepted::Unix(stream, Peer::Other) => {
            drop(slot);
            if let Ok(slot) = Arc::clone(&slots.all).try_acquire_owned() {
                connections.spawn(converse(stream, slot, router, http, shutdown));
            }
        }
        Accepted::Unix(stream, Peer::Agent) => {
            drop(slot);
            if let Ok(slot) = Arc::clone(&slots.agents).try_acquire_owned() {
                http.header_read_timeout(AGENT_HEADER_TIMEOUT).keep_alive(false);
                let router = Router::new().fallback(not_for_agents);
                connections.spawn(converse(stream, slot, router, http, shutdown));
            }
        }
    }
}

/// What an agent is answered at the operator's socket, with any token.
async fn not_for_agents() -> Failure {
    Failure::forbidden(
        "the socket is for operators, and this process is inside an agent's tree; a session that may \
         delegate uses SPAWNLET_URL and SPAWNLET_TOKEN",
    )
}

async fn converse<S>(
    stream: S,
    slot: OwnedSemaphorePermit,
    router: Router,
    http: http1::Builder,
    shutdown: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    // Both branches are cancel-safe: the connection is pinned outside and polled on.
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
    drop(slot);
}
