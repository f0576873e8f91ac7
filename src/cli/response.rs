//! `spawnlet response`.

use clap::Args;

use super::Context;
use super::client::item;
use super::failure::Failure;
use super::named::name_of;
use crate::api::Kind;
use crate::rest::resource::Resource;

/// Write a turn's response to standard output, byte for byte.
#[derive(Debug, Args)]
pub(super) struct Response {
    /// The turn's name or uid, or the response's id.
    id: String,
}

impl Response {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let name = name_of(Kind::Turn, &self.id)?;
        let client = context.client()?;
        let turn = item(Resource::Records(Kind::Turn), &context.namespace, name);
        let mut reply = client.stream(&format!("{turn}/response"), "*/*").await?;
        while let Some(chunk) = reply.chunk().await? {
            context.out.write_all(&chunk)?;
        }
        context.out.flush()?;
        Ok(())
    }
}
