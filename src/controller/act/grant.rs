//! The token of one run of a session's process: made with the record that announces the run, handed
//! to the process that is launched in the same pass, and forgotten with it.
//!
//! Invariants: the hash is on disk before the process exists; the token itself is in the daemon's
//! memory, in the environment of that process and in the entry of its MCP servers, nowhere else.

use rand::TryRng as _;

use super::Error;
use crate::api::agent::{McpServer, McpTransport};
use crate::api::token::{SecretToken, TOKEN_BYTES, id_of};
use crate::api::{CallerToken, Incarnation, Session};
use crate::controller::Controller;

/// The name of the daemon's own entry among an agent's MCP servers.
const OWN_SERVER: &str = "spawnlet";

impl Controller {
    /// Makes the token of a run and puts its hash into the session as it shall be written.
    pub(super) fn grant(
        &self,
        session: &mut Session,
        incarnation: Incarnation,
    ) -> Result<SecretToken, Error> {
        let mut random = [0_u8; TOKEN_BYTES];
        rand::rngs::SysRng
            .try_fill_bytes(&mut random)
            .map_err(|error| Error::NoRandomness(error.to_string()))?;
        let token = SecretToken::new(&random);
        let sha256 = SecretToken::sha256(&self.options.store_id, token.expose());
        let delegation = &session.spec.delegation;
        session.status.tokens.push(CallerToken {
            id: id_of(&sha256),
            sha256,
            toolsets: delegation.toolsets.clone(),
            control_mode: delegation.control_mode,
            incarnation: Some(incarnation),
            created_at: self.clock.now().time,
            expires_at: None,
        });
        Ok(token)
    }

    /// The daemon's own entry among an agent's MCP servers.
    pub(super) fn own_server(&self, token: &SecretToken) -> McpServer {
        let bearer = format!("Bearer {}", token.expose());
        McpServer {
            name: OWN_SERVER.to_owned(),
            transport: McpTransport::Http,
            command: None,
            args: Vec::new(),
            env: std::collections::BTreeMap::new(),
            url: Some(self.options.reach.mcp_url.clone()),
            headers: [("Authorization".to_owned(), bearer)].into(),
        }
    }
}
