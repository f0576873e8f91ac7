//! What admission takes, what it refuses, and what is then in the store.

mod bounds;
mod create;
mod delete;
mod faults;
mod lattice;
mod manifests;
mod spawn;
mod tokens;
mod turns;
mod update;

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::api::turn::TurnPhase;
use crate::api::{Session, Turn};
use crate::clock::ManualClock;
use crate::slots::SharedSlots;
use crate::store::fault::{FaultStore, Plan};
use crate::store::memory::MemoryStore;
use crate::store::records::Page;

/// An admission over an empty store.
struct Bench {
    admission: Admission,
    store: Arc<MemoryStore>,
    clock: Arc<ManualClock>,
}

const PLAIN: WriteOptions =
    WriteOptions { dry_run: false, field_validation: FieldValidation::Strict, force: false };
const DRY: WriteOptions = WriteOptions { dry_run: true, ..PLAIN };
const FORCE: WriteOptions = WriteOptions { force: true, ..PLAIN };

impl Bench {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        let store = Arc::new(MemoryStore::new());
        let clock = Arc::new(ManualClock::default());
        let admission = Admission::new(
            store.clone(),
            store.clone(),
            clock.clone(),
            SharedSlots::default(),
            limits,
        );
        Self { admission, store, clock }
    }

    /// A bench whose store does wrong what it is told to.
    fn faulty() -> (Self, Arc<FaultStore>) {
        Self::with_faults(Plan::default(), 1)
    }

    /// A bench whose store does wrong what a plan and a seed say.
    fn with_faults(plan: Plan, seed: u64) -> (Self, Arc<FaultStore>) {
        let mut bench = Self::new();
        let (store, blobs) = (bench.store.clone(), bench.store.clone());
        let faults = Arc::new(FaultStore::new(store, blobs, plan, seed));
        let (clock, limits) = (bench.clock.clone(), Limits::default());
        bench.admission =
            Admission::new(faults.clone(), faults.clone(), clock, SharedSlots::default(), limits);
        (bench, faults)
    }

    async fn create(&self, kind: Kind, body: Value) -> Result<Admitted, Refusal> {
        self.admission.create(kind, None, body, &PLAIN, &Writer::Operator).await
    }

    async fn patch(&self, kind: Kind, name: &str, patch: Value) -> Result<Admitted, Refusal> {
        self.patch_with(kind, name, patch, &PLAIN).await
    }

    async fn patch_with(
        &self,
        kind: Kind,
        name: &str,
        patch: Value,
        options: &WriteOptions,
    ) -> Result<Admitted, Refusal> {
        let namespace = "default".into();
        let writer = Writer::Operator;
        self.admission.patch(kind, &namespace, &name.into(), patch, options, &writer).await
    }

    async fn put(&self, kind: Kind, name: &str, body: Value) -> Result<Admitted, Refusal> {
        let namespace = "default".into();
        let writer = Writer::Operator;
        self.admission.update(kind, &namespace, &name.into(), body, &PLAIN, &writer).await
    }

    async fn apply(&self, kind: Kind, body: Value) -> Result<Applied, Refusal> {
        self.apply_with(kind, body, &PLAIN).await
    }

    async fn apply_with(
        &self,
        kind: Kind,
        body: Value,
        options: &WriteOptions,
    ) -> Result<Applied, Refusal> {
        let writer = Writer::Manifest { source: "a.yaml".to_owned() };
        self.admission.apply(kind, body, options, &writer).await
    }

    async fn delete(&self, kind: Kind, name: &str) -> Result<Deleted, Refusal> {
        self.delete_with(kind, name, &DeleteOptions::default()).await
    }

    async fn delete_with(
        &self,
        kind: Kind,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, Refusal> {
        self.admission.delete(kind, &"default".into(), &name.into(), options).await
    }

    async fn session(&self, name: &str) -> Session {
        self.find::<SessionSpec>(name).await.unwrap()
    }

    async fn turn(&self, name: &str) -> Turn {
        self.find::<TurnSpec>(name).await.unwrap()
    }

    async fn find<S: Admissible>(&self, name: &str) -> Option<Object<S>> {
        let namespace = if S::KIND.is_namespaced() { "default" } else { "" };
        self.admission.records().get::<S>(&namespace.into(), &name.into()).await.unwrap()
    }

    async fn turns(&self) -> Vec<Turn> {
        self.admission.records().list::<TurnSpec>(None, &Page::ALL).await.unwrap().items
    }

    /// Writes as the controller does.
    async fn write<S: Admissible>(&self, old: &Object<S>, change: impl FnOnce(&mut Object<S>)) {
        let mut new = old.clone();
        change(&mut new);
        Txn::new().update(old, &new).commit(&*self.store).await.unwrap();
    }

    /// Takes a record away as the controller does.
    async fn remove<S: Admissible>(&self, name: &str) {
        let object = self.find::<S>(name).await.unwrap();
        use crate::clock::Clock as _;
        let now = self.clock.now().time;
        Txn::new().retire(&object, now).commit(&*self.store).await.unwrap();
    }

    async fn end_turn(&self, name: &str) {
        let turn = self.turn(name).await;
        self.write(&turn, |turn| turn.status.phase = TurnPhase::Completed).await;
    }

    async fn head(&self) -> u64 {
        use crate::store::Store as _;
        self.store.head().await.unwrap().0
    }
}

fn session(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"agent": "stub", "cwd": "/srv"}})
}

fn turn(session: &str) -> Value {
    json!({"spec": {"session": session, "prompt": "hello"}})
}

fn agent(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"argv": ["agent"]}})
}

/// A bench with a session `s`.
async fn bench_with_session() -> Bench {
    let bench = Bench::new();
    bench.create(Kind::Session, session("s")).await.unwrap();
    bench
}

/// The fields that a write was refused for.
fn fields<T: std::fmt::Debug>(result: Result<T, Refusal>) -> Vec<String> {
    let refusal = result.unwrap_err();
    assert_eq!(refusal.code(), 422, "{refusal}");
    refusal.field_errors().iter().map(|error| error.field.as_str().to_owned()).collect()
}

fn code<T: std::fmt::Debug>(result: Result<T, Refusal>) -> u16 {
    result.unwrap_err().code()
}

fn made(applied: Applied) -> Admitted {
    match applied {
        Applied::Admitted(admitted) => admitted,
        Applied::Replacing { uid } => panic!("{uid} is being replaced"),
    }
}
