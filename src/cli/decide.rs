//! `spawnlet approve` and `spawnlet deny`: the answer to what an agent asks.

use std::io::Write;

use clap::Args;
use serde_json::json;

use super::Context;
use super::client::item;
use super::failure::Failure;
use super::named::name_of;
use super::output::text;
use crate::api::Kind;
use crate::api::permission::Decision;
use crate::rest::resource::Resource;

const REQUEST: Resource = Resource::Records(Kind::PermissionRequest);

/// Which requests.
#[derive(Debug, Args)]
pub(super) struct Decide {
    /// Names or uids of permission requests; `spawnlet get permissionrequests` shows them.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

impl Decide {
    /// Decides each of them. One that cannot be decided does not hold the others back; the first
    /// such failure is the verb's, the others are told at once.
    pub(super) async fn run(
        self,
        decision: Decision,
        context: &mut Context<'_>,
    ) -> Result<(), Failure> {
        let client = context.client()?;
        let done = match decision {
            Decision::Allow => "allowed, once",
            Decision::Deny => "denied",
        };
        let mut first: Option<Failure> = None;
        for name in &self.names {
            let name = name_of(Kind::PermissionRequest, name)?;
            let path = item(REQUEST, &context.namespace, name);
            let patch = json!({"spec": {"decision": decision}});
            match client.patch(&path, &patch).await {
                Ok(object) => {
                    let name = text(&object, "/metadata/name");
                    writeln!(context.out, "permissionrequest/{name} is {done}")?;
                }
                Err(failure @ Failure::Refused { .. }) if first.is_none() => first = Some(failure),
                // Nothing can be done if it cannot be written.
                Err(failure @ Failure::Refused { .. }) => {
                    drop(writeln!(std::io::stderr(), "error: {failure}"));
                }
                Err(failure) => return Err(failure),
            }
        }
        first.map_or(Ok(()), Err)
    }
}
