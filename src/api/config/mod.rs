//! The daemon's configuration: the file `spawnlet.yaml` and `--set key=value`.
//!
//! Every key that any version's contract names is accepted from the start, also those whose effect
//! comes later: a configuration outlives versions. [`KEYS`] tells of each key whether a change
//! needs a restart; a test holds it against the types. Absent: reading YAML (only `manifests`
//! does), the environment, and what a default depends on at run time (`dataDir`, `socket` and
//! `manifests` are `None` until the daemon starts).

mod check;
mod keys;
mod load;

use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::agent::McpServer;
use super::quantity::{Bytes, Rate};
use super::{Dur, FieldErrors};

pub use keys::{Form, KEYS, Key};
pub use load::{Entry, Loaded, Source, load};

/// The port of the API on loopback.
const PORT: u16 = 7420;
/// The port of the TLS listener on loopback.
const TLS_PORT: u16 = 7421;

/// The whole configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Config {
    /// Where the API listens. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where the API listens with TLS, for kubectl.
    pub listen_tls: SocketAddr,
    /// The Unix socket; `spawnlet.sock` in the data directory if absent.
    pub socket: Option<String>,
    /// Whether `listen` may be an address other than loopback.
    pub insecure_listen: bool,
    /// Values of Host that are answered; one without a port stands for any port.
    pub allowed_hosts: Vec<String>,
    /// Values of Origin that are answered; one without a port stands for any port.
    pub allowed_origins: Vec<String>,
    /// Watched directories; if absent `~/.config/spawnlet/manifests`, if that exists.
    pub manifests: Option<Vec<String>>,
    /// The data directory; `$XDG_STATE_HOME/spawnlet` if absent.
    pub data_dir: Option<String>,
    /// Whether agents' programs are also looked for where a login shell finds them.
    pub login_path: LoginPath,
    /// The daemon's log.
    pub log: Log,
    /// Limits of sessions and turns.
    pub limits: Limits,
    /// Limits of HTTP callers.
    pub http: Http,
    /// MCP servers given to every session.
    pub mcp_servers: Vec<McpServer>,
    /// Defaults of subagents.
    pub subagent: Subagent,
    /// The MCP facade.
    pub mcp: Mcp,
    /// The fleet toolset.
    pub fleet: Fleet,
    /// The jobs toolset.
    pub jobs: Jobs,
    /// How long a permission request waits for an answer.
    pub permission_timeout: Dur,
    /// Programs that are run at events and may refuse.
    pub hooks: Vec<Hook>,
    /// Programs and addresses that are told of events.
    pub notify: Vec<Notify>,
    /// How long what happened is kept.
    pub retention: Retention,
    /// The store.
    pub store: StoreKind,
}

impl Default for Config {
    fn default() -> Self {
        let hosts = ["localhost", "127.0.0.1", "[::1]"];
        let origins =
            hosts.iter().flat_map(|host| [format!("http://{host}"), format!("https://{host}")]);
        Self {
            listen: (Ipv4Addr::LOCALHOST, PORT).into(),
            listen_tls: (Ipv4Addr::LOCALHOST, TLS_PORT).into(),
            socket: None,
            insecure_listen: false,
            allowed_origins: origins.collect(),
            allowed_hosts: hosts.map(str::to_owned).to_vec(),
            manifests: None,
            data_dir: None,
            login_path: LoginPath::default(),
            log: Log::default(),
            limits: Limits::default(),
            http: Http::default(),
            mcp_servers: Vec::new(),
            subagent: Subagent::default(),
            mcp: Mcp::default(),
            fleet: Fleet::default(),
            jobs: Jobs::default(),
            permission_timeout: Dur::from_secs(5 * 60),
            hooks: Vec::new(),
            notify: Vec::new(),
            retention: Retention::default(),
            store: StoreKind::default(),
        }
    }
}

impl Config {
    /// Whether every value is in its range.
    ///
    /// # Errors
    ///
    /// Every fault, each with the key, the value and what is allowed.
    pub fn validate(&self) -> Result<(), FieldErrors> {
        check::config(self)
    }
}

/// Whether the PATH of a login shell is taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoginPath {
    /// Programs are looked for on the daemon's own PATH alone.
    #[default]
    Off,
    /// The user's login shell is asked once, at the start; its directories come last.
    Capture,
}

