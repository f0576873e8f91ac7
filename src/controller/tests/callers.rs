//! What callers write, as admission commits it: children, turns with their slot, cancels.

use serde_json::{Value, json};

use super::bench::Bench;
use crate::admission::{DeleteOptions, Propagation};
use crate::api::session::DesiredState;
use crate::api::turn::{Admission, Cancel, CancelBy, SourceKind, TurnDesiredState};
use crate::api::{
    Kind, Name, ObjectMeta, OwnerReference, PROCESS_FINALIZER, Session, Turn, TurnSpec,
};
use crate::store::Rev;
use crate::store::records::{self, Txn};

/// Whether a commit happened; one that did not met a conflict.
fn is_done(outcome: Result<Rev, records::Error>) -> bool {
    if let Err(error) = &outcome {
        assert!(error.is_conflict(), "{error}");
    }
    outcome.is_ok()
}

impl Bench {
    fn meta(&self, name: &str) -> ObjectMeta {
        ObjectMeta {
            name: name.into(),
            namespace: "default".into(),
            uid: self.admission.uids().make(),
            generation: 1,
            creation_timestamp: Some(self.clock.now().time),
            ..ObjectMeta::default()
        }
    }

    /// A session that the daemon does not run, and that may have children.
    pub(super) async fn external(&self, name: &str) {
        let spec = json!({"provider": "external", "cwd": "/w", "delegation": {"enabled": true}});
        let body = json!({"metadata": {"name": name}, "spec": spec});
        self.try_create(Kind::Session, body).await.unwrap();
    }

    /// A child, and with `prompt` its first turn, which has its slot: in one commit.
    pub(super) async fn child(&self, name: &str, parent: &str, agent: &str, more: Value) {
        assert!(self.try_child(name, parent, agent, more).await, "{parent} has no children");
    }

    /// The same, unless the parent has ended, is being deleted or gone.
    pub(super) async fn try_child(
        &self,
        name: &str,
        parent: &str,
        agent: &str,
        more: Value,
    ) -> bool {
        let mut spec = json!({"agent": agent, "cwd": "/w", "parent": parent});
        for (field, value) in more.as_object().unwrap() {
            spec[field] = value.clone();
        }
        let prompt = spec.as_object_mut().unwrap().remove("prompt");
        let mut child = Session::new(self.meta(name), serde_json::from_value(spec).unwrap());
        child.metadata.finalizers.push(PROCESS_FINALIZER.to_owned());
        // Whoever loses against the loop, which writes the parent too, tries again.
        loop {
            let Some(above) = self.find_session(parent).await else { return false };
            let has_ended = above.status.end.is_some() || above.metadata.is_deleting();
            if has_ended || above.spec.desired_state != DesiredState::Running {
                return false;
            }
            child.metadata.owner_references = vec![OwnerReference::of(&above)];
            let lineage = &mut child.status.lineage;
            lineage.parent = Some(above.metadata.uid.clone());
            lineage.depth = above.status.lineage.depth + 1;
            let txn = Txn::new().unchanged(&above);
            let is_made = if let Some(prompt) = &prompt {
                (child.status.turns_made, child.status.queued_turns) = (1, 1);
                let turn = self.asked_turn(&format!("{name}-1"), &child, prompt.as_str().unwrap());
                self.try_with_slot(txn.create(&child), &child, turn).await
            } else {
                is_done(txn.create(&child).commit(self.memory.as_ref()).await)
            };
            if is_made {
                return true;
            }
        }
    }

    /// A turn of a child that goes on, with its slot. The caller's wish meets a loop that writes the
    /// same session: whoever loses tries again.
    pub(super) async fn ask(&self, name: &str, session: &str, prompt: &str) {
        loop {
            let seen = self.find_session(session).await.unwrap();
            let mut counted = seen.clone();
            counted.status.queued_turns += 1;
            let turn = self.asked_turn(name, &seen, prompt);
            if self.try_with_slot(Txn::new().update(&seen, &counted), &seen, turn).await {
                return;
            }
        }
    }

    fn asked_turn(&self, name: &str, session: &Session, prompt: &str) -> Turn {
        let mut spec = TurnSpec {
            session: session.metadata.name.clone(),
            prompt: Some(prompt.to_owned()),
            admission: Admission::Immediate,
            ..TurnSpec::default()
        };
        spec.source.kind = SourceKind::Spawn;
        spec.source.caller = session.status.lineage.parent.clone().filter(|_| self.notifies);
        let mut turn = Turn::new(self.meta(name), spec);
        turn.metadata.owner_references.push(OwnerReference::of(session));
        turn
    }

    async fn try_with_slot(&self, txn: Txn, session: &Session, turn: Turn) -> bool {
        let parent = session.status.lineage.parent.as_ref();
        let shared = self.shared_slots();
        let mut slots = shared.lock().await;
        assert!(slots.has_free(parent, self.limits), "nothing is admitted without a slot");
        let holders = slots.after(Some(&turn.metadata.uid), &[], parent).unwrap();
        let txn = slots.write(txn.create(&turn), &holders);
        let outcome = txn.commit(self.memory.as_ref()).await;
        if let Ok(rev) = &outcome {
            slots.written(holders, *rev);
        }
        is_done(outcome)
    }

    /// The parent cancels a child.
    pub(super) async fn cancel_by_parent(&self, name: &str) {
        let at = self.clock.now().time;
        loop {
            let seen = self.find_session(name).await.unwrap();
            let mut wanted = seen.clone();
            wanted.spec.desired_state = DesiredState::Cancelled;
            wanted.metadata.generation += 1;
            let reason = "the parent session cancelled it".to_owned();
            wanted.status.cancel = Some(Cancel { by: CancelBy::Parent, reason, at });
            if Txn::new().update(&seen, &wanted).commit(self.memory.as_ref()).await.is_ok() {
                return;
            }
        }
    }

    /// The call that made a turn is cancelled. `false`: the prompt may have been sent.
    pub(super) async fn cancel_call(&self, name: &str) -> bool {
        let at = self.clock.now().time;
        loop {
            let seen = self.find_turn(name).await.unwrap();
            if seen.status.delivery != crate::api::turn::Delivery::NotSent
                || seen.status.phase.is_final()
            {
                return false;
            }
            let mut wanted = seen.clone();
            wanted.spec.desired_state = TurnDesiredState::Cancelled;
            let reason = "the call that made it was cancelled".to_owned();
            wanted.status.cancel = Some(Cancel { by: CancelBy::CallCancelled, reason, at });
            if Txn::new().update(&seen, &wanted).commit(self.memory.as_ref()).await.is_ok() {
                return true;
            }
        }
    }

    pub(super) async fn delete_session(&self, name: &str, propagation: Propagation) {
        let options = DeleteOptions { propagation, ..DeleteOptions::default() };
        let (namespace, name) = ("default".into(), Name::from(name));
        self.admission.delete(Kind::Session, &namespace, &name, &options).await.unwrap();
    }
}
