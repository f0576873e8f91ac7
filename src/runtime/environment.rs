//! The environment of an agent: what it inherits, what is added, and in which order.
//!
//! Pure: the daemon's own environment is an input. Values may be secrets, so nothing here logs or
//! prints one. The order is the contract's: inherited by policy, Agent `env`, `SPAWNLET_*`, the
//! agent's own home, bound credentials. Nothing that is given stands in the place of one of ours:
//! validation refuses such names, and a credential with one is left out here.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::INSTANCE_VARIABLE;
use super::home::Home;
use crate::api::agent::{AgentSpec, AuthMode, EnvPolicy, HomePolicy};
use crate::api::token::SecretToken;
use crate::api::{Name, Namespace, Uid};
use crate::secret::Secret;

/// What `SPAWNLET_*` tells an agent about itself.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// `SPAWNLET_SESSION_ID`.
    pub session: &'a Uid,
    /// `SPAWNLET_SESSION_NAME`.
    pub name: &'a Name,
    /// `SPAWNLET_NAMESPACE`.
    pub namespace: &'a Namespace,
    /// `SPAWNLET_AGENT`.
    pub agent: &'a str,
    /// `SPAWNLET_PARENT_SESSION_ID`.
    pub parent: Option<&'a Uid>,
    /// `SPAWNLET_MODEL`, once resolved.
    pub model: Option<&'a str>,
    /// `SPAWNLET_BIN`: the absolute path of the spawnlet executable.
    pub bin: &'a Path,
    /// `SPAWNLET_INSTANCE`: the mark of the process tree.
    pub instance: &'a str,
    /// `SPAWNLET_URL` and `SPAWNLET_TOKEN`: its way to the daemon, if it may delegate.
    pub access: Option<(&'a str, &'a SecretToken)>,
}

/// What a name that holds a secret contains, in upper case.
const SECRET_PARTS: [&str; 12] = [
    "API_KEY",
    "APIKEY",
    "ACCESS_KEY",
    "PRIVATE_KEY",
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "CREDENTIAL",
    "AUTH",
    "COOKIE",
    "SESSION",
];
/// What such a name may end in instead.
const SECRET_END: &str = "_KEY";
/// The names that `envPolicy: isolated` keeps.
const ISOLATED: [&str; 12] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TMPDIR",
    "TMP",
    "TEMP",
    "LANG",
    "TERM",
    "COLORTERM",
    "NO_COLOR",
];
/// One more of them, and the beginnings of others.
const ISOLATED_COLOR: &str = "FORCE_COLOR";
const ISOLATED_PREFIXES: [&str; 2] = ["LC_", "XDG_"];
/// What begins with this is ours alone.
const OWN_PREFIX: &[u8] = b"SPAWNLET_";
const PATH: &str = "PATH";
/// It would lead an agent with a home of its own back into the operator's; unset, it is below HOME.
const STATE_HOME: &str = "XDG_STATE_HOME";

/// The whole environment of an agent. `inherited` is the daemon's own (`std::env::vars_os`).
///
/// Its `PATH` begins with the directory of `SPAWNLET_BIN`, once, then the Agent's `path` entries.
#[must_use]
pub fn build(
    inherited: impl IntoIterator<Item = (OsString, OsString)>,
    agent: &AgentSpec,
    identity: &Identity<'_>,
    home: Option<&Home>,
    credentials: &[(String, Secret)],
) -> BTreeMap<OsString, OsString> {
    let mut env = given(inherited, agent, home);
    env.extend(own(agent, identity).map(|(name, value)| (name.into(), value)));
    env.extend(home.into_iter().flat_map(Home::variables));
    env.extend(
        credentials
            .iter()
            .filter(|(name, _)| !name.as_bytes().starts_with(OWN_PREFIX))
            .map(|(name, value)| (name.into(), value.expose().into())),
    );
    let path = path(env.get(OsStr::new(PATH)), &agent.path, identity.bin.parent());
    env.insert(PATH.into(), path);
    env
}