/// The daemon's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Log {
    /// A level, or the directives of `tracing` (`info,spawnlet::acp=debug`).
    pub level: String,
    /// How a line looks.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".to_owned(), format: LogFormat::default() }
    }
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Limits of sessions and turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    /// Turns that may run at once.
    pub max_active_turns: u32,
    /// Turns of one parent's children that may run at once.
    pub max_active_turns_per_parent: u32,
    /// Idle processes of one parent's children that stay; beyond it the least recently used one is
    /// hibernated.
    pub max_idle_processes_per_parent: u32,
    /// The longest ttl that a session's token may ask for.
    pub max_ttl: Dur,
    /// The ttl of a child that asks for none.
    pub default_child_ttl: Dur,
    /// Sessions of one tree that are neither final nor `Hibernated`.
    pub max_children_total_per_root: u32,
    /// Sessions of one tree made in a minute.
    pub spawns_per_minute_per_root: u32,
    /// Tokens that all sessions of one tree may use together, for ever; none = no limit.
    pub max_tokens_per_root: Option<u64>,
    /// What they may cost together, in the currency that its agents report; none = no limit.
    pub max_cost_per_root: Option<f64>,
    /// Turns of one session that may wait.
    pub inbox: u32,
    /// The largest prompt.
    pub prompt_bytes: Bytes,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_active_turns: 8,
            max_active_turns_per_parent: 4,
            max_idle_processes_per_parent: 32,
            max_ttl: Dur::from_secs(24 * 3600),
            default_child_ttl: Dur::from_secs(24 * 3600),
            max_children_total_per_root: 64,
            spawns_per_minute_per_root: 30,
            max_tokens_per_root: None,
            max_cost_per_root: None,
            inbox: 64,
            prompt_bytes: Bytes::kibi(768),
        }
    }
}

/// Limits of HTTP callers; over one the answer is 429 with Retry-After.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Http {
    /// Requests of one token.
    pub per_token_rate: Rate,
    /// Requests of one token at once.
    pub per_token_concurrency: u32,
    /// Connections in all.
    pub connections: u32,
}

impl Default for Http {
    fn default() -> Self {
        Self { per_token_rate: Rate::per_second(200), per_token_concurrency: 64, connections: 256 }
    }
}

/// Defaults of subagents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Subagent {
    /// The model of a subagent whose tool names none.
    pub model: Option<String>,
}

/// The MCP facade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Mcp {
    /// The longest that a call waits; 0 = no limit.
    pub max_wait: Dur,
    /// How often a waiting call tells of its progress.
    pub progress_every: Dur,
    /// The largest request body, of REST too.
    pub request_bytes: Bytes,
}

impl Default for Mcp {
    fn default() -> Self {
        Self {
            max_wait: Dur::from_secs(50),
            progress_every: Dur::from_secs(10),
            request_bytes: Bytes::mebi(2),
        }
    }
}

/// The fleet toolset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Fleet {
    /// Messages of a tail that asks for no number.
    pub default_tail_messages: u32,
    /// Messages of a tail at most.
    pub max_tail_messages: u32,
    /// Characters of a message's text.
    pub max_message_text_chars: u32,
    /// How long a target ref is good.
    pub target_ref_ttl: Dur,
    /// How long a selection is good.
    pub selection_ttl: Dur,
    /// Selections that a caller may hold.
    pub max_selections_per_caller: u32,
    /// How long the receipt of a message is good.
    pub reply_receipt_ttl: Dur,
    /// Receipts that a caller may hold.
    pub max_reply_records_per_caller: u32,
    /// Messages of a reply.
    pub max_reply_messages: u32,
    /// Characters of a reply's message.
    pub max_reply_text_chars: u32,
    /// Whether a parent may control its children through the fleet toolset.
    pub parent_control: bool,
    /// Whether a session with wider permissions may be addressed.
    pub allow_wider: bool,
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            default_tail_messages: 8,
            max_tail_messages: 32,
            max_message_text_chars: 2000,
            target_ref_ttl: Dur::from_secs(300),
            selection_ttl: Dur::from_secs(60),
            max_selections_per_caller: 32,
            reply_receipt_ttl: Dur::from_secs(600),
            max_reply_records_per_caller: 32,
            max_reply_messages: 8,
            max_reply_text_chars: 8000,
            parent_control: false,
            allow_wider: false,
        }
    }
}

/// The jobs toolset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Jobs {
    /// Jobs of one owner that run or stop.
    pub max_active_per_owner: u32,
    /// Bytes of a job's output. A plain number, as its contract writes it.
    pub max_output_bytes: u64,
}

impl Default for Jobs {
    fn default() -> Self {
        Self { max_active_per_owner: 10, max_output_bytes: 300_000 }
    }
}

/// A program that is run at an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// The event.
    pub event: String,
    /// The command line, split by shell quoting, never given to a shell.
    pub command: String,
    /// How long it may take.
    #[serde(default = "hook_timeout")]
    pub timeout: Dur,
}

const fn hook_timeout() -> Dur {
    Dur::from_secs(5)
}

/// Who is told of an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Notify {
    /// The event.
    pub event: String,
    /// A command line, split by shell quoting, never given to a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<String>,
    /// An address that is posted to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
}

/// How long what happened is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Retention {
    /// Reconcile reports of one object.
    pub reports_per_object: u32,
    /// Reconcile reports in all.
    pub reports: u32,
    /// How long an event is kept.
    pub events: Dur,
    /// How long a transcript is kept.
    pub transcripts: TranscriptRetention,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            reports_per_object: 32,
            reports: 10_000,
            events: Dur::from_secs(3600),
            transcripts: TranscriptRetention::default(),
        }
    }
}

/// How long a transcript is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TranscriptRetention {
    /// As long as its session's record.
    #[default]
    WithSession,
}

/// Which store keeps the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreKind {
    /// A file in the data directory.
    #[default]
    Sqlite,
}
