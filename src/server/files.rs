//! The daemon's own files: where they are, and the operator's token.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The operator's token, in the data directory.
const TOKEN_FILE: &str = "operator.token";
/// The socket, in the data directory.
pub(super) const SOCKET_FILE: &str = "spawnlet.sock";
/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;
/// A longer token file is none of ours.
const TOKEN_FILE_BYTES_MAX: u64 = 4096;

/// Reads the operator's token, or makes one at the first start.
pub(super) fn operator_token(data_dir: &Path) -> io::Result<String> {
    let path = data_dir.join(TOKEN_FILE);
    match OpenOptions::new().read(true).open(&path) {
        Ok(file) => {
            let metadata = file.metadata()?;
            if metadata.mode() & 0o077 != 0 {
                return Err(io::Error::other(format!(
                    "{} can be read by others (mode {:o}); it must be 0600: remove it to have a new one made",
                    path.display(),
                    metadata.mode() & 0o777
                )));
            }
            let mut token = String::new();
            file.take(TOKEN_FILE_BYTES_MAX).read_to_string(&mut token)?;
            let token = token.trim().to_owned();
            if token.is_empty() {
                let message =
                    format!("{} is empty; remove it to have a new one made", path.display());
                return Err(io::Error::other(message));
            }
            Ok(token)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => make_token(&path),
        Err(error) => Err(error),
    }
}

fn make_token(path: &Path) -> io::Result<String> {
    let random: [u8; TOKEN_BYTES] = rand::random();
    let token = crate::api::hex(&random);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(token.as_bytes())?;
    file.sync_all()?;
    Ok(token)
}

/// Takes the place of a socket that a daemon before this one left. The data directory is claimed
/// by now, so nobody listens there.
pub(super) fn bind_socket(path: &Path) -> io::Result<tokio::net::UnixListener> {
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = tokio::net::UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// `~/.config/spawnlet/manifests`, if it is a directory.
pub(super) fn default_manifests() -> Vec<PathBuf> {
    let config = std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")));
    config
        .map(|config| config.join("spawnlet/manifests"))
        .filter(|path| path.is_dir())
        .into_iter()
        .collect()
}

/// The address that the daemon listens on, for clients that only know the data directory.
const ADDRESS_FILE: &str = "address";

/// Tells clients of the data directory where the daemon listens. Only the owner has to know.
pub(super) fn write_address(data_dir: &Path, address: SocketAddr) -> io::Result<()> {
    let path = data_dir.join(ADDRESS_FILE);
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    // One that an earlier version left could be read by all.
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    file.write_all(format!("http://{address}\n").as_bytes())
}

/// The address by which a client on this machine finds a listener.
pub(super) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
