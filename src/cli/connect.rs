//! How the daemon and the token are found.
//!
//! Daemon: `--server`, `SPAWNLET_URL`, the socket in the data directory. Token: `--token`,
//! `SPAWNLET_TOKEN`, `operator.token` in the data directory. Inside an agent's tree
//! (`SPAWNLET_INSTANCE` is set) the operator's token is never used: there `SPAWNLET_TOKEN` alone
//! says who asks.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use super::Global;
use super::failure::Failure;

/// The socket's name in the data directory.
const SOCKET: &str = "spawnlet.sock";
/// The operator's token's name in the data directory.
const TOKEN: &str = "operator.token";
/// The longest token file that is read; a token has 43 characters.
const TOKEN_BYTES_MAX: u64 = 4096;

/// Where the daemon listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Endpoint {
    /// `HOST:PORT`.
    Tcp(String),
    /// A socket's path.
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(authority) => write!(f, "http://{authority}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The daemon and who asks it.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) endpoint: Endpoint,
    pub(super) token: Option<String>,
    /// Whether the token was given, by `--token` or `SPAWNLET_TOKEN`, and is not just the operator's
    /// that was found.
    pub(super) is_token_given: bool,
}

// Without the token, so that it cannot get into an error or a log.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Connection {
    /// `variable` reads the environment.
    pub(super) fn find(
        global: &Global,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, Failure> {
        let directory = global.data_dir.clone().or_else(|| default_data_dir(&variable));
        let endpoint = match (&global.server, &directory) {
            (Some(server), _) => parse(server)?,
            (None, Some(directory)) => Endpoint::Unix(directory.join(SOCKET)),
            (None, None) => {
                return Err(Failure::Usage(
                    "neither HOME nor XDG_STATE_HOME is set; name the daemon with --server or \
                     --data-dir"
                        .to_owned(),
                ));
            }
        };
        let token = match &global.token {
            Some(token) => Some(token.clone()),
            None if variable("SPAWNLET_INSTANCE").is_some() => None,
            None => directory.and_then(|directory| read_token(&directory.join(TOKEN))),
        };
        Ok(Self { endpoint, token, is_token_given: global.token.is_some() })
    }
}

/// `$XDG_STATE_HOME/spawnlet`, or its default below the home directory (XDG base directories).
pub(super) fn default_data_dir(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|state| state.join("spawnlet"))
}

fn read_token(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(TOKEN_BYTES_MAX).read_to_string(&mut text).ok()?;
    let token = text.trim();
    (!token.is_empty()).then(|| token.to_owned())
}

fn parse(server: &str) -> Result<Endpoint, Failure> {
    let wrong = |why: &str| {
        Failure::Usage(format!("--server {server}: {why}; expected http://HOST:PORT or unix:PATH"))
    };
    if let Some(path) = server.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        return Ok(Endpoint::Unix(PathBuf::from(path)));
    }
    if server.starts_with("https://") {
        return Err(wrong("TLS is not supported yet"));
    }
    let Some(rest) = server.strip_prefix("http://") else {
        return Err(wrong("it is no such address"));
    };
    let authority = rest.trim_end_matches('/');
    if authority.is_empty() || authority.contains(['/', '?', '#', '@']) {
        return Err(wrong("only host and port are taken"));
    }
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Ok(Endpoint::Tcp(if has_port { authority.to_owned() } else { format!("{authority}:80") }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_wrong_ones_are_named() {
        for (text, endpoint) in [
            ("http://127.0.0.1:7420/", Endpoint::Tcp("127.0.0.1:7420".to_owned())),
            ("http://[::1]:7420", Endpoint::Tcp("[::1]:7420".to_owned())),
            ("http://localhost", Endpoint::Tcp("localhost:80".to_owned())),
            ("unix:/run/x.sock", Endpoint::Unix("/run/x.sock".into())),
            ("unix:///run/x.sock", Endpoint::Unix("/run/x.sock".into())),
        ] {
            assert_eq!(parse(text).unwrap(), endpoint, "{text}");
        }
        for text in ["https://x:1", "localhost:7420", "http://", "http://a/b"] {
            assert_eq!(parse(text).unwrap_err().exit_code(), 2, "{text}");
        }
    }

    #[test]
    fn the_operators_token_is_not_used_inside_an_agents_tree() {
        let state = tempfile::tempdir().unwrap();
        let directory = state.path().join("spawnlet");
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join(TOKEN), " operator \n").unwrap();
        let global = |token: Option<&str>| Global {
            namespace: "default".to_owned(),
            server: None,
            token: token.map(str::to_owned),
            data_dir: None,
        };
        let find = |token, instance: Option<&str>| {
            Connection::find(&global(token), |name| match name {
                "XDG_STATE_HOME" => Some(state.path().into()),
                "SPAWNLET_INSTANCE" => instance.map(OsString::from),
                _ => None,
            })
            .unwrap()
        };
        let outside = find(None, None);
        assert_eq!(outside.endpoint, Endpoint::Unix(directory.join(SOCKET)));
        assert_eq!(outside.token.as_deref(), Some("operator"));
        assert_eq!(find(None, Some("i")).token, None);
        assert_eq!(find(Some("own"), Some("i")).token.as_deref(), Some("own"));
        let nowhere = Connection::find(&global(None), |_| None);
        assert_eq!(nowhere.unwrap_err().exit_code(), 2);
    }

    #[test]
    fn a_connection_does_not_show_its_token() {
        let connection = Connection {
            endpoint: Endpoint::Tcp("a:1".to_owned()),
            token: Some("s3cret".into()),
            is_token_given: true,
        };
        assert!(!format!("{connection:?}").contains("s3cret"));
    }
}
