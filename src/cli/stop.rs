//! `spawnlet stop`.

use clap::Args;
use serde_json::json;

use super::Context;
use super::client::item;
use super::failure::Failure;
use super::named::name_of;
use super::output::text;
use crate::api::Kind;
use crate::rest::resource::Resource;

/// Stop a session for good; its record and transcript stay until ttlAfterFinished.
#[derive(Debug, Args)]
pub(super) struct Stop {
    /// Names or uids of sessions.
    #[arg(required = true)]
    sessions: Vec<String>,
}

impl Stop {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let client = context.client()?;
        for session in &self.sessions {
            let session = name_of(Kind::Session, session)?;
            let path = item(Resource::Records(Kind::Session), &context.namespace, session);
            let patch = json!({"spec": {"desiredState": "cancelled"}});
            let object = client.patch(&path, &patch).await?;
            writeln!(context.out, "session/{} is being stopped", text(&object, "/metadata/name"))?;
        }
        Ok(())
    }
}
