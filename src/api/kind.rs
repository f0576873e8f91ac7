//! The closed list of kinds, with what the API, the CLI and discovery need to know of each.

use std::fmt;

/// A kind of stored record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// How an ACP agent is started.
    Agent,
    /// Named folders.
    Workspace,
    /// What a kind of session is told and may do.
    Role,
    /// A session of an agent.
    Session,
    /// One prompt turn of a session.
    Turn,
    /// An agent waits for a decision.
    PermissionRequest,
    /// What happened to an object (core/v1).
    Event,
    /// The isolation boundary (core/v1).
    Namespace,
}

impl Kind {
    /// Every kind, in the order in which documents of one file are applied: what is referred to
    /// comes first.
    pub const ALL: [Self; 8] = [
        Self::Namespace,
        Self::Agent,
        Self::Workspace,
        Self::Role,
        Self::Session,
        Self::Turn,
        Self::PermissionRequest,
        Self::Event,
    ];

    /// `Session`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "Agent",
            Self::Workspace => "Workspace",
            Self::Role => "Role",
            Self::Session => "Session",
            Self::Turn => "Turn",
            Self::PermissionRequest => "PermissionRequest",
            Self::Event => "Event",
            Self::Namespace => "Namespace",
        }
    }

    /// `sessions`, as it stands in a URL.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Agent => "agents",
            Self::Workspace => "workspaces",
            Self::Role => "roles",
            Self::Session => "sessions",
            Self::Turn => "turns",
            Self::PermissionRequest => "permissionrequests",
            Self::Event => "events",
            Self::Namespace => "namespaces",
        }
    }

    /// `session`.
    #[must_use]
    pub const fn singular(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Workspace => "workspace",
            Self::Role => "role",
            Self::Session => "session",
            Self::Turn => "turn",
            Self::PermissionRequest => "permissionrequest",
            Self::Event => "event",
            Self::Namespace => "namespace",
        }
    }

    /// Short names for the CLI.
    #[must_use]
    pub const fn short_names(self) -> &'static [&'static str] {
        match self {
            Self::Agent => &["ag"],
            Self::Workspace => &["ws"],
            Self::Role => &["ro"],
            Self::Session => &["se"],
            Self::Turn => &["tu"],
            Self::PermissionRequest => &["pr"],
            Self::Event => &["ev"],
            Self::Namespace => &["ns"],
        }
    }

    /// Whether records of this kind live in a namespace.
    #[must_use]
    pub const fn is_namespaced(self) -> bool {
        match self {
            Self::Workspace
            | Self::Role
            | Self::Session
            | Self::Turn
            | Self::PermissionRequest
            | Self::Event => true,
            Self::Agent | Self::Namespace => false,
        }
    }

    /// The API group: ours, empty for the core kinds.
    #[must_use]
    pub const fn group(self) -> &'static str {
        match self {
            Self::Event | Self::Namespace => "",
            Self::Agent
            | Self::Workspace
            | Self::Role
            | Self::Session
            | Self::Turn
            | Self::PermissionRequest => super::GROUP,
        }
    }

    /// `v1` for the core kinds, ours for the rest.
    #[must_use]
    pub const fn api_version(self) -> &'static str {
        if self.group().is_empty() { "v1" } else { super::API_VERSION }
    }

    /// Finds a kind by kind, plural, singular or short name, in any case.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        Self::ALL.into_iter().find(|kind| {
            kind.plural() == text
                || kind.singular() == text
                || kind.short_names().contains(&text.as_str())
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
