//! The API as clients see it, through the router, on the store in memory.

mod own;
mod own_watches;
mod reads;
mod secrets;
mod serving;
mod streams;
mod tokens;
mod watches;
mod writes;

use std::collections::HashMap;
use std::sync::Mutex;

use axum::http::{HeaderMap, Request, Uri};
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::json;
use tokio::sync::watch::Receiver;
use tower::ServiceExt;

use super::*;
use crate::api::machine;
use crate::api::{Condition, Kind, Uid};
use crate::clock::ManualClock;
use crate::guard::{Guard, Rules};
use crate::ports::{LiveActivity, Manifest, SecretFault};
use crate::store::memory::MemoryStore;
use crate::store::{Blobs, Commit, Key, Op, Rev, Store, keys};

pub(crate) const TOKEN: &str = "operator-token-of-the-tests";
pub(crate) const MCP_URL: &str = "http://127.0.0.1:7420/mcp";
pub(crate) const BASE: &str = "/apis/spawnlet.dev/v1alpha1";
/// Longer than any answer takes; a test that waits for it has failed.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

/// The ports, as a test sets them.
#[derive(Default)]
pub(crate) struct Ports {
    pub(crate) transcripts: Mutex<HashMap<Uid, Receiver<u64>>>,
    pub(crate) stderr: Mutex<Option<Bytes>>,
    pub(crate) activity: Mutex<Option<LiveActivity>>,
    pub(crate) manifests: Mutex<Vec<Manifest>>,
    pub(crate) secrets: Mutex<std::collections::BTreeMap<String, String>>,
    pub(crate) is_unready: std::sync::atomic::AtomicBool,
    pub(crate) is_store_faulty: std::sync::atomic::AtomicBool,
}

impl Live for Ports {
    fn activity(&self, _: &Uid) -> Option<LiveActivity> {
        self.activity.lock().unwrap().clone()
    }
    fn stderr(&self, _: &Uid) -> Option<Bytes> {
        self.stderr.lock().unwrap().clone()
    }
    fn transcript(&self, turn: &Uid) -> Option<Receiver<u64>> {
        self.transcripts.lock().unwrap().get(turn).cloned()
    }
}

impl Secrets for Ports {
    fn names(&self) -> Result<Vec<String>, SecretFault> {
        Ok(self.secrets.lock().unwrap().keys().cloned().collect())
    }
    fn set(&self, name: &str, value: String) -> Result<bool, SecretFault> {
        if !(8..10_000).contains(&value.len()) {
            return Err(SecretFault::Invalid("the value is too short or too long".to_owned()));
        }
        Ok(self.secrets.lock().unwrap().insert(name.to_owned(), value).is_none())
    }
    fn delete(&self, name: &str) -> Result<bool, SecretFault> {
        Ok(self.secrets.lock().unwrap().remove(name).is_some())
    }
}

impl Inputs for Ports {
    fn executable(&self, agent: &crate::api::Agent) -> Result<Option<std::path::PathBuf>, String> {
        Ok(Some(format!("/bin/{}", agent.metadata.name).into()))
    }
    fn directories(&self, cwd: &str, additional: &[String]) -> Result<Vec<String>, String> {
        let all = std::iter::once(cwd).chain(additional.iter().map(String::as_str));
        Ok(all.map(str::to_owned).collect())
    }
}

impl Manifests for Ports {
    fn manifests(&self) -> Vec<Manifest> {
        self.manifests.lock().unwrap().clone()
    }
}

