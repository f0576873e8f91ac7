//! What the operator's programs have to say about a child before it is made, and what they are told
//! once it is.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::child::Wish;
use super::{NotSpawned, SpawnRefusal};
use crate::admission::{Admission, Caller};
use crate::api::agent::Permissions;
use crate::api::{Code, Dur, Session};
use crate::ports::{Inputs, SPAWN_CREATED, SPAWN_PRE_CREATE};

/// What a program may change of a child. What it leaves out stays; a word that is none of these
/// refuses the child, so that nothing that was meant to narrow is passed over.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Changeable {
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<Dur>,
    #[serde(skip_serializing_if = "Option::is_none")]
    permissions: Option<Permissions>,
}

impl Admission {
    /// Has the operator's programs change a wish that is allowed as it stands. What they make of it
    /// is checked by whoever writes it.
    pub(super) async fn pre_create(
        &self,
        caller: &Caller,
        wish: &mut Wish,
        inputs: &dyn Inputs,
    ) -> Result<(), NotSpawned> {
        let Some(hooks) = self.hooks.as_ref().filter(|hooks| hooks.has(SPAWN_PRE_CREATE)) else {
            return Ok(());
        };
        let parent = self.live_caller(caller).await?;
        self.expect_usable_agent(&wish.spec.agent, inputs).await?;
        Box::pin(self.new_child(&parent, wish, inputs)).await?;
        let spec = &wish.spec;
        let child = Changeable {
            agent: Some(spec.agent.clone()),
            role: spec.role.clone(),
            ttl: spec.ttl,
            permissions: spec.permissions,
        };
        let input = json!({
            "event": SPAWN_PRE_CREATE,
            "parent": {
                "sessionId": caller.session,
                "name": caller.name,
                "namespace": caller.namespace,
            },
            "child": child,
        });
        let refused = |why: String| {
            let message =
                format!("the operator's hook {SPAWN_PRE_CREATE} refused the child: {why}");
            SpawnRefusal::new(Code::SpawnPermissionDenied, message)
        };
        let mut answer = hooks.ask(SPAWN_PRE_CREATE, input).await.map_err(refused)?;
        let changed: Changeable = serde_json::from_value(answer["child"].take())
            .map_err(|error| refused(format!("its answer: child: {error}")))?;
        let spec = &mut wish.spec;
        if let Some(agent) = changed.agent {
            spec.agent = agent;
        }
        spec.role = changed.role.or(spec.role.take());
        spec.ttl = changed.ttl.or(spec.ttl);
        spec.permissions = changed.permissions.or(spec.permissions);
        Ok(())
    }

    /// Tells the operator's programs of a new child.
    pub(super) fn tell_created(&self, child: &Session) {
        if let Some(hooks) = &self.hooks {
            hooks.tell(SPAWN_CREATED, crate::ports::of_child(SPAWN_CREATED, child));
        }
    }
}
