//! `Role`: what a kind of session is told, and what it may do at most. A session takes a copy of it
//! when it first finds it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::agent::{AgentSpec, McpServer, Permissions, SandboxMode};
use super::{Conditions, FieldErrors, Kind, Object, Spec, validate};

/// A `Role` record.
pub type Role = Object<RoleSpec>;

/// Desired state of a `Role`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RoleSpec {
    /// What it is for, in a line.
    pub description: String,
    /// What its sessions are told before their first prompt, before their own persona.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persona: Option<String>,
    /// The only tools that its sessions may use. Empty: whichever they have.
    pub tools: Vec<String>,
    /// Default model of its sessions, before the agent's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// A kernel sandbox, however wide the agent's is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_mode: Option<RoleSandbox>,
    /// What its sessions may do without a question at most. In a read-only sandbox `approve-reads` if
    /// absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Permissions>,
    /// MCP servers given to its sessions, before the agent's of the same name.
    pub mcp_servers: Vec<McpServer>,
}

/// The kernel sandbox of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RoleSandbox {
    /// It writes nothing of the session's.
    ReadOnly,
}

impl RoleSpec {
    /// The most that a session may do by it, if it says so.
    #[must_use]
    pub fn ceiling(&self) -> Option<Permissions> {
        let sandboxed = self.sandbox_mode.map(|RoleSandbox::ReadOnly| Permissions::ApproveReads);
        self.permissions.or(sandboxed)
    }

    /// The agent as a session in this role has it: never more than it is without.
    #[must_use]
    pub fn narrow(&self, agent: &AgentSpec) -> AgentSpec {
        let mut agent = agent.clone();
        if let Some(ceiling) = self.ceiling() {
            agent.permissions = agent.permissions.min(ceiling);
        }
        if let Some(RoleSandbox::ReadOnly) = self.sandbox_mode {
            agent.sandbox.mode = SandboxMode::ReadOnly;
        }
        if self.model.is_some() {
            agent.model.clone_from(&self.model);
        }
        // Of two of one name the first counts.
        agent.mcp_servers.splice(..0, self.mcp_servers.iter().cloned());
        agent
    }
}

/// Observed state of a `Role`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RoleStatus {
    /// None is defined yet.
    #[serde(skip_serializing_if = "Conditions::is_empty")]
    pub conditions: Conditions,
}

impl Spec for RoleSpec {
    type Status = RoleStatus;
    const KIND: Kind = Kind::Role;

    fn validate(&self) -> Result<(), FieldErrors> {
        validate::role::spec(self)
    }

    fn validate_update(&self, _old: &Self) -> Result<(), FieldErrors> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn role(spec: serde_json::Value) -> RoleSpec {
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn a_role_takes_from_an_agent_and_gives_it_no_more() {
        let agent = AgentSpec { permissions: Permissions::Ask, ..AgentSpec::default() };
        for (spec, may) in [
            (json!({}), Permissions::Ask),
            (json!({"permissions": "approve-all"}), Permissions::Ask),
            (json!({"permissions": "deny-all"}), Permissions::DenyAll),
            (json!({"sandboxMode": "read-only"}), Permissions::ApproveReads),
            (json!({"sandboxMode": "read-only", "permissions": "deny-all"}), Permissions::DenyAll),
        ] {
            let narrowed = role(spec.clone()).narrow(&agent);
            assert_eq!(narrowed.permissions, may, "{spec}");
            let is_read_only = spec.get("sandboxMode").is_some();
            let mode = if is_read_only { SandboxMode::ReadOnly } else { SandboxMode::Off };
            assert_eq!(narrowed.sandbox.mode, mode, "{spec}");
        }
        let mut sandboxed = agent.clone();
        sandboxed.sandbox.mode = SandboxMode::WorkspaceWrite;
        assert_eq!(role(json!({})).narrow(&sandboxed), sandboxed);
    }

    #[test]
    fn its_model_and_servers_come_before_the_agents() {
        let server = |url: &str| json!({"name": "docs", "type": "http", "url": url});
        let agent: AgentSpec = serde_json::from_value(json!({
            "model": "wide", "mcpServers": [server("http://agent/")],
        }))
        .unwrap();
        let role = role(json!({"model": "deep", "mcpServers": [server("http://role/")]}));
        let narrowed = role.narrow(&agent);
        assert_eq!(narrowed.model.as_deref(), Some("deep"));
        let urls: Vec<_> = narrowed.mcp_servers.iter().map(|one| one.url.as_deref()).collect();
        assert_eq!(urls, [Some("http://role/"), Some("http://agent/")]);
    }
}