/// The environment of a program that a person starts in an agent's place, to log in: what the agent
/// would get, without a session's variables.
#[must_use]
pub fn for_login(
    inherited: impl IntoIterator<Item = (OsString, OsString)>,
    agent: &AgentSpec,
    home: Option<&Home>,
) -> BTreeMap<OsString, OsString> {
    let mut env = given(inherited, agent, home);
    env.extend(home.into_iter().flat_map(Home::variables));
    let path = path(env.get(OsStr::new(PATH)), &agent.path, None);
    env.insert(PATH.into(), path);
    env
}

/// The environment of a program that an agent runs in a terminal: what [`for_login`] gives, what the
/// agent asks for over it, and nothing of ours: neither its token nor its bound credentials.
#[must_use]
pub fn for_terminal(
    base: &BTreeMap<OsString, OsString>,
    asked: Vec<(String, String)>,
) -> BTreeMap<OsString, OsString> {
    let asked = asked.into_iter().map(|(name, value)| (name.into(), value.into()));
    let mut env = base.clone();
    env.extend(asked);
    env.retain(|name: &OsString, _| !name.as_bytes().starts_with(OWN_PREFIX));
    env
}

/// What is inherited by policy, and the Agent's own variables over it.
fn given(
    inherited: impl IntoIterator<Item = (OsString, OsString)>,
    agent: &AgentSpec,
    home: Option<&Home>,
) -> BTreeMap<OsString, OsString> {
    let leads_home = |name: &OsStr| home.is_some() && name == OsStr::new(STATE_HOME);
    let mut env: BTreeMap<OsString, OsString> = inherited
        .into_iter()
        .filter(|(name, _)| is_inherited(name, agent.env_policy, &agent.env_pass))
        .filter(|(name, _)| !leads_home(name))
        .collect();
    env.extend(agent.env.iter().map(|(name, value)| (name.into(), value.into())));
    env
}

/// What of the daemon's environment reaches a program that is no agent.
#[must_use]
pub fn filtered(
    inherited: impl IntoIterator<Item = (OsString, OsString)>,
) -> BTreeMap<OsString, OsString> {
    let is_kept = |name: &OsString| is_inherited(name, EnvPolicy::Filtered, &[]);
    inherited.into_iter().filter(|(name, _)| is_kept(name)).collect()
}

/// Whether a variable of the daemon's reaches the agent.
fn is_inherited(name: &OsStr, policy: EnvPolicy, pass: &[String]) -> bool {
    if name.as_bytes().starts_with(OWN_PREFIX) {
        return false;
    }
    if pass.iter().any(|passed| name == OsStr::new(passed)) {
        return true;
    }
    // A name that is no UTF-8 still shows the shape of a secret.
    let upper = name.to_string_lossy().to_uppercase();
    let is_secret =
        SECRET_PARTS.iter().any(|part| upper.contains(part)) || upper.ends_with(SECRET_END);
    match policy {
        EnvPolicy::Filtered => !is_secret,
        EnvPolicy::Isolated => !is_secret && is_harmless(name),
    }
}

fn is_harmless(name: &OsStr) -> bool {
    ISOLATED.iter().chain([&ISOLATED_COLOR]).any(|kept| name == OsStr::new(kept))
        || ISOLATED_PREFIXES.iter().any(|prefix| name.as_bytes().starts_with(prefix.as_bytes()))
}