impl Health for Ports {
    fn is_ready(&self) -> bool {
        !self.is_unready.load(std::sync::atomic::Ordering::SeqCst)
    }
    fn conditions(&self) -> Vec<Condition> {
        let is_faulty = self.is_store_faulty.load(std::sync::atomic::Ordering::SeqCst);
        let (status, reason) = if is_faulty { ("False", "ReadOnly") } else { ("True", "Open") };
        serde_json::from_value(json!([
            {"type": "StoreAvailable", "status": status, "reason": reason,
             "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "DiskPressure", "status": "False", "reason": "Enough",
             "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ]))
        .unwrap()
    }
    fn guards(&self) -> Vec<machine::Guard> {
        machine_guards()
    }
}

/// What a machine could have.
pub(crate) fn machine_guards() -> Vec<machine::Guard> {
    serde_json::from_value(json!([
        {"name": "Landlock", "state": "present", "found": "ABI 7"},
        {"name": "Cgroup", "state": "absent", "found": "none", "lost": "time", "hint": "Delegate=yes"},
    ]))
    .unwrap()
}

/// A daemon's API without the daemon.
pub(crate) struct Fixture {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) ports: Arc<Ports>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) guard: Arc<Guard>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) router: Router,
}

pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|error| panic!("{error}: {self}"))
    }
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.code, String::from_utf8_lossy(&self.bytes))
    }
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let store = Arc::new(MemoryStore::new());
        let ports = Arc::new(Ports::default());
        let shutdown = CancellationToken::new();
        let clock: SharedClock = Arc::new(ManualClock::default());
        let admission = Arc::new(Admission::new(
            Arc::clone(&store) as SharedStore,
            Arc::clone(&store) as SharedBlobs,
            Arc::clone(&clock),
            crate::slots::SharedSlots::default(),
            crate::admission::Limits::default(),
        ));
        let rules = Rules::default();
        let guard = Arc::new(Guard::new(TOKEN, Arc::clone(&admission), rules, Arc::clone(&clock)));
        let router = router(State {
            admission: Arc::clone(&admission),
            store: Arc::clone(&store) as SharedStore,
            blobs: Arc::clone(&store) as SharedBlobs,
            live: Arc::clone(&ports) as Arc<dyn Live>,
            inputs: Arc::clone(&ports) as Arc<dyn Inputs>,
            manifests: Arc::clone(&ports) as Arc<dyn Manifests>,
            secrets: Arc::clone(&ports) as Arc<dyn Secrets>,
            health: Arc::clone(&ports) as Arc<dyn Health>,
            clock: Arc::clone(&clock),
            mcp_url: MCP_URL.to_owned(),
            shutdown: shutdown.clone(),
        });
        let router = guard::protect(router, Arc::clone(&guard));
        Self { store, ports, admission, guard, shutdown, router }
    }

    /// Sends a request and gives the response before its body is read.
    pub(crate) async fn open(
        &self,
        method: &str,
        uri: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Response {
        let mut request = Request::builder().method(method).uri(uri.parse::<Uri>().unwrap());
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "localhost");
        }
        if !headers.iter().any(|(name, _)| *name == "authorization") {
            request = request.header("authorization", format!("Bearer {TOKEN}"));
        }
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            request = request.header(*name, *value);
        }
        let request = request.body(body.into()).unwrap();
        self.router.clone().oneshot(request).await.unwrap()
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        uri: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let response = self.open(method, uri, headers, body).await;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        assert_eq!(parts.headers.get("cache-control").unwrap(), "no-store", "{uri}");
        Answer { code: parts.status.as_u16(), headers: parts.headers, bytes }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", &format!("{BASE}{path}"), &[], Body::empty()).await
    }

    /// Writes a record as the daemon would, with the index keys that reading needs.
    pub(crate) async fn put(&self, kind: Kind, object: Value) -> Rev {
        let part = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
        let key = keys::record(kind, &part("namespace").into(), &part("name").into());
        let uid = Uid::new(part("uid"));
        let pointer = Bytes::from(key.to_string());
        let mut ops = vec![Op::Put { key: key.clone(), value: object.to_string().into() }];
        if !uid.is_empty() {
            ops.push(Op::Put { key: keys::uid(&uid), value: pointer.clone() });
        }
        if let Some(session) = object.pointer("/metadata/ownerReferences/0/uid") {
            let session = Uid::new(session.as_str().unwrap());
            let index = keys::turn_of(&session, &uid);
            if self.store.get(&index).await.unwrap().is_none() {
                ops.push(Op::Put { key: index, value: pointer });
            }
        }
        self.store.commit(Commit { guards: Vec::new(), ops }).await.unwrap()
    }

    pub(crate) async fn remove(&self, key: Key) {
        let ops = vec![Op::Delete { key }];
        self.store.commit(Commit { guards: Vec::new(), ops }).await.unwrap();
    }

    pub(crate) async fn append(
        &self,
        turn: &str,
        stream: crate::store::Stream,
        text: &[u8],
    ) -> u64 {
        let blob = crate::store::BlobId { owner: Uid::new(turn), stream };
        for piece in text.chunks(crate::store::BLOB_CHUNK_BYTES_MAX) {
            let offset = self.store.len(&blob).await.unwrap();
            let bytes = Bytes::copy_from_slice(piece);
            let append = crate::store::Append { blob: blob.clone(), offset, bytes };
            self.store.append(vec![append]).await.unwrap();
        }
        self.store.len(&blob).await.unwrap()
    }
}

/// Reads a stream line by line.
pub(crate) struct Lines {
    body: Body,
    rest: Vec<u8>,
}

impl Lines {
    pub(crate) fn of(response: Response) -> Self {
        assert_eq!(response.status(), 200);
        Self { body: response.into_body(), rest: Vec::new() }
    }

    /// The next line; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(String::from_utf8(line).unwrap().trim_end().to_owned());
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame());
            match frame.await.expect("the stream fell silent") {
                Some(frame) => self.rest.extend_from_slice(frame.unwrap().data_ref().unwrap()),
                None => return None,
            }
        }
    }

    /// The next event of a watch: its type, its object's name and its object.
    pub(crate) async fn event(&mut self) -> (String, String, Value) {
        let line = self.next().await.expect("the watch ended");
        let mut event: Value = serde_json::from_str(&line).unwrap();
        let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        (event["type"].as_str().unwrap().to_owned(), name, event["object"].take())
    }
}

pub(crate) fn session(name: &str, phase: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "spawnlet.dev/v1alpha1",
        "kind": "Session",
        "metadata": {
            "name": name, "namespace": "default", "labels": labels,
            "uid": uid(name), "creationTimestamp": "2026-01-01T00:00:00.000Z",
        },
        "spec": {"agent": "echo"},
        "status": {"phase": phase},
    })
}

pub(crate) fn turn(name: &str, session: &str, phase: &str) -> Value {
    let mut status = json!({"phase": phase});
    if phase == "Completed" {
        status["finishedAt"] = json!("2026-01-01T00:00:00.000Z");
    }
    json!({
        "apiVersion": "spawnlet.dev/v1alpha1",
        "kind": "Turn",
        "metadata": {
            "name": name, "namespace": "default", "uid": uid(name),
            "ownerReferences": [{"apiVersion": "spawnlet.dev/v1alpha1", "kind": "Session",
                                 "name": session, "uid": uid(session)}],
        },
        "spec": {"session": session},
        "status": status,
    })
}

/// A uid made of a name.
pub(crate) fn uid(name: &str) -> String {
    let sum = name.bytes().fold(0_u64, |sum, byte| sum * 131 + u64::from(byte));
    format!("01900000-0000-7000-8000-{:012x}", sum & 0xffff_ffff_ffff)
}

pub(crate) fn session_key(name: &str) -> Key {
    keys::record(Kind::Session, &"default".into(), &name.into())
}
