//! `Agent`: how an ACP agent is started and what it may do. Cluster-scoped, written by operators.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::field::FieldErrorReason;
use super::{
    CHECK_REQUESTED, Conditions, Dur, FieldErrors, FieldPath, Kind, Object, ObjectMeta, Spec, Time,
    command, validate,
};

/// An `Agent` record.
pub type Agent = Object<AgentSpec>;

/// Desired state of an `Agent`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentSpec {
    /// Whether sessions may use it.
    pub enabled: bool,
    /// A name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// One sentence for people and models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The command line, split by shell quoting and never given to a shell. Either this or `argv`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Program and arguments. Either this or `command`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Directories searched before the PATH.
    pub path: Vec<String>,
    /// Variables added to the agent's environment.
    pub env: BTreeMap<String, String>,
    /// What the agent inherits of the daemon's environment.
    pub env_policy: EnvPolicy,
    /// Names that stay whatever the policy says.
    pub env_pass: Vec<String>,
    /// Whose home the agent sees.
    pub home_policy: HomePolicy,
    /// Where the agent's credentials come from.
    pub auth_mode: AuthMode,
    /// The ACP authentication method to use when the agent asks for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// Secrets bound to variables of the agent.
    pub credential_slots: Vec<CredentialSlot>,
    /// The ceiling for its sessions.
    pub permissions: Permissions,
    /// Overrides of the ACP mode taken for a permission policy.
    pub mode_map: BTreeMap<String, String>,
    /// Renames option categories (`thinking: thought_level`).
    pub category_map: BTreeMap<String, String>,
    /// The kernel sandbox.
    pub sandbox: Sandbox,
    /// Default model of its sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Default thought level of its sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thought_level: Option<String>,
    /// Default values of live options by exact id; strings and booleans.
    pub config: BTreeMap<String, Value>,
    /// MCP servers given to its sessions.
    pub mcp_servers: Vec<McpServer>,
    /// Launch, `initialize` and `session/new` together.
    pub start_timeout: Dur,
    /// The same until one start succeeded; for commands that may download first. Absent: 300 s for
    /// npx, uvx and bunx, else `startTimeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_start_timeout: Option<Dur>,
    /// The stop ladder's times.
    pub stop: StopTimes,
    /// What a steer does.
    pub steer: Steer,
    /// How additional directories are given to the agent.
    pub additional_directories: AdditionalDirectories,
    /// Holds a response open for chunks that come after the prompt's response.
    pub late_update_grace: Dur,
    /// Whether sessions share a process.
    pub sharing: Sharing,
    /// The pool of processes.
    pub process: ProcessPool,
}

impl Default for AgentSpec {
    fn default() -> Self {
        Self {
            enabled: true,
            display_name: None,
            description: None,
            command: None,
            argv: None,
            path: Vec::new(),
            env: BTreeMap::new(),
            env_policy: EnvPolicy::default(),
            env_pass: Vec::new(),
            home_policy: HomePolicy::default(),
            auth_mode: AuthMode::default(),
            auth: None,
            credential_slots: Vec::new(),
            permissions: Permissions::ApproveAll,
            mode_map: BTreeMap::new(),
            category_map: BTreeMap::new(),
            sandbox: Sandbox::default(),
            model: None,
            thought_level: None,
            config: BTreeMap::new(),
            mcp_servers: Vec::new(),
            start_timeout: Dur::from_secs(60),
            first_start_timeout: None,
            stop: StopTimes::default(),
            steer: Steer::default(),
            additional_directories: AdditionalDirectories::default(),
            late_update_grace: Dur::ZERO,
            sharing: Sharing::default(),
            process: ProcessPool::default(),
        }
    }
}

/// Programs that download what they run when it is not there yet.
const DOWNLOADERS: [&str; 3] = ["npx", "uvx", "bunx"];
/// `firstStartTimeout` of such a program: a download over a slow line, far more than a start.
const DOWNLOAD_START_TIMEOUT: Dur = Dur::from_secs(300);

