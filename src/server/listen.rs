//! Where the daemon listens: TCP and the operator's socket, bound before any agent is started.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::TcpListener;

use super::files;
use super::start::{Error, system};
use crate::api::config::Config;
use crate::controller::Reach;
use crate::{rest, runtime};

/// Binds both, and tells how an agent on this machine reaches the first. `prefix` begins the marks of
/// this daemon's trees: who is inside one is refused at the socket, and else the daemon's own user is the
/// operator there.
pub(super) async fn listen(
    config: &Config,
    data_dir: &Path,
    prefix: String,
) -> Result<(Vec<rest::Listener>, SocketAddr, Reach), Error> {
    let tcp = TcpListener::bind(config.listen).await.map_err(system(format!(
        "listen: {} (--listen ADDR:PORT takes another) cannot be bound",
        config.listen
    )))?;
    let address = tcp.local_addr().map_err(system("the listener's address"))?;
    let socket =
        config.socket.as_ref().map_or_else(|| data_dir.join(files::SOCKET_FILE), PathBuf::from);
    let unix = files::bind_socket(&socket)
        .map_err(system(format!("socket: {} cannot be bound", socket.display())))?;
    let judge: rest::Judge = Arc::new(move |socket| match runtime::peers::Peer::of(socket) {
        Some(peer) if peer.is_inside_a_tree(&prefix) => rest::Peer::Agent,
        Some(peer) if peer.is_proven_own_user() => rest::Peer::Operator,
        Some(_) => rest::Peer::Other,
        // Nobody can tell that it is no agent.
        None => rest::Peer::Agent,
    });
    let url = format!("http://{}", files::reachable(address));
    let reach = Reach { mcp_url: format!("{url}/mcp"), url };
    files::write_address(data_dir, address).map_err(system("the address file"))?;
    Ok((vec![rest::Listener::Tcp(tcp), rest::Listener::Unix(unix, judge)], address, reach))
}