fn own<'a>(
    agent: &AgentSpec,
    identity: &Identity<'a>,
) -> impl Iterator<Item = (&'static str, OsString)> + use<'a> {
    let env_policy = match agent.env_policy {
        EnvPolicy::Filtered => "filtered",
        EnvPolicy::Isolated => "isolated",
    };
    let home_policy = match agent.home_policy {
        HomePolicy::Operator => "operator",
        HomePolicy::Isolated => "isolated",
    };
    let auth_mode = match agent.auth_mode {
        AuthMode::NativeCli => "native-cli",
        AuthMode::BoundSecret => "bound-secret",
        AuthMode::None => "none",
    };
    let texts = [
        ("SPAWNLET_SESSION_ID", Some(identity.session.as_str())),
        ("SPAWNLET_SESSION_NAME", Some(identity.name.as_str())),
        ("SPAWNLET_NAMESPACE", Some(identity.namespace.as_str())),
        ("SPAWNLET_AGENT", Some(identity.agent)),
        ("SPAWNLET_PARENT_SESSION_ID", identity.parent.map(Uid::as_str)),
        ("SPAWNLET_MODEL", identity.model),
        ("SPAWNLET_ENV_POLICY", Some(env_policy)),
        ("SPAWNLET_HOME_POLICY", Some(home_policy)),
        ("SPAWNLET_AUTH_MODE", Some(auth_mode)),
        (INSTANCE_VARIABLE, Some(identity.instance)),
        ("SPAWNLET_URL", identity.access.map(|(url, _)| url)),
        ("SPAWNLET_TOKEN", identity.access.map(|(_, token)| token.expose())),
    ];
    let bin = ("SPAWNLET_BIN", identity.bin.as_os_str().to_owned());
    texts.into_iter().filter_map(|(name, value)| Some((name, value?.into()))).chain([bin])
}

/// The child's PATH: the directory of `SPAWNLET_BIN`, the Agent's `path` entries, what it inherits.
/// Entries stay as they are, but for later ones of the first directory.
#[must_use]
pub fn path(inherited: Option<&OsString>, agent: &[String], bin: Option<&Path>) -> OsString {
    let inherited = inherited.map(|text| std::env::split_paths(text).collect::<Vec<_>>());
    let rest = agent.iter().map(PathBuf::from).chain(inherited.unwrap_or_default());
    let rest = rest.filter(|entry| Some(entry.as_path()) != bin);
    let entries: Vec<PathBuf> = bin.map(Path::to_path_buf).into_iter().chain(rest).collect();
    // No entry can hold the separator but one of the Agent's, which then is several.
    let mut joined = OsString::new();
    for entry in entries {
        if !joined.is_empty() {
            joined.push(":");
        }
        joined.push(entry);
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(inherited: &[(&str, &str)], agent: &AgentSpec) -> BTreeMap<String, String> {
        built_with(inherited, agent, None, &[])
    }

    fn built_with(
        inherited: &[(&str, &str)],
        agent: &AgentSpec,
        home: Option<&Home>,
        credentials: &[(String, Secret)],
    ) -> BTreeMap<String, String> {
        let inherited = inherited.iter().map(|(name, value)| (name.into(), value.into()));
        let identity = Identity {
            session: &"uid-1".into(),
            name: &"writer".into(),
            namespace: &"default".into(),
            agent: "codexz",
            parent: None,
            model: None,
            bin: Path::new("/opt/spawnlet/bin/spawnlet"),
            instance: "store.1",
            access: None,
        };
        let text = |text: OsString| text.into_string().unwrap();
        build(inherited, agent, &identity, home, credentials)
            .into_iter()
            .map(|(name, value)| (text(name), text(value)))
            .collect()
    }

    /// The inherited names that get through.
    fn passed(names: &[&str], agent: &AgentSpec) -> Vec<String> {
        let inherited: Vec<(&str, &str)> = names.iter().map(|name| (*name, "v")).collect();
        built(&inherited, agent).into_keys().filter(|name| names.contains(&&**name)).collect()
    }

    const NAMES: [&str; 18] = [
        "OPENAI_API_KEY",
        "openai_apikey",
        "AWS_ACCESS_KEY_ID",
        "MY_PRIVATE_KEY_FILE",
        "GH_TOKEN",
        "SECRETS",
        "DB_PASSWORD",
        "PASSWD",
        "CREDENTIALS",
        "SSH_AUTH_SOCK",
        "COOKIE_JAR",
        "XDG_SESSION_ID",
        "SIGNING_KEY",
        "KEYBOARD",
        "EDITOR",
        "LC_ALL",
        "HOME",
        "FORCE_COLOR",
    ];

    #[test]
    fn filtered_drops_what_is_shaped_like_a_secret() {
        let agent = AgentSpec::default();
        let kept = ["EDITOR", "FORCE_COLOR", "HOME", "KEYBOARD", "LC_ALL"];
        assert_eq!(passed(&NAMES, &agent), kept);
    }

    #[test]
    fn isolated_keeps_its_list_without_secrets() {
        let agent = AgentSpec { env_policy: EnvPolicy::Isolated, ..AgentSpec::default() };
        assert_eq!(passed(&NAMES, &agent), ["FORCE_COLOR", "HOME", "LC_ALL"]);
    }

    #[test]
    fn passed_names_stay_whatever_the_policy_but_never_ours() {
        let agent = AgentSpec {
            env_policy: EnvPolicy::Isolated,
            env_pass: vec!["SSH_AUTH_SOCK".into(), "EDITOR".into(), "SPAWNLET_TOKEN".into()],
            ..AgentSpec::default()
        };
        let names = ["SSH_AUTH_SOCK", "EDITOR", "SPAWNLET_TOKEN", "GH_TOKEN"];
        assert_eq!(passed(&names, &agent), ["EDITOR", "SSH_AUTH_SOCK"]);
    }

    #[test]
    fn a_home_of_its_own_and_credentials_come_last_and_never_for_ours() {
        let base = tempfile::tempdir().unwrap();
        let mut agent = AgentSpec {
            home_policy: HomePolicy::Isolated,
            command: Some("npx -y some-codex-acp".into()),
            ..AgentSpec::default()
        };
        agent.env.extend([("HOME".into(), "/mine".into()), ("A_KEY".into(), "mine".into())]);
        let home = Home::of(base.path(), "codexz", &agent);
        let credential = |name: &str| (name.to_owned(), Secret::new("canary-0001".to_owned()));
        let credentials = [credential("A_KEY"), credential("SPAWNLET_AGENT")];
        let inherited = [("XDG_STATE_HOME", "/op/state"), ("XDG_CONFIG_HOME", "/op/config")];
        let env = built_with(&inherited, &agent, Some(&home), &credentials);
        let below = |path: &str| base.path().join("providers/codexz").join(path);
        for (name, path) in [
            ("HOME", "home"),
            ("XDG_CONFIG_HOME", "home/.config"),
            ("XDG_DATA_HOME", "home/.local/share"),
            ("XDG_CACHE_HOME", "home/.cache"),
            ("CODEX_HOME", "home/.codex"),
        ] {
            assert_eq!(env[name], below(path).to_str().unwrap(), "{name}");
        }
        assert_eq!(env["A_KEY"], "canary-0001");
        assert_eq!(env["SPAWNLET_AGENT"], "codexz");
        for absent in ["XDG_STATE_HOME", "CLAUDE_CONFIG_DIR"] {
            assert!(!env.contains_key(absent), "{absent}");
        }
    }

    #[test]
    fn what_is_added_is_exactly_the_contract() {
        let mut agent = AgentSpec::default();
        agent.env.insert("GH_TOKEN".into(), "given".into());
        agent.env.insert("SPAWNLET_AGENT".into(), "another".into());
        agent.path = vec!["/agent/bin".into()];
        let inherited = [
            ("PATH", "/usr/bin:/opt/spawnlet/bin:/bin"),
            ("GH_TOKEN", "the daemon's"),
            ("SPAWNLET_PARENT_SESSION_ID", "stale"),
        ];
        let expected = [
            ("GH_TOKEN", "given"),
            ("PATH", "/opt/spawnlet/bin:/agent/bin:/usr/bin:/bin"),
            ("SPAWNLET_AGENT", "codexz"),
            ("SPAWNLET_AUTH_MODE", "native-cli"),
            ("SPAWNLET_BIN", "/opt/spawnlet/bin/spawnlet"),
            ("SPAWNLET_ENV_POLICY", "filtered"),
            ("SPAWNLET_HOME_POLICY", "operator"),
            ("SPAWNLET_INSTANCE", "store.1"),
            ("SPAWNLET_NAMESPACE", "default"),
            ("SPAWNLET_SESSION_ID", "uid-1"),
            ("SPAWNLET_SESSION_NAME", "writer"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(built(&inherited, &agent), expected.into());
    }
}