impl AgentSpec {
    /// Program and arguments, from `argv` or from `command` split by shell quoting.
    ///
    /// # Errors
    ///
    /// Neither is set, or `command` cannot be split: the field and what is wrong. Never of a spec
    /// that passed [`Spec::validate`].
    pub fn words(&self) -> Result<Vec<String>, FieldErrors> {
        let mut errors = FieldErrors::default();
        match (&self.argv, &self.command) {
            (Some(argv), _) if argv.first().is_some_and(|program| !program.is_empty()) => {
                return Ok(argv.clone());
            }
            (None, Some(line)) => match command::split(line) {
                Ok(words) => return Ok(words),
                Err(error) => errors.push(
                    FieldPath::new("spec.command"),
                    FieldErrorReason::FieldValueInvalid,
                    error.to_string(),
                ),
            },
            (Some(_), _) | (None, None) => errors.push(
                FieldPath::new("spec.argv"),
                FieldErrorReason::FieldValueRequired,
                "names no program; expected a program and its arguments",
            ),
        }
        Err(errors)
    }

    /// How long a start may take: `startTimeout`, or `firstStartTimeout` while no start of this
    /// agent has succeeded.
    #[must_use]
    pub fn effective_start_timeout(&self, has_started_before: bool) -> Dur {
        if has_started_before {
            return self.start_timeout;
        }
        self.first_start_timeout.unwrap_or_else(|| {
            let words = self.words().unwrap_or_default();
            let program = words.first().and_then(|program| program.rsplit('/').next());
            match program {
                Some(program) if DOWNLOADERS.contains(&program) => {
                    DOWNLOAD_START_TIMEOUT.max(self.start_timeout)
                }
                Some(_) | None => self.start_timeout,
            }
        })
    }
}

/// What an agent inherits of the daemon's environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EnvPolicy {
    /// All but what is shaped like a secret.
    #[default]
    Filtered,
    /// A short list of harmless names only.
    Isolated,
}

/// Whose home directory the agent sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HomePolicy {
    /// The daemon's user's own.
    #[default]
    Operator,
    /// A directory below the data directory.
    Isolated,
}

/// Where an agent's credentials come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AuthMode {
    /// The agent's own login.
    #[default]
    NativeCli,
    /// Secrets in variables, by `credentialSlots`.
    BoundSecret,
    /// None is needed.
    None,
}

/// The ACP authentication method to answer an authentication error with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Auth {
    /// One of the agent's `authMethods` ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

/// A secret bound to a variable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CredentialSlot {
    /// Names the slot in messages; a value is never shown.
    pub name: String,
    /// The variable that the agent reads.
    pub target_env: String,
    /// `env:NAME` or `vault:providers/<agent>/<slot>`.
    pub secret_ref: String,
    /// Whether a start fails without it.
    #[serde(default)]
    pub required: bool,
}

/// What an agent may do without being asked, from narrow to wide. The order is the lattice that
/// children are held to.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Permissions {
    /// Nothing.
    DenyAll,
    /// Reading and searching inside the session's directories; the rest waits for an answer.
    ApproveReads,
    /// The same, with the agent told to ask for everything.
    Ask,
    /// Everything inside the session's directories, each request once.
    ApproveAll,
}

/// The kernel sandbox of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Sandbox {
    /// How much of the file system may be written.
    pub mode: SandboxMode,
    /// Existing files and directories, by absolute path, that may be written too in every mode.
    pub write_paths: Vec<String>,
}

/// How much of the file system an agent may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxMode {
    /// No sandbox.
    #[default]
    Off,
    /// The session's directories, and what `read-only` leaves.
    WorkspaceWrite,
    /// Temporary files, the agent's isolated home and `writePaths`.
    ReadOnly,
}

/// The stop ladder's times, each the wait after a step before the next harder one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StopTimes {
    /// After `session/cancel` while a turn runs.
    pub cancel: Dur,
    /// After `session/cancel` while no turn runs.
    pub idle_cancel: Dur,
    /// After `session/close`, where the agent declares it.
    pub close: Dur,
    /// After standard input was closed.
    pub eof: Dur,
    /// After SIGTERM to the agent's group.
    pub term: Dur,
    /// After the tree was killed, before `KillUnconfirmed`.
    pub kill: Dur,
}

impl Default for StopTimes {
    fn default() -> Self {
        Self {
            cancel: Dur::from_secs(5),
            idle_cancel: Dur::from_secs(1),
            close: Dur::from_millis(300),
            eof: Dur::from_secs(5),
            term: Dur::from_millis(250),
            kill: Dur::from_secs(2),
        }
    }
}

