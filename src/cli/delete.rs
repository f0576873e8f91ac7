//! `spawnlet delete`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use hyper::Method;
use serde_json::{Value, json};

use super::Context;
use super::client::item;
use super::failure::Failure;
use super::get::parse_subject;
use super::named::expect_name;
use super::observe::{Subject, until};
use super::output::text;

/// Delete objects.
#[derive(Debug, Args)]
pub(super) struct Delete {
    /// A kind, or KIND/NAME.
    kind: String,
    /// Names or uids.
    names: Vec<String>,
    /// In which order a session's tree goes.
    #[arg(long, value_enum, default_value_t)]
    cascade: Cascade,
    /// Wait until they are gone.
    #[arg(long)]
    wait: bool,
    /// How long to wait.
    #[arg(long, requires = "wait", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// Check only, delete nothing.
    #[arg(long)]
    dry_run: bool,
}

/// In which order a session's tree goes.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Cascade {
    /// Its children first.
    #[default]
    Foreground,
    /// Its own process first.
    Background,
    /// Its children stay; refused for those that stop with it.
    Orphan,
}

impl Cascade {
    const fn policy(self) -> &'static str {
        match self {
            Self::Foreground => "Foreground",
            Self::Background => "Background",
            Self::Orphan => "Orphan",
        }
    }
}

impl Delete {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let (resource, name) = match self.names.as_slice() {
            [] => parse_subject(&self.kind, None)?,
            [first, ..] => parse_subject(&self.kind, Some(first))?,
        };
        let names: Vec<String> =
            if self.names.is_empty() { name.into_iter().collect() } else { self.names.clone() };
        if names.is_empty() {
            return Err(Failure::Usage("which? give KIND NAME or KIND/NAME".to_owned()));
        }
        for name in &names {
            expect_name(resource, name)?;
        }
        let client = context.client()?;
        let mut body = json!({"kind": "DeleteOptions", "apiVersion": "v1",
                              "propagationPolicy": self.cascade.policy()});
        if self.dry_run {
            body["dryRun"] = json!(["All"]);
        }
        for name in &names {
            let path = item(resource, &context.namespace, name);
            let answer = client.send(Method::DELETE, &path, "application/json", &body).await?;
            let told = |object: &str, status: &str| {
                let text = text(&answer, object);
                if text.is_empty() { self::text(&answer, status) } else { text }.to_owned()
            };
            let uid = told("/metadata/uid", "/details/uid");
            let name = told("/metadata/name", "/details/name");
            if self.wait && !self.dry_run {
                let subject = Subject { resource, namespace: &context.namespace, name: &name };
                until(&client, subject, self.timeout, |object| Ok(is_gone(object, &uid))).await?;
            }
            let is_asked = answer.pointer("/metadata/deletionTimestamp").is_some() && !self.wait;
            let done = match (self.dry_run, is_asked) {
                (true, _) => "would be deleted (dry run)",
                (false, true) => "is being deleted",
                (false, false) => "deleted",
            };
            writeln!(context.out, "{}/{name} {done}", resource.singular())?;
        }
        Ok(())
    }
}

/// Whether the object of this uid is not there any more; another one of its name does not count.
pub(super) fn is_gone(object: Option<&Value>, uid: &str) -> Option<()> {
    object.is_none_or(|object| text(object, "/metadata/uid") != uid).then_some(())
}