/// What a steer of a running turn does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Steer {
    /// The agent takes a prompt into the running turn.
    Native,
    /// The turn is cancelled and the text starts the next one.
    Interrupt,
    /// It is refused.
    #[default]
    None,
}

/// How additional directories are given to an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AdditionalDirectories {
    /// If the agent declares them.
    #[default]
    Auto,
    /// As the extension field `additional_dirs`.
    Extension,
    /// Never.
    None,
}

/// Whether sessions share a process of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// One process a session.
    #[default]
    Exclusive,
    /// Several sessions a process.
    Shared,
}

/// The pool of an agent's processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessPool {
    /// Processes kept started without a session.
    pub warm: u32,
    /// Sessions a shared process takes.
    pub max_sessions: u32,
}

impl Default for ProcessPool {
    fn default() -> Self {
        Self { warm: 0, max_sessions: 16 }
    }
}

/// An MCP server that a session's agent is told to use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpServer {
    /// Unique per session; the merge of the sources goes by it.
    pub name: String,
    /// How it is reached.
    #[serde(rename = "type")]
    pub transport: McpTransport,
    /// `stdio`: the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// `stdio`: its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// `stdio`: its variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// `http`: its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// `http`: headers sent with each request.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

/// How an MCP server is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum McpTransport {
    /// A child process of the agent.
    Stdio,
    /// Streamable HTTP.
    Http,
}

/// The condition that says that somebody must log in to the agent.
pub const AUTH_REQUIRED: &str = "AuthRequired";
/// The condition that says whether sessions can use the agent.
pub const AVAILABLE: &str = "Available";

/// Observed state of an `Agent`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentStatus {
    /// Whether the executable was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub installed: Option<bool>,
    /// Its absolute path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executable: Option<String>,
    /// The version that the agent told in `initialize`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The capabilities that the agent declared, as it wrote them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Value>,
    /// The last start that reached a ready session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_start: Option<LastStart>,
    /// The last look at the executable that somebody asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_check: Option<LastCheck>,
    /// `Available`, `AuthRequired`, ...
    #[serde(skip_serializing_if = "Conditions::is_empty")]
    pub conditions: Conditions,
}

/// The last start of an agent that reached a ready session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastStart {
    /// When.
    pub at: Time,
    /// How long launch, `initialize` and `session/new` took together.
    pub took: Dur,
}

/// How much of a request is written back: a token, not a text.
const CHECK_REQUEST_CHARS_MAX: usize = 128;

/// The request to look at an agent's executable again that stands in its annotations, as the status
/// tells it once it is answered.
#[must_use]
pub fn check_request(metadata: &ObjectMeta) -> Option<String> {
    let request = metadata.annotations.get(CHECK_REQUESTED)?;
    Some(request.chars().take(CHECK_REQUEST_CHARS_MAX).collect())
}

/// The last look at an agent's executable that somebody asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastCheck {
    /// When.
    pub at: Time,
    /// Which request it answers: the value of the annotation `spawnlet.dev/check-requested`, or its
    /// first 128 characters.
    pub request: String,
}

impl Spec for AgentSpec {
    type Status = AgentStatus;
    const KIND: Kind = Kind::Agent;

    fn validate(&self) -> Result<(), FieldErrors> {
        validate::agent::spec(self)
    }

    fn validate_update(&self, _old: &Self) -> Result<(), FieldErrors> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_start_may_take_longer_for_programs_that_download() {
        let seconds = |command: &str, has_started: bool| {
            let spec = AgentSpec { command: Some(command.to_owned()), ..AgentSpec::default() };
            spec.effective_start_timeout(has_started).get().as_secs()
        };
        assert_eq!(seconds("npx -y agent", false), 300);
        assert_eq!(seconds("/usr/bin/uvx agent", false), 300);
        assert_eq!(seconds("npx -y agent", true), 60);
        assert_eq!(seconds("agent npx", false), 60);
    }

    #[test]
    fn argv_and_command_name_the_same_words() {
        let line = AgentSpec { command: Some("a 'b c'".to_owned()), ..AgentSpec::default() };
        let argv = Some(vec!["a".to_owned(), "b c".to_owned()]);
        let list = AgentSpec { argv, ..AgentSpec::default() };
        assert_eq!(line.words(), list.words());
        assert!(AgentSpec::default().words().is_err());
    }
}
